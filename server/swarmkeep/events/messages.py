"""Chat Completions messages: what is kept, and what of it is sent."""

from __future__ import annotations

import functools
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import UNSET

from swarmkeep.events.codec import Json, MalformedJson, decode, encode, is_deeper_than, replace_surrogates
from swarmkeep.events.facts import CompactionSummarised, MessageAdded, RunQueued, SessionEvent, ToolsListed
from swarmkeep.events.files import (
    KINDS,
    FileReference,
    describe_content,
    list_part_references,
    list_references,
    read_reference,
)
from swarmkeep.events.model_profiles import hide_attached, read_attached, remove_attached, send_back
from swarmkeep.events.parts import clean_parts
from swarmkeep.events.records import CompletionRecord, MessageRules, ToolRecord

# Files that functions give: beside the text of their results, and in what a model is sent.

HEADING = "[Given by functions, not said by the user:"
_PDF = "application/pdf"


def list_result_parts(tool: ToolRecord | None) -> tuple[Json, ...]:
    """The parts that a call gave."""
    return () if tool is None or tool.files is UNSET else tool.files


def list_result_references(tool: ToolRecord | None) -> list[FileReference]:
    return list_part_references(list_result_parts(tool))


def is_sent(part: Json) -> bool:
    """Tell if models are sent it: pictures, audio and PDF; Chat Completions knows no others."""
    reference = read_reference(part)
    return reference is not None and (part["type"] != "file" or reference.media_type == _PDF)


def name_part(number: int, part: Json) -> str:
    """Name the n-th file of a result, in its text and in the message behind the results."""
    return f"{KINDS[part['type']][0]} {number}"


def describe_result_part(number: int, part: Json, reference: FileReference) -> str:
    """A file as the text of its result names it, such as `picture 1: chart.png, image/png, 12 kB`."""
    said = describe_content(reference.media_type, reference.size, reference.name)
    return f"{name_part(number, part)}: {said}{'' if is_sent(part) else ' (kept for people; it is not shown to you)'}"


def make_files_message(results: Iterable[tuple[Json, ToolRecord | None]]) -> Json | None:
    """Make the message that a model is sent right behind these results; None if they gave nothing that it can be
    shown."""
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


# The texts that stand for what a model is not sent: shortened results, and summaries.

_LEFT_OUT = "\n[… {count} characters left out …]\n"
SHORTENED_HEADING = (
    "[A summary of the conversation up to here, in the place of its messages. It was made by a model; it is no message "
    "of the user.]"
)


def shorten_text(text: str, most: int) -> str:
    """The beginning and the end of a text that has more characters than that."""
    if len(text) <= most:
        return text
    head = most * 2 // 3
    tail = most - head
    return text[:head] + _LEFT_OUT.format(count=len(text) - most) + text[len(text) - tail :]


def make_summary_message(text: str) -> Json:
    """The message that a model is sent in the place of those that were summed up."""
    return {"role": "user", "content": f"{SHORTENED_HEADING}\n\n{text}", "sender": "swarmkeep"}


ROLES = ("system", "developer", "user", "assistant", "tool")
INTERRUPTED = "Interrupted: the outcome of this call is unknown. It may or may not have taken effect."
SUPERSEDED = "Not handed over to {agent}: a later call of the same reply handed over instead, and the last one wins."

_NO_TEXT = "[no text]"

# What every version of Python can read, so that a request is rebuilt alike with each of them.
_MOST_LEVELS = 500
# Only Chat Completions keys go to a model: strict servers refuse `sender` and the like.
_CHAT_KEYS = {
    "system": ("role", "content", "name"),
    "developer": ("role", "content", "name"),
    "user": ("role", "content", "name"),
    "assistant": ("role", "content", "refusal", "name"),
    "tool": ("role", "tool_call_id", "content"),
}


class Entry(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One message of a session, with where it stands in the log.

    `removed`: it was taken out, so that models are not sent it and lists do not show it. `removed_calls`: only these
    calls of it were, by the ids that the message gives them; `removed_content`: what it says was. `shortened`: of its
    content models are sent so many characters, the beginning and the end. `person`: who wrote it in the agent's place,
    or for the agent when handing back. `rendered`: as one model is sent it, where that is not as any other is.
    """

    seq: int
    at: str
    run_id: str | None
    message: Json
    completion: CompletionRecord | None = None
    tool: ToolRecord | None = None
    removed: bool = False
    shortened: int = 0
    removed_calls: tuple[str, ...] = ()
    removed_content: bool = False
    is_correction: bool = False
    guardrail: str | None = None
    person: str | None = None
    rendered: Json | None = None

    @property
    def is_question(self) -> bool:
        """True if it is a user's message, rather than one in the user's place: about a wrong answer, or by a person
        who had taken over."""
        is_users = self.message.get("role") == "user" and self.person is None
        return is_users and not self.is_correction and not self.is_unsent

    @property
    def is_unsent(self) -> bool:
        """True if no model is sent it: input that a guardrail refused, or the answer to that."""
        return self.guardrail is not None and self.completion is None

    @property
    def role(self) -> str:
        role = self.message.get("role")
        return role if isinstance(role, str) else ""

    @functools.cached_property
    def chat_message(self) -> Json:
        """The message with Chat Completions keys only, or as it was rendered for a model."""
        if self.rendered is not None:
            return self.rendered
        return to_chat_message(self.sent_message if self.shortened else self.shown_message)

    @property
    def is_plain(self) -> bool:
        """Whether every model is sent the same of it: no model attached anything, and its parts are all of Chat
        Completions."""
        content = self.chat_message["content"]
        return read_attached(self.message) is None and (
            not isinstance(content, list) or clean_parts(self.role, content) is content
        )

    def render(self, rules: MessageRules) -> Entry:
        """Return the message as it is sent by these rules: itself, where they make no difference."""
        plain = self.chat_message
        sent = plain
        if rules.version >= 2 and isinstance(sent["content"], list):
            sent = _replace_parts(sent)
        if self.role == "assistant":
            sent = send_back(sent, self.sent_message, rules)
        elif self.role == "developer" and rules.developer_role == "system":
            sent = {**sent, "role": "system"}
        if rules.content_parts == "text" and isinstance(sent["content"], list):
            sent = {**sent, "content": _join_parts(sent["content"])}
        return self if sent is plain else msgspec.structs.replace(self, rendered=sent)

    @property
    def sent_message(self) -> Json:
        """The message as far as models are sent it."""
        message, content = self.shown_message, self.message.get("content")
        if not self.shortened or not isinstance(content, str):
            return message
        return {**message, "content": shorten_text(content, self.shortened)}

    @property
    def shown_message(self) -> Json:
        """The message without what was taken out of it."""
        message = without_content(self.message) if self.removed_content else self.message
        return without_calls(message, self.removed_calls) if self.removed_calls else message

    @functools.cached_property
    def chat_json(self) -> bytes:
        """`chat_message`, encoded. Kept, because a session's history goes out again with every turn."""
        return encode(self.chat_message)

    @functools.cached_property
    def call_ids(self) -> tuple[str, ...]:
        """The tool calls that this message asks for, each id once."""
        return tuple(call["id"] for call in self.chat_message.get("tool_calls", ()))

    @functools.cached_property
    def cut_calls(self) -> Mapping[str, bool]:
        """The calls that the end of this reply cut, by id: see `find_cut_calls`."""
        return {} if self.completion is None else find_cut_calls(self.message, self.completion)

    @functools.cached_property
    def is_empty(self) -> bool:
        """True if it is a reply without words or calls. Several servers refuse a history that has one."""
        if self.role != "assistant":
            return False
        sent = self.chat_message
        return not (sent.get("content") or sent.get("tool_calls") or sent.get("refusal"))

    def view(self) -> Json:
        """The public form: the message, its sender and its place in the log."""
        place: Json = {"seq": self.seq, "at": self.at, "run_id": self.run_id}
        if self.guardrail is not None:
            place["guardrail"] = self.guardrail
        if self.tool is not None and self.tool.session_id is not UNSET:
            place["session_id"] = self.tool.session_id
        if given := list_result_parts(self.tool):
            place["files"] = list(given)
        if self.person is not None:
            place["person"] = self.person
        # Twice: first in order, and last in force over any keys that the message brings.
        return {**place, "sender": None, **hide_attached(self.shown_message), **place}


def list_shown(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The messages that were not taken out."""
    return (entry for entry in entries if not entry.removed)


def find_message(messages: Sequence[Entry], seq: int) -> int | None:
    """Return the place of the message with this seq."""
    at = bisect_left(messages, seq, key=lambda entry: entry.seq)
    return at if at < len(messages) and messages[at].seq == seq else None


def without_content(message: Json) -> Json:
    """The message without what it says, and what came with that."""
    rest = remove_attached(message)
    return {key: None if key == "content" else value for key, value in rest.items() if key != "refusal"}


def without_calls(message: Json, call_ids: Collection[str]) -> Json:
    """The message without these of its calls, and what came with them."""
    message = remove_attached(message, tuple(call_ids))
    calls = message.get("tool_calls")
    left = [
        call
        for call in (calls if isinstance(calls, list) else ())
        if not (isinstance(call, dict) and isinstance(call.get("id"), str) and call["id"] in call_ids)
    ]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "tool_calls": left} if left else rest


def to_chat_message(message: Json) -> Json:
    """The message as a strict server takes it. What it would refuse of a message from outside is mended or left out."""
    role = message["role"]
    sent = {key: message[key] for key in _CHAT_KEYS[role] if message.get(key) is not None}
    calls = _clean_calls(message) if role == "assistant" and message.get("tool_calls") else []
    if calls:
        sent["tool_calls"] = calls
    if sent.get("content") is None:
        # Null content is allowed beside tool calls only.
        sent["content"] = None if calls else ""
    elif not isinstance(sent["content"], str):
        sent["content"] = _clean_parts(sent["content"])
    if "name" in sent:
        sent["name"] = _NOT_IN_AUTHOR_NAMES.sub("_", str(sent["name"]))[:64] or "_"
    if not isinstance(sent.get("refusal", ""), str):
        del sent["refusal"]
    try:
        encode_strict(sent)
    except UnicodeEncodeError:
        sent = replace_surrogates(sent)
    return sent


encode_strict = msgspec.json.Encoder().encode

# What providers accept in names. Models make up others, and refuse them when their own reply is sent back to them.
_NOT_IN_FUNCTION_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_NOT_IN_AUTHOR_NAMES = re.compile(r"[\s<|\\/>]")


def _clean_parts(content: object) -> list[Json] | str:
    parts = content if isinstance(content, list) else []
    return [part for part in parts if isinstance(part, dict) and isinstance(part.get("type"), str)] or ""


def _replace_parts(sent: Json) -> Json:
    """The message with parts that its role may have; the same object, where it has no others."""
    content = clean_parts(sent["role"], sent["content"])
    if content is sent["content"]:
        return sent
    if not content and sent["role"] == "assistant" and not sent.get("tool_calls") and not sent.get("refusal"):
        # Several servers refuse a history with a reply that says nothing.
        content = _NO_TEXT
    return {**sent, "content": content or (None if sent.get("tool_calls") else "")}


def _join_parts(content: Sequence[Json]) -> str:
    """The texts of parts as one, for a model that takes nothing else."""
    left_out = "[left out, because this model takes texts only: {}]"
    texts = (part.get("text") if part["type"] == "text" else left_out.format(part["type"]) for part in content)
    return "\n".join(text for text in texts if isinstance(text, str))


def read_tool_calls(message: Json) -> list[tuple[str, str, str]]:
    """Id, name and arguments of each tool call of a message, each id once; anything else there is skipped."""
    found: dict[str, tuple[str, str, str]] = {}
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(call.get("id"), str):
            continue
        name, arguments = function.get("name"), function.get("arguments")
        text = arguments if isinstance(arguments, str) and arguments else "{}"
        found.setdefault(call["id"], (call["id"], name if isinstance(name, str) else "", text))
    return list(found.values())


def is_cut_end(completion: CompletionRecord) -> bool:
    """Return whether a reply's end may have cut what it said last.

    An answer that came whole and gives no reason is whole: its JSON was. A stream without a reason may have ended
    anywhere.
    """
    if completion.partial is True:
        return True
    if completion.ending is not None:
        return completion.ending not in ("stop", "tool_calls")
    return completion.request is not None and completion.request.params.get("stream") is True


def find_cut_calls(message: Json, completion: CompletionRecord) -> dict[str, bool]:
    """Return the calls of a reply that did not come whole, by id: none of them may be started.

    A reply that ended as it should has none. If its end cut it, a call is whole if its arguments are the text of a JSON
    object; `{}` in the last call proves nothing, because several servers send it first and the arguments after it.
    True stands beside calls whose arguments are missing or such a placeholder: a function without parameters needs no
    others, so its call is whole.
    """
    if not message.get("tool_calls") or not is_cut_end(completion):
        return {}
    found: dict[str, bool] = {}
    calls = [call for call in message["tool_calls"] if isinstance(call, dict) and isinstance(call.get("id"), str)]
    for place, call in enumerate(calls):
        function = call.get("function")
        arguments = function.get("arguments") if isinstance(function, dict) else None
        text = arguments.strip() if isinstance(arguments, str) else ""
        value = _decode_or_none(text) if text else None
        is_placeholder = text in ("", "null") or (value == {} and place == len(calls) - 1)
        if is_placeholder or not isinstance(value, dict):
            found[call["id"]] = is_placeholder
    return found


def _decode_or_none(text: str) -> object:
    try:
        return decode(text)
    except MalformedJson:
        return None


def _clean_calls(message: Json) -> list[Json]:
    found: dict[str, Json] = {}
    for call_id, name, arguments in read_tool_calls(message):
        sent_id = replace_surrogates(call_id)
        function = {"name": _NOT_IN_FUNCTION_NAMES.sub("_", name)[:64] or "_", "arguments": _clean_arguments(arguments)}
        found.setdefault(sent_id, {"id": sent_id, "type": "function", "function": function})
    return list(found.values())


def _clean_arguments(text: str) -> str:
    """The arguments as a model may see them again: several servers refuse a history whose arguments are not JSON."""
    try:
        return text if isinstance(decode(text), dict) and not is_deeper_than(_MOST_LEVELS, text) else "{}"
    except MalformedJson:
        return "{}"


def make_missing_result(call_id: str) -> Entry:
    """The result that stands in for one that was never recorded."""
    message = {"role": "tool", "tool_call_id": call_id, "content": INTERRUPTED}
    return Entry(seq=0, at="", run_id=None, message=message)


def pair_results(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The messages as a model accepts them: after each one that asks for tools, exactly one result per call, in order.

    Files that results gave follow in a message of their own. Missing results are filled in; results that answer no
    call, or come too late, are left out, and so are replies that say nothing. A message that was taken out or refused
    is left out, too, but what came before it is over as if it were there: so the same results belong to the same calls
    as before.
    """
    open_ids: tuple[str, ...] = ()
    results: dict[str, Entry] = {}
    for entry in entries:
        is_gone = entry.removed or entry.is_unsent
        if entry.role == "tool":
            call_id = entry.chat_message.get("tool_call_id")
            if isinstance(call_id, str) and not is_gone:
                results.setdefault(call_id, entry)
            continue
        if not ends_calls(entry):
            continue
        if open_ids:
            yield from _answer_calls(open_ids, results)
        results = {}
        if not is_gone:
            yield entry
        open_ids = _list_calls(entry)
    if open_ids:
        yield from _answer_calls(open_ids, results)


def ends_calls(entry: Entry) -> bool:
    """Tell if the calls before this message are over with it: what answers them later is not sent."""
    role = entry.role
    return role != "tool" and role in ROLES and not entry.is_empty


def _answer_calls(call_ids: Sequence[str], results: Mapping[str, Entry]) -> Iterator[Entry]:
    """A result for each call of a reply, and behind all of them the files that they gave."""
    answers = [results.get(call_id) or make_missing_result(call_id) for call_id in call_ids]
    yield from answers
    given = make_files_message((answer.chat_message, answer.tool) for answer in answers)
    if given is not None:
        yield Entry(seq=0, at="", run_id=None, message=given)


def find_stray_result(messages: Sequence[Json], history: Sequence[Entry] = ()) -> int | None:
    """The place of the first tool message that answers no open call, when the messages follow this history.

    `pair_results` would leave it out, so a model would never see it.
    """
    if all(message.get("role") != "tool" for message in messages):
        return None
    open_ids = _find_open_calls(history)
    for place, message in enumerate(messages):
        entry = Entry(seq=0, at="", run_id=None, message=message)
        if entry.role == "tool":
            call_id = entry.chat_message.get("tool_call_id")
            if call_id not in open_ids:
                return place
            open_ids.remove(call_id)
        elif not entry.is_empty:
            open_ids = set(_list_calls(entry))
    return None


def _find_open_calls(history: Sequence[Entry]) -> set[str]:
    """The calls at the end of a history that have no result yet."""
    answered: set[object] = set()
    for entry in reversed(history):
        if entry.role == "tool":
            answered.add(entry.chat_message.get("tool_call_id"))
        elif ends_calls(entry):
            return set(_list_calls(entry)) - answered
    return set()


def _list_calls(entry: Entry) -> tuple[str, ...]:
    return entry.call_ids if entry.role == "assistant" and not entry.removed and not entry.is_unsent else ()


# The files that events refer to.


def list_fact_references(fact: SessionEvent) -> list[FileReference]:
    """List the files that an event's messages refer to."""
    match fact:
        case MessageAdded():
            return [*list_references(fact.message), *list_result_references(fact.tool)]
        case RunQueued():
            return [found for message in fact.messages for found in list_references(message)]
        case _:
            return []


def list_fact_files(fact: SessionEvent) -> list[str]:
    """The files, by their hashes, that an event's messages refer to."""
    return [found.sha256 for found in list_fact_references(fact)]


def list_text_hashes(fact: SessionEvent) -> list[str]:
    """The texts, by their hashes, that the request behind an assistant message was made of, or that describe tools."""
    if isinstance(fact, ToolsListed):
        return [] if fact.schemas is None else [fact.schemas]
    completion = fact.completion if isinstance(fact, MessageAdded | CompactionSummarised) else None
    record = None if completion is None else completion.request
    if record is None:
        return []
    return [record.instructions] if record.tools is None else [record.instructions, record.tools]
