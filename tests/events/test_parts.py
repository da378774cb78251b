"""Parts that Chat Completions does not have become parts that it has, or are refused with their place."""

from __future__ import annotations

from typing import Any

import pytest

from swarmkeep.decide.checks import check_messages
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import InvalidRequest

TEXT = {"type": "text", "text": "x"}
PNG = "iVBORw0KGgo="
PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
ADDRESS = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
CALL = {"id": "t", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
TOOL_USE = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}
THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "hmm"}]}


def convert(role: str, *parts: Json, **rest: Any) -> Json:
    (message,) = check_messages([{"role": role, "content": list(parts), **rest}], "/input")
    return message


@pytest.mark.parametrize(
    ("part", "converted"),
    [
        ({"type": "input_text", "text": "x"}, TEXT),
        ({"type": "output_text", "text": "x", "annotations": [], "logprobs": []}, TEXT),
        ({"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}, TEXT),
        ({"type": "text", "text": "x", "later": None}, TEXT),
        ({"type": "image_url", "image_url": "https://example.com/a.png"}, ADDRESS),
        ({"type": "input_image", "image_url": "https://example.com/a.png"}, ADDRESS),
        ({"type": "input_image", "image_url": "https://example.com/a.png", "detail": "low"},
         {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}}),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}, PICTURE),
        ({"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}, ADDRESS),
        ({"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="},
         {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}}),
        ({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}},
         {"type": "file", "file": {"filename": "document", "file_data": "data:application/pdf;base64,JVBERi0="}}),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav", "id": "a"}},
         {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
    ],
)  # fmt: skip
def test_equivalent_parts_are_converted(part: Json, converted: Json) -> None:
    assert convert("user", TEXT, part)["content"] == [TEXT, converted]


@pytest.mark.parametrize(
    ("role", "part", "place"),
    [
        ("user", {"type": "tool_result", "tool_use_id": "t", "content": "x"}, "/type"),
        ("user", TOOL_USE, "/type"),
        ("user", THOUGHT, "/type"),
        ("user", {"type": "refusal", "refusal": "no"}, "/type"),
        ("user", {"type": "video_url", "video_url": {"url": "data:,"}}, "/type"),
        ("user", {"type": ["text"]}, "/type"),
        ("user", {}, "/type"),
        ("user", {"type": "text"}, "/text"),
        ("user", {"type": "text", "text": None}, "/text"),
        ("user", {"type": "text", "text": "x", "colour": 1}, "/colour"),
        ("user", {"type": "image_url"}, "/image_url"),
        ("user", {"type": "image_url", "image_url": {}}, "/image_url/url"),
        ("user", {"type": "image_url", "image_url": {"url": 1}}, "/image_url/url"),
        ("user", {"type": "image_url", "image_url": {"url": "a", "detail": "most"}}, "/image_url/detail"),
        ("user", {"type": "image_url", "image_url": {"url": "a", "size": 1}}, "/image_url/size"),
        ("user", {"type": "input_audio", "input_audio": {"data": "AAAA"}}, "/input_audio/format"),
        ("user", {"type": "file", "file": {"filename": "a"}}, "/file/file_data"),
        ("user", {"type": "input_image", "file_id": "f"}, "/file_id"),
        ("user", {"type": "image", "source": {"type": "base64", "data": PNG}}, "/source"),
        ("user", {"type": "document", "source": {"type": "text", "data": "x"}}, "/source"),
        ("system", ADDRESS, "/type"),
        ("developer", {"type": "image", "source": {"type": "url", "url": "a"}}, "/type"),
        ("assistant", ADDRESS, "/type"),
        ("assistant", {"type": "refusal"}, "/refusal"),
        ("assistant", {"type": "tool_use", "id": "t", "name": "f", "input": "x"}, "/input"),
        ("assistant", {"type": "tool_use", "id": "", "name": "f", "input": {}}, "/id"),
    ],
)  # fmt: skip
def test_foreign_parts_are_refused_with_place(role: str, part: Json, place: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        convert(role, {**TEXT}, part)
    assert refused.value.errors[0]["pointer"] == f"/input/0/content/1{place}"


def test_inline_calls_become_tool_calls() -> None:
    message = convert("assistant", THOUGHT, {"type": "text", "text": "l"}, TOOL_USE)
    assert message == {"role": "assistant", "content": [{"type": "text", "text": "l"}], "tool_calls": [CALL]}
    assert convert("assistant", TOOL_USE) == {"role": "assistant", "content": None, "tool_calls": [CALL]}
    assert convert("assistant", TOOL_USE, tool_calls=[CALL])["tool_calls"] == [CALL]
    assert convert("assistant", THOUGHT)["content"] == ""


def test_pictures_beside_the_text_become_parts() -> None:
    (message,) = check_messages([{"role": "user", "content": "see", "images": [PNG]}], "/input")
    assert message == {"role": "user", "content": [{"type": "text", "text": "see"}, PICTURE]}
    assert check_messages([{"role": "user", "content": "see", "images": []}], "/input")[0] == {
        "role": "user", "content": "see",
    }  # fmt: skip
    for role, images in (("user", PNG), ("user", [1]), ("assistant", [PNG])):
        with pytest.raises(InvalidRequest) as refused:
            check_messages([{"role": role, "content": "see", "images": images}], "/input")
        assert refused.value.errors[0]["pointer"] == "/input/0/images"


def test_chat_completion_parts_stay() -> None:
    parts: list[Json] = [
        {"text": "x", "type": "text"},
        {"image_url": {"detail": "high", "url": "https://example.com"}, "type": "image_url"},
        {"type": "file", "file": {"file_id": "f"}},
    ]
    message = {"role": "user", "content": parts}
    assert check_messages([message], "/input")[0]["content"] == parts
    assert [list(part) for part in convert("user", *parts)["content"]] == [list(part) for part in parts]
