"""Conversations that were kept elsewhere, as they become sessions here."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from io import BytesIO
from itertools import chain
from typing import Any, BinaryIO, Literal

import msgspec

from swarmkeep.events.codec import (
    Json,
    MalformedJson,
    count_values,
    decode,
    encode,
    encode_text,
    has_more_values,
    to_timestamp,
)
from swarmkeep.events.errors import InvalidImport
from swarmkeep.events.wording import join_content
from swarmkeep.history.import_export import MAX_LINE_VALUES

ForeignFormat = Literal["chat", "swarm", "assistants"]

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Such a file is a document, which has to be in memory as a whole."""
MAX_FILE_VALUES = 1_000_000
"""JSON values of one document: as objects they take many times their bytes, and they are made in one go."""
_GZIP = b"\x1f\x8b"


class ForeignConversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that is to be a session. `place` is where in its file it stands, as a JSON pointer.

    `id` and `agent` are as far as the file names them; `origin` is what of it has no place in a session.
    """

    messages: list[Json]
    place: str = ""
    line: int | None = None
    id: str | None = None
    agent: str | None = None
    context_variables: Json = {}
    metadata: Json = {}
    origin: Json = {}

    def make_error(self, why: str, pointer: str = "") -> InvalidImport:
        where = f"{self.place}{pointer}"
        return InvalidImport(f"{where}: {why}" if where else why, line=self.line)

    @property
    def derived_id(self) -> str:
        """The id for one that names none: the same for the same content, so that it is not imported twice."""
        content = [self.messages, self.context_variables, self.metadata, self.origin]
        return f"import_{hashlib.sha256(encode(content)).hexdigest()[:32]}"


class Document(msgspec.Struct, frozen=True):
    """A JSON value of a file as it stands there, and its line if the file has one in each."""

    value: Any
    line: int | None
    text: bytes


def read_documents(
    file: BinaryIO, *, max_line_values: int = MAX_LINE_VALUES, max_values: int = MAX_FILE_VALUES
) -> Iterator[Document]:
    """The file as one JSON document, or as one in each line.

    A document holds no more than `max_values`, one in a line no more than `max_line_values`: they are counted before it
    is read. Raises InvalidImport.
    """
    file.seek(0)
    text = file.read(MAX_FILE_BYTES + 1)
    if len(text) > MAX_FILE_BYTES:
        raise InvalidImport(f"the file is larger than {MAX_FILE_BYTES} bytes; import it in parts")
    text = text.removeprefix(b"\xef\xbb\xbf")
    if text.startswith(_GZIP):
        raise InvalidImport("the file is compressed; unpack it first (gunzip)", line=1)
    first, second = next(lines := _read_lines(text), None), next(lines, None)
    if first is None:
        raise InvalidImport("the file is empty", line=1)
    # What begins with a whole value and goes on has one in each line. All of it is not tried to be read as one first.
    if second is not None and not has_more_values(first[1], max_values) and _is_json(first[1]):
        for number, content in chain((first, second), lines):
            yield _read_document(content, number, max_line_values)
    else:
        yield _read_document(text, None, max_values)


def _read_lines(text: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, one at a time: of as many as a file may have there is no list."""
    for number, line in enumerate(BytesIO(text), 1):
        if not line.isspace():
            yield number, line


def _read_document(text: bytes, line: int | None, max_values: int) -> Document:
    if has_more_values(text, max_values):
        where = "the file" if line is None else "the line"
        advice = "put each conversation on a line of its own" if line is None else "import it in parts"
        raise InvalidImport(f"{where} holds more than {max_values} JSON values; {advice}", line=line)
    try:
        return Document(decode(text), line, text)
    except MalformedJson as error:
        why, place = _explain(text, error) if line is None else (str(error), line)
        raise InvalidImport(f"this is not JSON: {why}", line=place) from None


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(decode(line), dict | list)
    except MalformedJson:
        return False


def _explain(text: bytes, error: MalformedJson) -> tuple[str, int | None]:
    """Explain the fault of a document, and in which line it is."""
    try:
        json.loads(text)
    except json.JSONDecodeError as found:
        return f"{found.msg}, column {found.colno}", found.lineno
    except (ValueError, RecursionError):
        pass
    return str(error), None


def enumerate_places(items: Iterable[Any], place: str) -> Iterator[tuple[str, Any]]:
    return ((f"{place}/{number}", item) for number, item in enumerate(items))


ConversationReader = Callable[[Iterable[Document]], Iterator[ForeignConversation]]


# Threads of OpenAI's Assistants API, from the objects that it returned: threads, messages, runs and run steps.

_KINDS = ("thread", "thread.message", "thread.run", "thread.run.step")
_MESSAGE_FIELDS = ("id", "run_id", "assistant_id", "attachments", "metadata", "status", "incomplete_details")
_RUN_FIELDS = (
    "id", "assistant_id", "model", "status", "usage", "last_error", "incomplete_details", "instructions", "metadata",
)  # fmt: skip
# Of all runs together: what is more does not fit into a session's metadata beside the rest.
_MAX_RUNS_BYTES = 32_768
_MAX_TIME = 2**52
# At one second: what a user says comes before what is called for it, and that before the answer.
_USER_RANK, _CALLS_RANK, _ANSWER_RANK = 0, 1, 2


def read_threads(found: Iterable[Document]) -> Iterator[ForeignConversation]:
    """The threads in these documents: every object of the API that is in them, however they were put together.

    Raises InvalidImport.
    """
    objects: dict[str, dict[str, list[Json]]] = defaultdict(lambda: defaultdict(list))
    values = 0
    for document in found:
        # Of a file that has one in each line all are kept until the last.
        values += 0 if document.line is None else count_values(document.text)
        if values > MAX_FILE_VALUES:
            why = f"the file holds more than {MAX_FILE_VALUES} JSON values up to here; import it in parts"
            raise InvalidImport(why, line=document.line)
        for item in _find_objects(document.value):
            thread = item.get("id") if item["object"] == "thread" else item.get("thread_id")
            if not isinstance(thread, str):
                raise InvalidImport(f"a {item['object']} does not name its thread", line=document.line)
            objects[thread][item["object"]].append(item)
    if not objects:
        raise InvalidImport("there are no threads, messages, runs or run steps in this file")
    for thread, kinds in objects.items():
        yield _build_conversation(thread, kinds)


def _find_objects(value: Any) -> Iterator[Json]:
    if isinstance(value, list):
        times = [_read_time(item) for item in value if isinstance(item, dict)]
        # The API gives the newest first unless it is asked otherwise.
        ordered = reversed(value) if len(times) > 1 and times[0] > times[-1] else value
        for item in ordered:
            yield from _find_objects(item)
    elif isinstance(value, dict):
        if value.get("object") in _KINDS:
            yield value
        else:
            for item in value.values():
                yield from _find_objects(item)


def _build_conversation(thread_id: str, kinds: dict[str, list[Json]]) -> ForeignConversation:
    thread = (kinds["thread"] or [{}])[-1]
    runs = _keep_latest(kinds["thread.run"])
    said = [(_read_time(item), _USER_RANK if item.get("role") == "user" else _ANSWER_RANK, _convert_message(item))
            for item in _keep_latest(kinds["thread.message"])]  # fmt: skip
    steps = _keep_latest(kinds["thread.run.step"])
    called = [(_read_time(step), _CALLS_RANK, messages) for step in steps if (messages := _convert_calls(step))]
    told = {call_id for _, _, messages in called for message in messages for call_id in _list_call_ids(message)}
    waiting = [
        (_read_time(run), _CALLS_RANK, messages) for run in runs if (messages := _convert_pending_calls(run, told))
    ]
    turns = [(time, rank, [message]) for time, rank, message in said] + called + waiting
    turns.sort(key=lambda turn: turn[:2])
    messages = [message for _, _, told_at_once in turns for message in told_at_once]
    metadata = thread.get("metadata")
    origin: Json = {"thread_id": thread_id}
    if thread.get("created_at"):
        origin["created_at"] = _format_time(thread)
    if thread.get("tool_resources"):
        origin["tool_resources"] = thread["tool_resources"]
    if kept := _place_runs([_keep_fields(run, _RUN_FIELDS) for run in runs], messages):
        origin["runs"] = kept
    return ForeignConversation(
        messages=messages,
        place=f"thread {thread_id}",
        id=thread_id,
        metadata=metadata if isinstance(metadata, dict) else {},
        origin=origin,
    )


def _place_runs(runs: list[Json], messages: list[Json]) -> list[Json]:
    """Those that stay together. Where they are large, as each brings its instructions again, those that have a message
    stand at their first one."""
    if len(encode(runs)) <= _MAX_RUNS_BYTES:
        return runs
    first: dict[str, Json] = {}
    for message in reversed(messages):
        kept = message.get("imported")
        if kept is not None and isinstance(kept.get("run_id"), str):
            first[kept["run_id"]] = kept
    rest = []
    for run in runs:
        kept = first.get(run["id"]) if isinstance(run.get("id"), str) else None
        if kept is None:
            rest.append(run)
        else:
            kept["run"] = run
    return rest


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _keep_latest(items: list[Json]) -> list[Json]:
    """Each object once, as it was seen last, in the order of their times. One without an id is like no other."""
    named = {item["id"] if isinstance(item.get("id"), str) else place: item for place, item in enumerate(items)}
    return sorted(named.values(), key=_read_time)


def _read_time(item: Json) -> float:
    value = item.get("created_at")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(max(-_MAX_TIME, min(value, _MAX_TIME)))


def _format_time(item: Json) -> str | None:
    try:
        return (
            to_timestamp(datetime.fromtimestamp(_read_time(item), UTC), timespec="auto") if _read_time(item) else None
        )
    except (OverflowError, OSError, ValueError):
        return None


def _keep_fields(item: Json, names: Iterable[str]) -> Json:
    kept = {name: item[name] for name in names if item.get(name) not in (None, {}, [])}
    time = _format_time(item)
    return kept if time is None else {**kept, "created_at": time}


def _convert_message(item: Json) -> Json:
    content = item.get("content")
    raw: list[Any] = content if isinstance(content, list) else [{"type": "text", "text": {"value": content}}]
    parts: list[Json] = [part for part in raw if isinstance(part, dict)]
    texts = [part["text"] for part in parts if isinstance(part.get("text"), dict)]
    notes = [note for text in texts for note in _as_list(text.get("annotations"))]
    kept = _keep_fields(item, _MESSAGE_FIELDS)
    if notes:
        kept["annotations"] = notes
    refusals = [str(part["refusal"]) for part in parts if part.get("type") == "refusal" and part.get("refusal")]
    told: Json = {"role": item.get("role"), "content": _convert_content(item.get("role"), parts), "imported": kept}
    return {**told, "refusal": "\n".join(refusals)} if refusals else told


def _convert_content(role: Any, parts: list[Json]) -> str | list[Json]:
    told: list[Json] = []
    for part in parts:
        match part.get("type"):
            case "text":
                text = part.get("text")
                value = text.get("value") if isinstance(text, dict) else text
                told.append({"type": "text", "text": value if isinstance(value, str) else ""})
            case "image_url" if role == "user":
                told.append(part)
            case "image_url":
                # No model is sent a picture as what it said.
                address = part.get("image_url")
                told.append(_name_image(address.get("url") if isinstance(address, dict) else address))
            case "image_file":
                file = part.get("image_file")
                told.append(_name_image(file.get("file_id") if isinstance(file, dict) else "?"))
            case "refusal":
                pass
            case kind:
                told.append({"type": "text", "text": f"[{kind}]"})
    if all(part["type"] == "text" for part in told):
        return "\n".join(part["text"] for part in told)
    return told


def _name_image(name: Any) -> Json:
    return {"type": "text", "text": f"[image: {name}]"}


def _convert_calls(step: Json) -> list[Json]:
    """A step's calls as a message that asks for them, and their results so far as there are any."""
    details = step.get("step_details")
    if not isinstance(details, dict) or details.get("type") != "tool_calls":
        return []
    asked = [call for call in _as_list(details.get("tool_calls")) if isinstance(call, dict)]
    calls = [call for call in asked if isinstance(call.get("id"), str)]
    if not calls:
        return []
    told = [_convert_call(call) for call in calls]
    kept = _keep_fields(step, ("id", "run_id", "assistant_id", "status", "last_error", "usage"))
    asking: Json = {"role": "assistant", "content": None, "tool_calls": [call for call, _ in told], "imported": kept}
    results = [
        {"role": "tool", "tool_call_id": call["id"], "tool_name": call["function"]["name"], "content": output}
        for call, output in told
        if output is not None
    ]
    return [asking, *results]


def _convert_call(call: Json) -> tuple[Json, str | None]:
    """A call of any kind as a call of a function, and what came of it; None if nothing did."""
    kind = str(call.get("type") or "function")
    details = call.get(kind)
    details = details if isinstance(details, dict) else {}
    match kind:
        case "function":
            name, arguments = details.get("name"), details.get("arguments")
            output = details.get("output")
        case "code_interpreter":
            name, arguments = kind, encode_text({"code": details.get("input") or ""})
            output = _join_outputs(details.get("outputs"))
        case _:
            name, arguments = kind, encode_text({k: v for k, v in details.items() if k != "results"})
            output = encode_text(details.get("results") or [])
    function = {
        "name": name if isinstance(name, str) else kind,
        "arguments": arguments if isinstance(arguments, str) else "{}",
    }
    text = output if isinstance(output, str) or output is None else encode_text(output)
    return {"id": call["id"], "type": "function", "function": function}, text


def _join_outputs(outputs: Any) -> str:
    told = []
    for output in _as_list(outputs):
        if isinstance(output, dict):
            image = output.get("image")
            told.append(
                str(output.get("logs") or "") if not isinstance(image, dict) else f"[image: {image.get('file_id')}]"
            )
    return "\n".join(told)


def _convert_pending_calls(run: Json, told: set[str]) -> list[Json]:
    """The calls that a run waits for, unless its steps have told of them."""
    action = run.get("required_action")
    wanted = action.get("submit_tool_outputs") if isinstance(action, dict) else None
    calls = wanted.get("tool_calls") if isinstance(wanted, dict) else None
    missing = [call for call in _as_list(calls) if isinstance(call, dict) and call.get("id") not in told]
    return _convert_calls({**run, "step_details": {"type": "tool_calls", "tool_calls": missing}}) if missing else []


def _list_call_ids(message: Json) -> Iterator[str]:
    return (call["id"] for call in message.get("tool_calls") or ())


# Transcripts in the form of Chat Completions: lists of messages, fine-tuning files, what Swarm's programs wrote.

_ITEM_TYPES = ("function_call", "function_call_output", "mcp_call", "reasoning", "item_reference")
_ITEMS = (
    "these are items of OpenAI's responses, not messages; create a conversation with them: `items` of "
    "POST /openai/v1/conversations"
)


def read_chats(found: Iterable[Document]) -> Iterator[ForeignConversation]:
    """The conversations in these documents.

    A document is a list of messages, an object that has one under `messages` (or `data`), or a list of such objects.
    Raises InvalidImport.
    """
    for document in found:
        yield from _read_chat_document(document.value, document.line)


def _read_chat_document(value: Any, line: int | None) -> Iterator[ForeignConversation]:
    if isinstance(value, list) and value and all(_holds_messages(item) for item in value):
        for place, item in enumerate_places(value, ""):
            yield _read_conversation(item, place, line)
    elif isinstance(value, list) or _holds_messages(value):
        yield _read_conversation(value, "", line)
    else:
        raise InvalidImport("this is neither a list of messages nor an object that has `messages`", line=line)


def _holds_messages(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("messages", value.get("data")), list)


def _read_conversation(value: list[Any] | Json, place: str, line: int | None) -> ForeignConversation:
    if isinstance(value, list):
        return ForeignConversation(messages=_convert_messages(value, line), place=place, line=line)
    key = "messages" if "messages" in value else "data"
    metadata, variables = value.get("metadata"), value.get("context_variables")
    known = {key, "id"}
    known |= {
        name for name, item in (("metadata", metadata), ("context_variables", variables)) if isinstance(item, dict)
    }
    return ForeignConversation(
        messages=_convert_messages(value[key], line),
        place=f"{place}/{key}",
        line=line,
        id=value["id"] if isinstance(value.get("id"), str) else None,
        agent=_read_agent(value.get("agent")),
        context_variables=variables if isinstance(variables, dict) else {},
        metadata=metadata if isinstance(metadata, dict) else {},
        origin={name: item for name, item in value.items() if name not in known},
    )


def _read_agent(value: Any) -> str | None:
    """The agent that Swarm's Response names, itself or by its name."""
    name = value.get("name") if isinstance(value, dict) else value
    return name if isinstance(name, str) and name else None


def _convert_messages(messages: list[Any], line: int | None) -> list[Json]:
    """The messages; calls of functions as they were before there were tools are told as calls of tools.

    Parts are converted where messages of any door are. What becomes several messages is split here, and texts are
    named here: of both, the id of a conversation that has none is made.
    """
    if any(isinstance(message, dict) and message.get("type") in _ITEM_TYPES for message in messages):
        raise InvalidImport(_ITEMS, line=line)
    told: list[Any] = []
    last_call = ""
    for number, message in enumerate(chain.from_iterable(_split_results(_convert_texts(each)) for each in messages)):
        if (
            isinstance(message, dict)
            and isinstance(message.get("function_call"), dict)
            and not message.get("tool_calls")
        ):
            last_call = f"call_{number}"
            rest = {name: value for name, value in message.items() if name != "function_call"}
            call = {"id": last_call, "type": "function", "function": message["function_call"]}
            told.append({"content": None, **rest, "tool_calls": [call]})
        elif isinstance(message, dict) and message.get("role") == "function":
            told.append({**message, "role": "tool", "tool_call_id": last_call or f"call_{number}"})
        else:
            told.append(message)
    return told


def _convert_texts(message: Any) -> Any:
    """The message, and texts in it that are named as Responses names them as Chat Completions does."""
    parts = message.get("content") if isinstance(message, dict) else None
    if not isinstance(parts, list) or not any(map(_is_text_of_responses, parts)):
        return message
    content = [{"type": "text", "text": part["text"]} if _is_text_of_responses(part) else part for part in parts]
    return {**message, "content": content}


def _is_text_of_responses(part: Any) -> bool:
    return (
        isinstance(part, dict)
        and part.get("type") in ("input_text", "output_text")
        and isinstance(part.get("text"), str)
    )


def _split_results(message: Any) -> list[Any]:
    """The message; of one of Anthropic's with results of calls among its parts, these as messages before the rest."""
    parts = message.get("content") if isinstance(message, dict) and message.get("role") == "user" else None
    if not isinstance(parts, list) or not any(map(_is_result, parts)):
        return [message]
    rest = [part for part in parts if not _is_result(part)]
    results = [
        {"role": "tool", "tool_call_id": part.get("tool_use_id"), "content": join_content(part.get("content"))}
        for part in parts
        if _is_result(part)
    ]
    return [*results, {**message, "content": rest}] if rest else results


def _is_result(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "tool_result"
