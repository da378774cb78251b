"""Agents that clients of OpenAI's Agents API make: an agent of this server, and what is asked of it besides.

Such an agent is no other one for the loop. Its instructions, functions and settings are options of a run: they are
recorded in the run's first event, with the agent's id and version. So a session goes on in any process, and its history
is replayed and verified, without the agent; a change or a deletion is for sessions to come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from swarmkeep.events.codec import Json, decode, encode_text
from swarmkeep.events.errors import IdempotencyMismatch, TooLarge, quote
from swarmkeep.events.sizes import is_heavy
from swarmkeep.http.auth import Principal
from swarmkeep.http.bodies import Body, JsonResponse
from swarmkeep.http.routes.agents import AgentName, read_name
from swarmkeep.http.threads import run_aside
from swarmkeep.openai.agent_events import show_agent, show_function
from swarmkeep.openai.agent_input import (
    MADE_LABEL,
    AgentConfig,
    NewSession,
    choose_agent,
    find_served,
    read_options,
)
from swarmkeep.openai.fields import Metadata, ReasoningOptions, TextOptions
from swarmkeep.openai.output_items import PageQuery
from swarmkeep.openai.problems import PREFIX, ModelNotFound, Refused, make_not_found
from swarmkeep.runs.identifiers import derive_id, make_id
from swarmkeep.store.made_agents import KEPT_VERSIONS, MadeAgent
from swarmkeep.store.records import utc_now

_KIND = "agent"
_MAX_BYTES = 64_000
_FEW = 3
"""Agents whose definitions are read and shown where a request is answered."""

# Bodies.

_Name = Annotated[str, Meta(max_length=256)]


class CreateAgent(AgentConfig, frozen=True, kw_only=True):
    """`POST agents`. `model` names an agent of this server."""

    model: str
    name: _Name | None = None
    metadata: Metadata | None = None


class UpdateAgent(Body, frozen=True, kw_only=True):
    """What is absent stays."""

    model: str | UnsetType = UNSET
    instructions: str | UnsetType | None = UNSET
    tools: list[Json] | UnsetType | None = UNSET
    reasoning: ReasoningOptions | UnsetType | None = UNSET
    text: TextOptions | UnsetType | None = UNSET
    service_tier: Literal["auto", "default"] | UnsetType | None = UNSET
    name: _Name | UnsetType | None = UNSET
    metadata: Metadata | UnsetType | None = UNSET

    multi_agent: Json | UnsetType | None = UNSET
    compaction: None = None
    experimental: None = None


class _Definition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an agent is to be, as it is stored."""

    config: AgentConfig
    name: str | None = None
    metadata: dict[str, str] = {}


# What sessions are made of.


class ChosenAgent(msgspec.Struct, frozen=True, kw_only=True):
    """The agent of a session to be made: its `name` here, and what is asked of it; `made` if it is of a client's."""

    name: str
    config: AgentConfig | None
    made: Json | None = None

    @property
    def id(self) -> str:
        return self.name if self.made is None else self.made["id"]

    def label(self, metadata: Metadata | None) -> Json:
        """The metadata of a session, by which lists find those of a client's agent."""
        return {**(metadata or {}), **({} if self.made is None else {MADE_LABEL: self.made["id"]})}


def is_made(principal: Principal, agent_id: str) -> bool:
    """Tell if an id is that of a client's agent, which may be gone, and no name."""
    return agent_id.startswith(f"{_KIND}_") and find_served(principal, agent_id) is None


async def choose_session_agent(principal: Principal, data: NewSession) -> ChosenAgent:
    """The agent that a session begins with. What `agent` says of a client's agent takes the place of what that has.

    Raises Refused.
    """
    stored = None
    if data.agent_id is not None and find_served(principal, data.agent_id) is None:
        stored = await principal.store.find_made_agent(principal.tenant, data.agent_id)
    if stored is None:
        return ChosenAgent(name=choose_agent(principal, data), config=data.agent)
    known = _read_definition(stored)
    config = known.config
    if data.agent is not None:
        given = {name: getattr(data.agent, name) for name in AgentConfig.__struct_fields__}
        config = replace(config, **{name: value for name, value in given.items() if value is not None})
    made = {"id": stored.id, "version": stored.version, "name": known.name}
    return ChosenAgent(
        name=choose_agent(principal, replace(data, agent=config, agent_id=None)), config=config, made=made
    )


# What clients are shown.


def _read_definition(stored: MadeAgent) -> _Definition:
    return decode(stored.data, _Definition)


def _show_served(principal: Principal, name: str) -> Json:
    registry = principal.engine.registry
    agent = registry.get(name)
    # Agents of files are not dated.
    shown = show_agent(agent.name, asks=bool(registry.list_asked(agent)))
    instructions = agent.instructions if isinstance(agent.instructions, str) else None
    return {**shown, "instructions": instructions, "object": "agent", "created_at": 0, "updated_at": 0, "metadata": {}}


def _show_made(principal: Principal, stored: MadeAgent) -> Json:
    known, registry = _read_definition(stored), principal.engine.registry
    config, model = known.config, known.config.model or ""
    text = config.text or TextOptions()
    shown = show_agent(model, asks=model in registry and bool(registry.list_asked(registry.get(model))))
    effort = None if config.reasoning is None else config.reasoning.effort
    return {
        **shown,
        "id": stored.id,
        "object": "agent",
        "name": known.name,
        "version": stored.version,
        "instructions": config.instructions,
        "reasoning": {**shown["reasoning"], "effort": effort},
        "text": {"format": text.format or {"type": "text"}, "verbosity": text.verbosity or "medium"},
        "tools": [show_function(tool) for tool in config.tools or ()],
        "created_at": stored.created_at,
        "updated_at": stored.updated_at,
        "metadata": known.metadata,
    }


# Routes.


@get("/agents", summary="List the agents, those that clients made first")
async def list_openai_agents(principal: NamedDependency[Principal], page: NamedDependency[PageQuery]) -> Response[Any]:
    served = principal.engine.registry.names
    made = await principal.store.list_made_agents(principal.tenant)
    ids = [{"id": name} for name in (*reversed(served), *made)]
    selected = page.select(ids)
    wanted = [one["id"] for one in selected["data"]]
    found = await principal.store.read_made_agents(principal.tenant, [one for one in wanted if one not in served])

    def show() -> Json:
        return page.take(
            _show_made(principal, found[one]) if one in found else _show_served(principal, one)
            for one in wanted
            if one in found or one in served
        )

    shown = await run_aside(len(found) > _FEW, show)
    return JsonResponse({**shown, "has_more": shown["has_more"] or selected["has_more"]})


@get("/agents/{name:path}", summary="Get an agent")
async def get_openai_agent(
    request: Request[Any, Any, Any],
    principal: NamedDependency[Principal],
    name: AgentName,
    version: Annotated[
        int | None, QueryParameter(ge=1, lt=2**31, description="As it was; only of agents that clients made.")
    ] = None,
) -> Response[Any]:
    wanted = read_name(request, f"{PREFIX}/agents/")
    if find_served(principal, wanted) is not None and version is None:
        return JsonResponse(_show_served(principal, wanted))
    stored = await principal.store.find_made_agent(principal.tenant, wanted, version)
    if stored is None:
        raise await _make_absent(principal, wanted)
    return JsonResponse(_show_made(principal, stored))


async def _make_absent(principal: Principal, name: str) -> Refused:
    """Say if it is the version only that is not there."""
    if find_served(principal, name) is not None:
        return Refused(
            "agents of files have no versions: ask without `version`", "version", code="not_found", status=404
        )
    latest = await principal.store.find_made_agent(principal.tenant, name)
    if latest is None:
        return make_not_found("agent", name)
    known = f"the latest is {latest.version}, and the last {KEPT_VERSIONS} are kept"
    said = f"there is no such version of agent {quote(name)}; {known}"
    return Refused(said, "version", code="not_found", status=404)


@post("/agents", status_code=200, summary="Make an agent of one that is served")
async def create_openai_agent(data: JSONBody[CreateAgent], principal: NamedDependency[Principal]) -> Response[Any]:
    """`instructions` follow those of the agent that `model` names, and `tools`, functions of yours, are beside its
    own."""
    request = await principal.read_idempotency()
    given = {name: getattr(data, name) for name in AgentConfig.__struct_fields__}
    definition = _Definition(config=AgentConfig(**given), name=data.name, metadata=data.metadata or {})
    now = int(utc_now().timestamp())
    made = MadeAgent(
        tenant=principal.tenant,
        id=make_id(_KIND) if request is None else derive_id(_KIND, f"{principal.tenant}/{request.key}"),
        data=await _write_definition(principal, definition),
        created_at=now,
        updated_at=now,
        request="" if request is None else request.digest,
    )
    found = await principal.store.add_made_agent(made, by=principal.name)
    if request is not None and found.request != request.digest:
        raise IdempotencyMismatch(request.key)
    return JsonResponse(_show_made(principal, found))


async def _write_definition(principal: Principal, definition: _Definition) -> str:
    """Raises Refused, InvalidRequest, TooLarge for what no session could begin with now."""
    config = definition.config
    answer_format = None if config.text is None else config.text.format
    is_long = is_heavy(config.tools, config.instructions, answer_format)
    return await run_aside(is_long, _check_definition, principal, definition)


def _check_definition(principal: Principal, definition: _Definition) -> str:
    data = encode_text(definition)
    if len(data.encode()) > _MAX_BYTES:
        raise TooLarge(f"what an agent is to be like may have at most {_MAX_BYTES} bytes")
    name = find_served(principal, definition.config.model or "")
    if name is None:
        raise ModelNotFound(definition.config.model or "", principal.engine.registry.names)
    read_options(principal, definition.config, name, place="")
    return data


def _refuse_served(principal: Principal, name: str) -> None:
    if find_served(principal, name) is not None:
        raise Refused("this agent is in a Python file of the server: change it there", code="not_served", status=501)


@post("/agents/{name:path}", status_code=200, summary="Make a version of an agent")
async def update_openai_agent(
    request: Request[Any, Any, Any], data: JSONBody[UpdateAgent], principal: NamedDependency[Principal], name: AgentName
) -> Response[Any]:
    """Sessions that there are keep the version that they began with."""
    wanted = read_name(request, f"{PREFIX}/agents/")
    _refuse_served(principal, wanted)
    fields = UpdateAgent.__struct_fields__
    given = {field: value for field in fields if (value := getattr(data, field)) is not UNSET}
    own = {field: given.pop(field) for field in ("name", "metadata") if field in given}

    own = {field: {} if field == "metadata" and value is None else value for field, value in own.items()}
    while True:
        known = await principal.store.find_made_agent(principal.tenant, wanted)
        if known is None:
            raise make_not_found("agent", wanted)
        before = _read_definition(known)
        after = replace(before, config=replace(before.config, **given), **own)
        written = await _write_definition(principal, after)
        if written == known.data:
            return JsonResponse(_show_made(principal, known))
        now = int(utc_now().timestamp())
        changed = await principal.store.change_made_agent(known, written, at=now, by=principal.name)
        # Another caller may have been faster; each time one of them has made a version.
        if changed is not None:
            return JsonResponse(_show_made(principal, changed))


@delete("/agents/{name:path}", status_code=200, summary="Delete an agent that a client made, not its sessions")
async def delete_openai_agent(
    request: Request[Any, Any, Any], principal: NamedDependency[Principal], name: AgentName
) -> Response[Any]:
    """Its sessions go on: what they need of it is in their logs."""
    wanted = read_name(request, f"{PREFIX}/agents/")
    _refuse_served(principal, wanted)
    if not await principal.store.delete_made_agent(principal.tenant, wanted, by=principal.name):
        raise make_not_found("agent", wanted)
    return JsonResponse({"id": wanted, "object": "agent.deleted", "deleted": True})


ROUTES: Sequence[Any] = [
    list_openai_agents,
    get_openai_agent,
    create_openai_agent,
    update_openai_agent,
    delete_openai_agent,
]
