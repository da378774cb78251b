"""Conversations that were really had: a team, a model that says whatever the dice say, and callers with generated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI

from swarmkeep import Agent, Result, tool
from swarmkeep.decide.commands import Approval, StartRun, ToolAnswer
from swarmkeep.events.codec import Json
from swarmkeep.events.records import RunOptions
from swarmkeep.events.state import Run
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import KEY, Server
from tests.runs.swarm.runners import open_async
from tests.support.logs import Dice
from tests.support.scripted import ScriptedModel
from tests.support.scripted.replies import Call, Completion


def look(city: str) -> str:
    """Look at the weather."""
    return f"rain in {city}"


def remember(key: str, context_variables: Json) -> Result:
    """Keep something."""
    context_variables["seen"] = context_variables.get("seen", 0) + 1
    return Result(value="kept", context_variables={"last": key})


def forget(context_variables: Json) -> str:
    """Forget what was kept."""
    context_variables.pop("last", None)
    return "gone"


def explode() -> str:
    """Fail."""
    raise ValueError("boom")


@tool(requires_approval=True)
def refund(order: str) -> str:
    """Pay back."""
    return f"paid back {order}"


def to_b() -> Agent:
    """Hand over to B."""
    return b


def to_a() -> Agent:
    """Hand over to A."""
    return a


def greeting(context_variables: Json) -> str:
    return f"You are B. Known: {context_variables}"


a = Agent(name="A", instructions="You are A.", functions=[look, remember, explode, refund, to_b])
b = Agent(name="B", model="b-model", instructions=greeting, functions=[forget, refund, to_a], tool_choice="auto")
TEAM = (a, b)
CALLED_NAMES = ("look", "remember", "forget", "explode", "refund", "to_a", "to_b", "no_such_tool")
ARGUMENTS = ({"city": "Oslo"}, {"key": "é ☃"}, {"order": "A-17"}, {}, "{broken")


@asynccontextmanager
async def open_scripted_model(generated: GeneratedConversation) -> AsyncIterator[tuple[ScriptedModel, AsyncOpenAI]]:
    """A model that says what it likes, and a client of it."""
    with ScriptedModel(default=generated.reply) as model:
        async with open_async(model.url) as client:
            yield model, client


class GeneratedConversation:
    """A model and callers that do as the dice say."""

    def __init__(self, dice: Dice) -> None:
        self.dice = dice

    def reply(self, request: Json) -> Completion:
        dice = self.dice
        if dice.chance(45):
            return Completion(pieces=[dice.pick(("Well.", "Yes ☃", "No\n\n"))])
        calls = [Call(dice.pick(CALLED_NAMES), dice.pick(ARGUMENTS)) for _ in range(dice.pick((1, 1, 2, 3)))]
        return Completion(calls=calls, pieces=["Let me see."] if dice.chance(30) else ())

    async def run_conversation(self, engine: Server, *, runs: int = 4) -> list[SessionKey]:
        """A session and perhaps a fork of it; gives both."""
        await engine.sessions.create(KEY.tenant, session_id=KEY.id, agent="A", context_variables={"name": "Robin"})
        for number in range(runs):
            if self.dice.chance(30):
                change = {self.dice.pick(("name", "other")): self.dice.pick((None, 1, "Kim"))}
                await engine.sessions.update(KEY, context_variables=change)
            await self._run(engine, f"r{number}")
        fork = SessionKey(KEY.tenant, "fork")
        last = (await engine.reader.view(KEY)).seq
        await engine.sessions.fork(KEY, at=self.dice.pick(range(1, last + 1)), session_id=fork.id)
        return [KEY, fork]

    async def _run(self, engine: Server, run_id: str) -> None:
        dice = self.dice
        options = RunOptions(
            max_turns=dice.pick((4, 4, 2)),
            model=dice.pick((None, None, "other-model")),
            execute_tools=not dice.chance(20),
            stream=dice.chance(50),
        )
        command = StartRun(
            run_id=run_id,
            messages=({"role": "user", "content": dice.pick(("Hello", "And now? ☃", ""))},),
            options=options,
            agent=dice.pick((None, None, "A", "B")),
            context_variables=dice.pick(({}, {"run": run_id})),
        )
        await engine.runs.start(KEY, command)
        view = await engine.wait(run_id)
        while view.status == "waiting":
            if dice.chance(15):
                await engine.runs.cancel(KEY, run_id)
            else:
                state = await engine.store.state(KEY)
                assert state.run is not None
                await engine.runs.resume(KEY, run_id, **self._make_answers(state.run))
            view = await engine.wait(run_id)

    def _make_answers(self, run: Run) -> Json:
        dice = self.dice
        approvals, answers = [], []
        for call in run.pending:
            if call.reason == "approval":
                decision: Any = dice.pick(("approve", "deny"))
                approvals.append(Approval(tool_call_id=call.tool_call_id, decision=decision, reason="so", by="ann"))
            else:
                answers.append(
                    ToolAnswer(tool_call_id=call.tool_call_id, content="from outside", is_error=dice.chance(30))
                )
        return {"approvals": approvals, "tool_results": answers}
