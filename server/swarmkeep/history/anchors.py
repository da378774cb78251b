"""Anchors of a checkpoint with others: witnesses that sign it, too (C2SP), and time stamps (RFC 3161).

A witness signs a log's checkpoint only if it goes on from the last one that it signed, so that no one can be shown
another history; a time stamp shows that the checkpoint is no younger than it says.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from swarmkeep.history.checkpoints import BadCheckpoint, check_ed25519
from swarmkeep.history.proofs import COSIGNATURE, ED25519, Note, Signature, make_key_id, parse_note, parse_signatures

_SECONDS = 30.0
_MAX_ANSWER_BYTES = 1_000_000
_TRIES = 5
_SIZE_TYPE = "text/x.tlog.size"
_STAMP_TYPES = {"Content-Type": "application/timestamp-query", "Accept": "application/timestamp-reply"}


class AnchorRefused(Exception):
    """A witness or a time stamp authority gave no signature; the sentence says why."""


class LogBehind(AnchorRefused):
    """The witness has signed a larger log, of `size` leaves."""

    def __init__(self, name: str, size: int) -> None:
        super().__init__(f"{name} has signed a larger log: this one was rolled back, or is another one")
        self.size = size


class VerifierKey(NamedTuple):
    """A public key as C2SP writes it: `NAME+KEY ID+KEY`, the last two encoded in hexadecimal and base64."""

    name: str
    key_id: bytes
    public: bytes


def format_verifier_key(name: str, public: bytes) -> str:
    """The log's own key, for witnesses."""
    return f"{name}+{make_key_id(name, ED25519, public).hex()}+{base64.b64encode(ED25519 + public).decode()}"


def parse_verifier_key(text: str, kind: bytes = COSIGNATURE) -> VerifierKey:
    """The key of a witness, or, with ED25519, of a log. Raises BadCheckpoint."""
    try:
        name, key_id, encoded = text.strip().split("+", 2)
        key = base64.b64decode(encoded, validate=True)
        if key[:1] != kind or len(key) != 33 or make_key_id(name, kind, key[1:]).hex() != key_id:
            raise ValueError
    except ValueError:
        whose = "a witness, as in witness.example+1a2b3c4d+BA…" if kind == COSIGNATURE else "a log"
        raise BadCheckpoint(f"{text[:100]!r} is not the key of {whose}") from None
    return VerifierKey(name, bytes.fromhex(key_id), key[1:])


def check_cosignature(note: Note, key: VerifierKey) -> datetime:
    """When the witness signed the note. Raises BadCheckpoint (c2sp.org/tlog-cosignature)."""
    for signature in note.signatures:
        if (signature.name, signature.key_id) == (key.name, key.key_id):
            seconds = int.from_bytes(signature.content[:8], "big")
            text = f"cosignature/v1\ntime {seconds}\n{note.text}".encode()
            check_ed25519(key.public, signature.content[8:], text)
            try:
                return datetime.fromtimestamp(seconds, UTC)
            except (ValueError, OverflowError, OSError):
                raise BadCheckpoint(f"the signature of {key.name} has a time that there is not") from None
    raise BadCheckpoint(f"the checkpoint is not signed by {key.name}")


def cosign(url: str, key: VerifierKey, note: str, prove: Callable[[int], Sequence[str]]) -> str:
    """Have a witness sign a note, and return the note with that (c2sp.org/tlog-witness).

    `prove` makes the proof that the note goes on from a size, in hexadecimal. Raises LogBehind if the witness has
    signed a larger log, AnchorRefused, BadCheckpoint.
    """
    size = known = parse_note(note.encode()).size
    for _ in range(_TRIES):
        answer = _submit(url, note, known, prove)
        if (answer.status_code, answer.content_type) != (409, _SIZE_TYPE):
            break
        # It says which size it knows; another process may have a checkpoint signed at the same time.
        text = answer.text.strip()
        if not (text.isascii() and text.isdecimal() and len(text) < 20):
            raise AnchorRefused(f"{key.name} did not say which size of the log it knows")
        known = int(text)
        if known > size:
            raise LogBehind(key.name, known)
    if answer.status_code != 200:
        why = answer.text.strip().replace("\n", " ")[:200]
        raise AnchorRefused(f"{key.name} did not sign ({answer.status_code}){f': {why}' if why else ''}")
    try:
        lines = [line for line in parse_signatures(answer.text) if _is_by(line, key)]
    except ValueError:
        lines = []
    if not lines:
        raise AnchorRefused(f"{key.name} gave no signature of its key")
    signed = f"{note}{lines[0].line}\n"
    check_cosignature(parse_note(signed.encode()), key)
    return signed


def _is_by(signature: Signature, key: VerifierKey) -> bool:
    return (signature.name, signature.key_id) == (key.name, key.key_id)


class _Answer(NamedTuple):
    status_code: int
    content_type: str
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")


def _submit(url: str, note: str, known: int, prove: Callable[[int], Sequence[str]]) -> _Answer:
    proof = [base64.b64encode(bytes.fromhex(one)).decode() for one in prove(known)]
    body = "".join(f"{line}\n" for line in (f"old {known}", *proof, "")) + note
    return _send(f"{url.rstrip('/')}/add-checkpoint", body.encode(), {})


def _send(url: str, body: bytes, headers: dict[str, str]) -> _Answer:
    """Raises AnchorRefused if there is no answer, or one that is far too large or slow."""
    import httpx2

    try:
        with httpx2.stream("POST", url, content=body, headers=headers, timeout=_SECONDS) as answer:
            content, end = b"", time.monotonic() + _SECONDS
            for piece in answer.iter_bytes():
                content += piece
                if len(content) > _MAX_ANSWER_BYTES or time.monotonic() > end:
                    raise AnchorRefused(f"the answer of {url} is too large, or too slow")
            kind = answer.headers.get("content-type", "").partition(";")[0]
            return _Answer(answer.status_code, kind, content)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise AnchorRefused(f"no answer from {url}: {error}") from None


def request_stamp(url: str, content: bytes) -> bytes:
    """A time stamp of these bytes, as the authority answered. Raises AnchorRefused, BadCheckpoint."""
    stamps = _import_stamps()
    request = stamps.TimestampRequestBuilder().data(content).nonce(nonce=True).cert_request(cert_request=True).build()
    answer = _send(url, request.as_bytes(), _STAMP_TYPES)
    if answer.status_code != 200:
        raise AnchorRefused(f"{url} gave no time stamp ({answer.status_code})")
    try:
        found = stamps.decode_timestamp_response(answer.content)
        info = found.tst_info
        answered = (info.nonce, info.message_imprint.hash_algorithm, info.message_imprint.message)
    except ValueError as error:
        raise AnchorRefused(f"{url} gave no time stamp: {error}") from None
    asked = (request.nonce, request.message_imprint.hash_algorithm, request.message_imprint.message)
    if found.status != 0 or answered != asked:
        raise AnchorRefused(f"{url} gave no time stamp of this request")
    return answer.content


def check_stamp(stamp: bytes, content: bytes, root: Path) -> datetime:
    """When these bytes were stamped, by an authority whose certificates lead to that in `root` (PEM).

    Raises BadCheckpoint.
    """
    stamps = _import_stamps()
    from cryptography import x509

    try:
        roots = x509.load_pem_x509_certificates(root.read_bytes())
    except (OSError, ValueError) as error:
        raise BadCheckpoint(f"the certificate in {root} cannot be used: {error}") from None
    try:
        found = stamps.decode_timestamp_response(stamp)
        stamps.VerifierBuilder(roots=roots).build().verify_message(found, content)
        stamped: datetime = found.tst_info.gen_time
    except (stamps.VerificationError, ValueError) as error:
        raise BadCheckpoint(f"the time stamp is not one of this checkpoint: {error}") from None
    return stamped


def _import_stamps() -> Any:
    try:
        import rfc3161_client
    except ImportError:
        raise BadCheckpoint("time stamps need one more library: pip install 'swarmkeep[signing]'") from None
    return rfc3161_client


def name_stamp(checkpoint: Path) -> Path:
    """The file of a checkpoint's time stamp."""
    return checkpoint.with_name(f"{checkpoint.name}.tsr")
