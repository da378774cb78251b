"""Code blocks of Markdown files, run as a reader would run them: in order, in one folder.

`python -m tests.support.markdown PAGE [HOST:PORT [TEXT=REPLACEMENT …]]` follows a page in the current folder. Its
Python blocks are one session, its bash blocks one shell, whose variables Python sees; 127.0.0.1:8000 in a block stands
for the given server. A ```bash serve block is the second terminal: it starts that server, which runs until the page
ends or starts another.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import psutil
import yaml
from markdown_it import MarkdownIt

ADDRESS = "127.0.0.1:8000"

START_SECONDS = 60.0
POLL_SECONDS = 0.05

# What a block sets, and where it goes, holds for the next one; not so in the second terminal, which is killed at any
# moment, also while it would be saving.
SERVE = 'set -eu -o pipefail -a; [ -e "$1" ] && . "$1"; . "$0"'
BASH = SERVE + '; { export -p; printf "cd %q\\n" "$PWD"; } > "$1"'

SHOWN_ONLY = {"text"}
PARSED: dict[str, Callable[[str], object]] = {
    "json": json.loads,
    "jsonl": lambda text: [json.loads(line) for line in text.splitlines()],
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
}
RUN = {"python", "bash", "sh"}


@dataclass(frozen=True)
class Block:
    """One fenced block. `line` is where its first line of code stands, counted from 0."""

    path: Path
    line: int
    language: str
    remark: str
    code: str

    @property
    def place(self) -> str:
        return f"{self.path.name}:{self.line + 1}"

    @property
    def file(self) -> str:
        """The name to save it under, where the page has the reader make a file: ```python file=shop.py."""
        return self.remark.removeprefix("file=") if self.remark.startswith("file=") else ""

    @property
    def runs(self) -> bool:
        return self.language in RUN and not self.remark.startswith("no-run")

    @property
    def serves(self) -> bool:
        """Whether it starts a server and runs until that is stopped."""
        return self.language in ("bash", "sh") and self.remark == "serve"

    def check(self) -> None:
        """Refuse what can neither run nor be parsed and does not say why."""
        if self.remark.startswith("no-run"):
            if not self.remark.removeprefix("no-run").lstrip(": "):
                raise ValueError(f"{self.place}: say why it does not run, as in ```{self.language} no-run: reason")
        elif self.language in PARSED:
            PARSED[self.language](self.code)
        elif self.language not in RUN | SHOWN_ONLY:
            raise ValueError(f"{self.place}: {self.language or 'no language'!r} is not tested; use ```text to show it")


def read_blocks(path: Path) -> list[Block]:
    """The fenced blocks of a Markdown file, in order, those in lists and quotes included."""
    found = []
    for token in MarkdownIt().parse(path.read_text(encoding="utf-8")):
        if token.type == "fence" and token.map:
            language, _, remark = token.info.strip().partition(" ")
            found.append(Block(path, token.map[0] + 1, language, remark.strip(), token.content))
    return found


def run_page(path: Path, address: str, replaced: Mapping[str, str] | None = None) -> None:
    """Do what the blocks of a page say; an error in one of them ends the program.

    `address` is what 127.0.0.1:8000 stands for, `replaced` what other texts do.
    """
    folder = Path.cwd()
    # Only as the main module are the session's classes found again by pydantic and pickle.
    session = sys.modules["__main__"] = ModuleType("__main__")
    sys.path.insert(0, str(folder))
    server: subprocess.Popen[bytes] | None = None
    try:
        for block in read_blocks(path):
            code = block.code
            for text, replacement in {ADDRESS: address, **(replaced or {})}.items():
                code = code.replace(text, replacement)
            if block.file:
                Path(block.file).parent.mkdir(parents=True, exist_ok=True)
                Path(block.file).write_text(code, encoding="utf-8")
            if not block.runs:
                continue
            # An error then names the line of the page.
            code = "\n" * block.line + code
            if block.language == "python":
                os.environ.update(_read_exports(folder))
                exec(compile(code, str(path), "exec", dont_inherit=True), session.__dict__)
            elif block.serves:
                stop_server(server)
                server = _start_shell(folder, f"{path.name}.server", code, SERVE)
                wait_for_server(block, server, address)
            elif status := _start_shell(folder, path.name, code).wait():
                sys.exit(f"{block.place}: exit code {status}")
    finally:
        stop_server(server)


def _read_exports(folder: Path) -> dict[str, str]:
    """What the bash blocks have exported so far."""
    kept = folder / ".shell"
    if not kept.exists():
        return {}
    said = subprocess.run(["bash", "-c", '. "$0"; env -0', kept], capture_output=True, check=True, text=True)
    return dict(pair.split("=", 1) for pair in said.stdout.split("\0") if pair)


def _start_shell(folder: Path, name: str, code: str, how: str = BASH) -> subprocess.Popen[bytes]:
    script = folder / f".{name}"
    script.write_text(code, encoding="utf-8")
    return subprocess.Popen(["bash", "-c", how, script, folder / ".shell"])


def wait_for_server(block: Block, server: subprocess.Popen[bytes], address: str) -> None:
    """Wait until the server that a block started takes requests."""
    deadline = time.monotonic() + START_SECONDS
    while _status(address) != 200:
        if server.poll() is not None:
            sys.exit(f"{block.place}: the server ended with exit code {server.returncode} before it was ready")
        if time.monotonic() > deadline:
            sys.exit(f"{block.place}: no server was ready at {address} within {START_SECONDS:g} s")
        time.sleep(POLL_SECONDS)


def _status(address: str) -> int | None:
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def stop_server(server: subprocess.Popen[bytes] | None) -> None:
    """End what a `serve` block started, as Ctrl-C in its terminal would, and wait until its port is free again."""
    if server is None or server.poll() is not None:
        return
    programs = psutil.Process(server.pid).children(recursive=True)
    for program in programs:
        program.terminate()
    psutil.wait_procs(programs, START_SECONDS)
    server.kill()
    server.wait()


if __name__ == "__main__":
    page, address, *pairs = [*sys.argv[1:], *([ADDRESS] if len(sys.argv) < 3 else [])]
    run_page(Path(page), address, dict(pair.split("=", 1) for pair in pairs))
