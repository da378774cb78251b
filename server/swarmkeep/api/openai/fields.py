"""What becomes of each field of a request. Nothing is ignored silently.

A field of a struct here is used, or shown again, as the module `parameters` says. Those of the type None are refused
unless they are null, and whatever is not named here is unknown.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from swarmkeep.api.bodies import Body
from swarmkeep.api.openai.errors import Refused
from swarmkeep.domain.codec import Json

Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Tokens = Annotated[int, Meta(ge=1, le=2**53 - 1)]
ShortText = Annotated[str, Meta(max_length=64)]
Verbosity = Literal["low", "medium", "high"]

# Of whatever `include` may name, what changes nothing here: models' reasoning is not kept, and usage is always given.
_INCLUDABLE = ("reasoning.encrypted_content", "usage")


def refuse_logprobs(asked: int | None, param: str) -> None:
    """Raise Refused if log probabilities are asked for: they are not kept of what a model answers."""
    if asked:
        raise Refused("log probabilities of tokens are not available; leave this out", param)


class Conversation(Body, frozen=True, kw_only=True):
    """A conversation, by its id."""

    id: str


class TextOptions(Body, frozen=True, kw_only=True):
    """Of what form the answer is to be."""

    format: Json | None = None
    verbosity: Verbosity | None = None


class ReasoningOptions(Body, frozen=True, kw_only=True):
    """How much a model is to think."""

    effort: ShortText | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None

    generate_summary: None = None
    context: None = None
    mode: None = None


class StreamOptions(Body, frozen=True, kw_only=True):
    """Nothing is padded in any case."""

    include_obfuscation: bool | None = None


class _ResponseInput(Body, frozen=True, kw_only=True):
    """What the requests about responses share."""

    model: str | None = None
    input: str | list[Any] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | Conversation | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | UnsetType | None = UNSET
    text: TextOptions | None = None
    model_profile: Json | None = None
    reasoning: ReasoningOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None

    prompt: None = None
    prompt_cache_options: None = None
    personality: None = None


class CreateResponse(_ResponseInput, frozen=True, kw_only=True):
    """`POST responses`, and a frame of its WebSocket."""

    store: bool | None = None
    stream: bool | None = None
    background: bool | None = None
    metadata: Metadata | None = None
    include: list[str] | None = None
    stream_options: StreamOptions | None = None

    temperature: Temperature | None = None
    top_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    top_logprobs: int | None = None
    max_output_tokens: Tokens | None = None

    user: str | None = None
    safety_identifier: ShortText | None = None
    prompt_cache_key: ShortText | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None

    max_tool_calls: None = None
    moderation: None = None
    image: None = None
    access_programs: None = None
    context_management: None = None

    def check_fields(self) -> None:
        """Raise Refused for what an answer cannot have."""
        refuse_logprobs(self.top_logprobs, "top_logprobs")
        for place, name in enumerate(self.include or ()):
            refuse_logprobs(name == "message.output_text.logprobs", f"include[{place}]")
            if name not in _INCLUDABLE:
                raise Refused(f"{name!r} cannot be included here", f"include[{place}]")


class CountTokens(_ResponseInput, frozen=True, kw_only=True):
    """`POST responses/input_tokens`."""


class CompactResponse(Body, frozen=True, kw_only=True):
    """`POST responses/compact`. The specification requires that a model is named; OpenAI's types let it be null."""

    model: str | None
    input: str | list[Any] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    # Where a provider may look for what it has cached: its own affair, and nothing of a compaction is shown again.
    prompt_cache_key: ShortText | None = None
    prompt_cache_retention: str | None = None
    # Nothing is shown again or kept of a compaction, so that no other tier can be asked for.
    service_tier: Literal["auto", "default"] | None = None

    prompt_cache_options: None = None
    image: None = None
