"""Answers of a model that cannot be used, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


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
