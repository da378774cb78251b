"""Hypothesis strategies of logs, profiles, texts and JSON."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from swarmkeep.events.codec import Json
from swarmkeep.events.facts import RecordedEvent
from swarmkeep.request.request import Profile
from tests.support.logs.dice import DrawnDice
from tests.support.logs.hostile import FOREIGN_PARTS, make_hostile_log
from tests.support.logs.random_session import RandomSession, make_random_session
from tests.support.logs.words import PROFILES


@st.composite
def random_sessions(draw: st.DrawFn, *, moves: int = 20) -> RandomSession:
    """Sessions as a server records them."""
    return make_random_session(DrawnDice(draw), moves=draw(st.integers(0, moves)))


def random_logs(*, moves: int = 20) -> st.SearchStrategy[list[RecordedEvent]]:
    """The events of `conversations`."""
    return random_sessions(moves=moves).map(lambda session: session.events)


@st.composite
def hostile_logs(draw: st.DrawFn, *, moves: int = 8) -> list[RecordedEvent]:
    """Logs that no server wrote: every event can be read, and nothing else is sure."""
    return make_hostile_log(DrawnDice(draw), moves=draw(st.integers(0, moves)))


def any_logs() -> st.SearchStrategy[list[RecordedEvent]]:
    return st.one_of(random_logs(), hostile_logs())


def profiles() -> st.SearchStrategy[Profile]:
    return st.sampled_from(PROFILES)


def texts(max_size: int = 12) -> st.SearchStrategy[str]:
    """Any text that JSON can tell from others: NUL and lone surrogates too. A pair of them is one character."""
    return st.text(st.characters(exclude_categories=()), max_size=max_size).map(
        lambda text: text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    )


_PART_KEYS = (
    "text", "refusal", "image_url", "input_audio", "file", "thinking", "source", "input", "id", "name", "content",
    "blob", "detail", "annotations", "zz",
)  # fmt: skip
_PART_VALUES: tuple[Any, ...] = (
    None, "", "x", "\ud800", 7, 1.5, True, [], {}, ["x"], [{"type": "text", "text": "x"}],
    {"url": "https://example.com/a.png"}, {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "much"},
    {"url": None},
    {"data": "AAAA", "format": "wav"}, {"data": "AAAA"}, {"filename": "a.pdf", "file_data": "data:application/pdf,"},
    {"file_id": "f"}, {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}, {"sha256": "0" * 64},
)  # fmt: skip
_PART_TYPES: tuple[Any, ...] = (
    "text", "refusal", "image_url", "input_audio", "file", "thinking", "redacted_thinking", "reasoning", "input_text",
    "output_text", "input_image", "input_file", "image", "document", "tool_use", "tool_result", "video_url", "", "odd",
    "\ud800" * 70,
)  # fmt: skip


def odd_parts() -> st.SearchStrategy[Json]:
    """Parts of a content as any interface may have them, and as none has."""
    held = st.dictionaries(st.sampled_from(_PART_KEYS), st.sampled_from(_PART_VALUES), max_size=3)
    typed = st.builds(lambda kind, rest: {"type": kind, **rest}, st.sampled_from(_PART_TYPES), held)
    return typed | st.sampled_from(FOREIGN_PARTS) | held | st.builds(dict, type=st.sampled_from(_PART_VALUES))


def json_values(max_leaves: int = 12) -> st.SearchStrategy[Any]:
    """Whatever JSON holds."""
    scalars = (
        st.none()
        | st.booleans()
        | st.integers(-(10**40), 10**40)
        | st.floats(allow_nan=False, allow_infinity=False)
        | texts()
        | st.sampled_from((0, 0.0, -0.0, 1, 1.0, True, False, 2**63, 2**64, -(2**63) - 1))
    )
    return st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | _objects(inner), max_leaves=max_leaves)


def json_objects(max_leaves: int = 12) -> st.SearchStrategy[Json]:
    return _objects(json_values(max_leaves))


def _objects(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    # Few keys, so that two objects often share some.
    return st.dictionaries(st.sampled_from(("a", "b", "", "/", "~", "~1")) | texts(3), values, max_size=4)
