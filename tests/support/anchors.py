"""A witness as C2SP has it, and a time stamp authority made of openssl, on ports of their own."""

from __future__ import annotations

import base64
import gzip
import hashlib
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from swarmkeep.history.proofs import is_consistent, parse_note

Answer = tuple[int, str, bytes]


def compress(answer: Answer) -> tuple[int, str, bytes, str]:
    """As a proxy before a witness may do."""
    status, kind, content = answer
    return status, kind, gzip.compress(content), "gzip"


@contextmanager
def serving(answer_post: object) -> Iterator[str]:
    """Answers each POST with what `answer_post(path, body)` returns: status, content type, body."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status, kind, content, *encoding = answer_post(self.path, body)  # type: ignore[operator]
            self.send_response(status)
            for one in encoding:
                self.send_header("content-encoding", one)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class Witness:
    """Signs a log's checkpoint if it goes on from the last one that it signed (c2sp.org/tlog-witness)."""

    def __init__(self, name: str = "witness.example") -> None:
        self._key = Ed25519PrivateKey.generate()
        self.name = name
        public = b"\x04" + self._key.public_key().public_bytes_raw()
        self._key_id = hashlib.sha256(name.encode() + b"\n" + public).digest()[:4]
        self.verifier_key = f"{name}+{self._key_id.hex()}+{base64.b64encode(public).decode()}"
        self.known: dict[str, tuple[int, bytes]] = {}

    def answer(self, path: str, body: bytes) -> Answer:
        if path != "/add-checkpoint":
            return 404, "text/plain", b"no such path"
        head, _, content = body.partition(b"\n\n")
        old, *proof = head.decode().split("\n")
        note = parse_note(content)
        size, root = self.known.get(note.origin, (0, b""))
        if old != f"old {size}":
            return 409, "text/x.tlog.size", f"{size}\n".encode()
        if not is_consistent(size, root, note.size, note.root, [base64.b64decode(one) for one in proof]):
            return 422, "text/plain", b"the proof does not hold"
        self.known[note.origin] = (note.size, note.root)
        now = int(time.time())
        signature = self._key.sign(f"cosignature/v1\ntime {now}\n{note.text}".encode())
        signed = base64.b64encode(self._key_id + now.to_bytes(8, "big") + signature).decode()
        return 200, "text/plain", f"— {self.name} {signed}\n".encode()


_SETTINGS = """
[tsa]
serial = {folder}/serial
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256, sha384, sha512
[authority]
basicConstraints = critical,CA:TRUE
[stamps]
extendedKeyUsage = critical,timeStamping
keyUsage = critical,digitalSignature
"""


class StampAuthority:
    """Time stamps by `openssl ts`; `root` is the certificate that they are checked with."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self.root = folder / "root.pem"
        (folder / "settings").write_text(_SETTINGS.format(folder=folder))
        (folder / "serial").write_text("01\n")
        self._run(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout root.key -out root.pem -days 2"
            " -subj /CN=root -addext basicConstraints=critical,CA:TRUE"
        )
        self._run(
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout tsa.key -out tsa.csr -subj /CN=stamps"
        )
        self._run(
            "x509 -req -in tsa.csr -CA root.pem -CAkey root.key -CAcreateserial -out tsa.pem -days 2 -extfile settings"
            " -extensions stamps"
        )

    def answer(self, path: str, body: bytes) -> Answer:
        (self._folder / "query").write_bytes(body)
        self._run("ts -reply -queryfile query -signer tsa.pem -inkey tsa.key -config settings -section tsa -out reply")
        return 200, "application/timestamp-reply", (self._folder / "reply").read_bytes()

    def _run(self, command: str) -> None:
        subprocess.run(["openssl", *command.split()], cwd=self._folder, check=True, capture_output=True)
