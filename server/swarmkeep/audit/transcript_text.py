"""What both forms of a transcript say in the same words."""

from __future__ import annotations

import re

from msgspec import UNSET

from swarmkeep.audit.changes import Change
from swarmkeep.audit.narrate import Scene
from swarmkeep.domain.codec import encode_text, well_formed
from swarmkeep.domain.events import Usage
from swarmkeep.domain.state import State

# What a reader would obey rather than show, and marks that reorder the text around them.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")


def plain(text: str) -> str:
    """The text with everything in it visible; line breaks and tabs stay."""
    whole = text.replace("\r\n", "\n").replace("\r", "\n")
    return str(well_formed(_CONTROLS.sub(_visible, whole)))


def _visible(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else f"[U+{code:04X}]"


def is_said(scene: Scene) -> bool:
    """Whether the scene is somebody speaking or answering; the others are what happened in between."""
    return scene.type == "message.added"


def in_short(scene: Scene) -> tuple[str, tuple[str, ...]]:
    """The line about something that happened, and the calls to show with it.

    Of a tool that starts only the name: the message before has shown the whole call.
    """
    if scene.type == "tool.started" and scene.calls:
        return f"{scene.headline} {scene.calls[0].partition('(')[0]}", ()
    return scene.headline or ("" if scene.speaker else scene.type), scene.calls


def when(at: str) -> str:
    """A time as people read it, in UTC."""
    return plain(f"{at[:10]} {at[11:19]}")


def figures(scene: Scene) -> str:
    """What it took: the model, tokens, time."""
    said = [plain(scene.model)] if scene.model else []
    if scene.usage is not None and scene.usage.total_tokens:
        said.append(tokens(scene.usage))
    if scene.duration_ms is not None:
        said.append(f"{scene.duration_ms / 1000:.2f} s" if scene.duration_ms >= 10 else f"{scene.duration_ms:.1f} ms")
    return ", ".join(said)


def tokens(usage: Usage) -> str:
    return f"{usage.total_tokens} tokens ({usage.prompt_tokens} in, {usage.completion_tokens} out)"


def sides(change: Change) -> tuple[str, str, str]:
    """Where, from what and to what; a side that has nothing is a dash."""
    before, after = (
        "–" if value is UNSET else plain(encode_text(well_formed(value))) for value in (change.before, change.after)
    )
    return plain(change.path) or "/", before, after


def closing(state: State) -> list[tuple[str, str]]:
    """What stands at the end: how far this goes, and by what that can be proved."""
    return [
        ("Status", state.status),
        ("Active agent", plain(state.agent)),
        ("Messages", str(len(state.messages))),
        ("Model calls", f"{state.usage.model_calls}, {tokens(state.usage)}"),
        ("Last event", f"{state.seq}, at {when(state.updated_at)} UTC"),
        ("Its hash", state.hash),
    ]
