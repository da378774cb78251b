"""A command that cannot do its work says why in one line and exits with 1."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from swarmkeep.store import schema
from tests.cli.command_line import ACME, CommandLine

MODULES = {
    "broken.py": "import nothing_of_that_name\n",
    "empty.py": "x = 1\n",
    "twice.py": "from swarmkeep import Agent\na = Agent(name='Ann')\nb = Agent(name='Ann')\n",
    "odd.py": (
        "from swarmkeep import Agent\nclass Odd: ...\ndef look(at: Odd): ...\na = Agent(name='Ann', functions=[look])\n"
    ),
    "fine.py": "from swarmkeep import Agent\na = Agent(name='Ann')\n",
}


@pytest.fixture(autouse=True)
def modules(cli: CommandLine) -> None:
    for name, text in MODULES.items():
        (cli.folder / name).write_text(text)


@pytest.mark.parametrize(("command", "more"), [("serve", ""), ("chat", "--url")])
def test_missing_model_names_the_ways(cli: CommandLine, command: str, more: str) -> None:
    said = cli.expect_refusal(command, "--agents", "fine.py")
    for way in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "--offline", more):
        assert way in said


@pytest.mark.parametrize(
    ("agents", "words"),
    [
        ("missing.py", "missing.py"),
        ("no_such_module", "no_such_module"),
        ("broken.py", "nothing_of_that_name"),
        ("empty.py", "no Agent"),
        ("twice.py", "two agents are called 'Ann'"),
        ("odd.py", "look"),
    ],
)
def test_unservable_agents_are_named(cli: CommandLine, agents: str, words: str) -> None:
    assert words in cli.expect_refusal("serve", "--offline", "--agents", agents)


def test_serving_no_agents_is_wrong_use(cli: CommandLine) -> None:
    assert f"--agents {ACME}" in cli.expect_usage_error("serve", "--offline", env={"SWARMKEEP_AGENTS": ","})


def test_missing_database_named_without_password(cli: CommandLine) -> None:
    url = "postgresql://clerk:hunter2@127.0.0.1:1/shop"
    said = cli.expect_refusal("serve", "--offline", "--agents", "fine.py", "--database-url", url)
    assert "127.0.0.1:1/shop" in said
    assert "hunter2" not in said
    said = cli.expect_refusal("doctor", env={"SWARMKEEP_AGENTS": "[shop.py"})
    assert "the setting SWARMKEEP_AGENTS is not valid: it starts with [ but is not a valid JSON list" in said


def test_uncreatable_file_is_named(cli: CommandLine) -> None:
    said = cli.expect_refusal(
        "serve", "--offline", "--agents", "fine.py", "--database-url", "sqlite:///no/such/folder/x.db"
    )
    assert "no/such/folder/x.db" in said


def test_outdated_schema_names_the_command(process: CommandLine, postgres_url: str) -> None:
    said = process.expect_refusal("serve", "--offline", "--agents", "fine.py", "--database-url", postgres_url)
    assert "swarmkeep db upgrade" in said


def test_reachable_address_needs_a_key(cli: CommandLine) -> None:
    assert "key" in cli.expect_refusal("serve", "--offline", "--agents", "fine.py", "--host", "0.0.0.0", "--port", "0")


def test_wrong_setting_named_without_value(cli: CommandLine) -> None:
    said = cli.expect_refusal("serve", "--offline", env={"SWARMKEEP_PORT": "hunter2"})
    assert "SWARMKEEP_PORT" in said
    assert "hunter2" not in said


def test_invalid_database_url_is_wrong_use(cli: CommandLine) -> None:
    assert "sqlite:///" in cli.expect_usage_error("sessions", "list", "--database-url", "swarmkeep.db")


@pytest.mark.parametrize("option", ["--url", "--api-key", "--tenant", "--database-url"])
def test_empty_option_is_refused(cli: CommandLine, option: str) -> None:
    """As of `--url "$URL"` in a script: not to the default database, nor to the default tenant's sessions."""
    assert f"'{option}'" in cli.expect_usage_error("sessions", "delete", "s1", option, "")


@pytest.mark.parametrize(
    "command",
    [
        ["sessions", "list"],
        ["sessions", "show", "one"],
        ["sessions", "fork", "one"],
        ["sessions", "delete", "one"],
        ["events", "one"],
        ["events", "one", "--follow"],
        ["db", "current"],
        ["db", "check"],
        ["db", "downgrade", "base"],
    ],
    ids=" ".join,
)
def test_looking_makes_no_database(cli: CommandLine, command: list[str]) -> None:
    assert "swarmkeep db upgrade" in cli.expect_refusal(*command)
    assert not (cli.folder / "swarmkeep.db").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["sessions", "show", "nobody"],
        ["sessions", "fork", "nobody"],
        ["sessions", "delete", "nobody"],
        ["events", "nobody"],
        ["events", "nobody", "--follow", "--json"],
        ["chat", "--offline", "--agents", "fine.py", "--session", "nobody"],
    ],
    ids=" ".join,
)
def test_missing_session_is_named(cli: CommandLine, command: list[str]) -> None:
    schema.upgrade(f"sqlite:///{cli.folder / 'swarmkeep.db'}")
    assert "'nobody'" in cli.expect_refusal(*command)


@pytest.mark.long
@pytest.mark.parametrize("command", [["sessions", "list"], ["events", "one"], ["chat"]], ids=" ".join)
def test_unresponsive_server_is_named(cli: CommandLine, command: list[str]) -> None:
    assert "http://127.0.0.1:1" in cli.expect_refusal(*command, env={"SWARMKEEP_URL": "http://127.0.0.1:1"})


def test_non_database_file_is_named(cli: CommandLine) -> None:
    (cli.folder / "swarmkeep.db").write_text("This is a shopping list.\n" * 200)
    assert "swarmkeep.db" in cli.expect_refusal("sessions", "list")


def test_binary_input_is_named(process: CommandLine) -> None:
    arguments = ("chat", "--offline", "--agents", ACME)
    told = process(*arguments, text="Grüße\n", env={"PYTHONIOENCODING": "ascii"})
    assert told.code == 1, told
    assert "Traceback" not in told.err
    assert "error: the input is not valid ascii" in told.err


class _WebPage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html>It works!</html>")

    def log_message(self, *args: object) -> None:
        """Nobody reads it."""


def test_impostor_server_is_named(cli: CommandLine) -> None:
    with HTTPServer(("127.0.0.1", 0), _WebPage) as web:
        answering = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
        answering.start()
        try:
            address = f"127.0.0.1:{web.server_port}"
            said = cli.expect_refusal("sessions", "list", "--url", f"http://{address}")
            assert f"http://{address} may not be the address of a Swarmkeep server" in said
            assert "try http://" in cli.expect_refusal("sessions", "list", "--url", f"https://{address}")
        finally:
            web.shutdown()
            answering.join()
