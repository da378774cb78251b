"""Values of unions of models that contain it are read within bounds, and their authors are told of discriminators."""

from __future__ import annotations

import json
import warnings
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from swarmkeep import Agent
from swarmkeep.agent import Tool, ToolArgumentsError
from swarmkeep.agent.output import InvalidOutput, make_output_format


class And(BaseModel):
    all: list[Filter]


class Or(BaseModel):
    all: list[Filter]


class Not(BaseModel):
    all: list[Filter]


class Is(BaseModel):
    field: str
    value: str


Filter = And | Or | Not | Is


class Both(BaseModel):
    kind: Literal["both"]
    all: list[Tagged]


class Either(BaseModel):
    kind: Literal["either"]
    all: list[Tagged]


class Plain(BaseModel):
    kind: Literal["plain"]
    value: str


Tagged = Annotated[Both | Either | Plain, Field(discriminator="kind")]
Untagged = Both | Either | Plain


class Answer(BaseModel):
    filter: Filter


class Node(BaseModel):
    children: list[Node] = []
    parent: Node | None = None


for model in (And, Or, Not, Both, Either):
    model.model_rebuild()

AS_SCHEMA = {
    "type": "object",
    "properties": {"filter": {"$ref": "#/$defs/filter"}},
    "$defs": {
        "filter": {"anyOf": [{"$ref": "#/$defs/and"}, {"$ref": "#/$defs/or"}, {"$ref": "#/$defs/is"}]},
        "and": {"type": "object", "properties": {"all": {"items": {"$ref": "#/$defs/filter"}}}, "required": ["all"]},
        "or": {"type": "object", "properties": {"all": {"items": {"$ref": "#/$defs/filter"}}}, "required": ["all"]},
        "is": {"type": "object", "required": ["field", "value"]},
    },
}


def nest(levels: int, value: Any) -> Any:
    for level in range(levels):
        value = {"kind": ("both", "either")[level % 2], "all": [value]}
    return {"filter": value}


def bind(function: Any, arguments: Any) -> Any:
    return Tool(function).bind(json.dumps(arguments), context_variables={}, tool_call_id="c")


def search(filter: Filter) -> str:
    return "found"


def search_tagged(filter: Tagged) -> str:
    return "found"


def search_untagged(filter: Untagged) -> str:
    return "found"


@pytest.mark.parametrize("leaf", [{"field": "a"}, {"field": "a", "value": "b"}])
def test_deep_values_refused_before_reading(leaf: Any) -> None:
    for levels in (16, 90):
        arguments = nest(levels, leaf)
        with pytest.raises(ToolArgumentsError, match="filter is nested too deep for a union"):
            bind(search, arguments)
        for output_type in (Answer, AS_SCHEMA):
            with pytest.raises(InvalidOutput, match="nested too deep for a union"):
                make_output_format(output_type).check(json.dumps(arguments))


def test_shallow_wide_and_tagged_values_read() -> None:
    leaf = {"field": "a", "value": "b"}
    assert bind(search, nest(4, leaf))() == "found"
    assert bind(search, {"filter": {"all": [{**leaf} for _ in range(2000)]}})() == "found"
    assert bind(search_tagged, nest(90, {"kind": "plain", "value": "x"}))() == "found"
    assert make_output_format(AS_SCHEMA).check(json.dumps(nest(4, leaf))) == nest(4, leaf)
    tree: Any = {"children": []}
    for _ in range(90):
        tree = {"children": [tree]}
    assert make_output_format(Node).check(json.dumps(tree))


def test_only_some_wrong_values_told() -> None:
    with pytest.raises(ToolArgumentsError) as refused:
        bind(search, nest(4, {"field": "a"}))
    assert str(refused.value).endswith("filter has more such errors")
    assert len(str(refused.value)) < 2000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"functions": [search]}, r"search\(\) of agent 'A': .*`kind: Literal\[\"and\"\]` .*discriminator=\"kind\""),
        ({"functions": [search_untagged]}, r"refused; use Annotated\[Both \| Either.*\(discriminator=\"kind\"\)\]"),
        ({"output_type": Answer}, r"output_type of agent 'A': the union And \| Or \| Not \| Is contains itself"),
    ],
)
def test_agent_with_recursive_union_warns(options: Any, words: str) -> None:
    with pytest.warns(UserWarning, match=words):
        Agent(name="A", **options)


def test_other_recursive_types_warn_of_nothing() -> None:
    def grow(tree: Node, other: list[Node] | dict[str, Node] | None = None) -> str:
        return ""

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Agent(functions=[search_tagged, grow], output_type=Node)
