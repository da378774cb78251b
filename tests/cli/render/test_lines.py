"""Lines of a terminal: of events, bars, changes, messages and a chat's screen."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from swarmkeep.cli.commands.runs import fill_days, format_bars
from swarmkeep.cli.render import MAX_LENGTH, format_event_line, format_message
from swarmkeep.cli.screen import Screen
from swarmkeep.cli.sources import read_event
from swarmkeep.cli.terminal import has_colours, put_json, put_json_line, put_table, shorten
from swarmkeep.describe import summarize
from swarmkeep.events.facts import FACTS
from swarmkeep.events.wording import escape_controls
from swarmkeep_client import Done, Event, Message, MessageDelta, MessageStarted, Run, StreamItem
from tests.cli.command_line import SWARMKEEP, CommandLine
from tests.cli.conftest import RecordedSession
from tests.cli.pseudo_terminal import Terminal, TtyText

CALL = {"tool_call_id": "call_1", "name": "refund", "arguments": '{"item": "LAMP-1"}'}
ASKED = {"id": "call_1", "type": "function", "function": {"name": "refund", "arguments": '{"item": "LAMP-1"}'}}

KEY = "key_0123456789abcdef (Eve)"

SAID: dict[str, tuple[dict[str, Any], str]] = {
    "session.created": ({"agent": "Ann", "context_variables": {"a": 1}, "metadata": {}}, 'with Ann {"a": 1}'),
    "session.forked": (
        {"from_session_id": "one", "from_seq": 3, "from_hash": "…"},
        "from here on this is a fork of one, which shares events 1 to 3",
    ),
    "session.updated": ({"metadata": {"a": None}, "agent": "Bob"}, 'agent Bob, metadata {"a": null}'),
    "session.imported": (
        {"last_seq": 3, "source": "export", "digest": "d", "by": KEY},
        "Eve (key_0123456789abcdef) imported events 1 to 3, so none of it was decided here: "
        "the file: export, SHA-256 d",
    ),
    "session.taken_over": (
        {"by": KEY, "note": "angry"},
        "Eve (key_0123456789abcdef) takes the conversation over from the agent: angry",
    ),
    "session.handed_back": ({"by": "cli"}, "cli hands the conversation back to the agent"),
    "session.held": (
        {"by": KEY, "reason": "a case"},
        "Eve (key_0123456789abcdef) puts the session on hold: nothing of it is redacted or deleted: a case",
    ),
    "session.released": ({"by": None}, "somebody lifts the hold"),
    "session.assigned": (
        {"to": "billing", "by": KEY, "reason": "an invoice"},
        "Eve (key_0123456789abcdef) assigns the session to billing: an invoice",
    ),
    "feedback.added": (
        {"seq": 4, "value": "down", "comment": "wrong", "by": KEY},
        "Eve (key_0123456789abcdef) does not find the answer good (event 4): wrong",
    ),
    "note.added": (
        {"text": "twice before", "by": KEY},
        "Eve (key_0123456789abcdef) notes for colleagues: twice before",
    ),
    "session.redacted": (
        {"seqs": [2, 4], "reason": "asked for", "by": KEY},
        "Eve (key_0123456789abcdef) redacts 2, 4: asked for",
    ),
    "run.queued": ({"options": {"max_turns": 3}, "messages": []}, "for at most 3 turns"),
    "run.started": (
        {"options": {"max_turns": None, "execute_tools": True, "stream": True}, "by": KEY},
        "Eve (key_0123456789abcdef) starts a run",
    ),
    "message.added": ({"message": {"role": "user", "content": "Hello\n\nthere"}}, "user: Hello there"),
    "message.removed": (
        {"message_seq": 7, "tool_call_id": "call_1", "seqs": [8], "by": KEY},
        "Eve (key_0123456789abcdef) takes out the call of call_1 out of message 7, and with it 8: from here on it is"
        " not sent to models",
    ),
    "tools.listed": (
        {"server": "files", "tools": [{"name": "read"}, {"name": "files_list"}], "schemas": "ab"},
        "files offers read, files_list",
    ),
    "compaction.started": (
        {"reason": "too_long", "keep_turns": 1, "shortened": [3, 5], "last_seq": 7, "result_characters": 9},
        "the history is shortened for the model, because the model's provider found the request too long: results 3,"
        " 5 to 9 characters each; what was said up to message 7 to a summary",
    ),
    "compaction.summarised": (
        {"first_seq": 2, "last_seq": 7, "summary": "Lamps.", "characters": 9},
        "models are sent a summary of messages 2 to 7 in their place: Lamps.",
    ),
    "compaction.failed": (
        {"code": "provider_error", "message": "no"},
        "no summary was made; the conversation continues without one: provider_error: no",
    ),
    "run.hidden": ({"by": KEY}, "Eve (key_0123456789abcdef) makes run run_1 unfindable as a response"),
    "tool.started": ({**CALL, "attempt": 2}, 'Ann starts again, with the same id: attempt 2: refund(item="LAMP-1")'),
    "guardrail.tripped": (
        {"stage": "input", "name": "polite", "message": "Not here.", "error": "KeyError: 'x'"},
        "polite refuses what was said: Not here. (KeyError: 'x')",
    ),
    "handoff.made": ({"from": "Ann", "to": "Bob", "tool_call_id": "call_1"}, "Ann → Bob"),
    "handoff.ignored": ({"from": "Ann", "to": "Bob", "tool_call_id": "call_1"}, "Ann → Bob"),
    "context.updated": ({"patch": {"cart": ["LAMP-1"]}, "tool_call_id": "call_1"}, '{"cart": ["LAMP-1"]}'),
    "approval.requested": ({**CALL, "expires_at": None}, 'an approval is asked for: refund(item="LAMP-1")'),
    "approval.decided": (
        {"tool_call_id": "call_1", "decision": "approve", "by": KEY, "reason": "no", "arguments": '{"n": 1}'},
        "Eve (key_0123456789abcdef) approves call_1, with other arguments: call_1(n=1): no",
    ),
    "run.waiting": (
        {"pending": [{**CALL, "reason": "person"}, {**CALL, "reason": "approval"}]},
        'the run waits for the person who has taken over, and for a decision: refund(item="LAMP-1")',
    ),
    "run.resumed": ({"reason": "recovery"}, "the run is taken over, and continues where it was cut off"),
    "run.completed": ({"stop_reason": "end_turn", "usage": {}, "error": None}, "end_turn"),
    "run.failed": (
        {"stop_reason": "error", "error": {"code": "rate_limited", "message": "slow down"}},
        "error: rate_limited: slow down",
    ),
    "run.cancelled": ({"stop_reason": "cancelled", "error": None}, "cancelled"),
    "run.interrupted": ({"stop_reason": "interrupted", "error": None}, "interrupted"),
}

MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"message": {"role": "assistant", "content": None, "tool_calls": [ASKED]}}, 'assistant: refund(item="LAMP-1")'),
    ({"message": {"role": "assistant", "content": "Well:", "tool_calls": [ASKED]}}, 'assistant: Well: refund(item="L'),
    ({"message": {"role": "tool", "content": "ok"}, "tool": {"name": "refund", "status": "ok"}}, "refund → ok"),
    ({"message": {"role": "tool", "content": "no"}, "tool": {"name": "f", "status": "error"}}, "f (error) → no"),
    ({"message": {"role": "tool", "content": "imported"}}, "tool → imported"),
    ({"message": {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image_url"}]}}, "user: Hi[im"),
]


def make_event(type: str, data: Any) -> Event:
    at = "2026-01-02T03:04:05.678901Z"
    return Event(session_id="one", seq=7, type=type, run_id="run_1", agent="Ann", at=at, data=data)


def format_event(type: str, data: Any, *, clock_only: bool = False) -> str:
    return format_event_line(make_event(type, data), clock_only=clock_only)


def sum_up(type: str, data: Any) -> str:
    return summarize(read_event(make_event(type, data)))


def test_every_type_is_described() -> None:
    assert set(SAID) == set(FACTS)


@pytest.mark.parametrize("type", SAID)
def test_an_event_is_summed_up(type: str) -> None:
    data, said = SAID[type]
    assert " ".join(sum_up(type, data).split()) == said


@pytest.mark.parametrize(("data", "said"), MESSAGES)
def test_message_summarised_by_speaker(data: dict[str, Any], said: str) -> None:
    assert " ".join(sum_up("message.added", data).split()).startswith(said)


@pytest.mark.parametrize("type", [*SAID, "weather.changed"])
@pytest.mark.parametrize("data", [None, {}, {"redacted": True}, ["odd"], "odd", {"message": "odd"}], ids=repr)
def test_odd_events_fit_a_line(type: str, data: Any) -> None:
    assert "\n" not in format_event(type, data)


def test_line_has_seq_time_agent_summary() -> None:
    shown = format_event("run.resumed", {"reason": "recovery"})
    assert shown.split()[:6] == ["7", "2026-01-02T03:04:05.678Z", "Ann", "run.resumed", "the", "run"]
    clock = format_event("run.resumed", {"reason": "recovery"}, clock_only=True)
    assert clock.split()[1] == "03:04:05.678"


def test_a_long_summary_is_cut() -> None:
    shown = format_event("message.added", {"message": {"role": "user", "content": "long " * 1000}})
    assert len(shown[shown.index("user: ") :]) == MAX_LENGTH
    assert shown.endswith("…")


def test_asked_agent_told_with_session() -> None:
    parent = {"session_id": "s", "run_id": "r", "tool_call_id": "c", "depth": 1}
    created = {"agent": "Ann", "context_variables": {}, "parent": parent}
    assert sum_up("session.created", created) == "with Ann asked by s"
    started = {**CALL, "session_id": "below"}
    assert sum_up("tool.started", started) == 'refund(item="LAMP-1"), in session below'
    waiting = {"pending": [{**CALL, "reason": "session", "session_id": "below"}]}
    assert sum_up("run.waiting", waiting) == 'the run waits for a decision in session below: refund(item="LAMP-1")'


# Bars are as long as their values, within the terminal.


def test_bar_length_equals_its_value() -> None:
    rows = [("Sales", 2000), ("Refunds", 1000), ("Triage", 1), ("Nobody", 0)]
    assert list(format_bars(rows, 36, fine=False)) == [
        "Sales    2,000  ####################",
        "Refunds  1,000  ##########",
        "Triage       1  #",
        "Nobody       0",
    ]


def test_eighths_show_small_differences() -> None:
    assert list(format_bars([("a", 16), ("b", 15), ("c", 1)], 17, fine=True)) == [
        "a  16  ██████████",
        "b  15  █████████▍",
        "c   1  ▋",
    ]


def test_nothing_but_zeros_has_no_bars() -> None:
    assert list(format_bars([("a", 0)], 80, fine=True)) == ["a  0"]


@given(some.lists(some.tuples(some.text("ab", max_size=9), some.integers(0, 10**12)), max_size=9), some.booleans())
def test_lines_fit_the_terminal(rows: list[tuple[str, int]], fine: bool) -> None:
    lines = list(format_bars(rows, 60, fine=fine))
    assert len(lines) == len(rows)
    assert all(len(line) <= 60 for line in lines)


def test_day_gaps_shown_year_gaps_hidden() -> None:
    days = [("2026-02-27", 5), ("2026-03-02", 7), ("2029-01-01", 1)]
    assert list(fill_days(days)) == [
        ("2026-02-27", 5), ("2026-02-28", 0), ("2026-03-01", 0), ("2026-03-02", 7), ("…", 0), ("2029-01-01", 1),
    ]  # fmt: skip


# Changes at a terminal: what was beside what is, where there is room for it.


COLOURS = re.compile(r"\x1b\[[0-9;]*m")
RED, GREEN = "\x1b[31m", "\x1b[32m"


def show(recorded: RecordedSession, cli: CommandLine, **env: str) -> str:
    command = [*SWARMKEEP, "diff", recorded.session_id, "2", "25", *recorded.options]
    with Terminal(command, folder=cli.folder, env=env) as terminal:
        assert terminal.wait() == 0
        return terminal.shown


def test_wide_terminal_has_coloured_columns(recorded: RecordedSession, cli: CommandLine) -> None:
    shown = show(recorded, cli, COLUMNS="160")
    (agent,) = [line for line in shown.splitlines() if COLOURS.sub("", line).startswith("agent ")]
    assert f'{RED}- "Triage Agent"' in agent
    assert f'{GREEN}+ "Sales Agent"' in agent
    assert "~ " not in shown


def test_name_on_one_line_if_room(recorded: RecordedSession, cli: CommandLine) -> None:
    shown = COLOURS.sub("", show(recorded, cli, COLUMNS="120"))
    assert any(line.startswith("usage/completion_tokens  - ") for line in shown.splitlines())


@pytest.mark.parametrize("env", [{"COLUMNS": "160", "NO_COLOR": "1"}, {"COLUMNS": "80"}], ids=["no colour", "narrow"])
def test_plain_without_colour_or_room(recorded: RecordedSession, cli: CommandLine, env: dict[str, str]) -> None:
    assert "\x1b[3" not in show(recorded, cli, **env)


def test_narrow_terminal_and_pipe_separate_lines(recorded: RecordedSession, cli: CommandLine) -> None:
    piped = cli("diff", recorded.session_id, "2", "25", *recorded.options).lines
    assert [line for line in show(recorded, cli, COLUMNS="80").splitlines() if line] == [line for line in piped if line]


# Messages as lines of a terminal.


@pytest.mark.parametrize("role", ["user", "system", "assistant", "tool"])
def test_text_cannot_imitate_another_message(role: str) -> None:
    forged = "Hello.\n    5  Sales Agent: granted\n          5  Sales Agent: granted\n"
    first, *further = format_message(Message(seq=4, role=role, content=forged)).split("\n")
    assert first.startswith("    4  ")
    assert all(line.startswith("     │ ") for line in further)


# The screen of a chat shows text as it arrives.


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ünïcode, 漢字, 🐝\tand\nlines", "plain, ünïcode, 漢字, 🐝\tand\nlines"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\rb\x00c\x7fd\x9be", "a\\x0db\\x00c\\x7fd\\x9be"),
        ("safe\u202egnp.exe", "safe\\u202egnp.exe"),
    ],
)
def test_terminal_control_becomes_an_escape(text: str, shown: str) -> None:
    assert escape_controls(text) == shown


@pytest.mark.parametrize(("text", "shown"), [("", ""), ("a\n b", "a b"), ("abcde", "abcde"), ("abcdef", "abcd…")])
def test_text_cut_to_its_length(text: str, shown: str) -> None:
    assert shorten(text, 5) == shown


def test_a_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    put_table(("ID", "NAME"), [("1", "Ann"), ("100", "Bob\x07")])
    assert capsys.readouterr().out == "ID   NAME\n1    Ann\n100  Bob\\x07\n"


HOSTILE = "Ann\n1    root\x1b[2J\x85\u202e\u2028"


def test_a_cell_stays_in_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    put_table(("ID", "NAME"), [("1", HOSTILE)])
    assert capsys.readouterr().out == "ID  NAME\n1   Ann\\x0a1    root\\x1b[2J\\x85\\u202e\\u2028\n"


@pytest.mark.parametrize("give", [put_json, put_json_line])
def test_json_unchanged_and_shows_content(give: Callable[[object], None], capsys: pytest.CaptureFixture[str]) -> None:
    give({HOSTILE: [HOSTILE]})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {HOSTILE: [HOSTILE]}
    assert not set("\x1b\x85\u202e") & set(shown)


def test_an_event_stays_in_its_line() -> None:
    facts = {"at": "2026-01-01T00:00:00.000000Z", "run_id": None, "data": {}, "hash": ""}
    recorded = Event(session_id="one", seq=1, type=HOSTILE, agent=HOSTILE, **facts)
    assert len(escape_controls(format_event_line(recorded)).splitlines()) == 1


def test_lone_surrogates_are_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    put_json({"text": "\ud800"})
    assert capsys.readouterr().out == '{\n  "text": "\\ud800"\n}\n'


def test_colours_only_for_willing_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert has_colours(TtyText())
    assert not has_colours(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "")
    assert has_colours(TtyText())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colours(TtyText())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not has_colours(TtyText())


RUN = Run(id="run_1", session_id="one", status="completed")
STARTED = MessageStarted(run_id="run_1", agent="Ann")


def delta(text: str) -> MessageDelta:
    return MessageDelta(run_id="run_1", agent="Ann", content=text)


def event(type: str, **data: Any) -> Event:
    return Event(session_id="one", seq=1, type=type, run_id="run_1", agent="Ann", data=data)


def answer(text: str | None, *calls: str) -> Event:
    asked = [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in calls]
    return event("message.added", message={"role": "assistant", "content": text, "tool_calls": asked})


def result(text: str, call: str = "f", **tool: Any) -> Event:
    message = {"role": "tool", "tool_call_id": call, "content": text}
    return event("message.added", message=message, tool={"name": "f", "status": "ok", **tool})


STREAMS: dict[str, tuple[list[StreamItem], str]] = {
    "an answer that was streamed is shown once": (
        [STARTED, delta("Hel"), delta("lo."), answer("Hello.")],
        "Ann: Hello.\n",
    ),
    "an answer that was not is shown whole": ([answer("Hello.")], "Ann: Hello.\n"),
    "words before a call": (
        [STARTED, delta("Well:"), answer("Well:", "f"), result("ok")],
        "Ann: Well:\nAnn: f()\n  → ok\n",
    ),
    "several calls": ([STARTED, answer(None, "f", "g")], "Ann: f()\nAnn: g()\n"),
    "calls that run at once": (
        [
            answer(None, "f", "g"),
            event("tool.started", tool_call_id="f", name="f", arguments="{}"),
            event("tool.started", tool_call_id="g", name="g", arguments="{}"),
            result("two", "g"),
            result("one", "f"),
        ],
        "Ann: f()\nAnn: g()\n  → g(): two\n  → f(): one\n",
    ),
    "calls that run one after the other": (
        [
            answer(None, "f", "g"),
            event("tool.started", tool_call_id="f", name="f", arguments="{}"),
            result("one", "f"),
            event("tool.started", tool_call_id="g", name="g", arguments="{}"),
            result("two", "g"),
        ],
        "Ann: f()\nAnn: g()\n  → one\n  → two\n",
    ),
    "an answer that begins anew": ([STARTED, delta("Hel"), STARTED, delta("Hello.")], "Ann: Hel …\nAnn: Hello.\n"),
    "an answer that is cut off": (
        [STARTED, delta("Hel"), event("run.cancelled", stop_reason="cancelled")],
        "Ann: Hel\n  the run was cancelled",
    ),
    "a tool that failed": ([result("no such item", status="error")], "  → error: no such item\n"),
    "a plain handoff": (
        [result('{"assistant": "Bob"}', handoff="Bob"), event("handoff.made", **{"from": "Ann", "to": "Bob"})],
        "  Ann hands over to Bob\n",
    ),
    "a handoff with words": ([result("Ticket 1 is open.", handoff="Bob")], "  → Ticket 1 is open.\n"),
    "a change of context": ([event("context.updated", patch={"a": None})], '  context: {"a": null}\n'),
    "a tool's second start": (
        [event("tool.started", tool_call_id="f", name="f", arguments="{}", attempt=2)],
        "  Ann starts again, with the same id: attempt 2: f()\n",
    ),
    "a recovery": (
        [event("run.resumed", reason="recovery")],
        "  the run is taken over, and continues where it was cut off\n",
    ),
    "a failure": (
        [event("run.failed", stop_reason="error", error={"code": "c", "message": "m"})],
        "  the run failed: c: m\n",
    ),
    "what nobody need see": (
        [
            event("run.started", options={}),
            event("tool.started", tool_call_id="f", name="f", arguments="{}"),
            event("run.completed", stop_reason="end_turn"),
        ],
        "",
    ),
    "an event of a newer server": ([event("weather.changed", sky="grey")], ""),
    "a redacted message": ([Event(session_id="one", seq=1, type="message.added", data=None)], ""),
}


@pytest.mark.parametrize("stream", STREAMS)
def test_run_shown_as_it_happens(stream: str, capsys: pytest.CaptureFixture[str]) -> None:
    items, shown = STREAMS[stream]
    screen = Screen()
    for item in [*items, Done(run=RUN)]:
        screen.show(item)
    screen.end_line()
    out = capsys.readouterr().out
    assert out == shown if shown.endswith("\n") or not shown else out.startswith(shown)
