"""`swarmkeep whatif`: a run once more, in a fork, with something changed."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from swarmkeep.cli.completing import complete_agent
from swarmkeep.cli.configure import load_model_settings
from swarmkeep.cli.opening import open_source
from swarmkeep.cli.options import (
    Agents,
    Commands,
    JsonOutput,
    Offline,
    SessionId,
)
from swarmkeep.cli.sources import SourceOptions, describe_options
from swarmkeep.cli.terminal import Refused, put_json, say
from swarmkeep.events.codec import Json, MalformedJson, decode
from swarmkeep.events.facts import ContextUpdated, MessageAdded, RecordedEvent, RunStarted, SessionEvent, SessionUpdated
from swarmkeep_client import Done, Message, Run, RunNotCompleted, RunOptions

if TYPE_CHECKING:
    from swarmkeep.cli.chat import ChatSession


commands = Commands()


@commands.add("""
    swarmkeep whatif order-4711 --at 3 --input "Where is my order?"
    swarmkeep whatif order-4711 --at 3 --agent "Sales Agent"
    swarmkeep whatif order-4711 --at 3 --model gpt-4o-mini --url http://127.0.0.1:8000
    swarmkeep whatif order-4711 --at 3 --model-settings '{"temperature": 0}'
""")
def whatif(
    where: SourceOptions,
    session_id: SessionId,
    at: Annotated[int, typer.Option("--at", metavar="SEQ", min=1, help="An event of the run to run again.")],
    text: Annotated[str | None, typer.Option("--input", metavar="TEXT", help="What the user says instead.")] = None,
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="NAME", help="The agent to begin with.", autocompletion=complete_agent),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="The model, for all agents of this run.")
    ] = None,
    model_settings: Annotated[
        str | None,
        typer.Option(
            "--model-settings",
            metavar="JSON",
            help="Parameters of the model requests; each overrides the run's own, and null removes it.",
        ),
    ] = None,
    instructions: Annotated[
        str | None, typer.Option("--instructions", metavar="TEXT", help="Instructions after the agent's own.")
    ] = None,
    new_id: Annotated[str | None, typer.Option("--id", metavar="NEW_ID", help="The fork's id; made if absent.")] = None,
    agents: Agents = None,
    offline: Offline = False,
    as_json: JsonOutput = False,
) -> None:
    """Run part of a conversation again, for real, with another input, agent or model. It runs in a fork that ends
    before that part.

    The effects are real: models, functions, MCP servers and other agents are called.

    What you do not change stays the same. The original session is not touched; `swarmkeep compare` shows both. Without
    --url it runs in this process, with the agents of --agents.
    """
    settings_changed = None if model_settings is None else parse_model_settings(model_settings)
    if where.server_url is not None and (agents or offline):
        raise typer.BadParameter(
            "the server has its own agents and model; leave out --agents and --offline", param_hint="'--url'"
        )
    settings = None
    if where.server_url is None:
        settings = load_model_settings(agents=agents, offline=offline, database_url=where.database_url)
    with open_source(where, writes=True) as source:
        # Says so, if there is no such event.
        source.session(session_id, at=at)
        first = find_opening(source.facts(session_id), at)
        fork = source.fork(session_id, at=first.seq - 1, new_id=new_id, metadata=None).id
    from swarmkeep.agent.values import override_settings

    changed: Json = {"agent": agent, "model": model, "instructions": instructions}
    if settings_changed is not None:
        changed["model_settings"] = override_settings(first.options.get("model_settings", {}), settings_changed)
    options = {**first.options, **{name: value for name, value in changed.items() if value is not None}}
    with ExitStack() as stack:
        session = _open_session(where, settings, fork, stack)
        said: str | list[Message] = first.messages if text is None else text
        run = _run_again(session, said, cast("RunOptions", options), quiet=as_json)
    if as_json:
        put_json({"session_id": fork, "from_session_id": session_id, "from_seq": first.seq - 1, "run": run})
    place = describe_options(where, None, offline=False, model=None)
    say(f"session {fork}; side by side: swarmkeep compare {session_id} {fork}{place}")
    if run.status == "waiting":
        chat_options = describe_options(where, agents, offline=offline, model=None)
        say(f"the run waits; continue with: swarmkeep chat --session {fork}{chat_options}")
    elif run.status != "completed":
        raise typer.Exit(1)


def parse_model_settings(text: str) -> Json:
    """The parameters that an option gives as JSON. Raises BadParameter."""
    from swarmkeep.agent.values import check_model_settings

    try:
        return check_model_settings(decode(text))
    except MalformedJson as error:
        raise typer.BadParameter(f"not JSON: {error}", param_hint="'--model-settings'") from error
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--model-settings'") from error


class RunOpening(NamedTuple):
    """The beginning of a run: its first event, what was said, and what was asked for besides."""

    seq: int
    messages: list[Message]
    options: Json


def find_opening(events: Iterable[RecordedEvent], at: int) -> RunOpening:
    """The opening of the run that event `at` belongs to. Raises Refused if it belongs to none."""
    log = list(events)
    run_id = next((event.run_id for event in log if event.seq == at), None)
    started = [event for event in log if event.run_id == run_id and event.type == RunStarted.type]
    if run_id is None or not started:
        raise Refused(f"event {at} belongs to no run; name one that does, such as the user's message")
    fact = started[0].fact
    found = RunOpening(started[0].seq, [], fact.options.list_asked() if isinstance(fact, RunStarted) else {})
    for event in log:
        if event.seq > found.seq and event.run_id == run_id and not _take_in(event.fact, found):
            break
    return found


def _take_in(fact: SessionEvent, found: RunOpening) -> bool:
    """Take in an event of the opening; False for the first one after it."""
    match fact:
        case SessionUpdated(agent=str(agent)) if not found.messages:
            found.options["agent"] = agent
        case ContextUpdated(patch=patch, tool_call_id=None) if not found.messages:
            found.options["context_variables"] = patch
        case MessageAdded(message=message, completion=None, tool=None):
            found.messages.append(message)
        case _:
            return False
    return True


def _open_session(where: SourceOptions, settings: Any, session_id: str, stack: ExitStack) -> ChatSession:
    if where.server_url is not None:
        from swarmkeep.cli.chat import ServerChatSession
        from swarmkeep.cli.server_source import reach_server

        client = stack.enter_context(reach_server(where))
        return ServerChatSession(client, session_id, None)
    from swarmkeep.cli.chat import LocalChatSession

    session = LocalChatSession(settings, where.tenant, session_id, None)
    stack.callback(session.close)
    return session


def _run_again(session: ChatSession, said: str | list[Message], options: RunOptions, *, quiet: bool) -> Run:
    from swarmkeep.cli.screen import Screen

    screen = Screen()
    run = None
    try:
        for item in session.say(said, options):
            if isinstance(item, Done):
                run = item.run
            if not quiet:
                screen.show(item)
    except RunNotCompleted as ended:
        run = ended.run
    assert run is not None
    return run
