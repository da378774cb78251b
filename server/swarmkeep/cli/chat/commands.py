"""Slash commands of a chat."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from swarmkeep.cli.render.event_summary import format_event_line
from swarmkeep.cli.render.messages import format_message, put_state
from swarmkeep.cli.sources.source import ChatSource
from swarmkeep.cli.terminal import Refused, put, say


class Leave(Exception):
    """The chat is over; the session stays."""


class ChatControls(Protocol):
    """A chat, as far as commands reach into it."""

    def ensure_session(self) -> str:
        """The id of the session; a new one is made now, if nothing was said so far."""
        ...

    def sessions(self, *, writes: bool = False) -> AbstractContextManager[ChatSource]: ...

    def move_to(self, session_id: str) -> None: ...

    def resume(self) -> bool:
        """Go on with what waits or was interrupted; False if there is nothing."""
        ...


@dataclass(frozen=True)
class ChatCommand:
    """`usage` is what may follow its name. `leaves_session`: the chat goes on somewhere else."""

    usage: str
    description: str
    run: Callable[[ChatControls, str], None]
    leaves_session: bool = False


def run_command(chat: ChatControls, text: str, *, asked: bool = False) -> None:
    """Do what a line says that begins with a slash. `asked`: it is said where an approval is asked for.

    Raises Refused for one that says nothing known, or that would leave the question behind; Leave for the last one.
    """
    name, _, argument = text[1:].strip().partition(" ")
    if name not in COMMANDS:
        raise Refused(f"there is no command /{name}; /help lists them, and //{name} says /{name} to the agent")
    if asked and COMMANDS[name].leaves_session:
        raise Refused(f"/{name} has to wait for the answer; Ctrl-C cancels it")
    COMMANDS[name].run(chat, argument.strip())


def _show_help(chat: ChatControls, argument: str) -> None:
    for name, command in COMMANDS.items():
        put(f"{f'/{name} {command.usage}'.rstrip():<16}{command.description}")
    put("//text          say /text to the agent")


def _show_state(chat: ChatControls, argument: str) -> None:
    with chat.sessions() as found:
        put_state(found.session(chat.ensure_session()))


def _show_state_at(chat: ChatControls, argument: str) -> None:
    seq = _parse_seq(argument)
    if seq is None:
        raise Refused("/at needs an event number, as in /at 7; /events lists them")
    with chat.sessions() as found:
        put_state(found.session(chat.ensure_session(), at=seq))
        for message in found.messages(chat.ensure_session(), at=seq):
            put(format_message(message))


def _show_events(chat: ChatControls, argument: str) -> None:
    after = _parse_seq(argument) or 0
    with chat.sessions() as found:
        for event in found.events(chat.ensure_session(), after=after):
            put(format_event_line(event, clock_only=True))


def _fork_session(chat: ChatControls, argument: str) -> None:
    at = _parse_seq(argument)
    with chat.sessions(writes=True) as found:
        fork = found.fork(chat.ensure_session(), at=at, new_id=None, metadata=None)
    chat.move_to(fork.id)


def _resume(chat: ChatControls, argument: str) -> None:
    if argument:
        chat.move_to(argument)
    elif not chat.resume():
        say("nothing to resume: no run is waiting or interrupted")


def _quit(chat: ChatControls, argument: str) -> None:
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
