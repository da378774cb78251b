"""Exports and imports over HTTP."""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from swarmkeep.events.facts import RecordedEvent, UnknownFact
from swarmkeep.history import swarmkeep_proofs
from swarmkeep.history.archives import Archive, ObjectStore
from swarmkeep.history.export import ExportStart, write_event_line
from swarmkeep.store.hashing import GENESIS, SealedEvent, commitment_of, header_of, link
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import SessionKey
from tests.history.transfer.test_formats import CHATGPT
from tests.http.auth.keys import bearer_headers, key_store
from tests.http.server import PATIENCE_SECONDS, RunningServer, check_problem, server_settings, start_server
from tests.store.sessions import begin_session, draft_user_messages
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

LINES = {"Content-Type": "application/x-ndjson"}


async def test_export_restores_after_loss(service: RunningServer, model: ScriptedModel) -> None:
    model.call("get_weather", {"city": "Rome"}, id="c1")
    model.say("It is sunny.")
    model.say("Still.")
    session = await service.session(id="s", metadata={"team": "sales"})
    await service.run(session, "Weather?")
    await service.session(id="t")
    before = await service.get("/v1/export")
    assert before.headers["content-type"].startswith("application/x-ndjson")
    state, request = await service.get(session), await service.get(f"{session}/events/4/request")
    await service.delete(session)
    report = (await service.client.post("/v1/import", content=before.content, headers=LINES)).json()
    assert (report["imported"], report["present"], report["dry_run"]) == (1, 1, False)
    assert {found["id"]: found["outcome"] for found in report["sessions"]} == {"s": "imported", "t": "present"}
    there = await service.get(f"{session}?at={state.json()['seq']}")
    assert there.content == state.content
    assert (await service.get(f"{session}/events/4/request")).content == request.content
    # And the conversation goes on.
    assert (await service.run(session, "And now?"))["output_text"] == "Still."


async def test_export_filtered_like_a_list(service: RunningServer) -> None:
    for name, team in (("a", "sales"), ("b", "help"), ("c", "sales")):
        await service.session(id=name, metadata={"team": team})

    async def ids(query: str) -> list[str]:
        lines = (await service.get(f"/v1/export?{query}")).content.splitlines()
        return [found["session_id"] for line in lines if "export" in (found := json.loads(line))]

    assert await ids("") == ["c", "b", "a"]
    assert await ids("metadata.team=sales") == ["c", "a"]
    assert await ids("status=idle&agent=nobody") == []
    assert await ids("id=b&id=a&id=b") == ["b", "a"]
    check_problem(await service.get("/v1/export?id=a&id=no"), 404, "session_not_found")
    check_problem(await service.get("/v1/export?id=a/b"), 404, "session_not_found")
    check_problem(await service.get("/v1/export?id=a&status=idle"), 400, "invalid_request")
    check_problem(await service.get("/v1/export?status=lazy"), 400, "invalid_request")
    many = "&".join(f"id={number}" for number in range(201))
    check_problem(await service.get(f"/v1/export?{many}"), 400, "invalid_request")


async def test_bad_file_refused_by_line(service: RunningServer) -> None:
    await service.session(id="s", messages=[{"role": "user", "content": "hello"}])
    text = (await service.get("/v1/export")).content
    await service.delete("/v1/sessions/s")
    for sent, line in ((text.replace(b"hello", b"hallo"), 2), (text[:-1], 3), (b"", 1), (b"{}\n", 1)):
        found = check_problem(
            await service.client.post("/v1/import", content=sent, headers=LINES), 400, "invalid_import"
        )
        assert found["line"] == line
    check_problem(await service.get("/v1/sessions/s"), 404, "session_not_found")


async def test_import_renames_or_only_tries(service: RunningServer) -> None:
    await service.session(id="s")
    text = (await service.get("/v1/export")).content
    tried = await service.client.post("/v1/import?as=t&dry_run=true", content=text)
    assert (tried.json()["dry_run"], tried.json()["imported"]) == (True, 1)
    check_problem(await service.get("/v1/sessions/t"), 404, "session_not_found")
    assert (await service.client.post("/v1/import?as=t", content=text)).json()["sessions"][0]["id"] == "t"
    last = (await service.get("/v1/sessions/t/events")).json()["data"][-1]
    assert (last["type"], last["data"]["source"], last["data"]["by"]) == ("session.imported", "export", None)
    [entry] = (await service.get("/v1/audit")).json()["data"]
    assert (entry["type"], entry["by"], entry["data"]["session_id"]) == ("session.imported", None, "t")
    assert (entry["data"]["digest"], entry["data"]["source"]) == (last["data"]["digest"], "export")
    head = (await service.get("/v1/sessions/s")).json()
    assert (await service.get(f"/v1/sessions/t/verify?head={head['seq']}:{head['hash']}")).json()["valid"]
    await service.patch("/v1/sessions/t", {"metadata": {"a": 1}})
    await service.session(id="u", metadata={"other": True})
    check_problem(await service.client.post("/v1/import?as=u", content=text), 409, "session_exists")
    check_problem(await service.client.post("/v1/import?as=a/b", content=text), 400, "invalid_request")


async def test_import_names_its_key(service: RunningServer) -> None:
    await service.session(id="s")
    text = (await service.get("/v1/export")).content
    made, secret = await key_store(service).create("acme", name="restore")
    headers = bearer_headers(secret)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await service.get("/v1/sessions")).status_code != 401:
            pass
    assert (await service.client.post("/v1/import", content=text, headers=headers)).json()["imported"] == 1
    imported = (await service.get("/v1/sessions/s/events", headers=headers)).json()["data"][-1]
    created, entry = (await service.get("/v1/audit", headers=headers)).json()["data"]
    assert created["type"] == "key.created"
    assert imported["data"]["by"] == entry["by"] == made.label
    assert "restore" in entry["by"]


async def test_oversized_file_is_not_read(sqlite_ready: str) -> None:
    async with start_server(
        server_settings(database_url=sqlite_ready, max_import_bytes=1000, max_body_bytes=10)
    ) as service:
        large = await service.client.post("/v1/import", content=b"x" * 1001)
        assert "1000 bytes (SWARMKEEP_MAX_IMPORT_BYTES)" in check_problem(large, 413, "too_large")["detail"]
        check_problem(await service.client.post("/v1/import", content=b"x" * 900), 400, "invalid_import")


async def test_document_comes_in_requested_format(service: RunningServer) -> None:
    session = await service.session(id="s", messages=[{"role": "user", "content": "<b>hello</b>"}])
    notes = await service.get(f"{session}/transcript")
    assert notes.headers["content-type"] == "text/markdown; charset=utf-8"
    page = await service.get(f"{session}/transcript", headers={"Accept": "text/html,*/*"})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"].endswith("sandbox")
    assert page.text == (await service.get(f"{session}/transcript?format=html")).text
    assert "&lt;b&gt;hello" in page.text
    assert "event 2" not in (await service.get(f"{session}/transcript?at=1")).text
    check_problem(await service.get(f"{session}/transcript?at=9"), 404, "event_not_found")
    check_problem(await service.get("/v1/sessions/no/transcript"), 404, "session_not_found")
    check_problem(await service.get(f"{session}/transcript?format=pdf"), 400, "invalid_request")


async def test_a_conversation_from_elsewhere_goes_on(service: RunningServer, model: ScriptedModel) -> None:
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    known = (await service.get("/v1/agents")).json()["data"][0]["name"]
    report = (await service.post("/v1/import?from=chat&as=talk", talk)).json()
    assert (report["imported"], report["sessions"][0]["id"]) == (1, "talk")
    assert (await service.get("/v1/sessions/talk")).json()["agent"] == known
    model.say("Still here.")
    assert (await service.run("/v1/sessions/talk", "And now?"))["output_text"] == "Still here."
    assert [message["content"] for message in model.requests[-1]["messages"][1:]] == ["Hi", "Hello.", "And now?"]
    assert (await service.post("/v1/import?from=chat&as=talk", talk)).json()["present"] == 1
    check_problem(await service.post("/v1/import?from=chat&agent=Nobody", talk), 404, "agent_not_found")
    check_problem(await service.post("/v1/import?agent=Nobody", talk), 400, "invalid_request")
    check_problem(await service.post("/v1/import?from=elsewhere", talk), 400, "invalid_request")
    wrong = await service.post("/v1/import?from=assistants", talk)
    assert "but messages of Chat Completions" in check_problem(wrong, 400, "invalid_import")["detail"]


async def test_a_format_is_recognised(service: RunningServer) -> None:
    report = (await service.post("/v1/import?from=auto", [CHATGPT])).json()
    assert (report["format"], report["imported"], report["forks"]) == ("chatgpt", 2, 1)
    assert report["left_out"] == {"files that the export only names": 2, "hidden messages": 1, "reasoning": 1}
    unknown = check_problem(await service.post("/v1/import?from=auto", {"notes": 1}), 400, "invalid_import")
    assert "an object with the keys 'notes'" in unknown["detail"]
    exported = (await service.get("/v1/export")).content
    again = await service.client.post("/v1/import?from=auto", content=exported, headers=LINES)
    assert (again.json()["format"], again.json()["present"]) == ("export", 2)
    named = await service.client.post("/v1/import?from=auto&agent=Ann", content=exported, headers=LINES)
    check_problem(named, 404, "agent_not_found")


def write_forged_session(*texts: tuple[str, str]) -> bytes:
    """An export of the session `forged` with events of these types and payloads, whose hashes are all right."""
    sealed, previous = list[SealedEvent](), GENESIS
    for seq, (type_, payload) in enumerate(texts, 1):
        salt, at = bytes(16), "2026-01-01T00:00:00.000000Z"
        commitment = commitment_of(salt, payload)
        previous = link(previous, header_of(seq, type_, 1, None, "Front", at), commitment)
        event = RecordedEvent(
            session_id="forged", seq=seq, type=type_, version=1, run_id=None, agent="Front", at=at,
            hash=previous.hex(), payload=payload, fact=UnknownFact(),
        )  # fmt: skip
        sealed.append(SealedEvent(event, salt, commitment))
    begin = ExportStart(seq=len(sealed), hash=previous.hex(), alone=True)
    return b"".join(write_event_line(one, {}, begin if one.event.seq == 1 else None) for one in sealed)


async def test_imported_event_is_one_stream_frame(service: RunningServer) -> None:
    created = ("session.created", '{"agent":"Front","context_variables":{},"metadata":{}}')
    frame = 'id: 9\nevent: message.added\ndata: {"seq":9}\n\n'
    odd = [(f"new\n{frame}event: x", "{}"), (f"new\r\r{frame}", "{}"), ("new\ud800", "{}"), ("new", '{\r\r"a":\r1}')]
    file = write_forged_session(created, *odd)
    assert (await service.client.post("/v1/import", content=file, headers=LINES)).status_code == 200
    async with service.stream("/v1/sessions/forged/events") as stream:
        frames = await stream.until("session.imported")
    assert [(frame.seq, frame.data["seq"]) for frame in frames] == [(seq, seq) for seq in range(1, 7)]
    assert [frame.data["type"] for frame in frames[1:5]] == [type_ for type_, _ in odd]
    assert frames[4].data["data"] == {"a": 1}


async def test_evidence_is_made_by_server(service: RunningServer) -> None:
    first, second = await service.session(), await service.session()
    names = [path.rpartition("/")[2] for path in (first, second)]
    made = await service.get(f"/v1/evidence?id={names[0]}&id={names[1]}")
    assert (made.status_code, made.headers["content-type"]) == (200, "application/zip")
    with zipfile.ZipFile(io.BytesIO(made.content)) as package:
        assert [one["id"] for one in json.loads(package.read("manifest.json"))["sessions"]] == names
        assert "audit.jsonl" in package.namelist()
        swarmkeep_proofs.check_package(package, io.BytesIO(made.content))
    check_problem(await service.get("/v1/evidence?id=absent"), 404, "session_not_found")
    check_problem(await service.get(f"/v1/evidence?id={names[0]}&size=1"), 404, "checkpoint_not_found")
    size = (await service.get("/v1/checkpoint")).json()["size"]
    assert (await service.get(f"/v1/evidence?id={names[0]}&size={size}")).status_code == 200
    check_problem(await service.get(f"/v1/evidence?id={names[0]}&size={size + 1}"), 404, "checkpoint_not_found")
    late = (await service.session()).rpartition("/")[2]
    check_problem(await service.get(f"/v1/evidence?id={late}&size={size}"), 404, "not_in_checkpoint")
    check_problem(await service.get("/v1/evidence"), 400, "invalid_request")
    check_problem(await service.get("/v1/evidence?" + "&".join(["id=a"] * 201)), 400, "invalid_request")
    service.app.state.service.max_package_bytes = 1000
    check_problem(await service.get(f"/v1/evidence?id={names[0]}"), 413, "too_large")


async def test_export_names_what_the_archive_lost(sqlite_ready: str, tmp_path: Path) -> None:
    """The stream goes on behind it; what can be said before it begins is an answer of its own."""
    folder = tmp_path / "archive"
    old = open_store(sqlite_ready, clock=lambda: datetime.now(UTC) - timedelta(days=365))
    for name in ("a", "b", "c"):
        key = SessionKey("default", name)
        await old.append(key, await begin_session(old, key), draft_user_messages("hello"))
    assert await Archive(old, ObjectStore(folder.as_uri())).archive_due(timedelta(0)) == 3
    await old.close()
    [lost] = folder.glob("default/b/*")
    lost.unlink()
    given = server_settings(database_url=sqlite_ready, archive=folder.as_uri())

    async def read(service: RunningServer, query: str) -> list[tuple[str, str]]:
        lines = list(map(json.loads, (await service.get(f"/v1/export{query}")).content.splitlines()))
        assert lines.pop()["record"] == "end"
        return [(line["session_id"], line.get("code", "")) for line in lines if line.get("seq", 1) == 1]

    async with start_server(given) as service:
        assert await read(service, "") == [("c", ""), ("b", "archive_missing"), ("a", "")]
        assert await read(service, "?id=b&id=a") == [("b", "archive_missing"), ("a", "")]
        assert check_problem(await service.get("/v1/export?id=b"), 409, "history_damaged")["session_id"] == "b"
        assert check_problem(await service.get("/v1/evidence?id=a&id=b"), 409, "history_damaged")["session_id"] == "b"
        await service.session(id="new")
        (folder / "README.txt").unlink()
        [gone] = folder.glob("default/c/*")
        gone.unlink()
        away = "archive_unavailable"
        # It is asked only once.
        assert await read(service, "") == [("new", ""), ("c", away), ("b", away), ("a", away)]
        assert "the archive" in check_problem(await service.get("/v1/export?id=c"), 503, "store_unavailable")["detail"]
        check_problem(await service.get("/v1/evidence?id=c"), 503, "store_unavailable")
