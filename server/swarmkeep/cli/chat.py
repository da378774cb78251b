"""The loop of a chat: read, run, show, and ask about what needs an approval."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ParamSpec, Protocol, TextIO

import msgspec
from prompt_toolkit import PromptSession
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output.defaults import create_output
from prompt_toolkit.output.vt100 import Vt100_Output

from swarmkeep.cli.configure import load_agents
from swarmkeep.cli.output import Background
from swarmkeep.cli.render import format_event_line, format_message, put_state
from swarmkeep.cli.screen import Screen
from swarmkeep.cli.sources import ChatSource, make_approval, to_client, to_client_event
from swarmkeep.cli.terminal import Refused, find_refusal, is_interactive, put, say
from swarmkeep.decide import commands
from swarmkeep.decide.commands import StartRun
from swarmkeep.events.facts import RecordedEvent
from swarmkeep.events.records import RunOptions as ConversionRunOptions
from swarmkeep.events.wording import CORRECTOR, escape_line, format_call, join_content
from swarmkeep.runs import hub
from swarmkeep.runs.engine import build_engine
from swarmkeep.runs.hub import Item
from swarmkeep.runs.identifiers import make_id
from swarmkeep.runs.reader import RunPosition
from swarmkeep.serve.settings import Settings
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import DEFAULT_TENANT, SessionKey
from swarmkeep.store.schema import upgrade
from swarmkeep.store.urls import SqliteFile, locate
from swarmkeep_client import (
    Approval,
    Client,
    Done,
    Message,
    MessageDelta,
    MessageStarted,
    PendingCall,
    Run,
    RunNotCompleted,
    RunOptions,
    StreamItem,
)
from swarmkeep_client import RunOptions as Asked

# Slash commands of a chat.


class Leave(Exception):
    """The chat is over; the session stays."""


@dataclass(frozen=True)
class ChatCommand:
    """`usage` is what may follow its name. `leaves_session`: the chat goes on somewhere else."""

    usage: str
    description: str
    run: Callable[[Chat, str], None]
    leaves_session: bool = False


def run_command(chat: Chat, text: str, *, asked: bool = False) -> None:
    """Do what a line says that begins with a slash. `asked`: it is said where an approval is asked for.

    Raises Refused for one that says nothing known, or that would leave the question behind; Leave for the last one.
    """
    name, _, argument = text[1:].strip().partition(" ")
    if name not in COMMANDS:
        raise Refused(f"there is no command /{name}; /help lists them, and //{name} says /{name} to the agent")
    if asked and COMMANDS[name].leaves_session:
        raise Refused(f"/{name} has to wait for the answer; Ctrl-C cancels it")
    COMMANDS[name].run(chat, argument.strip())


def _show_help(chat: Chat, argument: str) -> None:
    for name, command in COMMANDS.items():
        put(f"{f'/{name} {command.usage}'.rstrip():<16}{command.description}")
    put("//text          say /text to the agent")


def _show_state(chat: Chat, argument: str) -> None:
    with chat.sessions() as found:
        put_state(found.session(chat.ensure_session()))


def _show_state_at(chat: Chat, argument: str) -> None:
    seq = _parse_seq(argument)
    if seq is None:
        raise Refused("/at needs an event number, as in /at 7; /events lists them")
    with chat.sessions() as found:
        put_state(found.session(chat.ensure_session(), at=seq))
        for message in found.messages(chat.ensure_session(), at=seq):
            put(format_message(message))


def _show_events(chat: Chat, argument: str) -> None:
    after = _parse_seq(argument) or 0
    with chat.sessions() as found:
        for event in found.events(chat.ensure_session(), after=after):
            put(format_event_line(event, clock_only=True))


def _fork_session(chat: Chat, argument: str) -> None:
    at = _parse_seq(argument)
    with chat.sessions(writes=True) as found:
        fork = found.fork(chat.ensure_session(), at=at, new_id=None, metadata=None)
    chat.move_to(fork.id)


def _resume(chat: Chat, argument: str) -> None:
    if argument:
        chat.move_to(argument)
    elif not chat.resume():
        say("nothing to resume: no run is waiting or interrupted")


def _quit(chat: Chat, argument: str) -> None:
    raise Leave


def _parse_seq(argument: str) -> int | None:
    if argument and not (argument.isascii() and argument.isdigit() and len(argument) < 19):
        raise Refused(f"{argument!r} is not the number of an event; /events lists them")
    return int(argument) if argument else None


COMMANDS = {
    "state": ChatCommand("", "agent, status, context variables and usage, now", _show_state),
    "at": ChatCommand("SEQ", "the same, with the messages, as they were after that event", _show_state_at),
    "events": ChatCommand("[SEQ]", "every event, or those after that one", _show_events),
    "fork": ChatCommand(
        "[SEQ]",
        "continue in a new session that shares the history, up to that event",
        _fork_session,
        leaves_session=True,
    ),
    "resume": ChatCommand(
        "[ID]", "continue a run that waits or was interrupted, or that session", _resume, leaves_session=True
    ),
    "help": ChatCommand("", "this list", _show_help),
    "quit": ChatCommand("", "leave", _quit),
}


# Input of a chat: lines from a terminal with history, or from a pipe.


class LineReader:
    """Reads from a terminal with a history and a line editor, and from anything else line by line, without a prompt.

    At a terminal Enter sends; Alt-Enter begins another line, and what is pasted may have several.
    """

    def __init__(self, history: Iterable[str] = ()) -> None:
        """`history`: what was said before, oldest first; the arrow keys bring it back."""
        self.is_at_terminal = is_interactive()
        self._session = _open_prompt(history) if self.is_at_terminal else None

    def read(self, prompt: str) -> str | None:
        """The next input, or None at its end: Ctrl-D on an empty line, or the end of a file.

        Raises KeyboardInterrupt for Ctrl-C.
        """
        if self._session is None:
            line = _read_line(sys.stdin)
            return line.removesuffix("\n") if line else None
        try:
            return self._session.prompt(prompt)
        except EOFError:
            return None


def _read_line(stream: TextIO) -> str:
    try:
        return stream.readline()
    except UnicodeDecodeError as error:
        raise Refused(
            f"the input is not valid {error.encoding}, the encoding of this terminal "
            f"(byte 0x{error.object[error.start]:02x}); set PYTHONUTF8=1 to read UTF-8"
        ) from None


def _open_prompt(history: Iterable[str]) -> PromptSession[str]:
    keys = KeyBindings()

    @keys.add("enter")
    @keys.add("c-j")
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("escape", "c-j")
    def begin_a_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    output = create_output()
    if isinstance(output, Vt100_Output):
        # Asking a terminal where its cursor is serves menus, which there are none of; some never answer.
        output.enable_cpr = False
    return PromptSession(
        history=InMemoryHistory(list(history)),
        key_bindings=keys,
        multiline=True,
        prompt_continuation="  ",
        output=output,
    )


# One session to chat with: on a server, here, or in memory.


class ChatSession(Protocol):
    """One session, spoken with. Each stream of items ends with the run's Done.

    A new session is not made before `begin`: a user who leaves without a word leaves nothing behind. `place` says where
    it is.
    """

    session_id: str | None
    place: str

    def begin(self) -> str:
        """Make the session, if it is a new one that was not made yet; its id."""
        ...

    def say(self, said: str | Sequence[Message], options: RunOptions | None = None) -> Iterator[StreamItem]:
        """Start a run on this input, and follow it."""
        ...

    def join(self, run_id: str) -> Iterator[StreamItem]:
        """Follow a run that is under way."""
        ...

    def decide(self, run_id: str, approvals: Sequence[Approval]) -> Iterator[StreamItem]:
        """Go on with a run that waits, or without approvals with one that was interrupted, and follow it."""
        ...

    def find_active_run(self) -> Run | None:
        """The run that is under way or waits, if there is one."""
        ...

    def find_latest_run(self) -> Run | None:
        """Return the newest run, in any state."""
        ...

    def open_below(self, session_id: str) -> ChatSession:
        """A session in which an agent of this one asks another; it is this one's to close."""
        ...

    def cancel(self) -> None:
        """End the active run, if there is one; what it produced stays."""
        ...

    def close(self) -> None:
        """Leave; the session stays as it is."""
        ...


class ServerChatSession:
    """A session on a server. A run goes on there whether or not anybody follows it."""

    def __init__(self, client: Client, session_id: str | None, agent: str | None) -> None:
        self.place = f"on {client.base_url}"
        self.session_id = session_id
        self._client = client
        self._agent = agent
        if session_id is not None:
            self._session = client.sessions.get(session_id)
            if agent is not None:
                self._session.update(agent=agent)
        elif agent is not None:
            client.agents.get(agent)
        else:
            # A server that asks for a key is better found out now than after the first message.
            client.agents.list()

    def begin(self) -> str:
        if self.session_id is None:
            self._session = self._client.sessions.create(agent=self._agent)
            self.session_id = self._session.id
        return self.session_id

    def say(self, said: str | Sequence[Message], options: RunOptions | None = None) -> Iterator[StreamItem]:
        return self._session.stream(said, **(options or {}))

    def join(self, run_id: str) -> Iterator[StreamItem]:
        return self._session.join(run_id)

    def decide(self, run_id: str, approvals: Sequence[Approval]) -> Iterator[StreamItem]:
        return self._session.resume_stream(run_id, approvals=approvals)

    def find_active_run(self) -> Run | None:
        if self.session_id is None:
            return None
        run_id = self._session.refresh().active_run_id
        return None if run_id is None else self._session.get_run(run_id)

    def find_latest_run(self) -> Run | None:
        return None if self.session_id is None else next(self._session.runs(), None)

    def open_below(self, session_id: str) -> ServerChatSession:
        return ServerChatSession(self._client, session_id, None)

    def cancel(self) -> None:
        if self.session_id is not None:
            self._session.cancel()

    def close(self) -> None:
        """Do nothing: the code that opened the client closes it."""


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
        if self.is_at_terminal:
            say("Ctrl-C cancels an answer, Ctrl-D leaves, Alt-Enter begins another line, /help lists commands")
        try:
            self.continue_run(self.session.find_active_run())
            while True:
                self._answer(self._read("User: "))
        except Leave:
            pass

    @property
    def is_at_terminal(self) -> bool:
        return self._lines.is_at_terminal

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
        self.continue_run(self.session.find_active_run())

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
                if not self.is_at_terminal:
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
            refused = find_refusal(error) if self.is_at_terminal else None
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
        if not self.is_at_terminal:
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
            self.continue_run(self.session.find_active_run())
        finally:
            self.session = here
        run = here.find_active_run() or here.find_latest_run()
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
        """Ask for the decision on a call. Raises Leave, and the call goes on waiting, or KeyboardInterrupt."""
        asked = f"Approve {escape_line(format_call(call.name, call.arguments))}? [yes/no] "
        while True:
            if not self.is_at_terminal:
                say(f"{asked}answer on the next line")
            text = self._lines.read(asked)
            if text is None:
                raise Leave
            if text.startswith("/"):
                self._try(run_command, self, text, asked=True)
                continue
            answer, _, reason = text.strip().partition(" ")
            match answer.lower().rstrip(",.:;"):
                case "y" | "yes" | "approve":
                    return make_approval(call, "approve")
                case "n" | "no" | "deny":
                    return make_approval(call, "deny", reason.strip())
            say("please answer yes or no; no may be followed by a reason, and /state shows the session")


# Convert between the engine's objects and the types of the client, for chats in this process.


def to_client_item(item: hub.Item) -> StreamItem:
    match item:
        case RecordedEvent():
            return to_client_event(item)
        case hub.MessageStarted():
            return MessageStarted(run_id=item.run_id, agent=item.agent)
        case hub.MessageDeltas():
            return MessageDelta(run_id=item.run_id, agent=item.agent, content=hub.join_text(item.deltas))


def to_start_run(said: str | Sequence[Message], asked: Asked | None, *, stream: bool) -> StartRun:
    asked = asked or {}
    given = {
        name: value
        for name in ConversionRunOptions.__struct_fields__
        if (value := asked.get(name)) not in (None, {}, "")
    }
    return StartRun(
        run_id=make_id("run"),
        messages=({"role": "user", "content": said},) if isinstance(said, str) else tuple(said),
        options=msgspec.convert({**given, "stream": stream}, ConversionRunOptions),
        agent=asked.get("agent"),
        context_variables=asked.get("context_variables") or {},
    )


# A conversation in this process, on a database: no server is needed, and another process may go on with it.


class LocalChatSession:
    """One session, with an engine of its own.

    Raises AgentsError, SessionNotFound, AgentNotFound, StoreUnavailable, SchemaBehind.
    """

    def __init__(self, settings: Settings, tenant: str | None, session_id: str | None, agent: str | None) -> None:
        registry = load_agents(settings)
        if session_id is None and agent is not None:
            registry.get(agent)
        if settings.migrate or isinstance(locate(settings.database_url), SqliteFile):
            upgrade(settings.database_url)
        self.place = "in this process"
        self.session_id = session_id
        self._agent = agent
        self._key = SessionKey(tenant or DEFAULT_TENANT, session_id or make_id("sess"))
        # Runs that others have left are theirs to take up again.
        store = open_store(settings.database_url, only=self._key, **settings.store_options)
        # A user who leaves in the middle of an answer does not wait for it; it can be resumed.
        self._engine = build_engine(settings, registry, store, grace_seconds=0.0)
        self._background = Background()
        try:
            self._background.run(self._open())
        except BaseException:
            self.close()
            raise

    async def _open(self) -> None:
        await self._engine.start()
        if self.session_id is None:
            return
        if self._agent is not None:
            await self._engine.sessions.update(self._key, agent=self._agent)
        else:
            await self._engine.reader.view(self._key)

    def begin(self) -> str:
        if self.session_id is None:
            key = self._key
            self._background.run(self._engine.sessions.create(key.tenant, session_id=key.id, agent=self._agent))
            self.session_id = key.id
        return self.session_id

    def say(self, said: str | Sequence[Message], options: RunOptions | None = None) -> Iterator[StreamItem]:
        command = to_start_run(said, options, stream=True)
        return self._follow(self._background.run(self._engine.runs.start(self._key, command)))

    def join(self, run_id: str) -> Iterator[StreamItem]:
        return self._follow(self._background.run(self._engine.reader.find_position(self._key, run_id)))

    def decide(self, run_id: str, approvals: Sequence[Approval]) -> Iterator[StreamItem]:
        decided = msgspec.convert(approvals, list[commands.Approval])
        return self._follow(self._background.run(self._engine.runs.resume(self._key, run_id, approvals=decided)))

    def find_active_run(self) -> Run | None:
        if self.session_id is None:
            return None
        state = self._background.run(self._engine.reader.state(self._key))
        return None if state.run is None else self._run(state.run.id)

    def find_latest_run(self) -> Run | None:
        if self.session_id is None:
            return None
        views = self._background.run(self._engine.reader.list_runs(self._key, limit=1))
        return to_client(views[0], Run) if views else None

    def open_below(self, session_id: str) -> LocalChatSession:
        below = copy.copy(self)
        below.session_id, below._key = session_id, SessionKey(self._key.tenant, session_id)
        return below

    def cancel(self) -> None:
        active = self.find_active_run()
        if active is not None:
            self._background.run(self._engine.runs.cancel(self._key, active.id))

    def close(self) -> None:
        try:
            self._background.run(self._engine.stop())
        finally:
            self._background.close()

    def _follow(self, feed: RunPosition) -> Iterator[StreamItem]:
        items: Iterator[Item] = self._background.iterate(self._engine.reader.follow_run(self._key, feed))
        yield from map(to_client_item, items)
        yield Done(run=self._run(feed.run_id))

    def _run(self, run_id: str) -> Run:
        return to_client(self._background.run(self._engine.reader.get_run(self._key, run_id)), Run)
