"""Talking with agents at the terminal: the demo loop of OpenAI's Swarm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

import msgspec

import swarmkeep_client as client
from swarmkeep.agent import Agent
from swarmkeep.cli.chat import to_client_item, to_start_run
from swarmkeep.cli.sources import to_client, to_client_event
from swarmkeep.decide.commands import Approval, cancel_run, resume_run, start_run
from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import Json, make_timestamp
from swarmkeep.events.errors import EventNotFound, SessionNotFound
from swarmkeep.events.facts import EventDraft, RecordedEvent, SessionForked
from swarmkeep.events.fold import fold
from swarmkeep.events.state import Run, State
from swarmkeep.events.views import collect_runs, find_run, view_run, view_session
from swarmkeep.models.model import ChatModel
from swarmkeep.runs.agents import OpenRegistry
from swarmkeep.runs.hub import Hub
from swarmkeep.runs.identifiers import make_id
from swarmkeep.runs.policy import Decide
from swarmkeep.runs.swarm import MemorySession, MemorySessionLog, iterate_blocking, run_blocking
from swarmkeep.runs.tool_runners import InlineRunner
from swarmkeep.runs.tool_servers import ToolServers
from swarmkeep.store.hashing import seal
from swarmkeep.store.records import DEFAULT_TENANT, SessionKey

# Sessions in this process alone, to be spoken with as with any other: nothing of them is left when it ends.


class MemoryEventLog(MemorySessionLog):
    """A session in memory with all its events, as a database would have them."""

    def __init__(self, session_id: str, events: Sequence[RecordedEvent] = ()) -> None:
        super().__init__()
        self.session_id = session_id
        self.events = [msgspec.structs.replace(event, session_id=session_id) for event in events]
        self.state = fold(self.events)

    def record(self, drafts: Sequence[EventDraft]) -> list[RecordedEvent]:
        recorded = [sealed.event for sealed in seal(self.session_id, self.state, drafts, at=make_timestamp())]
        self.events, self.state = [*self.events, *recorded], fold(recorded, self.state)
        return recorded


class MemorySessions:
    """The sessions of one process. Each new one begins with the same agent and context variables.

    `raises`: a run that fails is not only shown, but what its client raised is raised.
    """

    def __init__(
        self, model: ChatModel, agent: Agent, context: Mapping[str, Any], *, stream: bool, debug: bool, raises: bool
    ) -> None:
        self._model = model
        self._agent = agent
        self._context = context
        self._stream = stream
        self._debug = debug
        self._raises = raises
        self._registry = OpenRegistry([agent], server=model.server)
        self._registry.admit(agent)
        self._servers = ToolServers()
        self._logs: dict[str, MemoryEventLog] = {}

    def open(self, session_id: str | None, agent: str | None) -> MemoryChatSession:
        """Speak with the session of this id, or with a new one. Raises SessionNotFound."""
        log = self._make_log() if session_id is None else self._find_log(session_id)
        runner = InlineRunner()
        toolbox = self._servers.make_toolbox(log.session_id, runner)
        conversation = MemorySession(self._model, runner, self._registry, log, debug=self._debug, toolbox=toolbox)
        if session_id is None:
            run_blocking(conversation.create(agent or self._agent.name, self._context))
        return MemoryChatSession(log, conversation, stream=self._stream, raises=self._raises)

    def open_source(self, writes: bool) -> AbstractContextManager[MemorySessions]:
        return nullcontext(self)

    def session(self, session_id: str, *, at: int | None = None) -> client.SessionState:
        return to_client(view_session(session_id, self._state(session_id, at)), client.SessionState)

    def messages(self, session_id: str, *, at: int | None = None) -> list[client.Message]:
        return [entry.view() for entry in self._state(session_id, at).messages]

    def events(self, session_id: str, *, after: int = 0) -> list[client.Event]:
        return [to_client_event(event) for event in self._find_log(session_id).events[after:]]

    def fork(
        self, session_id: str, *, at: int | None, new_id: str | None, metadata: Json | None
    ) -> client.SessionState:
        base = self._state(session_id, at)
        fork = self._make_log(self._find_log(session_id).events[: base.seq])
        forked = SessionForked(from_session_id=session_id, from_seq=base.seq, from_hash=base.hash)
        run_blocking(fork.commit(lambda state: draft_events(base.agent, [forked], None)))
        return self.session(fork.session_id)

    def _make_log(self, events: Sequence[RecordedEvent] = ()) -> MemoryEventLog:
        log = MemoryEventLog(make_id("sess"), events)
        self._logs[log.session_id] = log
        return log

    def _find_log(self, session_id: str) -> MemoryEventLog:
        if session_id not in self._logs:
            raise SessionNotFound(session_id)
        return self._logs[session_id]

    def _state(self, session_id: str, at: int | None) -> State:
        log = self._find_log(session_id)
        if at is None:
            return log.state
        last = log.state.seq
        if not 1 <= at <= last:
            raise EventNotFound.out_of_range(session_id, last, at)
        return fold(log.events[:at])


class MemoryChatSession:
    """One session in memory. Its runs are advanced by the code that follows them, in its thread, and so are its
    tools."""

    place = "in memory"

    def __init__(self, log: MemoryEventLog, conversation: MemorySession, *, stream: bool, raises: bool) -> None:
        self.session_id: str | None = log.session_id
        self._log = log
        self._conversation = conversation
        self._stream = stream
        self._raises = raises
        # It knows what the model was just saying.
        self._hub = Hub()
        self._key = SessionKey(DEFAULT_TENANT, log.session_id)

    def begin(self) -> str:
        return self._key.id

    def say(
        self, said: str | Sequence[client.Message], options: client.RunOptions | None = None
    ) -> Iterator[client.StreamItem]:
        command = to_start_run(said, options, stream=self._stream)
        return self._follow(command.run_id, lambda state: start_run(state, command))

    def join(self, run_id: str) -> Iterator[client.StreamItem]:
        return self._follow(run_id, lambda state: None)

    def decide(self, run_id: str, approvals: Sequence[client.Approval]) -> Iterator[client.StreamItem]:
        decided = msgspec.convert(approvals, list[Approval])
        return self._follow(run_id, lambda state: resume_run(state, run_id, approvals=decided))

    def find_active_run(self) -> client.Run | None:
        run = self._log.state.run
        return None if run is None else self._view_run(run)

    def find_latest_run(self) -> client.Run | None:
        runs = collect_runs(self._log.state)
        return self._view_run(runs[-1]) if runs else None

    def cancel(self) -> None:
        run = self._log.state.run
        if run is not None:
            partial = self._hub.get_partial(self._key)
            self._hub.publish(
                self._key, *run_blocking(self._log.commit(lambda state: cancel_run(state, run.id, partial)))
            )

    def open_below(self, session_id: str) -> MemoryChatSession:
        """Raise LookupError: an agent that is asked in memory waits for no answer."""
        raise LookupError(session_id)

    def close(self) -> None:
        """Nothing to do: the session stays as long as the process."""

    def _follow(self, run_id: str, decide: Decide) -> Iterator[client.StreamItem]:
        with closing(iterate_blocking(self._conversation.advance(decide))) as items:
            for item in items:
                if isinstance(item, RecordedEvent):
                    self._hub.publish(self._key, item)
                else:
                    self._hub.show(self._key, item)
                yield to_client_item(item)
        run = find_run(self._log.state, run_id)
        assert run is not None
        yield client.Done(run=self._view_run(run))
        if self._raises:
            self._conversation.raise_failure()

    def _view_run(self, run: Run) -> client.Run:
        return to_client(view_run(self._key.id, self._log.state, run), client.Run)


def run_demo_loop(
    starting_agent: Agent,
    context_variables: Mapping[str, Any] | None = None,
    stream: bool = False,
    debug: bool = False,
    client: Any = None,
) -> None:
    """Ask for a message, let the agents answer, and again, until the input ends.

    It is `swarmkeep chat` on a session that is nowhere kept: approvals are asked about on the spot, Ctrl-C cancels an
    answer, Ctrl-D at the prompt ends the loop, and a line that begins with / is a command: /help lists them. Plain
    functions run in the calling thread.

    `client` is what `Swarm` takes, by default `openai.OpenAI()`. What it raises is shown, and a person may go on; where
    the input or the output is not a terminal, it is raised.
    """
    # Modules that define agents may import this one, and are loaded by servers, which need none of these.
    from contextlib import closing

    from swarmkeep.cli.chat import Chat
    from swarmkeep.cli.terminal import escape_unencodable, is_interactive, put
    from swarmkeep.models.model import ChatModel
    from swarmkeep.runs.swarm import Swarm

    sessions = MemorySessions(
        ChatModel(Swarm(client).client),
        starting_agent,
        context_variables or {},
        stream=stream,
        debug=debug,
        raises=not is_interactive(),
    )
    escape_unencodable()
    put("Starting Swarm CLI 🐝")
    with closing(Chat(sessions.open, sessions.open_source)) as chat:
        chat.run()
