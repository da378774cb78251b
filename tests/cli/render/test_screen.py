"""The screen of a chat shows text as it arrives."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from swarmkeep.cli.conversion import from_client_event
from swarmkeep.cli.render import format_event_line
from swarmkeep.cli.screen import Screen
from swarmkeep.cli.terminal import has_colours, put_json, put_json_line, put_table, shorten
from swarmkeep.events.wording import escape_controls
from swarmkeep_client import Done, Event, MessageDelta, MessageStarted, Run, StreamItem


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
    recorded = from_client_event(Event(session_id="one", seq=1, type=HOSTILE, agent=HOSTILE, **facts))
    assert len(escape_controls(format_event_line(recorded)).splitlines()) == 1


def test_lone_surrogates_are_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    put_json({"text": "\ud800"})
    assert capsys.readouterr().out == '{\n  "text": "\\ud800"\n}\n'


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_only_for_willing_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert has_colours(Tty())
    assert not has_colours(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "")
    assert has_colours(Tty())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colours(Tty())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not has_colours(Tty())


RUN = Run(id="run_1", session_id="one", status="completed")
STARTED = MessageStarted(run_id="run_1", agent="Ann")


def delta(text: str) -> MessageDelta:
    return MessageDelta(run_id="run_1", agent="Ann", content=text)


def event(type: str, **data: Any) -> Event:
    return Event(session_id="one", seq=1, type=type, run_id="run_1", agent="Ann", data=data)


def answer(text: str | None, *calls: str) -> Event:
    asked = [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in calls]
    return event("message.added", message={"role": "assistant", "content": text, "tool_calls": asked})


def result(text: str, **tool: Any) -> Event:
    return event("message.added", message={"role": "tool", "content": text}, tool={"name": "f", **tool})


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
            event("message.added", message={"role": "tool", "tool_call_id": "g", "content": "two"}, tool={"name": "g"}),
            event("message.added", message={"role": "tool", "tool_call_id": "f", "content": "one"}, tool={"name": "f"}),
        ],
        "Ann: f()\nAnn: g()\n  → g(): two\n  → f(): one\n",
    ),
    "calls that run one after the other": (
        [
            answer(None, "f", "g"),
            event("tool.started", tool_call_id="f", name="f", arguments="{}"),
            event("message.added", message={"role": "tool", "tool_call_id": "f", "content": "one"}, tool={"name": "f"}),
            event("tool.started", tool_call_id="g", name="g", arguments="{}"),
            event("message.added", message={"role": "tool", "tool_call_id": "g", "content": "two"}, tool={"name": "g"}),
        ],
        "Ann: f()\nAnn: g()\n  → one\n  → two\n",
    ),
    "an answer that begins anew": ([STARTED, delta("Hel"), STARTED, delta("Hello.")], "Ann: Hel …\nAnn: Hello.\n"),
    "an answer that is cut off": ([STARTED, delta("Hel"), event("run.cancelled")], "Ann: Hel\n  the run was cancelled"),
    "a tool that failed": ([result("no such item", status="error")], "  → error: no such item\n"),
    "a plain handoff": (
        [result('{"assistant": "Bob"}', handoff="Bob"), event("handoff.made", **{"from": "Ann", "to": "Bob"})],
        "  Ann hands over to Bob\n",
    ),
    "a handoff with words": ([result("Ticket 1 is open.", handoff="Bob")], "  → Ticket 1 is open.\n"),
    "a change of context": ([event("context.updated", patch={"a": None})], '  context: {"a": null}\n'),
    "a tool's second start": (
        [event("tool.started", name="f", arguments="{}", attempt=2)],
        "  f() is started again, with the same id: attempt 2\n",
    ),
    "a recovery": ([event("run.resumed", reason="recovery")], "  the run continues where it was cut off\n"),
    "a failure": ([event("run.failed", error={"code": "c", "message": "m"})], "  the run failed: c: m\n"),
    "what nobody need see": (
        [event("run.started"), event("tool.started", name="f", arguments="{}", attempt=1), event("run.completed")],
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
