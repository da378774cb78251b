"""Words for people."""

from __future__ import annotations

import pytest

from swarmkeep.events.wording import pluralize


@pytest.mark.parametrize(
    ("count", "noun", "plural", "said"),
    [
        (0, "event", None, "0 events"),
        (1, "event", None, "1 event"),
        (2, "event", None, "2 events"),
        (1, "try", None, "1 try"),
        (2, "try", None, "2 tries"),
        (1, "run waits", "runs wait", "1 run waits"),
        (3, "run waits", "runs wait", "3 runs wait"),
    ],
)
def test_a_count_agrees_with_its_noun(count: int, noun: str, plural: str | None, said: str) -> None:
    assert pluralize(count, noun, plural) == said
