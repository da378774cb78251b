"""Sessions in this process alone, to be spoken with as with any other: nothing of them is left when it ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any
from uuid import uuid4

import msgspec

import swarmkeep_client as client
from swarmkeep.agent import Agent
from swarmkeep.cli.shapes import event_of, item_of, run_of, session_of, start_of
from swarmkeep.domain.commands import cancel_run, start_run
from swarmkeep.domain.drafts import drafted
from swarmkeep.domain.envelope import Draft, Recorded
from swarmkeep.domain.errors import EventNotFound, SessionNotFound
from swarmkeep.domain.events import SessionForked
from swarmkeep.domain.fold import fold
from swarmkeep.domain.resuming import Approval, resume_run
from swarmkeep.domain.state import Run, State
from swarmkeep.domain.views import all_runs, find_run, run_view, session_view
from swarmkeep.engine.blocking import finish, iterate
from swarmkeep.engine.conversation import Conversation
from swarmkeep.engine.ledger import Decide, MemoryLedger, now
from swarmkeep.engine.live import Hub
from swarmkeep.engine.model import ChatModel
from swarmkeep.engine.registry import OpenRegistry
from swarmkeep.engine.tools import Inline
from swarmkeep.store.hashing import seal
from swarmkeep.store.port import DEFAULT_TENANT, SessionKey

Json = dict[str, Any]


class LoggedLedger(MemoryLedger):
    """A session in memory with all its events, as a database would have them."""

    def __init__(self, session_id: str, events: Sequence[Recorded] = ()) -> None:
        super().__init__()
        self.session_id = session_id
        self.events = [msgspec.structs.replace(event, session_id=session_id) for event in events]
        self.state = fold(self.events)

    def record(self, drafts: Sequence[Draft]) -> list[Recorded]:
        recorded = [sealed.event for sealed in seal(self.session_id, self.state, drafts, at=now())]
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
        self._registry = OpenRegistry([agent])
        self._registry.admits(agent)
        self._ledgers: dict[str, LoggedLedger] = {}

    def open(self, session_id: str | None, agent: str | None) -> MemoryTalk:
        """Speak with the session of this id, or with a new one. Raises SessionNotFound."""
        ledger = self._made() if session_id is None else self._ledger(session_id)
        conversation = Conversation(self._model, Inline(), self._registry, ledger, debug=self._debug)
        if session_id is None:
            finish(conversation.begin(agent or self._agent.name, self._context))
        return MemoryTalk(ledger, conversation, stream=self._stream, raises=self._raises)

    def look_up(self, writes: bool) -> AbstractContextManager[MemorySessions]:
        return nullcontext(self)

    def session(self, session_id: str, *, at: int | None = None) -> client.SessionState:
        return session_of(session_view(session_id, self._state(session_id, at)))

    def messages(self, session_id: str, *, at: int | None = None) -> list[client.Message]:
        return [entry.view() for entry in self._state(session_id, at).messages]

    def events(self, session_id: str, *, after: int = 0) -> list[client.Event]:
        return [event_of(event) for event in self._ledger(session_id).events[after:]]

    def fork(
        self, session_id: str, *, at: int | None, new_id: str | None, metadata: Json | None
    ) -> client.SessionState:
        base = self._state(session_id, at)
        fork = self._made(self._ledger(session_id).events[: base.seq])
        forked = SessionForked(from_session_id=session_id, from_seq=base.seq, from_hash=base.hash)
        finish(fork.commit(lambda state: drafted(base.agent, [forked], None)))
        return self.session(fork.session_id)

    def _made(self, events: Sequence[Recorded] = ()) -> LoggedLedger:
        ledger = LoggedLedger(f"sess_{uuid4().hex}", events)
        self._ledgers[ledger.session_id] = ledger
        return ledger

    def _ledger(self, session_id: str) -> LoggedLedger:
        if session_id not in self._ledgers:
            raise SessionNotFound(session_id)
        return self._ledgers[session_id]

    def _state(self, session_id: str, at: int | None) -> State:
        ledger = self._ledger(session_id)
        if at is None:
            return ledger.state
        last = ledger.state.seq
        if not 1 <= at <= last:
            raise EventNotFound.beyond(session_id, last, at)
        return fold(ledger.events[:at])


class MemoryTalk:
    """One session in memory. Its runs are advanced by whoever follows them, in their thread, and so are its tools."""

    place = "in memory"

    def __init__(self, ledger: LoggedLedger, conversation: Conversation, *, stream: bool, raises: bool) -> None:
        self.session_id: str | None = ledger.session_id
        self._ledger = ledger
        self._conversation = conversation
        self._stream = stream
        self._raises = raises
        # It knows what the model was just saying.
        self._hub = Hub()
        self._key = SessionKey(DEFAULT_TENANT, ledger.session_id)

    def begin(self) -> str:
        return self._key.id

    def say(
        self, said: str | Sequence[client.Message], options: client.RunOptions | None = None
    ) -> Iterator[client.StreamItem]:
        wish = start_of(said, options, stream=self._stream)
        return self._follow(wish.run_id, lambda state: start_run(state, wish))

    def join(self, run_id: str) -> Iterator[client.StreamItem]:
        return self._follow(run_id, lambda state: None)

    def decide(self, run_id: str, approvals: Sequence[client.Approval]) -> Iterator[client.StreamItem]:
        decided = msgspec.convert(approvals, list[Approval])
        return self._follow(run_id, lambda state: resume_run(state, run_id, approvals=decided, now=now()))

    def active(self) -> client.Run | None:
        run = self._ledger.state.run
        return None if run is None else self._shown(run)

    def latest(self) -> client.Run | None:
        runs = all_runs(self._ledger.state)
        return self._shown(runs[-1]) if runs else None

    def cancel(self) -> None:
        run = self._ledger.state.run
        if run is not None:
            partial = self._hub.partial(self._key, run.id)
            for event in finish(self._ledger.commit(lambda state: cancel_run(state, run.id, partial))):
                self._hub.publish(self._key, event)

    def close(self) -> None:
        """Nothing to do: the session stays as long as the process."""

    def _follow(self, run_id: str, decide: Decide) -> Iterator[client.StreamItem]:
        with closing(iterate(self._conversation.advance(decide))) as items:
            for item in items:
                self._hub.publish(self._key, item)
                yield item_of(item)
        run = find_run(self._ledger.state, run_id)
        assert run is not None
        yield client.Done(run=self._shown(run))
        if self._raises:
            self._conversation.raise_failure()

    def _shown(self, run: Run) -> client.Run:
        return run_of(run_view(self._key.id, self._ledger.state, run))
