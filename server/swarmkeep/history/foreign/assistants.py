"""Threads of OpenAI's Assistants API, from the objects that it returned: threads, messages, runs and run steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from swarmkeep.events.codec import Json, count_values, encode, encode_text
from swarmkeep.events.errors import InvalidImport
from swarmkeep.history.foreign.conversation import (
    ForeignConversation,
    as_list,
    choose_id,
    format_seconds,
    name_file,
    read_seconds,
)
from swarmkeep.history.foreign.documents import MAX_FILE_VALUES, Document

_KINDS = ("thread", "thread.message", "thread.run", "thread.run.step")
_MESSAGE_FIELDS = ("id", "run_id", "assistant_id", "attachments", "metadata", "status", "incomplete_details")
_RUN_FIELDS = (
    "id", "assistant_id", "model", "status", "usage", "last_error", "incomplete_details", "instructions", "metadata",
)  # fmt: skip
# Of all runs together: what is more does not fit into a session's metadata beside the rest.
_MAX_RUNS_BYTES = 32_768
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
            thread = _name_thread(item)
            if not isinstance(thread, str):
                raise InvalidImport(f"a {item['object']} does not name its thread", line=document.line)
            objects[thread][item["object"]].append(item)
    if not objects:
        raise InvalidImport("there are no threads, messages, runs or run steps in this file")
    for thread, kinds in objects.items():
        yield _build_conversation(thread, kinds)


def holds_api_objects(value: Any) -> bool:
    """Tell if one of the API's objects is anywhere in it."""
    try:
        return next(_find_objects(value), None) is not None
    except RecursionError:
        return False


def _find_objects(value: Any) -> Iterator[Json]:
    if isinstance(value, list):
        times = [_read_time(item) for item in value if isinstance(item, dict)]
        # The API gives the newest first unless it is asked otherwise.
        ordered = reversed(value) if len(times) > 1 and times[0] > times[-1] else value
        for item in ordered:
            yield from _find_objects(item)
    elif isinstance(value, dict):
        inner = (found for item in value.values() for found in _find_objects(item))
        if value.get("object") in _KINDS:
            yield value
            # Programs put what belongs to a thread or a run into it.
            inner = (found for found in inner if isinstance(_name_thread(found), str))
        yield from inner


def _name_thread(item: Json) -> Any:
    return item.get("id") if item["object"] == "thread" else item.get("thread_id")


def _build_conversation(thread_id: str, kinds: dict[str, list[Json]]) -> ForeignConversation:
    thread = (kinds["thread"] or [{}])[-1]
    runs = _keep_latest(kinds["thread.run"])
    said = [(_read_time(item), _USER_RANK if item.get("role") == "user" else _ANSWER_RANK, _convert_message(item))
            for item in _keep_latest(kinds["thread.message"])]  # fmt: skip
    steps = _keep_latest(kinds["thread.run.step"])
    called = [(_read_time(step), _CALLS_RANK, messages) for step in steps if (messages := _convert_calls(step))]
    told = {call["id"] for _, _, messages in called for message in messages for call in message.get("tool_calls") or ()}
    waiting = [
        (_read_time(run), _CALLS_RANK, messages) for run in runs if (messages := _convert_pending_calls(run, told))
    ]
    turns = [(time, rank, [message]) for time, rank, message in said] + called + waiting
    turns.sort(key=lambda turn: turn[:2])
    messages = [message for _, _, told_at_once in turns for message in told_at_once]
    metadata = thread.get("metadata")
    origin: Json = {"thread_id": thread_id}
    if thread.get("created_at"):
        origin["created_at"] = format_seconds(thread["created_at"])
    if thread.get("tool_resources"):
        origin["tool_resources"] = thread["tool_resources"]
    if kept := _place_runs([_keep_fields(run, _RUN_FIELDS) for run in runs], messages):
        origin["runs"] = kept
    return ForeignConversation(
        messages=messages,
        place=f"thread {thread_id}",
        id=choose_id(thread_id),
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


def _keep_latest(items: list[Json]) -> list[Json]:
    """Each object once, as it was seen last, in the order of their times. One without an id is like no other."""
    named = {item["id"] if isinstance(item.get("id"), str) else place: item for place, item in enumerate(items)}
    return sorted(named.values(), key=_read_time)


def _read_time(item: Json) -> float:
    return read_seconds(item.get("created_at"))


def _keep_fields(item: Json, names: Iterable[str]) -> Json:
    kept = {name: item[name] for name in names if item.get(name) not in (None, {}, [])}
    time = format_seconds(item.get("created_at"))
    return kept if time is None else {**kept, "created_at": time}


def _convert_message(item: Json) -> Json:
    content = item.get("content")
    raw: list[Any] = content if isinstance(content, list) else [{"type": "text", "text": {"value": content}}]
    parts: list[Json] = [part for part in raw if isinstance(part, dict)]
    texts = [part["text"] for part in parts if isinstance(part.get("text"), dict)]
    notes = [note for text in texts for note in as_list(text.get("annotations"))]
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
                told.append(name_file("image", address.get("url") if isinstance(address, dict) else address))
            case "image_file":
                file = part.get("image_file")
                told.append(name_file("image", file.get("file_id") if isinstance(file, dict) else "?"))
            case "refusal":
                pass
            case kind:
                told.append({"type": "text", "text": f"[{kind}]"})
    if all(part["type"] == "text" for part in told):
        return "\n".join(part["text"] for part in told)
    return told


def _convert_calls(step: Json) -> list[Json]:
    """A step's calls as a message that asks for them, and their results so far as there are any."""
    details = step.get("step_details")
    if not isinstance(details, dict) or details.get("type") != "tool_calls":
        return []
    asked = [call for call in as_list(details.get("tool_calls")) if isinstance(call, dict)]
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
    for output in as_list(outputs):
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
    missing = [call for call in as_list(calls) if isinstance(call, dict) and call.get("id") not in told]
    return _convert_calls({**run, "step_details": {"type": "tool_calls", "tool_calls": missing}}) if missing else []
