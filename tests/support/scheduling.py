"""Which tests one process runs after the other, and in what order.

pytest-xdist can send groups that tests are marked with to one process (`--dist loadgroup`). It does so by changing the
names that pytest 9.2 does not let be changed any more, so that all marks do nothing there.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# What these share is started once and used by all of their tests: that wants one process.
ONE_PROCESS_FOLDERS = ("chaos", "web", "wheels")
# What takes longest is begun with, so that all else fills up what it leaves.
_FIRST = (*ONE_PROCESS_FOLDERS, "store")


class FileScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """A file is one process's, so that what its tests share is made once; so are some whole folders."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        folder = _folder_of(path)
        return folder if folder in ONE_PROCESS_FOLDERS else path


def make_scheduler(config: pytest.Config, log: Any) -> FileScheduling:
    # By default it would begin with the files that have most tests.
    config.option.loadscopereorder = False
    return FileScheduling(config, log)


def put_first(items: list[pytest.Item]) -> None:
    """Bring the tests into the order in which they are handed out; it is the same in each process."""

    def place(item: pytest.Item) -> int:
        folder = _folder_of(item.nodeid.partition("::")[0])
        return _FIRST.index(folder) if folder in _FIRST else len(_FIRST)

    items.sort(key=place)


def _folder_of(path: str) -> str:
    """The folder below `tests` that a file is in."""
    return PurePath(path).parts[1]
