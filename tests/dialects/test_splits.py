"""Replies that are split in two odd ways at once are read as they were meant, straight from the chunks."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from swarmkeep.events.codec import Json
from swarmkeep.models.assembly import Assembly
from swarmkeep.models.replies import END_OF_STREAM, ReplyLimits
from tests.support.dialects import DIALECTS, PIECES_IN_WORDS, Answer, DialectReply, Pieces

WEATHER, PING = ("get_weather", {"city": "Rome"}), ("ping", {})
ANSWERS = [
    Answer("Hi 😀, ha ha.", (WEATHER, ("get_weather", {"city": "Oslo", "unit": "F"}))),
    Answer(calls=(WEATHER, PING)),
    Answer(calls=(PING, WEATHER)),
    Answer(calls=(PING, PING)),
    Answer("Same.", (WEATHER, WEATHER)),
]
# Nothing in these says where a call ends. They must not be taken for calls that were not meant.
AMBIGUOUS = [
    {("index", "missing"), ("name", "in two")},
    {("ids", "changing"), ("name", "in two")},
    *({("index", index), other} for index in ("missing", "zero") for other in (("name", "last"), ("ids", "last"))),
]
ODD = [*PIECES_IN_WORDS]


def read_calls(calls: list[Json]) -> list[tuple[str, Any]]:
    found = []
    for call in calls:
        name, text = call["function"]["name"], call["function"]["arguments"] or "{}"
        try:
            found.append((name, json.loads(text)))
        except ValueError:
            found.append((name, text))
    return found


def join_deltas(deltas: list[Json]) -> tuple[str, list[Json]]:
    """The text and the calls as a reader of the stream puts them together."""
    text, calls = "", {}
    for delta in deltas:
        text += delta.get("content") or ""
        for piece in delta.get("tool_calls") or ():
            function = calls.setdefault(piece["index"], {"function": {"name": "", "arguments": ""}})["function"]
            for key in function:
                function[key] += piece["function"].get(key) or ""
    return text, [*calls.values()]


@pytest.mark.parametrize("first", [None, *ODD], ids=str)
def test_two_oddities_at_once_are_read_right(first: tuple[str, Any] | None) -> None:
    chosen = [{first, other} for other in ODD[ODD.index(first) + 1 :] if other[0] != first[0]] if first else [set()]
    for odd in [*chosen, *([{first}] if first else [])]:
        pieces = replace(Pieces(), **dict(odd))
        for answer in ANSWERS:
            reply = DialectReply(dialect=replace(DIALECTS["openai"], pieces=pieces), answer=answer, number=1)
            assembly, deltas = Assembly(ReplyLimits()), []
            for event in reply.stream({"id": "c", "object": "chat.completion.chunk"}):
                if event.startswith("data: "):
                    deltas += assembly.add(json.loads(event.removeprefix("data: ")))
            deltas += [*assembly.add(END_OF_STREAM), *assembly.finish()]
            message = assembly.completion()["choices"][0]["message"]
            meant = [(name, dict(arguments)) for name, arguments in answer.calls]
            read = read_calls(message.get("tool_calls", []))
            text, shown = join_deltas(deltas)
            assert (message["content"] or "", text) == (answer.text, answer.text), odd
            assert read_calls(shown) == read, odd
            if odd in AMBIGUOUS:
                runnable = [call for call in read if call[0] in ("get_weather", "ping") and isinstance(call[1], dict)]
                assert all(call in meant for call in runnable), odd
            else:
                assert read == meant, odd


def test_the_ambiguous_are_pairs_of_what_there_is() -> None:
    assert all(tuple(sorted(pair, key=ODD.index)) in combinations(ODD, 2) for pair in AMBIGUOUS)
