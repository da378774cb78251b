# Made from async_session.py by make_sync.py: change that one, then `make client`.
"""One session, as its URL reads: a verb per route."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Literal, Self, Unpack, overload

from swarmkeep_client import _calls as calls
from swarmkeep_client._calls import Input
from swarmkeep_client._fields import SessionFields
from swarmkeep_client._sender import Sender
from swarmkeep_client._streams import EventStream, RunStream
from swarmkeep_client._tools import carry_out, make_tools
from swarmkeep_client.models import (
    Compaction,
    Comparison,
    Done,
    Event,
    Head,
    Json,
    Message,
    Proof,
    RedactedRequest,
    Redaction,
    Replay,
    ResumeInput,
    Run,
    RunOptions,
    SessionState,
    StateDiff,
    StreamItem,
    Verification,
)


class Session(SessionFields):
    """A conversation on the server. Its fields are as of the last answer about it; `refresh` fetches them again."""

    def __init__(self, sender: Sender, state: SessionState) -> None:
        super().__init__(state)
        self._sender = sender

    def run(self, input: Input, *, background: bool = False, **options: Unpack[RunOptions]) -> Run:
        """Give the agents an input, and wait until they have answered, or wait for a person or a program.

        `input` is the user's text, or a list of messages. With `background`, returns at once, with the run as it is
        then. `options`: see RunOptions. Functions of yours are called here; a run that waits for anything else is
        returned as it waits.

        Raises RunFailed, RunCancelled, SessionBusy, AgentUnavailable.
        """
        tools = make_tools(options, background=background)
        run = self._sender.perform(calls.start_run(self.id, input, options, background=background))
        if tools.list_calls(run) and options.get("idempotency_key"):
            # The answer may be that of an earlier attempt, whose calls have results since.
            run = self._wait(run)
        while not background and (pending := tools.list_calls(run)):
            results = [carry_out(call, function) for call, function in pending]
            run = self._sender.perform(calls.resume_run(self.id, run.id, {"tool_results": results}))
        return run

    def _wait(self, run: Run) -> Run:
        """The run as it waits or has ended now. Raises RunFailed, RunCancelled."""
        for item in self.join(run.id, after=run.last_seq):
            if isinstance(item, Done):
                run = item.run
        return run

    def stream(self, input: Input, **options: Unpack[RunOptions]) -> Generator[StreamItem, None]:
        """Like `run`, item by item: each durable event once, in order, deltas between them, `Done` at last.

        The run starts when the first item is asked for. It reconnects by itself. A caller that stops reading
        closes the connection, and the run goes on.

        Raises what `run` raises; RunFailed and RunCancelled after `Done`.
        """
        start = calls.stream_run(self.id, input, options)
        return self._sender.stream(RunStream(self.id, start, self._sender.new_retries()))

    def join(self, run_id: str, *, after: int | None = None) -> Generator[StreamItem, None]:
        """The stream of a run that exists, as `stream` gives it: from its start, or from the event after `after`."""
        start = calls.join_run(self.id, run_id, after=after)
        return self._sender.stream(RunStream(self.id, start, self._sender.new_retries(), run_id=run_id, after=after))

    def resume(self, run_id: str, **given: Unpack[ResumeInput]) -> Run:
        """Give a waiting run its `tool_results` or `approvals`; with neither, try an interrupted one again.

        Waits as `run` does. Raises RunNotWaiting, AlreadyDecided, and what `run` raises.
        """
        return self._sender.perform(calls.resume_run(self.id, run_id, given))

    def resume_stream(self, run_id: str, **given: Unpack[ResumeInput]) -> Generator[StreamItem, None]:
        """Like `resume`, item by item, as `stream` gives them."""
        start = calls.stream_resumed_run(self.id, run_id, given)
        return self._sender.stream(RunStream(self.id, start, self._sender.new_retries(), run_id=run_id))

    @overload
    def cancel(self, run_id: str, *, idempotency_key: str | None = None) -> Run: ...
    @overload
    def cancel(self, run_id: None = None, *, idempotency_key: str | None = None) -> Run | None: ...
    def cancel(self, run_id: str | None = None, *, idempotency_key: str | None = None) -> Run | None:
        """Stop a run, by default the active one; what it produced stays. None if no run is active."""
        chosen = run_id or (self.refresh()).active_run_id
        if chosen is None:
            return None
        return self._sender.perform(calls.cancel_run(self.id, chosen, idempotency_key=idempotency_key))

    def runs(self, *, page_size: int | None = None) -> Iterator[Run]:
        """The session's runs, fetched page by page as they are needed."""
        return self._sender.iterate_pages(calls.list_runs(self.id, page_size=page_size))

    def get_run(self, run_id: str) -> Run:
        """A run as it is now; a failure is in the run, not raised."""
        return self._sender.perform(calls.get_run(self.id, run_id))

    def messages(self, *, at: int | None = None) -> list[Message]:
        """The conversation, oldest message first, now or after event `at`."""
        return [message for message in self._sender.iterate_pages(calls.list_messages(self.id, at=at))]

    def add_messages(
        self, messages: Sequence[Message], *, relayed: bool = False, idempotency_key: str | None = None
    ) -> list[Message]:
        """Add to the history without a run; gives the messages as they were recorded. `relayed`: see RunOptions.

        Raises SessionBusy.
        """
        added = calls.add_messages(self.id, messages, relayed=relayed, idempotency_key=idempotency_key)
        return (self._sender.perform(added)).data

    def events(
        self, *, after: int | None = None, type: str | Sequence[str] | None = None, page_size: int | None = None
    ) -> Iterator[Event]:
        """The events recorded so far with seq > `after`, oldest first, fetched page by page as they are needed.

        `type` names the type or types that are wanted, by default all.
        """
        return self._sender.iterate_pages(calls.list_events(self.id, after=after, type=type, page_size=page_size))

    def follow(self, *, after: int = 0, type: str | Sequence[str] | None = None) -> Generator[Event, None]:
        """The events with seq > `after`, and then each new one as it is recorded. Does not end by itself."""
        return self._sender.stream(EventStream(self.id, self._sender.new_retries(), after=after, type=type))

    def state(self, at: int | None = None) -> SessionState:
        """The session now, or as it was after event `at`. This handle's fields stay as they are."""
        return self._sender.perform(calls.get_session(self.id, at=at))

    def refresh(self) -> Self:
        """Fetch this handle's fields again."""
        self._state = self.state()
        return self

    def update(
        self,
        *,
        context_variables: Json | None = None,
        metadata: Json | None = None,
        agent: str | None = None,
        if_match: int | None = None,
        idempotency_key: str | None = None,
    ) -> Self:
        """Merge changes into the session; a value of None removes its key. `agent` becomes the active one.

        Raises SeqMismatch when the session's last event is not `if_match`; nothing is changed then.
        """
        self._state = self._sender.perform(
            calls.update_session(
                self.id,
                context_variables=context_variables,
                metadata=metadata,
                agent=agent,
                if_match=if_match,
                idempotency_key=idempotency_key,
            )
        )
        return self

    def fork(
        self,
        at: int | None = None,
        *,
        id: str | None = None,
        metadata: Json | None = None,
        agent: str | None = None,
        idempotency_key: str | None = None,
    ) -> Self:
        """A new session that shares this one's history, up to event `at` if given. `agent` becomes its active one."""
        call = calls.fork_session(
            self.id, at=at, id=id, metadata=metadata, agent=agent, idempotency_key=idempotency_key
        )
        return type(self)(self._sender, self._sender.perform(call))

    def forks(self, *, page_size: int | None = None) -> Iterator[Self]:
        """The sessions that were forked from this one, newest first, fetched page by page as they are needed."""
        found = self._sender.iterate_pages(calls.list_forks(self.id, page_size=page_size))
        return (type(self)(self._sender, state) for state in found)

    def export(self) -> Generator[bytes, None]:
        """The session as a file that leaves nothing out, piece by piece: for `Client.import_sessions`."""
        return self._sender.download(calls.export_sessions([self.id]))

    def transcript(self, format: Literal["markdown", "html"] = "markdown", *, at: int | None = None) -> str:
        """The session as a document for people, now or as it was after event `at`."""
        return self._sender.perform(calls.get_transcript(self.id, format, at=at))

    def eval_case(self, run_id: str | None = None, *, name: str | None = None) -> str:
        """A file for `swarmkeep eval` with the case of a run, by default the last one: expected is what was done."""
        return self._sender.perform(calls.get_eval_case(self.id, run_id=run_id, name=name))

    def redact(
        self,
        seqs: Sequence[int],
        reason: str,
        *,
        include_forks: bool = False,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> Redaction:
        """Remove the payloads of events for good. The hash chain still verifies.

        The answer names the other sessions that hold the same events; `include_forks` redacts them there as well.
        A `dry_run` removes nothing: `seqs` and `forks` say what would be.
        Raises SessionBusy while a run is active; of one that waits, for what it goes on from only.
        """
        call = calls.redact(
            self.id, seqs, reason, include_forks=include_forks, dry_run=dry_run, idempotency_key=idempotency_key
        )
        return self._sender.perform(call)

    def request(self, seq: int) -> Json:
        """The exact Chat Completions request behind the assistant message that event `seq` added."""
        return self._sender.perform(calls.get_model_request(self.id, seq))

    def request_body(self, seq: int) -> bytes:
        """Fetch the same as the exact bytes that were sent."""
        return self._sender.perform(calls.get_model_request_body(self.id, seq))

    def redacted_request(self, seq: int) -> RedactedRequest:
        """The part of that request that is left, where some of it was redacted or is lost."""
        return self._sender.perform(calls.get_redacted_request(self.id, seq))

    def blob(self, sha256: str) -> bytes:
        """The content of a file or picture, by the hash that a message's part names it by.

        Raises BlobNotFound.
        """
        return self._sender.perform(calls.get_blob(self.id, sha256))

    def verify(self, *, head: Head | None = None) -> Verification:
        """Check the session's hash chain, and all that is stored with it; and that it still has an earlier `head`."""
        return self._sender.perform(calls.verify_session(self.id, head))

    def proof(self, *, checkpoint: int | None = None) -> Proof:
        """Prove that the session is in a checkpoint, by default in the newest, and that one in the newest.

        Raises CheckpointNotFound, NotInCheckpoint and LogDamaged.
        """
        return self._sender.perform(calls.prove_session(self.id, checkpoint))

    def replay(self, *, ignore: str | Sequence[str] = (), idempotency_key: str | None = None) -> Replay:
        """Compare today's agents with what is recorded, without calling a model or a tool.

        `ignore` names kinds of differences to leave out.
        """
        return self._sender.perform(calls.replay_session(self.id, ignore=ignore, idempotency_key=idempotency_key))

    def take_over(self, *, note: str | None = None, force: bool = False, idempotency_key: str | None = None) -> Self:
        """Answer in the agent's place from here on; `note` is for the people who watch.

        Raises TakenOverByOther, unless `force`.
        """
        call = calls.take_over(self.id, note=note, force=force, idempotency_key=idempotency_key)
        self._state = self._sender.perform(call)
        return self

    def answer(self, content: str, *, idempotency_key: str | None = None) -> Message:
        """Say something in the agent's place; it completes the run that waits, if one does.

        Raises NotTakenOver, TakenOverByOther, and SessionBusy while a call of the run is under way.
        """
        said = self._sender.perform(calls.answer(self.id, content, idempotency_key=idempotency_key))
        return said.data[0]

    def hand_back(self, *, note: str | None = None, force: bool = False, idempotency_key: str | None = None) -> Self:
        """Have the agent answer again; its model reads the `note`. A run that waits goes on in the background.

        Raises NotTakenOver, TakenOverByOther unless `force`, AgentUnavailable.
        """
        call = calls.hand_back(self.id, note=note, force=force, idempotency_key=idempotency_key)
        self._state = self._sender.perform(call)
        return self

    def assign(self, to: str | None, *, reason: str | None = None, idempotency_key: str | None = None) -> Self:
        """Have a person or a queue look after the session; with None, no one in particular does."""
        call = calls.assign(self.id, to, reason=reason, idempotency_key=idempotency_key)
        self._state = self._sender.perform(call)
        return self

    def add_note(self, text: str, *, idempotency_key: str | None = None) -> Event:
        """Note something for colleagues: neither a model nor the stream of a run shows it. Gives the event."""
        return self._sender.perform(calls.add_note(self.id, text, idempotency_key=idempotency_key))

    def add_feedback(
        self,
        value: Literal["up", "down"],
        *,
        seq: int | None = None,
        run_id: str | None = None,
        comment: str | None = None,
        idempotency_key: str | None = None,
    ) -> Event:
        """Say what a person thinks of an answer: the assistant message `seq`, or the last one of a run.

        Gives the event. Raises EventNotFound and RunNotFound.
        """
        call = calls.add_feedback(
            self.id, value, seq=seq, run_id=run_id, comment=comment, idempotency_key=idempotency_key
        )
        return self._sender.perform(call)

    def put_on_hold(self, reason: str) -> Self:
        """Put the session on hold: until `release`, nothing of it is redacted or deleted (`OnHold`)."""
        self._state = self._sender.perform(calls.hold(self.id, reason))
        return self

    def release(self) -> Self:
        """Lift the hold."""
        self._state = self._sender.perform(calls.release(self.id))
        return self

    def compact(
        self, *, keep_turns: int | None = None, instructions: str | None = None, idempotency_key: str | None = None
    ) -> Compaction:
        """Make the history shorter for the model: long results, and a summary of all but the last turns.

        The log keeps all of it. Raises SessionBusy while a run is active.
        """
        call = calls.compact_session(
            self.id, keep_turns=keep_turns, instructions=instructions, idempotency_key=idempotency_key
        )
        return self._sender.perform(call)

    def diff(self, before: int, after: int) -> StateDiff:
        """Compare the session after event `before` (0: nothing) with the session after event `after`."""
        return self._sender.perform(calls.diff_states(self.id, before, after))

    def compare(self, other: str | SessionFields) -> Comparison:
        """Compare it with another session or id: where they part, and what each did since."""
        return self._sender.perform(calls.compare_sessions(self.id, other))

    def remove_message(self, seq: int, *, tool_call_id: str | None = None) -> None:
        """Take a message out of what models are sent and lists show; the log keeps it.

        With `tool_call_id`, only that call of it. A call goes with its result, and a result with its call. Raises
        SessionBusy for a message of the active run.
        """
        self._sender.perform(calls.remove_message(self.id, seq, tool_call_id=tool_call_id))

    def delete(self, *, force: bool = False, reason: str | None = None, if_match: int | None = None) -> None:
        """Delete the session and every event of it. The server's audit log keeps that it was done, and the `reason`.

        Raises SessionBusy while a run is active, unless `force`, and SeqMismatch if its last event is not `if_match`.
        """
        self._sender.perform(calls.delete_session(self.id, force=force, reason=reason, if_match=if_match))
