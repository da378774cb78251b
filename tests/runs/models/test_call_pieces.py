"""In whichever dialect a server streams calls, they are the ones that it would have given whole."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from swarmkeep.events.codec import Json, encode_text
from swarmkeep.models.assembly import Assembly, complete_usage, read_choice
from swarmkeep.models.call_pieces import RULES
from swarmkeep.models.replies import ReplyLimits


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
            or (
                not has_index
                and not begins_with_id
                and (self.names not in ("first", "pieces") or self.again == "piece")
            )
            or (not has_index and self.names == "last")
            or (not has_index and self.ids in ("none", "empty", "last") and "placeholder" in self.arguments)
            or (self.index == "none" and not has_ids and "piece" in self.again)
            # Two calls, or one that is named twice.
            or (self.ids == "changing" and self.names == "each")
            # Gemini sends two calls so.
            or (self.ids in ("none", "empty", "changing") and self.again == "piece")
            or (self.ids in ("none", "empty", "last") and self.names == "each" and "placeholder" in self.arguments)
        )


DIALECTS = st.builds(
    Dialect,
    index=st.sampled_from(("own", "gaps", "from 1", "zero", "none")),
    ids=st.sampled_from(("first", "each", "last", "none", "empty", "changing")),
    names=st.sampled_from(("first", "each", "pieces", "last", "empty first")),
    arguments=st.sampled_from(("pieces", "whole", "object", "placeholder", "placeholder object", "placeholder null")),
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
    if dialect.arguments == "placeholder null":
        return ["null", *draw(cut(text))]
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


def assemble(chunks: list[Json], functions: Collection[str] = ("look", "look_up", "pay")) -> tuple[Json, list[Json]]:
    """The message, and the calls that its deltas add up to."""
    assembly = Assembly(ReplyLimits(), lambda: functions)
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
def test_dialects_give_the_whole_reply_calls(made: tuple[str | None, list[Json], list[Json]]) -> None:
    text, functions, chunks = made
    message, given_functions = assemble(chunks)
    assert (message["content"], given_functions) == (text, functions)


# What each row of the table is for: pieces as (index, id, name, arguments), and the calls that they are.

Piece = tuple[int | None, str | None, str | None, Any]
ROME, OSLO = '{"city": "Rome"}', '{"city": "Oslo"}'
EXAMPLES: dict[str, tuple[list[Piece], list[tuple[str, str]]]] = {
    "a new id with each piece": (
        [(0, "u1", "look", ""), (0, "u2", None, '{"city":'), (0, "u3", None, ' "Rome"}')],
        [("look", ROME)],
    ),
    "a new id and the name with each piece": (
        [(0, "u1", "look", ""), (0, "u2", "look", '{"city":'), (0, "u3", "look", ' "Rome"}')],
        [("look", ROME)],
    ),
    "a name in two pieces under other ids": (
        [(None, "u1", "look", ""), (None, "u2", "_up", ""), (None, "u3", None, ROME)],
        [("look_up", ROME)],
    ),
    "{} first": ([(0, "u1", "look", "{}"), (0, None, None, '{"city":'), (0, None, None, ' "Rome"}')], [("look", ROME)]),
    "{} first, as an object": ([(0, "u1", "look", {}), (0, None, None, ROME)], [("look", ROME)]),
    "{} first, and the name with each piece": ([(0, "u1", "look", "{}"), (0, "u1", "look", ROME)], [("look", ROME)]),
    "{} first, and the id with the arguments": ([(0, None, "look", {}), (0, "u1", "look", ROME)], [("look", ROME)]),
    "{} first, without any id": ([(0, None, "look", "{}"), (0, "", "look", ROME)], [("look", ROME)]),
    "null first": ([(0, "u1", "look", "null"), (0, None, None, ROME)], [("look", ROME)]),
    "{} first, and the name after it": ([(0, "u1", "", "{}"), (0, None, "look", ROME)], [("look", ROME)]),
    "{} and nothing after it": ([(0, "u1", "look", {}), (0, None, None, "")], [("look", "{}")]),
    "all arguments once more": (
        [(0, "u1", "look", ""), (0, None, None, ROME), (0, "u1", "look", ROME)],
        [("look", ROME)],
    ),
    "all arguments once more, as an object": (
        [(0, "u1", "look", ROME), (0, "u1", "look", {"city": "Rome"})],
        [("look", ROME)],
    ),
    "all arguments once more, without id and name": (
        [(0, "u1", "look", ROME), (0, None, None, ROME)],
        [("look", ROME)],
    ),
    "all once more, in pieces": (
        [(0, "u1", "look", ROME), (0, "u1", "look", '{"city'), (0, None, "look", '": "Rome"}')],
        [("look", ROME)],
    ),
    "all once more, with the name at last": ([(0, "u1", None, ROME), (0, "u1", "look", ROME)], [("look", ROME)]),
    "the beginning of the same, then another call": (
        [(0, None, "look", ROME), (0, None, None, '{"city"'), (0, None, None, ': "Oslo"}'), (0, None, "look", None)],
        [("look", ROME), ("look", OSLO)],
    ),
    "two calls under one index": ([(0, None, "look", ROME), (0, None, "pay", OSLO)], [("look", ROME), ("pay", OSLO)]),
    "two equal calls under one index": ([(0, "", "look", ROME), (0, "", "look", ROME)], [("look", ROME)] * 2),
    "two equal calls with ids of their own": ([(0, "a", "look", ROME), (0, "b", "look", ROME)], [("look", ROME)] * 2),
    "two calls under one index, in pieces": (
        [(0, None, "look", ""), (0, None, None, ROME), (0, None, "look", ""), (0, None, None, ROME)],
        [("look", ROME)] * 2,
    ),
    "two calls under one id": ([(0, "a", "look", ROME), (0, "a", "look", OSLO)], [("look", ROME), ("look", OSLO)]),
    "two calls without arguments, with ids": ([(0, "a", "look", ""), (0, "b", "pay", "")], [("look", ""), ("pay", "")]),
    "two calls without anything": ([(None, None, "look", ""), (None, None, "pay", "")], [("look", ""), ("pay", "")]),
    "ids only": (
        [(None, "a", "look", "{"), (None, "b", "look", "{"), (None, "a", None, "}")],
        [("look", "{}"), ("look", "{")],
    ),
    "side by side, without arguments": ([(None, None, "look", None)] * 2, [("look", "")] * 2),
    "another call behind one that was cut": (
        [(0, "a", "look", '{"ci'), (0, "b", "pay", OSLO)],
        [("look", '{"ci'), ("pay", OSLO)],
    ),
    "another name, and its arguments later": (
        [(0, None, "look", ROME), (0, None, "pay", ""), (0, None, None, OSLO)],
        [("look", ROME), ("pay", OSLO)],
    ),
    "the name with each piece": ([(0, "", "look", ""), (0, "", "look", ROME), (0, "", "look", "")], [("look", ROME)]),
    "ids only, and empty names first": (
        [(None, "a", "", ""), (None, "b", "", ""), (None, "b", "pay", OSLO), (None, "a", "look", ROME)],
        [("look", ROME), ("pay", OSLO)],
    ),
    "names after the arguments": (
        [(None, "a", None, ROME), (None, "a", "look", None), (None, "b", None, ROME), (None, "b", "pay", None)],
        [("look", ROME), ("pay", ROME)],
    ),
    "an id that comes before the name": (
        [(0, "a", "look", ROME), (0, "b", "", ""), (0, None, "look", ""), (0, None, None, ROME)],
        [("look", ROME)] * 2,
    ),
    "a name in pieces": ([(0, "a", "loo", ""), (0, None, "k", ROME)], [("look", ROME)]),
    "half a call": ([(0, "a", "look", ROME), (1, "b", "pay", '{"ci')], [("look", ROME), ("pay", '{"ci')]),
    "what cannot belong there": ([(0, "a", "look", ROME), (0, None, None, "}")], [("look", ROME + "}")]),
}


def run_example(name: str) -> list[tuple[str, str]]:
    pieces = [
        {"index": index, "id": id, "function": {"name": named, "arguments": arguments}}
        for index, id, named, arguments in EXAMPLES[name][0]
    ]
    lists = [pieces] if name.startswith("side by side") else [[piece] for piece in pieces]
    chunks = [make_chunk({"tool_calls": pieces}) for pieces in lists]
    return [(found["name"], found["arguments"]) for found in assemble([*chunks, make_chunk({}, reason="length")])[1]]


@pytest.mark.parametrize("name", EXAMPLES)
def test_pieces_become_intended_calls(name: str) -> None:
    assert run_example(name) == EXAMPLES[name][1]


@pytest.mark.parametrize("row", range(len(RULES) - 1), ids=lambda row: RULES[row].reason)
def test_each_rule_decides_an_example(row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarmkeep.models.call_pieces.RULES", (*RULES[:row], *RULES[row + 1 :]))
    assert [name for name in EXAMPLES if run_example(name) != EXAMPLES[name][1]]


def test_cut_repetition_is_a_cut_call() -> None:
    pieces = [{"index": 0, "id": "a", "function": {"name": "look", "arguments": text}} for text in (ROME, '{"ci')]
    chunks = [make_chunk({"tool_calls": [piece]}) for piece in pieces]
    cut_call = {"name": "look", "arguments": '{"ci'}
    whole = {"name": "look", "arguments": ROME}
    assert assemble([*chunks, make_chunk({}, reason="length")])[1] == [whole, cut_call]
    assert assemble([*chunks, make_chunk({}, reason="stop")])[1] == [whole]


def test_old_function_call_is_a_tool_call() -> None:
    deltas = [{"name": "look", "arguments": ""}, {"arguments": '{"city":'}, {"arguments": ' "Rome"}'}]
    chunks = [make_chunk({"content": None, "function_call": delta}) for delta in deltas]
    message, functions = assemble([*chunks, make_chunk({}, reason="function_call")])
    assert functions == [{"name": "look", "arguments": ROME}]
    assert "function_call" not in message


# Other things that come in an order of their own.


def test_deltas_that_repeat_on_purpose_stay() -> None:
    message, _ = assemble([make_chunk({"content": "ha"}), make_chunk({"content": "ha"}), make_chunk({}, reason="stop")])
    assert message["content"] == "haha"


@pytest.mark.parametrize(
    ("texts", "whole", "kept"),
    [
        (["It ", "rains."], "It rains.", "It rains."),
        (["It ", "rains"], "It rains.", "It rains."),
        ([], "It rains.", "It rains."),
        ([" It rains. "], "It rains.", " It rains. "),
        (["hi \ud83d"], "hi \U0001f600", "hi \U0001f600"),
    ],
)
def test_final_whole_message_adds_news(texts: list[str], whole: str, kept: str) -> None:
    last = make_chunk({}, reason="stop")
    last["choices"][0]["message"] = {"role": "assistant", "content": whole}
    message, _ = assemble([*(make_chunk({"content": text}) for text in texts), last])
    assert message["content"] == kept


def test_pieces_under_message_are_pieces() -> None:
    chunks: list[Json] = [{"choices": [{"message": {"content": text}}]} for text in ("ha", "ha", "")]
    chunks[-1]["choices"][0]["finish_reason"] = "stop"
    assert assemble(chunks)[0]["content"] == "haha"


@pytest.mark.parametrize("key", ["content", "refusal", "reasoning_content"])
def test_half_text_character_waits(key: str) -> None:
    chunks = [
        make_chunk({key: text}) for text in ("hi \ud83d", "", "\ude00 \ud83d", "\ude01", "a\ud83d", "b", "\ud83d")
    ]
    assembly = Assembly(ReplyLimits())
    shown = [delta.get(key) or "" for chunk in chunks for delta in assembly.add(chunk)]
    assert shown == ["hi ", "", "\U0001f600 ", "\U0001f601", "a", "\ud83db", ""]
    assembly.add(make_chunk({}, reason="stop"))
    assert [delta[key] for delta in assembly.finish()] == ["\ud83d"]
    assert assembly.completion()["choices"][0]["message"][key] == "hi \U0001f600 \U0001f601a\ud83db\ud83d"


def test_half_argument_character_waits() -> None:
    pieces = [
        {"index": 0, "id": "a", "function": {"name": "look", "arguments": text}}
        for text in ('{"q": "\ud83d', '\ude00"}')
    ]
    _, [function] = assemble(
        [*(make_chunk({"tool_calls": [piece]}) for piece in pieces), make_chunk({}, reason="stop")]
    )
    assert function["arguments"] == '{"q": "\U0001f600"}'


@pytest.mark.parametrize("whole", [False, True])
def test_calls_may_come_in_another_choice(whole: bool) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": ROME}}
    said = [
        {"content": "Let me look."},
        {"content": None, "tool_calls": [call]},
        {"content": "Or not.", "tool_calls": [call] * 2},
    ]
    key = "message" if whole else "delta"
    choices = [{"index": n, key: message, "finish_reason": "tool_calls"} for n, message in enumerate(said)]
    if whole:
        message = read_choice({"choices": choices})["message"]
    else:
        message, _ = assemble([{"choices": choices}])
    assert (message["content"], message["tool_calls"]) == ("Let me look.", [call])
    alone = read_choice({"choices": [choices[0] | {"message": said[0]}, choices[2] | {"message": said[2]}]})
    assert "tool_calls" not in alone["message"]


def count(prompt: float, completion: float, total: float | None = None) -> Json:
    return drop_nulls({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total})


@pytest.mark.parametrize(
    ("reports", "kept"),
    [
        ([count(3, 2, 5), count(0, 0, 0)], (3, 2, 5)),
        ([count(3, 0, 3), count(0, 2, 2)], (3, 2, 5)),
        ([count(3.0, 2.0)], (3, 2, 5)),
        ([count(3, 2, 9)], (3, 2, 9)),
        ([count(3, 1, 4), count(3, 2, 5), None, {}], (3, 2, 5)),
    ],
)
def test_last_nonzero_counts_win(reports: list[Json | None], kept: tuple[int, int, int]) -> None:
    assembly = Assembly(ReplyLimits())
    for report in reports:
        assembly.add({"choices": [], "usage": report})
    assembly.add(make_chunk({"content": "hi"}, reason="stop"))
    usage = complete_usage(assembly.completion()["usage"])
    assert usage is not None
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == kept
    assert all(type(count) is int for count in usage.values())


def test_groq_counts_under_its_own_key() -> None:
    assembly = Assembly(ReplyLimits())
    assembly.add(make_chunk({"content": "hi"}, reason="stop") | {"x_groq": {"usage": {"prompt_tokens": 3}}})
    assert assembly.completion()["usage"] == {"prompt_tokens": 3}
