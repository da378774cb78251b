"""Chat Completions on the wire: completions, chunks and errors as the provider writes them."""

import hashlib
import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from swarmkeep.engine.models.offline.answer import Answer, TextAnswer

OFFLINE_MODEL = "swarmkeep-offline"
FINGERPRINT = "fp_swarmkeep_offline_no_llm"
ARGUMENT_PIECE_CHARACTERS = 24

_WORD_WITH_SPACE = re.compile(r"\S+\s*|\s+")
encode = msgspec.json.encode


@dataclass(frozen=True)
class Ids:
    """The ids of one response: of the request's bytes and a counter, so that no two responses share one."""

    completion: str
    tool_call: str

    @classmethod
    def of(cls, request: bytes, count: int) -> "Ids":
        digest = hashlib.blake2b(request, digest_size=32, salt=count.to_bytes(8, "big")).digest()
        return cls(f"chatcmpl-{uuid.UUID(bytes=digest[:16], version=4)}", f"call_{digest[16:].hex()[:24]}")


@dataclass(frozen=True)
class Completion:
    """An answer with everything that the provider says around it."""

    answer: Answer
    ids: Ids
    created: int
    usage: dict[str, int]

    @classmethod
    def of(cls, answer: Answer, request: bytes, count: int, messages: list[dict[str, Any]]) -> "Completion":
        return cls(answer, Ids.of(request, count), int(time.time()), count_usage(messages, answer))

    def encode_whole(self) -> bytes:
        """The body of a response that is not streamed."""
        message = {"role": "assistant", "content": None, "refusal": None, **self._encode_answer()}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._choose_finish_reason()}
        return encode({**self._make_frame("chat.completion"), "choices": [choice], "usage": self.usage})

    def events(self, *, include_usage: bool) -> Iterator[bytes]:
        """The server-sent events of a streamed response, the closing `[DONE]` included."""
        frame = self._make_frame("chat.completion.chunk")
        if include_usage:
            frame["usage"] = None
        for delta in self._iterate_deltas():
            yield _encode_event(
                {**frame, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]}
            )
        last = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": self._choose_finish_reason()}
        yield _encode_event({**frame, "choices": [last]})
        if include_usage:
            yield _encode_event({**frame, "choices": [], "usage": self.usage})
        yield b"data: [DONE]\n\n"

    def _make_frame(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.ids.completion,
            "object": kind,
            "created": self.created,
            "model": OFFLINE_MODEL,
            "system_fingerprint": FINGERPRINT,
        }

    def _choose_finish_reason(self) -> str:
        return "stop" if isinstance(self.answer, TextAnswer) else "tool_calls"

    def _encode_answer(self) -> dict[str, Any]:
        if isinstance(self.answer, TextAnswer):
            return {"content": self.answer.text}
        function = {"name": self.answer.name, "arguments": encode_arguments(self.answer)}
        return {"tool_calls": [{"id": self.ids.tool_call, "type": "function", "function": function}]}

    def _iterate_deltas(self) -> Iterator[dict[str, Any]]:
        if isinstance(self.answer, TextAnswer):
            yield {"role": "assistant", "content": "", "refusal": None}
            for piece in _WORD_WITH_SPACE.findall(self.answer.text):
                yield {"content": piece}
            return
        function = {"name": self.answer.name, "arguments": ""}
        call = {"index": 0, "id": self.ids.tool_call, "type": "function", "function": function}
        yield {"role": "assistant", "content": None, "tool_calls": [call]}
        text = encode_arguments(self.answer)
        for start in range(0, len(text), ARGUMENT_PIECE_CHARACTERS):
            piece = text[start : start + ARGUMENT_PIECE_CHARACTERS]
            yield {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}


def _encode_event(data: dict[str, Any]) -> bytes:
    return b"data: " + encode(data) + b"\n\n"


def encode_arguments(answer: Answer) -> str:
    return "" if isinstance(answer, TextAnswer) else encode(answer.arguments).decode()


def count_usage(messages: list[dict[str, Any]], answer: Answer) -> dict[str, int]:
    """Words instead of tokens, a word being what spaces part: of all texts, and of calls their names and arguments."""
    prompt = 0
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            prompt += count_words(content)
        elif content:
            prompt += sum(count_words(part.get("text", "")) for part in content)
        for call in message.get("tool_calls") or ():
            prompt += 1 + count_words(call["function"]["arguments"])
    completion = (
        count_words(answer.text) if isinstance(answer, TextAnswer) else 1 + count_words(encode_arguments(answer))
    )
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def count_words(text: str) -> int:
    return text.count(" ") + 1 if text else 0


def encode_error(message: str, *, param: str | None = None, code: str | None = None) -> bytes:
    """An error body as the provider writes it."""
    return encode({"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}})


def encode_models() -> bytes:
    model = {"id": OFFLINE_MODEL, "object": "model", "created": 0, "owned_by": "swarmkeep"}
    return encode({"object": "list", "data": [model]})
