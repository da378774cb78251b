"""A tenant's audit log: what was done to sessions that no session's events can tell, because they are gone."""

from __future__ import annotations

import msgspec

from swarmkeep.audit.verify.problems import Head, Problems, Verification
from swarmkeep.domain.codec import MalformedJson, decode, encode
from swarmkeep.store.archive import Archive
from swarmkeep.store.hashing import AUDIT_LOG, FORMATS, GENESIS, SALT_BYTES, commitment_of, find_format, header_of
from swarmkeep.store.ports.audit import AuditLogEntry

_PAGE_ENTRIES = 500


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a tenant's audit log. `by` is null if it is not known; `hash` chains the entry to those before it."""

    seq: int
    type: str
    by: str | None
    at: str
    data: msgspec.Raw
    hash: str


def view_entry(entry: AuditLogEntry) -> AuditEntry:
    return AuditEntry(
        seq=entry.seq, type=entry.type, by=entry.by, at=entry.at, data=_read_data(entry.payload), hash=entry.hash.hex()
    )


def _read_data(payload: str) -> msgspec.Raw:
    try:
        decode(payload)
    except MalformedJson:
        # Somebody damaged it.
        return msgspec.Raw(encode(payload))
    return msgspec.Raw(payload.encode())


async def verify_audit_log(store: Archive, tenant: str, *, noted: Head | None = None) -> Verification:
    """Check a tenant's audit log as a session's events are checked."""
    findings = Problems()
    findings.add_replaced_tables(
        await store.read_snapshot(lambda stored: stored.find_replaced_tables(of_audit_log=True))
    )
    previous, last = GENESIS, 0
    while page := await store.read_audit_log(tenant, after=last, limit=_PAGE_ENTRIES):
        for entry in page:
            if entry.seq != last + 1:
                findings.add("event_missing", f"entry {last + 1} of the audit log is missing", last + 1)
                previous = b""
            last = entry.seq
            header = header_of(entry.seq, entry.type, entry.version, None, entry.by or "", entry.at)
            format = find_format(previous, header, entry.commitment, entry.hash, chain=AUDIT_LOG)
            if previous and format is None:
                findings.add(
                    "hash_differs",
                    f"entry {last} of the audit log: its hash does not match it and the hash before it",
                    last,
                )
            _check_payload(entry, FORMATS if format is None else (format,), findings)
            previous = entry.hash
            if noted is not None and noted.seq == last and noted.hash != entry.hash.hex():
                findings.add("rewritten", f"entry {last} of the audit log had another hash in the earlier head", last)
    if noted is not None and noted.seq > last:
        findings.add(
            "truncated", f"the audit log ends with entry {last}, but the earlier head is entry {noted.seq}", last + 1
        )
    return findings.make_verification(last, Head(seq=last, hash=previous.hex()) if last else None)


def _check_payload(entry: AuditLogEntry, formats: tuple[int, ...], findings: Problems) -> None:
    name = f"entry {entry.seq} of the audit log"
    if all(commitment_of(entry.salt, entry.payload, format) != entry.commitment for format in formats):
        findings.add("payload_differs", f"{name} is not what was recorded", entry.seq)
    if len(entry.salt) != SALT_BYTES:
        findings.add("salt_invalid", f"{name}: its salt has {len(entry.salt)} bytes, not {SALT_BYTES}", entry.seq)
    if not isinstance(_decode_object(entry.payload), dict):
        findings.add("payload_invalid", f"{name} is not a JSON object", entry.seq)
    if not entry.as_written:
        findings.add("row_differs", f"{name}: its row is not written as a server writes it", entry.seq)


def _decode_object(payload: str) -> object:
    try:
        return decode(payload)
    except MalformedJson:
        return None
