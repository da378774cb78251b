"""Routes for conversations, which are sessions, and for their items."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import Any

from litestar import Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from swarmkeep.events.codec import Json
from swarmkeep.events.state import State
from swarmkeep.events.views import SessionView
from swarmkeep.http.auth import PERMISSION, Principal
from swarmkeep.http.bodies import Body, has_user_message
from swarmkeep.openai.fields import Metadata
from swarmkeep.openai.history import answer_items, find_session, read_items, resolve_references
from swarmkeep.openai.items import Input
from swarmkeep.openai.output_items import (
    APPROVALS,
    Include,
    IncludeList,
    ListedItem,
    PageQuery,
    SessionItems,
    make_page,
)
from swarmkeep.openai.problems import Refused, make_not_found
from swarmkeep.openai.progress import to_seconds
from swarmkeep.openai.submit import make_session_id, map_error_params, read_checked_input
from swarmkeep.store.records import SessionKey


class NewConversation(Body, frozen=True, kw_only=True):
    """`items` is a history to begin with."""

    may_be_absent = True
    items: list[Any] | None = None
    metadata: Metadata | None = None


class ConversationUpdate(Body, frozen=True, kw_only=True):
    """The metadata takes the place of what there was."""

    metadata: Metadata | None


class NewItems(Body, frozen=True, kw_only=True):
    items: list[Any]


def show_conversation(session_id: str, created_at: str, metadata: Json) -> Json:
    return {
        "id": session_id,
        "object": "conversation",
        "created_at": to_seconds(created_at),
        "metadata": metadata,
    }


def _show(view: SessionView) -> Json:
    return show_conversation(view.id, view.created_at, view.metadata)


async def _find(principal: Principal, name: str, *, to_change: bool = False) -> tuple[SessionKey, State]:
    return await find_session(principal, name, to_change=to_change, what="conversation")


async def _read_history(principal: Principal, items: list[Any]) -> Input:
    """Items as messages of a history. Raises Refused."""
    history = read_checked_input(principal, await resolve_references(principal, items), "items")
    if history.approvals:
        raise Refused("an approval is given with a response, to the run that waits for it", history.approvals[0].param)
    return history


@post("/conversations", status_code=200, summary="Make a conversation", opt={PERMISSION: ("run",)})
async def create_conversation(data: JSONBody[NewConversation], principal: NamedDependency[Principal]) -> dict[str, Any]:
    idempotency = await principal.read_idempotency()
    history = await _read_history(principal, data.items or [])
    if has_user_message(history.messages):
        principal.refuse_as_user()
    with map_error_params(history):
        view, _ = await principal.engine.sessions.create(
            principal.tenant,
            session_id=make_session_id(principal.tenant, idempotency),
            metadata=dict(data.metadata or {}),
            messages=history.messages,
            idempotency=idempotency,
        )
    return _show(view)


@get("/conversations/{conversation_id:str}", summary="Get a conversation")
async def get_conversation(conversation_id: FromPath[str], principal: NamedDependency[Principal]) -> dict[str, Any]:
    key, state = await _find(principal, conversation_id)
    return show_conversation(key.id, state.created_at, state.metadata)


@post(
    "/conversations/{conversation_id:str}",
    status_code=200,
    summary="Replace a conversation's metadata",
    opt={PERMISSION: ("run",)},
)
async def update_conversation(
    conversation_id: FromPath[str], data: JSONBody[ConversationUpdate], principal: NamedDependency[Principal]
) -> dict[str, Any]:
    key, state = await _find(principal, conversation_id)
    patch = dict.fromkeys(state.metadata) | dict(data.metadata or {})
    idempotency = await principal.read_idempotency()
    return _show(await principal.engine.sessions.update(key, metadata=patch, idempotency=idempotency))


@delete("/conversations/{conversation_id:str}", status_code=200, summary="Delete a conversation with all of its items")
async def delete_conversation(conversation_id: FromPath[str], principal: NamedDependency[Principal]) -> dict[str, Any]:
    key, _ = await _find(principal, conversation_id)
    await principal.engine.sessions.delete(key, by=principal.name)
    return {"id": key.id, "object": "conversation.deleted", "deleted": True}


@post(
    "/conversations/{conversation_id:str}/items",
    status_code=200,
    summary="Add items to a conversation, without a response",
    opt={PERMISSION: ("run",)},
)
async def create_items(
    conversation_id: FromPath[str],
    data: JSONBody[NewItems],
    principal: NamedDependency[Principal],
    include: Include = None,
    include_list: IncludeList = None,
) -> Response[Any]:
    """Refused while a response is in progress in it."""
    key, _ = await _find(principal, conversation_id, to_change=True)
    history = await _read_history(principal, data.items)
    if has_user_message(history.messages):
        principal.refuse_as_user()
    with map_error_params(history):
        added = await principal.engine.sessions.add_messages(
            key, history.messages, idempotency=await principal.read_idempotency()
        )
    list_added = partial(_list_events, seqs=[entry.seq for entry in added])
    items = await read_items(key.id, await principal.reader.state(key), list_added)
    page = make_page(items, limit=len(items), max_bytes=principal.reader.page_bytes)
    return await _answer_page(principal, key, page)


def _list_events(items: SessionItems, seqs: Sequence[int]) -> list[Json]:
    """The items that come from these events, which follow each other."""
    found = items.walk(first_seq=seqs[0]) if seqs else ()
    return [listed.item for listed in takewhile(lambda listed: listed.place[0] <= seqs[-1], found)]


async def _answer_page(principal: Principal, key: SessionKey, page: Json) -> Response[Any]:
    return await answer_items(principal, key, page["data"], lambda items: {**page, "data": items})


@get("/conversations/{conversation_id:str}/items", summary="List a conversation's items")
async def list_items(
    conversation_id: FromPath[str],
    principal: NamedDependency[Principal],
    page: NamedDependency[PageQuery],
    include: Include = None,
    include_list: IncludeList = None,
) -> Response[Any]:
    key, state = await _find(principal, conversation_id)
    return await _answer_page(principal, key, await read_items(key.id, state, page.take_items))


@get("/conversations/{conversation_id:str}/items/{item_id:str}", summary="Get an item of a conversation")
async def get_item(
    conversation_id: FromPath[str],
    item_id: FromPath[str],
    principal: NamedDependency[Principal],
    include: Include = None,
    include_list: IncludeList = None,
) -> Response[Any]:
    key, state = await _find(principal, conversation_id)
    found = await read_items(key.id, state, lambda items: items.find(item_id))
    if found is None or found.is_gone:
        raise make_not_found("item", item_id)
    return await answer_items(principal, key, [found.item], lambda items: items[0])


@delete(
    "/conversations/{conversation_id:str}/items/{item_id:str}",
    status_code=200,
    summary="Take an item out of a conversation",
    opt={PERMISSION: ("run",)},
)
async def delete_item(
    conversation_id: FromPath[str], item_id: FromPath[str], principal: NamedDependency[Principal]
) -> dict[str, Any]:
    """It is no longer sent to models or shown in lists; a call goes with its result. The log keeps it.

    An item that is gone already, such as the result of a deleted call, may be deleted again.
    """
    key, state = await _find(principal, conversation_id, to_change=True)
    found = await read_items(key.id, state, lambda items: items.find(item_id))
    if found is None:
        raise make_not_found("item", item_id)
    if not found.is_gone:
        await _take_out(principal, key, found)
        state = await principal.reader.state(key)
    return show_conversation(key.id, state.created_at, state.metadata)


async def _take_out(principal: Principal, key: SessionKey, found: ListedItem) -> None:
    entry, item = found.entry, found.item
    if item["type"] in APPROVALS:
        message = "an approval cannot be deleted by itself; delete its call, once that has ended"
        raise Refused(message, "item_id")
    call_id = item["call_id"] if item["type"] == "function_call" else None
    # Of a reply that says something and calls functions, each is an item.
    words_only = item["type"] == "message" and entry.role == "assistant"
    await principal.engine.sessions.remove_message(key, entry.seq, call_id, content_only=words_only, by=principal.name)


ROUTES = [
    create_conversation,
    get_conversation,
    update_conversation,
    delete_conversation,
    create_items,
    list_items,
    get_item,
    delete_item,
]
