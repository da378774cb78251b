"""Where tests put what they need only for a while: in memory, where the system offers a disk there.

A commit that waits for a real disk takes a hundred times as long as one that does not, and most tests commit. None of
them asks for more than that a file outlives the process that wrote it, which a disk in memory gives.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_RAM_DISK = Path("/dev/shm")
# A run leaves less than a fourth of it, and containers often get much less.
_NEEDED_BYTES = 2 * 1024**3


def root() -> Path:
    """The folder for temporary folders."""
    usable = os.access(_RAM_DISK, os.W_OK) and shutil.disk_usage(_RAM_DISK).free >= _NEEDED_BYTES
    return _RAM_DISK if usable else Path(tempfile.gettempdir())
