"""Routes for responses: create, get, stream, cancel, delete, input items."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.auth.guards import PERMISSION
from swarmkeep.api.bodies import JsonResponse
from swarmkeep.api.openai.errors import Refused
from swarmkeep.api.openai.fields import CreateResponse
from swarmkeep.api.openai.history import build_response, count_parts, find_response, list_input_items
from swarmkeep.api.openai.items.files import put_back_files
from swarmkeep.api.openai.items.lists import After, Include, IncludeList, ItemLimit, Order, list_page
from swarmkeep.api.openai.progress.builder import ResponseBuilder
from swarmkeep.api.openai.progress.frames import DONE, frame_event, write_frames
from swarmkeep.api.openai.run_request import read_run_request
from swarmkeep.api.openai.submit import FollowedResponse, begin_response, finish_response, follow_response
from swarmkeep.api.openai.targets import find_target
from swarmkeep.api.openai.unstored import begin_unstored
from swarmkeep.api.streams import Written, make_event_stream
from swarmkeep.domain.codec import Json
from swarmkeep.engine.streams.items import Item

StartingAfter = Annotated[
    int | None, QueryParameter(ge=0, le=2**53 - 1, description="Only events with a greater `sequence_number`.")
]
AsStream = Annotated[bool, QueryParameter(description="Stream its events, from the first on.")]
Obfuscation = Annotated[bool | None, QueryParameter(description="Has no effect: nothing is padded.")]


@post(
    "/responses",
    status_code=200,
    operation_id="create_response",
    summary="Create a response",
    opt={PERMISSION: ("run", "approve")},
)
async def create_response(
    request: Request[Any, Any, Any], data: JSONBody[CreateResponse], principal: NamedDependency[Principal]
) -> Response[Any]:
    """The answer comes when the response has ended or waits for its caller; with `stream` as server-sent events, with
    `background` at once.
    """
    run_request = await read_run_request(principal, data)
    if data.store is False:
        if data.background:
            raise Refused("what is not stored cannot be fetched later: `background` needs `store`", "background")
        followed = await begin_unstored(principal, run_request)
    else:
        idempotency = await principal.read_idempotency()
        target = await find_target(principal, run_request, idempotency)
        if data.background and not data.stream:
            started = await begin_response(principal, target, run_request, idempotency)
            return JsonResponse(await _show(principal, str(started.response_id)))
        followed = await follow_response(principal, target, run_request, idempotency, is_quiet=not data.stream)
    if data.stream:
        return make_stream(principal, followed)
    return JsonResponse(await finish_response(principal, followed, request.receive))


async def _show(principal: Principal, name: str) -> Json:
    return (await build_response(principal, await find_response(principal, name))).snapshot()


def make_stream(principal: Principal, followed: FollowedResponse) -> Response[Any]:
    """The stream of a response."""
    builder = followed.builder

    def translate(item: Item) -> Written:
        return b"".join(map(frame_event, builder.read(item))), DONE if builder.is_over else None

    frames = write_frames(principal, followed.key, followed.items, translate)
    return make_event_stream(principal, frames)


@get("/responses/{response_id:str}", operation_id="get_response", summary="Get a response, or its stream again")
async def get_response(
    response_id: FromPath[str],
    principal: NamedDependency[Principal],
    stream: AsStream = False,
    starting_after: StartingAfter = None,
    include: Include = None,
    include_list: IncludeList = None,
    include_obfuscation: Obfuscation = None,
) -> Response[Any]:
    """From the log, at any time, from any server; numbers are the same each time."""
    found = await find_response(principal, response_id)
    if not stream:
        if starting_after is not None:
            raise Refused("`starting_after` is for streams: add `stream=true`", "starting_after")
        return JsonResponse((await build_response(principal, found)).snapshot())
    position = await principal.reader.find_position(found.key, found.run.id)
    builder = ResponseBuilder(found.id, after=-1 if starting_after is None else starting_after)
    items = principal.reader.follow_run(found.key, position)
    return make_stream(principal, FollowedResponse(found.key, builder, items))


@post(
    "/responses/{response_id:str}/cancel",
    status_code=200,
    operation_id="cancel_response",
    summary="Cancel a response; what it produced stays",
    opt={PERMISSION: ("run",)},
)
async def cancel_response(response_id: FromPath[str], principal: NamedDependency[Principal]) -> Response[Any]:
    found = await find_response(principal, response_id, to_change=True)
    # An earlier part of a run has ended, whatever the run does now.
    if found.id.part == count_parts(found.run) - 1:
        await principal.engine.runs.cancel(found.key, found.run.id, idempotency=await principal.read_idempotency())
    return JsonResponse(await _show(principal, response_id))


@delete(
    "/responses/{response_id:str}",
    status_code=200,
    operation_id="delete_response",
    summary="Make a response unfindable",
)
async def delete_response(response_id: FromPath[str], principal: NamedDependency[Principal]) -> dict[str, Any]:
    """The log keeps it, until it is redacted or its session deleted."""
    found = await find_response(principal, response_id, to_change=True)
    await principal.engine.runs.hide(found.key, found.run.id, found.id.part, by=principal.name)
    return {"id": response_id, "object": "response", "deleted": True}


@get(
    "/responses/{response_id:str}/input_items",
    operation_id="list_response_input_items",
    summary="List the input of a response",
)
async def list_response_input_items(
    response_id: FromPath[str],
    principal: NamedDependency[Principal],
    limit: ItemLimit = 20,
    order: Order = "desc",
    after: After = None,
    include: Include = None,
    include_list: IncludeList = None,
) -> dict[str, Any]:
    found = await find_response(principal, response_id)
    items = await list_input_items(principal, found)
    page = list_page(items, limit=limit, order=order, after=after, max_bytes=principal.reader.page_bytes)
    return {**page, "data": await put_back_files(principal.store, found.key, page["data"])}


ROUTES = [create_response, get_response, cancel_response, delete_response, list_response_input_items]
