"""From a state to the request a model gets: one total function, shared by the loop, the audit and the tests."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.agent.output import OUTPUT_TOOL
from swarmkeep.agent.values import merge_settings
from swarmkeep.events.codec import Json, decode, digest, encode, encode_text
from swarmkeep.events.files import choose_sent_files, measure_sent_files, put_back, put_back_parts
from swarmkeep.events.messages import Entry, to_chat_message
from swarmkeep.events.model_profiles import ModelServer, choose_profile, make_rules
from swarmkeep.events.records import MessageRules, RequestRecord, RunOptions
from swarmkeep.events.state import Run, State, Summary
from swarmkeep.events.wording import join_text
from swarmkeep.request.history import History, collect_history, cut_history, find_window_start

# Choose the functions that a model may call, or has to: what was chosen, until a call that was forced has been
# made.


def find_tool_choice(
    state: State, agent: str, own: str | Json | None, asked: str | Json | UnsetType | None, *, answers_by_call: bool
) -> str | Json | None:
    """Return the next request's choice, by the agent's `own` and that which the run's caller `asked` for.

    A forced call is forced once: by the caller in the run's first reply, by an agent in its own first. Where the
    answer is a call, it may be required of each.
    """
    run = state.run
    choice = own if asked is UNSET else asked
    if run is None or (choice == "required" and answers_by_call):
        return choice
    if asked is not UNSET:
        return _relax(choice) if run.turns > run.turns_before else choice
    relaxed = _relax(choice)
    return relaxed if relaxed != choice and _has_replied(state, run, agent) else choice


def _has_replied(state: State, run: Run, agent: str) -> bool:
    latest = (state.messages[index] for index in range(len(state.messages) - 1, run.first_message - 1, -1))
    return any(entry.completion is not None and entry.message.get("sender") == agent for entry in latest)


def _relax(choice: str | Json | None) -> str | Json | None:
    """The choice without force. Held to it in each turn, a model could never answer."""
    if choice == "required":
        return "auto"
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return "auto" if isinstance(choice, dict) else choice
    allowed = choice.get("allowed_tools")
    return {**choice, "allowed_tools": {**allowed, "mode": "auto"}} if isinstance(allowed, dict) else choice


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """An agent as a model sees it: rendered instructions, tool schemas (a JSON array as text, or None), parameters.

    Its output is described by `response_format`, or by the schema of a function to call, as text. `server` is where its
    model is asked, and `model_profile` what the agent says of the model.
    """

    name: str
    model: str
    instructions: str
    tools: str | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = True
    settings: Json = {}
    response_format: Json | None = None
    output_tool: str | None = None
    server: ModelServer = ModelServer()
    model_profile: Mapping[str, str] = {}


_NO_OPTIONS = RunOptions()


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A Chat Completions request. `params` is all but messages and tools, in the order in which it is sent.

    `files`: the content of those that the messages refer to, by hash. Where one is missing, words stand in its place.
    """

    instructions: str
    tools: str | None
    params: Json
    history: History
    history_from: int | None = None
    files: Mapping[str, bytes] = {}

    @property
    def entries(self) -> Sequence[Entry]:
        """The messages after the instructions."""
        return self.history.entries

    def list_functions(self) -> list[str]:
        """The names of the functions that the model may call."""
        return [tool["function"]["name"] for tool in decode(self.tools or "[]")]

    @property
    def leading_message(self) -> Json:
        """The instructions, with what else stands in front of all messages."""
        texts = [self.instructions, *(join_text(entry.chat_message["content"]) for entry in self.history.leading)]
        content = "\n\n".join(filter(None, texts)) if self.history.leading else self.instructions
        return to_chat_message({"role": "system", "content": content})

    @functools.cached_property
    def record(self) -> RequestRecord:
        """Return the record of the request: with the messages of the log, enough to rebuild it to the byte."""
        return RequestRecord(
            instructions=digest(self.instructions),
            tools=None if self.tools is None else digest(self.tools),
            params=self.params,
            history_from=UNSET if self.history_from is None else self.history_from,
            rules=msgspec.structs.replace(self.history.rules, model="")
            if self.history.rules is not None and self.history.is_special
            else UNSET,
        )

    @property
    def blobs(self) -> dict[str, str]:
        """The texts that `record` names, by hash."""
        texts = [self.instructions] if self.tools is None else [self.instructions, self.tools]
        return {digest(text): text for text in texts}

    @property
    def messages(self) -> list[Json]:
        return [
            self.leading_message,
            *put_back_parts([entry.chat_message for entry in self.entries], self.history.places, self.files),
        ]

    @functools.cached_property
    def sent_history(self) -> tuple[bytes, ...]:
        """The JSON of the history with the content of its files. Of these, a copy: better made in a thread."""
        if not self.history.places:
            return self.history.pieces
        return (put_back(self.history.json, self.history.places, self.files),)

    @property
    def file_names(self) -> list[str]:
        """The files, by hash, that are sent with it."""
        return choose_sent_files(self.history.places)

    def measure_files(self) -> int:
        """The bytes of the files that are sent with it, as often as they are sent."""
        return measure_sent_files(self.history.places)

    def body(self) -> bytes:
        """The exact bytes that are sent."""
        parts = [b'{"messages":[', encode(self.leading_message)]
        for piece in self.sent_history:
            parts += (b",", piece)
        parts.append(b"]")
        if self.tools is not None:
            parts += (b',"tools":', self.tools.encode())
        for key, value in self.params.items():
            parts += (b",", encode(key), b":", encode(value))
        # Joined once: each copy of a long history takes its time.
        return b"".join([*parts, b"}"])


def build_request(state: State, profile: Profile, *, stream: bool = False, turns: int | None = None) -> ModelRequest:
    """Build the next request to the active agent's model. Total: any state gives a request that providers accept.

    At most the last `turns` turns are sent, by default as many as the run's options allow.
    """
    options = _NO_OPTIONS if state.run is None else state.run.options
    params: Json = {"model": options.model or profile.model}
    model_profile = _choose_model_profile(profile, options)
    tools, response_format = _add_caller_tools(profile.tools, options), profile.response_format
    answers_by_call = False
    if options.response_format is not UNSET:
        response_format = options.response_format
    elif profile.output_tool is not None and OUTPUT_TOOL not in options.caller_tool_names:
        tools, answers_by_call = _add_schema(tools, profile.output_tool), True
    if tools is not None:
        tool_choice = find_tool_choice(
            state, profile.name, profile.tool_choice, options.tool_choice, answers_by_call=answers_by_call
        )
        if tool_choice is not None:
            params["tool_choice"] = tool_choice
        at_once = options.parallel_tool_calls
        at_once = profile.parallel_tool_calls if at_once is UNSET else at_once
        if at_once is not None and model_profile["parallel_tool_calls"] == "send":
            params["parallel_tool_calls"] = at_once
    if stream:
        params["stream"] = True
        if model_profile["stream_options"] == "send":
            params["stream_options"] = {"include_usage": True}
    params |= merge_settings(profile.settings, options.model_settings or {}, model_profile["tokens_parameter"])
    if response_format is not None:
        params["response_format"] = response_format
    history_from = _find_history_start(state, params["model"], turns)
    instructions = join_instructions(profile.instructions, options.instructions)
    rules = make_rules(params["model"], profile.server, model_profile)
    return assemble_request(state.messages, instructions, tools, params, history_from, state.summary, rules)


def choose_rules(state: State, profile: Profile) -> MessageRules:
    """Return the rules by which `build_request` renders messages."""
    options = _NO_OPTIONS if state.run is None else state.run.options
    return make_rules(options.model or profile.model, profile.server, _choose_model_profile(profile, options))


def _choose_model_profile(profile: Profile, options: RunOptions) -> dict[str, str]:
    own = options.model_profile or {}
    return choose_profile(options.model or profile.model, profile.server, profile.model_profile, own)


def _add_caller_tools(own: str | None, options: RunOptions) -> str | None:
    """The agent's schemas and the caller's. Of two of one name the caller's counts, as it does for calls."""
    if not options.caller_tools:
        return own
    names = options.caller_tool_names
    schemas = [] if own is None else [tool for tool in decode(own) if tool["function"]["name"] not in names]
    return encode_text([*schemas, *(msgspec.to_builtins(tool) for tool in options.caller_tools)])


def _add_schema(tools: str | None, schema: str) -> str:
    return f"[{schema}]" if tools is None else f"{tools[:-1]},{schema}]"


def join_instructions(agent: str, run: str | UnsetType) -> str:
    """An agent's instructions, and after a blank line those of the run."""
    return f"{agent}\n\n{run}" if agent and run else agent or run or ""


def _find_history_start(state: State, model: str, turns: int | None) -> int | None:
    if turns is None and state.run is not None:
        turns = state.run.options.history_turns
    limit = None if turns is None else find_window_start(state.messages, turns)
    # What was too long for a model once is so with the next message, too; asking in vain each time would cost a call.
    last = find_last_reply(state)
    request = None if last is None or last.completion is None else last.completion.request
    kept = request.history_from if request is not None and request.params.get("model") == model else UNSET
    return max((seq for seq in (limit, kept) if isinstance(seq, int)), default=None)


def find_last_reply(state: State) -> Entry | None:
    """Return the last reply of a model here."""
    for entry in reversed(state.messages):
        if entry.completion is not None and entry.completion.request is not None:
            return entry
    return None


def assemble_request(
    entries: Sequence[Entry],
    instructions: str,
    tools: str | None,
    params: Json,
    history_from: int | None = None,
    summary: Summary | None = None,
    rules: MessageRules | None = None,
) -> ModelRequest:
    """Put a request together from its parts, as `build_request` does and as rebuilding a past one does.

    Without `rules`, messages are rendered by the first ones.
    """
    # What is summed up is not sent again for a part of it that would be.
    cut = history_from is not None and (summary is None or history_from > summary.last_seq)
    history = (
        cut_history(entries, history_from or 0, summary, rules) if cut else collect_history(entries, summary, rules)
    )
    return ModelRequest(
        instructions=instructions,
        tools=tools,
        params=params,
        history=history,
        history_from=history_from,
    )
