import copy
import functools
import gc
import pickle
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from pydantic import AliasChoices, AliasPath, Field, ValidationError

from swarmkeep.agent import Agent, Compaction, InvalidFunctionError, function_schema


def look_up(key: str) -> str:
    """Look it up."""
    return key


async def fetch(url: str) -> str:
    return url


class Lookup:
    def __call__(self, key: str) -> str:
        return key

    def method(self, key: str) -> str:
        return key


def generate() -> Iterator[int]:
    yield 1


async def generate_later() -> AsyncIterator[int]:
    yield 1


class GeneratingObject:
    def __call__(self) -> Iterator[int]:
        yield 1


def named(name: str) -> Callable[[], None]:
    def function() -> None: ...

    function.__name__ = name
    return function


def test_unknown_agent_setting_warns_at_caller() -> None:
    with pytest.warns(UserWarning, match="has no setting") as warned:
        agent = Agent(name="A", output_guardrail=[look_up], temperature=0)  # type: ignore[call-arg]
    assert agent == Agent(name="A")
    assert {warning.filename for warning in warned} == {__file__}
    assert [str(warning.message) for warning in warned] == [
        "an Agent has no setting 'output_guardrail', so it is ignored; did you mean 'output_guardrails'?",
        "an Agent has no setting 'temperature', so it is ignored",
    ]


class Desk(Agent):
    room: int = 1


def test_subclass_settings_are_its_own() -> None:
    desk = Desk(room=2)
    desk.room = 3
    assert desk.room == 3


class AliasedDesk(Agent):
    tone: str = Field("low", alias="voice")
    kind: str = Field("plain", validation_alias=AliasChoices("sort", AliasPath("traits", 0)))


@pytest.mark.filterwarnings("error")
def test_subclass_settings_accept_aliases() -> None:
    desks = [AliasedDesk.model_validate(given) for given in ({"voice": "loud", "sort": "b"}, {"traits": ["c"], 1: 2})]
    assert [(desk.tone, desk.kind) for desk in desks] == [("loud", "b"), ("low", "c")]


def test_agent_has_swarm_fields_and_defaults() -> None:
    assert Agent().model_dump() == {
        "name": "Agent",
        "model": "gpt-4o",
        "instructions": "You are a helpful agent.",
        "functions": [],
        "tool_choice": None,
        "parallel_tool_calls": True,
        "concurrent_tools": False,
        "model_settings": {},
        "model_profile": {},
        "output_type": None,
        "output_mode": "response_format",
        "output_retries": 2,
        "compaction": None,
        "mcp_servers": [],
        "input_guardrails": [],
        "output_guardrails": [],
    }


def test_every_kind_of_function_becomes_tool() -> None:
    agent = Agent(functions=[look_up, fetch, functools.partial(named("bound")), Lookup(), Lookup().method])
    assert list(agent.tools()) == ["look_up", "fetch", "bound", "Lookup", "method"]
    assert agent.tool_schemas()[0] == function_schema(look_up)


@pytest.mark.parametrize(
    ("function", "called", "why"),
    [
        ("look_up", "'look_up'", "of type str, which cannot be called"),
        (None, "None", "of type NoneType"),
        (Agent(name="Other"), "Agent(name='Other'", "of type Agent, which cannot be called"),
        (Agent, "Agent", "it is a class"),
        (list[int], "list", "it is a class"),
        (functools.partial(Lookup), "Lookup", "it is a class"),
        (lambda: "x", "<lambda>", "a lambda has no name"),
        (functools.partial(lambda x: x, 1), "<lambda>", "a lambda has no name"),
        (generate, "generate", "it is a generator"),
        (generate_later, "generate_later", "it is a generator"),
        (functools.partial(generate), "generate", "it is a generator"),
        (GeneratingObject(), "GeneratingObject", "it is a generator"),
        (named("größe"), "größe", "1 to 64 of the characters"),
        (named("a b"), "a b", "1 to 64 of the characters"),
        (named("x" * 65), "x" * 65, "1 to 64 of the characters"),
        (named("a\n"), "a\n", "1 to 64 of the characters"),
        (functools.partial(look_up, "a", "b"), "look_up", "its parameters cannot be read"),  # type: ignore[call-arg]
    ],
)
def test_other_values_refused_by_name(function: Any, called: str, why: str) -> None:
    with pytest.raises(ValueError, match=r"agent 'Sales' cannot use ") as refused:
        Agent(name="Sales", functions=[look_up, function])
    assert f"agent 'Sales' cannot use {called}" in str(refused.value)
    assert why in str(refused.value)
    assert isinstance(refused.value, ValidationError)
    cause = refused.value.errors()[0]["ctx"]["error"]
    assert isinstance(cause, InvalidFunctionError)
    assert cause.agent == "Sales"


def test_functions_with_same_name_refused() -> None:
    with pytest.raises(ValueError, match="agent 'Sales' cannot use look_up as a tool: another of its functions has"):
        Agent(name="Sales", functions=[look_up, named("look_up")])


def test_repeated_function_is_one_tool() -> None:
    lookup = Lookup()
    agent = Agent(functions=[look_up, lookup.method, look_up, lookup.method])
    assert list(agent.tools()) == ["look_up", "method"]


def test_hint_without_schema_refused_at_creation() -> None:
    def ship(to: Lookup) -> None: ...

    with pytest.raises(ValueError, match="agent 'Sales' cannot use ship as a tool: parameter 'to' of ship: its hint"):
        Agent(name="Sales", functions=[ship])


@pytest.mark.parametrize("functions", [look_up, "look_up", None, {"look_up": look_up}])
def test_functions_are_a_list(functions: Any) -> None:
    with pytest.raises(ValueError, match="the functions of agent 'Agent' must be a list"):
        Agent(functions=functions)


def test_assignments_are_checked_like_the_making() -> None:
    agent = Agent(name="Sales", functions=[look_up])
    with pytest.raises(ValueError, match="agent 'Sales' cannot use <lambda>"):
        agent.functions = [lambda: "x"]
    with pytest.raises(ValidationError):
        agent.model = 3  # type: ignore[assignment]
    assert list(agent.tools()) == ["look_up"]
    agent.functions = [fetch]
    assert list(agent.tools()) == ["fetch"]


def test_functions_appended_later_are_tools_too() -> None:
    agent = Agent(functions=[look_up])
    first = agent.tools()["look_up"]
    agent.functions.append(fetch)
    assert list(agent.tools()) == ["look_up", "fetch"]
    assert agent.tools()["look_up"] is first
    agent.functions.remove(look_up)
    assert list(agent.tools()) == ["fetch"]


def test_appended_functions_checked_before_use() -> None:
    agent = Agent(name="Sales", functions=[look_up])
    agent.functions.append(lambda: "x")
    with pytest.raises(InvalidFunctionError) as refused:
        agent.tools()
    assert (refused.value.agent, refused.value.function) == ("Sales", "<lambda>")


def test_agents_hand_over_to_each_other() -> None:
    def to_sales() -> Agent:
        return sales

    def to_triage() -> Agent:
        return triage

    triage = Agent(name="Triage", functions=[to_sales])
    sales = Agent(name="Sales")
    sales.functions.append(to_triage)
    assert sales.tools()["to_triage"].function() is triage
    assert triage.tools()["to_sales"].function() is sales


def test_agent_copies_the_functions_list() -> None:
    functions: list[Any] = [look_up]
    agent = Agent(functions=functions)
    functions.append(fetch)
    assert list(agent.tools()) == ["look_up"]
    agent.functions.append(fetch)
    assert Agent().functions == []


def test_cached_tools_do_not_affect_equality() -> None:
    asked, fresh = Agent(functions=[look_up]), Agent(functions=[look_up])
    asked.tools()
    assert asked == fresh
    assert repr(asked) == repr(fresh)
    for copied in (copy.copy(asked), copy.deepcopy(asked), pickle.loads(pickle.dumps(asked)), asked.model_copy()):
        assert copied == asked
        assert list(copied.tools()) == ["look_up"]


def test_copied_agent_uses_its_new_functions() -> None:
    agent = Agent(functions=[look_up])
    agent.tools()
    other = agent.model_copy(update={"functions": [fetch], "name": "Other"})
    assert list(other.tools()) == ["fetch"]
    assert other.tools()["fetch"] is other.tools()["fetch"]
    assert list(agent.tools()) == ["look_up"]


def test_unused_agents_are_freed() -> None:
    def make() -> tuple[weakref.ref[Any], weakref.ref[Any]]:
        def inner(key: str) -> str:
            return key

        agent = Agent(functions=[inner, Lookup()])
        agent.tools()
        return weakref.ref(inner), weakref.ref(agent.functions[1])

    references = make()
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_a_removed_function_is_not_kept() -> None:
    agent = Agent(functions=[Lookup()])
    agent.tools()
    removed = weakref.ref(agent.functions[0])
    agent.functions.clear()
    agent.tools()
    gc.collect()
    assert removed() is None


def test_subclasses_of_agent_work() -> None:
    class Nurse(Agent):
        ward: int = 1

    assert list(Nurse(ward=2, functions=[look_up]).tools()) == ["look_up"]


def render(instructions: Any, context: dict[str, Any] | None = None) -> str | Awaitable[str]:
    return Agent(instructions=instructions).render_instructions({"name": "Ada"} if context is None else context)


def by_name(*, context_variables: dict[str, Any]) -> str:
    return f"Help {context_variables['name']}."


def by_position(context: dict[str, Any]) -> str:
    return f"Help {context['name']}."


def by_position_only(context_variables: dict[str, Any], /) -> str:
    return f"Help {context_variables['name']}."


def by_second_name(tone: str = "kind", context_variables: dict[str, Any] = {}) -> str:  # noqa: B006
    return f"Help {context_variables['name']}."


def by_star(*args: dict[str, Any]) -> str:
    return f"Help {args[0]['name']}."


def without() -> str:
    return "Help Ada."


class Instructions:
    def __call__(self, context_variables: dict[str, Any]) -> str:
        return f"Help {context_variables['name']}."


@pytest.mark.parametrize(
    "instructions",
    [
        "Help Ada.",
        by_name,
        by_position,
        by_position_only,
        by_second_name,
        by_star,
        without,
        Instructions(),
        functools.partial(by_second_name, "rude"),
        lambda c: f"Help {c['name']}.",
        "Help {name}.".format_map,
    ],
)
def test_instructions_are_text_or_callable(instructions: Any) -> None:
    assert render(instructions) == "Help Ada."


async def test_async_instructions_are_awaited() -> None:
    async def later(context_variables: dict[str, Any]) -> Any:
        return context_variables["n"]

    text = render(later, {"n": 5})
    assert not isinstance(text, str)
    assert await text == "5"


def test_missing_context_variable_reads_empty() -> None:
    assert render(lambda context_variables: f"<{context_variables['missing']}>") == "<>"


def test_instructions_cannot_change_the_context() -> None:
    def greedy(context_variables: dict[str, Any]) -> str:
        context_variables["cart"].append("x")
        context_variables["new"] = 1
        return str(context_variables["other"])

    context: dict[str, Any] = {"cart": []}
    render(greedy, context)
    assert context == {"cart": []}


def test_non_text_instructions_become_text() -> None:
    assert render(lambda: 42) == "42"


def test_room_imports_only_needed_modules() -> None:
    heavy = ["openai", "litestar", "sqlalchemy", "msgspec", "httpx2", "asyncio", "docstring_parser"]
    code = f"import sys, swarmkeep.agent; print([m for m in {heavy} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize("wrong", [{"at": 0}, {"at": 1.1}, {"of_tokens": 0}, {"keep_turns": 0}, {"every": 3}])
def test_senseless_compaction_settings_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Compaction(**wrong)
