"""Sessions on a server, asked for over HTTP."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import date, datetime, timedelta
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Unpack
from urllib.request import Request, urlopen

import msgspec
import typer

import swarmkeep_client as api
from swarmkeep.cli.sources import (
    NEEDS_SERVER,
    DocumentForm,
    FeedChoice,
    FileForm,
    ServerOptions,
    SessionChoice,
    SourceOptions,
    Walk,
    make_missing_session_error,
)
from swarmkeep.cli.terminal import Refused, say
from swarmkeep.events.codec import Json, encode
from swarmkeep.events.facts import EventView, RecordedEvent
from swarmkeep.events.records import UsageQuery
from swarmkeep.events.run_table import FiguresQuery, RunQuery
from swarmkeep.store.records import SessionOrder

# SQLAlchemy would be a third of the time of a command that only asks a server.
if TYPE_CHECKING:
    from swarmkeep.history.checkpoints import CheckpointHead
    from swarmkeep.history.recordings import RecordedSession
    from swarmkeep.store.index import ActiveStatus

# How often a server that does not answer is tried again: one that was never there, and one that was a moment ago.
RETRIES = 2
PATIENT_RETRIES = 8
NOTICE_AFTER_SECONDS = 1.0
_PROBE_SECONDS = 5.0
_MAX_METRICS_BYTES = 4_000_000
_SAMPLE = re.compile(r"^swarmkeep_([a-z_]+?)(?:_total)?(?:\{[^\n]*\})? ([0-9.e+]+)$", re.ASCII | re.MULTILINE)
_METRICS = {
    "stream_readers": "streams", "sessions_driven": "sessions_driven", "writes_waiting": "writes_waiting",
    "takeovers": "takeovers", "run_errors": "run_errors",
}  # fmt: skip
_PAGE_SIZE = 200


def open_client(
    url: str, api_key: str | None = None, *, max_retries: int = RETRIES, sleep: Callable[[float], None] = time.sleep
) -> api.Client:
    """A client of the server at `url`; the key comes from SWARMKEEP_API_KEY if none is given."""
    try:
        return api.Client(url, api_key=api_key, max_retries=max_retries, sleep=sleep)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def wait_with_notice(seconds: float) -> None:
    """Wait before something is tried again: a person who sees nothing happen for long is told why."""
    if seconds >= NOTICE_AFTER_SECONDS:
        say(f"… no answer from the server, trying again in {seconds:.0f} s")
    time.sleep(seconds)


@contextmanager
def open_patient_client(
    url: str, api_key: str | None = None, *, sleep: Callable[[float], None] = wait_with_notice
) -> Iterator[api.Client]:
    """A client that outlasts a restart of the server, once it has answered at all."""
    with open_client(url, api_key) as client:
        client.health()
    with open_client(url, api_key, max_retries=PATIENT_RETRIES, sleep=sleep) as client:
        yield client


@contextmanager
def explain_unreachable(url: str) -> Iterator[None]:
    """Names the server in the error if it does not answer, or something else does."""
    try:
        yield
    except api.ConnectionFailed as error:
        # What OpenSSL makes of an answer that is not encrypted.
        hint = "; it may speak plain HTTP: try http://" if "WRONG_VERSION_NUMBER" in error.detail else ""
        raise Refused(f"no answer from the server at {url}, is it running? {error.detail}{hint}") from error
    except api.ApiError as error:
        if error.code != "unexpected_answer":
            raise
        raise Refused(f"{url} may not be the address of a Swarmkeep server: {error.detail}") from error


@contextmanager
def reach_server(where: SourceOptions) -> Iterator[api.Client]:
    """A client of the server that is named. An error names the server if that does not answer."""
    url = str(where.server_url)
    with explain_unreachable(url), open_client(url, where.api_key) as client:
        yield client


@contextmanager
def open_server(where: ServerOptions) -> Iterator[ServerSource]:
    """A server's sessions, for what only a server can do. Raises Refused where none is named."""
    url = where.server_url
    if url is None:
        raise Refused(NEEDS_SERVER)
    with explain_unreachable(url), closing(ServerSource(url, where.api_key)) as source:
        yield source


class ServerSource:
    def __init__(self, url: str, api_key: str | None = None) -> None:
        self._url = url
        self._api_key = api_key
        self._client = open_client(url, api_key)

    def sessions(
        self,
        *,
        q: str | None = None,
        order: SessionOrder | None = None,
        children: bool = False,
        **wanted: Unpack[SessionChoice],
    ) -> Iterator[api.SessionState]:
        return map(_to_session_state, self._client.sessions.list(q=q, order=order, children=children, **wanted))

    def active_runs(self, status: ActiveStatus) -> Iterator[api.ActiveRun]:
        return self._client.active_runs(status)

    def session(self, session_id: str, *, at: int | None = None) -> api.SessionState:
        session = self._client.sessions.get(session_id)
        return _to_session_state(session) if at is None else session.state(at=at)

    def messages(self, session_id: str, *, at: int | None = None) -> list[api.Message]:
        return self._client.sessions.get(session_id).messages(at=at)

    def events(
        self, session_id: str, *, after: int = 0, types: Sequence[str] = (), tenant: str | None = None
    ) -> Iterator[api.Event]:
        events = self._client.sessions.get(session_id).events(after=after, type=_choose_type_filter(types))
        return (event for event in events if not types or event.type in types)

    def facts(self, session_id: str) -> Iterator[RecordedEvent]:
        from swarmkeep.history.export import to_recorded_event

        for event in self.events(session_id):
            fields = {**msgspec.structs.asdict(event), "data": msgspec.Raw(encode(event.data))}
            yield to_recorded_event(EventView(**fields))

    def follow(self, session_id: str, *, after: int = 0, types: Sequence[str] = ()) -> Iterator[api.Event]:
        with open_patient_client(self._url, self._api_key) as client:
            for event in client.sessions.get(session_id).follow(after=after, type=_choose_type_filter(types)):
                if not types or event.type in types:
                    yield event

    def feed(self, choice: FeedChoice, *, follow: bool = False) -> Iterator[api.FeedPage]:
        wanted: Any = {
            "after": choice.after, "consumer": choice.consumer, "type": choice.types, "agent": choice.agents,
            "metadata": choice.metadata,
        }  # fmt: skip
        if not follow:
            yield from self._client.feed.pages(**wanted, page_size=_PAGE_SIZE)
            return
        with open_patient_client(self._url, self._api_key) as client:
            for event in client.feed.follow(**wanted):
                yield api.FeedPage(data=[event], next_cursor=event.cursor)

    def consumers(self) -> Sequence[api.Consumer]:
        return self._client.feed.consumers()

    def confirm(self, consumer: str, cursor: str) -> None:
        self._client.feed.confirm(consumer, cursor)

    def forget_consumer(self, name: str) -> None:
        self._client.feed.forget(name)

    def fork(self, session_id: str, *, at: int | None, new_id: str | None, metadata: Json | None) -> api.SessionState:
        return _to_session_state(self._client.sessions.get(session_id).fork(at, id=new_id, metadata=metadata))

    def label(self, session_id: str, metadata: Json) -> api.SessionState:
        return _to_session_state(self._client.sessions.get(session_id).update(metadata=metadata))

    def diff(self, session_id: str, before: int, after: int) -> api.StateDiff:
        return self._client.sessions.get(session_id).diff(before, after)

    def compare(self, session_id: str, other: str) -> api.Comparison:
        return self._client.sessions.get(session_id).compare(other)

    def request(self, session_id: str, seq: int, *, redacted: bool) -> bytes:
        if redacted:
            return encode(self._client.sessions.get(session_id).redacted_request(seq))
        return self._client.sessions.get(session_id).request_body(seq)

    def blob(self, session_id: str, sha256: str) -> bytes:
        return self._client.sessions.get(session_id).blob(sha256)

    def delete(
        self, session_id: str, *, force: bool = False, reason: str | None = None, if_match: int | None = None
    ) -> None:
        self._client.sessions.get(session_id).delete(force=force, reason=reason, if_match=if_match)

    def remove_message(self, session_id: str, seq: int, *, tool_call_id: str | None) -> None:
        self._client.sessions.get(session_id).remove_message(seq, tool_call_id=tool_call_id)

    def open_on_server(self, session_id: str) -> api.Session:
        return self._client.sessions.get(session_id)

    def compact(self, session_id: str, *, keep_turns: int | None, instructions: str | None) -> api.Compaction:
        session = self._client.sessions.get(session_id)
        return session.compact(keep_turns=keep_turns, instructions=instructions)

    def redact(
        self, session_id: str, seqs: Sequence[int], reason: str, *, include_forks: bool, dry_run: bool
    ) -> api.Redaction:
        return self._client.sessions.get(session_id).redact(seqs, reason, include_forks=include_forks, dry_run=dry_run)

    def hold(self, session_id: str, reason: str | None) -> api.SessionState:
        session = self._client.sessions.get(session_id)
        return _to_session_state(session.release() if reason is None else session.put_on_hold(reason))

    def erase(self, person: str, reason: str, *, dry_run: bool) -> api.Erasure:
        return self._client.erase_person(person, reason, dry_run=dry_run)

    def audit(self, tenant: str | None = None, *, after: int = 0) -> Iterator[api.AuditEntry]:
        return self._client.audit.list(after=after)

    def verify_audit_head(self, tenant: str | None, head: api.Head) -> api.Verification:
        return self._client.audit.verify(head=head)

    def heads(self) -> Iterator[CheckpointHead]:
        from swarmkeep.history.checkpoints import CheckpointHead

        for session in self._client.sessions.list(children=True):
            yield CheckpointHead(tenant=None, session_id=session.id, seq=session.seq, hash=session.hash)
        head = self._client.audit.verify().head
        if head is not None:
            first = next(self.audit()).hash
            yield CheckpointHead(tenant=None, session_id=None, seq=head.seq, hash=head.hash, first=first)

    def checkpoint(self, number: int | None = None, *, since: int | None = None) -> api.Checkpoint:
        return self._client.audit.checkpoint(number, since=since)

    def list_due(self, before: datetime) -> Iterator[api.DueSession]:
        return self._client.sessions.due(before=before)

    def evidence(self, ids: Sequence[str], signing_key: Path | None, size: int | None) -> Iterator[bytes]:
        return self._client.evidence(ids, size=size)

    def leaves(self) -> Iterator[api.Leaf]:
        return self._client.audit.leaves(page_size=_PAGE_SIZE)

    def verify_audit(self) -> Iterator[tuple[str, api.Verification]]:
        yield "", self._client.audit.verify()

    def count_sessions(self, *, of_all_tenants: bool = False) -> int | None:
        try:
            return self._client.quotas().sessions.used
        except api.ApiError:
            # Not every key may ask.
            return None

    def counts(self, *, children: bool) -> api.SessionCounts:
        return self._client.sessions.counts(children=children)

    def export(
        self, ids: Sequence[str], *, agent: str | None, status: str | None, metadata: Mapping[str, str], walk: Walk
    ) -> Iterator[bytes]:
        # A server writes the whole file: how many sessions of it have come is not to be seen, and it cannot end well.
        if walk.first is not None:
            raise Refused("--from works on a database only; on a server, export everything again")
        return self._client.export(ids, agent=agent, status=status, metadata=metadata)

    def conversations(self, ids: Sequence[str]) -> Iterator[RecordedSession]:
        from swarmkeep.history.recordings import read_recorded_sessions, split_lines

        return read_recorded_sessions(split_lines(self._client.export(ids)))

    def transcript(self, session_id: str, form: DocumentForm) -> Iterator[bytes]:
        yield self._client.sessions.get(session_id).transcript(form).encode()

    def usage(self, asked: UsageQuery) -> Iterator[api.UsageRow]:
        return self._client.usage(
            asked.by,
            first_day=asked.first_day,
            last_day=asked.last_day,
            page_size=asked.limit,
            **{str(name): value for name, value in asked.only.items()},
        )

    def runs(self, asked: RunQuery) -> Iterator[api.EndedRun]:
        only = msgspec.structs.asdict(asked.only)
        return self._client.runs.list(**only, sort=asked.sort, page_size=asked.limit)

    def run_figures(self, asked: FiguresQuery) -> Iterator[api.RunFigures]:
        only = msgspec.structs.asdict(asked.only)
        # The times are those of whole days.
        first, end = (only.pop(name) for name in ("created_after", "created_before"))
        last = None if end is None else (date.fromisoformat(end) - timedelta(days=1)).isoformat()
        return self._client.runs.figures(asked.by, first_day=first, last_day=last, **only, page_size=asked.limit)

    def import_sessions(
        self, file: BinaryIO, *, form: FileForm, agent: str | None, as_id: str | None, dry_run: bool
    ) -> api.ImportReport:
        return self._client.import_sessions(file, source=form, agent=agent, as_id=as_id, dry_run=dry_run)

    def verify(self, session_id: str, *, head: api.Head | None = None, tenant: str | None = None) -> api.Verification:
        return self._client.sessions.get(session_id).verify(head=head)

    def verify_all(self, *, first: str | None = None) -> Iterator[tuple[str, api.Verification]]:
        has_begun = first is None
        for session in self._client.sessions.list(children=True):
            has_begun = has_begun or session.id == first
            if has_begun:
                yield session.id, session.verify()
        if not has_begun:
            raise make_missing_session_error(first)

    def read_clock(self) -> datetime | None:
        """As its answers are dated, to the second."""
        with suppress(OSError, HTTPException, TypeError, ValueError), self._open("/health/live") as answer:
            return parsedate_to_datetime(answer.headers["date"])
        return None

    def read_metrics(self) -> dict[str, int] | None:
        """Return what a person watches of a server; None where it does not say, as without its token."""
        token = os.environ.get("SWARMKEEP_METRICS_TOKEN")
        # What else is asked says what is the matter.
        with suppress(OSError, HTTPException, ValueError), self._open("/metrics", token) as answer:
            return parse_metrics(answer.read(_MAX_METRICS_BYTES).decode(errors="replace"))
        return None

    def _open(self, path: str, token: str | None = None) -> Any:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return urlopen(Request(self._url.rstrip("/") + path, headers=headers), timeout=_PROBE_SECONDS)

    def close(self) -> None:
        self._client.close()


def parse_metrics(text: str) -> dict[str, int] | None:
    """Add up over labels and workers. None of what is no text of such metrics."""
    samples = [(_METRICS[name], value) for name, value in _SAMPLE.findall(text) if name in _METRICS]
    try:
        sums = {name: int(sum(float(value) for found, value in samples if found == name)) for name in _METRICS.values()}
    except (ValueError, OverflowError):
        return None
    return sums if samples else None


def _to_session_state(session: api.Session) -> api.SessionState:
    return msgspec.convert(session, api.SessionState, from_attributes=True)


def _choose_type_filter(types: Sequence[str]) -> str | None:
    """Return the types that the server can sort out by itself: one type or all."""
    return types[0] if len(types) == 1 else None
