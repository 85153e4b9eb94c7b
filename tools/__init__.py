"""``miles_agents.tools``: see ``docs/architecture.md`` for what lives here."""

if __name__ != "miles_agents.tools":
    raise ImportError("import it as 'miles_agents.tools': the bare name 'tools' is not a package of its own")

from miles_agents.tools.python import PythonTool

__all__ = ["PythonTool"]
