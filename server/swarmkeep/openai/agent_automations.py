"""Automations of OpenAI's Agents API: what begins at set times, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from litestar import Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from swarmkeep.events.codec import Json, encode
from swarmkeep.events.errors import IdempotencyMismatch, TooLarge
from swarmkeep.events.records import RunOptions
from swarmkeep.events.sizes import is_heavy
from swarmkeep.http.auth import PERMISSION, Principal
from swarmkeep.http.bodies import Body, JsonResponse
from swarmkeep.openai.agent_events import show_agent, show_input_part
from swarmkeep.openai.agent_input import NewSession, read_messages, read_options, refuse_unserved
from swarmkeep.openai.fields import Metadata
from swarmkeep.openai.history import find_session
from swarmkeep.openai.items import show_input_content
from swarmkeep.openai.made_agents import choose_session_agent
from swarmkeep.openai.output_items import PageQuery
from swarmkeep.openai.problems import Refused, make_not_found
from swarmkeep.runs.automations import (
    Automation,
    Invocation,
    Maker,
    Schedule,
    Target,
    read_automation,
    read_invocation,
)
from swarmkeep.runs.identifiers import derive_id, make_id

# Bodies.

Name = Annotated[str, Meta(min_length=1, max_length=256)]
_MAX_BYTES = 64_000
"""Of an automation's input: it is stored with each invocation."""


class NewSessionTarget(NewSession, frozen=True, kw_only=True, tag_field="type", tag="new_session"):
    """Makes a session each time."""


class ExistingSessionTarget(Body, frozen=True, kw_only=True, tag_field="type", tag="existing_session"):
    """Tells a session something each time."""

    session_id: str
    instructions: Annotated[str, Meta(min_length=1)]


class CreateAutomation(Body, frozen=True, kw_only=True):
    """`POST agents/automations`."""

    type: Literal["periodic", "once"]
    name: Name
    target: NewSessionTarget | ExistingSessionTarget
    expression: str | UnsetType = UNSET
    timezone: str | UnsetType = UNSET
    run_at: int | UnsetType = UNSET
    metadata: Metadata | None = None


class UpdateAutomation(Body, frozen=True, kw_only=True):
    """`POST agents/automations/{id}`: what is not named stays."""

    name: Name | UnsetType = UNSET
    target: NewSessionTarget | ExistingSessionTarget | UnsetType = UNSET
    expression: str | UnsetType = UNSET
    timezone: str | UnsetType = UNSET
    run_at: int | UnsetType = UNSET
    metadata: Metadata | UnsetType = UNSET


async def _read_target(principal: Principal, data: NewSessionTarget | ExistingSessionTarget) -> Target:
    # What is too large to be kept is not read at all.
    if isinstance(data, NewSessionTarget) and is_heavy(data.input):
        raise _make_too_large()
    with _below("target"):
        if isinstance(data, ExistingSessionTarget):
            key, _ = await find_session(principal, data.session_id, to_change=True)
            told = [{"role": "user", "content": data.instructions}]
            shown = {"type": "existing_session", "session_id": key.id, "instructions": data.instructions}
            target = Target(messages=tuple(told), session_id=key.id, shown=shown)
        else:
            target = await _read_new_session(principal, data)
    if len(encode(target)) > _MAX_BYTES:
        raise _make_too_large()
    return target


def _make_too_large() -> TooLarge:
    return TooLarge(f"what an automation begins with may have at most {_MAX_BYTES} bytes")


async def _read_new_session(principal: Principal, data: NewSessionTarget) -> Target:
    refuse_unserved(data)
    agent = await choose_session_agent(principal, data)
    options = read_options(principal, agent.config, agent.name, agent.made)
    messages = read_messages(data.input, "input", principal.engine.limits.max_messages)
    labels = data.metadata or {}
    shown = {
        "type": "new_session",
        "agent": None if data.agent is None else _show_config(agent.name, options),
        "agent_id": agent.id if data.agent is None else None,
        "environment": {"type": "none"},
        "input": [_show_message(message) for message in messages],
        "metadata": labels,
        "vault_ids": [],
    }
    return Target(
        messages=tuple(messages), agent=agent.name, options=options, metadata=agent.label(labels), shown=shown
    )


@contextmanager
def _below(place: str) -> Iterator[None]:
    """Name fields by where they stand in the body."""
    try:
        yield
    except Refused as error:
        param = place if error.param is None else f"{place}.{error.param}"
        raise Refused(str(error), param, code=error.error_code, status=error.status) from None


def _show_config(name: str, options: RunOptions) -> Json:
    shown = show_agent(name, options=options)
    return {field: value for field, value in shown.items() if field not in ("id", "name")}


def _show_message(message: Json) -> Json:
    parts = [show_input_part(part) for part in show_input_content(message.get("content"))]
    return {"type": "message", "role": "user", "content": parts}


def _read_schedule(
    known: Schedule | None, is_once: bool, expression: str | UnsetType, timezone: str | UnsetType, run_at: Any
) -> Schedule:
    """The schedule, with what is given in the place of what is known."""
    others = {"expression": expression, "timezone": timezone} if is_once else {"run_at": run_at}
    for name, value in others.items():
        if value is not UNSET:
            raise Refused(f"`{name}` is for automations of the other type", name)
    given = {"run_at": run_at} if is_once else {"expression": expression, "timezone": timezone}
    chosen = {name: value for name, value in given.items() if value is not UNSET}
    missing = next((name for name in given if known is None and name not in chosen), None)
    if missing is not None:
        raise Refused(f"give `{missing}`", missing)
    return replace(known or Schedule(), **chosen)


# What clients are shown.


def _show_automation(automation: Automation) -> Json:
    schedule = automation.schedule
    when = (
        {"type": "periodic", "expression": schedule.expression, "timezone": schedule.timezone}
        if schedule.run_at is None
        else {"type": "once", "run_at": schedule.run_at}
    )
    return {
        "id": automation.id,
        "object": "agent.automation",
        "name": automation.name,
        "created_at": automation.created_at,
        "created_by": {"type": "developer"},
        "metadata": automation.metadata,
        "status": automation.status,
        "pause_reason": automation.pause_reason,
        "target": automation.target.shown,
        **when,
    }


def _show_invocation(invocation: Invocation) -> Json:
    automation, error = invocation.automation, invocation.error
    is_manual = invocation.scheduled_at is None
    source = {"type": "manual"} if is_manual else {"type": "automation", "automation": _show_automation(automation)}
    return {
        "id": f"{automation.id}.{invocation.number}",
        "object": "agent.automation.invocation",
        "automation_id": automation.id,
        "created_at": invocation.created_at,
        "scheduled_at": invocation.scheduled_at,
        "status": invocation.status,
        "session_id": invocation.session_id or automation.target.session_id,
        "source": source,
        "error": None if error is None else {"code": error.code, "message": error.message},
        "skip_reason": invocation.skip_reason,
    }


# Routes.

_AUTOMATIONS = "/agents/automations"
_AUTOMATION = f"{_AUTOMATIONS}/{{automation_id:str}}"
_RUN: dict[str, Any] = {PERMISSION: ("run",)}


def _identify_maker(principal: Principal) -> Maker:
    """The caller, who speaks as a user. Raises Forbidden."""
    principal.refuse_as_user()
    return Maker(principal.name, None if principal.api_key is None else principal.api_key.id)


async def _find(principal: Principal, automation_id: str) -> Automation:
    stored = await principal.store.find_automation(principal.tenant, automation_id)
    if stored is None:
        raise make_not_found("automation", automation_id)
    return read_automation(stored)


async def _change(
    principal: Principal, automation_id: str, change: Callable[[Automation], Automation]
) -> Response[Any]:
    _identify_maker(principal)
    changed = await principal.engine.automations.change(principal.tenant, automation_id, change)
    if changed is None:
        raise make_not_found("automation", automation_id)
    return JsonResponse(_show_automation(changed))


@post(_AUTOMATIONS, status_code=200, summary="Have runs begin at set times", opt=_RUN)
async def create_agent_automation(
    data: JSONBody[CreateAutomation], principal: NamedDependency[Principal]
) -> Response[Any]:
    """`periodic` ones have a cron `expression` and a `timezone`, those that run `once` a time `run_at`."""
    maker, request = _identify_maker(principal), await principal.read_idempotency()
    schedule = _read_schedule(None, data.type == "once", data.expression, data.timezone, data.run_at)
    automation_id = make_id("auto") if request is None else derive_id("auto", f"{principal.tenant}/{request.key}")
    automation = Automation(
        id=automation_id,
        name=data.name,
        schedule=schedule,
        target=await _read_target(principal, data.target),
        metadata=dict(data.metadata or {}),
        created_at=int((await principal.engine.automations.read_now()).timestamp()),
        maker=maker,
        request=request,
    )
    found, _ = await principal.engine.automations.make(principal.tenant, automation)
    if request is not None and found.request != request:
        raise IdempotencyMismatch(request.key)
    return JsonResponse(_show_automation(found))


@get(_AUTOMATIONS, summary="List the automations, the latest first")
async def list_agent_automations(
    principal: NamedDependency[Principal],
    page: NamedDependency[PageQuery],
    session_id: Annotated[str | None, QueryParameter(description="Only those that tell this session.")] = None,
) -> Response[Any]:
    every = [read_automation(stored) for stored in await principal.store.list_automations(principal.tenant)]
    wanted = [each for each in every if session_id in (None, each.target.session_id)]
    wanted.sort(key=lambda each: (each.created_at, each.id))
    return JsonResponse(page.select([_show_automation(each) for each in wanted]))


@get(_AUTOMATION, summary="Get an automation")
async def get_agent_automation(automation_id: FromPath[str], principal: NamedDependency[Principal]) -> Response[Any]:
    return JsonResponse(_show_automation(await _find(principal, automation_id)))


@post(_AUTOMATION, status_code=200, summary="Change an automation", opt=_RUN)
async def update_agent_automation(
    automation_id: FromPath[str], data: JSONBody[UpdateAutomation], principal: NamedDependency[Principal]
) -> Response[Any]:
    """What has become due keeps the input that it had then. The caller answers for later runs."""
    maker = _identify_maker(principal)
    target = UNSET if data.target is UNSET else await _read_target(principal, data.target)

    def change(known: Automation) -> Automation:
        is_once = known.schedule.run_at is not None
        if is_once and known.status == "completed" and data.run_at is not UNSET:
            raise Refused("its time has come: make another automation", "run_at")
        if target is not UNSET and (target.session_id is None) != (known.target.session_id is None):
            raise Refused("a target keeps its type", "target.type")
        return replace(
            known,
            name=known.name if data.name is UNSET else data.name,
            metadata=known.metadata if data.metadata is UNSET else data.metadata,
            target=known.target if target is UNSET else target,
            schedule=_read_schedule(known.schedule, is_once, data.expression, data.timezone, data.run_at),
            maker=maker,
        )

    return await _change(principal, automation_id, change)


@delete(_AUTOMATION, status_code=200, summary="Delete an automation, not its sessions")
async def delete_agent_automation(automation_id: FromPath[str], principal: NamedDependency[Principal]) -> Response[Any]:
    if not await principal.store.delete_automation(principal.tenant, automation_id):
        raise make_not_found("automation", automation_id)
    return JsonResponse({"id": automation_id, "object": "agent.automation.deleted", "deleted": True})


@post(f"{_AUTOMATION}/pause", status_code=200, summary="Begin no runs by themselves", opt=_RUN)
async def pause_agent_automation(automation_id: FromPath[str], principal: NamedDependency[Principal]) -> Response[Any]:
    def pause(known: Automation) -> Automation:
        return replace(known, status="paused", pause_reason=None) if known.status == "active" else known

    return await _change(principal, automation_id, pause)


@post(f"{_AUTOMATION}/resume", status_code=200, summary="Begin runs again, from the next time on", opt=_RUN)
async def resume_agent_automation(automation_id: FromPath[str], principal: NamedDependency[Principal]) -> Response[Any]:
    """One that was to run once, at a time that has passed meanwhile, does so now."""
    maker = _identify_maker(principal)

    def resume(known: Automation) -> Automation:
        is_paused = known.status == "paused"
        return replace(known, status="active", pause_reason=None, maker=maker) if is_paused else known

    return await _change(principal, automation_id, resume)


_INVOCATIONS = f"{_AUTOMATION}/invocations"


@post(_INVOCATIONS, status_code=200, summary="Have an automation begin a run now", opt=_RUN)
async def create_agent_automation_invocation(
    automation_id: FromPath[str], principal: NamedDependency[Principal]
) -> Response[Any]:
    maker, request = _identify_maker(principal), await principal.read_idempotency()
    made = await principal.engine.automations.invoke(principal.tenant, automation_id, maker, request)
    if made is None:
        raise make_not_found("automation", automation_id)
    return JsonResponse(_show_invocation(made))


@get(_INVOCATIONS, summary="List the last times of an automation")
async def list_agent_automation_invocations(
    automation_id: FromPath[str], principal: NamedDependency[Principal], page: NamedDependency[PageQuery]
) -> Response[Any]:
    await _find(principal, automation_id)
    stored = await principal.store.list_invocations(principal.tenant, automation_id)
    shown = [_show_invocation(read_invocation(each)) for each in stored]
    return JsonResponse(page.select(shown))


@get(f"{_INVOCATIONS}/{{invocation_id:str}}", summary="Get one time of an automation")
async def get_agent_automation_invocation(
    automation_id: FromPath[str], invocation_id: FromPath[str], principal: NamedDependency[Principal]
) -> Response[Any]:
    await _find(principal, automation_id)
    stored = await principal.store.list_invocations(principal.tenant, automation_id)
    shown = (_show_invocation(read_invocation(each)) for each in stored)
    found = next((each for each in shown if each["id"] == invocation_id), None)
    if found is None:
        raise make_not_found("invocation", invocation_id)
    return JsonResponse(found)


ROUTES = [
    create_agent_automation,
    list_agent_automations,
    get_agent_automation,
    update_agent_automation,
    delete_agent_automation,
    pause_agent_automation,
    resume_agent_automation,
    create_agent_automation_invocation,
    list_agent_automation_invocations,
    get_agent_automation_invocation,
]
