"""A command for shells: asks for the process and stands for it, with its files, its signals and its exit code.

It is run as a plain script, without site-packages, and imports little.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import suppress
from types import FrameType

from tests.support.warm import requests

FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def main(address: str, script: str) -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    requests.send(connection, requests.Request([script, *sys.argv[1:]], os.getcwd(), dict(os.environ)), [0, 1, 2])
    # Whoever reads or writes at the other end learns that the process is gone, not that this one is.
    said = connection.makefile("rb")
    pid = int(said.readline())

    def forward(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in FORWARDED:
        signal.signal(number, forward)
    code = int(said.readline())
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
