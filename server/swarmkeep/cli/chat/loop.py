"""The loop of a chat: read, run, show, and ask about what needs an approval."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import ParamSpec

from swarmkeep.cli.chat.commands import Leave, run_command
from swarmkeep.cli.chat.input import LineReader
from swarmkeep.cli.chat.session import ChatSession
from swarmkeep.cli.refusals import find_refusal
from swarmkeep.cli.render.screen import Screen
from swarmkeep.cli.sources.source import ChatSource
from swarmkeep.cli.terminal import say
from swarmkeep.domain.wording import CORRECTOR, escape_line, format_call, join_content
from swarmkeep_client import Approval, Done, PendingCall, Run, RunNotCompleted, StreamItem

P = ParamSpec("P")
SessionOpener = Callable[[str | None, str | None], ChatSession]
"""Opens the session with this id, or a new one; the second argument is the agent to speak with, if not the active."""
SourceOpener = Callable[[bool], AbstractContextManager[ChatSource]]
"""Opens the sessions among which the chat's one is; the argument says whether they are to be forked."""
UNFINISHED_STATUSES = ("queued", "running", "waiting")


class Chat:
    """A person or a program that speaks with one session at a time."""

    def __init__(
        self,
        session_opener: SessionOpener,
        source_opener: SourceOpener,
        session_id: str | None = None,
        agent: str | None = None,
    ) -> None:
        self._session_opener = session_opener
        self._source_opener = source_opener
        self.session = self._open_session(session_id, agent)
        self._screen = Screen()
        self._lines = LineReader(self._load_history())

    def run(self) -> None:
        """Read, answer and show, until the input ends."""
        if self.at_terminal:
            say("Ctrl-C cancels an answer, Ctrl-D leaves, Alt-Enter begins another line, /help lists commands")
        try:
            self.continue_run(self.session.active())
            while True:
                self._answer(self._read("User: "))
        except Leave:
            pass

    @property
    def at_terminal(self) -> bool:
        return self._lines.at_terminal

    def close(self) -> None:
        self.session.close()

    def ensure_session(self) -> str:
        """The session's id; a new one is made now, if it was not before."""
        if self.session.session_id is None:
            self.session.begin()
            self._announce(self.session)
        return self.session.begin()

    def sessions(self, *, writes: bool = False) -> AbstractContextManager[ChatSource]:
        """The sessions where this chat is held, to be looked up, or with `writes` to be forked."""
        return self._source_opener(writes)

    def move_to(self, session_id: str) -> None:
        """Leave this session, and go on with that one."""
        session = self._open_session(session_id, None)
        self.session.close()
        self.session = session
        self._lines = LineReader(self._load_history())
        self.continue_run(self.session.active())

    def resume(self) -> bool:
        """Go on with the newest run, if it waits, is under way or was interrupted."""
        run = self.session.find_latest_run()
        if run is not None and run.status == "interrupted":
            self.continue_run(self.follow(self.session.decide, run.id, []))
            return True
        if run is None or run.status not in UNFINISHED_STATUSES:
            return False
        self.continue_run(run)
        return True

    def _open_session(self, session_id: str | None, agent: str | None) -> ChatSession:
        session = self._session_opener(session_id, agent)
        if session.session_id is not None:
            self._announce(session)
        return session

    @staticmethod
    def _announce(session: ChatSession) -> None:
        say(f"session {session.session_id} {session.place}")

    def _load_history(self) -> list[str]:
        if self.session.session_id is None:
            return []
        with self.sessions() as found:
            messages = found.messages(self.ensure_session())
        asked = [message for message in messages if message.get("role") == "user"]
        return [join_content(message.get("content")) for message in asked if message.get("sender") != CORRECTOR]

    def _read(self, prompt: str) -> str:
        """The next input. Raises Leave at its end."""
        while True:
            try:
                text = self._lines.read(prompt)
            except KeyboardInterrupt:
                if not self.at_terminal:
                    raise Leave from None
                say("press Ctrl-D to leave")
                continue
            if text is None:
                raise Leave
            return text

    def _answer(self, text: str) -> None:
        if text.startswith("/") and not text.startswith("//"):
            self._try(run_command, self, text)
        elif text.strip():
            # A message that begins with a slash is written with two.
            self.continue_run(self.follow(self._say, text[1:] if text.startswith("//") else text))

    def _say(self, text: str) -> Iterator[StreamItem]:
        self.ensure_session()
        yield from self.session.say(text)

    def _try(self, action: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """A person who is refused may try again; what a program sends next depends on the answer."""
        try:
            action(*args, **kwargs)
        except Exception as error:
            self._screen.end_line()
            refused = find_refusal(error) if self.at_terminal else None
            if refused is None:
                raise
            say(f"error: {refused.sentence}")

    def follow(self, start: Callable[P, Iterator[StreamItem]], *args: P.args, **kwargs: P.kwargs) -> Run | None:
        """Show what a run does, and give it as it is then; Ctrl-C cancels it."""
        ended: list[Run] = []

        def show() -> None:
            try:
                for item in start(*args, **kwargs):
                    self._screen.show(item)
                    if isinstance(item, Done):
                        ended.append(item.run)
            except RunNotCompleted as failed:
                # Shown already, from its event.
                ended.append(failed.run)

        try:
            self._try(show)
        except KeyboardInterrupt:
            self._cancel()
        return ended[-1] if ended else None

    def _cancel(self) -> None:
        def cancel() -> None:
            self.session.cancel()
            self._screen.line("  cancelled; what was produced stays", "yellow")

        try:
            self._try(cancel)
        except KeyboardInterrupt:
            self._screen.end_line()
            say("stopped waiting for the server; the run may continue there")
        if not self.at_terminal:
            raise Leave

    def continue_run(self, run: Run | None) -> None:
        """Go on with a run that is under way, and ask about what it waits for, until it has ended."""
        while run is not None and run.status in UNFINISHED_STATUSES:
            if run.status != "waiting":
                run = self.follow(self.session.join, run.id)
                continue
            below = next((call.session_id for call in run.pending if call.reason == "session"), None)
            if below is not None:
                run = self._continue_below(below)
                continue
            if any(call.reason == "person" for call in run.pending):
                say("a person has taken this conversation over and will answer; /resume checks again")
                return
            try:
                decisions = [self._ask_decision(call) for call in run.pending if call.reason == "approval"]
            except KeyboardInterrupt:
                self._cancel()
                return
            if not decisions:
                say(f"run {run.id} waits for a result that cannot be entered here; resume it through the API")
                return
            run = self.follow(self.session.decide, run.id, decisions)

    def _continue_below(self, session_id: str) -> Run | None:
        """Ask about what another agent waits for, in its own session; gives this one's run, which goes on by that."""
        here = self.session
        say(f"session {session_id}, in which another agent is asked:")
        self.session = here.open_below(session_id)
        try:
            self.continue_run(self.session.active())
        finally:
            self.session = here
        run = here.active() or here.find_latest_run()
        if run is not None and run.status == "waiting":
            if all(call.session_id != session_id for call in run.pending):
                # It waits for another one by now.
                return run
            say(f"run {run.id} waits for session {session_id}")
            return None
        if run is not None and run.status not in UNFINISHED_STATUSES:
            # It was quicker than we were.
            return self.follow(here.join, run.id)
        return run

    def _ask_decision(self, call: PendingCall) -> Approval:
        """What is decided of a call. Raises Leave, and the call goes on waiting, or KeyboardInterrupt."""
        asked = f"Approve {escape_line(format_call(call.name, call.arguments))}? [yes/no] "
        while True:
            if not self.at_terminal:
                say(f"{asked}answer on the next line")
            text = self._lines.read(asked)
            if text is None:
                raise Leave
            if text.startswith("/"):
                self._try(run_command, self, text, asked=True)
                continue
            answer, _, reason = text.strip().partition(" ")
            shown: Approval = {"tool_call_id": call.tool_call_id, "decision": "approve"}
            if call.arguments_digest is not None:
                shown["arguments_digest"] = call.arguments_digest
            match answer.lower().rstrip(",.:;"):
                case "y" | "yes" | "approve":
                    return shown
                case "n" | "no" | "deny":
                    denied: Approval = {**shown, "decision": "deny"}
                    return {**denied, "reason": reason.strip()} if reason.strip() else denied
            say("please answer yes or no; no may be followed by a reason, and /state shows the session")
