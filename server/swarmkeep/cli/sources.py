"""What commands ask of sessions, in a server or in a database, and the values that both give."""

from __future__ import annotations

import getpass
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, TypeVar

import msgspec
import typer

from swarmkeep.cli.terminal import Refused
from swarmkeep.events.codec import Json, decode
from swarmkeep.events.facts import FACTS, RecordedEvent, UnknownFact, read_data

if TYPE_CHECKING:
    import swarmkeep_client as api
    from swarmkeep.events.run_table import EndedRunStatus
    from swarmkeep.events.state import SessionStatus, Verdict


NEEDS_SERVER = "this needs a server, which has the session's agent: name one with --url"

DocumentForm = Literal["markdown", "html"]
FileForm = Literal[
    "export", "chat", "swarm", "assistants", "conversations", "chatgpt", "open-webui", "librechat", "sharegpt",
    "agents-sdk", "adk", "langgraph",
]  # fmt: skip


class SessionChoice(TypedDict, total=False):
    """Which sessions are listed, apart from words that they have."""

    agent: str | None
    status: SessionStatus | None
    last_run: EndedRunStatus | None
    metadata: Mapping[str, str]
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
