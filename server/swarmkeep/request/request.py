"""From a state to the request that a model gets: one total function, shared by the loop, the audit and the tests."""

from __future__ import annotations

import functools
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.agent.output import OUTPUT_TOOL
from swarmkeep.agent.values import merge_settings
from swarmkeep.events.chain import Chain, work_out
from swarmkeep.events.codec import Json, decode, digest, encode, encode_text
from swarmkeep.events.files import (
    FilePlace,
    Media,
    choose_sent_files,
    find_places,
    measure_sent_files,
    put_back,
    put_back_parts,
)
from swarmkeep.events.messages import Entry, ends_calls, make_summary_message, pair_results, to_chat_message
from swarmkeep.events.model_profiles import ModelServer, choose_profile, make_rules
from swarmkeep.events.records import MessageRules, RequestRecord, RunOptions
from swarmkeep.events.state import Run, State, Summary
from swarmkeep.events.wording import join_text

# Limit the history that a model is sent. Nothing is removed from the log; what is left out is only not sent.

# What these say holds for the whole conversation, however long ago it was said.
STANDING_ROLES = ("system", "developer")


def begins_turn(entry: Entry, before: Entry | None) -> bool:
    """Tell if a turn begins here: with what a user says, or else with the model's reply."""
    if entry.removed:
        return False
    if before is None:
        return True
    if entry.is_correction or (entry.person is not None and entry.role == "user"):
        return False
    follows_user = before.role == "user" and not before.removed
    if entry.role == "user":
        return not follows_user or before.run_id != entry.run_id
    return entry.role == "assistant" and not follows_user


def count_turns(entries: Sequence[Entry]) -> int:
    return sum(1 for _ in _iterate_turn_starts(entries))


def find_window_start(entries: Sequence[Entry], turns: int) -> int | None:
    """The seq of the message that the last `turns` turns begin with; None if there are no more than that."""
    for index in _iterate_turn_starts(entries):
        turns -= 1
        if turns == 0:
            return entries[index].seq if index > find_first_shown(entries) else None
    return None


def _iterate_turn_starts(entries: Sequence[Entry]) -> Iterator[int]:
    """Yield the places where turns begin, the last one first."""
    first = find_first_shown(entries)
    for index in range(len(entries) - 1, first - 1, -1):
        if begins_turn(entries[index], entries[index - 1] if index > first else None):
            yield index


class _TakenOut(msgspec.Struct, frozen=True):
    """The number of messages from the first on that were taken out, one behind the other."""

    count: int = 0


def find_first_shown(entries: Sequence[Entry]) -> int:
    """Return the place of the first message that was not taken out. Kept with a session's own messages: of some
    conversations all that is old is taken out."""
    known = (entries.recall(_TakenOut) if isinstance(entries, Chain) else None) or _TakenOut()
    first = next((at for at in range(known.count, len(entries)) if not entries[at].removed), len(entries))
    if first > known.count and isinstance(entries, Chain):
        entries.remember(_TakenOut(first), first)
    return first


def select_from(entries: Sequence[Entry], seq: int) -> list[Entry]:
    """The messages from `seq` on, after what stands for the whole conversation.

    When they begin in the middle of a run, the user's message that it answers goes with them. However long the
    conversation is, this costs what is selected.
    """
    standing, question = select_earlier(entries, seq)
    later = entries[_find_place(entries, seq) :]
    first = next((entry for entry in later if not entry.removed), None)
    return [*standing, *(question if first is not None and first.role != "user" else ()), *later]


def select_earlier(entries: Sequence[Entry], seq: int) -> tuple[list[Entry], list[Entry]]:
    """Of the messages before `seq`, those that stand for the whole conversation, and what the user said last."""
    landmarks = _find_landmarks(entries)
    asked = _find_place(landmarks.questions, seq)
    standing = landmarks.standing[: _find_place(landmarks.standing, seq)]
    return standing, [landmarks.questions[asked - 1]] if asked else []


def list_standing(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The messages that stand for the whole conversation."""
    return _find_landmarks(entries).standing


def _find_place(entries: Sequence[Entry], seq: int) -> int:
    return bisect_left(entries, seq, key=lambda entry: entry.seq)


class _Landmarks(msgspec.Struct, frozen=True):
    """Of the first `upto` messages those that stand for the whole conversation, and what the user said."""

    upto: int = 0
    standing: Chain[Entry] = msgspec.field(default_factory=Chain)
    questions: Chain[Entry] = msgspec.field(default_factory=Chain)


def _find_landmarks(entries: Sequence[Entry]) -> _Landmarks:
    return work_out(entries, _Landmarks, _add_landmarks)


def _add_landmarks(known: _Landmarks, later: Sequence[Entry]) -> _Landmarks:
    standing, questions = known.standing, known.questions
    for entry in later:
        if entry.role in STANDING_ROLES:
            standing = standing.append(entry)
        elif entry.is_question and not entry.removed:
            questions = questions.append(entry)
    return _Landmarks(known.upto + len(later), standing, questions)


class History(msgspec.Struct, frozen=True):
    """The part of the first `upto` messages that a model is sent, and its JSON, with commas in between.

    The JSON is in a few pieces, each at least twice as long as the next: so to add some costs about the same however
    long it is. `summary` stands in the place of the messages that it covers: of sessions that grew from one, each may
    have its own by the event of the same seq. `places`: where in the JSON references stand in the place of files, in
    order. `media`: these, and what else is no text.
    `rules`: by which the messages were rendered, the first ones if None. `leading`: messages that are sent in front of
    all, rather than where they stand. `is_plain`: of no message different models are sent different things, for what is
    attached to it or its parts. `is_special`: something is sent otherwise than by the first rules.
    """

    upto: int
    entries: Chain[Entry]
    pieces: tuple[bytes, ...]
    summary: Summary | None = None
    places: tuple[FilePlace, ...] = ()
    media: Media = Media()
    rules: MessageRules | None = None
    leading: tuple[Entry, ...] = ()
    is_plain: bool = True
    is_special: bool = False

    @property
    def json(self) -> bytes:
        return b",".join(self.pieces)

    @property
    def size(self) -> int:
        """The bytes of the JSON."""
        return sum(map(len, self.pieces)) + max(len(self.pieces) - 1, 0)

    def branch(self) -> History:
        """The same, to be made longer by what is not kept."""
        return msgspec.structs.replace(self, entries=self.entries.branch())

    def extend(self, later: Sequence[Entry]) -> History:
        """With the messages that follow. Right where a call is not parted from its results."""
        paired = added = list(pair_results(later))
        leading, rules = self.leading, self.rules
        if rules is not None:
            added = [entry.render(rules) for entry in paired]
            if rules.system_messages == "one_leading":
                leading += tuple(entry for entry in added if entry.role in STANDING_ROLES)
                added = [entry for entry in added if entry.role not in STANDING_ROLES]
        is_special = self.is_special or len(added) < len(paired) or any(map(operator.is_not, added, paired))
        entries, pieces, places, media = self.entries, self.pieces, self.places, self.media
        if any(isinstance(entry.chat_message["content"], list) for entry in added):
            places += find_places(added, self.size + 1 if pieces else 0)
            media = media.add(added)
        if added:
            pieces = _add_piece(pieces, b",".join([entry.chat_json for entry in added]))
        for entry in added:
            entries = entries.append(entry)
        return msgspec.structs.replace(
            self,
            upto=self.upto + len(later),
            entries=entries,
            pieces=pieces,
            places=places,
            media=media,
            leading=leading,
            is_plain=self.is_plain and all(entry.is_plain for entry in paired),
            is_special=is_special,
        )

    def holds_for(self, rules: MessageRules | None) -> bool:
        """Tell if the same is sent by other rules."""
        if rules == self.rules:
            return True
        return self.is_plain and not self.is_special and _are_plain(rules)


def _add_piece(pieces: tuple[bytes, ...], last: bytes) -> tuple[bytes, ...]:
    joined = len(pieces)
    size = len(last)
    while joined and len(pieces[joined - 1]) < 2 * size:
        joined -= 1
        size += len(pieces[joined]) + 1
    return (*pieces[:joined], b",".join((*pieces[joined:], last)))


def _are_plain(rules: MessageRules | None) -> bool:
    """Whether by these rules only messages that are not plain may be sent otherwise than by the first ones."""
    return rules is None or rules == MessageRules(
        version=rules.version, model=rules.model, server=rules.server, attachments=rules.attachments
    )


def _begin_history(rules: MessageRules | None) -> History:
    return History(0, Chain(), (), rules=rules)


def _begin_behind_removed(messages: Sequence[Entry], rules: MessageRules | None) -> History:
    """Begin behind old messages that were taken out: they are not sent, and nothing after them belongs to them."""
    return msgspec.structs.replace(_begin_history(rules), upto=find_first_shown(messages))


def measure_new_history(state: State, rules: MessageRules | None = None) -> tuple[int, int]:
    """Count the messages that the next request has to encode, as none before it did, and roughly their bytes."""
    known = _recall_history(state.messages, state.summary, rules) or _begin_behind_removed(state.messages, rules)
    return len(state.messages) - known.upto, state.size - known.size


def _recall_history(messages: Chain[Entry], summary: Summary | None, rules: MessageRules | None) -> History | None:
    """Return the kept history, if calls are over where it ends. Another session that grew from the same messages may
    have kept it, or the reply that ended them may have lost its words since; then what comes now may be results of
    theirs."""
    known = messages.recall(History)
    if known is None or known.summary != summary or not known.holds_for(rules):
        return None
    known = known if known.rules == rules else msgspec.structs.replace(known, rules=rules)
    return known if known.upto == len(messages) or ends_calls(messages[known.upto]) else None


def cut_history(
    messages: Sequence[Entry], seq: int, summary: Summary | None, rules: MessageRules | None = None
) -> History:
    """Return the history to send of these messages if they begin with that event: with what holds for all, and what was
    summed up."""
    sent = select_from(messages, seq)
    standing = sum(entry.seq < seq and entry.role in STANDING_ROLES for entry in sent)
    summed_up = [] if summary is None else [_make_summary_entry(summary)]
    return _begin_history(rules).extend([*sent[:standing], *summed_up, *sent[standing:]])


def _make_summary_entry(summary: Summary) -> Entry:
    return Entry(seq=summary.seq, at=summary.at, run_id=None, message=make_summary_message(summary.text))


def _begin_with_summary(messages: Sequence[Entry], summary: Summary, rules: MessageRules | None) -> History:
    """Begin with the summary that is sent in the place of the messages that were summed up."""
    upto = bisect_right(messages, summary.last_seq, key=lambda entry: entry.seq)
    standing, question = select_earlier(messages, summary.last_seq + 1)
    # Whether it is sent must not hang on more than the next message, which is kept with what this is the beginning of.
    is_answered = upto < len(messages) and (messages[upto].role != "user" or messages[upto].removed)
    begun = _begin_history(rules).extend([*standing, _make_summary_entry(summary), *(question if is_answered else ())])
    return msgspec.structs.replace(begun, upto=upto, summary=summary)


def collect_history(
    messages: Sequence[Entry], summary: Summary | None = None, rules: MessageRules | None = None
) -> History:
    """Collect the history to send of these messages. Of a session's own, all that came before the last answer, or
    before another end of the calls before it, is kept with them: however long it is, the next request costs what has
    been said since."""
    if not isinstance(messages, Chain):
        begun = _begin_history(rules) if summary is None else _begin_with_summary(messages, summary, rules)
        return begun.extend(messages[begun.upto :])
    known = _recall_history(messages, summary, rules)
    if known is None:
        known = (
            _begin_behind_removed(messages, rules) if summary is None else _begin_with_summary(messages, summary, rules)
        )
    end = next((at for at in range(len(messages) - 1, known.upto, -1) if ends_calls(messages[at])), None)
    if end is not None:
        before, known = len(known.entries), known.extend(messages[known.upto : end])
        messages.remember(known, known.upto)
        for entry in known.entries[before:]:
            # It is in there now, and not kept twice.
            vars(entry).pop("chat_json", None)
    return known.branch().extend(messages[known.upto :])


# From a state to the request a model gets: one total function, shared by the loop, the audit and the tests.

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
        named = {self.record.instructions: self.instructions}
        if self.tools is not None and self.record.tools is not None:
            named[self.record.tools] = self.tools
        return named

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
