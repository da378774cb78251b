"""Differences between a recorded conversation and what today's agents would do."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.domain.codec import MalformedJson, decode, encode
from swarmkeep.domain.errors import InvalidRequest
from swarmkeep.domain.events import RequestRecord
from swarmkeep.domain.request import ModelRequest

DivergenceKind = Literal[
    "instructions", "tool_schemas", "model", "parameters", "agent", "missing_tool", "arguments", "approval",
    "guardrail", "context", "order", "unreadable",
]  # fmt: skip
DIVERGENCE_KINDS: tuple[DivergenceKind, ...] = get_args(DivergenceKind)


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """One difference. `seq` is the recorded event where it appears; `recorded` and `actual` depend on `kind`."""

    seq: int
    kind: DivergenceKind
    recorded: Any
    actual: Any


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """Today's agents against a recorded conversation.

    `turns` counts the model calls that were compared, and `last_seq` is the last event that was; each difference is
    reported once, where it first appears. `redacted` lists the events that prevented a comparison because they are
    redacted. `cut_short`, if present: time ran out after `last_seq`, and what comes later was not compared.
    """

    matches: bool
    turns: int
    last_seq: int
    divergences: list[Divergence]
    redacted: list[int] = []
    cut_short: bool | UnsetType = UNSET


class ReplayFindings:
    """The differences found so far; those of an ignored kind and those told before are left out."""

    def __init__(self, ignore: Collection[str] = ()) -> None:
        self.divergences: list[Divergence] = []
        self.redacted: list[int] = []
        self.turns = 0
        self._ignore = frozenset(ignore)
        self._told: set[bytes] = set()

    def add(self, seq: int, kind: DivergenceKind, recorded: Any, actual: Any) -> None:
        told = encode((kind, recorded, actual))
        if kind not in self._ignore and told not in self._told:
            self._told.add(told)
            self.divergences.append(Divergence(seq=seq, kind=kind, recorded=recorded, actual=actual))

    def add_redacted(self, seq: int) -> None:
        if seq not in self.redacted:
            self.redacted.append(seq)


def check_kinds(names: Collection[str], pointer: str = "/ignore") -> frozenset[str]:
    """Kinds of differences that somebody named. Raises InvalidRequest for one that there is not."""
    for name in names:
        if name not in DIVERGENCE_KINDS:
            raise InvalidRequest(f"unknown kind of difference {name!r}; known: {', '.join(DIVERGENCE_KINDS)}", pointer)
    return frozenset(names)


def compare_requests(
    recorded: RequestRecord, actual: ModelRequest, texts: Mapping[str, str]
) -> Iterator[tuple[DivergenceKind, Any, Any]]:
    """How a request of today differs from the recorded one, beside its messages, which are the log's own."""
    today = actual.record
    if today.instructions != recorded.instructions:
        yield "instructions", _find_text(recorded.instructions, texts), actual.instructions
    if today.tools != recorded.tools:
        yield "tool_schemas", _read_schemas(recorded.tools, texts), _parse(actual.tools)
    before, after = dict(recorded.params), dict(today.params)
    models = before.pop("model", None), after.pop("model", None)
    if models[0] != models[1]:
        yield "model", *models
    if encode(before) != encode(after):
        yield "parameters", before, after


def _find_text(digest: str, texts: Mapping[str, str]) -> str:
    # An export of the events alone has the texts' names only.
    return texts.get(digest, f"sha256:{digest}")


def _read_schemas(digest: str | None, texts: Mapping[str, str]) -> Any:
    return _parse(None if digest is None else _find_text(digest, texts))


def _parse(text: str | None) -> Any:
    try:
        return [] if text is None else decode(text)
    except MalformedJson:
        return text


_DIFFED_KINDS = ("instructions", "tool_schemas", "parameters", "context")


def format_sides(kind: str, recorded: Any, actual: Any) -> Iterator[str]:
    """The two sides of a difference: longer ones as a diff of their lines."""
    before, after = _format_value(recorded), _format_value(actual)
    if kind not in _DIFFED_KINDS:
        yield f"recorded: {before}"
        yield f"today:    {after}"
        return
    for line in difflib.unified_diff(before.splitlines(), after.splitlines(), "recorded", "today", lineterm="", n=2):
        if not line.startswith("@@"):
            yield line


def _format_value(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
