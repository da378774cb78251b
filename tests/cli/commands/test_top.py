"""`swarmkeep top`: what it prints once, and what it shows at a terminal."""

from __future__ import annotations

import io
import signal
import sys
from collections import deque

import pytest
from rich.console import Console

from swarmkeep.cli.activity import Snapshot, describe_rates, format_age, format_count
from swarmkeep.cli.commands.top import View, clean, draw
from swarmkeep.cli.server_source import parse_metrics
from swarmkeep_client import ActiveRun, Client, UsageRow
from tests.cli.command_line import ACME, CommandLine
from tests.cli.pseudo_terminal import CTRL_C, Terminal
from tests.support.processes import ServerProcess

TOP = [sys.executable, "-m", "swarmkeep", "top", "--every", "0.2"]
# The last call of it waits for an approval.
TALK = ("Hello, I'd like to buy a lantern for a hut trip.", "Yes, please place the order.")
UP, DOWN, ESCAPE, ENTER = "\x1b[A", "\x1b[B", "\x1b", "\r"
LEAVES_SCREEN = "\x1b[?1049l"


def begin_waiting(client: Client, session_id: str, title: str) -> str:
    """A session whose run waits for an approval; the run's id."""
    session = client.sessions.create(id=session_id, metadata={"title": title})
    for text in TALK:
        run = session.run(text)
    assert run.status == "waiting"
    return run.id


def make_run(name: str, **given: object) -> ActiveRun:
    plain: dict[str, object] = {
        "id": f"run_{name}",
        "session_id": name,
        "status": "running",
        "agent": "Ann",
        "since": "2026-01-01T00:00:00.000000Z",
        "server": "0123456789abcdef",
        "lease_seconds": 27.2,
        "model_calls": 3,
        "total_tokens": 12_345,
    }
    return ActiveRun(**{**plain, **given})  # type: ignore[arg-type]


def make_snapshot(*runs: ActiveRun, server: dict[str, int] | None = None, rates: tuple[str, ...] = ()) -> Snapshot:
    return Snapshot(
        at="2026-01-01T00:01:15.000000Z",
        counts={"running": len(runs), "waiting": 0, "queued": 0},
        runs=[*runs],
        is_cut=False,
        today={},
        failed_last_hour=2,
        server=server,
        rates=rates,
    )


def make_view(*runs: ActiveRun) -> View:
    return View(make_snapshot(*runs))


def draw_lines(view: View, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height)
    lines = console.render_lines(draw(view, "the database", console), console.options)
    assert len(lines) == height
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


def test_screen_filled_at_any_size() -> None:
    runs = [make_run(f"s{number}", title=f"Fiancé {number} 日本") for number in range(40)]
    view = make_view(make_run("q", status="waiting", queued_runs=2, lease_seconds=None, server=None), *runs)
    lines = draw_lines(view, 80, 24)
    assert lines[4].split() == ["STATUS", "AGE", "AGENT", "TURNS", "TOKENS", "SERVER", "LEASE", "SESSION"]
    assert lines[5].split() == [">", "waiting", "+2", "1m", "Ann", "3", "12.3k", "-", "-", "q"]
    assert lines[6] == "  running        1m Ann                3  12.3k 01234567 27 s    Fiancé 0 日本"
    assert draw_lines(view, 200, 50)[6].endswith("Fiancé 0 日本  s0")
    assert draw_lines(make_view(make_run("s", lease_seconds=-1.0)), 80, 24)[5].split()[-2:] == ["expired", "s"]
    assert draw_lines(view, 10, 3)
    for _ in range(60):
        view.press("down")
    assert any(line.startswith(">") and "Fiancé 39" in line for line in draw_lines(view, 120, 12))


def test_terminal_encoding_limits_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert clean("Fiancé\n日本").plain == "Fianc?\\x0a??"


def test_figures_uncut_if_lines_suffice() -> None:
    view = make_view(*(make_run(f"s{number}") for number in range(40)))
    counts = {"streams": 4, "sessions_driven": 3, "writes_waiting": 0, "takeovers": 12, "run_errors": 7}
    rates = ("42 turns/min, 18.3k tokens/min", "model 1.21 s, tool 0.08 s")
    view.show(make_snapshot(*view.snapshot.runs, server=counts, rates=rates))
    lines = draw_lines(view, 80, 24)
    assert lines[1:5] == [
        "40 running, 0 waiting, 0 queued   42 turns/min, 18.3k tokens/min",
        "model 1.21 s, tool 0.08 s",
        "failed in the last hour 2   leases moved 0   streams 4   take-overs 12",
        "run errors 7",
    ]
    assert (lines[6].split()[0], lines[7][0]) == ("STATUS", ">")
    view.press("c")
    assert "cancel the run in s0? y/n" in draw_lines(view, 40, 6)


def test_keys_choose_and_filter_and_moved_leases_count() -> None:
    view = make_view(make_run("a"), make_run("b", title="A lantern"))
    view.press("down")
    assert view.find_chosen() == view.snapshot.runs[1]
    for key in ("/", "L", "a", "n", "x", "c-h", "c-m"):
        view.press(key)
    assert view.list_runs() == view.snapshot.runs[1:]
    view.press("escape")
    # Another server has the first one now, and the run that was chosen is over.
    view.show(make_snapshot(make_run("a", server="other")))
    assert (view.moved, view.find_chosen()) == (1, view.snapshot.runs[0])


def never(source: object) -> None:
    raise AssertionError("nobody has agreed")


def test_question_shown_whole_and_cuts_marked() -> None:
    view = make_view(make_run("a", status="waiting"))
    view.asked = "approve pay(sum=12)?", never
    assert any(line.startswith("> waiting") for line in draw_lines(view, 80, 24))
    arguments = "".join(f"item {number} 日本, " for number in range(20))
    view.press("n")
    view.asked = f"approve pay({arguments})?", never
    lines = draw_lines(view, 80, 24)
    assert f"approve pay({arguments})? y/n".replace(" ", "") in "".join(lines[3:]).replace(" ", "")
    assert lines[-1].startswith("y yes")
    assert "all of it" in draw_lines(view, 80, 5)[-2]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.4, "0s"), (59.7, "59s"), (90, "1m"), (3599, "59m"), (5400, "1h"), (86399, "23h"), (172800, "2d")],
)
def test_an_age_is_what_has_passed(seconds: float, shown: str) -> None:
    assert format_age(seconds) == shown


@pytest.mark.parametrize(("count", "shown"), [(9_999, "9999"), (12_345, "12.3k"), (5_000_000, "5.0M"), (2e9, "2.0G")])
def test_count_shortened_to_its_unit(count: float, shown: str) -> None:
    assert format_count(count) == shown


def test_rates_cover_minute_and_reset_daily() -> None:
    sums: deque[tuple[float, UsageRow]] = deque()
    assert describe_rates(sums, 0.0, UsageRow(model_calls=5, total_tokens=100, model_ms=1000)) == ()
    rates = describe_rates(sums, 30.0, UsageRow(model_calls=6, total_tokens=200, model_ms=3000))
    assert rates == ("2 turns/min, 200 tokens/min", "model 2.00 s, tool -")
    later = describe_rates(sums, 90.0, UsageRow(model_calls=6, total_tokens=200, model_ms=3000))
    assert later[0].startswith("0 turns/min")
    assert describe_rates(sums, 92.0, UsageRow()) == ()


def test_invalid_metrics_text_counts_nothing() -> None:
    workers = 'swarmkeep_stream_readers{worker="0"} 2.0\nswarmkeep_stream_readers{worker="1"} 3.0\n'
    counts = parse_metrics(f'{workers}swarmkeep_run_errors_total{{code="x"}} 4.0\n')
    assert counts is not None
    assert (counts["streams"], counts["run_errors"], counts["takeovers"]) == (5, 4, 0)
    assert parse_metrics("<html>{") is None
    assert parse_metrics("swarmkeep_stream_readers NaN\n") is None


@pytest.mark.long
def test_printed_once_from_server_or_database(cli: CommandLine) -> None:
    with ServerProcess(cli.folder, agents=[ACME]) as server, Client(server.url) as client:
        run_id = begin_waiting(client, "order", "A lantern")
        shown = cli("top", "--once", "--json", "--url", server.url).json
        table = cli("top", "--once", "--url", server.url).lines
        of_database = cli("top", "--once", "--json", "--database-url", server.database_url).json
        assert "--once prints" in cli.expect_refusal("top", "--url", server.url)
        cli.expect_usage_error("top", "--json")
    assert list(shown) == ["at", "counts", "runs", "is_cut", "today", "failed_last_hour", "server"]
    assert shown["counts"] == {"running": 0, "waiting": 1, "queued": 0}
    assert shown["server"]["streams"] == 0
    (row,) = shown["runs"]
    assert {"id", "session_id", "title", "status", "agent", "since", "age_seconds", "seq"} < set(row)
    assert (row["id"], row["session_id"], row["title"], row["status"]) == (run_id, "order", "A lantern", "waiting")
    assert row["model_calls"] == 1
    assert shown["today"]["model_calls"] >= 3
    ages = [one["runs"][0].pop("age_seconds") for one in (shown, of_database)]
    assert ages == sorted(ages)
    assert of_database["runs"] == [row]
    assert of_database["server"] is None
    assert table[0] == "0 running, 1 waiting, 0 queued"
    assert table[-1].split()[0] == "waiting"
    assert table[-1].split()[-3:] == ["order", "A", "lantern"]


@pytest.mark.long
def test_person_watches_decides_and_regains_terminal(cli: CommandLine) -> None:
    with ServerProcess(cli.folder, agents=[ACME]) as server, Client(server.url) as client:
        first = begin_waiting(client, "first", "A lantern")
        second = begin_waiting(client, "second", "A rope")
        third = begin_waiting(client, "third", "A stove")
        with Terminal([*TOP, "--url", server.url], folder=cli.folder, env={"NO_COLOR": "1"}) as terminal:
            before = terminal.settings()
            terminal.resize(24, 80)
            terminal.wait_for("0 running, 3 waiting", "> waiting", "A lantern")
            terminal.resize(30, 160)
            terminal.reply("A lantern  first", ENTER)
            terminal.reply("run.waiting", ESCAPE)
            terminal.type("/rope" + ENTER)
            terminal.reply("filter: rope", "d")
            terminal.wait_for("deny place_order(")
            terminal.reply("y/n", "y")
            terminal.reply("denied the call in second", ESCAPE)
            terminal.reply("2 waiting", "/stove" + ENTER)
            terminal.reply("filter: stove", "a")
            terminal.reply("approve place_order(", "x")
            terminal.wait_for("nothing was done")
            assert client.sessions.get("third").get_run(third).status == "waiting"
            terminal.type("a")
            terminal.reply("approve place_order(", "y")
            terminal.reply("approved the call in third", ESCAPE)
            terminal.wait_for("1 waiting")
            server.kill()
            terminal.wait_for("no answer from the server")
            server.start()
            terminal.reply("0 running, 1 waiting", "c")
            terminal.reply("cancel the run in first? y/n", "y")
            terminal.wait_for("cancelled the run in first")
            terminal.reply("no run is active, waiting or queued", "q")
            terminal.wait_for(LEAVES_SCREEN)
            assert terminal.wait() == 0
            assert terminal.settings() == before
        assert client.sessions.get("first").get_run(first).status == "cancelled"
        assert client.sessions.get("second").get_run(second).status == "completed"
        decided = [
            event.data["decision"]
            for name in ("second", "third")
            for event in client.sessions.get(name).events()
            if event.type == "approval.decided"
        ]
        assert decided == ["deny", "approve"]
        assert client.sessions.get("third").get_run(third).status == "completed"


@pytest.mark.long
def test_server_only_keys_say_so(cli: CommandLine) -> None:
    with ServerProcess(cli.folder, agents=[ACME]) as server, Client(server.url) as client:
        begin_waiting(client, "order", "A lantern")
    database = [*TOP, "--database-url", server.database_url]
    with Terminal(database, folder=cli.folder, env={"NO_COLOR": "1"}) as terminal:
        terminal.reply("> waiting", "a")
        terminal.reply("--url", "cy")
        terminal.reply("--url", "q")
        terminal.wait_for(LEAVES_SCREEN)
        assert terminal.wait() == 0


@pytest.mark.long
@pytest.mark.parametrize("end", [CTRL_C, "SIGTERM"])
def test_terminal_restored_however_it_ends(end: str, cli: CommandLine) -> None:
    cli("db", "upgrade")
    with Terminal(TOP, folder=cli.folder, env={"PYTHONIOENCODING": "ascii"}) as terminal:
        before = terminal.settings()
        terminal.wait_for("no run is active, waiting or queued")
        if end == CTRL_C:
            terminal.type(CTRL_C)
        else:
            terminal.signal(signal.SIGTERM)
        terminal.wait_for(LEAVES_SCREEN)
        assert terminal.wait() == 128 + (signal.SIGINT if end == CTRL_C else signal.SIGTERM)
        assert terminal.settings() == before
        assert "Traceback" not in terminal.shown
