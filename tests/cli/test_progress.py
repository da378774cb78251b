"""Long work shows how far it is, to a person at a terminal only; Ctrl-C ends it in one line, with nothing half."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import sys
import threading
from pathlib import Path

import pytest
import typer

from swarmkeep.cli.opening import open_source
from swarmkeep.cli.sources import SourceOptions, Walk
from swarmkeep.cli.terminal import INTERRUPTED, TrackedFile, WorkIsOver, end_early, put, say, show_progress
from tests.cli.command_line import ACME, PATIENCE_SECONDS, SWARMKEEP, CommandLine, InProcessCommandLine
from tests.cli.pseudo_terminal import Terminal
from tests.support.processes import ServerProcess

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Screen:
    """Standard error as a terminal of its own, and what was written to it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._ours, theirs = pty.openpty()
        self.stream = os.fdopen(theirs, "w")
        self.shown = ""

    def install(self) -> None:
        """To be called in the test: what is patched before it begins, pytest takes back."""
        self._patch.setattr(sys, "stderr", self.stream)

    def wait_for(self, text: str) -> None:
        while text not in ESCAPES.sub("", self.shown):
            assert select.select([self._ours], [], [], PATIENCE_SECONDS)[0], self.shown
            self.shown += os.read(self._ours, 65536).decode()

    def close(self) -> str:
        self.stream.write("(the end)")
        self.stream.close()
        self.wait_for("(the end)")
        os.close(self._ours)
        return self.shown


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    shown = Screen(monkeypatch)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    return shown


def test_terminal_progress_shown_then_cleared(screen: Screen) -> None:
    screen.install()
    with show_progress("verifying", "session", 40, after_seconds=0) as progress:
        progress.advance(30)
        screen.wait_for("30 sessions of 40 sessions")
        progress.advance(10)
        screen.wait_for("40 sessions of 40 sessions")
    # The line is written over to the end.
    assert screen.close().endswith("\r\x1b[2K(the end)")


def test_unknown_total_is_told(screen: Screen) -> None:
    screen.install()
    with show_progress("adding up", "row", after_seconds=0) as progress:
        progress.advance(7)
        screen.wait_for("7 rows, of an unknown number")
    screen.close()


def test_bytes_have_a_readable_unit(screen: Screen) -> None:
    screen.install()
    with show_progress("importing", "byte", 3_000_000, after_seconds=0) as progress:
        progress.advance(1_500_000)
        screen.wait_for("1.5 MB of 3.0 MB")
    screen.close()


def test_lines_are_put_above_it(capsys: pytest.CaptureFixture[str], screen: Screen) -> None:
    screen.install()
    with show_progress("verifying", "session", 2, after_seconds=0) as progress:
        screen.wait_for("0 sessions of 2")
        put("one: valid")
        say("a note")
        screen.wait_for("a note")
        progress.advance()
        screen.wait_for("1 session of 2 sessions")
    assert "\r\x1b[2Ka note" in screen.close()
    # Byte for byte what it is without a terminal.
    assert capsys.readouterr().out == "one: valid\n"


def test_quick_work_is_not_announced(screen: Screen) -> None:
    screen.install()
    with show_progress("verifying", "session", 1, after_seconds=PATIENCE_SECONDS) as progress:
        progress.advance()
    assert screen.close() == "(the end)"


@pytest.mark.parametrize("why", ["a pipe", "quiet", "a terminal without a cursor"])
def test_progress_hidden_without_terminal(why: str, screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    screen.install()
    if why == "a pipe":
        monkeypatch.setattr(sys, "stderr", io.StringIO())
    if why == "a terminal without a cursor":
        monkeypatch.setenv("TERM", "dumb")
    before = threading.active_count()

    def count() -> int:
        raise AssertionError("nobody wants to know")

    with show_progress("verifying", "session", count, quiet=why == "quiet", after_seconds=0):
        assert threading.active_count() == before
    assert screen.close() == "(the end)"


def test_ctrl_c_line_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        with show_progress("comparing", "conversation", 9) as progress:
            progress.advance(4)
            raise KeyboardInterrupt

    with pytest.raises(typer.Exit) as ended:
        work()
    assert ended.value.exit_code == INTERRUPTED == 130
    assert capsys.readouterr().err == "interrupted: 4 of 9 conversations so far; nothing was changed\n"


def test_early_ctrl_c_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    ended = InProcessCommandLine(tmp_path)("agents", "graph", "--agents", "shop.py")
    assert (ended.code, ended.out, ended.err) == (INTERRUPTED, "", "interrupted\n")


def test_ctrl_c_stops_reading_the_file() -> None:
    def work() -> None:
        with show_progress("importing", "byte", 6) as progress:
            kept.append(TrackedFile(io.BytesIO(b"abcdef"), progress))
            assert kept[0].read(3) == b"abc"
            raise KeyboardInterrupt

    kept: list[TrackedFile] = []
    with pytest.raises(typer.Exit):
        work()
    with pytest.raises(WorkIsOver):
        kept[0].read(3)


@pytest.mark.long
def test_interrupted_import_tells_recording(folder: Path, tmp_path: Path) -> None:
    InProcessCommandLine(folder)("export", "--all", "--output", str(tmp_path / "all.jsonl"))
    events = (tmp_path / "all.jsonl").read_text().splitlines(keepends=True)[:-1]
    copies = (line.replace('"session_id":"', f'"session_id":"{number}-') for number in range(2000) for line in events)
    (tmp_path / "large.jsonl").write_text("".join(copies))
    with Terminal([*SWARMKEEP, "import", "large.jsonl"], folder=tmp_path) as terminal:
        terminal.wait_for("importing")
        terminal.interrupt("interrupted: ")
        assert terminal.wait() == INTERRUPTED
        assert ESCAPES.sub("", terminal.shown) == "nothing was recorded\r\n"
    assert InProcessCommandLine(tmp_path)("sessions", "list", "--json").json == []


def test_first_ctrl_c_asks_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with end_early() as asked:
        signal.raise_signal(signal.SIGINT)
        assert asked.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with three sessions: c is the oldest."""
    folder = tmp_path_factory.mktemp("three")
    cli = InProcessCommandLine(folder)
    assert cli("chat", "--offline", "--agents", ACME, text="Hello!\n").code == 0
    (first,) = cli("sessions", "list", "--json").json
    for name in ("c", "b", "a"):
        assert cli("sessions", "fork", first["id"], "--id", name).code == 0
    assert cli("sessions", "delete", first["id"]).code == 0
    return folder


def test_total_counts_processed_sessions_only(folder: Path, tmp_path: Path) -> None:
    cli, file = InProcessCommandLine(folder), str(tmp_path / "all.jsonl")
    assert cli("export", "--all", "--output", file).code == 0
    assert InProcessCommandLine(tmp_path)("import", file, "--tenant", "one").code == 0
    assert InProcessCommandLine(tmp_path)("import", file, "--tenant", "other").code == 0
    url = f"sqlite:///{tmp_path / 'swarmkeep.db'}"
    for tenant, theirs, everybodys in ((None, 0, 6), ("one", 3, 3)):
        with open_source(SourceOptions(database_url=url, tenant=tenant)) as found:
            assert (found.count_sessions(), found.count_sessions(of_all_tenants=True)) == (theirs, everybodys)


def test_verifying_goes_on_from_a_session(folder: Path) -> None:
    cli = InProcessCommandLine(folder)
    names = [line.partition(":")[0] for line in cli("verify", "--all", "--from", "default/b").lines]
    assert names[:2] == ["default/b", "default/c"]
    assert "--all" in cli.expect_usage_error("verify", "b", "--from", "b")
    for nobody in ("default/nobody", "zzz"):
        assert f"'{nobody}'" in cli.expect_refusal("verify", "--all", "--from", nobody)


def test_partial_exports_join_to_whole(folder: Path, tmp_path: Path) -> None:
    where = SourceOptions(database_url=f"sqlite:///{folder / 'swarmkeep.db'}")
    walk = Walk(ends=lambda: walk.done == 2)
    with open_source(where) as found:
        part = b"".join(found.export([], agent=None, status=None, metadata={}, walk=walk))
    assert (walk.done, walk.next) == (2, "c")
    (tmp_path / "part.jsonl").write_bytes(part)
    cli, other = InProcessCommandLine(folder), InProcessCommandLine(tmp_path)
    assert cli("export", "--all", "--from", walk.next, "--output", str(tmp_path / "rest.jsonl")).code == 0
    assert other("import", "part.jsonl").err.startswith("2 sessions imported")
    assert other("import", "rest.jsonl").err.startswith("1 session imported")
    assert {one["id"] for one in other("sessions", "list", "--json").json} == {"a", "b", "c"}


def test_export_from_missing_session_refused(folder: Path) -> None:
    assert "'nobody'" in InProcessCommandLine(folder).expect_refusal("export", "--all", "--from", "nobody")


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "shown", "told"),
    [
        (["verify", "--all"], "verifying", "interrupted: 0 sessions checked, all valid"),
        (["usage"], "adding up", "interrupted: 0 rows so far; nothing was changed"),
        (["prune", "--older-than", "1m"], "looking for old sessions", "interrupted: 0 sessions so far; nothing"),
        (["export", "--all", "-o", "all.jsonl"], "exporting", "interrupted: nothing was written to all.jsonl"),
        (["check", "--all"], "comparing", "interrupted: 0 conversations so far; nothing was changed"),
        (["checkpoint", "-o", "heads"], "recording", "interrupted: nothing was written to heads"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_ctrl_c_ends_command_in_one_line(
    folder: Path, tmp_path: Path, arguments: list[str], shown: str, told: str
) -> None:
    """The server stands still, so that it is known how far the command is."""
    database_url = f"sqlite:///{folder / 'swarmkeep.db'}"
    with ServerProcess(tmp_path, database_url=database_url, agents=[ACME]) as server:
        server.pause()
        with Terminal([*SWARMKEEP, *arguments, "--url", server.url], folder=tmp_path) as terminal:
            terminal.wait_for(shown)
            terminal.interrupt("interrupted: ")
            assert terminal.wait() == INTERRUPTED
            ended = "interrupted: " + ESCAPES.sub("", terminal.shown)
        server.resume()
    assert ended.startswith(told), ended
    assert ended.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir() if file.suffix not in (".log", ".db")] == []


def test_interrupted_command_leaves_stdout_intact(folder: Path) -> None:
    cli = CommandLine(folder)
    assert cli("verify", "--all").out == cli("verify", "--all", "--quiet").out
