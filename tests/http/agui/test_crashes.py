"""Runs whose server dies: what was shown is mended, and the same request joins the run elsewhere."""

from __future__ import annotations

import json

import httpx2
import pytest

from swarmkeep.agui.routes import RunEvents
from swarmkeep.events.codec import Json
from swarmkeep.events.facts import EventDraft, MessageAdded
from swarmkeep.events.records import CompletionRecord
from swarmkeep.events.state import State
from swarmkeep.runs.hub import Item, MessageDeltas, MessageStarted
from tests.chaos.cluster import ServerCluster
from tests.chaos.plans import call_step, make_plan, say_step
from tests.http.agui.client import apply_events, check_events, list_types, make_input, user
from tests.support.logs.recording import record_draft
from tests.support.processes import ServerProcess

pytestmark = pytest.mark.one_database


def record_reply(text: str) -> Item:
    """A reply as the log has it."""
    message = {"role": "assistant", "content": text, "sender": "Front"}
    fact = MessageAdded(message=message, completion=CompletionRecord())
    return record_draft(EventDraft(fact, "run_1", "Front"), 2, "")


def test_empty_reply_is_mended_at_the_end() -> None:
    events = RunEvents("t", "r", {})
    seen = read_frames(events.begin(None))
    started = MessageStarted("run_1", "Front", 2)
    said = [MessageDeltas("run_1", "Front", 2, [{"content": text}]) for text in ("Once upon", "Twice")]
    for items in ([started, said[0]], [started, said[1]], [record_reply("Twice.")]):
        seen += read_frames(events.write(items)[0])
    assert events.is_behind
    seen += read_frames(events.finish(State(), None))
    names = [event["messageId"] for event in check_events(seen) if event["type"] == "TEXT_MESSAGE_START"]
    assert names == ["run_1.0", "run_1.0.1"]
    assert apply_events(seen[:-2], [])[-1]["content"] == "Twice."
    assert list_types(seen)[-2:] == ["MESSAGES_SNAPSHOT", "RUN_FINISHED"]


def test_reply_other_than_what_was_shown() -> None:
    events = RunEvents("t", "r", {})
    seen = read_frames(events.begin(None))
    said = MessageDeltas("run_1", "Front", 2, [{"content": "No"}])
    seen += read_frames(events.write([said, record_reply("Yes.")])[0])
    seen += read_frames(events.finish(State(), None))
    assert [message["content"] for message in apply_events(check_events(seen)[:-2], [])] == ["No", "Yes."]


def read_frames(frames: bytes) -> list[Json]:
    return [json.loads(frame.removeprefix("data: ")) for frame in frames.decode().split("\n\n") if frame]


def read_events(server: ServerProcess, body: Json, until: str = "") -> list[Json]:
    """The events of a stream, up to the first of a kind, or to its end."""
    seen: list[Json] = []
    with httpx2.stream("POST", f"{server.url}/agui/Clerk", json=body, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line[6:]))
                if seen[-1]["type"] == until:
                    break
    return seen


@pytest.mark.long
def test_repeated_request_joins_run_on_another_server(cluster: ServerCluster) -> None:
    plan = make_plan(call_step(("put", {"what": "it"})), say_step("One word, and another, and the last.", pause="gate"))
    first, second = cluster.server(), cluster.server()
    body = make_input("t", [user(plan, "u1")])
    seen = read_events(first, body, until="TEXT_MESSAGE_CONTENT")
    first.kill()
    rest = check_events(read_events(second, body))
    assert list_types(rest)[:3] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT"]
    assert rest[-1]["outcome"] == {"type": "success"}
    held = apply_events(rest, [])
    assert [message["role"] for message in held] == ["user", "assistant", "tool", "assistant"]
    assert held[-1]["content"] == "One word, and another, and the last."
    # What the first server showed of the reply has the same id.
    assert held[-1]["id"] == seen[-1]["messageId"]
    assert cluster.effects.count("end").total() == 1
    cluster.read_checked_log("t")
