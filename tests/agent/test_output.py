"""What an agent's answers have to be: schemas, when they are strict, and what is wrong with an answer."""

from __future__ import annotations

import copy
import datetime
import json
import pickle
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator
from typing_extensions import TypedDict

from swarmkeep import Agent
from swarmkeep.agent.output import (
    MAX_CHARACTERS,
    MAX_VALUES,
    OUTPUT_TOOL,
    InvalidOutput,
    OutputTypeError,
    check_schema,
    is_strict,
    make_output_format,
)


class Size(Enum):
    SMALL = "small"


class Item(BaseModel):
    """A thing."""

    sku: str
    count: int = 1
    due: datetime.date | None = None
    size: Size

    @field_validator("sku")
    @classmethod
    def check_sku(cls, value: str) -> str:
        if value == "boom":
            raise RuntimeError("boom")
        return value


class Order(BaseModel):
    items: list[Item]
    main: Item = Field(description="the first")


class Open(BaseModel):
    counts: dict[str, int]


class Node(BaseModel):
    children: list[Node]


@dataclass
class Point:
    x: int
    y: float = 0.0


class Answer(TypedDict):
    kind: Literal["yes", "no"]


CLOSED: dict[str, Any] = {
    "title": "My answer!",
    "type": "object",
    "properties": {"word": {"type": "string", "pattern": "^(a+)+$"}},
    "required": ["word"],
    "additionalProperties": False,
}


def find_problems(output_type: Any, text: str) -> str:
    with pytest.raises(InvalidOutput) as refused:
        make_output_format(output_type).check(text)
    return str(refused.value)


@pytest.mark.parametrize("type_", [Item, Order, Node, Point, Answer])
def test_type_described_strictly_if_possible(type_: Any) -> None:
    output = make_output_format(type_)
    assert output.strict
    assert is_strict(output.schema)
    assert output.response_format == {
        "type": "json_schema",
        "json_schema": {"name": type_.__name__, "schema": output.schema, "strict": True},
    }
    assert "title" not in json.dumps(output.schema)


def test_open_object_type_described_as_is() -> None:
    output = make_output_format(Open)
    assert not output.strict
    assert output.schema["properties"]["counts"]["additionalProperties"] == {"type": "integer"}
    assert output.check('{"counts": {"a": 1}}') == Open(counts={"a": 1})


def test_answers_become_the_type() -> None:
    item = '{"sku": "a", "count": 2, "due": "2031-01-01", "size": "small"}'
    assert make_output_format(Item).check(item) == Item(
        sku="a", count=2, due=datetime.date(2031, 1, 1), size=Size.SMALL
    )
    assert make_output_format(Point).check('{"x": 1, "y": 2}') == Point(1, 2.0)
    assert make_output_format(Answer).check('{"kind": "yes"}') == {"kind": "yes"}
    assert make_output_format(CLOSED).check('{"word": "aa"}') == {"word": "aa"}
    assert make_output_format(CLOSED).name == "My_answer"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("Here you are: {}", "not JSON"),
        ('{"x": 1} and more', "not JSON"),
        ('{"x": NaN}', "JSON cannot hold"),
        ('{"x": 1, "x": 2}', "twice"),
        ("[" * 15_000, "nested too deep"),
        ("[" * 300 + "]" * 300, "levels deep"),
        ('{"x": "1"}', "/x: Input should be a valid integer"),
        ("{}", "/x: Field required"),
        ("null", "it: "),
    ],
)
def test_answer_problems_are_told(text: str, words: str) -> None:
    assert words in find_problems(Point, text)


@pytest.mark.parametrize("text", ['{"x":' + " " * MAX_CHARACTERS + "1}", "[" + "1," * MAX_VALUES + "1]"])
def test_huge_answer_is_not_parsed(text: str) -> None:
    assert "more than 20000 values" in find_problems({}, text)


def test_breaking_validator_is_a_problem() -> None:
    assert "RuntimeError: boom" in find_problems(Item, '{"sku": "boom", "size": "small"}')


def test_only_some_problems_are_told() -> None:
    problems = find_problems({"type": "object", "additionalProperties": {"type": "string"}}, json.dumps(
        {str(number): number for number in range(5000)}
    ))  # fmt: skip
    assert problems.endswith("; and 1 more")
    assert len(problems) < 2000


def test_pattern_check_takes_linear_time() -> None:
    # A backtracking engine would be at this until the end of the world.
    assert find_problems(CLOSED, json.dumps({"word": "a" * 50_000 + "b"}))


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "nothing"}, "not a JSON schema"),
        ({"pattern": "(?=x)"}, "not a JSON schema"),
        ({"$ref": "http://127.0.0.1:9/schema.json"}, "outside of the schema"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "outside of the schema"),
        ({"$ref": "#/nowhere"}, "not a JSON schema"),
        ({"description": "x" * 70_000}, "at most 65536"),
        ({"enum": [float("nan")]}, "JSON cannot hold"),
        (
            {"not": {"not": {"items": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}}},
            "levels deep",
        ),
        (list[int], "is not an object"),
        (object(), "has no JSON Schema"),
    ],
)
def test_uncheckable_output_type_refused(schema: Any, words: str) -> None:
    with pytest.raises(OutputTypeError, match=words):
        make_output_format(schema)
    with pytest.raises(ValidationError, match=words):
        Agent(output_type=schema)


def test_agent_patterns_share_one_bound() -> None:
    def with_patterns(count: int, pattern: str) -> Any:
        return {"type": "object", "properties": {f"a{n}": {"pattern": pattern} for n in range(count)}}

    assert make_output_format(with_patterns(1, "^.{1,1000}$")).check("{}") == {}
    assert make_output_format(with_patterns(200, "^[a-z]{2,64}$")).check("{}") == {}
    for count, pattern, words in ((40, r"\pL{100}", "regex"), (201, "^a$", "more than 200 patterns")):
        with pytest.raises(OutputTypeError, match=words):
            make_output_format(with_patterns(count, pattern))


def test_schema_checked_without_patterns() -> None:
    # Compiled, each would take megabytes; the last is none at all.
    patterns = {f"a{n}": {"pattern": r"\pL{100}{100}"} for n in range(1000)}
    check_schema({"$schema": "http://127.0.0.1:9/", "properties": {**patterns, "z": {"pattern": "("}}}, "it")
    check_schema({"properties": {"a b": True, "x": {"$ref": "#/properties/a%20b"}}}, "it")
    for schema in ({"pattern": 1}, {"properties": {"a": {"type": "strin"}}}, {"items": {"$ref": "#/nowhere"}}):
        with pytest.raises(OutputTypeError, match="not a JSON schema"):
            check_schema(schema, "it")


def test_million_times_repeated_schema_refused() -> None:
    twice = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(20)}
    with pytest.raises(OutputTypeError, match="more than 20000 parts"):
        make_output_format({"$ref": "#/$defs/a0", "$defs": {**twice, "a20": {"type": "integer"}}})
    few = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(5)}
    assert make_output_format({"$ref": "#/$defs/a0", "$defs": {**few, "a5": {"type": "integer"}}}).check("1") == 1


def test_long_chain_schema_refused() -> None:
    chain = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(1500)}
    with pytest.raises(OutputTypeError, match="more than 20000 parts"):
        make_output_format({"$ref": "#/$defs/a0", "$defs": {**chain, "a1500": {}}})


def test_all_reference_schema_checked_in_time() -> None:
    assert make_output_format({"$ref": "#"}).check("{}") == {}


@pytest.mark.parametrize(
    "change",
    [
        {"additionalProperties": True},
        {"required": []},
        {"properties": {"word": {"type": "string", "minLength": 1}}},
        {"properties": {"word": {}}},
        {"properties": {"word": {"type": "array"}}},
        {"properties": {"word": {"oneOf": [{"type": "string"}]}}},
        {"properties": {"word": {"$ref": "#/$defs/W", "description": "x"}}},
        {"properties": {"word": {"type": "string", "format": "made-up"}}},
        {"properties": {"word": {"type": "object", "properties": {}}}},
        {"type": "array"},
        {"anyOf": [{"type": "string"}]},
    ],
)
def test_unsupported_strict_schema_not_marked_strict(change: dict[str, Any]) -> None:
    assert is_strict(CLOSED)
    assert not is_strict({**CLOSED, **change})


def test_output_function_name_is_reserved() -> None:
    def final_output() -> str:
        return ""

    agent = Agent(output_type=Point, output_mode="tool")
    output = agent.output()
    assert output.tool_schema["function"]["name"] == OUTPUT_TOOL
    with pytest.raises(ValidationError, match="takes the output"):
        Agent(output_type=Point, output_mode="tool", functions=[final_output])
    with pytest.raises(ValidationError, match="schema of an object"):
        Agent(output_type={"type": "array"}, output_mode="tool")
    assert Agent(output_type=Point, functions=[final_output]).output() is output


def test_agent_with_output_type_copies() -> None:
    agent = Agent(output_type=copy.deepcopy(CLOSED))
    assert pickle.loads(pickle.dumps(agent)) == agent.model_copy(deep=True) == agent
    agent.output_type = Point
    assert agent.output() is make_output_format(Point)
    agent.output_type = None
    assert agent.output() is None
