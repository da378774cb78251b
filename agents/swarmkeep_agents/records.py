"""Rows that a team's functions write: a SQLite file of its own, and effects that a repeated call does not repeat."""

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from swarmkeep import ToolCallId

FOLDER_VARIABLE = "SWARMKEEP_TEAM_DATA"
BUSY_SECONDS = 30.0
EFFECTS_TABLE = (
    "CREATE TABLE effects (call_id TEXT, request TEXT, answer TEXT NOT NULL, PRIMARY KEY (call_id, request))"
)


def data_folder() -> Path:
    """Where teams keep their files: the folder that SWARMKEEP_TEAM_DATA names, else that of the server's SQLite file,
    where SWARMKEEP_DATABASE_URL names one, else the folder that the program was started in."""
    if folder := os.environ.get(FOLDER_VARIABLE):
        return Path(folder)
    scheme, _, path = os.environ.get("SWARMKEEP_DATABASE_URL", "").partition(":///")
    return Path(path.partition("?")[0]).parent if scheme.startswith("sqlite") and path else Path()


class Records:
    """A team's database. It is made when it is first used; `tables` and `fill` say what it begins with."""

    def __init__(
        self, file: str, tables: Sequence[str], fill: Callable[[sqlite3.Connection], None] = lambda _: None
    ) -> None:
        self._file = file
        self._tables = tables
        self._fill = fill

    @property
    def path(self) -> Path:
        return data_folder() / self._file

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All that happens within is committed together, or not at all; one writer at a time."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
        connection.row_factory = sqlite3.Row
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            # Taken at once: a transaction that reads first and then writes fails when another was quicker.
            connection.execute("BEGIN IMMEDIATE")
            self._create_tables(connection)
            yield connection
            connection.execute("COMMIT")
        finally:
            # What was not committed is undone.
            connection.close()

    def _create_tables(self, connection: sqlite3.Connection) -> None:
        if connection.execute("PRAGMA user_version").fetchone()[0]:
            return
        for statement in (EFFECTS_TABLE, *self._tables):
            connection.execute(statement)
        self._fill(connection)
        connection.execute("PRAGMA user_version = 1")

    def rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        """What a query finds."""
        with self.transaction() as connection:
            return [dict(row) for row in connection.execute(query, values)]

    def row(self, query: str, *values: Any) -> dict[str, Any] | None:
        """The first row that a query finds, if it finds one."""
        return next(iter(self.rows(query, *values)), None)

    def perform_once(
        self, tool_call_id: ToolCallId, request: Sequence[Any], act: Callable[[sqlite3.Connection], str]
    ) -> str:
        """What `act` answers. A call that is made again gets the same answer, and nothing is done a second time.

        The answer is committed with the rows that `act` writes, so there is never one without the other. `request` is
        what was asked for: providers that number their calls from 0 in each conversation have one id for many of them.
        """
        call = json.dumps(request, default=str)
        with self.transaction() as connection:
            query = "SELECT answer FROM effects WHERE call_id = ? AND request = ?"
            done = connection.execute(query, (tool_call_id, call)).fetchone()
            if done is not None:
                return str(done["answer"])
            answer = act(connection)
            connection.execute("INSERT INTO effects VALUES (?, ?, ?)", (tool_call_id, call, answer))
            return answer
