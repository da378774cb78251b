"""Fixtures that the tests of every folder share."""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from swarmkeep.store.schema import upgrade
from tests.support import hypothesis_profiles, one_database, scheduling, scratch
from tests.support import postgres as support
from tests.support.postgres import Postgres
from tests.support.scripted import ScriptedModel

hypothesis_profiles.load()

# The folder of the PostgreSQL server that all processes of a test run share.
POSTGRES_HOME = pytest.StashKey[Path]()

# Of one test, in the short run.
SHORT_CASES = 8


def pytest_addoption(parser: pytest.Parser) -> None:
    one_database.add_option(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # Where pytest makes the tests' folders; those of its workers are in the first process's.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(scratch.root()))
    # Nothing here is encrypted, and each new client reads every authority's certificate, which takes longer than most
    # tests. This is one authority, whose key nobody has. Processes that are started have it from here.
    os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "support" / "authority.pem")
    # What is started in the background of a shell ignores it, and tests send it to themselves.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    worker = getattr(config, "workerinput", None)
    config.stash[POSTGRES_HOME] = Path(worker["postgres_home"]) if worker else support.new_home()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return scheduling.make_scheduler(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["postgres_home"] = str(node.config.stash[POSTGRES_HOME])


def pytest_unconfigure(config: pytest.Config) -> None:
    # The run's first process ends last, and well even where a worker did not.
    if not hasattr(config, "workerinput") and POSTGRES_HOME in config.stash:
        support.end(config.stash[POSTGRES_HOME])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    # Until the tests are found, all that is made stays: modules, and thousands of tests.
    gc.disable()
    try:
        _import_share(session.config)
        return (yield)
    finally:
        gc.enable()


def _import_share(config: pytest.Config) -> None:
    """Let each worker begin with other files, if it is to collect all.

    To rewrite the asserts of a file takes longer than to import it, and is done once: the result is kept on the disk,
    where the others find it when they come to it.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None or config.args_source is not config.ArgsSource.TESTPATHS:
        return
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for file in files[len(files) * number // count :]:
        # What is wrong with one is told when it is collected.
        with suppress(Exception):
            importlib.import_module(".".join(file.relative_to(config.rootpath).with_suffix("").parts))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest, and leave to the long run what a short one shows already.

    Outside of the store, one test of a module tells whether it works on PostgreSQL, and of a test with many cases the
    first tell whether it works.
    """
    scheduling.put_first(items)
    tests = Path(__file__).parent
    seen: set[Path] = set()
    cases: Counter[str] = Counter()
    for item in items:
        folder = item.path.relative_to(tests).parts[0]
        if folder not in ("store", "support") and _is_on_postgres(item):
            if item.path in seen:
                item.add_marker(pytest.mark.long)
            elif item.get_closest_marker("long") is None:
                seen.add(item.path)
        if item.get_closest_marker("long") is None:
            name = item.nodeid.partition("[")[0]
            cases[name] += 1
            if cases[name] > SHORT_CASES:
                item.add_marker(pytest.mark.long)
    if one_database.is_wanted(config):
        items[:], left = one_database.split_cases(items)
        config.hook.pytest_deselected(items=left)


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what stays to the end: thousands of tests, and every module.

    Of a test's own time it would still take a tenth, looking again and again at what is in use.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(2000, 20, 50)


def _is_on_postgres(item: pytest.Item) -> bool:
    """Whether it is the PostgreSQL half of a test of both databases."""
    callspec = getattr(item, "callspec", None)
    return callspec is not None and "postgres" in callspec.params.values()


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Iterator[Postgres]:
    """A running PostgreSQL, started when the first test asks for it."""
    with support.postgres_for_tests(pytestconfig.stash[POSTGRES_HOME]) as server:
        yield server


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """An empty PostgreSQL database of the test's own."""
    url = postgres.create()
    yield url
    postgres.drop(url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """An SQLite file of the test's own, which does not exist yet."""
    return f"sqlite:///{tmp_path / 'swarmkeep.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """An empty database of the test's own, of each supported kind in turn. Tests never ask which."""
    url = request.getfixturevalue(f"{request.param}_url")
    assert isinstance(url, str)
    return url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "swarmkeep.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_ready(sqlite_url: str, sqlite_template: Path) -> str:
    """An SQLite file with this release's schema and nothing in it."""
    shutil.copy(sqlite_template, sqlite_url.removeprefix("sqlite:///"))
    return sqlite_url


@pytest.fixture
def postgres_ready(postgres: Postgres) -> str:
    """A PostgreSQL database with this release's schema and nothing in it."""
    return postgres.reused("schema", _upgrade)


@pytest.fixture(params=["sqlite", "postgres"])
def ready_url(request: pytest.FixtureRequest) -> str:
    """A database with the schema and nothing in it, of each kind in turn. Tests never ask which."""
    url = request.getfixturevalue(f"{request.param}_ready")
    assert isinstance(url, str)
    return url


def _upgrade(url: str) -> None:
    upgrade(url)


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    """A scripted model; the test fails if it was asked for what it did not expect, or not asked for what it did."""
    with ScriptedModel() as scripted:
        yield scripted
