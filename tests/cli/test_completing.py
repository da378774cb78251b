"""The shells' completion names commands, sessions, runs and agents, and says nothing in the middle of a line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command_line import ACME, CommandLine
from tests.cli.conftest import RecordedSession
from tests.support import warm
from tests.support.processes import clean_environment

pytestmark = pytest.mark.long

PROGRAM = str(Path(sys.executable).parent / "swarmkeep")


def complete(folder: Path, line: str, shell: str = "bash", *, cold: bool = False, **env: str) -> str:
    """What a shell's script gets, as the cursor stands at the end of the line; from a process that is warm, or not."""
    # Bash ends words at these, too, and gives one a line.
    words = re.findall(r"(?:[^ :=@\\]|\\.)+|[:=@]+|(?<= )$", line)
    asked = {
        "_SWARMKEEP_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    command, environment = [sys.executable, PROGRAM], clean_environment({**asked, **env})
    if cold:
        run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    else:
        run = warm.run(command, folder=folder, env=environment)
    assert run.stderr == ""
    return run.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_are_named(tmp_path: Path, shell: str) -> None:
    assert "sessions" in complete(tmp_path, "swarmkeep ses", shell, cold=True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_sessions_are_named(tmp_path: Path, recorded: RecordedSession, shell: str) -> None:
    line = f"swarmkeep events --database-url sqlite:///{recorded.file} {recorded.session_id[:6]}"
    assert recorded.session_id in complete(tmp_path, line, shell)


@pytest.mark.parametrize(
    "command",
    [
        "verify", "export", "compare one", "sessions show", "whatif", "check",
        "chat --session", "usage --session", "verify --all --from", "export --all --from",
    ],
)  # fmt: skip
def test_every_session_command_completes_sessions(tmp_path: Path, recorded: RecordedSession, command: str) -> None:
    env = {"SWARMKEEP_DATABASE_URL": f"sqlite:///{recorded.file}"}
    assert complete(tmp_path, f"swarmkeep {command} ", **env).split() == [recorded.session_id]


def test_last_used_session_named_first(process: CommandLine) -> None:
    talk = ("chat", "--offline", "--agents", ACME)
    process(*talk, text="Hello!\n")
    (older,) = process("sessions", "list", "--json").json
    process(*talk, text="Hello!\n")
    newer = process("sessions", "list", "--json").json[0]
    line = f"swarmkeep events --database-url sqlite:///{process.folder / 'swarmkeep.db'} "
    assert complete(process.folder, line).split() == [newer["id"], older["id"]]
    process(*talk, "--session", older["id"], text="And now?\n")
    assert complete(process.folder, line).split() == [older["id"], newer["id"]]


def test_only_session_runs_are_named(process: CommandLine, recorded: RecordedSession) -> None:
    place = f"--database-url sqlite:///{recorded.file}"
    events = process("events", recorded.session_id, *place.split(), "--json").json
    runs = [event["run_id"] for event in events if event["type"] == "run.started"]
    assert len(runs) > 1
    assert complete(process.folder, f"swarmkeep events {recorded.session_id} {place} --run ").split() == runs[::-1]
    assert complete(process.folder, f"swarmkeep events {place} --run ").strip() == ""
    alone = process("events", recorded.session_id, *place.split(), "--json", "--run", runs[0]).json
    assert alone == [event for event in events if event["run_id"] == runs[0]]


@pytest.mark.parametrize("command", ["chat --agent", "agents show", "whatif one --agent", "import file --agent"])
def test_agents_are_named(tmp_path: Path, command: str) -> None:
    assert complete(tmp_path, f"swarmkeep {command} S", SWARMKEEP_AGENTS=ACME) == "Sales\\ Agent\n"


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_word_splitting_shell_gets_plain_names(tmp_path: Path, shell: str) -> None:
    assert "Sales Agent" in complete(tmp_path, f"swarmkeep chat --agents {ACME} --agent S", shell)


def test_bash_gets_the_remaining_suffix(process: CommandLine, recorded: RecordedSession) -> None:
    place = f"--database-url sqlite:///{recorded.file}"
    process("export", recorded.session_id, *place.split(), "-o", "one.jsonl")
    process("import", "one.jsonl", "--as", "a:b:c")
    for typed, offered in (("", "a:b:c"), ("a:", "b:c"), ("a:b", "b:c"), ("a:b:", "c")):
        assert complete(process.folder, f"swarmkeep events {typed}") == f"{offered}\n"
    assert complete(process.folder, "swarmkeep chat --session=a:b") == "b:c\n"
    env = {"SWARMKEEP_AGENTS": ACME}
    assert complete(process.folder, "swarmkeep chat --agent Sales\\ A", **env) == "Sales\\ Agent\n"
    assert complete(process.folder, 'swarmkeep chat --agent "Sal', **env) == "Sales Agent\n"


def test_names_are_inert_in_a_line(tmp_path: Path) -> None:
    names = [
        "Tra$(touch f)",
        "Tra`touch f`",
        'Tra";touch f',
        "Tra';touch f",
        "Tra\\$(touch f)",
        "Tra!!",
        "Tra\nf",
        "Tra b:c;(d)",
    ]
    (tmp_path / "team.py").write_text(
        f"from swarmkeep import Agent\nagents = [Agent(name=name) for name in {names!r}]\n"
    )
    for opened in ("", '"', "'"):
        offered = complete(tmp_path, f"swarmkeep chat --agents team.py --agent {opened}Tra")
        assert offered == ("Tra b:c;(d)\n" if opened else "Tra\\ b:c\\;\\(d\\)\n")
    assert complete(tmp_path, "swarmkeep chat --agents team.py --agent Tra\\ b:") == "c\\;\\(d\\)\n"
    for shell in ("zsh", "fish"):
        assert "touch" not in complete(tmp_path, "swarmkeep chat --agents team.py --agent Tra", shell)


def test_empty_completion_is_silent(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("this is no setting\n")
    assert complete(tmp_path, "swarmkeep events ").strip() == ""
    assert complete(tmp_path, "swarmkeep events --url http://127.0.0.1:1 ").strip() == ""
    assert complete(tmp_path, "swarmkeep chat --agents missing.py --agent ").strip() == ""
    assert {file.name for file in tmp_path.iterdir()} == {".env"}
