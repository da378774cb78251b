"""A response as a chat completion: whole, or as chunks.

It is made of the response's own output and stream, so that both APIs say the same. Calls of the agents' own functions
are left out. Texts of several replies are joined with an empty line between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from swarmkeep.api.openai.chat.sessions import describe_below, describe_decision
from swarmkeep.api.openai.items.output_items import is_cut_item
from swarmkeep.api.openai.progress.builder import ResponseBuilder
from swarmkeep.api.openai.progress.response import Outcome
from swarmkeep.domain.codec import Json
from swarmkeep.domain.events import RunError
from swarmkeep.domain.wording import join_text

_BETWEEN = "\n\n"
_MAX_SHOWN_ARGUMENTS = 500


class ChatAnswer:
    """A response as a chat completion."""

    def __init__(self, builder: ResponseBuilder, *, include_usage: bool = False) -> None:
        self._builder = builder
        self._include_usage = include_usage
        self._shared: Json | None = None
        self._spoke = False
        self._item_id: str | None = None
        self._calls = 0
        self._chunk_count = 0
        self._held: list[Json] | None = None

    @property
    def error(self) -> RunError | None:
        """Why it failed, if it did."""
        return self._builder.outcome.error

    @property
    def session_id(self) -> str:
        return self._builder.id.session_id

    @property
    def has_spoken(self) -> bool:
        """Whether there were more chunks than the one that begins it."""
        return self._chunk_count > 1

    def make_completion(self) -> Json:
        """The whole completion, once the response has ended or waits."""
        output = self._builder.output
        choice = {
            "index": 0,
            "message": self._make_message(output),
            "logprobs": None,
            "finish_reason": find_finish_reason(self._builder.outcome, output),
        }
        return {
            **self._frame("chat.completion"),
            "choices": [choice],
            "usage": self._builder.usage.to_chat(),
        }

    def _make_message(self, output: Sequence[Json]) -> Json:
        texts = [text for item in output if (text := self._read_text(item))]
        refusals = [
            part["refusal"]
            for item in output
            if item["type"] == "message"
            for part in item["content"]
            if part["type"] == "refusal"
        ]
        calls = [_show_call(item) for item in output if item["type"] == "function_call" and not is_cut_item(item)]
        silent = None if calls or refusals else ""
        message = {
            "role": "assistant",
            "content": _BETWEEN.join(texts) or silent,
            "refusal": _BETWEEN.join(refusals) or None,
        }
        return {**message, "tool_calls": calls} if calls else message

    def _read_text(self, item: Json) -> str:
        if item["type"] == "message":
            return join_text(item["content"])
        return self._describe_approval(item) if item["type"] == "mcp_approval_request" else ""

    def _describe_approval(self, item: Json) -> str:
        arguments: str = item["arguments"]
        shown = arguments if len(arguments) <= _MAX_SHOWN_ARGUMENTS else f"{arguments[:_MAX_SHOWN_ARGUMENTS]}…"
        where = "it cannot be given, because nothing of this is kept (store: false)"
        below = self._builder.below.get(item["id"])
        if below is not None:
            where = f"{describe_below(below)}; {describe_decision(below.session_id, below.run_id)}"
        elif self._builder.stored:
            where = describe_decision(self._builder.id.session_id, self._builder.id.run_id)
        return f"The call {item['name']}({shown}) waits for an approval: {where}."

    # Chunks

    def make_chunks(self, event: Json) -> list[Json]:
        """The chunks that an event of the response's stream makes."""
        kind = event["type"]
        if self._held is not None and kind in _TEXTS:
            self._held.append(event)
            return []
        make = _CHUNK_MAKERS.get(kind)
        return [] if make is None else make(self, event)

    def hold(self) -> None:
        """Hold back the text of a reply, which may be wrong and be given again."""
        self._held = self._held or []

    def drop_held(self) -> None:
        self._held = None

    def release_held(self) -> list[Json]:
        """The chunks of the text that was held back."""
        held, self._held = self._held or [], None
        return [chunk for event in held for chunk in self.make_chunks(event)]

    def _begin(self, event: Json) -> list[Json]:
        return [self._make_chunk({"role": "assistant", "content": "", "refusal": None})]

    def _add_text(self, event: Json) -> list[Json]:
        return [self._say(event["item_id"], event["delta"])]

    def _say(self, item_id: str, text: str) -> Json:
        between = _BETWEEN if self._spoke and item_id != self._item_id else ""
        self._spoke, self._item_id = True, item_id
        return self._make_chunk({"content": between + text})

    def _add_refusal(self, event: Json) -> list[Json]:
        return [self._make_chunk({"refusal": event["delta"]})]

    def _add_item(self, event: Json) -> list[Json]:
        item = event["item"]
        if item["type"] == "function_call":
            if self._builder.is_cut(item["id"]):
                return []
            begun = {"index": self._calls, **_show_call(item)}
            self._calls += 1
            return [self._make_chunk({"tool_calls": [begun]})]
        if item["type"] == "mcp_approval_request":
            return [self._say(item["id"], self._describe_approval(item))]
        return []

    def _add_arguments(self, event: Json) -> list[Json]:
        if self._builder.is_cut(event["item_id"]):
            return []
        piece = {"index": self._calls - 1, "function": {"arguments": event["delta"]}}
        return [self._make_chunk({"tool_calls": [piece]})]

    def _end(self, event: Json) -> list[Json]:
        last = self._make_chunk({}, find_finish_reason(self._builder.outcome, self._builder.output))
        if not self._include_usage:
            return [last]
        return [last, {**self._frame("chat.completion.chunk"), "choices": [], "usage": self._builder.usage.to_chat()}]

    def _make_chunk(self, delta: Json, finish_reason: str | None = None) -> Json:
        self._chunk_count += 1
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage: Json = {"usage": None} if self._include_usage else {}
        return {**self._frame("chat.completion.chunk"), "choices": [choice], **usage}

    def _frame(self, kind: str) -> Json:
        if self._shared is None:
            response = self._builder.snapshot()
            self._shared = {
                "id": f"chatcmpl-{str(self._builder.id).removeprefix('resp_')}",
                "created": response["created_at"],
                "model": response["model"],
                "service_tier": None,
                "system_fingerprint": None,
            }
        return {"object": kind, **self._shared}


_CHUNK_MAKERS: dict[str, Callable[[ChatAnswer, Json], list[Json]]] = {
    "response.created": ChatAnswer._begin,
    "response.output_text.delta": ChatAnswer._add_text,
    "response.refusal.delta": ChatAnswer._add_refusal,
    "response.output_item.added": ChatAnswer._add_item,
    "response.function_call_arguments.delta": ChatAnswer._add_arguments,
    "response.completed": ChatAnswer._end,
    "response.incomplete": ChatAnswer._end,
}


_TEXTS = ("response.output_text.delta", "response.refusal.delta")


def _show_call(item: Json) -> Json:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def find_finish_reason(outcome: Outcome, output: Sequence[Json]) -> str:
    """Why it ended: `length`, too, where something else cut it short, as a limit of turns or a cancel."""
    if outcome.status == "completed":
        return "tool_calls" if any(item["type"] == "function_call" for item in output) else "stop"
    return "content_filter" if outcome.reason == "content_filter" else "length"
