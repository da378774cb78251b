"""The OpenAPI document of `/openai/v1`, with the shapes of the installed `openai` package."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any

from litestar import Litestar, Response, Router, get
from litestar.di import Provide
from litestar.types import ControllerRouterHandler
from pydantic import TypeAdapter

from swarmkeep.events.codec import Json, encode
from swarmkeep.http.auth import identify_principal, require_key
from swarmkeep.http.bodies import JsonResponse
from swarmkeep.http.openapi import make_openapi_config
from swarmkeep.http.routers import OwnRouter
from swarmkeep.openai import agent_automations, agents, chat, conversations, responses
from swarmkeep.openai.output_items import read_page_query
from swarmkeep.openai.problems import PREFIX

DOCUMENT_PATH = "/openapi.json"

_DESCRIPTION = """\
OpenAI's API for the agents of this server: a model is an agent, a conversation a session, a response or turn a run.

Errors are `{"error": {"message", "type", "param", "code"}}`. A response that failed is not an HTTP error: it has the
status `failed`. Streams are server-sent events of the Open Responses specification.
"""

_ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}
_MODEL: Json = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "model"},
        "created": {"type": "integer"},
        "owned_by": {"type": "string"},
    },
}
# The client's type has no place for the messages of users, which the specification has here.
_COMPACTED: Json = {
    "type": "object",
    "required": ["id", "object", "created_at", "output", "usage"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "response.compaction"},
        "created_at": {"type": "integer"},
        "output": {"type": "array", "items": {"type": "object", "required": ["id", "type"]}},
        "usage": {"type": "object"},
    },
}
# A server-sent event; those of chat completions have no name.
_FRAME: Json = {
    "type": "object",
    "required": ["data"],
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
}

_ANSWERS = {
    "create_chat_completion": "ChatCompletion",
    "count_input_tokens": "InputTokenCountResponse",
    "compact_response": "CompactedResponse",
    "create_response": "Response",
    "get_response": "Response",
    "cancel_response": "Response",
    "create_conversation": "Conversation",
    "get_conversation": "Conversation",
    "update_conversation": "Conversation",
    "delete_item": "Conversation",
    "delete_conversation": "ConversationDeletedResource",
    "list_items": "ConversationItemList",
    "create_items": "ConversationItemList",
    "get_model": "Model",
    "get_openai_agent": "Agent",
    "create_openai_agent": "Agent",
    "update_openai_agent": "Agent",
    "create_agent_session": "AgentSession",
    "get_agent_session": "AgentSession",
    "update_agent_session": "AgentSession",
    "get_agent_turn": "Turn",
    "get_agent_subagent": "Subagent",
    "get_agent_subagent_turn": "Turn",
    "get_agent_artifact": "SessionArtifact",
    "get_agent_automation_invocation": "AutomationInvocation",
    "create_agent_automation_invocation": "AutomationInvocation",
}

_DEPENDENCIES = {"page": Provide(read_page_query, sync_to_thread=False)}

# Those that answer with events, if their bodies say so or in any case.
_STREAMS = ("create_response", "create_chat_completion", "create_agent_session", "stream_agent_session_events")

_BINARY = ("get_agent_artifact_content",)


def make_document(routes: Sequence[ControllerRouterHandler]) -> bytes:
    """The document of these routes. Takes a second: the shapes of all kinds of items are in it."""
    app = Litestar(
        route_handlers=[OwnRouter(PREFIX, route_handlers=routes)],
        dependencies={"principal": Provide(identify_principal, sync_to_thread=False), **_DEPENDENCIES},
        logging_config=None,
        openapi_config=make_openapi_config("Swarmkeep for OpenAI's clients", _DESCRIPTION),
    )
    document: Json = app.openapi_schema.to_schema()
    schemas = document["components"].setdefault("schemas", {})
    shapes = {"Model": _MODEL, "CompactedResponse": _COMPACTED, **_list_shapes(schemas)}
    for path in document["paths"].values():
        for operation in path.values():
            _describe_answers(operation, shapes)
    schemas |= {"Error": _ERROR, "Model": _MODEL}
    return encode(document)


def _list_shapes(schemas: Json) -> Json:
    """References to the shapes of answers, whose definitions are added to `schemas`."""
    from openai.types.beta import Agent, AgentSession, Subagent
    from openai.types.beta.agents.automations import AutomationInvocation
    from openai.types.beta.agents.sessions import SessionArtifact, Turn
    from openai.types.chat import ChatCompletion
    from openai.types.conversations import Conversation, ConversationDeletedResource, ConversationItemList
    from openai.types.responses import InputTokenCountResponse
    from openai.types.responses import Response as OpenAIResponse

    shapes: Json = {}
    for shape in (
        OpenAIResponse,
        InputTokenCountResponse,
        ChatCompletion,
        Conversation,
        ConversationDeletedResource,
        ConversationItemList,
        Agent,
        AgentSession,
        Subagent,
        SessionArtifact,
        AutomationInvocation,
        Turn,
    ):
        described = TypeAdapter(shape).json_schema(ref_template="#/components/schemas/{model}", mode="serialization")
        schemas |= described.pop("$defs", {})
        schemas[shape.__name__] = described
        shapes[shape.__name__] = {"$ref": f"#/components/schemas/{shape.__name__}"}
    return shapes


def _describe_answers(operation: Json, shapes: Json) -> None:
    answers = operation["responses"]
    shape = shapes.get(_ANSWERS.get(operation.get("operationId", ""), ""), {"type": "object"})
    for status, answer in answers.items():
        ref = shape if status.startswith("2") else {"$ref": "#/components/schemas/Error"}
        answer["content"] = {"application/json": {"schema": ref}}
    if operation.get("operationId") in _BINARY:
        answers["200"]["content"] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    answers["4XX"] = {
        "description": "The request was refused",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    if any(parameter.get("name") == "stream" for parameter in operation.get("parameters", ())) or (
        operation.get("operationId") in _STREAMS
    ):
        answers["200"]["content"]["text/event-stream"] = {"schema": _FRAME}


def make_document_route(routes: Sequence[ControllerRouterHandler]) -> ControllerRouterHandler:
    """The route that serves the document, which is made when it is first asked for."""
    made = functools.cache(functools.partial(make_document, routes))

    @get(DOCUMENT_PATH, operation_id="get_openai_document", include_in_schema=False)
    async def get_document() -> Response[Any]:
        return JsonResponse(await asyncio.to_thread(made))

    return get_document


# The routes below `/openai/v1`.

ROUTES: list[ControllerRouterHandler] = [
    *responses.MODELS_ROUTES,
    *chat.ROUTES,
    *responses.ROUTES,
    *responses.INPUT_TOKENS_ROUTES,
    *responses.COMPACTION_ROUTES,
    *conversations.ROUTES,
    *agents.ROUTES,
    *agent_automations.ROUTES,
]


def make_router() -> Router:
    """They are not in `/openapi.json`: they have a document of their own."""
    return OwnRouter(
        "/",
        route_handlers=[
            OwnRouter(
                PREFIX,
                guards=[require_key],
                route_handlers=[*ROUTES, *responses.SOCKET_ROUTES, *agents.UNSERVED_ROUTES],
                dependencies=_DEPENDENCIES,
                include_in_schema=False,
            ),
            OwnRouter(PREFIX, route_handlers=[make_document_route(ROUTES)]),
        ],
    )
