"""Agents by name: which are found, which hands over to which, and as what a model sees them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest

from swarmkeep import Agent, Result
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import AgentNotFound, AgentUnavailable
from swarmkeep.runs.agents import AgentsError, OpenRegistry, Registry, find_agents_in
from swarmkeep.runs.tool_runners import InlineRunner

sales = Agent(name="Sales")
support = Agent(name="Support")
by_topic = {"sales": sales, "support": support}
in_a_row = [sales, support]
not_agents = {"sales": "Sales", "n": 1}


def to_sales() -> Agent:
    return sales


async def to_support() -> Result:
    return Result(agent=support)


def by_dict(topic: str) -> Agent:
    return by_topic[topic]


def by_list(n: int) -> Agent:
    return in_a_row[n]


def nested() -> Any:
    def inner() -> Agent:
        return sales

    return inner()


def by_comprehension() -> Agent:
    return max(agent for agent in [support] if agent.name)


def no_agents() -> str:
    return str(not_agents)


def made_up() -> Agent:
    return Agent(name="Made up")


def enclose_agent(agent: Agent, *more: Any) -> Callable[[], Agent]:
    def hand_over() -> Agent:
        return agent if agent else more[0]

    return hand_over


def return_given_agent(agent: Agent, note: str) -> Agent:
    return agent


class Desk:
    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def visit(self) -> Agent:
        return self.agent

    def __call__(self) -> Agent:
        return sales


def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def to_later() -> Agent:
    return defined_later


defined_later = Agent(name="Later")


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (to_sales, ["Sales"]),
        (to_support, ["Support"]),
        (by_dict, ["Sales", "Support"]),
        (by_list, ["Sales", "Support"]),
        (nested, ["Sales"]),
        (by_comprehension, ["Support"]),
        (no_agents, []),
        (made_up, []),
        (to_later, ["Later"]),
        (enclose_agent(sales), ["Sales"]),
        (functools.partial(return_given_agent, support), ["Support"]),
        (functools.partial(return_given_agent, agent=sales), ["Sales"]),
        (functools.partial(functools.partial(return_given_agent, sales), note="x"), ["Sales"]),
        (Desk(support), ["Support", "Sales"]),
        (Desk(support).visit, ["Support"]),
        (wrap(to_sales), ["Sales"]),
        (wrap(enclose_agent(support)), ["Support"]),
    ],
)
def test_agents_mentioned_in_functions_are_found(function: Callable[..., Any], names: list[str]) -> None:
    assert list(dict.fromkeys(agent.name for agent in find_agents_in(function))) == names


def test_unbound_name_does_no_harm() -> None:
    def hand_over() -> Agent:
        return unbound

    assert list(find_agents_in(hand_over)) == []
    unbound = sales
    assert list(find_agents_in(hand_over)) == [unbound]


def test_inspection_calls_no_function() -> None:
    def effect() -> Agent:
        raise AssertionError("called")

    assert Registry([Agent(functions=[effect])]).list_handoffs(Agent(functions=[effect])) == []


# A registry.


def test_reachable_agents_are_served_first_is_default() -> None:
    def to_b() -> Agent:
        return b

    def to_c() -> Agent:
        return c

    def to_a() -> Agent:
        return a

    a = Agent(name="A", functions=[to_b])
    b = Agent(name="B", functions=[to_c])
    c = Agent(name="C", functions=[to_a, to_b])
    registry = Registry([a])
    assert registry.names == ["A", "B", "C"]
    assert registry.default == "A"
    assert registry.get("C") is c
    assert list(registry) == [a, b, c]
    assert "B" in registry
    assert {agent.name: registry.list_handoffs(agent) for agent in registry} == {
        "A": ["B"],
        "B": ["C"],
        "C": ["A", "B"],
    }


def test_unserved_handoffs_are_not_listed() -> None:
    def to_sales() -> Agent:
        return sales

    agent = Agent(name="A")
    registry = Registry([agent])
    agent.functions.append(to_sales)
    assert registry.list_handoffs(agent) == []


def test_one_agent_twice_is_one_agent() -> None:
    assert Registry([sales, support, sales]).names == ["Sales", "Support"]


def test_duplicate_agent_names_are_refused() -> None:
    with pytest.raises(AgentsError, match="two agents are called 'Sales'"):
        Registry([sales, Agent(name="Sales")])

    def to_other() -> Agent:
        return other

    other = Agent(name="A")
    with pytest.raises(AgentsError, match="two agents are called 'A'"):
        Registry([Agent(name="A", functions=[to_other])])


def test_a_name_that_nobody_has() -> None:
    registry = Registry([sales, support])
    with pytest.raises(AgentNotFound, match="known agents: Sales, Support") as missing:
        registry.get("Refunds")
    assert missing.value.known_agents == ["Sales", "Support"]
    with pytest.raises(AgentUnavailable):
        registry.get_active("Refunds")
    assert registry.get_active("Sales") is sales
    assert not registry.admit(Agent(name="Refunds"))
    assert registry.admit(sales)


def test_open_registry_admits_any_agent() -> None:
    registry = OpenRegistry([sales])
    other = Agent(name="Sales", instructions="Another.")
    assert registry.admit(other)
    assert registry.get("Sales") is other


# As a model sees them.


def look(city: str) -> str:
    """Look."""
    return city


async def test_profile_reflects_the_current_agent() -> None:
    async def instructions(context_variables: Json) -> str:
        return f"Help {context_variables['name']}."

    agent = Agent(
        name="A", model="small", instructions=instructions, functions=[look], tool_choice="auto",
        parallel_tool_calls=False,
    )  # fmt: skip
    profile = await Registry([agent]).make_profile(agent, {"name": "Ann"}, InlineRunner())
    assert (profile.name, profile.model, profile.instructions) == ("A", "small", "Help Ann.")
    assert (profile.tool_choice, profile.parallel_tool_calls) == ("auto", False)
    assert profile.tools is not None
    assert json.loads(profile.tools) == agent.tool_schemas()
    assert (await Registry([sales]).make_profile(sales, {}, InlineRunner())).tools is None


async def test_server_model_fills_missing_agent_models() -> None:
    silent, outspoken = Agent(name="A"), Agent(name="B", model="gpt-4o")
    plain, overridden = Registry([silent, outspoken]), Registry([silent, outspoken], model="local")
    assert [plain.choose_model(agent) for agent in (silent, outspoken)] == ["gpt-4o", "gpt-4o"]
    assert [overridden.choose_model(agent) for agent in (silent, outspoken)] == ["local", "gpt-4o"]
    silent.model = "chosen"
    assert overridden.choose_model(silent) == "chosen"
    assert (await overridden.make_profile(outspoken, {}, InlineRunner())).model == "gpt-4o"


async def test_schemas_follow_the_functions() -> None:
    def other() -> str:
        return ""

    agent = Agent(name="A")
    registry = Registry([agent])

    async def names() -> list[str]:
        tools = (await registry.make_profile(agent, {}, InlineRunner())).tools
        return [schema["function"]["name"] for schema in json.loads(tools or "[]")]

    assert await names() == []
    agent.functions.append(look)
    assert await names() == ["look"]
    agent.functions.append(other)
    assert await names() == ["look", "other"]
    agent.functions.remove(look)
    assert await names() == ["other"]
    agent.functions = [look, other]
    assert await names() == ["look", "other"]


async def test_short_lived_functions_are_not_confused() -> None:
    # A function that is gone may have left its address to the next one.
    registry = OpenRegistry()
    for n in range(50):
        space: Json = {}
        exec(f"def f{n}() -> str:\n    return ''", space)
        agent = Agent(name="A", functions=[space.pop(f"f{n}")])
        registry.admit(agent)
        tools = (await registry.make_profile(agent, {}, InlineRunner())).tools or ""
        assert json.loads(tools)[0]["function"]["name"] == f"f{n}"
        del agent
