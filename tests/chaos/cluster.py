"""One database, one model, one file of effects, and the servers and clients that share them."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import asyncpg
import httpx2

from swarmkeep_client import Client, ConnectionFailed, Event, Run, Session, StreamItem
from tests.chaos.plans import PATIENCE_SECONDS, PlannedModel, wait_until
from tests.chaos.records import Effects, LogRows, read_logs
from tests.support.processes import STOP_SECONDS, ServerProcess
from tests.support.scripted import ScriptedModel

KILLED = -9
LEASE_SECONDS = 3.0
POLL_SECONDS = 0.1
# What is promised on top of the lease, and what an idle machine may add to that.
PROMISED_SECONDS = 2.0
SLACK_SECONDS = 2.0
TEAM = Path(__file__).with_name("team.py")


class ServerCluster:
    """As a context manager it ends whatever still runs, and fails if the model was asked something invalid."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.planned_model = PlannedModel()
        self.model = ScriptedModel(default=self.planned_model, remember=False)
        self.effects = Effects(folder / "effects.jsonl")
        self.doors = folder / "doors"
        self.doors.mkdir()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.model)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def server(
        self,
        *,
        kill_at: str | None = None,
        cold: bool = False,
        agents: Path = TEAM,
        model: ScriptedModel | None = None,
        **env: str,
    ) -> ServerProcess:
        """A running server, which dies at `kill_at`. `env`: more settings, without their prefix."""
        settings = {
            "LEASE_SECONDS": str(LEASE_SECONDS),
            "POLL_SECONDS": str(POLL_SECONDS),
            "GRACE_SECONDS": "0.2",
            **env,
            **({} if kill_at is None else {"KILL_AT": kill_at}),
        }
        server = ServerProcess(
            self.folder,
            database_url=self.url,
            agents=[str(agents)],
            offline=False,
            cold=cold,
            env={
                "OPENAI_BASE_URL": (model or self.model).url,
                "OPENAI_API_KEY": "test",
                "CHAOS_EFFECTS": str(self.effects.path),
                "CHAOS_DOORS": str(self.doors),
                **{f"SWARMKEEP_{name}": value for name, value in settings.items()},
            },
        )
        server.start()
        self._stack.push(server.__exit__)
        return server

    def client(self, server: ServerProcess, *, seconds: float = 60.0) -> Client:
        """A client that tries everything once, so that the test knows what was acknowledged."""
        # Nothing is encrypted here, and to load every authority's certificate takes longer than the requests do.
        transport = httpx2.HTTPTransport(verify=False)
        return self._stack.enter_context(Client(server.url, timeout=seconds, max_retries=0, transport=transport))

    def open(self, door: str) -> None:
        """Let the tools go on that wait for this door."""
        (self.doors / door).touch()

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of a statement, past every server."""
        if self.url.startswith("sqlite:"):
            connection = sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=30)
            try:
                with connection:
                    return connection.execute(statement).fetchall()
            finally:
                connection.close()
        return asyncio.run(_fetch(self.url, statement))

    def freeze(self, server: ServerProcess) -> None:
        """Pause a server, but not while it has SQLite's write lock: that no other process could take from it."""
        server.pause()
        while self.url.startswith("sqlite:") and self._is_locked():
            server.resume()
            time.sleep(0.01)
            server.pause()

    def _is_locked(self) -> bool:
        connection = sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=0.5, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return True
        finally:
            connection.close()
        return False

    def read_lease_seconds(self, session_id: str) -> float:
        """For how many seconds somebody still has the lease, by the database's clock; not above 0 if nobody has."""
        now = "(julianday('now') - 2440587.5) * 86400.0"
        if not self.url.startswith("sqlite:"):
            now = "extract(epoch FROM clock_timestamp())"
        ((left,),) = self.sql(f"SELECT lease_expires_at - {now} FROM sessions WHERE id = '{session_id}'")
        return 0.0 if left is None else float(left)

    def log(self, session_id: str) -> LogRows:
        (log,) = self.logs([session_id])
        return log

    def logs(self, session_ids: Iterable[str]) -> list[LogRows]:
        return read_logs(self.url, session_ids)

    def read_checked_log(self, session_id: str, *, at_rest: bool = True) -> LogRows:
        """The session's log, which breaks no promise."""
        log = self.log(session_id)
        assert not (found := log.problems(at_rest=at_rest)), (session_id, found, log.types)
        return log


async def _fetch(url: str, statement: str) -> list[tuple[Any, ...]]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(statement)]
    finally:
        await connection.close()


class Succession:
    """A server that dies where it is told to, and the one that goes on: the same, started again, or an heir."""

    def __init__(self, cluster: ServerCluster, kill_at: str, *, restarted: bool = True, **options: Any) -> None:
        self.armed = cluster.server(kill_at=kill_at, **options)
        self._heir = None if restarted else cluster.server()

    def outlive(self, seconds: float = STOP_SECONDS) -> ServerProcess:
        """The server that goes on, once the armed one has died; it is not told to die again."""
        assert self.armed.wait(seconds) == KILLED
        if self._heir is not None:
            return self._heir
        self.armed.env.pop("SWARMKEEP_KILL_AT", None)
        self.armed.start()
        return self.armed


class BackgroundReader:
    """The result of a call in a thread, or its error: the items of a stream as they come, or the one answer."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.items: list[Any] = []
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._read, args=(call,), daemon=True)
        self._thread.start()

    def _read(self, call: Callable[[], Any]) -> None:
        try:
            given = call()
            for item in given if isinstance(given, Iterable) else [given]:
                self.items.append(item)
        except Exception as error:
            self.error = error

    def join(self, seconds: float = 30.0) -> None:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"after {seconds:g} s it still goes on"


@contextmanager
def ignore_lost_connection() -> Iterator[None]:
    """Requests sent in here may never be answered."""
    with suppress(ConnectionFailed):
        yield


class Acknowledgements:
    """The answers that a client got about a session: whatever comes later, the log must have them."""

    def __init__(self) -> None:
        self.heads: dict[int, str] = {}
        self.runs: list[Run] = []

    def session(self, session: Session) -> Session:
        self.heads[session.seq] = session.hash
        return session

    def run(self, run: Run) -> Run:
        self.runs.append(run)
        return run

    def item(self, item: StreamItem) -> StreamItem:
        if isinstance(item, Event):
            self.heads[item.seq] = item.hash
        return item

    def list_missing(self, log: LogRows) -> list[str]:
        """The acknowledged events that are missing now, or different."""
        hashes = log.hashes
        lost = [f"event {seq}" for seq, hash in self.heads.items() if hashes.get(seq) != hash]
        for run in self.runs:
            kept = [event.seq for event in log.events if event.run_id == run.id]
            if run.first_seq not in kept or run.last_seq not in kept:
                lost.append(f"{run.id} ({run.status}, {run.first_seq} to {run.last_seq})")
        return lost


def wait_until_quiet(session: Session, seconds: float = PATIENCE_SECONDS) -> Session:
    """The session once no run is advancing it or is next. A server that is just being killed is asked again.

    Between an interrupted run and the queued one that another server starts, a session is idle for a moment."""

    def looked() -> bool:
        with suppress(ConnectionFailed):
            if (status := session.refresh().status) == "idle":
                return not {"queued", "running"}.intersection(run.status for run in session.runs())
            return status == "waiting"
        return False

    wait_until(f"{session.id} is quiet", looked, seconds, every=0.05)
    return session


def compute_allowed_seconds(lease_seconds: float = LEASE_SECONDS) -> float:
    """The time that a take-over may take here and now: the more processes wait for a processor, the longer."""
    crowd = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    return lease_seconds + PROMISED_SECONDS + SLACK_SECONDS * crowd
