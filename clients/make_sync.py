"""Makes the blocking client from the asyncio one: `make client`. Needs `unasync` and `ruff`, and is not installed.

Each file of `FILES` is rewritten word by word (`unasync` drops `async` and `await` and renames the methods of Python's
protocols), and then put in form by ruff. `SENTENCES` are the few that read otherwise.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import unasync

PACKAGE = Path(__file__).parent / "python" / "src" / "swarmkeep_client"
FILES = {"_async_sender.py": "_sender.py", "async_session.py": "session.py", "async_client.py": "client.py"}
WORDS = {
    "AsyncAgents": "Agents",
    "AsyncAudit": "Audit",
    "AsyncBaseTransport": "BaseTransport",
    "AsyncClient": "Client",
    "AsyncFeed": "Feed",
    "AsyncKeys": "Keys",
    "AsyncRuns": "Runs",
    "AsyncSender": "Sender",
    "AsyncSession": "Session",
    "AsyncSessions": "Sessions",
    "AsyncWebhooks": "Webhooks",
    "_async_sender": "_sender",
    "aclose": "close",
    "aclosing": "closing",
    "aiter": "iter",
    "aiter_bytes": "iter_bytes",
    "aread": "read",
    "async_session": "session",
    "asyncio": "time",
    "carry_out_async": "carry_out",
    "make_async_tools": "make_tools",
}
SENTENCES = {
    " The words of `client`, with await.": "",
    " The words of `session`, with await.": "",
    "over a network, with asyncio.": "over a network, blocking.",
    "in an asyncio event loop. Tasks may share one.": "over blocking sockets. Threads may share one.",
    "Tasks of one event loop may share one; close it, or use it in an `async with` block.": (
        "Threads may share one; close it, or use it in a `with` block."
    ),
    "Callable[[float], Awaitable[object]]": "Callable[[float], object]",
}
HEAD = "# Made from {} by make_sync.py: change that one, then `make client`.\n"


def make_sync(folder: Path) -> list[Path]:
    """Write the blocking modules into `folder`, and return them."""
    rule = unasync.Rule(f"{PACKAGE}/", f"{folder}/", additional_replacements=WORDS)
    made = []
    for source, target in FILES.items():
        unasync.unasync_files([str(PACKAGE / source)], [rule])
        text = (folder / source).read_text(encoding="utf-8")
        (folder / source).unlink()
        for before, after in SENTENCES.items():
            text = text.replace(before, after)
        made.append(folder / target)
        made[-1].write_text(HEAD.format(source) + text, encoding="utf-8")
    config = ("--config", str(Path(__file__).parents[1] / "pyproject.toml"), "--quiet")
    for command in (["check", "--fix", "--select", "F401,I,UP034"], ["format"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, *config, *made], check=True)
    return made


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        for file in make_sync(Path(folder)):
            (PACKAGE / file.name).write_bytes(file.read_bytes())
