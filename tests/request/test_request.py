"""From a state to what a model is sent: on any log a valid request, with the content of files."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, settings
from hypothesis import given as for_any
from hypothesis import strategies as st

from swarmkeep import File
from swarmkeep.decide.checks import FileLimits, keep_files, take_out_files
from swarmkeep.events.codec import Json, digest
from swarmkeep.events.facts import MessageAdded, MessageRemoved, RecordedEvent
from swarmkeep.events.files import MAX_SENT_BYTES
from swarmkeep.events.fold import evolve, fold
from swarmkeep.events.messages import HEADING
from swarmkeep.events.records import ToolRecord
from swarmkeep.events.state import State
from swarmkeep.request.request import Profile, assemble_request, build_request
from tests.events.given import (
    calling_message,
    given,
    make_run_started,
    model_calls,
    model_reply,
    running,
    tool_call,
    tool_result,
    user_said,
    when,
)
from tests.request.profile import PROFILE, TOOLS, build_messages
from tests.support.hypothesis_profiles import examples
from tests.support.logs import (
    ARGUMENTS,
    PROFILES,
    TEXTS,
    SeededDice,
    any_logs,
    json_values,
    make_hostile_log,
    make_random_log,
    profiles,
)
from tests.support.pictures import (
    encode_content,
    hash_content,
    make_data_url,
    make_inline_audio,
    make_inline_file,
    make_inline_picture,
    make_message,
    make_png,
)
from tests.support.rules import find_body_faults, find_faults, is_same, parse_strict_json

OUTPUT = '{"type":"function"}'


def test_the_instructions_come_first() -> None:
    assert build_request(given(), PROFILE).messages == [{"role": "system", "content": "You help."}]


def test_tool_parameters_need_tools() -> None:
    without = Profile(name="a", model="m", instructions="", tool_choice="auto", parallel_tool_calls=False)
    assert build_request(given(), without).params == {"model": "m"}
    tools = Profile(name="a", model="m", instructions="", tools=TOOLS, tool_choice="auto", parallel_tool_calls=False)
    assert build_request(given(), tools).params == {"model": "m", "tool_choice": "auto", "parallel_tool_calls": False}
    plain = Profile(name="a", model="m", instructions="", tools=TOOLS)
    assert build_request(given(), plain).params == {"model": "m", "parallel_tool_calls": True}


def test_a_run_may_name_another_model() -> None:
    assert build_request(given(make_run_started(model="better")), PROFILE).params == {"model": "better"}
    assert build_request(given(make_run_started()), PROFILE).params == {"model": "m"}


def test_a_streamed_request_asks_for_usage() -> None:
    params = build_request(given(), PROFILE, stream=True).params
    assert params == {"model": "m", "stream": True, "stream_options": {"include_usage": True}}


def test_record_and_log_rebuild_request_bytes() -> None:
    profile = Profile(name="a", model="m", instructions="You\ud800 help.", tools=TOOLS, tool_choice="auto")
    asked = build_request(given(user_said(), model_calls("c1")), profile)
    record = asked.record
    assert asked.blobs == {record.instructions: profile.instructions, record.tools: TOOLS}
    assert record.instructions == digest(profile.instructions)
    again = assemble_request(given(user_said(), model_calls("c1")).messages, profile.instructions, TOOLS, record.params)
    assert again.body() == asked.body()


def test_toolless_request_has_one_blob() -> None:
    asked = build_request(given(), PROFILE)
    assert asked.record.tools is None
    assert list(asked.blobs.values()) == ["You help."]


def test_forced_choice_holds_once_with_run_format() -> None:
    profile = Profile(
        name="triage", model="m", instructions="", tools=TOOLS, tool_choice="required", output_tool=OUTPUT
    )
    turn = (model_calls("c1"), tool_result("c1"))
    asked = running(*turn)
    assert build_request(asked, profile).params["tool_choice"] == "required"
    asked = running(*turn, response_format={"type": "json_object"})
    assert build_request(asked, profile).params["tool_choice"] == "auto"


# On any log.


def check_request(state: State, profile: Profile, stream: bool = False) -> None:
    asked = build_request(state, profile, stream=stream)
    messages, body = asked.messages, asked.body()
    assert find_faults(messages) == []
    assert find_body_faults(body) == []
    whole = {"messages": messages, **({"tools": json.loads(asked.tools)} if asked.tools else {}), **asked.params}
    assert is_same(parse_strict_json(body.decode()), whole)


@for_any(events=any_logs(), profile=profiles(), stream=st.booleans())
@settings(max_examples=examples(80))
def test_any_log_prefix_gives_valid_request(events: list[RecordedEvent], profile: Profile, stream: bool) -> None:
    state = State()
    check_request(state, profile, stream)
    for event in events:
        state = evolve(state, event)
        check_request(state, profile, stream)


def test_seeded_log_ends_give_valid_requests() -> None:
    for seed in range(examples(250)):
        for events in (make_random_log(SeededDice(seed)), make_hostile_log(SeededDice(seed), moves=6)):
            check_request(fold(events), PROFILES[seed % len(PROFILES)], stream=seed % 2 == 0)


MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(("user", "assistant", "tool", "system"))},
    optional={key: json_values(6) for key in ("content", "tool_calls", "tool_call_id", "name", "refusal")},
)


@for_any(message=MESSAGES)
@example(message={"role": "assistant", "content": None, "tool_calls": [None, {"id": "c1", "function": {"name": 1}}]})
@settings(max_examples=examples(100))
def test_no_message_makes_a_request_invalid(message: Json) -> None:
    check_request(given(MessageAdded(message=message), user_said()), PROFILE)


@pytest.mark.parametrize("text", [*TEXTS, *ARGUMENTS], ids=range(len(TEXTS) + len(ARGUMENTS)))
def test_no_text_makes_a_request_invalid(text: str) -> None:
    state = given(
        user_said(text),
        model_reply({**calling_message(tool_call(text, text, text)), "content": text}),
        tool_result(text, text),
        user_said(text),
    )
    check_request(state, Profile(name=text, model="m", instructions=text))
    assert len(build_messages(state)) == 4


# Files in requests: references in what is kept, their content in what is sent.

FILES_PROFILE = Profile(name="A", model="m", instructions="Be kind.")
PICTURES = [make_png(1000, seed) for seed in range(3)]
ANSWER: Json = {"role": "assistant", "content": "A cat."}


def tell(*messages: Json) -> tuple[State, dict[str, bytes]]:
    """The state after these messages, and the files that they came with."""
    taken = take_out_files(messages, "/input", FileLimits())
    return given(*(MessageAdded(message=message) for message in taken.messages)), taken.files


def send(state: State, files: dict[str, bytes]) -> list[Any]:
    """The messages that a model is sent, by the bytes and by the objects, which say the same."""
    request = msgspec.structs.replace(build_request(state, FILES_PROFILE), files=files)
    sent = json.loads(request.body())["messages"]
    assert request.messages == sent
    again = msgspec.structs.replace(
        assemble_request(list(state.messages), "Be kind.", None, {"model": "m"}, rules=request.history.rules),
        files=files,
    )
    assert again.body() == request.body()
    assert isinstance(sent, list)
    return sent[1:]


def test_model_receives_uploaded_files() -> None:
    said = [
        make_message(make_inline_picture(PICTURES[0], detail="low"), make_inline_audio(b"sound")),
        ANSWER,
        make_message(make_inline_picture(PICTURES[0]), text='"quoted" \u2028 é 😀'),
        make_message(make_inline_file(b"%PDF-", "ü.pdf"), {"type": "image_url", "image_url": {"url": "https://a/b"}}),
    ]
    state, files = tell(*said)
    assert send(state, files) == said


def test_file_requests_stay_right_each_turn() -> None:
    said: list[Json] = []
    state, files = tell()
    for number in range(6):
        message = make_message(make_inline_picture(PICTURES[number % 3])) if number % 2 else make_message(text="é")
        taken = take_out_files([message], "/input", FileLimits())
        files |= taken.files
        state = when(state, MessageAdded(message=taken.messages[0]))
        said.append(message)
        assert send(state, files) == said
        state = when(state, MessageAdded(message=ANSWER))
        said.append(ANSWER)


def test_cached_history_holds_no_file_content() -> None:
    state, files = tell(make_message(make_inline_picture(PICTURES[0])), ANSWER, make_message())
    request = build_request(state, FILES_PROFILE)
    send(state, files)
    text = encode_content(PICTURES[0]).encode()
    assert text not in request.history.json
    assert text.decode() not in repr(state)
    assert request.file_names == [hash_content(PICTURES[0])]


def test_words_stand_where_content_is_missing() -> None:
    state, _ = tell(make_message(make_inline_picture(PICTURES[0])))
    part = send(state, {})[0]["content"][1]
    assert part["type"] == "text"
    assert "image/png" in part["text"]
    assert "not there" in part["text"]


def test_reference_lookalikes_are_left_alone() -> None:
    state, files = tell(make_message(make_inline_picture(PICTURES[0])))
    reference = state.messages[0].message["content"][1]
    odd = [{"type": "text", "text": json.dumps(reference)}, {"type": "text", "text": "x"}]
    foreign = {"type": "odd", "inner": reference}
    state = when(state, MessageAdded(message={"role": "user", "content": [*odd, reference, foreign]}))
    sent = send(state, files)[1]["content"]
    assert sent[:2] == odd
    assert sent[2] == make_inline_picture(PICTURES[0])
    assert sent[3]["text"].startswith('[odd: {"inner":{')


def test_newest_files_win_over_limit() -> None:
    size = MAX_SENT_BYTES // 2
    blobs = [{"sha256": f"{number:064x}", "media_type": "image/png", "size": size} for number in range(3)]
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {}, "blob": blob}]} for blob in blobs]
    state = given(*(MessageAdded(message=message) for message in messages))
    assert build_request(state, FILES_PROFILE).file_names == [blobs[1]["sha256"], blobs[2]["sha256"]]
    sent = send(state, {str(blob["sha256"]): b"x" for blob in blobs})
    assert [message["content"][0]["type"] for message in sent] == ["text", "image_url", "image_url"]
    assert "left out" in sent[0]["content"][0]["text"]


def test_fileless_history_is_unchanged() -> None:
    state = given(MessageAdded(message={"role": "user", "content": [{"type": "text", "text": "hi"}]}))
    request = build_request(state, FILES_PROFILE)
    assert request.history.places == ()
    assert request.sent_history is request.history.pieces
    assert request.file_names == []


def test_claimed_file_size_adds_no_bytes() -> None:
    content = bytes(MAX_SENT_BYTES // 2 - 1)
    blob = {"sha256": hash_content(content), "media_type": "image/png", "size": 0}
    part = {"type": "image_url", "image_url": {}, "blob": blob}
    state = given(MessageAdded(message=make_message(*[part] * 5)))
    request = msgspec.structs.replace(build_request(state, FILES_PROFILE), files={hash_content(content): content})
    assert sum(map(len, request.sent_history)) < 2 * MAX_SENT_BYTES


def test_call_files_follow_sent_results() -> None:
    kept = keep_files([File(PICTURES[0], "image/png"), File(b"a,b", "text/csv")], FileLimits())

    def call(*ids: str) -> MessageAdded:
        calls = [{"id": name, "type": "function", "function": {"name": "draw", "arguments": "{}"}} for name in ids]
        return MessageAdded(message={"role": "assistant", "content": None, "tool_calls": calls})

    def answer(name: str, status: str = "ok") -> MessageAdded:
        # A log from elsewhere may have parts that refer to nothing.
        parts = (*kept.parts, {"type": "image_url"}, {"type": "text", "text": "hm"})
        message = {"role": "tool", "tool_call_id": name, "content": "drawn"}
        return MessageAdded(message=message, tool=ToolRecord(name="draw", status=status, files=parts))

    question = MessageAdded(message={"role": "user", "content": "Draw."})
    state = given(question, call("c1", "c2"), answer("c2"), answer("c1"), call("c3"), answer("c3"))
    sent = send(state, kept.content)
    assert [message["role"] for message in sent] == [
        "user", "assistant", "tool", "tool", "user", "assistant", "tool", "user",
    ]  # fmt: skip
    shown = {"type": "image_url", "image_url": {"url": make_data_url(PICTURES[0])}}
    texts = [f"{HEADING} picture 1 of the result of draw ({name})]" for name in ("c1", "c2")]
    assert sent[4]["content"] == [{"type": "text", "text": texts[0]}, shown, {"type": "text", "text": texts[1]}, shown]
    # The last reply was taken out, with its result.
    removed = given(
        question, call("c1"), answer("c1"), call("c3"), answer("c3"), MessageRemoved(message_seq=4, seqs=(5,))
    )
    assert [message["role"] for message in send(removed, kept.content)] == ["user", "assistant", "tool", "user"]
    # Without its content there are words.
    assert send(removed, {})[3]["content"][1]["text"].endswith("its content is not there]")
