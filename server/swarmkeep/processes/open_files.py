"""How many files and connections a process may have open."""

from __future__ import annotations

import sys
from contextlib import suppress

# Two for each of 32,000 runs: its caller's connection, and the one to the model.
_MOST = 65_536


def raise_open_files() -> int:
    """Let this process, and those that it starts, have as many open as the system allows; gives how many that is.

    Shells begin with 1,024, for the sake of programs that use `select`. Some five hundred runs use that up, and then
    the next one cannot reach its model.
    """
    if sys.platform == "win32":
        return _MOST
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(_MOST, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    # Where nothing is said to limit it, something may.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
