"""The command line, and a database that has a conversation in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import ACME, CommandLine, InProcessCommandLine
from tests.support.processes import ServerProcess

# The last line approves the order.
TALK = "Hello, I'd like to buy a lantern for a hut trip.\nYes, please place the order.\nyes\n"


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    """Works on a database in its own folder, unless it is told of another."""
    return InProcessCommandLine(tmp_path)


@pytest.fixture
def process(cli: CommandLine) -> CommandLine:
    """The same in processes of its own: for commands that run agents, or wait for signals."""
    return CommandLine(cli.folder)


@dataclass(frozen=True)
class RecordedSession:
    """A database file with one session in it."""

    file: Path
    session_id: str

    @property
    def options(self) -> list[str]:
        return ["--database-url", f"sqlite:///{self.file}"]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RecordedSession:
    folder = tmp_path_factory.mktemp("recorded")
    cli = InProcessCommandLine(folder)
    talk = cli("chat", "--offline", "--agents", ACME, text=TALK)
    assert talk.code == 0, talk
    (session,) = cli("sessions", "list", "--json").json
    return RecordedSession(folder / "swarmkeep.db", session["id"])


@pytest.fixture
def db(cli: CommandLine, recorded: RecordedSession) -> CommandLine:
    """A command line on a database of the test's own, with that session."""
    shutil.copy(recorded.file, cli.folder / "swarmkeep.db")
    return cli


@contextmanager
def serve_copy(recorded: RecordedSession, folder: Path, **options: Any) -> Iterator[ServerProcess]:
    """A server on a database of the test's own, with that session."""
    database = f"sqlite:///{shutil.copy(recorded.file, folder / 'copy.db')}"
    with ServerProcess(folder, database_url=database, agents=[ACME], **options) as server:
        yield server


@pytest.fixture(scope="module", params=["database", "server"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, recorded: RecordedSession
) -> Iterator[list[str]]:
    """The options that say where the sessions are: in a file, or on a server that has such a file."""
    folder = tmp_path_factory.mktemp("place")
    shutil.copy(recorded.file, folder / "swarmkeep.db")
    database_url = f"sqlite:///{folder / 'swarmkeep.db'}"
    if request.param == "database":
        yield ["--database-url", database_url]
        return
    with ServerProcess(folder, database_url=database_url, agents=[ACME]) as server:
        yield ["--url", server.url]


@pytest.fixture
def where(ready_url: str) -> list[str]:
    return ["--database-url", ready_url]
