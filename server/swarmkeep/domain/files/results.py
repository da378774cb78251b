"""Files that functions give: beside the text of their results, and in what a model is sent.

Chat Completions knows no files in a result. So models are sent them in a message of a user's, right behind the results
of the reply that asked for the calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import UNSET

from swarmkeep.domain.codec import Json
from swarmkeep.domain.events import ToolRecord
from swarmkeep.domain.files.references import (
    KINDS,
    FileReference,
    describe_content,
    list_part_references,
    read_reference,
)

HEADING = "[Given by functions, not said by the user:"
_PDF = "application/pdf"


def list_result_parts(tool: ToolRecord | None) -> tuple[Json, ...]:
    """The parts that a call gave."""
    return () if tool is None or tool.files is UNSET else tool.files


def list_result_references(tool: ToolRecord | None) -> list[FileReference]:
    return list_part_references(list_result_parts(tool))


def is_sent(part: Json) -> bool:
    """Whether models are sent it: pictures, audio and PDF; Chat Completions knows no others."""
    reference = read_reference(part)
    return reference is not None and (part["type"] != "file" or reference.media_type == _PDF)


def name_part(number: int, part: Json) -> str:
    """How the text of a result calls the n-th file of it, and how the message behind the results does."""
    return f"{KINDS[part['type']][0]} {number}"


def describe_result_part(number: int, part: Json, reference: FileReference) -> str:
    """A file as the text of its result names it, such as `picture 1: chart.png, image/png, 12 kB`."""
    said = describe_content(reference.media_type, reference.size, reference.name)
    return f"{name_part(number, part)}: {said}{'' if is_sent(part) else ' (kept for people; it is not shown to you)'}"


def make_files_message(results: Iterable[tuple[Json, ToolRecord | None]]) -> Json | None:
    """What a model is sent right behind these results; None if they gave nothing that it can be shown."""
    content: list[Json] = []
    for message, tool in results:
        parts = list_result_parts(tool)
        sent = [(number, part) for number, part in enumerate(parts, 1) if is_sent(part)]
        if tool is not None and sent:
            content.append({"type": "text", "text": _introduce(tool.name, message, sent)})
            content += [part for _, part in sent]
    return {"role": "user", "content": content} if content else None


def _introduce(name: str, message: Json, sent: Sequence[tuple[int, Json]]) -> str:
    # Names of files are in the result alone: here they would be read as a user's words.
    names = ", ".join(name_part(number, part) for number, part in sent)
    return f"{HEADING} {names} of the result of {name} ({message.get('tool_call_id')})]"
