"""Answers about the past: a replay, a diff of states, a comparison of two sessions."""

from __future__ import annotations

from typing import Any

import msgspec

from swarmkeep_client.models import Message, RunError, SessionState, Usage


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """A place where today's agents would have acted differently from what is recorded."""

    seq: int | None = None
    kind: str = ""
    recorded: Any = None
    actual: Any = None


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """Today's agents run against the recorded completions and tool results. `turns` counts those compared, `last_seq`
    is the last event that was. What hangs on the `redacted` events could not be compared. `cut_short`: the time for it
    was over."""

    matches: bool
    turns: int = 0
    last_seq: int = 0
    divergences: list[Divergence] = []
    redacted: list[int] = []
    cut_short: bool = False


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One place (an RFC 6901 pointer) with what stood there and what stands there; UNSET is nothing, None is null."""

    path: str
    before: Any = msgspec.UNSET
    after: Any = msgspec.UNSET


class RunStatusChange(msgspec.Struct, frozen=True, kw_only=True):
    """A run whose status is another one; `before` is None for one that was not there."""

    id: str
    before: str | None = None
    after: str = ""


class StateDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of a session's state by its events from `before` to `after`. `messages` are new ones, or different;
    `removed` are the seqs of those that were taken out."""

    before: int
    after: int
    changes: list[Change] = []
    messages: list[Message] = []
    removed: list[int] = []
    runs: list[RunStatusChange] = []


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """The text that models are sent in the place of messages: `summary` for those from `first_seq` to `last_seq`; None
    if there is none. `error`: why the last summary that was asked for was not made."""

    session: SessionState
    summary: str | None = None
    first_seq: int | None = None
    last_seq: int | None = None
    error: RunError | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call and how it ended. `arguments` is the model's JSON text."""

    seq: int
    name: str
    arguments: str
    status: str


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """A session since it parted from another: its own messages, calls and usage, and what it is now."""

    id: str
    seq: int
    hash: str
    agent: str
    messages: list[Message] = []
    calls: list[ToolCall] = []
    usage: Usage = Usage()


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two sessions, which share their events up to `shared_seq` (0: none). `changes` lead from `a` to `b` as they are
    now."""

    shared_seq: int
    shared_hash: str | None
    identical: bool
    a: Side
    b: Side
    changes: list[Change] = []
