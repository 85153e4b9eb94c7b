"""Inference engines, found by name through `miles_agents.registry.engines`."""
