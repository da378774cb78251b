"""`swarmkeep demo`: the whole of it in a minute, without a key, a database server or a network."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from swarmkeep.cli.configure import EXAMPLE_AGENTS
from swarmkeep.cli.options import Commands
from swarmkeep.cli.output import try_writing
from swarmkeep.cli.screen import Screen
from swarmkeep.cli.terminal import (
    INTERRUPTED,
    Refused,
    describe_os_error,
    exit_on_signals,
    is_terminal,
    say,
    show_progress,
)
from swarmkeep_client import Approval, Client, Done, Event, MessageDelta, Run, Session, StreamItem, SwarmkeepError

# The demo's server: a process of its own, to be killed and started again.

START_SECONDS = 45.0
STOP_SECONDS = 15.0
POLL_SECONDS = 0.05
LOG_LINES = 30

# A killed server's runs are taken over when its lease is over, so the demo makes it short; the pause between the
# pieces of an answer is there to be watched, and leaves time to kill the server in the middle of one.
LEASE_SECONDS = 2
PIECE_SECONDS = 0.05


class DemoServer:
    """`swarmkeep serve` on the offline model, with its database and its log in `folder`."""

    def __init__(self, folder: Path, port: int | None) -> None:
        self.database_url = f"sqlite:///{folder / 'swarmkeep.db'}"
        self.log = folder / "server.log"
        self._folder = folder
        self._port = _find_free_port() if port is None else _take_port(port)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        return self._live_process.pid

    def start(self) -> None:
        """Start it, and wait until it takes requests."""
        command = [sys.executable, "-m", "swarmkeep", "serve", "--offline", "--agents", EXAMPLE_AGENTS]
        command += ["--host", "127.0.0.1", "--port", str(self._port), "--database-url", self.database_url]
        # In the demo's folder, and without the settings around it: it shows what everybody gets.
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("SWARMKEEP_", "OPENAI_"))}
        ours |= {"SWARMKEEP_LEASE_SECONDS": str(LEASE_SECONDS), "SWARMKEEP_OFFLINE_DELAY": str(PIECE_SECONDS)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, env=ours, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        self._wait_until_ready()

    def kill(self) -> None:
        """End it as a crash would: at once, without a chance to tidy up."""
        self._live_process.send_signal(signal.SIGKILL)
        self._live_process.wait()

    def stop(self) -> None:
        """Ask it to end, and make sure that it does."""
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def wait(self) -> int:
        """Wait until it ends by itself; its exit code."""
        return self._live_process.wait()

    def read_log_tail(self) -> str:
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-LOG_LINES:])

    @property
    def _live_process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise Refused("the demo's server was not started")
        return self._process

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        with Client(self.url, timeout=5.0, max_retries=0) as client:
            while True:
                code = self._live_process.poll()
                if code is not None:
                    raise Refused(f"the demo's server ended with exit code {code} before it was ready")
                try:
                    if client.health().ready:
                        return
                except SwarmkeepError:
                    # Not listening yet.
                    pass
                if time.monotonic() > deadline:
                    raise Refused(f"the demo's server was not ready within {START_SECONDS:g} s")
                time.sleep(POLL_SECONDS)


def _take_port(port: int) -> int:
    """Return the port, if it is free: the server would say so in its own log only."""
    with socket.socket() as probe:
        if sys.platform != "win32":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            said = f"cannot listen on 127.0.0.1:{port}: {error.strerror or error}"
            raise Refused(f"{said}; choose another --port, or leave the option out") from None
    return port


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# The demo's conversation: five messages, an approval, and a server that dies in the middle of an answer.

MESSAGES = (
    "Hello, I'd like to buy a lantern for a hut trip.",
    "Yes, please place the order.",
    "Something else: please refund my gas stove, STOVE-3, because the flame goes out.",
    "I would like to speak to a manager about this.",
    "Please add a note to the ticket: mornings are the best time to reach me.",
)
CRASH_FROM = 2
"""The first message that the server may die over: by then the client knows that the run is under way."""
WORDS_BEFORE_CRASH = 4
CUSTOMER = {"user_name": "Robin"}


@dataclass
class DemoConversation:
    """Plays the conversation through the client, as any program would; `crash` kills the server and brings it back."""

    client: Client
    screen: Screen
    crash: Callable[[], None]
    runs: list[Run] = field(default_factory=list)
    recovered_run_id: str | None = None

    def play(self, session_id: str) -> Session:
        session = self.client.sessions.create(id=session_id, context_variables=CUSTOMER)
        for number, message in enumerate(MESSAGES):
            self.screen.line("")
            self.screen.write("User", "bold", end=": ")
            self.screen.write(message)
            run = self._listen(session.stream(message), may_crash=number >= CRASH_FROM)
            while run.status == "waiting":
                self.screen.line("!! a person approves: the run continues", "bold green")
                decisions: list[Approval] = [
                    {"tool_call_id": c.tool_call_id, "decision": "approve"} for c in run.pending
                ]
                run = self._listen(session.resume_stream(run.id, approvals=decisions), may_crash=False)
            self._add_completed(run)
        return session.refresh()

    def _listen(self, items: Iterable[StreamItem], *, may_crash: bool) -> Run:
        moment = _CrashTrigger()
        run: Run | None = None
        for item in items:
            self.screen.show(item)
            if isinstance(item, Event) and item.type == "run.resumed" and item.data["reason"] == "recovery":
                self.recovered_run_id = item.run_id
            if isinstance(item, Done):
                run = item.run
            # Should the run have been quicker than the kill, the next one is tried.
            elif may_crash and self.recovered_run_id is None and moment.observe(item):
                may_crash = False
                self.screen.end_line()
                self.crash()
                # The loop goes on: the client finds its stream broken, and takes it up where it was.
        if run is None:
            raise Refused("a run's stream has ended before the run")
        return run

    def _add_completed(self, run: Run) -> None:
        if run.status != "completed":
            raise Refused(f"run {run.id} is {run.status}, not completed")
        self.runs.append(run)


class _CrashTrigger:
    """When to kill the server: a tool's result is in the log, and the answer about it has begun."""

    def __init__(self) -> None:
        self._has_result = False
        self._words = 0

    def observe(self, item: StreamItem) -> bool:
        if isinstance(item, Event) and item.type == "message.added":
            self._has_result = item.data["message"]["role"] == "tool"
            self._words = 0
        elif isinstance(item, MessageDelta) and item.content and self._has_result:
            self._words += 1
        return self._words >= WORDS_BEFORE_CRASH


def check_log(events: list[Event], story: DemoConversation) -> list[str]:
    """Check the session's log of the demo. Raises Refused if it is not what the demo promised."""
    if [event.seq for event in events] != list(range(1, len(events) + 1)):
        raise Refused("the session's events are not numbered without gaps")
    run_id = story.recovered_run_id
    if run_id is None:
        raise Refused("no run was recovered after the server was killed")
    handoffs = [event for event in events if event.type == "handoff.made"]
    turns = [event for event in events if event.type == "message.added" and event.data.get("completion")]
    agents = list(dict.fromkeys(event.agent for event in events if event.agent))
    resumed = next(event for event in events if event.type == "run.resumed" and event.run_id == run_id)
    tools = [event.data for event in events if event.run_id == run_id and event.type == "tool.started"]
    again = [tool["name"] for tool in tools if tool["attempt"] > 1]
    return [
        f"{len(events)} events, numbered 1 to {len(events)} without a gap, in one session with {len(agents)} agents: "
        f"{', '.join(agents)}",
        f"{len(story.runs)} runs, all completed: {len(turns)} turns, {len(handoffs)} handoffs",
        f"recovered: run {run_id} was cut off after event {resumed.seq - 1} when the server died, and continued at "
        f"event {resumed.seq} after the restart",
        f"its tools: {', '.join(tool['name'] for tool in tools)}; started a second time: {', '.join(again) or 'none'}",
    ]


_STOPPED = "the demo's server is stopped"


commands = Commands()


@commands.add("""
    swarmkeep demo
    swarmkeep demo --keep demo-folder
    swarmkeep demo | cat        (without a terminal it ends by itself)
""")
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
    with _open_folder(keep) as folder, exit_on_signals():
        from swarmkeep.cli.screen import Screen

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
    from swarmkeep.cli.render import format_event_line
    from swarmkeep.cli.server_source import open_patient_client

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
        line = format_event_line(event, clock_only=True)
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
