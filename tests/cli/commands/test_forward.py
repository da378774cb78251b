"""`swarmkeep forward`: the audit log in a SIEM, without gaps, whatever happens on the way."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from ocsf.events.application.api import APIActivity
from ocsf.events.application.application_lifecycle import ApplicationLifecycle
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from swarmkeep.cli.commands import forward
from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.facts import MessageAdded
from swarmkeep.events.records import CompletionRecord
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import Claim, SessionKey
from tests.cli.command_line import ACME, CommandLine, Result
from tests.cli.conftest import RecordedSession, serve_copy
from tests.store.sessions import begin_session, draft_run_completion, draft_run_start
from tests.support.anchors import serving
from tests.support.processes import ServerProcess

Json = dict[str, Any]
MODELS = {6003: APIActivity, 6002: ApplicationLifecycle}


@pytest.fixture
def db(db: CommandLine, recorded: RecordedSession) -> CommandLine:
    """A database with some entries in its audit log."""
    make_entries(db, recorded, "one", "two")
    return db


def make_entries(cli: CommandLine, recorded: RecordedSession, *names: str) -> None:
    for name in names:
        assert cli("sessions", "fork", recorded.session_id, "--id", name).code == 0
        assert cli("sessions", "delete", name, "--reason", f"asked by {name}").code == 0


def read(file: Path) -> list[Json]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def check(events: list[Json]) -> list[int]:
    """The seqs of events, once OCSF's models have taken them."""
    for event in events:
        model = MODELS[event["class_uid"]].model_validate(event)
        assert event["type_uid"] == event["class_uid"] * 100 + model.activity_id.value
        assert event["metadata"]["version"] == "1.5.0"
        assert event["time"] > 1_700_000_000_000
    return [event["metadata"]["sequence"] for event in events]


def test_file_has_each_entry_once(db: CommandLine, recorded: RecordedSession) -> None:
    done = db("forward", "--to", "siem.jsonl")
    assert done.code == 0, done.err
    file = db.folder / "siem.jsonl"
    entries = db("audit", "--json").json
    assert check(read(file)) == [entry["seq"] for entry in entries]
    assert [event["metadata"]["uid"] for event in read(file)] == [entry["hash"] for entry in entries]
    deleted = read(file)[-1]
    assert (deleted["activity_name"], deleted["api"]["operation"]) == ("Delete", "session.deleted")
    assert deleted["resources"] == [{"type": "session", "uid": "two"}]
    assert deleted["unmapped"]["reason"] == "asked by two"
    make_entries(db, recorded, "three")
    assert "forwarded 1 entry" in db("forward", "--to", "siem.jsonl").err
    # As a crash leaves it: a state that is behind, and half a line.
    (db.folder / "siem.jsonl.state").unlink()
    with file.open("ab") as opened:
        opened.write(b'{"half')
    make_entries(db, recorded, "four")
    assert db("forward", "--to", "siem.jsonl").code == 0
    # As a rotation leaves it: no file, and the state.
    before = check(read(file))
    file.rename(db.folder / "siem.jsonl.1")
    make_entries(db, recorded, "five")
    assert db("forward", "--to", "siem.jsonl").code == 0
    assert before + check(read(file)) == [entry["seq"] for entry in db("audit", "--json").json]


def test_outage_leaves_no_gap(db: CommandLine, recorded: RecordedSession) -> None:
    taken: list[Json] = []
    answers = [503, 200, 200]

    def take(path: str, body: bytes) -> tuple[int, str, bytes]:
        status = answers.pop(0)
        if status == 200:
            taken.extend(map(json.loads, body.splitlines()))
        return status, "text/plain", b""

    with serving(take) as url:
        where = ["--to", f"{url}/ingest", "--state", "state.json"]
        assert "did not take the events (503)" in db.expect_refusal("forward", *where)
        assert db("forward", *where).code == 0
        make_entries(db, recorded, "three")
        assert db("forward", *where).code == 0
    assert "no answer from" in db.expect_refusal("forward", "--to", "http://127.0.0.1:1", "--state", "other.json")
    assert check(taken) == [entry["seq"] for entry in db("audit", "--json").json]


@pytest.mark.long
def test_it_goes_on_until_it_is_killed(process: CommandLine, db: CommandLine, recorded: RecordedSession) -> None:
    arrived = threading.Semaphore(0)
    taken: list[Json] = []

    def take(path: str, body: bytes) -> tuple[int, str, bytes]:
        taken.extend(map(json.loads, body.splitlines()))
        arrived.release()
        return 200, "text/plain", b""

    with serving(take) as url:
        where = ["forward", "--to", url, "--state", "state.json"]
        for name in ("three", "four"):
            with process.running(*where, "--every", "1s") as running:
                assert arrived.acquire(timeout=60)
                refused = db.expect_refusal(*where)
                assert "another process forwards by state.json" in refused
                running.kill()
            make_entries(db, recorded, name)
        assert db(*where).code == 0
    seqs = check(taken)
    assert sorted(set(seqs)) == [entry["seq"] for entry in db("audit", "--json").json]
    assert len({event["metadata"]["uid"] for event in taken}) == len(set(seqs))


def test_other_log_is_told(db: CommandLine, recorded: RecordedSession, tmp_path: Path) -> None:
    assert db("forward", "--to", "siem.jsonl").code == 0
    shutil.copy(recorded.file, db.folder / "swarmkeep.db")
    assert "it is another one, or rewritten" in db.expect_refusal("forward", "--to", "siem.jsonl")
    (db.folder / "mine.jsonl").write_text("my own\n")
    assert "has other lines" in db.expect_refusal("forward", "--to", "mine.jsonl")
    for bad in ("", "{}", "[]", "null", '{"seq": 1e400, "hash": ""}', "[" * 100_000, "\0", '{"seq": [], "hash": ""}'):
        (db.folder / "bad.state").write_text(bad)
        assert "which says how far it went" in db.expect_refusal("forward", "--to", "x.jsonl", "--state", "bad.state")
    for other in ('"log": [1]', '"log": "else"', '"log": "events"'):
        (db.folder / "bad.state").write_text(f'{{"seq": 1, "hash": "", {other}}}')
        assert "forwarded there" in db.expect_refusal("forward", "--to", "x.jsonl", "--state", "bad.state")
    assert db("forward", "--to", "https://siem.example").code == 2


@pytest.mark.long
def test_server_log_is_forwarded(cli: CommandLine, recorded: RecordedSession, tmp_path: Path) -> None:
    with serve_copy(recorded, tmp_path) as server:
        assert cli("forward", "--to", "siem.jsonl", "--url", server.url).code == 0
    events = read(cli.folder / "siem.jsonl")
    check(events)
    assert events[-1]["class_uid"] == 6002
    assert events[-1]["activity_name"] == "Start"


def test_events_are_forwarded_by_type(
    db: CommandLine, recorded: RecordedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A line is longer than what is read of the file at first.
    monkeypatch.setattr(forward, "_TAIL_BYTES", 16)
    types = ["--type", "message.added", "--type", "tool.started"]
    wanted = [event for event in db("events", recorded.session_id, "--json").json if event["type"] in types]
    assert wanted
    assert db("forward", "--to", "siem.jsonl", *types).code == 0
    file = db.folder / "siem.jsonl"
    assert check(read(file)) == [event["seq"] for event in wanted]
    assert [event["metadata"]["uid"] for event in read(file)] == [event["hash"] for event in wanted]
    assert read(file)[0]["unmapped"]["data"] == wanted[0]["data"]
    # As a crash leaves it.
    (db.folder / "siem.jsonl.state").unlink()
    with file.open("ab") as opened:
        opened.write(b'{"half')
    assert "forwarded 0 entries" in db("forward", "--to", "siem.jsonl", *types).err
    assert db("sessions", "fork", recorded.session_id, "--id", "one").code == 0
    assert "forwarded 1 entry" in db("forward", "--to", "siem.jsonl", *types, "--type", "session.forked").err
    assert len(read(file)) == len(wanted) + 1
    assert "the audit log" not in db.expect_refusal("forward", "--to", "siem.jsonl")
    assert db("forward", "--to", "audit.jsonl").code == 0
    assert "the audit log was forwarded there" in db.expect_refusal("forward", "--to", "audit.jsonl", *types)


def test_rare_events_are_not_looked_for_twice(db: CommandLine, recorded: RecordedSession) -> None:
    check_rare_events(db, recorded)


@pytest.mark.long
def test_rare_events_of_a_server(cli: CommandLine, recorded: RecordedSession, tmp_path: Path) -> None:
    with serve_copy(recorded, tmp_path) as server:
        check_rare_events(cli, recorded, "--url", server.url)


def check_rare_events(cli: CommandLine, recorded: RecordedSession, *where: str) -> None:
    def asked(*words: str) -> Result:
        return cli(*words, *where)

    state, file = cli.folder / "rare.jsonl.state", cli.folder / "rare.jsonl"
    forward_rare = ("forward", "--to", "rare.jsonl", "--type", "session.forked")
    assert "forwarded 0 entries" in asked(*forward_rare).err
    beginning = json.loads(state.read_text())["cursor"]
    # The place is behind all that was not wanted.
    assert "there are no such events" in asked("feed", "--after", beginning).err
    assert asked("sessions", "fork", recorded.session_id, "--id", "fork-1").code == 0
    assert "forwarded 1 entry" in asked(*forward_rare).err
    [event] = read(file)
    kept = json.loads(state.read_text())
    assert (kept["hash"], kept["cursor"] > event["unmapped"]["cursor"]) == (event["metadata"]["uid"], True)
    assert "forwarded 0 entries" in asked(*forward_rare).err
    assert json.loads(state.read_text()) == kept
    # A file that a crash left with more than the state knows is believed; so is the file alone.
    state.write_text(json.dumps({"seq": 0, "hash": "", "log": "events", "cursor": beginning}))
    assert "forwarded 0 entries" in asked(*forward_rare).err
    assert read(file) == [event]


def list_spans(requests: list[Json]) -> list[Json]:
    for one in requests:
        json_format.ParseDict(one, ExportTraceServiceRequest())  # type: ignore[no-untyped-call]
    return [span for one in requests for part in one["resourceSpans"] for span in part["scopeSpans"][0]["spans"]]


def read_attributes(span: Json) -> Json:
    return {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}


def test_runs_are_forwarded_as_traces(db: CommandLine, recorded: RecordedSession) -> None:
    events = db("events", recorded.session_id, "--json").json
    file = db.folder / "traces.jsonl"
    assert db("forward", "--traces", "--content", "--to", "traces.jsonl").code == 0
    spans = list_spans(read(file))
    ended = [event["run_id"] for event in events if event["type"] == "run.completed"]
    tops = [span for span in spans if "parentSpanId" not in span]
    assert [read_attributes(span)["swarmkeep.run.id"] for span in tops] == ended
    assert {span["parentSpanId"] for span in spans if span not in tops} == {span["spanId"] for span in tops}
    assert len({span["spanId"] for span in spans}) == len(spans)
    answers = [event for event in events if event["data"].get("completion")]
    chats = [read_attributes(span) for span in spans if span["name"].startswith("chat ")]
    assert [json.loads(chat["gen_ai.output.messages"])[0]["role"] for chat in chats] == ["assistant"] * len(answers)
    said = [event["data"]["message"]["content"] for event in events if event["type"] == "message.added"]
    assert json.loads(read_attributes(tops[0])["gen_ai.input.messages"])[0]["parts"][0]["content"] == said[0]
    assert "forwarded 0 entries" in db("forward", "--traces", "--to", "traces.jsonl").err
    # What is said of an answer later brings its run again: the same spans, and the score.
    seq, comment = answers[-1]["seq"], "just right"
    with ServerProcess(db.folder, database_url=f"sqlite:///{db.folder / 'swarmkeep.db'}", agents=[ACME]) as server:
        arguments = ("sessions", "feedback", recorded.session_id, str(seq), "up", "--comment", comment)
        assert db(*arguments, "--url", server.url).code == 0
    assert "forwarded 1 entry" in db("forward", "--traces", "--to", "traces.jsonl").err
    again = list_spans(read(file)[-1:])
    assert {span["spanId"] for span in again} <= {span["spanId"] for span in spans}
    (score,) = [event for span in again for event in span.get("events", ())]
    assert (score["name"], read_attributes(score)["gen_ai.evaluation.score.label"]) == (
        "gen_ai.evaluation.result",
        "up",
    )
    # Without --content nothing that was said.
    assert not {said[0], comment} & set(json.dumps(again).split('"'))
    assert "messages" not in json.dumps(again)


def test_traces_of_days_and_outages(db: CommandLine, recorded: RecordedSession) -> None:
    taken: list[Json] = []
    answers = [503, 200]

    def take(path: str, body: bytes) -> tuple[int, str, bytes]:
        status = answers.pop(0)
        if status == 200:
            taken.append(json.loads(body))
        return status, "text/plain", b""

    with serving(take) as url:
        where = ("forward", "--traces", "--to", f"{url}/v1/traces", "--state", "state.json")
        assert "did not take the events (503)" in db.expect_refusal(*where)
        assert db(*where).code == 0
    assert list_spans(taken)
    day = db("events", recorded.session_id, "--json").json[-1]["at"][:10]
    for days, is_empty in ((("--from", day, "--until", day), False), (("--until", "2026-01-01"), True)):
        assert db("forward", "--traces", "--to", f"{days[-1]}{is_empty}.jsonl", *days).code == 0
        assert (db.folder / f"{days[-1]}{is_empty}.jsonl").exists() is not is_empty
    assert "traces were forwarded there" in db.expect_refusal(
        "forward", "--to", f"{url}/x", "--state", "state.json", "--type", "run.completed"
    )
    assert db("forward", "--traces", "--type", "x", "--to", "y").code == 2
    assert db("forward", "--content", "--to", "y").code == 2


def test_collector_that_drops_spans_is_told_of(db: CommandLine) -> None:
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 3
    answer.partial_success.error_message = "too old \x1b[31m"
    warning = ExportTraceServiceResponse()
    warning.partial_success.error_message = "renamed next year" + "!" * 50_000
    answers = [json_format.MessageToJson(one) for one in (answer, warning, ExportTraceServiceResponse())]
    answers += ["", "<html>", '{"partialSuccess": 3}', "[]", "\udcff"]
    taken: list[bytes] = []

    def take(path: str, body: bytes) -> tuple[int, str, bytes]:
        taken.append(body)
        return 200, "application/json", answers[int(path[1:])].encode(errors="surrogateescape")

    told = [
        "dropped 3 of the spans, and they are not sent again: too old \\x1b[31m",
        "warns: renamed next year" + "!" * 50_000,
    ]
    with serving(take) as url:
        for number in range(len(answers)):
            where = ("forward", "--traces", "--to", f"{url}/{number}", "--state", f"{number}.json")
            done = db(*where)
            assert done.code == 0
            words = [f"{url}/{number} {one}" for one in told[number : number + 1]]
            words = [one if len(one) <= 1_000 else one[:999] + "…" for one in words]
            assert done.err.splitlines() == [*words, "forwarded 2 entries"]
            assert db(*where).err == "forwarded 0 entries\n"
    assert len(taken) == len(answers)


def test_half_a_line_of_traces_is_cut_off(db: CommandLine, recorded: RecordedSession) -> None:
    file = db.folder / "traces.jsonl"
    assert db("forward", "--traces", "--to", "traces.jsonl").code == 0
    before = list_spans(read(file))
    # As a crash or a full disk leaves it.
    (db.folder / "traces.jsonl.state").unlink()
    with file.open("ab") as opened:
        opened.write(b'{"resourceSpans":[{"half')
    assert db("forward", "--traces", "--to", "traces.jsonl").code == 0
    assert list_spans(read(file)) == before * 2
    assert db("forward", "--to", "siem.jsonl").code == 0
    (db.folder / "siem.jsonl.state").unlink()
    assert "has other lines" in db.expect_refusal("forward", "--traces", "--to", "siem.jsonl")
    assert "has other lines" in db.expect_refusal("forward", "--to", "traces.jsonl", "--state", "other.state")


async def record_odd_run(url: str, name: str, at: datetime) -> None:
    """A run of the time and with the names that an imported log may have."""
    store, key = open_store(url, clock=lambda: at), SessionKey("default", name)
    begun = await begin_session(store, key, agent="half \ud83d")
    started = await store.append(key, begun, draft_run_start(begun), lease=Claim("a", 60))
    answer = MessageAdded(
        message={"role": "assistant", "content": "half \ud83d", "sender": "half \ud83d"},
        completion=CompletionRecord(id="half \ud83d", model="\ud83d", finish_reason="\ud83d", duration_ms=1e300),
    )
    answered = await store.append(key, started.state, draft_events("half \ud83d", [answer], "r1"), lease=started.lease)
    await store.append(key, answered.state, draft_run_completion(answered.state), lease=started.lease)
    await store.close()


def test_collector_takes_any_times_and_names(db: CommandLine) -> None:
    url = f"sqlite:///{db.folder / 'swarmkeep.db'}"
    for name, at in (("early", datetime(1, 1, 1, tzinfo=UTC)), ("late", datetime(9999, 12, 31, tzinfo=UTC))):
        asyncio.run(record_odd_run(url, name, at))
    assert db("forward", "--traces", "--content", "--to", "traces.jsonl").code == 0
    spans = list_spans(read(db.folder / "traces.jsonl"))
    assert {"0", str(2**63 - 1)} <= {span["endTimeUnixNano"] for span in spans}


async def record_long_run(url: str) -> None:
    store, key = open_store(url), SessionKey("default", "long")
    begun = await begin_session(store, key)
    state, lease = (
        (started := await store.append(key, begun, draft_run_start(begun), lease=Claim("a", 60))).state,
        started.lease,
    )
    answer = MessageAdded(message={"role": "assistant", "content": "x" * 30_000}, completion=CompletionRecord())
    answered = await store.append(key, state, draft_events("Triage", [answer] * 600, "r1"), lease=lease)
    await store.append(key, answered.state, draft_run_completion(answered.state), lease=lease)
    await store.close()


def test_bodies_are_not_too_large_for_collectors(db: CommandLine) -> None:
    asyncio.run(record_long_run(f"sqlite:///{db.folder / 'swarmkeep.db'}"))
    taken: dict[str, list[Json]] = {"/traces": [], "/events": []}

    def take(path: str, body: bytes) -> tuple[int, str, bytes]:
        if len(body) > 4_000_000:
            return 413, "text/plain", b""
        taken[path] += map(json.loads, body.splitlines())
        return 200, "text/plain", b""

    with serving(take) as url:
        for path, given in (("/traces", ("--traces", "--content")), ("/events", ("--type", "message.added"))):
            done = db("forward", *given, "--to", f"{url}{path}", "--state", f"{path[1:]}.json")
            assert done.code == 0, done.err
    assert len([event for event in taken["/events"] if event["unmapped"]["session_id"] == "long"]) == 601
    spans = list_spans(taken["/traces"])
    assert len([span for span in spans if read_attributes(span)["gen_ai.conversation.id"] == "long"]) == 601
    assert len({span["spanId"] for span in spans}) == len(spans)


def test_redacted_and_deleted_are_not_traced(db: CommandLine, recorded: RecordedSession) -> None:
    events = db("events", recorded.session_id, "--json").json
    secret = next(event for event in events if event["type"] == "message.added")
    said = secret["data"]["message"]["content"]
    assert db("sessions", "redact", recorded.session_id, "--seq", str(secret["seq"]), "--reason", "asked for").code == 0
    assert db("sessions", "fork", recorded.session_id, "--id", "gone", "--at", "1").code == 0
    assert db("forward", "--traces", "--content", "--to", "one.jsonl").code == 0
    spans = list_spans(read(db.folder / "one.jsonl"))
    assert spans
    # The model has repeated it in its answer.
    given = [read_attributes(span).get("gen_ai.input.messages", "") for span in spans]
    assert any(given)
    assert not any(said in text for text in given)
    assert db("sessions", "delete", recorded.session_id, "--reason", "asked for").code == 0
    assert db("forward", "--traces", "--content", "--to", "two.jsonl").code == 0
    assert not (db.folder / "two.jsonl").exists()
