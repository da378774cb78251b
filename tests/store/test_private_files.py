"""A SQLite file is for its owner alone, with the files beside it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmkeep.store import schema
from swarmkeep.store.opening import open_store
from swarmkeep.store.sqlite_files import find_exposed_files
from tests.store.sessions import begin_session, new_key

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the modes of files are those of POSIX")


@pytest.fixture(autouse=True)
def generous() -> Iterator[None]:
    """A process that would make files for everybody."""
    before = os.umask(0)
    yield
    os.umask(before)


def read_modes(folder: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}


async def test_new_database_is_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    schema.upgrade(f"sqlite:///{path}")
    store = open_store(f"sqlite:///{path}")
    await begin_session(store, new_key())
    assert read_modes(tmp_path) == {"new.db": 0o600, "new.db-shm": 0o600, "new.db-wal": 0o600}
    assert find_exposed_files(path) == []
    await store.close()


async def test_existing_file_mode_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    path.touch(0o640)
    schema.upgrade(f"sqlite:///{path}")
    assert read_modes(tmp_path)["shared.db"] == 0o640
    assert find_exposed_files(path) == [path]
