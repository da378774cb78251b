"""`from __future__ import annotations` turns every hint below into a string."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Optional

import pytest
from pydantic import BaseModel

from swarmkeep.agent import FunctionSchemaError, Tool, function_schema

if TYPE_CHECKING:
    from decimal import Decimal

    from swarmkeep.agent import Agent, ToolCallId


def read_properties(function: Any) -> Any:
    return function_schema(function)["function"]["parameters"]["properties"]


def test_string_hints_resolve_to_types() -> None:
    def f(a: str, b: int, c: list[Later], d: Optional[Literal["x"]] = None, e: dict = {}) -> None: ...  # type: ignore[type-arg]  # noqa: B006, UP045

    made = read_properties(f)
    assert made["a"] == {"type": "string"}
    assert made["b"] == {"type": "integer"}
    assert made["c"] == {"type": "array", "items": {"$ref": "#/$defs/Later"}}
    assert made["d"] == {"anyOf": [{"const": "x", "type": "string"}, {"type": "null"}]}
    assert made["e"] == {"type": "object"}


class Later(BaseModel):
    n: int


def test_unresolvable_return_hint_is_harmless() -> None:
    def hand_over(why: str) -> Agent: ...  # type: ignore[empty-body]

    assert read_properties(hand_over) == {"why": {"type": "string"}}


def test_type_checking_call_id_is_known() -> None:
    def pay(amount: int, key: ToolCallId, other: ToolCallId | None = None) -> tuple[int, str, str | None]:
        return amount, key, other

    assert read_properties(pay) == {"amount": {"type": "integer"}}
    assert Tool(pay).bind('{"amount": 2}', context_variables={}, tool_call_id="call_1")() == (2, "call_1", "call_1")


def test_type_checking_only_name_refused() -> None:
    def pay(to: str, amount: Decimal) -> None: ...

    with pytest.raises(FunctionSchemaError) as refused:
        function_schema(pay)
    assert refused.value.parameter == "amount"
    assert "name 'Decimal' is not defined" in str(refused.value)


def test_closed_over_local_type_found() -> None:
    class Local(BaseModel):
        n: int

    def f(x: Local) -> int:
        assert isinstance(x, Local)
        return x.n

    assert Tool(f).bind('{"x": {"n": 3}}', context_variables={}, tool_call_id="")() == 3


class Lookup:
    def __call__(self, x: Later) -> int:
        return x.n

    def method(self, x: Later) -> int:
        return x.n


@pytest.mark.parametrize("function", [Lookup(), Lookup().method])
def test_methods_resolve_in_their_module(function: Any) -> None:
    assert Tool(function).bind('{"x": {"n": 4}}', context_variables={}, tool_call_id="")() == 4
