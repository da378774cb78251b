"""What is asked of the warm parent: one process for each connection, which is its lifeline.

The child answers with its pid once it can be sent signals, the parent with its exit code once it has ended. Whoever
closes the connection before that has the child killed.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

_LENGTH = struct.Struct("!I")


@dataclass(frozen=True)
class Request:
    """A process to be: `arguments` are an interpreter's, as in `-m MODULE …`, `-c CODE …` or `FILE …`."""

    arguments: Sequence[str]
    folder: str
    env: Mapping[str, str]
    # Whether its standard input becomes its controlling terminal, so that Ctrl-C is a signal.
    terminal: bool = False


def send(connection: socket.socket, request: Request, files: Sequence[int]) -> None:
    """Ask for a process that has these files as its standard input, output and error."""
    body = json.dumps(asdict(request)).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(body))], files)
    connection.sendall(body)


def receive(connection: socket.socket) -> tuple[Request, list[int]]:
    head, files, _, _ = socket.recv_fds(connection, _LENGTH.size, 3)
    (length,) = _LENGTH.unpack(head)
    with connection.makefile("rb") as body:
        return Request(**json.loads(body.read(length))), files


def say(connection: socket.socket, number: int) -> None:
    connection.sendall(f"{number}\n".encode())
