"""``miles_agents.tools``: see ``docs/architecture.md`` for what lives here."""

if __name__ != "miles_agents.tools":
    raise ImportError("import it as 'miles_agents.tools': the bare name 'tools' is not a package of its own")

from miles_agents.tools.files import EditTool, ReadFileTool, WriteFileTool
from miles_agents.tools.mcp import MCPServer
from miles_agents.tools.python import PythonTool
from miles_agents.tools.search import Document, Retriever, SearchTool
from miles_agents.tools.shell import ShellTool
from miles_agents.tools.submit import SubmitTool
from miles_agents.tools.typed import Arguments, SandboxTool, TypedTool

__all__ = [
    "Arguments",
    "Document",
    "EditTool",
    "MCPServer",
    "PythonTool",
    "ReadFileTool",
    "Retriever",
    "SandboxTool",
    "SearchTool",
    "ShellTool",
    "SubmitTool",
    "TypedTool",
    "WriteFileTool",
]
