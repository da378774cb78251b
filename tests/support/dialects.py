"""Model servers as they are met: how each splits a reply, what it attaches to it, and what it refuses to be sent.

`DIALECTS` is the table. A `DialectModel` answers as all of them do: the model that a request names says whose rules
count, so that one server stands for several providers.

    fake = DialectModel(reply_to)                       # messages -> Answer
    with ScriptedModel(default=fake, strict=False) as model:
        ...                                             # requests of {"model": DIALECTS["gemini"].model}
    assert fake.refused == []
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tests.support.rules import find_body_faults
from tests.support.scripted import USAGE, Raw, Reply
from tests.support.scripted.exchange import Exchange, Json
from tests.support.scripted.replies import split_pieces


@dataclass(frozen=True)
class Answer:
    """A reply as the model means it."""

    text: str = ""
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    gate: threading.Event | None = field(default=None, compare=False)

    @property
    def thought(self) -> str:
        """The reasoning that comes with the reply; each reply has its own."""
        return f"I should call {', '.join(name for name, _ in self.calls)} {self.seal}." if self.calls else "I can say."

    @property
    def seal(self) -> str:
        """A signature of the calls, which only the server that made them can know."""
        told = json.dumps([[name, dict(arguments)] for name, arguments in self.calls], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """How a stream cuts a reply, and which odd things stand between the pieces."""

    index: Literal["counted", "missing", "zero", "from one"] = "counted"
    ids: Literal["first", "each", "changing", "last", "empty", "missing", "repeating"] = "first"
    name: Literal["first", "each", "empty later", "in two", "last"] = "first"
    arguments: Literal["halves", "whole", "object", "object first"] = "halves"
    again: Literal["", "calls", "message"] = ""
    """What is sent once more at the end: the calls as another piece, or the whole message."""
    choice: int = 0
    """The choice in which calls come; the text is in the first."""
    surrogates: bool = False
    """Text is cut between UTF-16 units, so that a character may be in two pieces."""
    comments: bool = False
    line_end: str = "\n"
    usage: Literal["own chunk", "last chunk", "each chunk", "zeros after", "no total", "floats"] = "own chunk"
    no_arguments: str = "{}"
    """What a call of a function without parameters has."""
    finish: str = "tool_calls"
    """The reason with which a reply with calls ends."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """One row of the table. `attaches` names what is in ATTACHMENTS, `refuses` what is in RULES."""

    server: str
    model: str
    error: str
    pieces: Pieces = Pieces()
    attaches: str = ""
    refuses: tuple[str, ...] = ()
    needs: str = "–"
    """The field of a model profile that matters, and whether it is known by the model's name."""


# What comes with a reply, and must come back with it.


@dataclass(frozen=True)
class Attachment:
    """`deltas`: pieces of a stream before the calls; `whole` puts it all into a message; `strip` takes it out again.

    `missing` says what a message that was sent back lacks.
    """

    words: str
    deltas: Callable[[Answer], list[Json]]
    whole: Callable[[Answer, Json], None]
    strip: Callable[[Json], None]
    missing: Callable[[Answer, Json], str | None]


def _sign_call(answer: Answer, message: Json) -> None:
    # Only the first of parallel calls is signed.
    for call in message.get("tool_calls", [])[:1]:
        call["extra_content"] = {"google": {"thought_signature": answer.seal}}


def _miss_signature(answer: Answer, message: Json) -> str | None:
    match message["tool_calls"][0]:
        case {"extra_content": {"google": {"thought_signature": found}}} if found == answer.seal:
            return None
        case call:
            name = call["function"]["name"]
            return f"Function call is missing a thought_signature in functionCall parts. Function call `{name}`."


def _strip_calls(message: Json) -> None:
    for call in message.get("tool_calls") or []:
        call.pop("extra_content", None)


def _cut(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def _reasoning(key: str) -> Attachment:
    def miss(answer: Answer, message: Json) -> str | None:
        if message.get(key) == answer.thought:
            return None
        return f"thinking is enabled but {key} is missing in assistant tool call message"

    return Attachment(
        f"`{key}`",
        lambda answer: [{key: half} for half in _cut(answer.thought)],
        lambda answer, message: message.update({key: answer.thought}),
        lambda message: message.pop(key, None),
        miss,
    )


def _detail_thought(answer: Answer) -> list[Json]:
    entry: Json = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
    sealed: Json = {"type": "reasoning.encrypted", "format": "anthropic-claude-v1", "index": 1, "data": answer.seal}
    return [{**entry, "text": half} for half in _cut(answer.thought)] + [{**entry, "signature": answer.seal}, sealed]


def _attach_details(answer: Answer, message: Json) -> None:
    text, *_, sealed = _detail_thought(answer)
    message["reasoning"] = answer.thought
    message["reasoning_details"] = [{**text, "text": answer.thought, "signature": answer.seal}, sealed]


def _miss_details(answer: Answer, message: Json) -> str | None:
    found = message.get("reasoning_details")
    entries = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    told = {key: "".join(entry.get(key) or "" for entry in entries) for key in ("text", "signature", "data")}
    if told == {"text": answer.thought, "signature": answer.seal, "data": answer.seal}:
        return None
    return "reasoning_details of this message are missing or were changed"


def _strip_details(message: Json) -> None:
    for key in ("reasoning", "reasoning_details"):
        message.pop(key, None)


def _think_in_parts(text: str) -> Json:
    return {"type": "thinking", "thinking": [{"type": "text", "text": text}]}


def _attach_parts(answer: Answer, message: Json) -> None:
    text = message.get("content")
    message["content"] = [_think_in_parts(answer.thought), *([{"type": "text", "text": text}] if text else [])]


def _find_parts(message: Json) -> list[Json]:
    content = message.get("content")
    return [part for part in content if part.get("type") == "thinking"] if isinstance(content, list) else []


def _miss_parts(answer: Answer, message: Json) -> str | None:
    thought = "".join(piece.get("text", "") for part in _find_parts(message) for piece in part.get("thinking", []))
    return None if thought == answer.thought else "Assistant message must keep its thinking chunks"


def _strip_parts(message: Json) -> None:
    if thinking := _find_parts(message):
        rest = [part for part in message["content"] if part not in thinking]
        message["content"] = rest or None


def _block_thought(answer: Answer) -> list[Json]:
    blocks = [{"type": "thinking", "thinking": half} for half in _cut(answer.thought)]
    return [*blocks, {"type": "thinking", "thinking": "", "signature": answer.seal}]


def _attach_blocks(answer: Answer, message: Json) -> None:
    message["reasoning_content"] = answer.thought
    message["thinking_blocks"] = [{"type": "thinking", "thinking": answer.thought, "signature": answer.seal}]


def _miss_blocks(answer: Answer, message: Json) -> str | None:
    found = message.get("thinking_blocks")
    blocks = [block for block in found if isinstance(block, dict)] if isinstance(found, list) else []
    told = ["".join(block.get(key) or "" for block in blocks) for key in ("thinking", "signature")]
    if told == [answer.thought, answer.seal]:
        return None
    return (
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`. "
        "When `thinking` is enabled, a final `assistant` message must start with a thinking block"
    )


def _strip_blocks(message: Json) -> None:
    for key in ("reasoning_content", "thinking_blocks"):
        message.pop(key, None)


ATTACHMENTS: Mapping[str, Attachment] = {
    "signatures": Attachment("`extra_content` on calls", lambda answer: [], _sign_call, _strip_calls, _miss_signature),
    "reasoning": _reasoning("reasoning_content"),
    "details": Attachment(
        "`reasoning_details`",
        lambda answer: [{"reasoning_details": [entry]} for entry in _detail_thought(answer)],
        _attach_details,
        _strip_details,
        _miss_details,
    ),
    "thinking parts": Attachment(
        "thinking parts in `content`",
        lambda answer: [{"content": [_think_in_parts(half)]} for half in _cut(answer.thought)],
        _attach_parts,
        _strip_parts,
        _miss_parts,
    ),
    "thinking blocks": Attachment(
        "`thinking_blocks`",
        lambda answer: [
            {"reasoning_content": block["thinking"], "thinking_blocks": [block]} for block in _block_thought(answer)
        ],
        _attach_blocks,
        _strip_blocks,
        _miss_blocks,
    ),
}


# What is refused. A rule gives the parameter and the message, or None.

Fault = tuple[str | None, str]


@dataclass(frozen=True)
class Rule:
    words: str
    find: Callable[[Json], Fault | None]


def _refuse_key(key: str, *, instead: str = "") -> Callable[[Json], Fault | None]:
    advice = f" Use '{instead}' instead." if instead else ""
    text = f"Unsupported parameter: '{key}' is not supported with this model.{advice}"
    return lambda request: (key, text) if key in request else None


def _refuse_later_system(request: Json) -> Fault | None:
    roles = [message["role"] for message in request["messages"]]
    late = any(role in ("system", "developer") for role in roles[1:])
    return ("messages", "System message must be at the beginning.") if late else None


def _refuse_empty_text(request: Json) -> Fault | None:
    for place, message in enumerate(request["messages"]):
        if message.get("tool_calls"):
            # The gateways themselves leave an empty text out beside calls.
            continue
        parts = message["content"] if isinstance(message.get("content"), list) else []
        texts = [part.get("text") for part in parts if part.get("type") == "text"] or [message.get("content")]
        if "" in texts:
            return "messages", f"messages.{place}: text content blocks must be non-empty"
    return None


def _refuse_calls_without_tools(request: Json) -> Fault | None:
    if "tools" in request or not any("tool_calls" in message for message in request["messages"]):
        return None
    return "tools", "The toolConfig field must be defined when using toolUse and toolResult content blocks."


def _refuse_chosen_function(request: Json) -> Fault | None:
    if not isinstance(request.get("tool_choice"), dict):
        return None
    return "tool_choice", "Invalid tool_choice type: 'object'. Supported string values: none, auto, required"


_MISTRAL_ID = re.compile(r"[a-zA-Z0-9]{9}")


def _refuse_long_ids(request: Json) -> Fault | None:
    for message in request["messages"]:
        for call in message.get("tool_calls", []):
            if not _MISTRAL_ID.fullmatch(call["id"]):
                text = f"Tool call id was {call['id']} but must be a-z, A-Z, 0-9, with a length of 9."
                return "messages", text
    return None


RULES: Mapping[str, Rule] = {
    "parallel_tool_calls": Rule("`parallel_tool_calls`", _refuse_key("parallel_tool_calls")),
    "max_tokens": Rule("`max_tokens`", _refuse_key("max_tokens", instead="max_completion_tokens")),
    "temperature": Rule("`temperature`", _refuse_key("temperature")),
    "later system": Rule("a system message that is not the first", _refuse_later_system),
    "empty text": Rule("empty texts", _refuse_empty_text),
    "calls without tools": Rule("calls in the history of an agent without functions", _refuse_calls_without_tools),
    "chosen function": Rule("a `tool_choice` that names a function", _refuse_chosen_function),
    "long ids": Rule("ids of calls of other servers", _refuse_long_ids),
}

# How each provider says that.

ERRORS: Mapping[str, Callable[[str, str | None], Any]] = {
    "openai": lambda text, param: {
        "error": {"message": text, "type": "invalid_request_error", "param": param, "code": "unsupported_parameter"}
    },
    "google": lambda text, param: [{"error": {"code": 400, "message": text, "status": "INVALID_ARGUMENT"}}],
    "deepseek": lambda text, param: {
        "error": {"message": text, "type": "invalid_request_error", "param": None, "code": "invalid_request_error"}
    },
    "moonshot": lambda text, param: {"error": {"message": text, "type": "invalid_request_error"}},
    "openrouter": lambda text, param: {
        "error": {
            "message": "Provider returned error",
            "code": 400,
            "metadata": {"raw": json.dumps({"error": {"message": text}}), "provider_name": "Anthropic"},
        },
        "user_id": "user_1",
    },
    "mistral": lambda text, param: {
        "object": "error",
        "message": {"detail": [{"type": "extra_forbidden", "loc": ["body", param or "messages"], "msg": text}]},
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    },
    "litellm": lambda text, param: {
        "error": {
            "message": f"litellm.BadRequestError: AnthropicException - {text}",
            "type": None,
            "param": None,
            "code": "400",
        }
    },
    "bedrock": lambda text, param: {
        "detail": f"An error occurred (ValidationException) when calling the Converse operation: {text}"
    },
    "vllm": lambda text, param: {
        "object": "error",
        "message": text,
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    },
    "llama.cpp": lambda text, param: {"error": {"code": 400, "message": text, "type": "invalid_request_error"}},
    "lm studio": lambda text, param: {"error": text},
    "ollama": lambda text, param: {
        "error": {"message": text, "type": "invalid_request_error", "param": None, "code": None}
    },
    "copilot": lambda text, param: {"error": {"message": text, "code": "invalid_request_body"}},
}


# The table.

DIALECTS: Mapping[str, Dialect] = {
    "openai": Dialect(server="OpenAI", model="gpt-4o", error="openai"),
    "gemini": Dialect(
        server="Gemini",
        model="gemini-2.5-flash",
        error="google",
        pieces=Pieces(index="zero", arguments="whole", finish="stop", usage="last chunk", ids="empty"),
        attaches="signatures",
    ),
    "deepseek": Dialect(
        server="DeepSeek",
        model="deepseek-reasoner",
        error="deepseek",
        pieces=Pieces(usage="last chunk"),
        attaches="reasoning",
    ),
    "qwen-vllm": Dialect(
        server="vLLM with a Qwen model",
        model="Qwen/Qwen3-8B",
        error="vllm",
        needs="`system_messages`: known",
        pieces=Pieces(usage="each chunk", name="empty later"),
        refuses=("later system",),
    ),
    "o3": Dialect(
        server="OpenAI o3",
        model="o3",
        error="openai",
        needs="`parallel_tool_calls`, `tokens_parameter`: known",
        refuses=("parallel_tool_calls", "max_tokens", "temperature"),
    ),
    "ollama": Dialect(
        server="Ollama",
        model="llama3.2",
        error="ollama",
        pieces=Pieces(index="zero", arguments="object", usage="no total"),
    ),
    "mistral": Dialect(
        server="Mistral",
        model="magistral-medium-latest",
        error="mistral",
        pieces=Pieces(arguments="whole", usage="last chunk"),
        attaches="thinking parts",
        refuses=("long ids",),
    ),
    "litellm": Dialect(
        server="Anthropic behind LiteLLM",
        model="claude-sonnet-4-5",
        error="litellm",
        pieces=Pieces(index="from one", no_arguments="", usage="zeros after", surrogates=True),
        attaches="thinking blocks",
        refuses=("empty text", "calls without tools"),
    ),
    "openrouter": Dialect(
        server="OpenRouter",
        model="anthropic/claude-sonnet-4.5",
        error="openrouter",
        pieces=Pieces(comments=True, usage="floats"),
        attaches="details",
    ),
    "kimi": Dialect(
        server="Kimi",
        model="kimi-k2-thinking",
        error="moonshot",
        pieces=Pieces(ids="repeating", usage="last chunk"),
        attaches="reasoning",
    ),
    "bedrock": Dialect(
        server="Bedrock Access Gateway",
        model="us.anthropic.claude-sonnet-4-20250514-v1:0",
        error="bedrock",
        pieces=Pieces(index="from one", no_arguments="", again="message", line_end="\r\n"),
        refuses=("empty text", "calls without tools"),
    ),
    "vllm": Dialect(
        server="vLLM",
        model="meta-llama/Llama-3.1-8B-Instruct",
        error="vllm",
        pieces=Pieces(again="calls", ids="changing", usage="each chunk"),
    ),
    "llama.cpp": Dialect(
        server="llama.cpp with a Qwen model",
        model="qwen2.5-7b-instruct-q4_k_m.gguf",
        error="llama.cpp",
        needs="`system_messages`: known",
        pieces=Pieces(ids="missing", surrogates=True),
        refuses=("later system",),
    ),
    "lm-studio": Dialect(
        server="LM Studio",
        model="qwen/qwen3-4b",
        error="lm studio",
        pieces=Pieces(ids="each", name="each", arguments="object first", usage="floats"),
        refuses=("chosen function",),
    ),
    "copilot": Dialect(
        server="GitHub Copilot", model="gpt-4.1", error="copilot", pieces=Pieces(choice=1, ids="last", name="in two")
    ),
    "o4-mini": Dialect(
        server="OpenAI o4-mini",
        model="o4-mini",
        error="openai",
        needs="`parallel_tool_calls`, `tokens_parameter`: known",
        pieces=Pieces(index="missing", name="first"),
        refuses=("parallel_tool_calls", "max_tokens", "temperature"),
    ),
}


# The server.


class DialectModel:
    """The `default` of a ScriptedModel: answers for the dialect whose model a request names.

    `reply_to` is given messages without what is attached, so that it knows nothing of dialects.
    """

    def __init__(self, reply_to: Callable[[Sequence[Json]], Answer]) -> None:
        self.refused: list[str] = []
        self.answered: Counter[str] = Counter()
        self._reply_to = reply_to
        self._lock = threading.Lock()
        self._issued: dict[str, set[str]] = defaultdict(set)
        self._by_model = {dialect.model: name for name, dialect in DIALECTS.items()}

    def __call__(self, request: Json) -> Reply:
        name = self._by_model[request["model"]]
        dialect = DIALECTS[name]
        if fault := find_fault(dialect, request, self._issued[name]):
            param, text = fault
            with self._lock:
                self.refused.append(f"{name}: {text}")
            return refuse(dialect, text, param)
        with self._lock:
            self.answered[name] += 1
            number = self.answered.total()
            answer = self._reply_to(_strip(dialect, request)["messages"])
            if answer.calls:
                self._issued[name].add(answer.seal)
        return DialectReply(dialect=dialect, answer=answer, number=number, gate=answer.gate)


def refuse(dialect: Dialect, text: str, param: str | None) -> Raw:
    body = json.dumps(ERRORS[dialect.error](text, param)).encode()
    return Raw(body=body, status=400, headers={"content-type": "application/json"})


def find_fault(dialect: Dialect, request: Json, issued: Collection[str]) -> Fault | None:
    """What this server refuses in a request: first its own rules, then what any strict one has.

    `issued` are the seals of the calls that it made itself; of other servers' calls it knows nothing.
    """
    for rule in dialect.refuses:
        if found := RULES[rule].find(request):
            return found
    if dialect.attaches:
        find_missing = ATTACHMENTS[dialect.attaches].missing
        for place, message in enumerate(request["messages"]):
            answer = read_answer(message)
            if answer is not None and answer.seal in issued and (missing := find_missing(answer, message)):
                return "messages", f"{missing} (messages[{place}])"
    if faults := find_body_faults(json.dumps(_strip(dialect, request)).encode()):
        return None, "; ".join(faults)
    return None


def _strip(dialect: Dialect, request: Json) -> Json:
    """The request without what this server itself has attached."""
    if not dialect.attaches:
        return request
    request = deepcopy(request)
    for message in request["messages"]:
        if message["role"] == "assistant":
            ATTACHMENTS[dialect.attaches].strip(message)
    return request


def read_answer(message: Json) -> Answer | None:
    """The answer that an assistant message with calls was."""
    if message["role"] != "assistant" or not message.get("tool_calls"):
        return None
    calls = [call["function"] for call in message["tool_calls"]]
    return Answer(calls=tuple((call["name"], json.loads(call["arguments"])) for call in calls))


@dataclass(frozen=True, kw_only=True)
class DialectReply(Reply):
    """An answer in a dialect, streamed if the request asks for it."""

    dialect: Dialect
    answer: Answer
    number: int

    def write(self, exchange: Exchange) -> None:
        if exchange.request.get("stream"):
            exchange.begin_stream()
            for event in self.stream(exchange.frame("chat.completion.chunk")):
                exchange.send_event(event)
            exchange.send_event(f"data: [DONE]{self._pieces.line_end * 2}")
            exchange.end_stream(done=False)
        else:
            exchange.send_json(200, self._complete(exchange.frame("chat.completion")))

    @property
    def _pieces(self) -> Pieces:
        return self.dialect.pieces

    @property
    def _finish(self) -> str:
        return self._pieces.finish if self.answer.calls else "stop"

    @property
    def _usage(self) -> Json:
        usage: Json = dict(USAGE)
        if self._pieces.usage == "no total":
            del usage["total_tokens"]
        if self._pieces.usage == "floats":
            usage = {key: float(value) for key, value in usage.items()}
        return usage

    def _make_calls(self) -> list[Json]:
        """The calls as they stand in a message."""
        found = []
        for place, (name, arguments) in enumerate(self.answer.calls):
            text = json.dumps(arguments, ensure_ascii=False) if arguments else self._pieces.no_arguments
            given: Any = dict(arguments) if self._pieces.arguments == "object" else text
            call: Json = {"id": self._make_id(name, place), "type": "function"}
            found.append({**call, "function": {"name": name, "arguments": given}})
        return found

    def _make_id(self, name: str, place: int) -> str:
        match self._pieces.ids:
            case "empty" | "missing":
                return ""
            case "repeating":
                return f"functions.{name}:{place}"
            case _:
                return f"c{self.number:04d}x{place:03d}"

    def _make_message(self) -> Json:
        message: Json = {"role": "assistant", "content": self.answer.text or None}
        if self.answer.calls:
            message["tool_calls"] = self._make_calls()
        if self.dialect.attaches:
            ATTACHMENTS[self.dialect.attaches].whole(self.answer, message)
        return message

    def _complete(self, frame: Json) -> Json:
        message = self._make_message()
        choices = [{"index": 0, "message": message, "finish_reason": self._finish}]
        if self._pieces.choice and self.answer.calls:
            text = {key: value for key, value in message.items() if key != "tool_calls"}
            calls = {**message, "content": None}
            choices = [
                {"index": 0, "message": text, "finish_reason": self._finish},
                {"index": self._pieces.choice, "message": calls, "finish_reason": self._finish},
            ]
        return {**frame, "model": self.dialect.model, "choices": choices, "usage": self._usage}

    def stream(self, frame: Json) -> Iterator[str]:
        frame["model"] = self.dialect.model
        each = {"usage": self._usage} if self._pieces.usage == "each chunk" else {}

        def event(choices: list[Json], **more: Any) -> str:
            data = json.dumps({**frame, "choices": choices, **each, **more})
            return f"data: {data}{self._pieces.line_end * 2}"

        def delta(value: Json, choice: int = 0, finish: str | None = None, **more: Any) -> str:
            return event([{"index": choice, "delta": value, "finish_reason": finish}], **more)

        if self._pieces.comments:
            yield f": PROCESSING{self._pieces.line_end * 2}"
        if self._pieces.choice:
            yield event([], prompt_filter_results=[{"prompt_index": 0}])
        yield delta({"role": "assistant", "content": ""})
        if self.dialect.attaches:
            for value in ATTACHMENTS[self.dialect.attaches].deltas(self.answer):
                yield delta(value)
        for piece in self._split_text():
            yield delta({"content": piece})
        for call in self._split_calls():
            yield delta({"tool_calls": [call]}, self._pieces.choice)
        yield from self._end(event, delta)

    def _end(self, event: Callable[..., str], delta: Callable[..., str]) -> Iterator[str]:
        usage = self._pieces.usage
        more = {"usage": self._usage} if usage in ("last chunk", "zeros after") else {}
        if self._pieces.again == "message":
            choice = {"index": 0, "delta": {}, "message": self._make_message(), "finish_reason": self._finish}
            yield event([choice], **more)
        else:
            yield delta({}, self._pieces.choice if self.answer.calls else 0, self._finish, **more)
        if usage == "zeros after":
            yield event([], usage=dict.fromkeys(USAGE, 0))
        elif usage != "last chunk":
            yield event([], usage=self._usage)

    def _split_text(self) -> list[str]:
        if not self._pieces.surrogates:
            return split_pieces(self.answer.text) if self.answer.text else []
        units = self.answer.text.encode("utf-16-le")
        return [units[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(units), 2)]

    def _split_calls(self) -> Iterator[Json]:
        whole = self._make_message().get("tool_calls", [])
        for place, call in enumerate(whole):
            parts = [*self._split_call(call)]
            for number, (name, arguments) in enumerate(parts):
                piece: Json = {"type": "function", "function": {}}
                if name is not None:
                    piece["function"]["name"] = name
                if arguments is not None:
                    piece["function"]["arguments"] = arguments
                identifier = self._choose_id(call["id"], number, last=number == len(parts) - 1)
                piece |= {} if identifier is None else {"id": identifier}
                # Attached to the first piece.
                piece |= {key: value for key, value in call.items() if key not in piece and key != "id" and not number}
                yield {**self._make_index(place), **piece}
        if self._pieces.again == "calls":
            for place, call in enumerate(whole):
                yield {**self._make_index(place), **call, "id": self._choose_id(call["id"], 0, last=True)}

    def _make_index(self, place: int) -> Json:
        match self._pieces.index:
            case "missing":
                return {}
            case "zero":
                return {"index": 0}
            case "from one":
                return {"index": place + 1}
            case _:
                return {"index": place}

    def _choose_id(self, identifier: str, number: int, *, last: bool) -> str | None:
        match self._pieces.ids:
            case "missing":
                return None
            case "empty":
                return ""
            case "each":
                return identifier
            case "changing":
                return f"{identifier}p{number}"
            case "last":
                return identifier if last else None
            case _:
                return identifier if number == 0 else None

    def _split_call(self, call: Json) -> Iterator[tuple[str | None, Any]]:
        """The name and the arguments of each piece of a call."""
        name, text = call["function"]["name"], call["function"]["arguments"]
        match self._pieces.arguments:
            case "whole" | "object":
                arguments: list[Any] = [text]
            case "object first":
                arguments = [{}, *_cut(text)] if text != "{}" else [text]
            case _:
                arguments = ["", *(half for half in _cut(text) if half)]
        names: list[str | None] = [name] + [None] * (len(arguments) - 1)
        match self._pieces.name:
            case "each":
                names = [name] * len(arguments)
            case "empty later":
                names = [name] + [""] * (len(arguments) - 1)
            case "in two" if arguments[0] == "":
                first, second = _cut(name)
                names, arguments = [first, second, *names[1:]], ["", *arguments]
            case "last":
                names = [None] * (len(arguments) - 1) + [name]
        yield from zip(names, arguments, strict=True)


# How docs/site/servers.md says what is odd about the pieces of a stream.
PIECES_IN_WORDS: Mapping[tuple[str, Any], str] = {
    ("index", "missing"): "calls without an index",
    ("index", "zero"): "index 0 for every call",
    ("index", "from one"): "indexes from 1",
    ("ids", "each"): "the id with each piece",
    ("ids", "changing"): "another id with each piece",
    ("ids", "last"): "the id in the last piece",
    ("ids", "empty"): "empty ids",
    ("ids", "missing"): "no ids",
    ("ids", "repeating"): "the same ids in each turn",
    ("name", "each"): "the name with each piece",
    ("name", "empty later"): "empty names in later pieces",
    ("name", "in two"): "a name in two pieces",
    ("name", "last"): "the name after the arguments",
    ("arguments", "whole"): "a call in one piece",
    ("arguments", "object"): "arguments as an object",
    ("arguments", "object first"): "`{}` first, the arguments after it",
    ("again", "calls"): "all calls once more",
    ("again", "message"): "the whole message once more",
    ("choice", 1): "calls in a second choice",
    ("surrogates", True): "characters cut in two",
    ("comments", True): "comments",
    ("line_end", "\r\n"): "CRLF",
    ("usage", "each chunk"): "usage in each chunk",
    ("usage", "zeros after"): "usage with zeros at the end",
    ("usage", "no total"): "usage without a total",
    ("usage", "floats"): "usage as `5.0`",
    ("no_arguments", ""): "empty arguments",
    ("finish", "stop"): "`stop` after calls",
}


def describe_dialect(dialect: Dialect) -> list[str]:
    """The row of a dialect in docs/site/servers.md."""
    plain = asdict(Pieces())
    odd = [
        PIECES_IN_WORDS.get((key, value), "") for key, value in asdict(dialect.pieces).items() if value != plain[key]
    ]
    attached = ATTACHMENTS[dialect.attaches].words if dialect.attaches else ""
    refused = [f"requests without {attached}"] if attached else []
    refused += [RULES[rule].words for rule in dialect.refuses]
    sent = "; ".join(filter(None, [attached, *odd]))
    return [dialect.server, f"`{dialect.model}`", sent or "–", "; ".join(refused) or "–", dialect.needs]
