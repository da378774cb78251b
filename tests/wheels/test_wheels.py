"""Both wheels work where nothing else of ours is: with the newest and the lowest versions of what they need.

The newest with the newest Python that is at hand, too.

One way through each installation, because what takes time is to make it and to start programs from cold.
"""

from __future__ import annotations

import re
import tarfile
import zipfile
from email.parser import BytesParser
from pathlib import Path

import httpx2
import pytest

import swarmkeep
from tests.support.processes import ServerProcess
from tests.support.source import PACKAGES, ROOT
from tests.wheels.environments import Environment, find_newest_python, run_with_index

# What comes over a network has a guard of its own.
pytestmark = [pytest.mark.long, pytest.mark.timeout(0)]

EXTRAS = ("postgres", "signing", "archive", "mcp", "otel")
LOWEST = (
    *("--resolution", "lowest-direct", "-r", "pyproject.toml", "-r", "clients/python/pyproject.toml"),
    *(part for extra in EXTRAS for part in ("--extra", extra)),
)
NEWEST = ("-c", "constraints.txt")
LOWEST_CLIENT = ("--resolution", "lowest-direct", "-r", "clients/python/pyproject.toml")

# Also what is loaded only when it is used. A program would run.
IMPORT_ALL = """
import importlib, pkgutil, swarmkeep, swarmkeep_agents, swarmkeep_client
for package in (swarmkeep, swarmkeep_agents, swarmkeep_client):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith(".__main__"):
            importlib.import_module(module.name)
            print(module.name)
"""

TALK = """
import asyncio, sys
from importlib.metadata import distributions
from swarmkeep_client import AsyncClient, Client

url = sys.argv[1]
with Client(url) as client:
    session = client.sessions.create(agent="Triage Agent")
    run = session.run("I want to buy a pair of boots.")
    print(run.status, run.agent)

async def look():
    async with AsyncClient(url) as client:
        print((await (await client.sessions.get(run.session_id)).verify()).valid)

asyncio.run(look())
print(*sorted(found.name for found in distributions()))
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run_with_index("make", "--no-print-directory", "wheels", f"DIST={folder}")
    return folder


def find_wheel(wheels: Path, name: str) -> Path:
    (wheel,) = wheels.glob(f"{name}-{swarmkeep.__version__}-*.whl")
    return wheel


def test_wheels_hold_exactly_package_files(wheels: Path) -> None:
    held = {
        name
        for wheel in ("swarmkeep", "swarmkeep_client")
        for name in zipfile.ZipFile(find_wheel(wheels, wheel)).namelist()
        if ".dist-info/" not in name
    }
    there = {
        f"{package}/{file.relative_to(folder)}"
        for package, folder in PACKAGES.items()
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert held == there
    # What a program misses only later, because nothing imports it.
    assert {"swarmkeep/py.typed", "swarmkeep_client/py.typed", "swarmkeep/web/page/main.js"} <= held
    assert {"swarmkeep_migrations/script.py.mako", "swarmkeep_agents/acme/evals/routing.yaml"} <= held


def test_sdists_hold_exactly_wheel_sources(wheels: Path) -> None:
    for name, folders, files in (
        ("swarmkeep", {"server", "agents", "migrations"}, {"CHANGELOG.md"}),
        ("swarmkeep_client", {"src"}, set[str]()),
    ):
        with tarfile.open(wheels / f"{name}-{swarmkeep.__version__}.tar.gz") as packed:
            held = [file.name.partition("/")[2] for file in packed if file.isfile()]
        assert {file.partition("/")[0] for file in held if "/" in file} == folders
        always = {".gitignore", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
        assert {file for file in held if "/" not in file} == files | always
        assert not [file for file in held if "__pycache__" in file]


def test_wheels_name_contents_licences(wheels: Path) -> None:
    vendor = PACKAGES["swarmkeep"] / "web" / "vendor"
    theirs = {str(file.relative_to(ROOT)) for file in vendor.glob("*/*") if re.search("LICEN[CS]E|NOTICE", file.name)}
    assert {Path(file).parent.name for file in theirs} == {file.name for file in vendor.iterdir() if file.is_dir()}
    for name, expected in (("swarmkeep", theirs), ("swarmkeep_client", set[str]())):
        with zipfile.ZipFile(find_wheel(wheels, name)) as wheel:
            folder = f"{name}-{swarmkeep.__version__}.dist-info"
            said = BytesParser().parsebytes(wheel.read(f"{folder}/METADATA"))
            assert set(said.get_all("License-File", [])) == {"LICENSE"} | expected
            assert wheel.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("versions", ["lowest", "newest"])
def test_installation_does_as_readme_says(versions: str, wheels: Path, tmp_path: Path, postgres_url: str) -> None:
    client = find_wheel(wheels, "swarmkeep_client")
    server = find_wheel(wheels, "swarmkeep")
    if versions == "lowest":
        here = Environment.create(tmp_path, *LOWEST, str(client), str(server))
        assert len(here("python", "-c", IMPORT_ALL).split()) > 200
    else:
        # Without the other extras, as most installations are.
        newest = (*NEWEST, str(client), f"swarmkeep[postgres] @ {server.as_uri()}")
        here = Environment.create(tmp_path, *newest, python=find_newest_python())
    assert here("swarmkeep", "--version") == f"swarmkeep {swarmkeep.__version__}\n"

    for url in (f"sqlite:///{tmp_path / 'upgraded.db'}", postgres_url):
        here("swarmkeep", "db", "upgrade", "--database-url", url)
        here("swarmkeep", "db", "check", "--database-url", url)

    try_server(here)
    # One of both with each: to start programs from cold is most of the time.
    if versions == "lowest":
        (agents,) = here.home.glob("lib/*/site-packages/swarmkeep_agents")
        cases = str(agents / "acme" / "evals")
        evals = here("swarmkeep", "eval", cases, "--offline", "--agents", "swarmkeep_agents.acme")
        assert re.search(r"\d+ passed", evals), evals
    else:
        assert "✓ recovered: run run_" in here("swarmkeep", "demo")
    # Nothing of it was in this checkout.
    assert str(ROOT) not in here("python", "-c", "import sys, swarmkeep; print(sys.path, swarmkeep.__file__)")


def try_server(here: Environment) -> None:
    with here.server("--agents", "swarmkeep_agents.acme") as server:
        with httpx2.Client(base_url=server.url) as http:
            page = http.get("/").raise_for_status().text
            for file in re.findall(r'(?:src|href)="(/[^"]+\.(?:js|css))"', page):
                http.get(file).raise_for_status()
            assert http.get("/openapi.json").raise_for_status().json()["info"]["version"] == swarmkeep.__version__
        assert here("python", "-c", TALK, server.url).splitlines()[:2] == ["completed Sales Agent", "True"]
        assert server.stop() == 0


def test_the_client_alone_brings_no_server(wheels: Path, tmp_path: Path) -> None:
    here = Environment.create(tmp_path, *LOWEST_CLIENT, str(find_wheel(wheels, "swarmkeep_client")))
    with ServerProcess(here.folder, agents=["swarmkeep_agents.acme"]) as server:
        *talk, installed = here("python", "-c", TALK, server.url).splitlines()
    assert talk == ["completed Sales Agent", "True"]
    assert {"swarmkeep-client", "httpx2", "msgspec"} <= set(installed.split())
    assert not {"swarmkeep", "litestar", "sqlalchemy", "openai", "pydantic", "typer"} & set(installed.split())
