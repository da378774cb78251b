"""None"""

from __future__ import annotations

import functools
import inspect
import math
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from swarmkeep import Agent, MCPServer
from swarmkeep.agent import Tool, tool
from swarmkeep.agent.tools import ToolOptions, get_options
from swarmkeep.agent.values import (
    ELSEWHERE,
    MAX_BYTES,
    MAX_FORMAT_BYTES,
    InvalidFunctionError,
    ModelSettingsError,
    check_model_settings,
    check_response_format,
    merge_settings,
)


def test_the_decorated_function_is_the_function() -> None:
    def plain(x: int) -> int:
        return x + 1

    assert tool(plain) is plain
    assert tool(timeout=3)(plain) is plain
    assert plain(1) == 2
    assert not inspect.iscoroutinefunction(plain)


def test_bare_decoration_gives_the_defaults() -> None:
    @tool
    def plain() -> None: ...

    assert get_options(plain) == ToolOptions(requires_approval=False, idempotent=False, timeout=None)


def test_partials_and_wrappers_keep_options() -> None:
    @tool(requires_approval=True)
    def pay(amount: int) -> None: ...

    @functools.wraps(pay)
    def logged(*args: Any) -> None:
        pay(*args)

    for function in (pay, logged, functools.partial(pay, 1), functools.partial(functools.partial(pay), 1)):
        assert get_options(function).requires_approval


def test_partial_options_override_its_function() -> None:
    @tool(timeout=1)
    def pay(amount: int) -> None: ...

    slow = tool(functools.partial(pay, 1), timeout=60)
    assert (get_options(slow).timeout, get_options(pay).timeout) == (60, 1)
    assert get_options(functools.partial(slow)).timeout == 60


def test_callable_objects_take_options() -> None:
    class Pay:
        def __call__(self) -> None: ...

    class SafePay:
        @tool(idempotent=True)
        def __call__(self) -> None: ...

    class ModelPay(BaseModel):
        def __call__(self) -> str:
            return "paid"

    pay = Pay()
    assert tool(requires_approval=True)(pay) is pay
    assert get_options(pay).requires_approval
    assert not get_options(Pay()).requires_approval
    assert get_options(SafePay()).idempotent
    model = tool(requires_approval=True)(ModelPay())
    assert get_options(model).requires_approval
    assert (Tool(model).name, model()) == ("ModelPay", "paid")


def test_bound_method_options_spare_the_class() -> None:
    class Shop:
        def refund(self, amount: int) -> int:
            return amount

        @tool(timeout=2)
        def stock(self) -> int:
            return 0

    shop = Shop()
    refund = tool(requires_approval=True)(shop.refund)
    made = Tool(refund)
    assert (made.name, made.requires_approval) == ("refund", True)
    assert made.bind('{"amount": 3}', context_variables={}, tool_call_id="")() == 3
    assert not get_options(Shop().refund).requires_approval
    assert get_options(shop.stock).timeout == 2


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, "5", True])
def test_timeout_is_positive_seconds(timeout: Any) -> None:
    with pytest.raises(ValueError, match="timeout must be a positive, finite number of seconds"):
        tool(timeout=timeout)


def test_only_functions_are_decorated() -> None:
    with pytest.raises(TypeError, match="decorates a function"):
        tool("pay")  # type: ignore[call-overload]


def test_summary_names_parameters_in_braces() -> None:
    @tool(summary="Refund {amount} to {customer} {{now}}")
    def refund(amount: int, customer: str) -> str:
        return f"{amount} {customer}"

    assert Tool(refund).summary == "Refund {amount} to {customer} {{now}}"

    with pytest.raises(InvalidFunctionError, match="its summary names 'size', which is no parameter"):
        Tool(tool(summary="Refund {size}")(refund))


@pytest.mark.parametrize(
    "summary", ["", " ", "x" * 201, 7, "Pay {", "Pay {}", "Pay {0.a}", "Pay {amount!r}", "Pay {a:>9}"]
)
def test_summary_that_is_no_sentence_is_refused(summary: Any) -> None:
    with pytest.raises(ValueError, match="summary"):
        tool(summary=summary)


# MCPServer as a value: what it accepts, what it is called, and what it never shows.


SECRET = "hunter2-and-more"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "either a command"),
        ({"command": ["x"], "url": "http://h/mcp"}, "either a command"),
        ({"command": ["x"], "headers": {"A": "b"}}, "headers need a url"),
        ({"url": "http://h/mcp", "env": {"A": "b"}}, "env needs a command"),
        ({"url": "ftp://h/mcp"}, "http:// or https://"),
        ({"url": "http://h:99999999/mcp"}, "cannot be read"),
        ({"command": ["a\0b"]}, "NUL"),
        ({"command": ["x"], "name": "a b"}, "letters, digits"),
        ({"command": ["x"], "timeout": 0}, "greater than 0"),
        ({"command": ["x"], "scope": "user"}, "'server' or 'session'"),
        ({"command": ["x"], "retries": 3}, "Extra inputs"),
    ],
)
def test_what_is_no_server_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        MCPServer(**given)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"command": ["npx", "-y", "@modelcontextprotocol/server-filesystem", "/data"]}, "server-filesystem"),
        ({"command": ["uvx", "mcp-server-git@1.2"]}, "mcp-server-git"),
        ({"command": ["/usr/bin/python3", "notes.py"]}, "notes"),
        ({"command": ["my-server"]}, "my-server"),
        ({"command": ["env", "API_KEY=secret", "my-server"]}, "my-server"),
        ({"command": ["docker", "run", "-i", "-e", "TOKEN=secret", "mcp/notes"]}, "notes"),
        ({"url": "https://mcp.example.com/mcp"}, "mcp_example_com"),
        ({"command": ["x"], "name": "files"}, "files"),
    ],
)
def test_unnamed_server_gets_a_name(given: dict[str, Any], name: str) -> None:
    assert MCPServer(**given).name == name


def test_secrets_are_not_shown() -> None:
    servers = [
        MCPServer(command=["x", f"--key={SECRET}"], env={"KEY": SECRET}),
        MCPServer(command=["env", f"KEY={SECRET}"]),
        MCPServer(
            url=f"https://me:{SECRET}@h/{SECRET}/mcp?key={SECRET}", headers={"Authorization": f"Bearer {SECRET}"}
        ),
    ]
    shown = [(server.name, server.address) for server in servers]
    assert SECRET not in f"{servers} {shown} {Agent(mcp_servers=servers)!r}"
    assert all(SECRET in set(server.list_secrets()) for server in servers)
    with pytest.raises(ValidationError) as refused:
        MCPServer(command=["x"], url="http://h", env={"KEY": SECRET})
    assert SECRET not in str(refused.value)


def test_server_names_are_unique_per_agent() -> None:
    one = MCPServer(command=["x"])
    with pytest.raises(ValidationError, match="two servers are called 'x'"):
        Agent(mcp_servers=[one, MCPServer(command=["x"], env={"A": "b"})])
    with pytest.raises(ValidationError, match="is not an MCPServer"):
        Agent(mcp_servers=["x"])


def test_hints_count_only_when_trusted() -> None:
    trusted, other = MCPServer(command=["x"], trust_hints=True), MCPServer(command=["x"])
    assert trusted.needs_approval("rm", is_destructive=True)
    assert not other.needs_approval("rm", is_destructive=True)
    assert MCPServer(command=["x"], requires_approval=True).needs_approval("ls", is_destructive=False)
    assert MCPServer(command=["x"], requires_approval=("rm",)).needs_approval("rm", is_destructive=False)


# The parameters of a model request that an agent may set.


def nest(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_agent_copies_its_model_settings() -> None:
    given = {"temperature": 0.2, "logit_bias": {"50256": -100}, "extra_body": {"top_k": 40}}
    agent = Agent(model_settings=given)
    given["logit_bias"]["50256"] = 0  # type: ignore[index]
    assert agent.model_settings == {"temperature": 0.2, "logit_bias": {"50256": -100}, "extra_body": {"top_k": 40}}
    agent.model_settings = {"seed": 7}
    assert agent.model_settings == {"seed": 7}
    assert agent.model_copy(deep=True) == agent


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
@pytest.mark.parametrize("inside", [False, True])
def test_settings_made_elsewhere_refused_by_name(name: str, inside: bool) -> None:
    settings = {"extra_body": {name: 1}} if inside else {name: 1}
    with pytest.raises(ModelSettingsError, match=f"cannot set {name}: ") as refused:
        check_model_settings(settings)
    assert refused.value.name == name


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([], "must be an object"),
        ({"seed": float("nan")}, "JSON cannot hold"),
        ({"seed": object()}, "JSON cannot hold"),
        ({1: 2}, "keys of a JSON object are strings"),
        ({"": 2}, "1 to 64 characters"),
        ({"x" * 65: 2}, "1 to 64 characters"),
        ({"stop": "\ud800"}, "not valid Unicode"),
        ({"stop": "x" * MAX_BYTES}, f"at most {MAX_BYTES}"),
        ({"extra_body": nest(40)}, "levels deep"),
        ({"extra_body": nest(9000)}, "levels deep"),
        ({"extra_body": [1]}, "must be an object"),
        ({"extra_body": {"extra_body": {}}}, "another extra_body"),
    ],
)
def test_unrepresentable_settings_refused(settings: Any, words: str) -> None:
    with pytest.raises(ModelSettingsError, match=words):
        check_model_settings(settings)
    with pytest.raises(ValidationError, match="agent 'Ann'"):
        Agent(name="Ann", model_settings=settings)


def test_later_settings_win_and_null_removes() -> None:
    agent = {"temperature": 0.2, "seed": 1, "top_p": None, "extra_body": {"top_k": 40, "min_p": 0.1}}
    assert merge_settings(agent, {}) == {"temperature": 0.2, "seed": 1, "top_k": 40, "min_p": 0.1}
    assert merge_settings(agent, {"seed": None, "temperature": 1, "extra_body": {"top_k": None}}) == {
        "temperature": 1,
        "min_p": 0.1,
    }
    assert merge_settings({}, {"messages": [], "extra_body": {"tools": []}, "seed": 1}) == {"seed": 1}
    assert merge_settings({}, {"extra_body": "of another program"}) == {}


GOOD_FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}, "strict": True}}


@pytest.mark.parametrize("value", [GOOD_FORMAT, {"type": "text"}, {"type": "json_object"}])
def test_response_format_follows_chat_completions(value: Any) -> None:
    assert check_response_format(value) == value


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({}, "type"),
        ({"type": "grammar"}, "type"),
        ({"type": ["text"]}, "type"),
        ({"type": "text", "more": 1}, "more"),
        ({"type": "json_schema"}, "json_schema"),
        ({"type": "json_schema", "json_schema": {}}, "json_schema/name"),
        ({"type": "json_schema", "json_schema": {"name": "a b"}}, "json_schema/name"),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": []}}, "json_schema/schema"),
        ({"type": "json_schema", "json_schema": {"name": "a", "strict": 1}}, "json_schema/strict"),
        ({"type": "json_schema", "json_schema": {"name": "a", "other": 1}}, "json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": {"x": nest(40)}}}, ""),
        ({"type": "json_schema", "json_schema": {"name": "a", "description": "x" * MAX_FORMAT_BYTES}}, ""),
        ("text", ""),
    ],
)
def test_another_response_format_is_refused(value: Any, name: str) -> None:
    with pytest.raises(ModelSettingsError) as refused:
        check_response_format(value)
    assert refused.value.name == name
