"""That a server began and ended is in the audit log, with the settings that say who may do what, and no secret."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from swarmkeep import __version__
from swarmkeep.events.codec import decode
from swarmkeep.history.checkpoints import verify_audit_log
from swarmkeep.serve.server import StartRecord, describe_settings
from swarmkeep.serve.settings import Settings
from swarmkeep.store.opening import open_store
from swarmkeep.store.schema import upgrade
from tests.http.server import server_settings
from tests.serve.test_serve import ServeProcess
from tests.support.processes import clean_environment

SECRETS = {"OPENAI_API_KEY": "sk-canary-1234567", "SWARMKEEP_METRICS_TOKEN": "canary-token-123"}


def test_authorisation_settings_are_recorded() -> None:
    described = describe_settings(server_settings(cors_origins=["https://desk.example"], metrics_token="canary-token"))
    assert described["cors_origins"] == ["https://desk.example"]
    assert described["separate_approvers"] is False
    assert described["agents"] == ["tests.http.team"]
    assert described["metrics_token"] is True
    assert {name for name in Settings.model_fields if name.startswith("max_")} <= described.keys()
    assert "canary" not in json.dumps(described)


async def test_start_and_end_entries_verify(ready_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="swarmkeep.serve.server")
    store = open_store(ready_url)
    try:
        for _ in range(2):
            record = StartRecord(store)
            await record.record_start(server_settings(), "127.0.0.1:8000", needs_keys=True)
            await record.record_stop()
        entries = await store.read_audit_log("default")
        assert (await verify_audit_log(store, "default")).valid
    finally:
        await store.close()
    found = [(entry.type, entry.by, decode(entry.payload)) for entry in entries]
    assert [type for type, _, _ in found] == ["server.started", "server.stopped"] * 2
    (_, by, started), (_, _, stopped) = found[:2]
    assert by is None
    assert {"address": "127.0.0.1:8000", "api_keys": True, "version": __version__}.items() <= started.items()
    assert started["settings"] == describe_settings(server_settings())
    assert stopped == {"server": started["server"], "version": __version__, "reason": None}
    assert found[2][2]["server"] != started["server"]
    assert [message.split(",")[0] for message in caplog.messages] == [
        f"swarmkeep {__version__} is up",
        f"swarmkeep {__version__} has stopped",
    ] * 2
    assert "with agents from tests.http.team and the database sqlite:///" in caplog.messages[0]


async def test_unwritable_entry_stops_no_server(sqlite_ready: str, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(sqlite_ready)
    try:
        await store.database.write(lambda connection: connection.execute(text("DROP TABLE trail")))
        record = StartRecord(store)
        await record.record_start(server_settings(), "127.0.0.1:8000", needs_keys=False)
        await record.record_stop()
    finally:
        await store.close()
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "the audit log has no entry server.started",
        "the audit log has no entry server.stopped",
    ]


@pytest.mark.long
async def test_read_only_server_starts(postgres_url: str, tmp_path: Path) -> None:
    await asyncio.to_thread(upgrade, postgres_url)
    store = open_store(postgres_url)
    name = await store.database.read(lambda connection: connection.scalar(text("SELECT current_database()")))
    change = text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    await store.database.write(lambda connection: connection.execute(change))
    await store.close()
    with ServeProcess(tmp_path, SWARMKEEP_DATABASE_URL=postgres_url) as server:
        assert server.request("GET", "/health/ready")[0] == 200
        assert server.request("GET", "/v1/audit")[1]["data"] == []
        assert server.stop() == 0
        assert "the audit log has no entry server.started" in server.output()


@pytest.mark.long
def test_process_starts_are_shown(tmp_path: Path) -> None:
    with ServeProcess(tmp_path, SWARMKEEP_SEPARATE_APPROVERS="true", **SECRETS) as server:
        port = server.port
        assert server.stop() == 0
        server.start()
        server.kill()
        server.start()
        listed = server.request("GET", "/v1/audit")[1]["data"]
        assert server.request("GET", "/v1/audit/verify")[1]["valid"]
        assert server.stop() == 0
    assert [entry["type"] for entry in listed] == [
        "server.started",
        "server.stopped",
        "server.started",
        "server.started",
    ]
    assert listed[0]["data"]["address"] == f"127.0.0.1:{port}"
    assert listed[0]["data"]["settings"]["separate_approvers"] is True
    assert listed[0]["data"]["api_keys"] is False
    for file in tmp_path.glob("*.db*"):
        assert b"canary" not in file.read_bytes()
    command = [sys.executable, "-m", "swarmkeep", "audit", "--database-url", f"sqlite:///{tmp_path / 'swarmkeep.db'}"]
    shown = subprocess.run(command, env=clean_environment(), cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"server.started  127.0.0.1:{port}" in shown.stdout
    assert shown.stdout.count("server.stopped") == 2
