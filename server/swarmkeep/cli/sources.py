"""The interface of commands to sessions, in a server or in a database. Commands are written once, for both."""

from __future__ import annotations

import getpass
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol, TypedDict, TypeVar, Unpack

import msgspec
import typer

from swarmkeep.cli.terminal import Refused, say
from swarmkeep.events.codec import Json, decode
from swarmkeep.events.facts import FACTS, RecordedEvent, UnknownFact, read_data

if TYPE_CHECKING:
    import swarmkeep_client as api
    from swarmkeep.events.records import UsageQuery
    from swarmkeep.events.run_table import EndedRunStatus, FiguresQuery, RunQuery
    from swarmkeep.events.state import SessionStatus, Verdict
    from swarmkeep.history.checkpoints import CheckpointHead
    from swarmkeep.history.recordings import RecordedSession
    from swarmkeep.store.index import ActiveStatus
    from swarmkeep.store.records import SessionOrder


NEEDS_SERVER = "this needs a server, which has the session's agent: name one with --url"

DocumentForm = Literal["markdown", "html"]
FileForm = Literal[
    "export", "chat", "swarm", "assistants", "conversations", "chatgpt", "open-webui", "librechat", "sharegpt",
    "agents-sdk", "adk", "langgraph",
]  # fmt: skip


class SessionFilter(TypedDict, total=False):
    """The choice and order of the sessions in a list."""

    agent: str | None
    status: SessionStatus | None
    last_run: EndedRunStatus | None
    order: SessionOrder | None
    metadata: Mapping[str, str]
    children: bool
    q: str | None
    active_after: str | None
    active_before: str | None
    damaged: bool | None
    assignee: str | None
    feedback: Verdict | None


@dataclass(frozen=True)
class FeedChoice:
    """The place in the feed of all events to begin behind, a cursor or a consumer's, and which of them are wanted."""

    after: str | None = None
    consumer: str | None = None
    types: Sequence[str] = ()
    agents: Sequence[str] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)


class Walk:
    """A way through many sessions: where it begins, where it is, and whether it is to end before the next."""

    def __init__(self, first: str | None = None, ends: Callable[[], bool] = lambda: False) -> None:
        self.first = first
        self.ends = ends
        self.done = 0
        self.next: str | None = None
        """The session that it ended before."""


class ChatSource(Protocol):
    """The interface through which a chat looks up, and forks, the sessions where it is held."""

    def session(self, session_id: str, *, at: int | None = None) -> api.SessionState: ...

    def messages(self, session_id: str, *, at: int | None = None) -> list[api.Message]: ...

    def events(self, session_id: str, *, after: int = 0) -> Iterable[api.Event]: ...

    def fork(
        self, session_id: str, *, at: int | None, new_id: str | None, metadata: Json | None
    ) -> api.SessionState: ...


class Source(ChatSource, Protocol):
    """A server's or a database's sessions."""

    def sessions(self, **wanted: Unpack[SessionFilter]) -> Iterator[api.SessionState]:
        """Newest first, or by what happened last; fetched as they are needed. With `children` also those that agents
        began to ask others."""
        ...

    def active_runs(self, status: ActiveStatus) -> Iterator[api.ActiveRun]:
        """Yield the runs that go on, or those that wait for an answer; fetched as they are needed."""
        ...

    def events(self, session_id: str, *, after: int = 0, types: Sequence[str] = ()) -> Iterable[api.Event]: ...

    def facts(self, session_id: str) -> Iterable[RecordedEvent]:
        """The events as they were recorded, for what folds them."""
        ...

    def follow(self, session_id: str, *, after: int = 0, types: Sequence[str] = ()) -> Iterator[api.Event]:
        """The events, and then each new one as it is recorded, for ever."""
        ...

    def feed(self, choice: FeedChoice, *, follow: bool = False) -> Iterator[Sequence[api.FeedEvent]]:
        """The events of all sessions, page by page; with `follow` then each new one, for ever."""
        ...

    def consumers(self) -> Sequence[api.Consumer]:
        """The places in the feed that are kept by name."""
        ...

    def confirm(self, consumer: str, cursor: str) -> None:
        """Keep a consumer's place in the feed."""
        ...

    def forget_consumer(self, name: str) -> None: ...

    def label(self, session_id: str, metadata: Json) -> api.SessionState:
        """Merge into the session's metadata."""
        ...

    def delete(
        self, session_id: str, *, force: bool = False, reason: str | None = None, if_match: int | None = None
    ) -> None: ...

    def remove_message(self, session_id: str, seq: int, *, tool_call_id: str | None) -> None: ...

    def open_on_server(self, session_id: str) -> api.Session:
        """A session for what only a server can do. Raises Refused where there is none."""
        ...

    def redact(
        self, session_id: str, seqs: Sequence[int], reason: str, *, include_forks: bool, dry_run: bool
    ) -> api.Redaction: ...

    def hold(self, session_id: str, reason: str | None) -> api.SessionState:
        """Put a session on hold; without a reason, lift the hold."""
        ...

    def erase(self, person: str, reason: str, *, dry_run: bool) -> api.Erasure:
        """Erase a person, wherever the person's key encrypts what was recorded."""
        ...

    def audit(self, tenant: str | None = None, *, after: int = 0) -> Iterator[api.AuditEntry]:
        """A tenant's audit log after an entry, oldest first; by default that of the tenant in question."""
        ...

    def verify_audit_head(self, tenant: str | None, head: api.Head) -> api.Verification:
        """Check a tenant's audit log against a head noted down earlier."""
        ...

    def heads(self) -> Iterator[CheckpointHead]:
        """Yield the end of each session and audit log: in a database, where no tenant is named, those of all."""
        ...

    def checkpoint(self, number: int | None = None, *, since: int | None = None) -> api.Checkpoint:
        """A checkpoint of the log of heads, by default a new one, if there is anything new; with the proof that it goes
        on from the first `since` leaves."""
        ...

    def list_due(self, before: datetime) -> Iterator[api.DueSession]:
        """The sessions that retention deletes before a time: a server's, or that of the settings here."""
        ...

    def evidence(self, ids: Sequence[str], signing_key: Path | None, size: int | None) -> Iterator[bytes]:
        """These sessions as a package that a stranger can check, proven from the checkpoint of `size` leaves, or the
        newest. Raises BadCheckpoint for a key that cannot be used."""
        ...

    def leaves(self) -> Iterator[api.Leaf]:
        """The leaves that checkpoints are of, in their order."""
        ...

    def verify_audit(self) -> Iterator[tuple[str, api.Verification]]:
        """The audit logs by their tenants: where no tenant is named in a database, those of all."""
        ...

    def count_sessions(self, *, of_all_tenants: bool = False) -> int | None:
        """Count the sessions, as far as that is possible; None if there is no count.

        `of_all_tenants`: in a database, where none is named.
        """
        ...

    def counts(self, *, children: bool) -> api.SessionCounts:
        """Count the busy sessions, and those whose last run ended badly."""
        ...

    def export(
        self, ids: Sequence[str], *, agent: str | None, status: str | None, metadata: Mapping[str, str], walk: Walk
    ) -> Iterator[bytes]:
        """The sessions with these ids, or all by these filters, as a file that leaves nothing out."""
        ...

    def conversations(self, ids: Sequence[str]) -> Iterator[RecordedSession]:
        """These sessions, or all, to compare agents with."""
        ...

    def transcript(self, session_id: str, form: DocumentForm) -> Iterator[bytes]:
        """The session as a document for people."""
        ...

    def usage(self, asked: UsageQuery) -> Iterator[api.UsageRow]:
        """A row for each group, fetched as they are needed."""
        ...

    def runs(self, asked: RunQuery) -> Iterator[api.EndedRun]:
        """Yield the runs that are over, fetched as they are needed."""
        ...

    def run_figures(self, asked: FiguresQuery) -> Iterator[api.RunFigures]:
        """A row for each group of runs that are over, of at most 92 days."""
        ...

    def import_sessions(
        self, file: BinaryIO, *, form: FileForm, agent: str | None, as_id: str | None, dry_run: bool
    ) -> api.ImportReport: ...

    def diff(self, session_id: str, before: int, after: int) -> api.StateDiff: ...

    def compare(self, session_id: str, other: str) -> api.Comparison: ...

    def request(self, session_id: str, seq: int, *, redacted: bool) -> bytes:
        """The exact model request behind an answer; or, with `redacted`, an object with what is left of it."""
        ...

    def blob(self, session_id: str, sha256: str) -> bytes:
        """The content of a file or picture."""
        ...

    def verify(
        self, session_id: str, *, head: api.Head | None = None, tenant: str | None = None
    ) -> api.Verification: ...

    def verify_all(self, *, first: str | None = None) -> Iterator[tuple[str, api.Verification]]:
        """Every session by its name: in a database, and where no tenant is named, of all tenants as TENANT/ID.

        `first` is the name of the one to begin with.
        """
        ...

    def read_clock(self) -> datetime | None:
        """Return the time at the place of the sessions; None if that cannot be told."""
        ...

    def read_metrics(self) -> dict[str, int] | None:
        """Return what a person watches of a server: once it has API keys, it asks for SWARMKEEP_METRICS_TOKEN. None of
        a database, and where it does not say."""
        ...

    def close(self) -> None: ...


def make_missing_session_error(name: str | None) -> Refused:
    return Refused(f"there is no session {name!r} to begin with; leave --from out to begin with the first one")


# What the terminal shows has the client's types. What this process has itself is turned into them here.

T = TypeVar("T")


def to_client(value: object, kind: type[T]) -> T:
    """The client's form of a view. It passes through plain JSON values, which leave out what was not asked for."""
    return msgspec.convert(msgspec.to_builtins(value), kind)


def to_client_event(event: RecordedEvent) -> api.Event:
    import swarmkeep_client as api

    return api.Event(
        session_id=event.session_id, seq=event.seq, type=event.type, version=event.version, run_id=event.run_id,
        agent=event.agent, at=event.at, data=decode(read_data(event)), hash=event.hash,
    )  # fmt: skip


def read_event(event: api.Event) -> RecordedEvent:
    """The event with its fact, as far as this release knows it; without the text that was stored."""
    fact: Any = UnknownFact(data=event.data)
    if event.type in FACTS:
        with suppress(msgspec.ValidationError):
            fact = msgspec.convert(event.data, FACTS[event.type])
    return RecordedEvent(
        session_id=event.session_id, seq=event.seq, type=event.type, version=event.version, run_id=event.run_id,
        agent=event.agent or "", at=event.at, hash=event.hash, payload="", fact=fact,
    )  # fmt: skip


def make_approval(call: api.PendingCall, decision: Literal["approve", "deny"], reason: str = "") -> api.Approval:
    """A decision on a call as it was shown: of one with other arguments by then, the server refuses it."""
    approval: api.Approval = {"tool_call_id": call.tool_call_id, "decision": decision}
    if call.arguments_digest is not None:
        approval["arguments_digest"] = call.arguments_digest
    if reason:
        approval["reason"] = reason
    return approval


# Find a command's sessions by its options and the environment.


@dataclass(frozen=True)
class SourceOptions:
    """The options of a command that say where its sessions are."""

    url: str | None = None
    database_url: str | None = None
    tenant: str | None = None
    api_key: str | None = None

    @property
    def server_url(self) -> str | None:
        """The server to ask, if it is a server: the option counts, then the environment."""
        if self.url and self.database_url:
            raise typer.BadParameter("give either --url or --database-url, not both", param_hint="'--url'")
        if self.api_key and self.database_url:
            raise typer.BadParameter(
                "--api-key is for a server, not a database; leave it out, or give --url", param_hint="'--api-key'"
            )
        if self.database_url:
            return None
        url = self.url or os.environ.get("SWARMKEEP_URL") or None
        if self.api_key and not url:
            raise typer.BadParameter("--api-key needs a server: add --url", param_hint="'--api-key'")
        if url and self.tenant:
            raise typer.BadParameter(
                "--tenant is for a database; on a server the API key determines the tenant", param_hint="'--tenant'"
            )
        return url


class ServerOptions(SourceOptions):
    """The same of a command that only a server can carry out."""


# Say where a session is not what was recorded.


def warn_if_damaged(found: Source, session_id: str) -> None:
    """For commands that show a log as far as it goes: say where it is not what was recorded."""
    verification = found.verify(session_id)
    if not verification.valid:
        first = verification.problems[0]
        say(
            f"warning: this session does not verify: {first.detail} ({first.code}); "
            f"`swarmkeep verify {session_id}` says more"
        )


# Name the person who works without a server.


def name_operator() -> str:
    """The user of the operating system, for the record of what they do without a server."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):
        # In a container a user may have a number only.
        return "cli"


def describe_options(where: SourceOptions, agents: list[str] | None, *, offline: bool, model: str | None) -> str:
    """Describe the options of the command line, to be given again; but for what is secret, or may hold something that
    is."""
    words = ["--offline"] if offline else []
    for agent in agents or ():
        words += ["--agents", agent]
    given = {"--model": model, "--url": where.url, "--database-url": where.database_url, "--tenant": where.tenant}
    for name, value in given.items():
        if value and not (name.endswith("url") and any(sign in value for sign in ("@", "password"))):
            words += [name, value]
    return "".join(f" {shlex.quote(word)}" for word in words)
