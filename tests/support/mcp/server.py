"""A real MCP server of the official package, to be run as a program: standard input and output, or `http PORT`.

It does what servers do to those who trust them: it dies, hangs, floods, and changes what it offers.
"""

from __future__ import annotations

import asyncio
import os
import sys
from base64 import b64encode
from pathlib import Path

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.types import (
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

server = MCPServer("test")
FOLDER = Path(os.environ.get("MCP_TEST_FOLDER", "."))
PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(92)


def note(name: str, text: str) -> None:
    """Append to a file, so that it is there whatever happens to this process."""
    file = os.open(FOLDER / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, f"{text}\n".encode())
    os.fsync(file)
    os.close(file)


async def wait_for(name: str) -> None:
    while not (FOLDER / name).exists():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
async def send(text: str) -> str:
    """Send a text, and say so once `answer` is there."""
    note("sent", text)
    await wait_for("answer")
    return f"sent {text}"


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
def remove(text: str) -> str:
    """Remove a text for good."""
    note("removed", text)
    return "removed"


@server.tool()
async def hang() -> str:
    """Never answer."""
    note("hangs", "begun")
    try:
        await asyncio.Event().wait()
    finally:
        note("hangs", "cancelled")
    return ""


@server.tool()
def die() -> str:
    """End this very process."""
    print("farewell", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def shout(length: int) -> str:
    """Answer with so many characters."""
    return "A" * length


@server.tool(structured_output=False)
def show() -> list[object]:
    """Answer with a text, a picture, and resources."""
    return [
        "Look:",
        Image(data=PICTURE, format="png"),
        ResourceLink(type="resource_link", name="report", uri="file:///report.pdf", mime_type="application/pdf"),
        EmbeddedResource(
            type="resource",
            resource=TextResourceContents(uri="file:///note.txt", text="a note", mime_type="text/plain"),
        ),
    ]


@server.tool()
def tell_secret() -> str:
    """Say what nobody should."""
    print(os.environ.get("MCP_TEST_SECRET", ""), file=sys.stderr, flush=True)
    return f"the key is {os.environ.get('MCP_TEST_SECRET', '')}"


@server.tool()
def fail(text: str) -> str:
    """Fail with a text."""
    raise ValueError(text)


@server.tool(structured_output=False)
def fail_and_show() -> CallToolResult:
    """Fail, with a picture of how it looks."""
    picture = ImageContent(type="image", data=b64encode(PICTURE).decode(), mime_type="image/png")
    return CallToolResult(content=[TextContent(type="text", text="no such button"), picture], is_error=True)


@server.tool()
async def change(context: Context) -> str:
    """Offer one tool more, and say that there is."""

    def subtract(a: int, b: int) -> int:
        """Take one number from another."""
        return a - b

    server.add_tool(subtract)
    if "silently" not in sys.argv:
        await context.notify_tools_changed()
    return "changed"


if __name__ == "__main__":
    note("starts", str(os.getpid()))
    if os.environ.get("MCP_TEST_REFUSES") == "yes":
        sys.exit("no room at the inn")
    if "http" in sys.argv:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[sys.argv.index("http") + 1]))
    else:
        server.run()
