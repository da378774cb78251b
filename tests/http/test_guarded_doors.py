"""Every door to a guarded agent's model, and what of it the agent's input guardrails look at: the table of the docs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.server import RunningServer, scripted, start_server
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

Json = dict[str, Any]
DOCS = Path(__file__).parents[2] / "docs" / "agents.md"
WORD = "swordfish"
SAID = f"It is {WORD}."
USER = {"role": "user", "content": "Hi."}
CALL = {"id": "c1", "type": "function", "function": {"name": "tell", "arguments": '{"word": "herring"}'}}
ESCAPED = '{"word": "sword\\u0066ish"}'
SECRET_CALL = {**CALL, "function": {"name": "tell", "arguments": ESCAPED}}
PLAIN_TOOL = {"type": "function", "function": {"name": "tell", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel(default=lambda request: "Fine.") as scripted_model:
        yield scripted_model


@pytest.fixture
async def service(ready_url: str, model: ScriptedModel) -> AsyncIterator[RunningServer]:
    async with start_server(scripted(ready_url, model, agents=["tests.http.guarded_team"])) as running:
        yield running


class Doors:
    """Sends things to the guarded agent. Each door ends with a harmless question in the same conversation."""

    def __init__(self, service: RunningServer, model: ScriptedModel) -> None:
        self.service = service
        self.model = model

    async def begin(self, **body: Any) -> str:
        return await self.service.session(agent="Guarded", **body)

    async def go_on(self, session: str) -> None:
        for _ in range(2):
            assert (await self.service.run(session, "How are you?"))["status"] == "completed"

    async def run(self, given: Any = "Hi.", **options: Any) -> None:
        session = await self.begin()
        await self.service.run(session, given, **options)
        await self.go_on(session)

    async def begin_with(self, *messages: Json) -> None:
        await self.go_on(await self.begin(messages=list(messages)))

    async def add(self, *messages: Json) -> None:
        session = await self.begin()
        await self.service.run(session)
        answer = await self.service.post(f"{session}/messages", {"messages": list(messages)})
        assert answer.status_code == 200, answer.text
        await self.go_on(session)

    async def add_items(self, *items: Json) -> None:
        made = (await self.service.post("/openai/v1/conversations", {})).json()["id"]
        answer = await self.service.post(f"/openai/v1/conversations/{made}/items", {"items": list(items)})
        assert answer.status_code == 200, answer.text
        for _ in range(2):
            await self.respond("How are you?", conversation=made)

    async def chat(self, *messages: Json, **options: Any) -> None:
        for store in (True, False):
            body = {"model": "Guarded", "messages": [*messages, USER], "store": store, **options}
            answer = await self.service.post("/openai/v1/chat/completions", body)
            assert answer.status_code == 200, answer.text

    async def respond(self, given: Any = "Hi.", **options: Any) -> Json:
        for store in (False, True):
            if store or "conversation" not in options:
                body = {"model": "Guarded", "input": given, "store": store, **options}
                answer = await self.service.post("/openai/v1/responses", body)
                assert answer.status_code == 200, answer.text
        made: Json = answer.json()
        if "conversation" not in options:
            later = {"model": "Guarded", "input": "How are you?", "previous_response_id": made["id"]}
            assert (await self.service.post("/openai/v1/responses", later)).json()["status"] == "completed"
        return made

    async def agui(self, *messages: Json, **options: Any) -> None:
        """Two runs of an AG-UI client, which sends all that it has each time."""
        sent: list[Json] = []
        for said in ([*messages, USER], [{**USER, "content": "How are you?"}]):
            sent += [{"id": f"m{len(sent) + place}", **message} for place, message in enumerate(said)]
            body = {"threadId": "t", "runId": f"r{len(sent)}", "messages": sent, **options}
            answer = await self.service.post("/agui/Guarded", body)
            assert answer.status_code == 200, answer.text

    async def deliver_to_agui(self, **answer: Any) -> None:
        self.model.call("tell", {"word": "herring"}, id="c1")
        begun = {"threadId": "t", "runId": "r0", "messages": [{"id": "m0", **USER}]}
        await self.service.post("/agui/Guarded", begun | {"tools": [{"name": "tell", "description": ""}]})
        result = {"id": "t1", "role": "tool", "toolCallId": "c1", "content": SAID, **answer}
        for name, messages in (("r1", [result]), ("r2", [{"id": "m1", **USER}])):
            sent = await self.service.post("/agui/Guarded", {"threadId": "t", "runId": name, "messages": messages})
            assert sent.status_code == 200, sent.text

    async def deliver(self, **result: Any) -> None:
        self.model.call("tell", {"word": "herring"}, id="c1")
        session = await self.begin()
        run = await self.service.run(session, tools=[PLAIN_TOOL])
        body = {"tool_results": [{"tool_call_id": "c1", "content": SAID, **result}]}
        answer = await self.service.post(f"{session}/runs/{run['id']}/resume", body)
        assert answer.status_code == 200, answer.text
        await self.go_on(session)

    async def compact(self, instructions: str | None = None, **body: Any) -> None:
        session = await self.begin(**body)
        asked = {"keep_turns": 1} if instructions is None else {"keep_turns": 1, "instructions": instructions}
        answer = await self.service.post(f"{session}/compact", asked)
        assert (answer.status_code, WORD in answer.text) == (400, False), answer.text
        await self.go_on(session)

    async def compact_items(self, given: Any, **options: Any) -> None:
        body = {"model": "Guarded", "input": given, **options}
        await self.service.post("/openai/v1/responses/compact", body)

    async def recall(self) -> None:
        self.model.call("recall", {})
        await self.run()

    async def take_over(self) -> None:
        session = await self.begin()
        await self.service.run(session)
        assert (await self.service.post(f"{session}/takeover", {})).status_code in (200, 201)
        assert (await self.service.post(f"{session}/answer", {"content": SAID})).status_code in (200, 201)
        assert (await self.service.post(f"{session}/handback", {})).status_code in (200, 201)
        await self.go_on(session)


def tool_with(**function: Any) -> Json:
    return {"type": "function", "function": {**PLAIN_TOOL["function"], **function}}  # type: ignore[dict-item]


def schema_with(**schema: Any) -> Json:
    return {"type": "object", "properties": {"q": {"type": "string", **schema}}}


ANSWER = {"role": "assistant", "content": SAID}
MADE_UP = [USER, {"role": "assistant", "content": None, "tool_calls": [SECRET_CALL]}]
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "ok"}
SECRET_RESULT = {**RESULT, "content": SAID}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
AGUI_CALL = {"role": "assistant", "content": None, "toolCalls": [CALL]}
MADE_UP_IN_AGUI = [USER, {**AGUI_CALL, "toolCalls": [SECRET_CALL]}, {**RESULT, "toolCallId": "c1"}]
CALL_ITEM = {"type": "function_call", "call_id": "c1", "name": "tell", "arguments": '{"word": "herring"}'}
OUTPUT_ITEM = {"type": "function_call_output", "call_id": "c1", "output": SAID}
MCP_ITEM = {"type": "mcp_call", "id": "mcp_1", "server_label": "x", "name": "tell", "arguments": "{}", "output": SAID}
LONG = [USER, {"role": "assistant", "content": "Hello."}] * 6

Door = Callable[[Doors], Awaitable[Any]]
CHECKED: list[tuple[str, list[Door]]] = [
    (
        "the input of a run, a response or a chat completion, of every role",
        [
            lambda doors: doors.run(SAID),
            lambda doors: doors.run([{"role": "developer", "content": SAID}, USER]),
            lambda doors: doors.run([ANSWER, USER]),
            lambda doors: doors.run([{**USER, "name": WORD}]),
            lambda doors: doors.respond([{"role": "assistant", "content": SAID}, USER]),
            lambda doors: doors.chat({"role": "user", "content": SAID}),
            lambda doors: doors.chat({"role": "user", "content": [{"type": "text", "text": ESCAPED}]}),
            lambda doors: doors.agui({"role": "user", "content": SAID}),
            lambda doors: doors.agui({"role": "system", "content": SAID}),
        ],
    ),
    (
        "messages that a session or conversation begins with, and those added later",
        [
            lambda doors: doors.begin_with({"role": "user", "content": SAID}),
            lambda doors: doors.begin_with(USER, ANSWER),
            lambda doors: doors.begin_with(USER, ANSWER, *LONG),
            lambda doors: doors.agui(USER, ANSWER),
            lambda doors: doors.add({"role": "user", "content": SAID}),
            lambda doors: doors.add(ANSWER),
            lambda doors: doors.add_items({"type": "message", **ANSWER}),
            lambda doors: doors.add_items({"type": "message", "role": "user", "content": SAID}),
        ],
    ),
    ("earlier answers in a chat completion", [lambda doors: doors.chat(USER, ANSWER)]),
    (
        "calls and results that a caller brings along, also as `mcp_call` items",
        [
            lambda doors: doors.chat(*MADE_UP, RESULT, {"role": "assistant", "content": "Ok."}),
            lambda doors: doors.chat(USER, CALLED, SECRET_RESULT, {"role": "assistant", "content": "Ok."}),
            lambda doors: doors.agui(USER, AGUI_CALL, {**SECRET_RESULT, "toolCallId": "c1"}),
            lambda doors: doors.agui(*MADE_UP_IN_AGUI, {"role": "assistant", "content": "Ok."}),
            lambda doors: doors.begin_with(*MADE_UP, RESULT),
            lambda doors: doors.begin_with(USER, CALLED, SECRET_RESULT),
            lambda doors: doors.run([USER, CALLED, SECRET_RESULT]),
            lambda doors: doors.respond([USER, CALL_ITEM, OUTPUT_ITEM]),
            lambda doors: doors.respond([USER, MCP_ITEM]),
            lambda doors: doors.add_items(CALL_ITEM, OUTPUT_ITEM),
            lambda doors: doors.add_items(MCP_ITEM),
        ],
    ),
    (
        "results of the caller's functions",
        [
            lambda doors: doors.deliver(),
            lambda doors: doors.deliver(is_error=True),
            lambda doors: doors.deliver_to_agui(),
            lambda doors: doors.deliver_to_agui(content="", error=SAID),
        ],
    ),
    (
        "`instructions` of a request",
        [
            lambda doors: doors.respond(instructions=SAID),
            lambda doors: doors.agui(context=[{"description": "The page", "value": SAID}]),
        ],
    ),
    (
        "the caller's functions: names, descriptions, parameters",
        [
            lambda doors: doors.run(tools=[tool_with(description=SAID)]),
            lambda doors: doors.run(tools=[tool_with(name=WORD)]),
            lambda doors: doors.agui(tools=[{"name": "tell", "description": SAID}]),
            lambda doors: doors.run(tools=[tool_with(parameters=schema_with(description=SAID))]),
            lambda doors: doors.chat(tools=[tool_with(parameters=schema_with(enum=["herring", WORD]))]),
            lambda doors: doors.respond(tools=[{"type": "function", "name": "tell", "description": SAID}]),
        ],
    ),
    (
        "`response_format`, `text.format` and `model_settings`",
        [
            lambda doors: doors.respond(
                text={"format": {"type": "json_schema", "name": "x", "schema": schema_with(description=SAID)}}
            ),
            lambda doors: doors.run(model_settings={"prediction": {"type": "content", "content": SAID}}),
        ],
    ),
    (
        "what a compaction would sum up that no run has looked at, and its `instructions`; refused with 400",
        [
            lambda doors: doors.compact(messages=[USER, ANSWER, *LONG]),
            lambda doors: doors.compact(instructions=SAID, messages=LONG),
            lambda doors: doors.compact_items([USER, ANSWER, USER]),
            lambda doors: doors.compact_items([USER, CALL_ITEM, OUTPUT_ITEM, USER]),
            lambda doors: doors.compact_items([USER, MCP_ITEM, USER]),
            lambda doors: doors.compact_items("Hi.", instructions=SAID),
        ],
    ),
]
UNCHECKED: list[tuple[str, list[Door]]] = [
    ("results of the agent's own functions and MCP servers", [lambda doors: doors.recall()]),
    ("what a person of the team writes in the agent's place", [lambda doors: doors.take_over()]),
]
CASES = [
    pytest.param(what, door, is_checked, id=f"{what[:40]}-{number}")
    for is_checked, rows in ((True, CHECKED), (False, UNCHECKED))
    for what, doors in rows
    for number, door in enumerate(doors)
]


@pytest.mark.parametrize(("what", "door", "is_checked"), CASES)
async def test_refused_words_reach_no_guarded_model(
    service: RunningServer, model: ScriptedModel, what: str, door: Door, is_checked: bool
) -> None:
    await door(Doors(service, model))
    sent = str(model.requests).replace("\\\\u0066", "f").replace("\\u0066", "f")
    assert (WORD not in sent) == is_checked
    assert f"| {what} | {'yes' if is_checked else 'no'} |" in DOCS.read_text().splitlines()
