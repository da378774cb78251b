"""A request fits its model: parameters and messages by the model's profile, and what the model attached comes back."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.events.codec import Json, encode
from swarmkeep.events.facts import MessageAdded
from swarmkeep.events.messages import Entry
from swarmkeep.events.model_profiles import (
    MAX_ATTACHED_BYTES,
    ModelServer,
    attach,
    choose_profile,
    make_model_server,
    read_attached,
)
from swarmkeep.events.state import State
from swarmkeep.request.request import ModelRequest, Profile, assemble_request, build_request
from tests.events.given import given, make_run_started
from tests.request.profile import PROFILE, TOOLS
from tests.support.rules import find_faults

CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
SEAL = {"google": {"thought_signature": "SIG"}}


def said(role: str, content: Any = "text", **keys: object) -> MessageAdded:
    return MessageAdded(message={"role": role, "content": content, **keys})


def make_profile(model: str = "m", server: ModelServer = ModelServer(), **fields: str) -> Profile:  # noqa: B008
    return replace(PROFILE, model=model, server=server, model_profile=fields, tools=TOOLS)


def reply_with(**provider: Any) -> list[MessageAdded]:
    provider = {"model": "m", **provider}
    reply = said("assistant", "Look.", tool_calls=[CALL], provider=provider)
    return [said("user"), reply, said("tool", tool_call_id="c1")]


def rebuild(state: State, request: ModelRequest) -> bytes:
    """The bytes that the log and the request's record lead to."""
    rules = request.record.rules
    told = None if rules is UNSET else replace(rules, model=request.params["model"])
    rebuilt = assemble_request(list(state.messages), request.instructions, request.tools, request.params, rules=told)
    return rebuilt.body()


@pytest.mark.parametrize(
    ("model", "host", "differs"),
    [
        ("gpt-4o", "api.openai.com", {}),
        ("foo1-o3", "", {}),
        ("o3", "", {"parallel_tool_calls": "omit", "tokens_parameter": "max_completion_tokens"}),
        ("openai/o4-mini", "", {"parallel_tool_calls": "omit", "tokens_parameter": "max_completion_tokens"}),
        ("gpt-5.1", "", {"tokens_parameter": "max_completion_tokens"}),
        ("Qwen/Qwen3-8B", "", {"system_messages": "one_leading"}),
        ("codestral", "api.mistral.ai", {"tokens_parameter": "max_tokens", "developer_role": "system"}),
        ("codestral", "notmistral.ai.example", {}),
        ("openai/gpt-oss-120b", "api.groq.com", {"attachments": "omit"}),
        ("gpt-oss-120b", "api.cerebras.ai", {"attachments": "omit"}),
    ],
)
def test_the_table_knows_models(model: str, host: str, differs: Json) -> None:
    plain = choose_profile("unknown", ModelServer())
    assert choose_profile(model, ModelServer(host)) == {**plain, **differs}


def test_each_may_overrule_the_one_before() -> None:
    setting = {"stream_options": "omit", "attachments": "omit", "q*": {"attachments": "send_back"}}
    server = make_model_server("https://user:pw@host.example:1/v1", setting)
    assert server.host == "host.example"
    asked = make_profile("Qwen", server, system_messages="anywhere", content_parts="text")
    started = make_run_started(model_profile={"content_parts": "parts", "attachments": "nonsense", "else": "x"})
    made = build_request(given(started, said("developer"), said("user")), asked, stream=True)
    assert "stream_options" not in made.params
    assert [message["role"] for message in made.messages] == ["system", "developer", "user"]
    assert make_model_server("http://[").host == ""


@pytest.mark.parametrize(
    ("own", "asked", "fields", "sent"),
    [
        ({"max_tokens": 9}, {"max_completion_tokens": 5}, {}, {"max_completion_tokens": 5}),
        ({"max_completion_tokens": 9}, {"max_tokens": 5}, {}, {"max_tokens": 5}),
        ({"max_tokens": 9}, {"max_completion_tokens": None}, {}, {}),
        ({"max_tokens": 9, "max_completion_tokens": 8}, {}, {}, {"max_completion_tokens": 8}),
        ({"max_tokens": 9}, {}, {"tokens_parameter": "max_completion_tokens"}, {"max_completion_tokens": 9}),
        ({}, {"max_completion_tokens": 9}, {"tokens_parameter": "max_tokens"}, {"max_tokens": 9}),
    ],
)
def test_one_limit_of_tokens_is_sent(own: Json, asked: Json, fields: Json, sent: Json) -> None:
    profile = replace(make_profile(**fields), settings=own, tools=None)
    made = build_request(given(make_run_started(model_settings=asked)), profile)
    assert made.params == {"model": "m", **sent}


@pytest.mark.parametrize(
    ("own", "asked", "sent"), [(None, UNSET, {}), (True, None, {}), (None, False, {"parallel_tool_calls": False})]
)
def test_none_sends_no_parallel_tool_calls(own: Any, asked: Any, sent: Json) -> None:
    profile = replace(make_profile(), parallel_tool_calls=own)
    made = build_request(given(make_run_started(parallel_tool_calls=asked)), profile)
    assert {key: made.params[key] for key in made.params if key != "model"} == sent


def test_system_messages_lead_where_one_may() -> None:
    parts = [{"type": "text", "text": "three"}]
    log = [said("system", "one"), said("user"), said("developer", "two"), said("assistant"), said("system", parts)]
    state = given(*log)
    made = build_request(state, make_profile(system_messages="one_leading"))
    assert made.messages[0] == {"role": "system", "content": "You help.\n\none\n\ntwo\n\nthree"}
    assert [message["role"] for message in made.messages[1:]] == ["user", "assistant"]
    assert made.record.rules is not UNSET
    assert encode(replace(made.record.rules, version=2)) == b'{"version":2,"system_messages":"one_leading"}'
    assert rebuild(state, made) == made.body()
    plain = build_request(state, make_profile())
    assert (len(plain.messages), plain.record.rules) == (6, UNSET)
    assert build_request(state, make_profile(system_messages="one_leading")).body() == made.body()


def test_parts_become_text_where_needed() -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    state = given(said("user", [{"type": "text", "text": "Look:"}, picture]), said("developer", "Be kind."))
    made = build_request(state, make_profile(content_parts="text", developer_role="system"))
    assert made.messages[1:] == [
        {"role": "user", "content": "Look:\n[left out, because this model takes texts only: image_url]"},
        {"role": "system", "content": "Be kind."},
    ]
    assert rebuild(state, made) == made.body()


@pytest.mark.parametrize(
    ("model", "server", "fields", "comes_back"),
    [
        ("m", "", {}, True),
        ("m", "host", {}, True),
        ("m", "other", {}, False),
        ("other", "host", {}, False),
        ("m", "host", {"attachments": "omit"}, False),
    ],
)
def test_attachments_go_to_their_sender(model: str, server: str, fields: Json, comes_back: bool) -> None:
    calls = {"c1": {"extra_content": SEAL, "function": {"hint": 1}}}
    state = given(*reply_with(server="host", message={"reasoning_content": "hm"}, calls=calls))
    made = build_request(state, make_profile(model, ModelServer(server), **fields))
    sent = made.messages[2]
    plain: Json = {"role": "assistant", "content": "Look.", "tool_calls": [CALL]}
    call = {**CALL, "extra_content": SEAL, "function": {**CALL["function"], "hint": 1}}  # type: ignore[dict-item]
    assert sent == ({**plain, "reasoning_content": "hm", "tool_calls": [call]} if comes_back else plain)
    assert (made.record.rules is not UNSET) == comes_back
    assert rebuild(state, made) == made.body()
    # What is kept from one request to the next is not sent to the next model.
    other = build_request(state, make_profile("third"))
    assert other.messages[2] == plain
    assert build_request(state, make_profile(model, ModelServer(server), **fields)).body() == made.body()


@pytest.mark.parametrize("wanted", ["signature", "reasoning"])
def test_calls_of_others_are_marked(wanted: str) -> None:
    made = build_request(given(*reply_with(model="other")), make_profile(missing_attachments=wanted))
    sent = made.messages[2]
    assert ("extra_content" in sent["tool_calls"][0]) == (wanted == "signature")
    assert sent.get("reasoning_content") == (None if wanted == "signature" else "")


DEEP: Any = []
for _ in range(100):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "provider",
    [
        {"message": {"role": "system", "tool_calls": [], "name": "x", "refusal": "r", "sender": "y"}},
        {"message": {"content": [{"type": "text", "text": "another text"}]}},
        {"calls": {"c1": {"id": "c2", "type": "x", "function": {"name": "other", "arguments": "[]"}}, "c9": {"x": 1}}},
        {"message": {"x": "a" * (2 * MAX_ATTACHED_BYTES + 1)}},
        {"message": {"x": DEEP}},
        {"message": "text"},
        {"calls": {"c1": 5}},
        {"model": 5},
    ],
)
def test_forged_attachments_gain_nothing(provider: Json) -> None:
    state = given(*reply_with(**provider))
    made = build_request(state, make_profile())
    assert made.messages[2] == {"role": "assistant", "content": "Look.", "tool_calls": [CALL]}
    assert find_faults(made.messages) == []


def test_lone_surrogates_are_replaced_in_attachments() -> None:
    made = build_request(given(*reply_with(message={"reasoning_content": "a\ud800"})), make_profile())
    assert made.messages[2]["reasoning_content"] == "a\ufffd"
    assert b"\\ud800" not in made.body()


def test_what_exceeds_the_bound_is_dropped_whole() -> None:
    message: Json = {"role": "assistant", "content": None, "big": "a" * MAX_ATTACHED_BYTES, "deep": DEEP, "small": 1}
    kept = attach(message, [("c1", {**CALL, "index": 0, "extra": None, "seal": "s"})], "m", "")
    assert kept == {"model": "m", "message": {"small": 1}, "calls": {"c1": {"seal": "s"}}, "dropped": ["big", "deep"]}
    many = attach({f"k{n}": "a" * MAX_ATTACHED_BYTES for n in range(50)}, [], "m", "")
    assert many is not None
    assert len(many["dropped"]) == 20


@pytest.mark.parametrize(
    "message",
    [
        {"content": "hi", "refusal": None, "annotations": [], "audio": None, "function_call": None, "reasoning": None},
        {"content": [{"type": "text", "text": "hi"}], "reasoning_details": []},
    ],
)
def test_a_plain_reply_has_nothing_attached(message: Json) -> None:
    assert attach({"role": "assistant", **message}, [("c1", {**CALL, "index": 0})], "m", "host") is None


def test_lists_of_messages_hide_attachments() -> None:
    state = given(*reply_with(message={"reasoning_content": "hm"}))
    assert [entry.view() for entry in state.messages if "provider" in entry.view()] == []
    other = Entry(seq=1, at="", run_id=None, message={"role": "user", "content": "", "provider": {"model": "m"}})
    assert other.view()["provider"] == {"model": "m"}
    assert read_attached(other.message) is None


def test_a_partly_removed_message_keeps_the_rest() -> None:
    _, reply, _ = reply_with(message={"reasoning_content": "hm"}, calls={"c1": {"x": 1}, "c2": {"x": 2}})
    entry = Entry(seq=1, at="", run_id=None, message=reply.message, removed_content=True, removed_calls=("c1",))
    assert entry.shown_message["provider"] == {"model": "m", "calls": {"c2": {"x": 2}}}
    assert b"hm" not in encode(entry.shown_message)
