"""Which tool fits what was said: a score of shared words, the rarer the word among the tools the more it counts."""

import math
from collections.abc import Sequence

from swarmkeep.engine.offline.reading import Tool
from swarmkeep.engine.offline.words import SYNONYMS, stems, weight

IN_NAME = 3.0
IN_DESCRIPTION = 1.0
BY_SYNONYM = 0.7
ENOUGH = 1.5  # a word of a name, or two of a description


def ranked(tools: Sequence[Tool], text: str, *, enough: float = ENOUGH) -> list[Tool]:
    """The tools that fit a text, best first; where two fit alike, the agent's own before a handoff, then in order."""
    said = stems(text)
    near = frozenset(word for one in said for word in SYNONYMS.get(one, ())) - said
    rarity = _rarity(tools)
    scores = [(_score(tool, said, near, rarity), tool) for tool in tools]
    fitting = [(score, tool) for score, tool in scores if score >= enough]
    fitting.sort(key=lambda scored: (-round(scored[0], 6), scored[1].hands_over))
    return [tool for _, tool in fitting]


def _rarity(tools: Sequence[Tool]) -> dict[str, float]:
    counts: dict[str, int] = {}
    for tool in tools:
        for word in tool.name_stems | tool.other_stems:
            counts[word] = counts.get(word, 0) + 1
    return {word: 1 / math.sqrt(count) for word, count in counts.items()}


def _score(tool: Tool, said: frozenset[str], near: frozenset[str], rarity: dict[str, float]) -> float:
    total = 0.0
    for words, trust in ((said, 1.0), (near, BY_SYNONYM)):
        for word in words & tool.name_stems:
            total += IN_NAME * trust * weight(word) * rarity[word]
        for word in words & (tool.other_stems - tool.name_stems):
            total += IN_DESCRIPTION * trust * weight(word) * rarity[word]
    return total
