"""From a state to the request a model gets: one total function, shared by the loop, the audit and the tests."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from swarmkeep.domain.chain import Chain
from swarmkeep.domain.codec import Json, encode
from swarmkeep.domain.events import MessageAdded, RequestRecord, SessionEvent
from swarmkeep.domain.messages import Entry, pair_results, to_chat_message
from swarmkeep.domain.state import State
from swarmkeep.domain.window import find_window_start, select_from


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """An agent as a model sees it: rendered instructions, tool schemas (a JSON array as text, or None), parameters."""

    name: str
    model: str
    instructions: str
    tools: str | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool = True


class History(msgspec.Struct, frozen=True):
    """What a model is sent of the first `upto` messages of a session, and its JSON, with commas in between."""

    upto: int
    entries: tuple[Entry, ...]
    json: bytes

    def extend(self, later: Sequence[Entry]) -> History:
        """With the messages that follow. Right where a call is not parted from its results."""
        added = tuple(pair_results(later))
        parts = [self.json] if self.entries else []
        json = b",".join([*parts, *(entry.chat_json for entry in added)])
        return History(self.upto + len(later), self.entries + added, json)


_NOTHING = History(0, (), b"")


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A Chat Completions request. `params` is all but messages and tools, in the order in which it is sent."""

    instructions: str
    tools: str | None
    params: Json
    history: History
    history_from: int | None = None

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The messages after the instructions."""
        return self.history.entries

    @functools.cached_property
    def record(self) -> RequestRecord:
        """What is kept of the request: with the messages of the log, enough to rebuild it to the byte."""
        return RequestRecord(
            instructions=digest(self.instructions),
            tools=None if self.tools is None else digest(self.tools),
            params=self.params,
            history_from=UNSET if self.history_from is None else self.history_from,
        )

    @property
    def blobs(self) -> dict[str, str]:
        """The texts that `record` names, by hash."""
        texts = [self.instructions] if self.tools is None else [self.instructions, self.tools]
        return {digest(text): text for text in texts}

    @property
    def messages(self) -> list[Json]:
        return [
            to_chat_message({"role": "system", "content": self.instructions}),
            *(entry.chat_message for entry in self.entries),
        ]

    def body(self) -> bytes:
        """The exact bytes that are sent."""
        system = encode(to_chat_message({"role": "system", "content": self.instructions}))
        # Joined once: each copy of a long history takes its time.
        parts = [b'{"messages":[' + system]
        if self.history.entries:
            parts.append(self.history.json)
        parts[-1] += b"]"
        if self.tools is not None:
            parts.append(b'"tools":' + self.tools.encode())
        parts += [encode(key) + b":" + encode(value) for key, value in self.params.items()]
        parts[-1] += b"}"
        return b",".join(parts)


def build_request(state: State, profile: Profile, *, stream: bool = False, turns: int | None = None) -> ModelRequest:
    """What the active agent's model is asked next. Total: any state gives a request that providers accept.

    At most the last `turns` turns are sent, by default as many as the run's options allow.
    """
    model = state.run.options.model if state.run is not None else None
    params: Json = {"model": model or profile.model}
    if profile.tools is not None:
        if profile.tool_choice is not None:
            params["tool_choice"] = profile.tool_choice
        params["parallel_tool_calls"] = profile.parallel_tool_calls
    if stream:
        params |= {"stream": True, "stream_options": {"include_usage": True}}
    history_from = _find_history_start(state, params["model"], turns)
    return assemble_request(state.messages, profile.instructions, profile.tools, params, history_from)


def _find_history_start(state: State, model: str, turns: int | None) -> int | None:
    if turns is None and state.run is not None:
        turns = state.run.options.history_turns
    limit = None if turns is None else find_window_start(state.messages, turns)
    # What was too long for a model once is so with the next message, too; asking in vain each time would cost a call.
    last = _find_last_request(state)
    kept = last.history_from if last is not None and last.params.get("model") == model else UNSET
    return max((seq for seq in (limit, kept) if isinstance(seq, int)), default=None)


def _find_last_request(state: State) -> RequestRecord | None:
    for index in range(len(state.messages) - 1, -1, -1):
        completion = state.messages[index].completion
        if completion is not None and completion.request is not None:
            return completion.request
    return None


def assemble_request(
    entries: Sequence[Entry], instructions: str, tools: str | None, params: Json, history_from: int | None = None
) -> ModelRequest:
    """Put a request together from its parts, as `request` does and as rebuilding a past one does."""
    sent = entries if history_from is None else select_from(entries, history_from)
    return ModelRequest(
        instructions=instructions,
        tools=tools,
        params=params,
        history=_collect_history(sent),
        history_from=history_from,
    )


def measure_new_history(state: State) -> tuple[int, int]:
    """How many messages the next request has to encode, because none before it did, and about how many bytes."""
    known = _recall_history(state.messages)
    return len(state.messages) - known.upto, state.size - len(known.json)


def _recall_history(messages: Chain[Entry]) -> History:
    kept = messages.recall()
    return kept if isinstance(kept, History) else _NOTHING


def _collect_history(messages: Sequence[Entry]) -> History:
    """What is sent of these messages. Of a session's own, all that came before the last user's message is kept with
    them: however long it is, the next request costs what has been said since."""
    if not isinstance(messages, Chain):
        return _NOTHING.extend(messages)
    known = _recall_history(messages)
    asked = next((at for at in range(len(messages) - 1, known.upto, -1) if messages[at].role == "user"), None)
    if asked is not None:
        # With a user's message the calls before it are over: what answers them later is not sent.
        before, known = len(known.entries), known.extend(messages[known.upto : asked])
        messages.remember(known, known.upto)
        for entry in known.entries[before:]:
            # It is in there now, and not kept twice.
            vars(entry).pop("chat_json", None)
    return known.extend(messages[known.upto :])


def list_text_hashes(fact: SessionEvent) -> list[str]:
    """The texts, by their hashes, that the request behind an assistant message was made of."""
    record = fact.completion.request if isinstance(fact, MessageAdded) and fact.completion is not None else None
    if record is None:
        return []
    return [record.instructions] if record.tools is None else [record.instructions, record.tools]


def digest(text: str) -> str:
    """The name of a text by its content: SHA-256 in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
