"""The parameters of a model request that an agent may set."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from swarmkeep import Agent
from swarmkeep.agent.values import (
    ELSEWHERE,
    MAX_BYTES,
    MAX_FORMAT_BYTES,
    ModelSettingsError,
    check_model_settings,
    check_response_format,
    merge_settings,
)


def nest(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_agent_copies_its_model_settings() -> None:
    given = {"temperature": 0.2, "logit_bias": {"50256": -100}, "extra_body": {"top_k": 40}}
    agent = Agent(model_settings=given)
    given["logit_bias"]["50256"] = 0  # type: ignore[index]
    assert agent.model_settings == {
        "temperature": 0.2,
        "logit_bias": {"50256": -100},
        "extra_body": {"top_k": 40},
    }
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
