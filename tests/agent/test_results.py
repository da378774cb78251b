import json
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from swarmkeep.agent import Agent, NotJsonError, Response, Result, to_result
from tests.agent.test_values import JSON, TEXT


class Order(BaseModel):
    id: int
    at: datetime | None = None


@dataclass
class Place:
    city: str
    orders: list[Order]


class Colour(str, Enum):  # noqa: UP042 - str() of it is "Colour.RED"
    RED = "red"


sales = Agent(name="Vertrieb “Süd”")


def test_result_is_passed_unchanged() -> None:
    result = Result(value="x", agent=sales, context_variables={"a": 1})
    assert to_result(result) is result
    assert result.agent is sales


def test_returned_agent_is_a_handoff() -> None:
    result = to_result(sales)
    assert result.agent is sales
    assert result.value == '{"assistant": "Vertrieb “Süd”"}'
    assert result.context_variables == {}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        ("", ""),
        (Colour.RED, "red"),
        (None, "None"),
        (True, "True"),
        (42, "42"),
        (1.5, "1.5"),
        ((1, "x"), "(1, 'x')"),
        (b"x", "b'x'"),
        (datetime(2024, 1, 2), "2024-01-02 00:00:00"),
        ({"name": "Zoë", "n": [1, (2, 3)]}, '{"name": "Zoë", "n": [1, [2, 3]]}'),
        ([], "[]"),
        (Order(id=1, at=datetime(2024, 1, 2)), '{"id": 1, "at": "2024-01-02T00:00:00"}'),
        ([Order(id=1)], '[{"id": 1, "at": null}]'),
        (Place("Oslo", [Order(id=2)]), '{"city": "Oslo", "orders": [{"id": 2, "at": null}]}'),
        ({"place": Place("Oslo", [])}, '{"place": {"city": "Oslo", "orders": []}}'),
    ],
)
def test_any_other_value_becomes_text(value: object, text: str) -> None:
    assert to_result(value) == Result(value=text)
    assert Result(value).value == text
    assert to_result(Result(value=value)).value == text


@pytest.mark.long
@given(st.lists(JSON) | st.dictionaries(TEXT, JSON))
def test_json_comes_back_from_its_text(value: Any) -> None:
    assert json.loads(to_result(value).value) == value


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no")


class Opaque(BaseModel, arbitrary_types_allowed=True):
    inner: object


looped: list[Any] = []
looped.append(looped)


@pytest.mark.parametrize(
    ("value", "path", "type_name"),
    [
        ({"at": [datetime(2024, 1, 2)]}, "value.at[0]", "datetime"),
        (Place("Oslo", [datetime(2024, 1, 2)]), "value.orders[0]", "datetime"),  # type: ignore[list-item]
        ({"tags": {"a"}}, "value.tags", "set"),
        ({1: "x"}, "value", "int"),
        ([float("nan")], "value[0]", "float"),
        ([Opaque(inner=object())], "value[0]", "Opaque"),
        (looped, "value[0]", "list"),
        (Unprintable(), "value", "Unprintable"),
    ],
)
def test_textless_value_refused_by_path(value: object, path: str, type_name: str) -> None:
    for make in (to_result, Result):
        with pytest.raises(NotJsonError) as refused:
            make(value)
        assert (refused.value.path, refused.value.type_name) == (path, type_name)


def test_results_accept_positional_parts() -> None:
    assert Result("x", sales, {"a": 1}) == Result(value="x", agent=sales, context_variables={"a": 1})
    assert Result() == Result(value="", agent=None, context_variables={})


def test_later_assigned_value_becomes_text() -> None:
    result = Result("x")
    result.value = {"a": 1}  # type: ignore[assignment]
    assert result.value == '{"a": 1}'
    with pytest.raises(ValidationError):
        result.agent = "sales"  # type: ignore[assignment]


def test_result_copies_the_passed_context() -> None:
    context = {"a": 1}
    result = Result("x", context_variables=context)
    result.context_variables["b"] = 2
    assert context == {"a": 1}
    assert Result().context_variables == {}


def test_agent_and_result_subclasses_count() -> None:
    class Nurse(Agent):
        ward: int = 1

    class Note(Result):
        urgent: bool = False

    nurse = Nurse(name="Nurse")
    assert to_result(nurse).agent is nurse
    note = Note(value="x", agent=nurse, urgent=True)
    assert to_result(note) is note
    assert note.agent is nurse
    assert (note.value, note.urgent) == ("x", True)


def test_object_shaped_like_result_counts() -> None:
    foreign = SimpleNamespace(value={"a": 1}, agent=sales, context_variables={"b": 2})
    assert to_result(foreign) == Result(value='{"a": 1}', agent=sales, context_variables={"b": 2})
    almost = SimpleNamespace(value="x", agent="sales", context_variables={})
    assert to_result(almost).value == str(almost)


def test_object_with_failing_attributes_is_value() -> None:
    class Row:
        value = "x"

        @property
        def agent(self) -> Agent:
            raise RuntimeError("detached")

        def __str__(self) -> str:
            return "row"

    assert to_result(Row()).value == "row"


def test_response_has_swarm_fields_and_defaults() -> None:
    assert Response().model_dump() == {"messages": [], "agent": None, "context_variables": {}, "output": None}
    assert Response(messages=[{"role": "user"}], agent=sales, context_variables={"a": 1}).agent is sales
