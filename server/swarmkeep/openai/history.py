"""Finds earlier responses and items of the caller's sessions by their ids, in the log alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, aclosing
from functools import partial
from typing import Any, TypeVar

import msgspec
from litestar import Response

from swarmkeep.events.codec import Json, encode
from swarmkeep.events.errors import SessionNotFound, TooLarge
from swarmkeep.events.facts import RecordedEvent, RunResumed, RunWaiting
from swarmkeep.events.files import MAX_SENT_BYTES
from swarmkeep.events.records import RunOptions
from swarmkeep.events.state import Run, State, refuse_damaged
from swarmkeep.events.views import find_run
from swarmkeep.http.auth import Principal
from swarmkeep.http.sse import make_counted_response
from swarmkeep.http.threads import run_aside
from swarmkeep.openai.items import (
    ItemPlace,
    ResponseId,
    collect_references,
    is_reference,
    measure_files,
    parse_item_id,
    parse_response_id,
    put_back_files,
)
from swarmkeep.openai.output_items import SessionItems, is_reply
from swarmkeep.openai.problems import Refused, make_not_found
from swarmkeep.openai.progress import ResponseBuilder
from swarmkeep.runs.reader import RunPosition, SessionReader
from swarmkeep.store.records import SessionKey

T = TypeVar("T")

# Up to so many are looked through within a few milliseconds.
FEW_MESSAGES = 500
# Each is read as a whole. Frameworks that name what was said before make a conversation with each request.
_MAX_SESSIONS = 100
# Each becomes an item of its own, however short its name is.
_MAX_REFERENCES = 2_000


class StoredResponse(msgspec.Struct, frozen=True):
    """A response that is in the log, and where."""

    key: SessionKey
    id: ResponseId
    run: Run


class ResponsePart(msgspec.Struct, frozen=True):
    """The place of a response in its session. `last_seq` is known once it is over."""

    is_over: bool
    is_last: bool
    last_seq: int


async def find_session(
    principal: Principal, session_id: str, *, to_change: bool = False, what: str = "session", name: str | None = None
) -> tuple[SessionKey, State]:
    """Find a session, or `what` it has by that `name`.

    Raises Refused for one that is not there, HistoryDamaged if it is `to_change`.
    """
    try:
        key = principal.session_key(session_id)
        state = await principal.reader.state(key)
    except SessionNotFound:
        raise make_not_found(what, name or session_id) from None
    if to_change:
        refuse_damaged(key.id, state)
    return key, state


async def find_response(principal: Principal, name: str, *, to_change: bool = False) -> StoredResponse:
    """Raises Refused for a response that is not there, or was deleted; HistoryDamaged if it is `to_change`."""
    response_id = parse_response_id(name)
    if response_id is None:
        raise make_not_found("response", name)
    key, state = await find_session(principal, response_id.session_id, to_change=to_change, what="response", name=name)
    run = find_run(state, response_id.run_id)
    if run is None or not is_findable(run, response_id.part):
        raise make_not_found("response", name)
    return StoredResponse(key, response_id, run)


def count_parts(run: Run) -> int:
    """Count the responses that a run has become so far: each time that it goes on after a wait begins another one."""
    return run.waits + (1 if run.has_gone_on else 0)


def is_findable(run: Run, part: int) -> bool:
    """Tell if a run has this response, and that was not deleted."""
    return not run.hidden and part not in run.hidden_parts and part < count_parts(run)


async def find_part(
    principal: Principal, key: SessionKey, state: State, response_id: ResponseId
) -> ResponsePart | None:
    """None for a response that the session does not have."""
    run = find_run(state, response_id.run_id)
    if run is None or not is_findable(run, response_id.part):
        return None
    is_last_part = response_id.part == count_parts(run) - 1
    active = state.run is not None and state.run.id == run.id
    latest = active or (state.run is None and bool(state.finished) and state.finished[-1].id == run.id)
    if is_last_part:
        is_over = run.status not in ("running", "queued")
        return ResponsePart(is_over, latest and not state.queue, run.last_seq)
    builder = await build_response(principal, StoredResponse(key, response_id, run))
    return ResponsePart(builder.is_over, False, builder.outcome.last_seq)


async def build_response(principal: Principal, found: StoredResponse) -> ResponseBuilder:
    """The response as the log has it. A long one is put together in a thread."""
    builder = ResponseBuilder(found.id)
    upto = None if found.run.finished_at is None else found.run.last_seq
    pages = principal.reader.read_pages(found.key, after=found.run.first_seq - 1, upto=upto)
    async with aclosing(pages) as events:
        async for event in events:
            if event.run_id == found.id.run_id:
                builder.read(event)
                if builder.is_over and found.id.part < count_parts(found.run) - 1:
                    break
    return builder


class LastReply(msgspec.Struct, frozen=True):
    """The last reply of a run that waits: its event, the turns before it, and how the run has gone on so far."""

    seq: int
    turns_before: int
    options: RunOptions
    agent: str


def find_last_reply(state: State, run: Run) -> LastReply | None:
    for index in range(run.last_message - 1, run.first_message - 1, -1):
        entry = state.messages[index]
        if is_reply(entry) and entry.run_id == run.id:
            return LastReply(entry.seq, run.turns - 1, run.options, run.agent)
    return None


def show_last_turn(builder: ResponseBuilder, since: Sequence[RecordedEvent], last: LastReply) -> bool:
    """Show a builder what a run did from its last reply on, in the place of all that it did before a response.

    That is enough, because what a response is still about was asked for by that reply; but only if the run has waited
    once since then, so that it is known where in it the response begins.
    """
    waits = [event.fact for event in since if isinstance(event.fact, RunWaiting | RunResumed)]
    if len(waits) != 1 or not isinstance(waits[0], RunWaiting):
        return False
    builder.begin_behind(builder.id.part - 1, last.turns_before, last.options, last.agent)
    for event in since:
        builder.read(event)
    return True


async def read_earlier(
    reader: SessionReader, key: SessionKey, builder: ResponseBuilder, position: RunPosition, last: LastReply | None
) -> None:
    """Have a builder read what its run did before the position where its stream begins. If the `last` reply is known,
    only what came after it is read, however long the run is."""
    if last is not None:
        since = await _read_events(reader, key, position.run_id, last.seq - 1, position.after)
        if show_last_turn(builder, since, last):
            return
    first = (await reader.find_position(key, position.run_id)).after
    async with aclosing(reader.read_pages(key, after=first, upto=position.after)) as events:
        async for event in events:
            if event.run_id == position.run_id:
                builder.read(event)


async def read_run_events(reader: SessionReader, key: SessionKey, run: Run) -> list[RecordedEvent]:
    """All events of a run that does not go on by itself."""
    return await _read_events(reader, key, run.id, run.first_seq - 1, run.last_seq)


async def _read_events(
    reader: SessionReader, key: SessionKey, run_id: str, after: int, upto: int
) -> list[RecordedEvent]:
    async with aclosing(reader.read_pages(key, after=after, upto=upto)) as events:
        return [event async for event in events if event.run_id == run_id]


async def read_items(session_id: str, state: State, read: Callable[[SessionItems], T]) -> T:
    """Read something of a session's items; in a thread if the session is long, because the first reader looks through
    all its messages."""
    return await run_aside(len(state.messages) > FEW_MESSAGES, lambda: read(SessionItems(session_id, state)))


async def resolve_references(principal: Principal, items: list[Any]) -> list[Any]:
    """The input, with the items themselves in the place of references to them. Raises Refused and TooLarge."""
    is_long = len(items) > FEW_MESSAGES
    wanted = await run_aside(is_long, collect_references, items)
    if not wanted:
        return items
    if wanted.total() > _MAX_REFERENCES:
        raise Refused(f"the input may refer to items at most {_MAX_REFERENCES} times", "input")
    known: dict[str, Json] = {}
    spare = MAX_SENT_BYTES
    sessions = await run_aside(is_long, _group_by_session, wanted)
    if len(sessions) > _MAX_SESSIONS:
        raise Refused(f"the input may refer to items of at most {_MAX_SESSIONS} conversations", "input")
    for session_id, names in sessions.items():
        key = principal.session_key(session_id)
        try:
            state = await principal.reader.state(key)
        except SessionNotFound:
            continue
        refuse_damaged(session_id, state)
        found, size = await read_items(session_id, state, partial(_find_items, wanted, names))
        # What several references name is sent as often.
        spare -= size
        if spare < 0:
            raise TooLarge(f"the items that the input refers to have more than {MAX_SENT_BYTES} bytes together")
        whole = await put_back_files(principal.store, key, found, max_bytes=spare, times=wanted, for_model=True)
        spare = max(0, spare - await run_aside(is_long, measure_files, found, wanted))
        known |= {item["id"]: item for item in whole}
    return await run_aside(is_long, _replace_references, items, known)


async def answer_items(
    principal: Principal, key: SessionKey, items: Sequence[Json], write: Callable[[list[Json]], Json]
) -> Response[Any]:
    """Answer with items, their files put back. What has files waits until there is room for it; see ByteBudget."""
    with ExitStack() as taken:
        size = min(measure_files(items), MAX_SENT_BYTES * 4 // 3)
        if size:
            # As it is stored, as text in its place, and in the whole.
            taken.callback(await principal.service.rebuilds.take(size * 11 // 4))
        whole = write(await put_back_files(principal.store, key, items))
        return make_counted_response(await run_aside(bool(size), encode, whole), taken)


def _replace_references(items: list[Any], known: dict[str, Json]) -> list[Any]:
    resolved = []
    for place, item in enumerate(items):
        if is_reference(item):
            name = str(item.get("id"))
            if name not in known:
                raise make_not_found("item", name, f"input[{place}].id")
            item = known[name]
        resolved.append(item)
    return resolved


def _group_by_session(item_ids: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item_id in item_ids:
        if (named := parse_item_id(item_id)) is not None:
            found.setdefault(named[1].session_id, []).append(item_id)
    return found


def _find_items(wanted: Counter[str], item_ids: Sequence[str], items: SessionItems) -> tuple[list[Json], int]:
    """Those that are there, and how many bytes they have, each as often as it is wanted, without their files."""
    found = [listed.item for listed in map(items.find, item_ids) if listed is not None and not listed.is_gone]
    return found, sum(len(encode(item)) * wanted[item["id"]] for item in found)


def find_asked_call(session_id: str, run: Run, request_id: str) -> str | None:
    """The call of a waiting run that an approval request is about, by that item's id."""
    for index, call in enumerate(run.calls):
        place = ItemPlace(session_id, run_id=run.id, turn=run.turns - 1, index=index)
        if call.approval == "requested" and not call.done and place.make_id("mcpr") == request_id:
            return call.id
    return None


async def list_input_items(principal: Principal, found: StoredResponse) -> list[Json]:
    """List the items of a response's input: the messages before its first reply, and the results that it went on
    with."""
    builder = await build_response(principal, found)
    return await asyncio.to_thread(lambda: builder.input)
