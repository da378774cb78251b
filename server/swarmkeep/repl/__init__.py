"""Talking with agents at the terminal: the demo loop of OpenAI's Swarm."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from swarmkeep.agent import Agent, Response
from swarmkeep.domain.messages import asked_calls
from swarmkeep.domain.wording import as_keywords

if TYPE_CHECKING:
    from swarmkeep.repl.lines import Lines

Json = dict[str, Any]

BLUE, MAGENTA = "\033[94m", "\033[95m"
_PLAIN = "\033[0m"


def run_demo_loop(
    starting_agent: Agent,
    context_variables: Mapping[str, Any] | None = None,
    stream: bool = False,
    debug: bool = False,
    client: Any = None,
) -> None:
    """Ask for a message, let the agents answer, and again, until the input ends or Ctrl-C.

    A line that begins with / is a command: /help lists them. Nothing is kept: `swarmkeep chat` has sessions.
    The agent that is active after an answer gets the next message, with the context variables as they are then.
    `client` is what `Swarm` takes, by default `openai.OpenAI()`. What the client raises ends the loop.
    """
    from swarmkeep.engine.swarm import Swarm
    from swarmkeep.repl.lines import Lines

    swarm = Swarm(client)
    lines = Lines()
    _write("Starting Swarm CLI 🐝\n")
    messages: list[Json] = []
    agent, context = starting_agent, dict(context_variables or {})
    while (text := _read(lines)) not in (None, "/quit"):
        if text.startswith("/") and not text.startswith("//"):
            _obey(text, agent, context)
            continue
        text = text[1:] if text.startswith("//") else text
        messages.append({"role": "user", "content": text})
        try:
            answer = swarm.run(
                agent=agent,
                messages=messages,
                context_variables=context,
                stream=stream,
                debug=debug,
            )
            response: Response = _show_stream(answer) if stream else answer
        except KeyboardInterrupt:
            _write("\n")
            return
        if not stream:
            _show(response.messages)
        _tell_of_approvals(response.messages)
        messages += response.messages
        agent, context = response.agent or agent, response.context_variables


def _read(lines: Lines) -> str | None:
    """What the user says next, or None when there is nothing more."""
    if not lines.at_terminal:
        _write("User: ")
    try:
        text = lines.read("User: ", style="ansibrightblack")
    except KeyboardInterrupt:
        text = None
    if text is None:
        _write("\n")
    return text


def _obey(text: str, agent: Agent, context: Json) -> None:
    name = text[1:].strip()
    if name == "state":
        _write(f"agent: {agent.name}\ncontext: {json.dumps(context, ensure_ascii=False, default=str)}\n")
    elif name == "help":
        _write(
            "/state  agent and context variables\n/help   this list\n/quit   leave\n//text  say /text to the agent\n"
        )
    else:
        _write(f"there is no command /{name} here; /help lists those that there are, swarmkeep chat has more\n")


def _tell_of_approvals(messages: list[Json]) -> None:
    """A run ends at a call that requires an approval; nothing has been done then."""
    if messages and messages[-1]["role"] != "tool":
        for _, name, arguments in asked_calls(messages[-1]):
            _write(
                f"  {name}({as_keywords(arguments)}) requires an approval, and did not run; swarmkeep chat can ask\n"
            )


def _show(messages: Iterable[Json]) -> None:
    for message in messages:
        if message["role"] == "assistant":
            _write(f"{_coloured(message['sender'], BLUE)}: ")
            _write(f"{message['content']}\n" if message["content"] else "")
            _show_calls(message)


def _show_calls(message: Json) -> None:
    calls = asked_calls(message)
    if len(calls) > 1:
        _write("\n")
    for _, name, arguments in calls:
        _write(f"{_coloured(name, MAGENTA)}({as_keywords(arguments)})\n")


def _show_stream(frames: Iterable[Json]) -> Response:
    """Show a streamed answer as it comes; gives the Response that ends it."""
    sender, calls, line_open = "", _Calls(), False
    response = Response()
    for frame in frames:
        sender = frame.get("sender", sender)
        if content := frame.get("content"):
            _write(content if line_open else f"{_coloured(sender, BLUE)}: {content}")
            line_open = True
        calls.add(frame.get("tool_calls") or ())
        if frame.get("delim") == "end":
            _write("\n" if line_open else "")
            for name, arguments in calls.whole():
                _write(f"{_coloured(sender, BLUE)}: {_coloured(name, MAGENTA)}({as_keywords(arguments)})\n")
            calls, line_open = _Calls(), False
        response = frame.get("response", response)
    return response


class _Calls:
    """Tool calls put together from their pieces."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[str, str]] = {}

    def add(self, pieces: Iterable[Json]) -> None:
        for piece in pieces:
            name, arguments = self._calls.get(piece["index"], ("", ""))
            function = piece["function"]
            more = function["arguments"]
            arguments += more if isinstance(more, str) else ""
            self._calls[piece["index"]] = (name or function["name"] or "", arguments)

    def whole(self) -> Iterable[tuple[str, str]]:
        return self._calls.values()


def _coloured(text: str, colour: str) -> str:
    # https://no-color.org: any value but an empty one counts.
    plain = os.environ.get("NO_COLOR") or not sys.stdout.isatty()
    return text if plain else f"{colour}{text}{_PLAIN}"


def _write(text: str) -> None:
    # A model may say what the terminal's encoding cannot hold; that must not end the conversation.
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()
