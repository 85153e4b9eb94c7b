"""``miles_agents.envs``: see ``docs/architecture.md`` for what lives here."""

if __name__ != "miles_agents.envs":
    raise ImportError("import it as 'miles_agents.envs': the bare name 'envs' is not a package of its own")
