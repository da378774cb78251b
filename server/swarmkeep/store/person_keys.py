"""Keys of people: what is recorded of a person is stored encrypted, so that erasing the key erases it in every copy.

A session belongs to the person whom its metadata names when it is made. From then on its payloads with their salts, its
texts, files and view are stored encrypted by that person's key (AES-256-GCM, a random nonce of 12 bytes each, and bound
to its kind and place). The hash chain is over commitments, which stay, so that it verifies with the key and without.
Beside each payload stands what redaction would leave of it: without the key, the event reads as a redacted one.

This is crypto-shredding, as in NIST SP 800-88 (cryptographic erase), by person instead of by medium.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import importlib
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
from sqlalchemy import Connection, select
from sqlalchemy.util import await_only

from swarmkeep.events.codec import encode_text
from swarmkeep.events.errors import PersonErased
from swarmkeep.events.facts import RecordedEvent, SessionRedacted
from swarmkeep.events.redaction import redact_payload
from swarmkeep.store.hashing import SALT_BYTES, SealedEvent
from swarmkeep.store.records import SessionKey, StoreUnavailable, label_of
from swarmkeep.store.statements import prepare_insert_if_absent, split_parameters
from swarmkeep.store.tables import IS_ENCRYPTED, person_keys, sessions

T = TypeVar("T")

# No JSON begins with it. Texts and files that begin so by chance name no key.
_MARK = "~"
_NONCE_BYTES = 12
_SECRET_BYTES = 32
_ID_CHARACTERS = 32
_BODY = len(_MARK) + _ID_CHARACTERS
_ID = re.compile(r"[0-9a-f]{32}")
_MOST_KNOWN = 10_000
# So many take about a millisecond.
_MANY_BYTES = 512 * 1024
KEYS_ELSEWHERE = "the keys of people are kept outside the database: set SWARMKEEP_PERSON_KEYS"


class PersonKeyError(Exception):
    """The setting cannot be used; the sentence says why."""


class KeySource(Protocol):
    """Where keys are kept outside the database, so that its backups do not hold them: a key service, say.

    Each call may block, and raise anything if the source cannot be reached. What `read` gives is remembered.
    """

    def read(self, id: str) -> bytes | None:
        """The key's 32 bytes; None once it is erased."""

    def write(self, id: str, secret: bytes) -> None:
        """Keep a new key, durably."""

    def erase(self, id: str) -> None:
        """Destroy a key for good; one that is not there is no error."""


class KeyFolder:
    """Keys as files in a folder, readable for their owner alone."""

    # So that a folder that is not mounted is not taken for one whose keys were erased.
    _MARKER = "swarmkeep-keys"

    def __init__(self, path: Path) -> None:
        self._path = path

    def create(self) -> None:
        """Make the folder, if it is not there or empty. Raises PersonKeyError for one of another program."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self._path / self._MARKER).exists() and any(self._path.iterdir()):
            raise PersonKeyError(f"SWARMKEEP_PERSON_KEYS: {self._path} has other files: name a folder of its own")
        (self._path / self._MARKER).touch(mode=0o600)

    def read(self, id: str) -> bytes | None:
        self._require_marker()
        try:
            return self._find(id).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, id: str, secret: bytes) -> None:
        self._require_marker()
        file = os.open(self._find(id), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(file, secret)
            os.fsync(file)
        finally:
            os.close(file)
        self._sync()

    def erase(self, id: str) -> None:
        self._require_marker()
        with contextlib.suppress(FileNotFoundError):
            self._find(id).unlink()
        self._sync()

    def _find(self, id: str) -> Path:
        return self._path / f"{id}.key"

    def _require_marker(self) -> None:
        if not (self._path / self._MARKER).exists():
            raise OSError(f"{self._path} is not there, or not a folder of keys")

    def _sync(self) -> None:
        folder = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def open_key_source(text: str | None) -> KeySource | None:
    """The source that `SWARMKEEP_PERSON_KEYS` names: `database`, a folder, or `module:factory`.

    None for the database. Raises PersonKeyError.
    """
    if text in (None, "", "database"):
        return None
    assert text is not None
    module, separator, name = text.partition(":")
    if "/" in text or not separator:
        folder = KeyFolder(Path(text).expanduser().absolute())
        try:
            folder.create()
        except OSError as error:
            raise PersonKeyError(f"SWARMKEEP_PERSON_KEYS: {text} cannot be used: {error}") from None
        return folder
    try:
        source: KeySource = getattr(importlib.import_module(module), name)()
    except Exception as error:
        raise PersonKeyError(f"SWARMKEEP_PERSON_KEYS: {text} cannot be used: {error}") from None
    if missing := [each for each in ("read", "write", "erase") if not callable(getattr(source, each, None))]:
        raise PersonKeyError(f"SWARMKEEP_PERSON_KEYS: what {text} gives has no `{missing[0]}`")
    return source


class PersonKey:
    """A key, by its id."""

    def __init__(self, id: str, secret: bytes) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise StoreUnavailable("keys of people need `pip install 'swarmkeep[signing]'`") from None
        self.id = id
        self._cipher = AESGCM(secret)
        self._failures = (InvalidTag, ValueError)

    def encrypt(self, content: bytes, about: str) -> bytes:
        """Encrypt content, bound to what it is `about`: it is read as nothing else."""
        return self._encode_id() + self._encrypt(content, about)

    def encrypt_text(self, content: bytes, about: str, stand_in: str | None = None) -> str:
        """Encrypt content as text, with what stands in for it without the key."""
        body = base64.b64encode(self._encrypt(content, about)).decode()
        return f"{_MARK}{self.id}{body}" if stand_in is None else f"{_MARK}{self.id}{body}\n{stand_in}"

    def decrypt(self, content: bytes, about: str) -> bytes | None:
        """What `encrypt` was given; None of what it did not give."""
        return self._decrypt(content[_BODY:], about)

    def decrypt_text(self, text: str, about: str) -> bytes | None:
        body = text[_BODY:].partition("\n")[0]
        try:
            return self._decrypt(base64.b64decode(body, validate=True), about)
        except (binascii.Error, ValueError):
            return None

    def _encode_id(self) -> bytes:
        return f"{_MARK}{self.id}".encode()

    def _encrypt(self, content: bytes, about: str) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, content, about.encode())

    def _decrypt(self, body: bytes, about: str) -> bytes | None:
        try:
            return self._cipher.decrypt(body[:_NONCE_BYTES], body[_NONCE_BYTES:], about.encode())
        except self._failures:
            return None


class Erased:
    """In the place of a key that is gone, and of what it encrypted."""

    def __str__(self) -> str:
        return ""


ERASED = Erased()


class Keyring:
    """The keys of the people in a database that were used last, and where others are looked up."""

    def __init__(self, source: KeySource | None = None) -> None:
        self.source = source
        # Several threads read: of a dictionary that costs no lock.
        self._known: dict[str, PersonKey | Erased] = {}

    def find(self, connection: Connection, ids: Iterable[str]) -> dict[str, PersonKey | Erased]:
        """Those of these keys that there are, or were. Raises StoreUnavailable if their source cannot be reached."""
        found: dict[str, PersonKey | Erased] = {}
        missing: list[str] = []
        for id in set(ids):
            if (known := self._known.get(id)) is None:
                missing.append(id)
            else:
                found[id] = known
        for some in split_parameters(missing):
            for row in connection.execute(select(person_keys).where(person_keys.c.id.in_(some))).all():
                key = found[row.id] = self._read(connection, row)
                # A folder may show a new key a moment later to other servers: what is not there yet is asked again.
                if row.erased_at or isinstance(key, PersonKey):
                    self._keep(row.id, key)
        return found

    def _read(self, connection: Connection, row: Any) -> PersonKey | Erased:
        secret, source = row.secret, self.source
        if secret is None and not row.erased_at:
            if source is None:
                raise StoreUnavailable(KEYS_ELSEWHERE)
            secret = call_source(connection, lambda: source.read(row.id))
        if secret is not None and (not isinstance(secret, bytes) or len(secret) != _SECRET_BYTES):
            raise StoreUnavailable(f"key {row.id} of a person does not have {_SECRET_BYTES} bytes")
        return ERASED if secret is None else PersonKey(row.id, secret)

    def _keep(self, id: str, key: PersonKey | Erased) -> None:
        if len(self._known) >= _MOST_KNOWN:
            self._known = {}
        self._known[id] = key

    def get(self, id: str) -> PersonKey | Erased | None:
        """A key that was used lately; it may have been erased since."""
        return self._known.get(id)

    def forget(self, id: str) -> None:
        self._known.pop(id, None)


def call_source(connection: Connection, call: Callable[[], T]) -> T:
    """Call a key source beside a connection, off the event loop. Raises StoreUnavailable."""
    try:
        return _do_aside(connection, _MANY_BYTES, call)
    except Exception as error:
        raise StoreUnavailable(f"the keys of people cannot be reached: {error}") from error


def _do_aside(connection: Connection, size: int, call: Callable[[], T]) -> T:
    """Do what takes its time off the event loop; SQLite is used in a thread anyway."""
    if size < _MANY_BYTES or not connection.dialect.is_async:
        return call()
    return await_only(asyncio.to_thread(call))


def get_keyring(connection: Connection) -> Keyring:
    keyring: Keyring = connection.get_execution_options().get("keyring") or _NO_KEYRING
    return keyring


_NO_KEYRING = Keyring()


# Keys in the database: which person has which.


def make_person(tenant: str, value: object) -> bytes:
    """What a person is known by: a digest, since the row stays when the key is gone."""
    return label_of(tenant, value if isinstance(value, str) else encode_text(value))


def find_current_key(connection: Connection, tenant: str, person: bytes) -> str | None:
    """The id of the key that a person has now."""
    return connection.scalar(select(person_keys.c.id).where(*_of_person(tenant, person), person_keys.c.erased_at == ""))


def list_keys(connection: Connection, tenant: str, person: bytes) -> list[str]:
    return list(connection.scalars(select(person_keys.c.id).where(*_of_person(tenant, person))))


def _of_person(tenant: str, person: bytes) -> tuple[Any, ...]:
    return person_keys.c.tenant == tenant, person_keys.c.person == person


def take_key(connection: Connection, tenant: str, person: bytes, at: str) -> str:
    """The id of a person's key, which is made if there is none. Raises StoreUnavailable."""
    while (known := find_current_key(connection, tenant, person)) is None:
        _make_key(connection, tenant, person, at)
    return known


def _make_key(connection: Connection, tenant: str, person: bytes, at: str) -> None:
    source = get_keyring(connection).source
    id, secret = secrets.token_hex(_ID_CHARACTERS // 2), os.urandom(_SECRET_BYTES)
    # First: a row without its key would be taken for an erased one. A key without a row is never used.
    if source is not None:
        call_source(connection, lambda: source.write(id, secret))
    kept = secret if source is None else None
    row = {"id": id, "tenant": tenant, "person": person, "created_at": at, "erased_at": "", "secret": kept}
    prepare_insert_if_absent(person_keys, connection.dialect.name).execute(connection, row)


def list_sessions_of_key(connection: Connection, tenant: str, id: str, *, unredacted: bool = False) -> list[SessionKey]:
    columns = sessions.c
    found = select(columns.id).where(columns.tenant == tenant, columns.person_key == id, IS_ENCRYPTED)
    if unredacted:
        found = found.where(columns.view.like(f"{_MARK}%"))
    return [SessionKey(tenant, name) for name in connection.scalars(found.order_by(columns.id))]


def hold_key(connection: Connection, id: str, session_id: str | None) -> None:
    """Keep a key from being erased until the transaction ends. Raises PersonErased if it is."""
    held = select(person_keys.c.erased_at).where(person_keys.c.id == id)
    # Empty until it is erased.
    if connection.scalar(held.with_for_update(read=True, key_share=True)) != "":
        get_keyring(connection).forget(id)
        raise PersonErased(session_id)


# What is stored: rows that are written encrypted, and read again.


def encrypt_events(sealed: Sequence[SealedEvent], key: PersonKey) -> list[SealedEvent]:
    """The events with what is stored of them. What says that others were redacted stays readable: the chain is checked
    by it."""
    return [
        one
        if one.salt is None or isinstance(one.event.fact, SessionRedacted)
        else msgspec.structs.replace(one, encrypted=_encrypt_payload(one.event, one.salt, key))
        for one in sealed
    ]


def _encrypt_payload(event: RecordedEvent, salt: bytes, key: PersonKey) -> str:
    return key.encrypt_text(salt + event.payload.encode(), _about_event(event.seq), redact_payload(event))


VIEW, PARTIAL, OBJECT = "view", "partial", "object"


def _about_event(seq: int) -> str:
    # A fork has it at the same place.
    return f"event {seq}"


def about_text(name: str) -> str:
    return f"text {name}"


def about_file(name: str) -> str:
    return f"file {name}"


class EncryptedPayload:
    """The payload of a row, with the key that it is read by."""

    def __init__(self, text: str, key: PersonKey | Erased) -> None:
        self._text = text
        self._key = key

    def __len__(self) -> int:
        return len(self._text)

    @property
    def is_erased(self) -> bool:
        return isinstance(self._key, Erased)

    def decrypt(self, seq: int) -> tuple[str, bytes | None]:
        """The payload and its salt. Without the key, what stands in for the payload, as of a redacted event; of what
        was changed, with a salt that proves it."""
        stand_in = self._text.partition("\n")[2]
        if isinstance(self._key, Erased):
            return stand_in, None
        content = self._key.decrypt_text(self._text, _about_event(seq))
        if content is None or len(content) < SALT_BYTES:
            return stand_in, b""
        return content[SALT_BYTES:].decode(errors="replace"), content[:SALT_BYTES]


def attach_keys(connection: Connection, rows: Sequence[Sequence[Any]], place: int) -> Sequence[Sequence[Any]]:
    """The rows, with the keys of those payloads that are encrypted; `place` is where a row has its payload."""
    ids = {id for row in rows if (id := read_key_id(row[place])) is not None}
    if not ids:
        return rows
    keys = get_keyring(connection).find(connection, ids)
    return [_attach_key(row, place, keys) for row in rows]


def _attach_key(row: Sequence[Any], place: int, keys: Mapping[str, PersonKey | Erased]) -> Sequence[Any]:
    text = row[place]
    key = keys.get(read_key_id(text) or "")
    return row if key is None else (*row[:place], EncryptedPayload(text, key), *row[place + 1 :])


def read_key_id(content: object) -> str | None:
    """The id of the key that a stored text or file names; None if it names none, or is something else."""
    if isinstance(content, bytes):
        content = content[:_BODY].decode("ascii", errors="replace")
    # Each payload is asked this: nearly all begin otherwise.
    if not isinstance(content, str) or not content.startswith(_MARK):
        return None
    id = content[len(_MARK) : _BODY]
    return id if _ID.fullmatch(id) else None


def _find_key(connection: Connection, content: str | bytes) -> PersonKey | Erased | None:
    id = read_key_id(content)
    return None if id is None else get_keyring(connection).find(connection, [id]).get(id)


def read_text(connection: Connection, text: T, about: str) -> T | str | Erased:
    """A text as it was given. One that no key here encrypted is itself, and ERASED one whose key is gone."""
    key = _find_key(connection, text) if isinstance(text, str) else None
    if not isinstance(key, PersonKey) or not isinstance(text, str):
        return text if key is None else ERASED
    content = _do_aside(connection, len(text), lambda: key.decrypt_text(text, about))
    return text if content is None else content.decode(errors="surrogatepass")


def read_content(connection: Connection, content: bytes, about: str) -> bytes | Erased:
    """A file as it was given, as `read_text` does."""
    key = _find_key(connection, content)
    if not isinstance(key, PersonKey):
        return content if key is None else ERASED
    found = _do_aside(connection, len(content), lambda: key.decrypt(content, about))
    return content if found is None else found


def find_stand_in(text: str) -> str:
    """What stands beside an encrypted text; any other is itself."""
    return text.partition("\n")[2] if text.startswith(_MARK) else text


def read_view(connection: Connection, text: str) -> str:
    """A view as it was written; without its key, what stands in for it."""
    view = read_text(connection, text, VIEW)
    return find_stand_in(text) if isinstance(view, Erased) else view


def encrypt_text(connection: Connection, id: str | None, text: str, about: str) -> str:
    """Encrypt a text by the key with this id, if there is one to a session. Empty once the key is erased."""
    if id is None or not text:
        return text
    key = get_keyring(connection).find(connection, [id]).get(id)
    return key.encrypt_text(text.encode(), about) if isinstance(key, PersonKey) else ""
