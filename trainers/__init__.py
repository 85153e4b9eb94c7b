"""``miles_agents.trainers``: see ``docs/architecture.md`` for what lives here."""

if __name__ != "miles_agents.trainers":
    raise ImportError("import it as 'miles_agents.trainers': the bare name 'trainers' is not a package of its own")
