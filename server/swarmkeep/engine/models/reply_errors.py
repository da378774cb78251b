"""Answers of a model that cannot be used, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

_MAX_REASON_CHARACTERS = 200


class MalformedReply(Exception):
    """The model's answer is no Chat Completion. `is_transient`: the call may be made again by itself."""

    code: ClassVar[str] = "provider_malformed"
    retryable: ClassVar[bool] = True
    is_transient: ClassVar[bool] = False


class NonJsonReply(MalformedReply):
    """The answer, or a piece of a stream, is no JSON."""

    code = "provider_not_json"


class WebPageReply(MalformedReply):
    """A proxy answered, or the base URL leads to something else than a model."""

    code = "provider_web_page"
    retryable = False


class EmptyReply(MalformedReply):
    """A completion without a choice, or a choice without a message."""

    code = "provider_empty_answer"


class FailedReply(MalformedReply):
    """The model's server says that generation failed, in the place of a reason for the reply's end."""

    code = "provider_failed"
    is_transient = True

    @classmethod
    def of(cls, finish_reason: str, *, has_failed: bool) -> FailedReply:
        """The error of a reply that ended with this reason; without `has_failed`, it promises calls and has none."""
        named = repr(finish_reason[:_MAX_REASON_CHARACTERS])
        if has_failed:
            return cls(f"the model's server did not finish the answer (finish_reason {named}); send the message again")
        return cls(f"the model's answer ends with finish_reason {named} and holds no call; send the message again")


class FilteredReply(MalformedReply):
    """The provider's filter stopped the model in mid-answer."""

    code = "content_filter"
    retryable = False


class TruncatedStream(MalformedReply):
    """The stream ended before the reply did."""

    code = "provider_stream_cut"
    is_transient = True


class ReportedError(MalformedReply):
    """The provider reports an error in the place of an answer; `body` is what it says."""

    def __init__(self, body: object) -> None:
        super().__init__(f"the model reported an error: {body}")
        self.body: Mapping[str, Any] = body if isinstance(body, dict) else {"message": str(body)}


class OversizedReply(MalformedReply):
    """The answer is larger than one may be."""

    code = "provider_answer_too_large"
    retryable = False


class UnreadableReply(MalformedReply):
    """The answer is compressed in a way that was not asked for."""

    retryable = False


class RedirectedReply(MalformedReply):
    """The address sends requests on to another one, which is not given the conversation."""

    code = "provider_redirected"
    retryable = False
