"""Routes from trainer to engine, found by name through `miles_agents.registry.weight_syncs`."""
