"""However a completion is cut into chunks, it is put together again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmkeep.events.codec import Json, encode
from swarmkeep.models.assembly import Assembly
from swarmkeep.models.failures import TruncatedStream
from swarmkeep.models.model import normalise_message
from swarmkeep.models.replies import ReplyLimits, read_text_chunk


def assemble(chunks: list[Json]) -> Json:
    assembly = Assembly(ReplyLimits())
    for chunk in chunks:
        list(assembly.add(chunk))
    return assembly.completion()


def assemble_message(chunks: list[Json]) -> Json:
    message: Json = assemble(chunks)["choices"][0]["message"]
    return message


def make_chunk(delta: Json, finish_reason: str | None = None, index: int | None = 0) -> Json:
    return {"id": "x", "model": "m", "choices": [{"index": index, "delta": delta, "finish_reason": finish_reason}]}


END = make_chunk({}, "stop")


def make_call(identifier: str, name: str, arguments: str) -> Json:
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def make_piece(name: str | None = None, arguments: str | None = None, **fields: Any) -> Json:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {**fields, "function": function}


# Any splitting of a completion.

# In which pieces calls come is test_call_pieces.py's.


@st.composite
def cut_text(draw: st.DrawFn, text: str) -> list[str]:
    """The text in any number of pieces, empty ones among them."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


TEXT = st.text(max_size=12)


@st.composite
def completions(draw: st.DrawFn) -> tuple[Json, list[Json]]:
    """A message, and chunks that it might come in."""
    content = draw(st.none() | TEXT)
    count = draw(st.integers(0, 4))
    calls = [
        make_call(f"call_{n}", draw(st.sampled_from(("look", "look", "pay"))), json.dumps({"q": draw(TEXT)}))
        for n in range(count)
    ]
    message: Json = {"role": "assistant", "content": content}
    deltas: list[Json] = [{"role": "assistant", "content": None}]
    if content is not None:
        deltas += [{"content": text} for text in draw(cut_text(content))]
    if calls:
        message["tool_calls"] = calls
        pieces = [{**call, "index": number} for number, call in enumerate(calls)]
        while pieces:
            many = draw(st.integers(1, 3))
            deltas.append({"tool_calls": pieces[:many]})
            del pieces[:many]
    chunks = [make_chunk(delta) for delta in deltas]
    for _ in range(draw(st.integers(0, 3))):
        extra = draw(
            st.sampled_from(
                ({"id": "x", "choices": []}, make_chunk({}), {}, {"choices": None}, make_chunk({"content": None}))
            )
        )
        chunks.insert(draw(st.integers(0, len(chunks))), extra)
    if draw(st.booleans()):
        chunks.append(make_chunk({}, "stop"))
    else:
        chunks[-1] = make_chunk((chunks[-1].get("choices") or [{"delta": {}}])[0]["delta"], "stop")
    if draw(st.booleans()):
        chunks.append({"id": "x", "choices": [], "usage": {"total_tokens": 7}})
    return message, chunks


@given(completions())
def test_any_splitting_assembles_the_same(made: tuple[Json, list[Json]]) -> None:
    message, chunks = made
    assert assemble_message(chunks) == message
    assert assemble_message([read_text_chunk(encode(chunk)) or chunk for chunk in chunks]) == message


def test_text_pieces_are_read_at_once() -> None:
    empty = {"refusal": None, "tool_calls": None, "function_call": None, "reasoning_content": None}
    for delta in ({"content": "a"}, {"role": "assistant", "content": "a", **empty}):
        assembly = Assembly(ReplyLimits())
        chunk = read_text_chunk(encode({**make_chunk(delta), "usage": None, "obfuscation": "x"}))
        assert chunk is not None
        assert assembly.add(chunk) == [{"content": "a", "tool_calls": None}]


@pytest.mark.parametrize(
    "chunk",
    [
        make_chunk({}),
        make_chunk({"content": None}),
        make_chunk({"content": ["a"]}),
        make_chunk({"content": "a", "reasoning_content": "b"}),
        make_chunk({"content": "a", "unheard_of": "b"}),
        make_chunk({"content": "a", "tool_calls": []}),
        make_chunk({"content": "a"}, "stop"),
        make_chunk({"content": "a"}, index=1),
        {**make_chunk({"content": "a"}), "usage": {"total_tokens": 1}},
        {**make_chunk({"content": "a"}), "error": {"message": "no"}},
        {"choices": []},
        {"choices": [*make_chunk({"content": "a"})["choices"] * 2]},
        {"choices": [{"message": {"content": "a"}}]},
    ],
    ids=str,
)
def test_richer_text_chunks_are_read_fully(chunk: Json) -> None:
    assert read_text_chunk(encode(chunk)) is None


@pytest.mark.parametrize("data", [b"", b"[DONE]", b"{", b"[]", b'{"choices":' * 5000, b'{"a":"\xff"}'], ids=len)
def test_non_chunk_is_no_text_piece(data: bytes) -> None:
    assert read_text_chunk(data) is None


@given(completions(), st.data())
def test_stream_without_end_is_incomplete(made: tuple[Json, list[Json]], data: st.DataObject) -> None:
    _, chunks = made
    end = next(n for n, chunk in enumerate(chunks) if any(c.get("finish_reason") for c in chunk.get("choices") or ()))
    with pytest.raises(TruncatedStream):
        assemble(chunks[: data.draw(st.integers(0, end))])


# Odd shapes, seen in the wild.


def test_any_chunk_may_bring_usage_or_reason() -> None:
    completion = assemble(
        [
            {"choices": [], "prompt_filter_results": []},
            make_chunk({"content": "hi"}),
            make_chunk({}, "length"),
            make_chunk({}),
            {"id": "other", "choices": [], "usage": {"total_tokens": 3}},
            {"choices": [], "usage": None},
        ]
    )
    assert completion == {
        "id": "x",
        "model": "m",
        "usage": {"total_tokens": 3},
        "choices": [{"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "hi"}}],
    }


def test_other_alternatives_are_ignored() -> None:
    assert (
        assemble_message([make_chunk({"content": "a"}), make_chunk({"content": "b"}, index=1), END])["content"] == "a"
    )


@pytest.mark.parametrize("index", [None, "0"])
def test_choice_without_index_is_first(index: Any) -> None:
    assert assemble_message([make_chunk({"content": "a"}, index=index), END])["content"] == "a"


def test_message_may_replace_a_delta() -> None:
    choice = {"message": {"role": "assistant", "content": "whole"}, "finish_reason": "stop"}
    assert assemble_message([{"choices": [choice]}])["content"] == "whole"


def test_same_id_calls_differ_by_index() -> None:
    begun = [make_piece("look", '{"n"', id="a", index=0), make_piece("look", '{"n"', id="a", index=1)]
    chunks = [
        make_chunk({"tool_calls": begun}),
        make_chunk({"tool_calls": [make_piece(None, ": 1}", id="a", index=0), make_piece(None, ": 2}", index=1)]}),
        END,
    ]
    calls = assemble_message(chunks)["tool_calls"]
    assert calls == [make_call("a", "look", '{"n": 1}'), make_call("a", "look", '{"n": 2}')]


def test_split_and_repeated_names_assemble() -> None:
    chunks = [
        make_chunk({"tool_calls": [make_piece("look_", id="a", index=0), make_piece("pay", "{", id="b", index=1)]}),
        make_chunk({"tool_calls": [make_piece("up", "{}", index=0), make_piece("pay", "}", index=1)]}),
        END,
    ]
    assert assemble_message(chunks)["tool_calls"] == [make_call("a", "look_up", "{}"), make_call("b", "pay", "{}")]


def test_arguments_as_an_object() -> None:
    chunks = [make_chunk({"tool_calls": [{"id": "a", "function": {"name": "look", "arguments": {"q": 1}}}]}), END]
    assert assemble_message(chunks)["tool_calls"][0]["function"]["arguments"] == '{"q":1}'


@pytest.mark.parametrize(
    "delta", [{"tool_calls": None}, {"tool_calls": []}, {"tool_calls": [None]}, {"content": None, "role": None}, {}]
)
def test_what_says_nothing_adds_nothing(delta: Json) -> None:
    assert assemble_message([make_chunk(delta), make_chunk({"content": "a"}), END]) == {
        "role": "assistant",
        "content": "a",
    }


@pytest.mark.parametrize("part", [{"id": "a"}, {"id": "a", "function": None}, {"id": "a", "function": "look"}])
def test_functionless_call_is_kept_unnamed(part: Json) -> None:
    calls = assemble_message([make_chunk({"tool_calls": [part]}), END])["tool_calls"]
    assert calls == [make_call("a", "", "")]


def test_other_fields_are_kept() -> None:
    chunks = [
        make_chunk({"reasoning_content": "I th", "refusal": "N"}),
        make_chunk({"reasoning_content": "ink", "refusal": "o", "annotations": [{"url": "x"}]}),
        END,
    ]
    assert assemble_message(chunks) == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "I think",
        "refusal": "No",
        "annotations": [{"url": "x"}],
    }


def test_unknown_call_keys_are_kept() -> None:
    google = {"google": {"thought_signature": "SIG"}}
    function = {"name": "look", "arguments": "", "note": "a"}
    pieces = [
        {"index": 0, "id": "a", "type": "function", "function": function, "extra_content": google, "steps": [1]},
        {"index": 0, "function": {"arguments": "{}", "note": None}, "extra_content": None, "steps": [2]},
    ]
    chunks = [make_chunk({"tool_calls": [piece], "reasoning_details": [n]}) for n, piece in enumerate(pieces)]
    message = assemble_message([*chunks, make_chunk({"reasoning_details": []}), END])
    call = {**make_call("a", "look", "{}"), "extra_content": google, "steps": [1, 2]}
    assert message["tool_calls"] == [{**call, "function": {"name": "look", "arguments": "{}", "note": "a"}}]
    assert message["reasoning_details"] == [0, 1]


def test_empty_reply_is_a_reply() -> None:
    assert assemble_message([END]) == {"role": "assistant", "content": None}


def test_nothing_at_all_is_no_completion() -> None:
    for chunks in ([], [{}], [{"choices": []}], [{"choices": [{"index": 0}]}]):
        with pytest.raises(TruncatedStream):
            assemble(chunks)


def test_content_parts_become_text() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    chunks = [
        make_chunk({"content": [thinking, {"type": "text", "text": "It "}]}),
        make_chunk({"content": "rains."}),
        END,
    ]
    message = assemble_message(chunks)
    assert message["content"] == [thinking, {"type": "text", "text": "It rains."}]
    assert normalise_message(message, "A", (), ("m", ""))["content"] == "It rains."


def test_split_thoughts_are_joined() -> None:
    def think(text: str) -> Json:
        return {"type": "thinking", "thinking": [{"type": "text", "text": text}]}

    detail = {"type": "reasoning.text", "index": 0}
    deltas: list[Json] = [
        {"content": [think("h")], "thinking_blocks": [{"type": "thinking", "thinking": "h"}]},
        {"content": [think("m")], "thinking_blocks": [{"type": "thinking", "thinking": "m"}]},
        {"content": "It ", "thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "S"}]},
        {"content": "rains.", "thinking_blocks": [{"type": "thinking", "thinking": "more"}]},
        {"reasoning_details": [detail | {"text": "h"}, detail | {"text": "m", "signature": None}]},
        {"reasoning_details": [detail | {"signature": "S"}, {"type": "reasoning.encrypted", "data": "x"}]},
    ]
    message = assemble_message([*map(make_chunk, deltas), END])
    assert message["content"] == [think("hm"), {"type": "text", "text": "It rains."}]
    assert message["thinking_blocks"] == [
        {"type": "thinking", "thinking": "hm", "signature": "S"},
        {"type": "thinking", "thinking": "more"},
    ]
    assert message["reasoning_details"] == [
        detail | {"text": "hm", "signature": "S"},
        {"type": "reasoning.encrypted", "data": "x"},
    ]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["old kind last", "old kind first"])
def test_call_of_both_kinds_is_one(order: tuple[int, int]) -> None:
    new = [
        make_chunk({"tool_calls": [make_piece("pay", '{"n"', id="b", index=0)]}),
        make_chunk({"tool_calls": [make_piece(None, ": 1}", index=0)]}),
    ]
    old = [
        make_chunk({"function_call": {"name": "pay", "arguments": '{"n":'}}),
        make_chunk({"function_call": {"arguments": "1}"}}),
    ]
    kinds = (new, old)
    chunks = [*kinds[order[0]], *kinds[order[1]], make_chunk({}, finish_reason="tool_calls")]
    assert assemble_message(chunks)["tool_calls"] == [make_call("b", "pay", '{"n": 1}')]
    # Another call of the old kind is another call.
    other = make_chunk({"function_call": {"name": "look", "arguments": "{}"}})
    found = assemble_message([other, *new, make_chunk({}, finish_reason="tool_calls")])["tool_calls"]
    assert [call["function"]["name"] for call in found] == ["look", "pay"]
