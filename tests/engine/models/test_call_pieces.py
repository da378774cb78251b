"""In whichever dialect a server streams calls, they are the ones that it would have given whole."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from hypothesis import assume, given
from hypothesis import strategies as st

from swarmkeep.domain.codec import Json, encode_text
from swarmkeep.engine.models.assembly import Assembly
from swarmkeep.engine.models.reply_limits import ReplyLimits


class Dialect(NamedTuple):
    """How a server sends calls. `again`: what of it comes once more at the end; `choice`: where the calls are."""

    index: str
    ids: str
    names: str
    arguments: str
    again: str
    choice: int
    mixed: bool

    @property
    def is_ambiguous(self) -> bool:
        """Whether nothing tells one call from two, or from a repetition: no server can mean it."""
        has_index = self.index in ("own", "gaps", "from 1")
        has_ids = self.ids == "each"
        begins_with_id = self.ids in ("first", "each", "changing")
        # Calls in each other's way need a key in each piece.
        return (
            (self.mixed and not (has_index or (self.index == "none" and has_ids and self.again != "bare piece")))
            # Without an index, ids that change look like calls.
            or (self.ids == "changing" and not has_index and (self.names == "each" or self.again == "piece"))
            # Without keys, only the name begins a call.
            or (not has_index and not begins_with_id and (self.names != "first" or self.again == "piece"))
            or (not has_index and self.names in ("last", "pieces"))
            or (not has_index and self.ids in ("none", "empty", "last") and "placeholder" in self.arguments)
            or (self.index == "none" and not has_ids and "piece" in self.again)
            # Two functions, or one whose name is in two pieces; two calls, or one named twice.
            or (self.ids == "changing" and self.names in ("pieces", "each"))
            # Gemini sends two calls so.
            or (self.ids in ("none", "empty", "changing") and self.again == "piece")
            or (self.ids in ("none", "empty", "last") and self.names == "each" and "placeholder" in self.arguments)
        )


DIALECTS = st.builds(
    Dialect,
    index=st.sampled_from(("own", "gaps", "from 1", "zero", "none")),
    ids=st.sampled_from(("first", "each", "last", "none", "empty", "changing")),
    names=st.sampled_from(("first", "each", "pieces", "last", "empty first")),
    arguments=st.sampled_from(("pieces", "whole", "object", "placeholder", "placeholder object")),
    again=st.sampled_from(("nothing", "piece", "bare piece", "message")),
    choice=st.sampled_from((0, 0, 1)),
    mixed=st.booleans(),
)
NAMES = st.sampled_from(("look", "look_up", "pay"))
VALUES = st.dictionaries(st.sampled_from("qr"), st.text(max_size=6) | st.just({"a": ["}", {}]}), max_size=2)


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@st.composite
def make_arguments(draw: st.DrawFn, dialect: Dialect, value: Json) -> list[Any]:
    text = json.dumps(value)
    if dialect.arguments in ("object", "whole"):
        return [value if dialect.arguments == "object" else text]
    if dialect.arguments == "pieces":
        return draw(cut(text))
    return [{} if dialect.arguments == "placeholder object" else "{}", *(draw(cut(text)) if value else [])]


@st.composite
def add_names(draw: st.DrawFn, dialect: Dialect, name: str, arguments: list[Any]) -> list[tuple[str | None, Any]]:
    """What each piece has of the function."""
    unnamed = [(None, text) for text in arguments]
    if dialect.names == "last":
        return [*unnamed, (name, None)]
    if dialect.names == "pieces":
        at = draw(st.integers(1, len(name) - 1))
        assume(name[:at] != name[at:])
        return [(name[:at], None), (name[at:], ""), *unnamed]
    if dialect.names == "empty first":
        return [("", ""), (name, ""), *unnamed]
    return [(name, text) for text in arguments] if dialect.names == "each" else [(name, arguments[0]), *unnamed[1:]]


@st.composite
def make_row(draw: st.DrawFn, dialect: Dialect, number: int, name: str, value: Json) -> list[Json]:
    """The pieces of one call."""
    functions = draw(add_names(dialect, name, draw(make_arguments(dialect, value))))
    count, only = len(functions), f"id_{number}"
    ids: list[str | None] = {
        "first": [only, *[None] * (count - 1)],
        "last": [*[None] * (count - 1), only],
        "each": [only] * count,
        "changing": [f"{only}_{n}" for n in range(count)],
        "empty": [""] * count,
        "none": [None] * count,
    }[dialect.ids]
    if "piece" in dialect.again:
        is_bare = dialect.again == "bare piece"
        ids.append(None if is_bare else ids[0] or ids[-1])
        functions.append((None if is_bare else name, value if dialect.arguments == "object" else json.dumps(value)))
    index = {"own": number, "gaps": 2 * number + 3, "from 1": number + 1, "zero": 0, "none": None}[dialect.index]
    return [
        drop_nulls({"index": index, "id": identifier, "function": drop_nulls({"name": named, "arguments": arguments})})
        for identifier, (named, arguments) in zip(ids, functions, strict=True)
    ]


def drop_nulls(given: Json) -> Json:
    return {key: value for key, value in given.items() if value is not None}


@st.composite
def streams(draw: st.DrawFn) -> tuple[str | None, list[Json], list[Json]]:
    """A text, the functions that are called, and chunks that they may come in."""
    dialect = draw(DIALECTS)
    assume(not dialect.is_ambiguous)
    calls = draw(st.lists(st.tuples(NAMES, VALUES), min_size=1, max_size=3))
    text = draw(st.none() | st.text(min_size=1, max_size=6))
    rows = [draw(make_row(dialect, number, name, value)) for number, (name, value) in enumerate(calls)]
    if dialect.mixed:
        pieces = [row.pop(0) for row in rows]
        while left := [row for row in rows if row]:
            pieces.append(draw(st.sampled_from(left)).pop(0))
    else:
        pieces = [piece for row in rows for piece in row]
    chunks = [make_chunk({"content": part}) for part in (draw(cut(text)) if text else [])]
    while pieces:
        # Several at once, but nothing once more in one list with what it repeats.
        many = 1 if dialect.again != "nothing" else draw(st.integers(1, 3))
        chunks.append(make_chunk({"tool_calls": pieces[:many]}, choice=dialect.choice))
        del pieces[:many]
    encode = encode_text if dialect.arguments == "object" else json.dumps
    functions = [{"name": name, "arguments": encode(value)} for name, value in calls]
    last = make_chunk({}, reason="tool_calls")
    if dialect.again == "message":
        whole = [{"type": "function", "function": function} for function in functions]
        last["choices"][0]["message"] = {"role": "assistant", "content": text, "tool_calls": whole}
    if dialect.choice:
        last["choices"].append({"index": 1, "delta": {}, "finish_reason": "tool_calls"})
    return text, functions, [*chunks, last]


def make_chunk(delta: Json, *, choice: int = 0, reason: str | None = None) -> Json:
    return {"choices": [{"index": choice, "delta": delta, "finish_reason": reason}]}


def assemble(chunks: list[Json]) -> tuple[Json, list[Json]]:
    """The message, and the calls that its deltas add up to."""
    assembly = Assembly(ReplyLimits())
    deltas = [delta for chunk in chunks for delta in assembly.add(chunk)] + assembly.finish()
    shown: dict[int, Json] = {}
    for delta in deltas:
        for piece in delta["tool_calls"] or ():
            call = shown.setdefault(piece["index"], {"id": None, "name": "", "arguments": ""})
            assert call["id"] is None or piece["id"] is None
            call["id"] = call["id"] or piece["id"]
            for key in ("name", "arguments"):
                call[key] += piece["function"][key] or ""
    message = assembly.completion()["choices"][0]["message"]
    assert "".join(delta["content"] or "" for delta in deltas) == (message["content"] or "")
    kept = [{"id": call["id"], **call["function"]} for call in message.get("tool_calls", [])]
    assert [shown[n] for n in sorted(shown)] == kept
    return message, [call["function"] for call in message.get("tool_calls", [])]


@given(streams())
def test_any_dialect_gives_the_whole_replys_calls(made: tuple[str | None, list[Json], list[Json]]) -> None:
    text, functions, chunks = made
    message, given_functions = assemble(chunks)
    assert (message["content"], given_functions) == (text, functions)
