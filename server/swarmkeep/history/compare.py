"""One session at two points, and two sessions side by side."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from swarmkeep.describe import Change, find_changes
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import InvalidRequest, SessionNotFound
from swarmkeep.events.facts import RecordedEvent
from swarmkeep.events.fold import fold
from swarmkeep.events.messages import Entry, list_shown
from swarmkeep.events.records import Price, PriceTable, Usage
from swarmkeep.events.state import State
from swarmkeep.events.views import collect_runs
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey


class RunStatusChange(msgspec.Struct, frozen=True, kw_only=True):
    """A run whose status has changed."""

    id: str
    """The run."""
    before: str | None
    """Its status; null for a run that did not exist."""
    after: str
    """Its status."""


class StateDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The changes that a session's events made to its state."""

    before: int
    """The earlier event."""
    after: int
    """The later one."""
    changes: tuple[Change, ...]
    """Of the agent, status, context variables, metadata and usage."""
    messages: list[Json]
    """Those that are new or different, as they are after it."""
    removed: list[int]
    """The `seq`s of those that were taken out."""
    runs: list[RunStatusChange]
    """Those whose status differs."""


class CallView(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call."""

    seq: int
    """Its result."""
    name: str
    """The function."""
    arguments: str
    """The model's JSON text."""
    status: str
    """How it ended."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """A session since it parted from another."""

    id: str
    """The session."""
    seq: int
    """Its last event."""
    hash: str
    """That event's hash."""
    agent: str
    """The active agent."""
    messages: list[Json]
    """Its own."""
    calls: list[CallView]
    """Its own tool calls."""
    usage: Usage
    """Of its own model calls."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two sessions."""

    shared_seq: int
    """The last event that both share, by hash; 0 if there is none."""
    shared_hash: str | None
    """Its hash, or null."""
    identical: bool
    """Both have the same events."""
    a: Side
    """This session."""
    b: Side
    """The other one."""
    changes: tuple[Change, ...]
    """Those that lead from this session, as it is now, to the other."""


async def diff_session(store: SqlStore, key: SessionKey, before: int, after: int) -> StateDiff:
    """Return the changes of a session between two of its events. Raises SessionNotFound, EventNotFound,
    InvalidRequest."""
    if before > after:
        raise InvalidRequest("`before` must not be later than `after`", "/query/before")
    first = await store.state(key, at=before) if before else State()
    return diff_states(first, await store.state(key, at=after))


def diff_states(before: State, after: State) -> StateDiff:
    known = {entry.seq: entry.shown_message for entry in list_shown(before.messages)}
    statuses = {run.id: run.status for run in collect_runs(before)}
    return StateDiff(
        before=before.seq,
        after=after.seq,
        changes=find_changes(_summarize(before), _summarize(after)),
        messages=[entry.view() for entry in list_shown(after.messages) if known.get(entry.seq) != entry.shown_message],
        removed=[entry.seq for entry in after.messages if entry.removed and entry.seq in known],
        runs=[
            RunStatusChange(id=run.id, before=statuses.get(run.id), after=run.status)
            for run in collect_runs(after)
            if statuses.get(run.id) != run.status
        ],
    )


def _summarize(state: State) -> Json:
    if not state.seq:
        return {}
    return {
        "agent": state.agent,
        "status": state.status,
        "context_variables": state.context_variables,
        "metadata": state.metadata,
        "usage": msgspec.to_builtins(state.usage),
    }


async def compare_sessions(store: SqlStore, a: SessionKey, b: SessionKey) -> Comparison:
    """Return the place where two sessions part, and the events of each since. Raises SessionNotFound."""
    logs = []
    for key in (a, b):
        logs.append(await store.read(key))
        if not logs[-1]:
            raise SessionNotFound(key.id)
    return compare_logs(a.id, logs[0], b.id, logs[1])


def compare_logs(a_id: str, a: Sequence[RecordedEvent], b_id: str, b: Sequence[RecordedEvent]) -> Comparison:
    shared = _count_shared(a, b)
    common = fold(a[:shared])
    states = fold(a[shared:], common), fold(b[shared:], common)
    return Comparison(
        shared_seq=common.seq,
        shared_hash=common.hash or None,
        identical=shared == len(a) == len(b),
        a=_build_side(a_id, common, states[0]),
        b=_build_side(b_id, common, states[1]),
        changes=find_changes(_summarize(states[0]), _summarize(states[1])),
    )


def _count_shared(a: Sequence[RecordedEvent], b: Sequence[RecordedEvent]) -> int:
    """Count the events that are the same; a hash covers all that came before it."""
    count = 0
    for one, other in zip(a, b, strict=False):
        if one.hash != other.hash:
            break
        count += 1
    return count


def _build_side(session_id: str, common: State, now: State) -> Side:
    own = list(list_shown(now.messages[len(common.messages) :]))
    return Side(
        id=session_id,
        seq=now.seq,
        hash=now.hash,
        agent=now.agent,
        messages=[entry.view() for entry in own],
        calls=_list_calls(own),
        usage=Usage(
            prompt_tokens=now.usage.prompt_tokens - common.usage.prompt_tokens,
            completion_tokens=now.usage.completion_tokens - common.usage.completion_tokens,
            total_tokens=now.usage.total_tokens - common.usage.total_tokens,
            model_calls=now.usage.model_calls - common.usage.model_calls,
        ),
    )


def _list_calls(entries: Iterable[Entry]) -> list[CallView]:
    arguments = {}
    calls = []
    for entry in entries:
        for call in entry.chat_message.get("tool_calls", ()) if entry.role == "assistant" else ():
            arguments[call["id"]] = call["function"]["arguments"]
        if entry.tool is not None:
            asked = arguments.get(entry.message.get("tool_call_id"), "")
            calls.append(CallView(seq=entry.seq, name=entry.tool.name, arguments=asked, status=entry.tool.status))
    return calls


# Read a price table as an operator wrote it: JSON in a setting, or a file.


class PricesError(ValueError):
    """The price table cannot be used as it is; the sentence says why."""


_FORM = "each model has `input` and `output`, and may have `cached_input`, per million tokens"


def read_prices(source: str | None, currency: str) -> PriceTable | None:
    """The table that a setting names, as JSON or as a file (`.json`, `.toml`). Raises PricesError."""
    if source is None or not source.strip():
        return None
    text = source.strip()
    is_text = text.startswith("{")
    try:
        raw = text.encode() if is_text else Path(text).read_bytes()
        document = tomllib.loads(raw.decode()) if not is_text and text.endswith(".toml") else msgspec.json.decode(raw)
        prices = msgspec.convert(document, dict[str, Price])
    except OSError as error:
        raise PricesError(f"SWARMKEEP_PRICES: {text} cannot be read: {error.strerror}") from None
    except (ValueError, msgspec.MsgspecError) as error:
        place = "it" if is_text else text
        raise PricesError(f"SWARMKEEP_PRICES: {place} is not a table of prices: {error}; {_FORM}") from None
    return PriceTable(prices, currency)
