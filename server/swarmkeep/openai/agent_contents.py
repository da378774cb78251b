"""Contents of a session in OpenAI's Agents API: turns, items, files, of subagents, too; and traces as OTLP's JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import takewhile
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get
from litestar.di import NamedDependency, Provide
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, QueryParameter
from msgspec import UNSET

from swarmkeep.events.codec import Json
from swarmkeep.events.files import FileReference, list_references
from swarmkeep.events.messages import Entry, list_result_references
from swarmkeep.events.state import KnownIds, Run, State, find_ids
from swarmkeep.events.views import find_run, list_latest_runs
from swarmkeep.http.auth import Principal
from swarmkeep.http.bodies import JsonResponse
from swarmkeep.http.routes.sessions import make_file_response
from swarmkeep.http.threads import run_aside
from swarmkeep.openai.agent_events import Phase, find_subagents, mark_failed, show_item, show_turn
from swarmkeep.openai.history import FEW_MESSAGES, answer_items, find_session, read_items
from swarmkeep.openai.output_items import ListedItem, PageQuery, SessionItems
from swarmkeep.openai.problems import make_not_found
from swarmkeep.openai.progress import to_seconds
from swarmkeep.runs.genai import export_spans, list_spans
from swarmkeep.runs.identifiers import derive_child
from swarmkeep.runs.sessions import read_stored_file
from swarmkeep.store.records import SessionKey

# Turns and items: of a session, or of one of its subagents, whose session is below it.


class TurnOwner(msgspec.Struct, frozen=True):
    """The log that turns are in, and the session and the subagent that they are said to be of."""

    key: SessionKey
    state: State
    session_id: str
    subagent_id: str | None = None


async def _find_owner(principal: NamedDependency[Principal], session_id: FromPath[str]) -> TurnOwner:
    key, state = await find_session(principal, session_id)
    return TurnOwner(key, state, key.id)


async def _find_subagent(
    principal: NamedDependency[Principal], session_id: FromPath[str], subagent_id: FromPath[str]
) -> TurnOwner:
    key, state = await find_session(principal, session_id)
    child, below = await find_session(principal, subagent_id, what="subagent")
    parent = below.parent
    if parent is None or derive_child(key, state, parent.run_id, parent.tool_call_id) != child:
        raise make_not_found("subagent", subagent_id)
    return TurnOwner(child, below, key.id, child.id)


def _list_runs(state: State, page: PageQuery, what: str, *, more: int = 0) -> Iterable[Run]:
    """The turns of a page, if there are so many, one more than that, and so many `more`. Raises Refused."""
    last = None if page.after is None else find_run(state, page.after)
    if page.after is not None and last is None:
        raise make_not_found(what, page.after, "after")
    if page.order == "desc":
        return list_latest_runs(state, page.limit + 1 + more, None if last is None else last.first_seq)
    every = list_latest_runs(state, len(state.finished) + len(state.queue) + 1)
    return (run for run in reversed(every) if last is None or run.first_seq > last.first_seq)


def _find_turn(state: State, turn_id: str) -> Run:
    run = find_run(state, turn_id)
    if run is None:
        raise make_not_found("turn", turn_id)
    return run


def _make_turn_routes(path: str, name: str, whose: str, provider: Any) -> list[HTTPRouteHandler]:
    """Make the routes below `path` for the turns and items of an owner that `provider` finds."""
    owned = {"owner": Provide(provider)}

    @get(
        f"{path}/turns",
        operation_id=f"list_{name}_turns",
        summary=f"List a {whose}'s turns",
        dependencies=owned,
    )
    async def list_turns(owner: NamedDependency[TurnOwner], page: NamedDependency[PageQuery]) -> Response[Any]:
        def make() -> Json:
            runs = _list_runs(owner.state, page, "item")
            return page.take(show_turn(owner.session_id, run, owner.subagent_id) for run in runs)

        return JsonResponse(await run_aside(len(owner.state.finished) > FEW_MESSAGES, make))

    @get(
        f"{path}/turns/{{turn_id:str}}",
        operation_id=f"get_{name}_turn",
        summary=f"Get a turn of a {whose}",
        dependencies=owned,
    )
    async def get_turn(owner: NamedDependency[TurnOwner], turn_id: FromPath[str]) -> Response[Any]:
        return JsonResponse(show_turn(owner.session_id, _find_turn(owner.state, turn_id), owner.subagent_id))

    @get(
        f"{path}/turns/{{turn_id:str}}/items",
        operation_id=f"list_{name}_turn_items",
        summary=f"List the items of a turn of a {whose}",
        dependencies=owned,
    )
    async def list_turn_items(
        owner: NamedDependency[TurnOwner],
        turn_id: FromPath[str],
        principal: NamedDependency[Principal],
        page: NamedDependency[PageQuery],
    ) -> Response[Any]:
        return await _answer_items(principal, owner, page, _find_turn(owner.state, turn_id))

    @get(
        f"{path}/items",
        operation_id=f"list_{name}_items",
        summary=f"List a {whose}'s items",
        dependencies=owned,
    )
    async def list_items(
        owner: NamedDependency[TurnOwner], principal: NamedDependency[Principal], page: NamedDependency[PageQuery]
    ) -> Response[Any]:
        return await _answer_items(principal, owner, page)

    return [list_turns, get_turn, list_turn_items, list_items]


async def _answer_items(
    principal: Principal, owner: TurnOwner, page: PageQuery, turn: Run | None = None
) -> Response[Any]:
    found, places = await read_items(owner.key.id, owner.state, partial(_read_page, page=page, turn=turn))

    def write(items: list[Json]) -> Json:
        return {**found, "data": [show_item(item, *places[item["id"]]) for item in items]}

    return await answer_items(principal, owner.key, found["data"], write)


def _read_page(
    items: SessionItems, *, page: PageQuery, turn: Run | None
) -> tuple[Json, dict[str, tuple[str | None, Phase | None]]]:
    """A page, and of each item the turn, and whether it is an answer. Raises Refused."""
    before = page.find_before(items)
    found: Iterator[ListedItem] = items.walk(page.order, before)
    if turn is not None:
        edge = turn.first_seq if page.order == "asc" else turn.last_seq
        walked = items.walk(page.order, before, first_seq=edge)
        inside = takewhile(lambda each: turn.first_seq <= each.place[0] <= turn.last_seq, walked)
        found = (each for each in inside if each.entry.run_id == turn.id)
    places: dict[str, tuple[str | None, Phase | None]] = {}

    def select() -> Iterator[Json]:
        for listed in found:
            item, entry = mark_failed(listed.item, listed.entry), listed.entry
            if show_item(item, None) is None:
                continue
            phase: Phase | None = None
            if item["type"] == "message" and item["role"] == "assistant":
                phase = "commentary" if entry.message.get("tool_calls") else "final_answer"
            places[item["id"]] = entry.run_id, phase
            yield item

    return page.take(select()), places


# Subagents: agents that were asked by the session's own. Each is a session, too, by its id.

_SESSION = "/agents/sessions/{session_id:str}"
_SUBAGENT = f"{_SESSION}/subagents/{{subagent_id:str}}"


@get(f"{_SESSION}/subagents", summary="List the agents that a session has asked")
async def list_agent_subagents(
    session_id: FromPath[str], principal: NamedDependency[Principal], page: NamedDependency[PageQuery]
) -> Response[Any]:
    key, state = await find_session(principal, session_id)
    shown = list((await find_subagents(principal, key, state)).values())
    return JsonResponse(page.select(shown))


@get(_SUBAGENT, summary="Get an agent that a session has asked", dependencies={"owner": Provide(_find_subagent)})
async def get_agent_subagent(
    owner: NamedDependency[TurnOwner], session_id: FromPath[str], principal: NamedDependency[Principal]
) -> Response[Any]:
    key, state = await find_session(principal, session_id)
    run = None if owner.state.parent is None else find_run(state, owner.state.parent.run_id)
    found = await find_subagents(principal, key, state, run)
    if owner.key.id not in found:
        raise make_not_found("subagent", owner.key.id)
    return JsonResponse(found[owner.key.id])


# Artifacts: the files of a session's turns. Users and functions choose their names.


class _WithFiles(KnownIds, frozen=True):
    """The messages that brought files, all by one id."""


class _Artifact(msgspec.Struct, frozen=True):
    """A file, and where it stands in its session: `number` is its place among those of its message."""

    entry: Entry
    number: int
    path: str
    reference: FileReference

    @property
    def id(self) -> str:
        return f"artifact_{self.entry.seq}-{self.number}"

    def show(self, session_id: str) -> Json:
        return {
            "id": self.id,
            "object": "agent.session.artifact",
            "session_id": session_id,
            "turn_id": self.entry.run_id or "",
            "environment_id": _ENVIRONMENT,
            "path": self.path,
            "size_bytes": self.reference.size,
            "created_at": to_seconds(self.entry.at),
        }


_ENVIRONMENT = "none"
_NOT_IN_FILE_NAMES = re.compile(r"[/\\\x00-\x1f\x7f]|^\.{1,2}$")


def _list_files(entry: Entry) -> list[FileReference]:
    return [] if entry.removed else [*list_references(entry.message), *list_result_references(entry.tool)]


def _list_artifacts(state: State) -> list[_Artifact]:
    """The files of a session, in order. Within a turn each has a path of its own."""
    places = find_ids(state.messages, _WithFiles, lambda entry: ("",) if _list_files(entry) else ()).find("")
    seen: Counter[tuple[str | None, str]] = Counter()
    found: list[_Artifact] = []
    for entry in (state.messages[at] for at in places):
        folder = "/output" if entry.role in ("assistant", "tool") else "/input"
        for number, reference in enumerate(_list_files(entry)):
            path = f"{folder}/{_name_file(reference)}"
            seen[entry.run_id, path] += 1
            count = seen[entry.run_id, path]
            if count > 1:
                path = f"{folder}/{count}/{path.removeprefix(folder + '/')}"
            found.append(_Artifact(entry, number, path, reference))
    return found


def _name_file(reference: FileReference) -> str:
    """The name that it was given; its digest, if none."""
    unnamed = f"{reference.sha256[:12]}.{reference.media_type.partition('/')[2] or 'bin'}"
    return _NOT_IN_FILE_NAMES.sub("_", unnamed if reference.name is UNSET else reference.name or unnamed)


async def _read_artifacts(state: State) -> list[_Artifact]:
    return await run_aside(len(state.messages) > FEW_MESSAGES, _list_artifacts, state)


async def _find_artifact(state: State, artifact_id: str) -> _Artifact:
    found = next((each for each in await _read_artifacts(state) if each.id == artifact_id), None)
    if found is None:
        raise make_not_found("artifact", artifact_id)
    return found


@get(f"{_SESSION}/artifacts", summary="List the files of a session's turns")
async def list_agent_artifacts(
    session_id: FromPath[str],
    principal: NamedDependency[Principal],
    page: NamedDependency[PageQuery],
    environment_id: Annotated[str | None, QueryParameter(description="`none` is the only one there is.")] = None,
) -> Response[Any]:
    key, state = await find_session(principal, session_id)
    artifacts = await _read_artifacts(state) if environment_id in (None, _ENVIRONMENT) else []
    return JsonResponse(page.select([artifact.show(key.id) for artifact in artifacts]))


@get(f"{_SESSION}/artifacts/{{artifact_id:str}}", summary="Get a file of a session's turns, without its content")
async def get_agent_artifact(
    session_id: FromPath[str], artifact_id: FromPath[str], principal: NamedDependency[Principal]
) -> Response[Any]:
    key, state = await find_session(principal, session_id)
    return JsonResponse((await _find_artifact(state, artifact_id)).show(key.id))


@get(f"{_SESSION}/artifacts/{{artifact_id:str}}/content", summary="Get the content of a file of a session's turns")
async def get_agent_artifact_content(
    request: Request[Any, Any, Any],
    session_id: FromPath[str],
    artifact_id: FromPath[str],
    principal: NamedDependency[Principal],
) -> Response[bytes]:
    key, state = await find_session(principal, session_id)
    name = (await _find_artifact(state, artifact_id)).reference.sha256
    return make_file_response(request, name, await read_stored_file(principal.store, key, name))


# Traces.


def _show_trace(session_id: str, state: State, run: Run) -> Json:
    """The trace of a turn, as far as it has come."""
    return {
        "id": run.id,
        "object": "agent.session.trace",
        "session_id": session_id,
        "created_at": to_seconds(run.created_at),
        "otlp": export_spans(list(list_spans(session_id, state, run))),
    }


@get(f"{_SESSION}/traces", summary="List the traces of a session's turns")
async def list_agent_traces(
    session_id: FromPath[str], principal: NamedDependency[Principal], page: NamedDependency[PageQuery]
) -> Response[Any]:
    key, state = await find_session(principal, session_id)

    def make() -> Json:
        runs = _list_runs(state, page, "trace", more=len(state.queue))
        return page.take(_show_trace(key.id, state, run) for run in runs if run.status != "queued")

    return JsonResponse(await run_aside(len(state.messages) > FEW_MESSAGES, make))


ROUTES = [
    *_make_turn_routes(_SESSION, "agent", "session", _find_owner),
    list_agent_subagents,
    get_agent_subagent,
    *_make_turn_routes(_SUBAGENT, "agent_subagent", "subagent", _find_subagent),
    list_agent_artifacts,
    get_agent_artifact,
    get_agent_artifact_content,
    list_agent_traces,
]
