"""Code blocks of Markdown files, run as a reader would run them: in order, in one folder.

`python -m tests.support.markdown PAGE [HOST:PORT]` follows a page in the current folder. Its Python blocks are one
session, its bash blocks one shell; 127.0.0.1:8000 in a block stands for the given server.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import yaml
from markdown_it import MarkdownIt

ADDRESS = "127.0.0.1:8000"

# What a block sets, and where it goes, holds for the next one.
BASH = 'set -eu -o pipefail -a; [ -e "$1" ] && . "$1"; . "$0"; { export -p; printf "cd %q\\n" "$PWD"; } > "$1"'

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

    def check(self) -> None:
        """Refuse what can neither run nor be parsed and does not say why."""
        if self.remark.startswith("no-run"):
            if not self.remark.removeprefix("no-run").lstrip(": "):
                raise ValueError(f"{self.place}: say why it does not run, as in ```{self.language} no-run: reason")
        elif self.language in PARSED:
            PARSED[self.language](self.code)
        elif self.language not in RUN | SHOWN_ONLY:
            raise ValueError(f"{self.place}: {self.language or 'no language'!r} is not tested; use ```text to show it")


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a Markdown file, in order, those in lists and quotes included."""
    found = []
    for token in MarkdownIt().parse(path.read_text(encoding="utf-8")):
        if token.type == "fence" and token.map:
            language, _, remark = token.info.strip().partition(" ")
            found.append(Block(path, token.map[0] + 1, language, remark.strip(), token.content))
    return found


def follow(path: Path, address: str) -> None:
    """Do what the blocks of a page say; an error in one of them ends the program."""
    folder = Path.cwd()
    # Only as the main module are the session's classes found again by pydantic and pickle.
    session = sys.modules["__main__"] = ModuleType("__main__")
    sys.path.insert(0, str(folder))
    for block in blocks(path):
        code = block.code.replace(ADDRESS, address)
        if block.file:
            Path(block.file).write_text(code, encoding="utf-8")
        if not block.runs:
            continue
        # An error then names the line of the page.
        code = "\n" * block.line + code
        if block.language == "python":
            exec(compile(code, str(path), "exec", dont_inherit=True), session.__dict__)
        else:
            script = folder / f".{path.name}"
            script.write_text(code, encoding="utf-8")
            status = subprocess.run(["bash", "-c", BASH, script, folder / ".shell"], check=False).returncode
            if status:
                sys.exit(f"{block.place}: exit code {status}")


if __name__ == "__main__":
    follow(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ADDRESS)
