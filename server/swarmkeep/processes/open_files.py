"""How many files and connections a process may have open."""

from __future__ import annotations

import sys
from contextlib import suppress

# Two for each of 32,000 runs: its caller's connection, and the one to the model.
_MAX_OPEN_FILES = 65_536


def raise_open_files() -> int:
    """Let this process and its children open as many files as the system allows, and return that number.

    Shells begin with 1,024, for the sake of programs that use `select`. Some five hundred runs use that up, and then
    the next one cannot reach its model.
    """
    if sys.platform == "win32":
        return _MAX_OPEN_FILES
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(_MAX_OPEN_FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    # It may be refused even below the limit that the system names.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
