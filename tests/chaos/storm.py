"""Clients that talk, while servers die at random moments and come back; and the table of what came of it."""

from __future__ import annotations

import json
import os
import platform
import random
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from swarmkeep_client import Client, Done, RunNotCompleted, Session, SwarmkeepError
from tests.chaos.cluster import Acknowledgements, ServerCluster, wait_until_quiet
from tests.chaos.plans import Json, call_step, say_step
from tests.chaos.records import LogRows
from tests.support.processes import ServerProcess

# How long a server lives before it is killed: some die as they start, others get to take over a good deal.
LIFETIME_SECONDS = (0.05, 4.0)
RUNS_PER_SESSION = 15
# While everything dies all the time, an answer may need several servers. After that the session is stuck.
STORM_SECONDS = 90.0
TAKE_OVER_LINE = re.compile(r"^(\S+ \S+) INFO \S+: session \S+: took over run (\S+)$", re.MULTILINE)


@dataclass
class Row:
    """The outcome of one random run. `taken_over` holds the seconds of each take-over."""

    database: str
    servers: int
    kills: int = 0
    posted: int = 0
    sent_again: int = 0
    acknowledged: int = 0
    lost: int = 0
    tool_calls: int = 0
    double_starts: int = 0
    stuck: int = 0
    taken_over: list[float] = field(default_factory=list)


COUNTED = ("kills", "posted", "sent_again", "acknowledged", "lost", "tool_calls", "double_starts", "stuck")
COLUMNS = (
    "database",
    "servers",
    *(name.replace("_", " ") for name in COUNTED),
    "take-overs",
    "p50 s",
    "p95 s",
    "max s",
)


BEGIN = "<!-- report -->"
END = "<!-- /report -->"


class Report:
    def __init__(self, lease_seconds: float) -> None:
        self.rows: list[Row] = []
        self.lease_seconds = lease_seconds
        self._began = time.monotonic()

    def format_table(self) -> str:
        lines = [_format_line(COLUMNS), _format_line(["---"] * len(COLUMNS))]
        lines += [_format_line(_format_cells(row)) for row in self.rows]
        if len(self.rows) > 1:
            lines.append(_format_line(_format_cells(self.add_up())))
        return "\n".join(lines)

    def add_up(self) -> Row:
        total = Row("all", max(row.servers for row in self.rows))
        for row in self.rows:
            for name in COUNTED:
                setattr(total, name, getattr(total, name) + getattr(row, name))
            total.taken_over += row.taken_over
        return total

    def text(self) -> str:
        """The table, and what it was measured on."""
        total = self.add_up()
        minutes = (time.monotonic() - self._began) / 60
        sentence = (
            f"{date.today():%d %B %Y}: {total.kills} kills in {minutes:.0f} minutes, with a "
            f"lease of {self.lease_seconds:g} s, on {os.cpu_count()} processors; {platform.system()} "
            f"{platform.machine()}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}."
        )
        return f"{sentence}\n\n{self.format_table()}"

    def write(self) -> None:
        """To the file that CHAOS_REPORT names, if it does: between the marks for it, if there are any."""
        name = os.environ.get("CHAOS_REPORT")
        if not name:
            return
        path = Path(name)
        page = path.read_text() if path.exists() else ""
        before, mark, rest = page.partition(BEGIN)
        _, _, after = rest.partition(END)
        path.write_text(f"{before}{BEGIN}\n{self.text()}\n{END}{after}" if mark else f"{self.text()}\n")


def _format_cells(row: Row) -> list[str]:
    times = sorted(row.taken_over)
    figures = [row.servers, *(getattr(row, name) for name in COUNTED), len(times)]
    shown = [
        f"{value:.1f}"
        for value in (find_percentile(times, 50), find_percentile(times, 95), find_percentile(times, 100))
    ]
    return [row.database, *map(str, figures), *(shown if times else ["", "", ""])]


def find_percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest value that this percentage of all does not exceed."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else 0.0


def _format_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


class ServerSlot:
    """A place where a server stands, one after the other; `lives` are when each began and when it was killed."""

    def __init__(self, cluster: ServerCluster) -> None:
        self.server: ServerProcess = cluster.server()
        self.lifetimes: list[list[float]] = [[time.time(), float("inf")]]

    def kill(self) -> None:
        self.server.kill()
        self.lifetimes[-1][1] = time.time()

    def start(self) -> None:
        self.lifetimes.append([time.time(), float("inf")])
        self.server.start()

    def find_death_after(self, moment: float) -> float:
        return next(death for begin, death in self.lifetimes if death > moment)

    def read_take_overs(self) -> Iterator[tuple[str, float]]:
        """The runs that its servers took over, and when."""
        for at, run_id in TAKE_OVER_LINE.findall(self.server.output()):
            yield run_id, datetime.strptime(at, "%Y-%m-%d %H:%M:%S,%f").timestamp()


class StormClient:
    """One client, on whichever server it finds; it posts everything until it is answered and notes what it was told."""

    def __init__(self, storm: Storm, number: int) -> None:
        self.storm = storm
        self.dice = random.Random(storm.seed * 1000 + number)
        self.witnesses: dict[str, Acknowledgements] = {}
        self.posted: dict[str, int | None] = {}
        self.resend_count = 0
        self.stuck: list[str] = []

    def talk(self) -> None:
        while not self.storm.ended.is_set():
            session_id = f"s-{uuid4().hex}"
            if self._create(session_id):
                self.witnesses[session_id] = Acknowledgements()
                self._converse(session_id)

    def _create(self, session_id: str) -> bool:
        with suppress(SwarmkeepError):
            self.storm.client(self.dice.randrange(self.storm.size)).sessions.create(id=session_id)
            return True
        return False

    def _converse(self, session_id: str) -> None:
        for _ in range(RUNS_PER_SESSION):
            if self.storm.ended.is_set():
                return
            if not self._say(session_id, uuid4().hex):
                self.stuck.append(session_id)
                return

    def _say(self, session_id: str, token: str) -> bool:
        """Post a message until it is answered, under one key and on any server; whether it was, before long."""
        message = json.dumps({"plan": self._choose_plan(), "token": token})
        deadline = time.monotonic() + STORM_SECONDS
        streamed = self.dice.random() < 0.3
        while time.monotonic() < deadline:
            place = self.dice.randrange(self.storm.size)
            # Which of several attempts it was that began the run, nobody knows.
            self.posted[token] = place if token not in self.posted else None
            try:
                self._post(self.storm.client(place).sessions.get(session_id), message, token, streamed)
                return True
            except RunNotCompleted as ended:
                self.witnesses[session_id].run(ended.run)
                return True
            except SwarmkeepError:
                self.resend_count += 1
                time.sleep(0.05)
        return False

    def _post(self, session: Session, message: str, token: str, streamed: bool) -> None:
        witness = self.witnesses[session.id]
        witness.session(session)
        if not streamed:
            witness.run(session.run(message, idempotency_key=token))
            return
        for item in session.stream(message, idempotency_key=token):
            witness.item(item)
            if isinstance(item, Done):
                witness.run(item.run)

    def _choose_plan(self) -> list[Json]:
        pause = self.dice.choice((0.0, 0.0, 0.05, 0.3))
        done = say_step("Done, and done, and done.", delay=pause)
        pay, put = ("pay", {"what": "a"}), ("put", {"what": "b"})
        keep = ("remember", {"key": "k", "value": uuid4().hex})
        return self.dice.choice(
            (
                [done],
                [call_step(pay, delay=pause), done],
                [call_step(pay, put, keep, ("visit", {"what": "c"})), done],
                [call_step(put), call_step(("to_boss", {}), pay), call_step(("to_clerk", {}), keep), done],
            )
        )


class Storm:
    def __init__(
        self,
        cluster: ServerCluster,
        *,
        servers: int,
        talkers: int,
        kills: int,
        seed: int,
        open_slot: Callable[[ServerCluster], ServerSlot] = ServerSlot,
        measures_take_overs: bool = True,
    ) -> None:
        """`measures_take_overs`: not where clients cannot know which process had a run when it died."""
        self.cluster = cluster
        self.size = servers
        self.kills = kills
        self.seed = seed
        self.measures_take_overs = measures_take_overs
        self.ended = threading.Event()
        self.slots = [open_slot(cluster) for _ in range(servers)]
        self._clients = [cluster.client(slot.server) for slot in self.slots]
        self._talkers = [StormClient(self, number) for number in range(talkers)]
        self._remaining_kills = threading.Semaphore(kills)
        self._failures: list[BaseException] = []

    def client(self, place: int) -> Client:
        return self._clients[place]

    def run(self) -> None:
        """Let it happen; returns when the last server was killed and all have come back."""
        talking = [threading.Thread(target=self._run_guarded, args=(talker.talk,)) for talker in self._talkers]
        killing = [
            threading.Thread(target=self._run_guarded, args=(self._kill_repeatedly, slot, place))
            for place, slot in enumerate(self.slots)
        ]
        for thread in (*talking, *killing):
            thread.start()
        for thread in killing:
            thread.join()
        self.ended.set()
        for thread in talking:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _run_guarded(self, work: Callable[..., None], *given: Any) -> None:
        try:
            work(*given)
        except BaseException as failure:
            self._failures.append(failure)
            self.ended.set()

    def _kill_repeatedly(self, slot: ServerSlot, place: int) -> None:
        dice = random.Random(self.seed * 1000 + 500 + place)
        while not self._failures and self._remaining_kills.acquire(blocking=False):
            self.ended.wait(dice.uniform(*LIFETIME_SECONDS))
            slot.kill()
            slot.start()

    def check(self, row: Row) -> None:
        """Let it happen, fill in the figures, and fail if a promise was broken."""
        self.run()
        problems = self._list_problems(row)
        assert not problems, problems[:20]
        assert (row.lost, row.double_starts, row.stuck) == (0, 0, 0)

    def _list_problems(self, row: Row) -> list[str]:
        row.kills += sum(death < float("inf") for slot in self.slots for _, death in slot.lifetimes)
        problems: list[str] = []
        posted: dict[str, int | None] = {}
        for talker in self._talkers:
            posted |= talker.posted
            problems += [f"{session_id} gave no answer in the storm" for session_id in talker.stuck]
            for session_id, witness in talker.witnesses.items():
                problems += self._check_session(session_id, witness, row)
        took_over = self._read_take_overs()
        for talker in self._talkers:
            for session_id in talker.witnesses:
                log = self.cluster.log(session_id)
                problems += _find_double_posts(log, posted)
                if self.measures_take_overs:
                    row.taken_over += self._measure_take_overs(log, posted, took_over)
        row.posted += len(posted)
        row.sent_again += sum(talker.resend_count for talker in self._talkers)
        row.tool_calls += len(self.cluster.effects.count())
        row.double_starts += len(self.cluster.effects.list_repeated())
        problems += [f"{call_id} began twice" for call_id in self.cluster.effects.list_repeated()]
        row.stuck += sum(len(talker.stuck) for talker in self._talkers)
        return problems

    def _check_session(self, session_id: str, witness: Acknowledgements, row: Row) -> list[str]:
        session = self.client(0).sessions.get(session_id)
        row.acknowledged += len(witness.runs)
        try:
            wait_until_quiet(session)
            assert session.run("And then?").status == "completed"
        except (AssertionError, SwarmkeepError) as stuck:
            row.stuck += 1
            return [f"{session_id} is stuck: {stuck}"]
        log = self.cluster.log(session_id)
        lost = witness.list_missing(log)
        row.lost += len(lost)
        return [f"{session_id}: {problem}" for problem in (*log.problems(), *(f"lost: {one}" for one in lost))]

    def _read_take_overs(self) -> dict[str, list[tuple[float, int]]]:
        """For each run, when it was taken over and by which slot."""
        found: dict[str, list[tuple[float, int]]] = {}
        for place, slot in enumerate(self.slots):
            for run_id, moment in slot.read_take_overs():
                found.setdefault(run_id, []).append((moment, place))
        return found

    def _measure_take_overs(
        self, log: LogRows, posted: dict[str, int | None], took_over: dict[str, list[tuple[float, int]]]
    ) -> Iterator[float]:
        """How long each take-over came after the death that made it necessary.

        The clock runs from that death, or from the moment since which there has always been a server to do it. Where
        it is not known which server died, it is the first that did.
        """
        owner: dict[str, int | None] = {}
        before = 0.0
        for event, data in zip(log.events, log.data, strict=True):
            moment, run_id = _parse_seconds(event.at), event.run_id or ""
            if event.type == "run.resumed" and data["reason"] == "recovery":
                place = owner.get(run_id)
                places = [place] if place is not None else range(self.size)
                death = min(self.slots[place].find_death_after(before) for place in places)
                if death < moment:
                    yield moment - max(death, self._find_served_since(moment))
                taker = [place for at, place in took_over.get(run_id, []) if 0 <= at - moment < 0.5]
                owner[run_id] = taker[0] if len(taker) == 1 else None
            elif run_id and (token := _read_token(data)):
                owner[run_id] = posted.get(token)
            before = moment

    def _find_served_since(self, moment: float) -> float:
        """Since when, up to that moment, at least one server was there at any time."""
        lives = sorted((life for slot in self.slots for life in slot.lifetimes if life[0] <= moment), reverse=True)
        since = moment
        for begin, end in lives:
            if end >= since:
                since = min(since, begin)
        return since


def _parse_seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


def _read_token(data: Json) -> str | None:
    """The token in a user's message, if it is one of ours."""
    message = data.get("message") or {}
    if message.get("role") != "user":
        return None
    try:
        token = json.loads(message["content"])["token"]
    except (ValueError, KeyError, TypeError):
        return None
    return str(token)


def _find_double_posts(log: LogRows, posted: dict[str, int | None]) -> list[str]:
    """However often a message was sent, it was sent under one key, so it may be there once."""
    tokens = [token for data in log.data if (token := _read_token(data))]
    return [f"{log.session_id}: a message is there twice" for token in set(tokens) if tokens.count(token) > 1]
