"""When the history of a conversation is made shorter for an agent's model."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Compaction(BaseModel):
    """Make the history shorter for the model once it takes `at` of `of_tokens`, which is what the model can take.

    Without `of_tokens`, only when the model's provider says that a request is too long. Results of functions longer
    than `result_characters` are shortened; then all but the last `keep_turns` turns are replaced by a summary, which
    the agent's model is asked for, with `instructions` added if there are some. The log keeps all of it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: float = Field(default=0.8, gt=0, le=1)
    of_tokens: int | None = Field(default=None, ge=100)
    keep_turns: int = Field(default=4, ge=1)
    result_characters: int = Field(default=2_000, ge=100)
    instructions: str | None = Field(default=None, max_length=20_000)
