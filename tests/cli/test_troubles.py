"""Every command, and what may be the matter around it: it says so in one sentence, and what to do about it."""

from __future__ import annotations

import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

import pytest

import swarmkeep_agents.acme
from swarmkeep.store.person_keys import make_person
from tests.cli.command_line import ACME, SWARMKEEP, CommandLine, InProcessCommandLine, Result, find_refusal
from tests.cli.conftest import RecordedSession
from tests.cli.test_help import COMMANDS
from tests.support.disk import full_disk
from tests.support.privileges import bound_by_permissions
from tests.support.processes import clean_environment

AGENTS = ("--agents", ACME)
EVALS = str(Path(swarmkeep_agents.acme.__file__).parent / "evals")
LATER = "9999"
HOOK = "wh_0123456789abcdef"
# Nothing is so old: it stays empty.
ARCHIVE = f"file://{gettempdir()}/swarmkeep-archive"


@dataclass(frozen=True)
class Call:
    """A call of a command that does its work, as long as nothing is the matter.

    `reads` and `writes` say what it does to the database around it, `puts` whether it gives data on standard output.
    """

    arguments: tuple[str, ...]
    reads: bool = True
    writes: bool = False
    puts: bool = True
    text: str = ""


# `ID` is a session of the database. A command without a call fails the first test.
CALLS = {
    "agents graph": Call(("agents", "graph", *AGENTS), reads=False),
    "agents show": Call(("agents", "show", "Triage Agent", *AGENTS), reads=False),
    "anchor": Call(("anchor",), writes=True),
    "audit": Call(("audit",)),
    "retention": Call(("retention",), puts=False),
    "backup": Call(("backup", "new.backup"), puts=False),
    "blob": Call(("blob", "ID", "0" * 64, "-o", "picture.png"), puts=False),
    "case": Call(("case", "ID")),
    "chat": Call(("chat", "--offline", *AGENTS), writes=True, text="Hello!\n"),
    "check": Call(("check", "ID", *AGENTS)),
    "checkpoint": Call(("checkpoint",)),
    "compare": Call(("compare", "ID", "ID")),
    "archive": Call(("archive", "--older-than", "90d", "--to", ARCHIVE), writes=True, puts=False),
    "feed": Call(("feed",), writes=True),
    "db check": Call(("db", "check"), puts=False),
    "db current": Call(("db", "current")),
    "db downgrade": Call(("db", "downgrade", "0005"), writes=True),
    "db recount": Call(("db", "recount"), writes=True, puts=False),
    "db stamp": Call(("db", "stamp", "--unstamped"), writes=True, puts=False),
    "db reindex": Call(("db", "reindex"), writes=True, puts=False),
    "db upgrade": Call(("db", "upgrade")),
    "demo": Call(("demo", "--keep", "demo"), reads=False),
    "diff": Call(("diff", "ID", "1", "5")),
    "doctor": Call(("doctor", "--offline", *AGENTS)),
    "eval": Call(("eval", EVALS, "--offline", *AGENTS), reads=False),
    "events": Call(("events", "ID")),
    "forward": Call(("forward", "--to", "siem.jsonl"), puts=False),
    "evidence": Call(("evidence", "ID", "-o", "case.zip"), puts=False),
    "export": Call(("export", "ID")),
    "import": Call(("import", "all.jsonl", "--as", "other"), writes=True),
    "init": Call(("init", "shop"), reads=False),
    "webhooks create": Call(("webhooks", "create", "https://example.com/"), writes=True),
    "webhooks list": Call(("webhooks", "list", "--json")),
    "webhooks update": Call(("webhooks", "update", HOOK, "--state", "paused"), writes=True, puts=False),
    "webhooks rotate": Call(("webhooks", "rotate", HOOK), writes=True, puts=False),
    "webhooks resend": Call(("webhooks", "resend", HOOK, "1-1"), writes=True, puts=False),
    "webhooks delete": Call(("webhooks", "delete", HOOK), writes=True, puts=False),
    "webhooks test": Call(("webhooks", "test", HOOK), puts=False),
    "webhooks deliveries": Call(("webhooks", "deliveries", HOOK), puts=False),
    "keys create": Call(("keys", "create"), writes=True),
    "keys list": Call(("keys", "list", "--json")),
    "keys revoke": Call(("keys", "revoke", "key_0123456789abcdef"), writes=True, puts=False),
    "erase": Call(("erase", "anna", "--reason", "asked for"), writes=True),
    "prune": Call(("prune", "--older-than", "30d"), puts=False),
    "replay": Call(("replay", "ID")),
    "request": Call(("request", "ID", "4")),
    "restore": Call(("restore", "all.backup", "--database-url", "sqlite:///new.db"), puts=False),
    "serve": Call(("serve", "--offline", "--port", "0", *AGENTS), writes=True),
    "sessions answer": Call(("sessions", "answer", "ID", "Hello."), reads=False, puts=False),
    "sessions assign": Call(("sessions", "assign", "ID", "billing"), reads=False, puts=False),
    "sessions feedback": Call(("sessions", "feedback", "ID", "4", "up"), reads=False, puts=False),
    "sessions note": Call(("sessions", "note", "ID", "A note."), reads=False, puts=False),
    "sessions compact": Call(("sessions", "compact", "ID"), reads=False, puts=False),
    "sessions rename": Call(("sessions", "rename", "ID", "A title"), writes=True),
    "sessions counts": Call(("sessions", "counts")),
    "sessions hold": Call(("sessions", "hold", "ID", "--reason", "a case"), writes=True),
    "sessions release": Call(("sessions", "release", "ID")),
    "sessions delete": Call(("sessions", "delete", "ID"), writes=True, puts=False),
    "sessions fork": Call(("sessions", "fork", "ID"), writes=True),
    "sessions handback": Call(("sessions", "handback", "ID"), reads=False, puts=False),
    "sessions list": Call(("sessions", "list")),
    "sessions redact": Call(("sessions", "redact", "ID", "--seq", "3", "--reason", "asked for"), writes=True),
    "sessions remove-message": Call(("sessions", "remove-message", "ID", "3"), writes=True, puts=False),
    "sessions show": Call(("sessions", "show", "ID")),
    "sessions takeover": Call(("sessions", "takeover", "ID"), reads=False, puts=False),
    "top": Call(("top", "--once")),
    "runs": Call(("runs",)),
    "usage": Call(("usage",)),
    "verify": Call(("verify", "ID")),
    "whatif": Call(("whatif", "ID", "--at", "2", "--offline", *AGENTS), writes=True),
}
# The settings that a command is about.
NEEDED = {"db stamp": {"SWARMKEEP_INTEGRITY_KEY": "a key"}}
# What a command needs to be tried for: a picture or a key that is there, a server.
_ON_A_SERVER = ("answer", "assign", "compact", "feedback", "handback", "note", "takeover")
_NEED_A_SERVER = {f"sessions {name}" for name in _ON_A_SERVER}
_OF_A_WEBHOOK = {f"webhooks {name}" for name in ("update", "rotate", "resend", "delete", "test", "deliveries")}
_NEEDS_MORE = {"blob", "keys revoke"} | _OF_A_WEBHOOK | _NEED_A_SERVER
# They look at what others refuse: what is the matter is their answer.
_LOOK_AT_ANYTHING = {"db current", "doctor"}


@dataclass(frozen=True)
class Site:
    """A folder with a database, an export, a backup and a session in it."""

    folder: Path
    session_id: str

    @property
    def cli(self) -> CommandLine:
        return InProcessCommandLine(self.folder)

    def run(self, name: str, *more: str, cli: CommandLine | None = None, env: dict[str, str] | None = None) -> Result:
        """Run a command of the table, by default in this process."""
        env = NEEDED.get(name, {}) | (env or {})
        return (cli or self.cli)(*self.arguments(name), *more, text=CALLS[name].text, env=env)

    def refuse(self, name: str, *, env: dict[str, str] | None = None) -> str:
        return find_refusal(self.run(name, env=env))

    def arguments(self, name: str) -> list[str]:
        return [self.session_id if argument == "ID" else argument for argument in CALLS[name].arguments]


@pytest.fixture(scope="module")
def full_site(tmp_path_factory: pytest.TempPathFactory, recorded: RecordedSession) -> Site:
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(recorded.file, folder / "swarmkeep.db")
    with closing(sqlite3.connect(folder / "swarmkeep.db")) as database, database:
        key = ("k", "default", make_person("default", "anna"), "2026-01-01T00:00:00Z", "", b"s" * 32)
        database.execute(
            "INSERT INTO person_keys (id, tenant, person, created_at, erased_at, secret) VALUES (?,?,?,?,?,?)", key
        )
    cli = InProcessCommandLine(folder)
    assert cli("export", "--all", "--output", "all.jsonl").code == 0
    assert cli("backup", "all.backup").code == 0
    return Site(folder, recorded.session_id)


@pytest.fixture
def site(tmp_path: Path, full_site: Site) -> Site:
    for file in full_site.folder.iterdir():
        shutil.copy(file, tmp_path / file.name)
    return Site(tmp_path, full_site.session_id)


def each_command(chosen: set[str] | None = None, *, without: Set[str] = frozenset()) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", [name for name in sorted(chosen or set(CALLS)) if name not in without])


READERS = {name for name, call in CALLS.items() if call.reads}
WRITERS = {name for name, call in CALLS.items() if call.writes}
# They run for long, or run others.
SERVING = {"demo", "serve"}


def test_every_command_is_in_the_table() -> None:
    assert set(CALLS) == {" ".join(path) for path in COMMANDS}


@each_command(without=SERVING | _NEEDS_MORE)
def test_command_works_without_trouble(site: Site, name: str) -> None:
    result = site.run(name)
    assert result.code == 0, result
    assert bool(result.out) == CALLS[name].puts
    assert "warning" not in result.err


@each_command(READERS, without=_LOOK_AT_ANYTHING | {"restore"})
def test_later_release_database_is_untouched(site: Site, name: str) -> None:
    site.cli.change_database(f"UPDATE alembic_version SET version_num = '{LATER}'")
    said = site.refuse(name)
    assert f"revision {LATER}" in said
    assert "upgrade swarmkeep" in said


@each_command(_LOOK_AT_ANYTHING)
def test_later_release_database_is_recognised(site: Site, name: str) -> None:
    site.cli.change_database(f"UPDATE alembic_version SET version_num = '{LATER}'")
    result = site.run(name)
    assert LATER in result.out
    assert "later release" in result.err or "later release" in result.out


@each_command({"db upgrade", "db downgrade"})
@pytest.mark.parametrize("revision", ["0077", "nonsense", "-99"])
def test_invalid_revision_told_from_valid(site: Site, name: str, revision: str) -> None:
    said = CommandLine(site.folder).expect_refusal(*name.split(), "--", revision)
    assert f"'{revision}'" in said
    assert "0001" in said


def test_empty_database_has_no_downgrade(site: Site) -> None:
    (site.folder / "empty.db").touch()
    said = site.cli.expect_refusal("db", "downgrade", "0005", "--database-url", "sqlite:///empty.db")
    assert said.endswith("is empty: there is nothing to downgrade")


@each_command(READERS, without=_LOOK_AT_ANYTHING)
def test_missing_driver_is_named(site: Site, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # As an installation without the extra has it.
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    arguments = [part for part in site.arguments(name) if not part.startswith("sqlite:")]
    url = "postgresql://clerk@127.0.0.1:1/shop"
    flag = [] if "--database-url" in arguments else ["--database-url"]
    said = find_refusal(site.cli(*arguments, *flag, url, text=CALLS[name].text, env=NEEDED.get(name)))
    assert "pip install 'swarmkeep[postgres]'" in said


def test_the_library_for_signatures_is_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    (site.folder / "key.pem").write_text("a key")
    for module in [name for name in sys.modules if name.partition(".")[0] == "cryptography"] + ["cryptography"]:
        monkeypatch.setitem(sys.modules, module, None)
    said = site.cli.expect_refusal("checkpoint", "--signing-key", "key.pem")
    assert "pip install 'swarmkeep[signing]'" in said


def test_the_library_for_traces_is_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"] + ["opentelemetry"]:
        monkeypatch.setitem(sys.modules, module, None)
    said = site.refuse("serve", env={"SWARMKEEP_TRACES": "on"})
    assert "pip install 'swarmkeep[otel]'" in said


@each_command(set(CALLS) - SERVING - _NEED_A_SERVER - {"init"})
def test_broken_settings_line_told_once(site: Site, name: str) -> None:
    (site.folder / ".env").write_text("SWARMKEEP_LOG_LEVEL=info\nhunter2 is no setting\n")
    said = site.run(name).err
    assert said.count("line 2 of ") == 1, said
    assert f"{site.folder / '.env'} is ignored: write NAME=VALUE" in said
    assert "dotenv" not in said
    assert "hunter2" not in said


@each_command({"serve"})
def test_server_tells_broken_line_once(site: Site, name: str) -> None:
    (site.folder / ".env").write_text("hunter2 is no setting\n")
    with taken_port() as port:
        said = site.run(name, "--port", port, cli=CommandLine(site.folder)).err
    assert said.count("line 1 of ") == 1, said


@contextmanager
def taken_port() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield str(taken.getsockname()[1])


@each_command({"serve", "demo"})
def test_taken_port_told_in_one_line(site: Site, name: str) -> None:
    with taken_port() as port:
        result = site.run(name, "--port", port, cli=CommandLine(site.folder))
    said = find_refusal(result)
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in said
    assert "choose another --port" in said


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    try:
        with bound_by_permissions():
            yield
    finally:
        folder.chmod(0o755)


@each_command(WRITERS | {"backup", "demo", "evidence", "forward", "init", "restore"}, without=_NEEDS_MORE | {"import"})
def test_read_only_folder_is_told(site: Site, name: str) -> None:
    with read_only(site.folder):
        said = site.refuse(name)
    assert "writable" in said or "choose a folder that you may write to" in said or "permission denied" in said


@each_command(READERS, without=WRITERS | SERVING | _NEEDS_MORE | {"backup", "evidence", "forward", "restore", "doctor"})
def test_read_only_folder_is_readable(site: Site, name: str) -> None:
    with read_only(site.folder):
        result = site.run(name)
    assert result.code == 0, result


def test_doctor_tells_read_only_folder(site: Site) -> None:
    with read_only(site.folder):
        result = site.run("doctor")
    assert "is read-only: make it and its folder writable" in result.out
    assert result.code == 1


@pytest.mark.long
def test_output_on_read_only_system_told(site: Site) -> None:
    """Which refuses more than permissions do: to take away what is not there, too."""
    program = 'mount --bind . . && mount -o remount,ro,bind . && cd "$PWD" || exit 77; exec "$@"'
    unshare = shutil.which("unshare") or pytest.skip("needs a mount of its own")
    result = subprocess.run(
        [unshare, "--map-root-user", "--mount", "sh", "-c", program, "sh", *SWARMKEEP, "export", "--all", "-o", "out"],
        cwd=site.folder, env=clean_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if result.returncode == 77 or result.stderr.startswith("unshare: "):
        pytest.skip("the system gives nobody a mount of their own")
    assert find_refusal(Result(result.returncode, result.stdout, result.stderr)) == (
        "error: cannot write out: Read-only file system; choose a folder that you may write to"
    )


@each_command(WRITERS | {"backup", "demo", "eval", "init", "restore"}, without=_NEEDS_MORE)
def test_full_disk_is_told(site: Site, name: str) -> None:
    before = {file.name for file in site.folder.iterdir()}
    with full_disk():
        said = site.refuse(name)
    assert "full" in said or "free some space" in said
    left = {file.name for file in site.folder.iterdir()} - before
    # Nothing half: SQLite's own files, one that it made and left empty, and a folder with nothing in it.
    assert left <= {"swarmkeep.db-shm", "swarmkeep.db-wal", "new.db", "new.db-shm", "new.db-wal", "demo"}
    assert name != "demo" or not list((site.folder / "demo").iterdir())


def test_doctor_tells_full_disk(site: Site) -> None:
    before = {file.name for file in site.folder.iterdir()}
    with full_disk():
        result = site.run("doctor")
    assert f"4 MB cannot be written in {site.folder}: " in result.out
    assert "free some space" in result.out
    assert find_refusal(result, out=None).endswith("checks failed: disk")
    assert {file.name for file in site.folder.iterdir()} == before


@pytest.mark.long
def test_full_disk_at_commit_is_told(site: Site) -> None:
    said: list[str] = []
    # From what holds no more than SQLite's index of its log to what holds all of the log.
    for size in range(40_000, 400_000, 15_000):
        with full_disk(size):
            result = site.run("sessions fork")
        if result.code == 0:
            break
        said.append(find_refusal(result))
    at_commit = [line for line in said if "failed during a commit" in line]
    assert at_commit
    assert all("its disk may be full" in line or "free some space" in line for line in said)
    assert all(line.endswith("check whether it was recorded") for line in at_commit)
    assert "sqlalche" not in "".join(said)
    assert site.run("verify").code == 0


def run_with(redirection: str, site: Site, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process whose shell closes or leads away its streams."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *SWARMKEEP, *arguments],
        cwd=site.folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
def test_closed_streams_are_no_trouble(site: Site) -> None:
    for redirection, arguments in (
        (">&-", ("export", "--all")),
        ("<&-", ("chat", "--offline", *AGENTS)),
        # Where nothing took its number, the database would be written to by what is said.
        ("<&- >&- 2>&-", ("keys", "create")),
        ("| head -n 1", ("verify", "--all")),
    ):
        result = run_with(redirection, site, *arguments)
        assert (result.returncode, "Traceback" in result.stderr) == (0, False), result
    assert len(site.cli("keys", "list", "--json").json) == 1
    assert site.run("verify").code == 0


@pytest.mark.long
def test_missing_folder_is_told(site: Site) -> None:
    gone = site.folder / "gone"
    program = f'rmdir "{gone}"; exec "$@"'
    for name in ("events", "whatif"):
        gone.mkdir(exist_ok=True)
        result = subprocess.run(
            ["sh", "-c", program, "sh", *SWARMKEEP, *site.arguments(name)],
            cwd=gone, env=clean_environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert find_refusal(Result(result.returncode, result.stdout, result.stderr)) == (
            "error: the current folder does not exist any more; change to another one"
        )


@pytest.mark.long
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
@each_command({name for name, call in CALLS.items() if call.puts} - {"demo"})
def test_blocked_output_is_told(site: Site, name: str) -> None:
    call = CALLS[name]
    with Path("/dev/full").open("w") as full:
        result = CommandLine(site.folder).to(full.fileno(), *site.arguments(name), text=call.text)
    assert find_refusal(result) == (
        "error: cannot write the output: No space left on device; free some space, or write somewhere else"
    )


@pytest.mark.long
@each_command(without=SERVING | _NEEDS_MORE)
def test_ascii_terminal_is_shown_escapes(site: Site, name: str) -> None:
    result = site.run(name, cli=CommandLine(site.folder), env={"PYTHONIOENCODING": "ascii"})
    assert result.code == 0, result
    assert "Traceback" not in result.err
    if name == "events":
        assert "\\u20" in result.out
