"""Facts about a history that is made shorter for the model. The log keeps all of it."""

from __future__ import annotations

from typing import ClassVar, Literal

from swarmkeep.domain.facts.fact import Fact
from swarmkeep.domain.facts.records import CompletionRecord

CompactionReason = Literal["tokens", "too_long", "asked"]


class CompactionStarted(Fact, frozen=True, kw_only=True):
    """The results with the seqs in `shortened` are sent with `result_characters` characters from here on, their
    beginning and end; and what was said up to `last_seq` (0: nothing) is to be summed up, in pieces of about
    `piece_characters`.

    `prompt_tokens`: what the last request took by its provider's count, or, `estimated`, by its size.
    """

    type: ClassVar[str] = "compaction.started"
    reason: str
    keep_turns: int
    of_tokens: int | None = None
    prompt_tokens: int | None = None
    estimated: bool = False
    last_seq: int = 0
    shortened: tuple[int, ...] = ()
    result_characters: int = 0
    piece_characters: int = 0
    instructions: str | None = None
    by: str | None = None


class CompactionSummarised(Fact, frozen=True, kw_only=True):
    """A model has summed up the messages from `first_seq` to `last_seq`: it is sent `summary` in their place.

    It was sent the summary before this one, and about `characters` characters of what followed that.
    """

    type: ClassVar[str] = "compaction.summarised"
    first_seq: int
    last_seq: int
    summary: str
    characters: int
    completion: CompletionRecord | None = None


class CompactionFailed(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """No summary was made of what was left to sum up; the session goes on with what there is."""

    type: ClassVar[str] = "compaction.failed"
    code: str
    message: str
    retryable: bool = False
    provider_status: int | None = None
