"""A small MCP server over standard input and output: notes by title, for as long as it runs."""

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("notes")
notes: dict[str, str] = {}


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def read_note(title: str) -> str:
    """Read a note by its title."""
    return notes.get(title, f"There is no note {title!r}. Titles: {', '.join(notes) or 'none'}.")


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def write_note(title: str, text: str) -> str:
    """Write a note down under a title, in the place of one that has it."""
    notes[title] = text
    return f"Written down as {title!r}."


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
def throw_away(title: str) -> str:
    """Throw a note away for good."""
    return "Gone." if notes.pop(title, None) is not None else f"There is no note {title!r}."


if __name__ == "__main__":
    server.run()
