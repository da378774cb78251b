"""`swarmkeep forward`: the audit log, or events of sessions, to a SIEM; or runs as traces; without a gap."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import typer

import swarmkeep_client
from swarmkeep import __version__
from swarmkeep.cli.opening import open_source
from swarmkeep.cli.options import Commands, FirstDay
from swarmkeep.cli.output import lock_file, parse_duration, write_atomically
from swarmkeep.cli.sources import FeedChoice, SourceOptions
from swarmkeep.cli.terminal import Refused, describe_os_error, say, shorten
from swarmkeep.events.codec import Json, encode
from swarmkeep.events.errors import SessionNotFound
from swarmkeep.events.facts import FeedbackAdded
from swarmkeep.events.wording import pluralize
from swarmkeep.history.ocsf import NotDelivered, deliver, session_event_to_ocsf, to_ocsf

if TYPE_CHECKING:
    from swarmkeep.cli.opening import Source
    from swarmkeep.events.state import State
    from swarmkeep.runs.genai import Score

AUTHORIZATION = "SWARMKEEP_FORWARD_AUTHORIZATION"
_AT_ONCE = 200
# A trace may have some hundred spans, and what was said.
_TRACES_AT_ONCE = 20
# Receivers refuse bodies that are too large, by default 4 MB and more, and would do so each time.
_MAX_BODY_BYTES = 2_000_000
_TRACED = ("run.completed", "run.failed", "run.cancelled", "run.interrupted", "feedback.added")
# What is kept before the first of them.
_NOTHING_YET: Json = {"seq": 0, "hash": ""}
# The last line of a file is looked for in so many bytes first: an entry has a few hundred, an event may have more.
_TAIL_BYTES = 1 << 20
# Of what a collector says: its answer may be a megabyte.
_MOST_SAID = 1_000


commands = Commands()


@commands.add("""
    swarmkeep forward --to audit.ocsf.jsonl
    swarmkeep forward --to https://siem.example/ingest --state forwarded.json --every 30s
    swarmkeep forward --to tools.ocsf.jsonl --type tool.started --type approval.decided
    swarmkeep forward --traces --to https://traces.example/v1/traces --state traced.json --every 1m
""")
def forward(
    where: SourceOptions,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FILE|URL",
            help=f"Append to this file, or POST JSON lines to this URL, with {AUTHORIZATION} as Authorization.",
        ),
    ],
    state: Annotated[
        Path | None,
        typer.Option("--state", metavar="FILE", help="Remember here how far it went; by default FILE.state."),
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="Forward the events of sessions that have this type, not the audit log; may be given again.",
        ),
    ] = None,
    traces: Annotated[
        bool, typer.Option("--traces", help="Forward runs that are over as traces, with feedback: OTLP in JSON.")
    ] = False,
    content: Annotated[bool, typer.Option("--content", help="With --traces: also what was said.")] = False,
    first_day: FirstDay = None,
    last_day: Annotated[
        datetime | None,
        typer.Option("--until", metavar="DAY", formats=["%Y-%m-%d"], help="With --traces: up to this day, included."),
    ] = None,
    every: Annotated[
        str | None, typer.Option("--every", metavar="TIME", help="Go on, and look so often: 10s, 5m, 1h.")
    ] = None,
) -> None:
    """Forward the audit log to a SIEM, as events of OCSF 1.5, from where it was left; or, with --type, events of
    sessions; or, with --traces, runs for a collector of traces. After a crash or an outage nothing is missing; what
    was sent and not confirmed comes again, with the same metadata.uid or the same ids of spans."""
    is_url = to.startswith(("http://", "https://"))
    if is_url and state is None:
        raise typer.BadParameter("give a file for it: a URL does not tell how far it went", param_hint="'--state'")
    _refuse_mixed(types, traces=traces, only_of_traces=content or first_day or last_day)
    pause = None if every is None else parse_duration(every, "--every").total_seconds()
    place = state or Path(f"{to}.state")
    target = _Target(to, place, is_url=is_url)
    with _lock(place), open_source(where, writes=traces or bool(types)) as source:
        while True:
            count = 0
            try:
                if traces:
                    batches = _forward_traces(source, target, _Days(first_day, last_day), has_content=content)
                else:
                    batches = _forward_events(source, target, types) if types else _forward_audit_log(source, target)
                for done in batches:
                    count += done
            except NotDelivered as error:
                if pause is None:
                    raise Refused(str(error)) from None
                say(f"not delivered, and tried again in {every}: {error}")
            if count or pause is None:
                say(f"forwarded {pluralize(count, 'entry', 'entries')}")
            if pause is None:
                return
            time.sleep(pause)


def _refuse_mixed(types: list[str] | None, *, traces: bool, only_of_traces: object) -> None:
    if traces and types:
        raise typer.BadParameter("choose one of --traces and --type", param_hint="'--type'")
    if only_of_traces and not traces:
        raise typer.BadParameter("these are for --traces", param_hint="'--content', '--from', '--until'")


@contextmanager
def _lock(place: Path) -> Iterator[None]:
    """Keep others from forwarding by the same state. Raises Refused."""
    try:
        with place.with_name(f"{place.name}.lock").open("ab") as file:
            if not lock_file(file.fileno()):
                raise Refused(f"another process forwards by {place}")
            yield
    except OSError as error:
        raise Refused(f"cannot write beside {place}: {describe_os_error(error)}") from None


class _Target:
    """A file or a URL, and the file that says how far it went: what was written last is asked of the target itself
    where it can tell."""

    def __init__(self, to: str, place: Path, *, is_url: bool) -> None:
        self._to = to
        self._place = place
        self._is_url = is_url

    def read_state(self) -> Json:
        """What is kept of the last event that was forwarded; nothing before the first. Raises Refused."""
        return _read_state(self._place)

    def find_last_trace(self) -> Json:
        """The same, once what a crash left of a line is cut off the file. Raises Refused."""
        written = None if self._is_url else _read_last_line(Path(self._to))
        if written is not None and "resourceSpans" not in written:
            raise _refuse_other_lines(self._to)
        return self.read_state()

    def find_last(self) -> Json:
        """The same, or what the file itself has of it. Raises Refused."""
        kept = self.read_state()
        written = None if self._is_url else _read_last_line(Path(self._to))
        if written is None:
            return kept
        _check_event(written, self._to)
        event = written["metadata"]
        last = {"seq": event["sequence"], "hash": event["uid"], "log": event["log_name"]}
        if event["log_name"] == "events":
            # Of the same event, the state is of the place up to which no other was wanted.
            return kept if kept.get("hash") == last["hash"] else {**last, "cursor": written["unmapped"]["cursor"]}
        # A file may have been put in the place of a later one.
        return max(kept, last, key=lambda one: int(one.get("seq", 0)))

    def write(self, entries: list[Json], last: Json) -> None:
        """Write entries, a line for each, and how far that is. Raises NotDelivered, Refused."""
        lines = (encode(entry) + b"\n" for entry in entries)
        self._write(map(b"".join, _split(lines)), last, "application/x-ndjson")

    def keep_place(self, last: Json, cursor: str) -> None:
        """Write how far it is by now, though nothing more was wanted up to there. Raises Refused."""
        if cursor != last.get("cursor"):
            write_atomically(self._place, [json.dumps({**last, "cursor": cursor}).encode() + b"\n"])

    def write_traces(self, spans: list[Json], last: Json) -> None:
        """Write spans, some in each body of OTLP, and how far that is. Raises NotDelivered, Refused."""
        from swarmkeep.runs.genai import export_spans

        parts = _split(map(encode, spans))
        bodies = (encode(export_spans(list(map(msgspec.Raw, part)))) + b"\n" for part in parts)
        self._write(bodies, last, "application/json")

    def _write(self, bodies: Iterable[bytes], last: Json, media_type: str) -> None:
        for body in bodies:
            if self._is_url:
                answer = deliver(self._to, body, media_type, os.environ.get(AUTHORIZATION))
                if (refused := _read_partial_success(answer)) is not None:
                    say(shorten(f"{self._to} {refused}", _MOST_SAID))
            else:
                _append(Path(self._to), body)
        write_atomically(self._place, [json.dumps(last).encode() + b"\n"])


class _PartialSuccess(msgspec.Struct, rename="camel"):
    rejected_spans: int | str = 0
    error_message: str = ""


class _TracesTaken(msgspec.Struct, rename="camel"):
    partial_success: _PartialSuccess | None = None


def _read_partial_success(answer: bytes) -> str | None:
    """What a collector says about spans that it took the others of; OTLP wants none of them sent again."""
    try:
        found = msgspec.json.decode(answer, type=_TracesTaken).partial_success
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if found is None:
        return None
    why = found.error_message or "no reason given"
    if str(found.rejected_spans) != "0":
        return f"dropped {found.rejected_spans} of the spans, and they are not sent again: {why}"
    return f"warns: {why}" if found.error_message else None


def _forward_audit_log(source: Source, target: _Target) -> Iterator[int]:
    """Forward what is new, a batch at a time; give the size of each. Raises NotDelivered, Refused."""
    last = _refuse_other_log(target.find_last(), "audit")
    seq = int(last.get("seq", 0))
    entries = source.audit(after=max(0, seq - 1))
    if seq and (found := next(entries, None)) is not None and (found.seq, found.hash) != (seq, last.get("hash")):
        found = None
    if seq and found is None:
        raise Refused(f"the audit log does not have entry {seq} as it was forwarded: it is another one, or rewritten")
    while batch := list(islice(entries, _AT_ONCE)):
        events = [to_ocsf(one.seq, one.type, one.by, one.at, one.data, one.hash, version=__version__) for one in batch]
        target.write(events, {"seq": batch[-1].seq, "hash": batch[-1].hash, "log": "audit"})
        yield len(batch)


def _forward_events(source: Source, target: _Target, types: list[str]) -> Iterator[int]:
    """The same, for events of sessions by the feed."""
    last = {**_NOTHING_YET, "log": "events", **_refuse_other_log(target.find_last(), "events")}
    for page in source.feed(FeedChoice(after=last.get("cursor"), types=tuple(types))):
        for start in range(0, len(page.data), _AT_ONCE):
            batch = page.data[start : start + _AT_ONCE]
            events = [
                session_event_to_ocsf(
                    one.cursor, one.session_id, one.seq, one.type, one.agent, one.at, one.data, one.hash,
                    version=__version__,
                )
                for one in batch
            ]  # fmt: skip
            last = {"seq": batch[-1].seq, "hash": batch[-1].hash, "log": "events", "cursor": batch[-1].cursor}
            target.write(events, last)
            yield len(batch)
        target.keep_place(last, page.next_cursor)
        last = {**last, "cursor": page.next_cursor}


def _split(pieces: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The pieces in parts that receivers take; a larger one is a part of its own."""
    part: list[bytes] = []
    size = 0
    for piece in pieces:
        if part and size + len(piece) > _MAX_BODY_BYTES:
            yield part
            part, size = [], 0
        part.append(piece)
        size += len(piece)
    if part:
        yield part


class _Days(NamedTuple):
    first: datetime | None
    last: datetime | None

    def contain(self, at: str) -> bool:
        """Tell if a time is of one of these days, the last included, in UTC."""
        day = at[:10]
        return (self.first is None or f"{self.first:%Y-%m-%d}" <= day) and (
            self.last is None or day <= f"{self.last:%Y-%m-%d}"
        )


def _forward_traces(source: Source, target: _Target, days: _Days, *, has_content: bool) -> Iterator[int]:
    """The same, for runs as traces. What came after the last one is looked for by the feed: their ends, and feedback,
    which brings the run that it is about once more, with the same ids."""
    last = {**_NOTHING_YET, "log": "traces", **_refuse_other_log(target.find_last_trace(), "traces")}
    for page in source.feed(FeedChoice(after=last.get("cursor"), types=_TRACED)):
        # Of a session with many runs there are several batches in a page.
        read = lru_cache(maxsize=1)(partial(_read_traced, source))
        for start in range(0, len(page.data), _TRACES_AT_ONCE):
            batch = page.data[start : start + _TRACES_AT_ONCE]
            sessions = dict.fromkeys(one.session_id for one in batch if days.contain(one.at))
            asked = {
                name: {one.seq for one in batch if one.session_id == name and days.contain(one.at)} for name in sessions
            }
            traces = [spans for name in sessions for spans in _list_traces(name, read(name), asked[name], has_content)]
            last = {"seq": batch[-1].seq, "hash": batch[-1].hash, "log": "traces", "cursor": batch[-1].cursor}
            spans = [span for trace in traces for span in trace]
            target.write_traces(spans, last)
            yield len(traces)
        target.keep_place(last, page.next_cursor)
        last = {**last, "cursor": page.next_cursor}


class _Traced(NamedTuple):
    state: State
    scores: dict[int, Score]
    runs: dict[int, str]
    """Of each event the run that it is about."""


def _read_traced(source: Source, session_id: str) -> _Traced | None:
    """A session as it is recorded; None if it was deleted."""
    from swarmkeep.events.fold import fold
    from swarmkeep.runs.genai import Score

    try:
        events = list(source.facts(session_id))
    except (SessionNotFound, swarmkeep_client.SessionNotFound):
        return None
    state = fold(events)
    run_of_answer = {entry.seq: entry.run_id for entry in state.messages}
    scores, runs = {}, dict[int, str]()
    for event in events:
        fact, run_id = event.fact, event.run_id
        if isinstance(fact, FeedbackAdded):
            scores[fact.seq] = Score(fact.value, fact.comment or "", event.at)
            run_id = run_of_answer.get(fact.seq)
        if run_id is not None:
            runs[event.seq] = run_id
    return _Traced(state, scores, runs)


def _list_traces(session_id: str, traced: _Traced | None, seqs: set[int], has_content: bool) -> Iterator[list[Json]]:
    """The spans of each run of a session that one of these events is about. A session that was deleted has none."""
    from swarmkeep.events.views import find_run
    from swarmkeep.runs.genai import list_spans

    if traced is None:
        return
    for run_id in dict.fromkeys(traced.runs[seq] for seq in sorted(seqs) if seq in traced.runs):
        run = find_run(traced.state, run_id)
        if run is not None:
            yield list(list_spans(session_id, traced.state, run, has_content=has_content, scores=traced.scores))


_LOGS = {"audit": "the audit log was", "events": "events of sessions were", "traces": "traces were"}


def _refuse_other_log(last: Json, wanted: str) -> Json:
    if (found := last.get("log", wanted)) != wanted:
        other = _LOGS.get(found, "something else was")
        raise Refused(f"{other} forwarded there; give --to or --state another name")
    return last


def _read_state(place: Path) -> Json:
    try:
        found = json.loads(place.read_bytes())
        named = {name: str(found[name]) for name in ("log", "cursor") if name in found}
        return {"seq": int(found["seq"]), "hash": str(found["hash"]), **named}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise Refused(f"cannot read {place}, which says how far it went: {error}") from None


def _read_last_line(file: Path) -> Json | None:
    """The object of the last whole line, if there is one; what a crash left behind it is cut off."""
    try:
        with file.open("r+b") as opened:
            size, length = opened.seek(0, os.SEEK_END), _TAIL_BYTES
            while True:
                begin = max(0, size - length)
                opened.seek(begin)
                tail = opened.read()
                # With the end of the line before the last one all of that is there.
                if not begin or tail.count(b"\n") > 1:
                    break
                length *= 2
            whole = tail[: tail.rfind(b"\n") + 1]
            opened.truncate(begin + len(whole))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(f"cannot write {file}: {describe_os_error(error)}") from None
    lines = whole.splitlines()
    try:
        found: Json | None = dict(json.loads(lines[-1])) if lines else None
        return found
    except (ValueError, TypeError):
        raise _refuse_other_lines(file) from None


def _check_event(event: Json, file: str) -> None:
    try:
        int(event["metadata"]["sequence"]), str(event["metadata"]["uid"])
        if event["metadata"]["log_name"] == "events":
            str(event["unmapped"]["cursor"])
    except (ValueError, KeyError, TypeError):
        raise _refuse_other_lines(file) from None


def _refuse_other_lines(file: str | Path) -> Refused:
    return Refused(f"{file} has other lines than those that were forwarded; name another file")


def _append(file: Path, lines: bytes) -> None:
    try:
        with file.open("ab") as opened:
            opened.write(lines)
            opened.flush()
            os.fsync(opened.fileno())
    except OSError as error:
        raise Refused(f"cannot write {file}: {describe_os_error(error)}") from None
