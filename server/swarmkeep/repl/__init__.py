"""Talking with agents at the terminal: the demo loop of OpenAI's Swarm."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from swarmkeep.agent import Agent, Response
from swarmkeep.domain.messages import asked_calls
from swarmkeep.domain.wording import as_keywords

Json = dict[str, Any]

GREY, BLUE, MAGENTA = "\033[90m", "\033[94m", "\033[95m"
_PLAIN = "\033[0m"


def run_demo_loop(
    starting_agent: Agent,
    context_variables: Mapping[str, Any] | None = None,
    stream: bool = False,
    debug: bool = False,
    client: Any = None,
) -> None:
    """Ask for a message, let the agents answer, and again, until the input ends or Ctrl-C.

    The agent that is active after an answer gets the next message, with the context variables as they are then.
    `client` is what `Swarm` takes, by default `openai.OpenAI()`. What the client raises ends the loop.
    """
    from swarmkeep.engine.swarm import Swarm

    swarm = Swarm(client)
    _write("Starting Swarm CLI 🐝\n")
    messages: list[Json] = []
    agent, context = starting_agent, dict(context_variables or {})
    while (text := _read()) is not None:
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
        messages += response.messages
        agent, context = response.agent or agent, response.context_variables


def _read() -> str | None:
    """The user's next line, or None when there is none."""
    try:
        return input(_coloured("User", GREY) + ": ")
    except (EOFError, KeyboardInterrupt):
        _write("\n")
        return None


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
