"""`swarmkeep verify`: whether sessions are what they were when they were recorded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NamedTuple

import msgspec
import typer

from swarmkeep.cli.completing import complete_session
from swarmkeep.cli.configure import load_settings
from swarmkeep.cli.opening import open_source
from swarmkeep.cli.options import Commands, FirstSession, JsonOutput, Quiet, SessionLines
from swarmkeep.cli.output import STANDARD, open_input, write_atomically
from swarmkeep.cli.sources import SourceOptions, to_client
from swarmkeep.cli.terminal import (
    Progress,
    Refused,
    put,
    put_bytes,
    put_json,
    put_json_line,
    put_rows,
    say,
    show_progress,
)
from swarmkeep.events.codec import to_timestamp
from swarmkeep.events.errors import InvalidImport, SessionNotFound
from swarmkeep.events.wording import pluralize
from swarmkeep_client import AuditEntry, Event, Head, SessionState, Verification
from swarmkeep_client import SessionNotFound as NoSession

if TYPE_CHECKING:
    from swarmkeep.cli.opening import Source
    from swarmkeep.history.checkpoints import CheckpointHead
    from swarmkeep.history.evidence import Package
    from swarmkeep.history.import_export import ExportCheck
    from swarmkeep.history.proofs import Note, Proof


_MAX_NAMED = 20
_NOT_CONTAINED = "not contained"
_BAD_OUTCOMES = {"truncated", "rewritten", "invalid", "vanished", "backdated"}
# Between the time of an event and that of the checkpoint that has it; clocks are not the same everywhere.
_TOLERATED = timedelta(minutes=5)
_LOG_KEY = re.compile(r"[^+]+\+[0-9a-f]{8}\+[A-Za-z0-9+/=]+")
_HEAD = re.compile(r"([1-9][0-9]{0,15}):([0-9a-fA-F]{64})", re.ASCII)


commands = Commands()


@commands.add("""
    swarmkeep verify order-4711
    swarmkeep verify --all
    swarmkeep verify order-4711 --head 13:3ea31933ae7a1c86d2344661229bf360a96681ef9e72c80cd7c3876e1c41e1a0
    swarmkeep verify --all --json
    swarmkeep verify --all --from default/order-4711    (where Ctrl-C ended it)
    swarmkeep verify --checkpoint heads.jsonl --public-key key.pub
    swarmkeep verify --checkpoint checkpoint.txt --public-key key.pub    (of `anchor`)
    swarmkeep verify order-4711.jsonl --checkpoint heads.jsonl    (an export; needs no database)
    gunzip -c sales.jsonl.gz | swarmkeep verify -
    swarmkeep verify case.zip --public-key key.pub    (an evidence package; needs no database)
""")
def verify(
    where: SourceOptions,
    session_id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID|FILE",
            help="The session's id, or the path of an export or of an evidence package; - is standard input.",
            autocompletion=complete_session,
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Check every session.")] = False,
    head: Annotated[
        str | None,
        typer.Option("--head", metavar="SEQ:HASH", help="A head recorded earlier that the log must still contain."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            metavar="FILE",
            help="Check every session of this checkpoint, or the one that is named, or those of the export; "
            "- is standard input.",
        ),
    ] = None,
    public_key: Annotated[
        str | None,
        typer.Option(
            "--public-key",
            metavar="FILE|KEY",
            help="The key that the checkpoint must be signed with: a PEM file, or the log's name and key as `anchor` "
            "prints them (NAME+ID+KEY).",
        ),
    ] = None,
    witness: Annotated[
        list[str] | None,
        typer.Option(
            "--witness", metavar="KEY", help="The key (NAME+ID+KEY) of a witness that must have signed the checkpoint."
        ),
    ] = None,
    tsa: Annotated[
        Path | None,
        typer.Option(
            "--tsa", metavar="FILE", help="The certificate (PEM) of the authority whose time stamp lies beside it."
        ),
    ] = None,
    first: FirstSession = None,
    as_json: SessionLines = False,
    quiet: Quiet = False,
) -> None:
    """Check that sessions are as they were recorded: events, hash chain, and everything stored with them. Exit code 1
    if anything is wrong.

    This changes nothing, but a session that was set aside as damaged, and is valid again, can go on afterwards."""
    _check_use(session_id, everything=everything, checkpoint=checkpoint, public_key=public_key, head=head, first=first)
    if (witness or tsa) and checkpoint is None:
        raise typer.BadParameter("it needs --checkpoint", param_hint="'--witness'" if witness else "'--tsa'")
    noted = None if head is None else _parse_head(head)
    anchors = _Anchors(public_key, witness or [], tsa)
    if session_id is not None and _is_path(session_id):
        is_good = _verify_file(Path(session_id), checkpoint, anchors, noted, as_json=as_json)
    elif checkpoint is not None:
        is_good = _verify_against_checkpoint(where, checkpoint, anchors, session_id, as_json=as_json)
    else:
        with open_source(where) as source:
            count, bad = _verify_sessions(source, session_id, noted, first, as_json=as_json, quiet=quiet)
        is_good = not bad
        if everything:
            say(f"logs checked: {count}; " + (f"not valid: {bad}" if bad else "all valid"))
    if not is_good:
        raise typer.Exit(1)


def _is_path(name: str) -> bool:
    """Tell a file from a session, whose id has no slash."""
    return name == STANDARD or "/" in name or Path(name).is_file()


def _is_package(path: Path) -> bool:
    """Tell a package by how it begins, also one that was cut off."""
    from swarmkeep.history import swarmkeep_proofs

    if not path.is_file():
        return False
    with path.open("rb") as file:
        return bool(swarmkeep_proofs.is_package(file))  # type: ignore[no-untyped-call]


def _check_use(
    session_id: str | None, *, everything: bool, checkpoint: Path | None, public_key: str | None, head: str | None,
    first: str | None,
) -> None:  # fmt: skip
    if [session_id is not None, everything].count(True) != 1 and (everything or checkpoint is None):
        if session_id is not None:
            raise typer.BadParameter("it checks every session: leave out the name, or --all", param_hint="'--all'")
        raise typer.BadParameter("name a session or a file, or give --all or --checkpoint", param_hint="'ID|FILE'")
    if session_id == STANDARD == str(checkpoint):
        raise typer.BadParameter("standard input is one of both only", param_hint="'--checkpoint'")
    if everything and checkpoint is not None:
        raise typer.BadParameter("--checkpoint names the sessions; leave --all out", param_hint="'--all'")
    if public_key is not None and checkpoint is None and not (session_id and _is_package(Path(session_id))):
        raise typer.BadParameter("it needs --checkpoint, or an evidence package", param_hint="'--public-key'")
    if head is not None and session_id is None:
        raise typer.BadParameter("it belongs to one session; name the session", param_hint="'--head'")
    if first is not None and not everything:
        raise typer.BadParameter("it needs --all", param_hint="'--from'")


def _verify_sessions(
    found: Source, session_id: str | None, noted: Head | None, first: str | None, *, as_json: bool, quiet: bool
) -> tuple[int, int]:
    """Return how many were checked, and how many of them are not valid."""
    bad = 0
    name = first

    def describe_interruption(progress: Progress) -> str:
        result = f"{progress} checked, {f'not valid: {bad}' if bad else 'all valid'}"
        return result if name is None or name.startswith("(") else f"{result}; continue with --all --from {name}"

    everything = session_id is None
    total = partial(found.count_sessions, of_all_tenants=True) if everything and first is None else None
    with show_progress(
        "verifying", "session", total, quiet=quiet or not everything, on_interrupt=describe_interruption
    ) as progress:
        for name, verification in progress.track(_verify_each(found, session_id, noted, first)):
            bad += not verification.valid
            if as_json:
                put_json_line({"session_id": name, **msgspec.structs.asdict(verification)})
            else:
                _put_verification(name, verification, noted)
    return progress.done, bad


def _verify_each(
    found: Source, session_id: str | None, noted: Head | None, first: str | None
) -> Iterator[tuple[str, Verification]]:
    if session_id is None:
        yield from found.verify_all(first=first)
        for tenant, verification in found.verify_audit():
            if verification.events or not verification.valid:
                yield f"(audit log{' of ' * bool(tenant)}{tenant})", verification
    else:
        yield session_id, found.verify(session_id, head=noted)


def _parse_head(text: str) -> Head:
    match = _HEAD.fullmatch(text)
    if match is None:
        raise typer.BadParameter("write SEQ:HASH, the hash in 64 hexadecimal digits", param_hint="'--head'")
    return Head(seq=int(match[1]), hash=match[2].lower())


def _put_verification(name: str, found: Verification, noted: Head | None) -> None:
    if found.valid and found.head is not None:
        put(f"{name}: valid, {pluralize(found.events, 'event')}, head {found.head.seq}:{found.head.hash}")
        if found.redacted_count:
            since = "" if noted is None else ", since the head was recorded"
            put(f"  {_describe_redacted(found)}{since}")
        return
    put(f"{name}: NOT VALID, {_describe_problems(found)}")
    for problem in found.problems:
        put(f"  {'' if problem.seq is None else problem.seq:>6}  {problem.code}: {problem.detail}")
    if found.problem_count > len(found.problems):
        put(f"          … and {found.problem_count - len(found.problems)} more")


def _describe_problems(found: Verification) -> str:
    return f"{pluralize(found.problem_count, 'problem')} in {pluralize(found.events, 'event')}"


def _describe_redacted(found: Verification) -> str:
    named = ", ".join(map(str, found.redacted[:_MAX_NAMED]))
    more = found.redacted_count - min(len(found.redacted), _MAX_NAMED)
    return f"redacted: {named}{f' and {more} more' if more else ''}"


class _Anchors(NamedTuple):
    """Those whose signatures a checkpoint must have."""

    public_key: str | None
    witnesses: list[str]
    tsa: Path | None

    def load_key(self) -> tuple[str | None, bytes] | None:
        """The name of the log, where that is given, and the key that it must be signed with. Raises BadCheckpoint."""
        from swarmkeep.history.anchors import parse_verifier_key
        from swarmkeep.history.checkpoints import load_public_key
        from swarmkeep.history.proofs import ED25519

        if self.public_key is None:
            return None
        if _LOG_KEY.fullmatch(self.public_key):
            key = parse_verifier_key(self.public_key, ED25519)
            return key.name, key.public
        return None, load_public_key(Path(self.public_key))

    def load_key_of_list(self) -> bytes | None:
        """The key that a list of heads must be signed with, which nothing else can sign.

        Raises BadCheckpoint, Refused.
        """
        if self.witnesses or self.tsa:
            raise Refused("a list of heads has no witnesses and no time stamps: give a checkpoint of `anchor`")
        return None if (key := self.load_key()) is None else key[1]


def _verify_against_checkpoint(
    where: SourceOptions, file: Path, anchors: _Anchors, session_id: str | None, *, as_json: bool
) -> bool:
    """Check the logs of a checkpoint against it, all or one session's, and print the outcome of each; return True if
    all is well."""
    from swarmkeep.history.proofs import MAX_NOTE_BYTES, is_note, parse_note

    with open_input(str(file)) as content:
        beginning = content.read(1)
        content.seek(0)
        if is_note(beginning):
            note = parse_note(content.read(MAX_NOTE_BYTES + 1))
            at = _check_anchors(note, file, anchors)
            if where.server_url is None:
                where = replace(where, tenant=where.tenant or note.tenant)
            with open_source(where) as source:
                return _compare_with_note(source, note, at, session_id, as_json=as_json)
        public_key = anchors.load_key_of_list()
        with open_source(where) as source:
            return _compare_with_list(source, content, public_key, session_id, as_json=as_json)


def _check_anchors(note: Note, file: Path, anchors: _Anchors) -> datetime | None:
    """When others signed the note, the first of them; None if no other had to. Raises BadCheckpoint, Refused."""
    from swarmkeep.history.anchors import check_cosignature, check_stamp, name_stamp, parse_verifier_key

    times: dict[str, datetime] = {}
    key = anchors.load_key()
    _check_log_key(note, key)
    if key is None:
        say("use --public-key to check that the checkpoint is signed by the right key")
    for text in anchors.witnesses:
        witness = parse_verifier_key(text)
        times[f"signed by {witness.name}"] = check_cosignature(note, witness)
    if anchors.tsa is not None:
        if str(file) == STANDARD:
            raise Refused("the time stamp lies beside the checkpoint: give --checkpoint a file")
        with open_input(str(name_stamp(file))) as stamp, open_input(str(file)) as content:
            times["time-stamped"] = check_stamp(stamp.read(), content.read(), anchors.tsa)
    found = "".join(f", {how} at {time:%Y-%m-%d %H:%M:%S} UTC" for how, time in times.items())
    say(f"checkpoint of the log {note.origin}, {pluralize(note.size, 'leaf', 'leaves')}{found}")
    return min(times.values(), default=None)


def _check_log_key(note: Note, key: tuple[str | None, bytes] | None) -> None:
    """A checkpoint is signed with the log's key, and is of the log of that name, where these are known. Raises
    BadCheckpoint, Refused."""
    from swarmkeep.history.proofs import check_note

    if key is None:
        return
    if key[0] not in (None, note.origin):
        raise Refused(f"the checkpoint is of the log {note.origin}, not of {key[0]}")
    check_note(note, key[1])


def _compare_with_note(
    found: Source, note: Note, at: datetime | None, session_id: str | None, *, as_json: bool
) -> bool:
    from swarmkeep.history.checkpoints import BadCheckpoint, CheckpointHead
    from swarmkeep.history.proofs import read_noted_heads

    report = _Outcomes(as_json)
    try:
        heads = read_noted_heads(note, (leaf.leaf for leaf in found.leaves()))
    except BadCheckpoint as error:
        put_json_line({"valid": False, "detail": str(error)}) if as_json else put(f"NOT VALID, {error}")
        return False
    for name, noted in heads.items():
        if session_id in (None, name):
            seq, hash = noted[-1]
            head = CheckpointHead(tenant=note.tenant, session_id=name, seq=seq, hash=hash)
            outcome, detail = _compare_log(found, head, is_elsewhere=False)
            if name is not None and outcome in ("unchanged", "redacted"):
                outcome, detail = _find_other_history(found, note.tenant, name, noted[:-1]) or (outcome, detail)
            report.add(head, outcome, detail)
    if session_id is not None and not report.counts:
        raise Refused(f"the checkpoint has no head of session {session_id}")
    if at is not None:
        for backdated, detail in _find_backdated(found, heads, at, session_id):
            report.add(msgspec.structs.replace(backdated, tenant=note.tenant), "backdated", detail)
    report.put_sums(None)
    return report.is_good


def _find_other_history(
    found: Source, tenant: str, name: str, noted: Sequence[tuple[int, str]]
) -> tuple[str, str] | None:
    """The outcome for a session whose earlier leaves are not of the history that it has now."""
    from swarmkeep.history.checkpoints import CheckpointHead

    deleted = None
    seqs = {seq for seq, _ in noted}
    first, last = min(seqs, default=1), max(seqs, default=0)
    events = islice(found.events(name, after=first - 1), last - first + 1) if seqs else ()
    there = {event.seq: event.hash for event in events if event.seq in seqs}
    for seq, hash in noted:
        if there.get(seq) != hash:
            # The id may have been used again.
            head = CheckpointHead(tenant=tenant, session_id=name, seq=seq, hash=hash)
            if not (deletion := _find_deletion(found, head)):
                return "rewritten", f"event {seq} had another hash when an earlier checkpoint was made"
            deleted = "deleted", f"{deletion}, and created again"
    return deleted


def _find_backdated(
    found: Source, heads: Mapping[str | None, Sequence[tuple[int, str]]], at: datetime, session_id: str | None
) -> Iterator[tuple[CheckpointHead, str]]:
    """Events, and entries of the audit log, that say that they are older than the checkpoint, which does not have them.

    What was copied, by a fork or an import, has the times of where it is from; the event that says so has its own.
    """
    from swarmkeep.history.checkpoints import CheckpointHead

    limit = at - _TOLERATED

    def tell(name: str | None, old: Event | AuditEntry) -> tuple[CheckpointHead, str]:
        what = "event" if name is not None else "entry"
        head = CheckpointHead(tenant=None, session_id=name, seq=old.seq, hash=old.hash)
        return head, f"{what} {old.seq} says {old.at}, but was not recorded yet at {at:%Y-%m-%d %H:%M:%S} UTC"

    if session_id is None:
        last, _ = heads.get(None, [(0, "")])[-1]
        entries = (one for one in found.audit(after=last) if datetime.fromisoformat(one.at) < limit)
        yield from (tell(None, one) for one in islice(entries, 1))
    for session in found.sessions(children=True):
        if session_id not in (None, session.id):
            continue
        after = _find_place(found, session, heads.get(session.id))
        old: Event | None = None
        for event in found.events(session.id, after=after):
            if event.type in ("session.forked", "session.imported"):
                old = None
            if old is None and datetime.fromisoformat(event.at) < limit:
                old = event
        if old is not None:
            yield tell(session.id, old)


def _find_place(found: Source, session: SessionState, noted: Sequence[tuple[int, str]] | None) -> int:
    """The last event of a session that its leaves have; 0 where they are of another one that had its id."""
    if not noted:
        return 0
    seq, hash = noted[-1]
    if (session.seq, session.hash) == noted[-1]:
        return seq
    event = next(iter(found.events(session.id, after=seq - 1)), None)
    return 0 if event is None or event.hash != hash else seq


def _compare_with_list(
    found: Source, lines: BinaryIO, public_key: bytes | None, session_id: str | None, *, as_json: bool
) -> bool:
    from swarmkeep.history.checkpoints import read_heads, verify_checkpoint

    report = _Outcomes(as_json)
    seal = verify_checkpoint(lines, public_key)
    audits = [head for head in read_heads(lines, seal) if head.session_id is None]
    others = {head.tenant for head in audits if _begins_otherwise(found, head)}
    if others:
        lines.seek(0)
        others -= {
            head.tenant for head in read_heads(lines, seal) if head.tenant in others and _is_at_home(found, head)
        }
    lines.seek(0)
    for noted in read_heads(lines, seal):
        if session_id in (None, noted.session_id):
            report.add(noted, *_compare_log(found, noted, is_elsewhere=noted.tenant in others))
    if session_id is not None and not report.counts:
        raise Refused(f"the checkpoint has no head of session {session_id}")
    report.put_sums(seal.public_key if public_key is None else None)
    if others:
        say("the checkpoint was made of another database: a session that is not here is not counted as lost")
    return report.is_good


class _Outcomes:
    """Prints what became of each head of a checkpoint, and counts."""

    def __init__(self, as_json: bool) -> None:
        self.counts: dict[str, int] = {}
        self._as_json = as_json

    @property
    def is_good(self) -> bool:
        return not (_BAD_OUTCOMES & self.counts.keys() or self._has_nothing)

    @property
    def _has_nothing(self) -> bool:
        return self.counts.keys() == {_NOT_CONTAINED}

    def add(self, noted: CheckpointHead, outcome: str, detail: str) -> None:
        self.counts[outcome] = self.counts.get(outcome, 0) + 1
        if self._as_json:
            put_json_line({**msgspec.structs.asdict(noted), "outcome": outcome, "detail": detail})
        elif outcome not in ("unchanged", _NOT_CONTAINED):
            shown = outcome.upper() if outcome in _BAD_OUTCOMES else outcome
            put(f"{_name_log(noted)}: {shown}{f', {detail}' if detail else ''}")

    def put_sums(self, unchecked_key: str | None) -> None:
        if unchecked_key is not None:
            say(f"signed with {unchecked_key}; use --public-key to check that it is the right key")
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.counts.items()))
        say(counts or "the checkpoint has no heads")
        if self._has_nothing:
            say("NOT CONTAINED: nothing that was to be compared is here")


def _begins_otherwise(found: Source, noted: CheckpointHead) -> bool:
    """Tell if the audit log here begins with another entry than the one of the checkpoint's database."""
    first = next(iter(found.audit(noted.tenant)), None)
    return noted.first is not None and first is not None and first.seq == 1 and first.hash != noted.first


def _is_at_home(found: Source, noted: CheckpointHead) -> bool:
    """Tell if a session of the checkpoint is here without having been imported since: then this is the checkpoint's
    database, and what is missing of its audit log was removed."""
    if noted.session_id is None:
        return False
    try:
        events = found.events(noted.session_id, after=noted.seq - 1, tenant=noted.tenant)
        return next(events).hash == noted.hash and all(event.type != "session.imported" for event in events)
    except (SessionNotFound, NoSession, StopIteration):
        return False


def _compare_log(found: Source, noted: CheckpointHead, *, is_elsewhere: bool) -> tuple[str, str]:
    head = Head(seq=noted.seq, hash=noted.hash)
    if noted.session_id is None and is_elsewhere:
        return _NOT_CONTAINED, ""
    try:
        if noted.session_id is None:
            verification = found.verify_audit_head(noted.tenant, head)
        else:
            verification = found.verify(noted.session_id, head=head, tenant=noted.tenant)
    except (SessionNotFound, NoSession):
        if is_elsewhere:
            return _NOT_CONTAINED, ""
        deletion = _find_deletion(found, noted)
        if deletion:
            return "deleted", deletion
        return "vanished", f"it had {pluralize(noted.seq, 'event')}, and no deletion is recorded"
    if verification.valid:
        return ("redacted", _describe_redacted(verification)) if verification.redacted_count else ("unchanged", "")
    lost = next((one for one in verification.problems if one.code in ("truncated", "rewritten")), None)
    if lost is None:
        return "invalid", verification.problems[0].detail
    deletion = "" if noted.session_id is None else _find_deletion(found, noted)
    return ("deleted", f"{deletion}, and created again") if deletion else (lost.code, lost.detail)


def _verify_file(path: Path, checkpoint: Path | None, anchors: _Anchors, noted: Head | None, *, as_json: bool) -> bool:
    """Verify an export or a package, against a checkpoint too if there is one; return True if all is well. Needs no
    database. A package is compared with its own checkpoint, where no other is given."""
    from swarmkeep.history.evidence import open_package
    from swarmkeep.history.foreign.documents import find_beginning
    from swarmkeep.history.import_export import ExportCheck

    with ExitStack() as opened:
        file = opened.enter_context(open_input(str(path)))
        lines = None if checkpoint is None else opened.enter_context(open_input(str(checkpoint)))
        try:
            if (package := opened.enter_context(open_package(file))) is not None:
                _check_package_key(package, anchors, is_compared=checkpoint is not None)
                file, lines = package.events, lines or package.heads
            else:
                find_beginning(file)
            check = ExportCheck(file)
            for session_id, found in check.verify():
                if as_json and (checkpoint is None or not found.valid):
                    put_json_line({"session_id": session_id, **msgspec.structs.asdict(found)})
                elif checkpoint is None or not found.valid:
                    _put_verification(session_id, to_client(found, Verification), None)
            if not check.heads:
                say("the file has no sessions")
        except InvalidImport as error:
            put_json_line({"valid": False, "detail": str(error)}) if as_json else put(f"{path}: NOT VALID, {error}")
            return False
        is_whole = not check.missing
        if noted is not None:
            return _compare_only_session(check, noted) and is_whole
        proofs = () if package is None else package.proofs
        is_good = lines is None or _compare_with_heads(
            check, lines, checkpoint, anchors, proofs, as_json=as_json and checkpoint is not None
        )
        return is_good and is_whole


def _check_package_key(package: Package, anchors: _Anchors, *, is_compared: bool) -> None:
    """Say whose word the package is, apart from what is proven of its events.

    A checkpoint that was given may be signed with another key than the package. Raises BadCheckpoint.
    """
    from swarmkeep.history.checkpoints import BadCheckpoint
    from swarmkeep.history.swarmkeep_proofs import UNSIGNED

    key = anchors.load_key()
    if key is not None and package.signed == key[1]:
        return
    if key is not None and not is_compared:
        raise BadCheckpoint("the package is not signed with this key")
    say(UNSIGNED)


def _compare_with_heads(
    check: ExportCheck, lines: BinaryIO, file: Path | None, anchors: _Anchors, proofs: Sequence[Proof], *, as_json: bool
) -> bool:
    """Compare the sessions of an export with a list of heads, or those of a package with a checkpoint of `anchor`."""
    from swarmkeep.history.checkpoints import read_heads, verify_checkpoint
    from swarmkeep.history.proofs import MAX_NOTE_BYTES, Proof, is_note, parse_note

    report = _Outcomes(as_json)
    unchecked = None
    by_note = is_note(lines.read(1))
    lines.seek(0)
    if by_note:
        note = parse_note(lines.read(MAX_NOTE_BYTES + 1))
        _check_anchors(note, file or Path(STANDARD), anchors)
        if not proofs:
            raise Refused("the file has no proofs: give an evidence package, or a list of heads")
        own, others = list[Proof](), list[Proof]()
        for proof in proofs:
            leads_here = parse_note(proof.checkpoint.note.encode()).text == note.text
            (own if leads_here else others).append(proof)
        for _, head in _read_proofs(own):
            say(f"{head.session_id}: the checkpoint has its events up to {head.seq}, and may have later ones")
            report.add(head, *check.compare(head.session_id, head.seq, head.hash))
        uncovered = check.list_uncompared()
        _check_own_proofs(check, others, None, report)
    else:
        key = anchors.load_key_of_list()
        seal = verify_checkpoint(lines, key)
        unchecked = seal.public_key if key is None else None
        for head, outcome, detail in _compare_listed(check, read_heads(lines, seal)):
            report.add(head, outcome, detail)
        uncovered = check.list_uncompared()
        _check_own_proofs(check, proofs, anchors.load_key(), report)
    for session_id in uncovered:
        why = "no proof leads to the checkpoint" if by_note else "the checkpoint has no head of it"
        if as_json:
            put_json_line({"session_id": session_id, "outcome": "not covered", "detail": why})
        else:
            put(f"{session_id}: NOT COVERED, {why}")
    report.put_sums(unchecked)
    return report.is_good and not uncovered


def _compare_listed(check: ExportCheck, heads: Iterable[CheckpointHead]) -> Iterator[tuple[CheckpointHead, str, str]]:
    """The outcome for each head of a list. An export does not say of which tenant it is: of several heads of one
    session id, those that it goes on from count, and the others are of other tenants."""
    found: dict[str, list[tuple[CheckpointHead, str, str]]] = {}
    for head in heads:
        compared = (head, *check.compare(head.session_id, head.seq, head.hash))
        if compared[1] == _NOT_CONTAINED:
            yield compared
        else:
            found.setdefault(head.session_id or "", []).append(compared)
    for several in found.values():
        is_there = any(outcome == "unchanged" for _, outcome, _ in several)
        for head, outcome, detail in several:
            yield (head, _NOT_CONTAINED, "") if is_there and outcome != "unchanged" else (head, outcome, detail)


def _read_proofs(proofs: Sequence[Proof]) -> Iterator[tuple[Note, CheckpointHead]]:
    """The checkpoint that each proof leads to, and the head that it proves. Raises BadCheckpoint."""
    from swarmkeep.history.checkpoints import CheckpointHead
    from swarmkeep.history.proofs import check_proof

    for proof in proofs:
        note, session_id, seq, hash = check_proof(proof)
        yield note, CheckpointHead(tenant=note.tenant, session_id=session_id, seq=seq, hash=hash)


def _check_own_proofs(
    check: ExportCheck, proofs: Sequence[Proof], key: tuple[str | None, bytes] | None, report: _Outcomes
) -> None:
    """Check that the proofs of a package are right, although they lead to no checkpoint that was given."""
    for note, head in _read_proofs(proofs):
        _check_log_key(note, key)
        outcome, detail = check.compare(head.session_id, head.seq, head.hash)
        if outcome != "unchanged":
            report.add(head, "invalid", detail or "it is proven, but not there")


def _compare_only_session(check: ExportCheck, noted: Head) -> bool:
    if len(check.heads) != 1:
        raise Refused("--head belongs to one session, and the file has another number of them")
    outcome, detail = check.compare(next(iter(check.heads)), noted.seq, noted.hash)
    if outcome in _BAD_OUTCOMES:
        put(f"{outcome.upper()}, {detail}")
    return outcome not in _BAD_OUTCOMES


def _find_deletion(found: Source, noted: CheckpointHead) -> str:
    """Return the audit log's entry on the session's end, if it has one."""
    for entry in found.audit(noted.tenant):
        data = entry.data
        if entry.type != "session.deleted":
            continue
        seq = data.get("seq")
        if data.get("session_id") != noted.session_id or not isinstance(seq, int):
            continue
        # Another session may have had the id.
        if seq > noted.seq or (seq, data.get("hash")) == (noted.seq, noted.hash):
            return f"deleted at {entry.at} by {entry.by or 'somebody'}: {data.get('reason') or 'no reason given'}"
    return ""


def _name_log(noted: CheckpointHead) -> str:
    tenant = f"{noted.tenant}/" if noted.tenant else ""
    return f"{tenant}{noted.session_id}" if noted.session_id is not None else f"audit log {noted.tenant or ''}".strip()


# `swarmkeep checkpoint`: write down where all logs end.


@commands.add("""
    swarmkeep checkpoint --output heads.jsonl
    swarmkeep checkpoint --signing-key key.pem --output heads.jsonl
    swarmkeep verify --checkpoint heads.jsonl --public-key key.pub
""")
def checkpoint(
    where: SourceOptions,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to this file; by default to standard output."),
    ] = None,
    signing_key: Annotated[
        Path | None,
        typer.Option(
            "--signing-key", metavar="FILE", help="Sign with this Ed25519 key (PEM). [env: SWARMKEEP_SIGNING_KEY]"
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Record the last seq and hash of every session and of the audit log, signed if there is a key. Keep the file
    elsewhere."""
    from swarmkeep.history.checkpoints import load_signer, write_checkpoint

    settings = load_settings(signing_key=signing_key)
    at = to_timestamp(datetime.now(UTC))
    key = load_signer(settings.signing_key)
    with open_source(where) as source:
        if output is None:
            put_bytes(write_checkpoint(source.heads(), at, key))
            return
        count = 0

        def count_lines() -> Iterator[bytes]:
            nonlocal count
            for line in write_checkpoint(source.heads(), at, key):
                count += 1
                yield line

        unwritten = f"nothing was written to {output}"
        with show_progress("recording", "head", quiet=quiet, on_interrupt=lambda _: unwritten) as progress:
            write_atomically(output, progress.track(count_lines()))
    say(f"wrote {pluralize(count - 2, 'head')} to {output}, {'not ' if key is None else ''}signed")


# `swarmkeep audit`: what was done to whole sessions.


@commands.add("""
    swarmkeep audit
    swarmkeep audit --json
""")
def audit(
    where: SourceOptions,
    as_json: JsonOutput = False,
) -> None:
    """Show the audit log: what was done to whole sessions and to keys, when, by whom and why, and when servers
    started."""
    with open_source(where) as source:
        entries = list(source.audit())
    if as_json:
        put_json(entries)
        return
    rows = [
        (
            str(one.seq), f"{one.at[:19]}Z", one.type, _name_subject(one.data), _name_details(one.data), one.by or "",
            str(one.data.get("reason") or ""),
        )
        for one in entries
    ]  # fmt: skip
    put_rows(("SEQ", "AT", "TYPE", "ABOUT", "WHAT", "BY", "REASON"), rows, none="the audit log is empty")


_SUBJECTS = ("session_id", "key_id", "webhook_id", "agent_id", "address", "server", "key")


def _name_details(data: Mapping[str, Any]) -> str:
    """What was decided, on which events; of a key its name and role, of a webhook its state, of an agent its
    version."""
    seqs = data.get("seqs") or ([data["seq"]] if data.get("seq") is not None else [])
    parts = [str(data[name]) for name in ("decision", "name", "role", "source", "state", "url") if data.get(name)]
    if isinstance(data.get("sessions"), int):
        parts.append(pluralize(data["sessions"], "session"))
    if "agent_id" in data:
        parts.append(f"version {data['version']}")
    if seqs:
        parts.append(f"{'event' if len(seqs) == 1 else 'events'} {', '.join(map(str, seqs))}")
    return ", ".join(parts)


def _name_subject(data: Mapping[str, Any]) -> str:
    """Name the subject of an entry: a session, a key, a webhook, an agent that a client made, a server, or the key of a
    person."""
    return str(next((data[name] for name in _SUBJECTS if name in data), ""))
