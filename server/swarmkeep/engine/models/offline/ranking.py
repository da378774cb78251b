"""Ranks tools by what was said: a score of shared words, the rarer the word among the tools the more it counts."""

import math
from collections.abc import Sequence

from swarmkeep.engine.models.offline.reading import OfferedTool
from swarmkeep.engine.models.offline.words import SYNONYMS, find_stems, weigh_stem

NAME_WEIGHT = 3.0
DESCRIPTION_WEIGHT = 1.0
SYNONYM_WEIGHT = 0.7
MIN_SCORE = 1.5  # a word of a name, or two of a description


def rank_tools(tools: Sequence[OfferedTool], text: str, *, enough: float = MIN_SCORE) -> list[OfferedTool]:
    """The tools that fit a text, best first; where two fit alike, the agent's own before a handoff, then in order."""
    said = find_stems(text)
    near = frozenset(word for one in said for word in SYNONYMS.get(one, ())) - said
    rarity = _measure_rarity(tools)
    scores = [(_score_tool(tool, said, near, rarity), tool) for tool in tools]
    fitting = [(score, tool) for score, tool in scores if score >= enough]
    fitting.sort(key=lambda scored: (-round(scored[0], 6), scored[1].is_handoff))
    return [tool for _, tool in fitting]


def _measure_rarity(tools: Sequence[OfferedTool]) -> dict[str, float]:
    counts: dict[str, int] = {}
    for tool in tools:
        for word in tool.name_stems | tool.other_stems:
            counts[word] = counts.get(word, 0) + 1
    return {word: 1 / math.sqrt(count) for word, count in counts.items()}


def _score_tool(tool: OfferedTool, said: frozenset[str], near: frozenset[str], rarity: dict[str, float]) -> float:
    total = 0.0
    for words, trust in ((said, 1.0), (near, SYNONYM_WEIGHT)):
        for word in words & tool.name_stems:
            total += NAME_WEIGHT * trust * weigh_stem(word) * rarity[word]
        for word in words & (tool.other_stems - tool.name_stems):
            total += DESCRIPTION_WEIGHT * trust * weigh_stem(word) * rarity[word]
    return total
