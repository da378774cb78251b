"""Operations of the OpenAPI document whose answers, or whose body, are not JSON alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, Operation, RequestBody, Schema

from swarmkeep.api.sse import EVENT_STREAM
from swarmkeep.audit.transcript.document import MEDIA_TYPES
from swarmkeep.audit.transfer.export import JSON_LINES


class _Operation(Operation):
    """An operation that answers in these media types: instead of JSON, or beside it."""

    media_types: ClassVar[tuple[str, ...]]
    replaces_json: ClassVar[bool] = True

    def __post_init__(self) -> None:
        answer = (self.responses or {}).get("200")
        if isinstance(answer, OpenAPIResponse) and answer.content is not None:
            json = {} if self.replaces_json else answer.content
            # Of one event or of all of them: readers of the document disagree on what a stream's schema describes.
            answer.content = {**json, **dict.fromkeys(self.media_types, OpenAPIMediaType(schema=Schema()))}


@dataclass
class StreamableOperation(_Operation):
    """Answers as a stream, too, if asked to."""

    media_types: ClassVar[tuple[str, ...]] = (EVENT_STREAM,)
    replaces_json = False


@dataclass
class EventsOperation(StreamableOperation):
    """It has a third form."""

    media_types = (EVENT_STREAM, JSON_LINES)


@dataclass
class ExportOperation(_Operation):
    media_types = (JSON_LINES,)


@dataclass
class TranscriptOperation(_Operation):
    media_types = tuple(MEDIA_TYPES.values())


@dataclass
class ImportOperation(Operation):
    """Its body is a file."""

    def __post_init__(self) -> None:
        content = {JSON_LINES: OpenAPIMediaType(schema=Schema())}
        self.request_body = RequestBody(content=content, required=True, description="The file.")
