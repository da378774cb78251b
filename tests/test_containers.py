"""The image and the compose file, as far as they can be checked without Docker: what they say fits the server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from swarmkeep.events.codec import Json
from swarmkeep.serve.settings import Settings
from swarmkeep.store.urls import PostgresServer, locate
from tests.cli.command_line import CommandLine
from tests.support.processes import ServerProcess
from tests.support.source import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
SETTINGS = {f"SWARMKEEP_{name.upper()}" for name in Settings.model_fields} | {"OPENAI_API_KEY", "OPENAI_BASE_URL"}


@pytest.fixture
def compose() -> Json:
    found: Json = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return found


def test_services_share_network_and_start_order(compose: Json) -> None:
    services = compose["services"]
    assert set(services) == {"db", "migrate", "server"}
    assert not any("network_mode" in service for service in services.values())
    # Nobody outside reaches the database; the server is published to its own machine unless told otherwise.
    assert [name for name, service in services.items() if "ports" in service] == ["server"]
    assert services["server"]["ports"] == ["${SWARMKEEP_PUBLISH:-127.0.0.1:8000}:8000"]
    assert services["migrate"]["depends_on"] == {"db": {"condition": "service_healthy"}}
    assert services["server"]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    assert services["migrate"]["command"] == ["db", "upgrade"]


def test_server_containers_are_immutable(compose: Json) -> None:
    for name in ("migrate", "server"):
        service = compose["services"][name]
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert all("no-new-privileges:true" in service["security_opt"] for service in compose["services"].values())


def test_image_installs_tested_hash() -> None:
    assert "--require-hashes -r requirements.lock" in DOCKERFILE
    pinned = set(re.findall(r"^([\w.-]+==\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    lock = (ROOT / "requirements.lock").read_text()
    locked = re.findall(r"^([\w.-]+==\S+)[^\n]*\\\n    --hash=sha256:[0-9a-f]{64}", lock, re.MULTILINE)
    assert set(locked) <= pinned
    named = {distribution.partition("==")[0] for distribution in locked}
    assert {"litestar", "openai", "sqlalchemy", "asyncpg", "cryptography", "msgspec"} <= named


def test_server_and_migration_share_valid_settings(compose: Json) -> None:
    migrate, server = (compose["services"][name] for name in ("migrate", "server"))
    assert (migrate["environment"], migrate["image"]) == (server["environment"], server["image"])
    assert set(server["environment"]) <= SETTINGS
    # What a model needs is passed on from here: whose it is, which one, and to do without.
    assert {"OPENAI_API_KEY", "OPENAI_BASE_URL", "SWARMKEEP_MODEL", "SWARMKEEP_OFFLINE"} <= set(server["environment"])
    assert set(re.findall(r"\bSWARMKEEP_[A-Z_]+", DOCKERFILE)) <= SETTINGS
    # No password stands in the file, and an empty one is refused.
    text = json.dumps(compose)
    assert set(re.findall(r"\$\{(POSTGRES_PASSWORD[^}]*)\}", text)) == {"POSTGRES_PASSWORD:?set it in .env"}
    url = re.sub(r"\$\{[^}]*\}", "secret", server["environment"]["SWARMKEEP_DATABASE_URL"])
    found = locate(url)
    assert isinstance(found, PostgresServer)
    assert (found.user, found.password) == ("swarmkeep", "secret")


def test_image_starts_healthy_with_key(tmp_path: Path) -> None:
    said = re.search(r"SWARMKEEP_HOST=(\S+)", DOCKERFILE)
    check = re.search(r'CMD \["python", "-c", ("(?:[^"\\]|\\.)*")\]', DOCKERFILE)
    assert said is not None
    assert check is not None
    environment = {"SWARMKEEP_HOST": said[1], "SWARMKEEP_OFFLINE": "1"}
    cli = CommandLine(tmp_path)
    assert "`swarmkeep keys create`" in cli.expect_refusal("serve", env=environment)
    assert cli("keys", "create", "--name", "first", env=environment).code == 0
    with ServerProcess(tmp_path, env=environment) as server:
        program = [sys.executable, "-c", json.loads(check[1])]
        healthy = subprocess.run(program, env={"SWARMKEEP_PORT": str(server.port)}, check=False, timeout=60)
        assert healthy.returncode == 0
    # An empty setting counts as absent, for the check as for the server.
    unset = subprocess.run(program, env={"SWARMKEEP_PORT": ""}, capture_output=True, text=True, check=False, timeout=60)
    assert "ValueError" not in unset.stderr
