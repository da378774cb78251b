"""Parts of messages: as responses have them, and as Chat Completions has them."""

from __future__ import annotations

from typing import Any

from swarmkeep.api.openai.errors import Refused
from swarmkeep.domain.codec import Json
from swarmkeep.domain.files.references import read_reference
from swarmkeep.domain.parts import THOUGHTS


def read_text(item: Json, name: str, param: str) -> str:
    """A field that must be there. Raises Refused."""
    value = item.get(name)
    if not isinstance(value, str) or not value:
        raise Refused(f"`{name}` must be a text that is not empty", f"{param}.{name}")
    return value


def read_content(content: object, param: str) -> str | list[Json]:
    """What a user, system or developer says, in parts of Chat Completions; texts alone as one text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Refused("content must be a text, or a list of parts", param)
    parts = [_read_part(part, f"{param}[{place}]") for place, part in enumerate(content)]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return parts


def _read_part(part: Any, param: str) -> Json:
    match part:
        case {"type": "input_text" | "text" | "output_text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "input_image", "image_url": str(url)}:
            detail = part.get("detail")
            return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail else {})}}
        case {"type": "input_file", "file_data": str(data)}:
            name = part.get("filename")
            return {"type": "file", "file": {"file_data": data, **({"filename": name} if name else {})}}
        case {"type": "input_audio", "input_audio": dict(audio)}:
            return {"type": "input_audio", "input_audio": audio}
        case {"type": "input_image"}:
            raise Refused("send a picture as `image_url`, which may be data, not by the id of an upload", param)
        case {"type": "input_file"}:
            raise Refused("send a file as `file_data`, not by a URL or the id of an upload", param)
        case {"type": str(kind)}:
            raise Refused(f"parts of the type {kind!r} are not taken here, or not in this shape", f"{param}.type")
        case _:
            raise Refused("a part must be an object with a `type`", param)


def read_assistant_content(content: object, param: str) -> Json:
    """What a model said: `content`, and `refusal` where it refused."""
    if content is None or isinstance(content, str):
        return {"content": content or ""}
    if not isinstance(content, list):
        raise Refused("content must be a text, or a list of parts", param)
    texts: list[str] = []
    refusals: list[str] = []
    for place, part in enumerate(content):
        match part:
            case {"type": "output_text" | "input_text" | "text", "text": str(text)}:
                texts.append(text)
            case {"type": "refusal", "refusal": str(text)}:
                refusals.append(text)
            case {"type": str(kind)} if kind in THOUGHTS:
                # Left out where any message brings them.
                pass
            case _:
                raise Refused("an assistant's parts must be `output_text` or `refusal`", f"{param}[{place}]")
    return {"content": "".join(texts), **({"refusal": "".join(refusals)} if refusals else {})}


def read_text_output(output: object, param: str) -> str:
    """The result of a call. Models are sent texts only here."""
    if isinstance(output, str):
        return output
    if not isinstance(output, list):
        raise Refused("an output must be a text, or a list of text parts", param)
    texts: list[str] = []
    for place, part in enumerate(output):
        match part:
            case {"type": "input_text" | "text" | "output_text", "text": str(text)}:
                texts.append(text)
            case _:
                raise Refused("an output's parts must be texts", f"{param}[{place}]")
    return "".join(texts)


def show_input_content(content: object) -> list[Json]:
    """The parts of a message from outside, as responses show them."""
    if isinstance(content, str):
        return [{"type": "input_text", "text": content}]
    parts = content if isinstance(content, list) else []
    return [shown for part in parts if isinstance(part, dict) and (shown := show_part(part)) is not None]


def show_part(part: Json) -> Json | None:
    """A part as responses show it. One with content that is kept elsewhere waits for that (see `put_back_files`)."""
    if read_reference(part) is not None:
        return {"type": "input_file", "blob_part": part}
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "input_text", "text": text}
        case {"type": "image_url", "image_url": {"url": str(url), **rest}}:
            return {"type": "input_image", "image_url": url, "detail": rest.get("detail") or "auto", "file_id": None}
        case {"type": "file", "file": {"file_data": str(data), **rest}}:
            return {"type": "input_file", "file_data": data, "filename": rest.get("filename")}
        case {"type": "input_audio"}:
            return part
        case _:
            return None


def show_output_text(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def show_refusal(text: str) -> Json:
    return {"type": "refusal", "refusal": text}
