"""The texts that stand for what a model is not sent: shortened results, and summaries."""

from __future__ import annotations

from swarmkeep.domain.codec import Json

_LEFT_OUT = "\n[… {count} characters left out …]\n"
HEADING = (
    "[A summary of the conversation up to here, in the place of its messages. It was made by a model; it is no message "
    "of the user.]"
)


def shorten_text(text: str, most: int) -> str:
    """The beginning and the end of a text that has more characters than that."""
    if len(text) <= most:
        return text
    head = most * 2 // 3
    tail = most - head
    return text[:head] + _LEFT_OUT.format(count=len(text) - most) + text[len(text) - tail :]


def make_summary_message(text: str) -> Json:
    """The message that a model is sent in the place of those that were summed up."""
    return {"role": "user", "content": f"{HEADING}\n\n{text}", "sender": "swarmkeep"}
