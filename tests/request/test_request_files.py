"""Files in requests: references in what is kept, their content in what is sent."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from swarmkeep import File
from swarmkeep.decide.files import FileLimits, keep_files, take_out_files
from swarmkeep.events.codec import Json
from swarmkeep.events.facts import MessageAdded, MessageRemoved
from swarmkeep.events.files import MAX_SENT_BYTES
from swarmkeep.events.messages import HEADING
from swarmkeep.events.records import ToolRecord
from swarmkeep.events.state import State
from swarmkeep.request.request import Profile, assemble_request, build_request
from tests.events.given import given, when
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

PROFILE = Profile(name="A", model="m", instructions="Be kind.")
PICTURES = [make_png(1000, seed) for seed in range(3)]
ANSWER: Json = {"role": "assistant", "content": "A cat."}


def tell(*messages: Json) -> tuple[State, dict[str, bytes]]:
    """The state after these messages, and the files that they came with."""
    taken = take_out_files(messages, "/input", FileLimits())
    return given(*(MessageAdded(message=message) for message in taken.messages)), taken.files


def send(state: State, files: dict[str, bytes]) -> list[Any]:
    """The messages that a model is sent, by the bytes and by the objects, which say the same."""
    request = msgspec.structs.replace(build_request(state, PROFILE), files=files)
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
    request = build_request(state, PROFILE)
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
    assert build_request(state, PROFILE).file_names == [blobs[1]["sha256"], blobs[2]["sha256"]]
    sent = send(state, {str(blob["sha256"]): b"x" for blob in blobs})
    assert [message["content"][0]["type"] for message in sent] == ["text", "image_url", "image_url"]
    assert "left out" in sent[0]["content"][0]["text"]


def test_fileless_history_is_unchanged() -> None:
    state = given(MessageAdded(message={"role": "user", "content": [{"type": "text", "text": "hi"}]}))
    request = build_request(state, PROFILE)
    assert request.history.places == ()
    assert request.sent_history is request.history.pieces
    assert request.file_names == []


def test_claimed_file_size_adds_no_bytes() -> None:
    content = bytes(MAX_SENT_BYTES // 2 - 1)
    blob = {"sha256": hash_content(content), "media_type": "image/png", "size": 0}
    part = {"type": "image_url", "image_url": {}, "blob": blob}
    state = given(MessageAdded(message=make_message(*[part] * 5)))
    request = msgspec.structs.replace(build_request(state, PROFILE), files={hash_content(content): content})
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
