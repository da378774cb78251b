"""`swarmkeep demo`: the whole of it in a minute, without a key, a database server or a network."""

from __future__ import annotations

import secrets
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmkeep.cli.output import try_writing
from swarmkeep.cli.progress import INTERRUPTED, show_progress
from swarmkeep.cli.terminal import Refused, describe_os_error, is_terminal, say

if TYPE_CHECKING:
    from swarmkeep.cli.demo.server import DemoServer
    from swarmkeep.cli.render.screen import Screen


_STOPPED = "the demo's server is stopped"


def register(app: typer.Typer) -> None:
    app.command(
        "demo",
        epilog="""
        \b
        Examples:
          swarmkeep demo
          swarmkeep demo --keep demo-folder
          swarmkeep demo | cat        (without a terminal it ends by itself)
        """,
    )(demo)


def demo(
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Keep the database and the log in this folder."),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, metavar="PORT", help="The server's port; by default a free one.")
    ] = None,
) -> None:
    """Watch a conversation outlive its server: it starts a real one, kills it, and starts it again.

    The model is the built-in offline one, which is not an LLM. At a terminal the server keeps running afterwards, for
    you to try.
    """
    with _open_folder(keep) as folder, _exit_on_sigterm():
        from swarmkeep.cli.demo.server import DemoServer
        from swarmkeep.cli.render.screen import Screen

        server = DemoServer(folder, port)
        try:
            session_id = _play_conversation(server, Screen())
            if is_terminal(sys.stdin) and is_terminal(sys.stdout):
                _stay_up(server, session_id)
        except KeyboardInterrupt:
            say(f"interrupted: {_STOPPED}")
            raise typer.Exit(INTERRUPTED) from None
        except typer.Exit:
            raise
        except Exception:
            say(f"the end of the server's log ({server.log}):\n{server.read_log_tail()}")
            raise
        finally:
            server.stop()


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Within, SIGTERM is an exception, so that the server is stopped on the way out."""

    def end(number: int, frame: object) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _open_folder(keep: Path | None) -> Iterator[Path]:
    with ExitStack() as stack:
        try:
            if keep is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="swarmkeep-demo-")))
            else:
                keep.mkdir(mode=0o700, parents=True, exist_ok=True)
                folder = keep.absolute()
            # A server that finds no place for its log cannot say so in it.
            try_writing(folder)
        except OSError as error:
            where = keep or "for temporary files"
            raise Refused(f"cannot use the folder {where}: {describe_os_error(error)}") from None
        yield folder


def _play_conversation(server: DemoServer, screen: Screen) -> str:
    from swarmkeep.cli.demo.conversation import DemoConversation, check_log
    from swarmkeep.cli.render.event_summary import format_event_line
    from swarmkeep.cli.sources.conversion import from_client_event
    from swarmkeep.cli.sources.server import open_patient_client

    _put_note(
        screen,
        "The agents are Acme's, a made-up outdoor shop. The model is the built-in offline one: it is not an LLM,",
    )
    _put_note(screen, "it matches your words with the agents' functions. Everything else is real.")
    _put_note(screen, f"Starting a server on {server.database_url} …")
    with show_progress("waiting for the server", "", on_interrupt=lambda _: _STOPPED):
        server.start()
    _put_note(screen, f"It listens on {server.url} (process {server.pid}).")

    def crash() -> None:
        screen.line("")
        screen.line(f"!! kill -9 {server.pid}: the server is dead, in the middle of an answer", "bold red")
        server.kill()
        _put_note(screen, "Starting it again on the same file; the client waits, and then continues its stream …")
        with show_progress("waiting for the server", "", on_interrupt=lambda _: _STOPPED):
            server.start()
        screen.line(
            f"!! a new server, process {server.pid}, has the session as it was; the run continues", "bold green"
        )

    with open_patient_client(server.url) as client:
        story = DemoConversation(client, screen, crash)
        session = story.play(f"demo-{secrets.token_hex(4)}")
        events = list(session.events())
        outcome = check_log(events, story)
    screen.line("")
    screen.write(f"The timeline of session {session.id}, from its events", "bold")
    for event in events:
        line = format_event_line(from_client_event(event), clock_only=True)
        screen.write(line, "yellow" if event.type == "run.resumed" else "")
    screen.write("")
    for sentence in outcome:
        screen.write(f"✓ {sentence}", "green")
    return session.id


def _stay_up(server: DemoServer, session_id: str) -> None:
    text = f"""
The server keeps running at {server.url} until Ctrl-C. In another terminal:

  swarmkeep chat --url {server.url} --session {session_id}
  swarmkeep events {session_id} --url {server.url}
  curl -s {server.url}/v1/sessions -H 'content-type: application/json' -d '{{"id": "mine"}}'
  curl -N {server.url}/v1/sessions/mine/runs -H 'content-type: application/json' \\
       -d '{{"input": "I want to buy a tent.", "stream": true}}'
"""
    try:
        say(text)
        code = server.wait()
    except KeyboardInterrupt:
        say("stopping the server")
        return
    raise Refused(f"the demo's server ended with exit code {code}")


def _put_note(screen: Screen, text: str) -> None:
    screen.line(text, "dim")
