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


def test_strings_are_resolved_to_the_types_they_name() -> None:
    def f(a: str, b: int, c: list[Later], d: Optional[Literal["x"]] = None, e: dict = {}) -> None: ...  # type: ignore[type-arg]  # noqa: B006, UP045

    made = read_properties(f)
    assert made["a"] == {"type": "string"}
    assert made["b"] == {"type": "integer"}
    assert made["c"] == {"type": "array", "items": {"$ref": "#/$defs/Later"}}
    assert made["d"] == {"anyOf": [{"const": "x", "type": "string"}, {"type": "null"}]}
    assert made["e"] == {"type": "object"}


class Later(BaseModel):
    n: int


def test_a_return_hint_that_cannot_be_resolved_does_no_harm() -> None:
    def hand_over(why: str) -> Agent: ...  # type: ignore[empty-body]

    assert read_properties(hand_over) == {"why": {"type": "string"}}


def test_the_call_id_is_known_even_if_imported_for_type_checkers_only() -> None:
    def pay(amount: int, key: ToolCallId, other: ToolCallId | None = None) -> tuple[int, str, str | None]:
        return amount, key, other

    assert read_properties(pay) == {"amount": {"type": "integer"}}
    assert Tool(pay).bind('{"amount": 2}', context_variables={}, tool_call_id="call_1")() == (2, "call_1", "call_1")


def test_a_name_for_type_checkers_only_is_refused_by_name() -> None:
    def pay(to: str, amount: Decimal) -> None: ...

    with pytest.raises(FunctionSchemaError) as refused:
        function_schema(pay)
    assert refused.value.parameter == "amount"
    assert "name 'Decimal' is not defined" in str(refused.value)


def test_a_local_type_is_found_if_the_function_closes_over_it() -> None:
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
def test_methods_and_callable_objects_resolve_in_their_own_module(function: Any) -> None:
    assert Tool(function).bind('{"x": {"n": 4}}', context_variables={}, tool_call_id="")() == 4
