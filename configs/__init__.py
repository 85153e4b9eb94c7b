"""``miles_agents.configs``: see ``docs/architecture.md`` for what lives here."""

if __name__ != "miles_agents.configs":
    raise ImportError("import it as 'miles_agents.configs': the bare name 'configs' is not a package of its own")
