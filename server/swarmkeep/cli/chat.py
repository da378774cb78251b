"""`swarmkeep chat`: a conversation at the terminal, on a server or in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Annotated, Literal, ParamSpec

import typer

from swarmkeep.cli.configure import NO_MODEL, OFFLINE_NOTE, Agents, Model, Offline, has_model, load_settings
from swarmkeep.cli.refusals import refusal
from swarmkeep.cli.sources import ServerUrl, StoredIn, Where
from swarmkeep.cli.terminal import Refused, is_terminal, printable, say

if TYPE_CHECKING:
    from swarmkeep.cli.local import LocalTalk
    from swarmkeep.cli.screen import Screen
    from swarmkeep.cli.talks import Talk
    from swarmkeep_client import Approval, PendingCall, Run, StreamItem

P = ParamSpec("P")


def register(app: typer.Typer) -> None:
    app.command(
        "chat",
        short_help="Chat with agents, on a server or here.",
        epilog="""
        \b
        Examples:
          swarmkeep chat --url http://127.0.0.1:8000
          swarmkeep chat --url http://127.0.0.1:8000 --session order-4711
          swarmkeep chat --offline --agents swarmkeep_agents.acme
          echo "I want a refund." | swarmkeep chat --offline --agents swarmkeep_agents.acme
        """,
    )(chat)


def chat(
    url: ServerUrl = None,
    session: Annotated[
        str | None, typer.Option("--session", metavar="ID", help="Go on with this session instead of a new one.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="The agent to speak with; by default the first one.")
    ] = None,
    agents: Agents = None,
    database_url: StoredIn = None,
    offline: Offline = False,
    model: Model = None,
) -> None:
    """Chat with agents: on a server with --url, otherwise in this process, on a database.

    Each line of the input is a message. What agents say is shown as it comes, with their tool calls, handoffs and
    changes of the context. Ctrl-C cancels an answer; Ctrl-C or Ctrl-D at the prompt ends the chat.
    """
    server_url = Where(url, database_url).server_url
    if server_url is None:
        with closing(_in_process(agents, database_url, offline, model, session, agent)) as local:
            _converse(local)
        return
    if agents or offline or model:
        raise typer.BadParameter("the server has its own agents and model", param_hint="'--url'")
    from swarmkeep.cli.server import patient_client, reachable
    from swarmkeep.cli.talks import ServerTalk

    with reachable(server_url), patient_client(server_url) as client:
        talk = ServerTalk(client, session, agent)
        say(f"session {talk.session_id} on {server_url}")
        _converse(talk)


def _in_process(
    agents: list[str] | None,
    database_url: str | None,
    offline: bool,
    model: str | None,
    session: str | None,
    agent: str | None,
) -> LocalTalk:
    settings = load_settings(agents=agents, database_url=database_url, offline=offline, model=model)
    if not has_model(settings):
        raise Refused(f"{NO_MODEL}; or chat on a server with --url")
    from swarmkeep.cli.local import LocalTalk

    talk = LocalTalk(settings, session, agent)
    if settings.offline:
        say(OFFLINE_NOTE)
    say(f"session {talk.session_id} in this process")
    return talk


def _converse(talk: Talk) -> None:
    from swarmkeep.cli.screen import Screen

    chat = _Chat(talk, Screen(), prompts=is_terminal(sys.stdin) and is_terminal(sys.stdout))
    chat.go_on(talk.active())
    while (text := chat.read("User: ")) is not None:
        if text.strip():
            chat.go_on(chat.follow(talk.say, text))


class _Chat:
    """The reading and showing of one conversation."""

    def __init__(self, talk: Talk, screen: Screen, *, prompts: bool) -> None:
        self._talk = talk
        self._screen = screen
        self._prompts = prompts
        if prompts:
            # Loaded, it gives `input` arrow keys and a history; not every Python has it.
            with suppress(ImportError):
                import readline  # noqa: F401

    def read(self, prompt: str) -> str | None:
        """The next line of the input, or None at its end."""
        try:
            return input(prompt if self._prompts else "")
        except (EOFError, KeyboardInterrupt):
            if self._prompts:
                self._screen.write("")
            return None

    def follow(self, start: Callable[P, Iterator[StreamItem]], *args: P.args, **kwargs: P.kwargs) -> Run | None:
        """Show what a run does, and give it as it is then; Ctrl-C cancels it."""
        from swarmkeep_client import Done, RunNotCompleted

        run = None
        try:
            for item in start(*args, **kwargs):
                self._screen.show(item)
                run = item.run if isinstance(item, Done) else run
        except RunNotCompleted as ended:
            # Shown already, from its event.
            run = ended.run
        except KeyboardInterrupt:
            self._talk.cancel()
            self._screen.line("  cancelled; what was produced stays", "yellow")
            if not self._prompts:
                raise
        except Exception as error:
            self._screen.break_off()
            # A person may try again; what a program sends next depends on this answer.
            refused = refusal(error) if self._prompts else None
            if refused is None:
                raise
            say(f"error: {refused.sentence}")
        return run

    def go_on(self, run: Run | None) -> None:
        """Go on with a run that is under way, and ask about what it waits for, until it has ended."""
        while run is not None and run.status in ("queued", "running", "waiting"):
            if run.status != "waiting":
                run = self.follow(self._talk.join, run.id)
                continue
            decisions = self._decisions(run)
            if not decisions:
                say(f"run {run.id} waits for what cannot be given here; resume it with the API")
                return
            run = self.follow(self._talk.decide, run.id, decisions)

    def _decisions(self, run: Run) -> list[Approval]:
        decisions: list[Approval] = []
        for call in run.pending:
            if call.reason == "approval":
                answer = self._ask(call)
                if answer is None:
                    break
                decisions.append({"tool_call_id": call.tool_call_id, "decision": answer})
        return decisions

    def _ask(self, call: PendingCall) -> Literal["approve", "deny"] | None:
        from swarmkeep.domain.wording import call_text

        while True:
            if not self._prompts:
                say(f"approve {call_text(call.name, call.arguments)}? the next line says yes or no")
            answer = self.read(f"Approve {printable(call_text(call.name, call.arguments))}? [yes/no] ")
            if answer is None:
                return None
            match answer.strip().lower():
                case "y" | "yes" | "approve":
                    return "approve"
                case "n" | "no" | "deny":
                    return "deny"
            say("please answer yes or no")
