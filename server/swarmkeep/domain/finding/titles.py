"""What a session is called: what somebody has named it, or else how it began."""

from __future__ import annotations

from itertools import islice

from swarmkeep.domain.redaction import REDACTED
from swarmkeep.domain.state import State
from swarmkeep.domain.wording import join_text

MAX_TITLE_CHARACTERS = 80
FIRST_MESSAGES = 20
"""Those that a title is looked for in, with every append. A history that begins otherwise has none."""

# Whoever wants a longer title than these many characters of a message has named the session.
_LOOKED_AT = 400


def find_title(state: State) -> str | None:
    """`metadata.title`, or else the first line or so of what a user said first. None before that.

    It is stored with the session, and `verify` makes it anew: what it makes of a state stays.
    """
    named = state.metadata.get("title")
    if isinstance(named, str) and (title := shorten(named)):
        return title
    for entry in islice(state.messages, FIRST_MESSAGES):
        if entry.is_question and not entry.removed:
            title = shorten(join_text(entry.shown_message.get("content"), "\n"))
            if title and title != REDACTED:
                return title
    return None


def shorten(text: str) -> str:
    """A text as one line of at most MAX_TITLE_CHARACTERS."""
    line = " ".join(text[:_LOOKED_AT].split())
    if len(line) <= MAX_TITLE_CHARACTERS:
        return line
    cut = line[: MAX_TITLE_CHARACTERS - 1]
    # At a word's end, if there is one in sight.
    at = cut.rfind(" ")
    return (cut[:at] if at > MAX_TITLE_CHARACTERS // 2 else cut).rstrip(" ,;:.-") + "…"
