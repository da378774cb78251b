"""What can be asked for in a chat by a line that begins with a slash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swarmkeep.cli.events import line
from swarmkeep.cli.sessions import in_lines, put_state
from swarmkeep.cli.terminal import Refused, put, say

if TYPE_CHECKING:
    from swarmkeep.cli.chat_loop import Chat


@dataclass(frozen=True)
class Command:
    """`usage` is what may follow its name, `means` what it does."""

    usage: str
    means: str
    run: Callable[[Chat, str], None]


def obey(chat: Chat, text: str) -> None:
    """Do what a line says that begins with a slash. Raises Refused for one that says nothing known."""
    name, _, argument = text[1:].strip().partition(" ")
    if name not in COMMANDS:
        raise Refused(f"there is no command /{name}; /help lists them, and //{name} says /{name} to the agent")
    COMMANDS[name].run(chat, argument.strip())


def _help(chat: Chat, argument: str) -> None:
    for name, command in COMMANDS.items():
        put(f"{f'/{name} {command.usage}'.rstrip():<16}{command.means}")
    put("//text          say /text to the agent")


def _state(chat: Chat, argument: str) -> None:
    with chat.sessions() as found:
        put_state(found.session(chat.talk.session_id))


def _at(chat: Chat, argument: str) -> None:
    seq = _seq(argument)
    if seq is None:
        raise Refused("say as of which event, as in /at 7; /events lists them")
    with chat.sessions() as found:
        put_state(found.session(chat.talk.session_id, at=seq))
        for message in found.messages(chat.talk.session_id, at=seq):
            put(in_lines(message))


def _events(chat: Chat, argument: str) -> None:
    with chat.sessions() as found:
        for event in found.events(chat.talk.session_id, after=_seq(argument) or 0):
            put(line(event, clock_only=True))


def _fork(chat: Chat, argument: str) -> None:
    with chat.sessions(writes=True) as found:
        fork = found.fork(chat.talk.session_id, at=_seq(argument), new_id=None, metadata=None)
    chat.move_to(fork.id)


def _resume(chat: Chat, argument: str) -> None:
    if argument:
        chat.move_to(argument)
        return
    run = chat.talk.latest()
    if run is not None and run.status == "interrupted":
        run = chat.follow(chat.talk.decide, run.id, [])
    elif run is None or run.status not in ("queued", "running", "waiting"):
        say("nothing waits here, and nothing was interrupted")
        return
    chat.go_on(run)


def _quit(chat: Chat, argument: str) -> None:
    from swarmkeep.cli.chat_loop import Leave

    raise Leave


def _seq(argument: str) -> int | None:
    if argument and not (argument.isascii() and argument.isdigit() and len(argument) < 19):
        raise Refused(f"{argument!r} is not the number of an event")
    return int(argument) if argument else None


COMMANDS = {
    "state": Command("", "agent, status, context variables and usage, now", _state),
    "at": Command("SEQ", "the same, and the messages, as they were after that event", _at),
    "events": Command("[SEQ]", "every event, or those after that one", _events),
    "fork": Command("[SEQ]", "go on in a new session that shares the history, up to that event", _fork),
    "resume": Command("[ID]", "go on with what waits or was interrupted, or with that session", _resume),
    "help": Command("", "this list", _help),
    "quit": Command("", "leave", _quit),
}
