"""Tokens as responses and chat completions show them, with details where the provider told them."""

from __future__ import annotations

from swarmkeep.domain.codec import Json
from swarmkeep.domain.facts.records import read_count


class UsageSum:
    """The sum of what the model calls of one response reported."""

    def __init__(self) -> None:
        self.calls = 0
        self._input = self._output = self._total = 0
        self._cached = self._cache_written = self._reasoning = 0

    def add(self, reported: Json | None) -> None:
        counts = reported or {}
        self.calls += 1
        self._input += _count(counts, "prompt_tokens")
        self._output += _count(counts, "completion_tokens")
        self._total += _count(counts, "total_tokens")
        self._cached += _count(counts.get("prompt_tokens_details"), "cached_tokens")
        self._cache_written += _count(counts.get("prompt_tokens_details"), "cache_write_tokens")
        self._reasoning += _count(counts.get("completion_tokens_details"), "reasoning_tokens")

    def to_response(self) -> Json:
        return {
            "input_tokens": self._input,
            "input_tokens_details": {"cached_tokens": self._cached, "cache_write_tokens": self._cache_written},
            "output_tokens": self._output,
            "output_tokens_details": {"reasoning_tokens": self._reasoning},
            "total_tokens": self._total,
        }

    def to_chat(self) -> Json:
        return {
            "prompt_tokens": self._input,
            "completion_tokens": self._output,
            "total_tokens": self._total,
            "prompt_tokens_details": {"cached_tokens": self._cached, "cache_write_tokens": self._cache_written},
            "completion_tokens_details": {"reasoning_tokens": self._reasoning},
        }


def _count(counts: object, name: str) -> int:
    return read_count(counts.get(name)) if isinstance(counts, dict) else 0
