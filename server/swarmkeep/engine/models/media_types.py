"""What kind of answer a `Content-Type` names."""

from __future__ import annotations


def _read_media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def is_web_page(content_type: str) -> bool:
    """Whether it is a web page, which no model sends but many a proxy does."""
    return _read_media_type(content_type) == "text/html"


def is_event_stream(content_type: str) -> bool:
    return _read_media_type(content_type) == "text/event-stream"


def may_be_stream(content_type: str) -> bool:
    """Whether an answer to a request for a stream is one; some servers send the whole at once."""
    return _read_media_type(content_type) not in ("application/json", "text/html")
