"""Decoding in several threads, as reading does."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, threading
from typing import Literal
import msgspec
from swarmkeep.events.codec import decode

sys.setswitchinterval(1e-7)
for number in range(60):
    fields = [(f"f{n}", Literal["a", "b"] | None | msgspec.UnsetType, msgspec.UNSET) for n in range(40)]
    kind = msgspec.defstruct(f"S{number}", fields)
    together = threading.Barrier(6)

    def work(kind=kind, together=together):
        together.wait()
        for _ in range(20):
            decode('{"f39": "b"}', kind)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_share_first_use_of_a_type() -> None:
    # In a process of its own: without care, this ends in a segmentation fault.
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
