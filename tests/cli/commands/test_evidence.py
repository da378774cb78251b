"""`swarmkeep evidence`: a package that is checked with nothing but Python, and that tells of each changed byte."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import py_compile
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import pytest

from swarmkeep.decide.commands import create_session
from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.facts import MessageAdded, RunStarted, ToolStarted
from swarmkeep.events.records import CompletionRecord, RunOptions
from swarmkeep.events.state import State
from swarmkeep.history import swarmkeep_proofs, swarmkeep_verify
from swarmkeep.history.anchors import format_verifier_key
from swarmkeep.history.checkpoints import load_public_key, load_signer
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import SessionKey
from swarmkeep.store.schema import upgrade
from tests.cli.command_line import ACME, CommandLine
from tests.cli.conftest import RecordedSession, serve_copy
from tests.support.anchors import Witness, serving
from tests.support.processes import ServerProcess
from tests.support.signing import write_keys

pytestmark = pytest.mark.long

PROGRAMS = [Path(program.__file__) for program in (swarmkeep_verify, swarmkeep_proofs)]


def check(package: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Check a package as a stranger does: the program that lies in it, an empty environment, nothing installed."""
    for program in PROGRAMS:
        shutil.copy(program, package.parent)
    command = [sys.executable, "-I", "-S", "swarmkeep_verify.py", package.name, *options]
    return subprocess.run(command, cwd=package.parent, env={}, capture_output=True, text=True, check=False)


def test_package_is_checked_by_stranger(
    cli: CommandLine, recorded: RecordedSession, place: list[str], tmp_path: Path
) -> None:
    private, public = write_keys(tmp_path, "key")
    cli("sessions", "fork", recorded.session_id, "--id", "packed", *place)
    cli("sessions", "redact", "packed", "--seq", "3", "--reason", "a name", *place)
    if "--database-url" in place:
        cli("keys", "create", "--name", "desk", "--role", "support", *place)
        key_id = cli("keys", "list", "--json", *place).json[-1]["id"]
        cli("sessions", "rename", "packed", f"by {key_id}", *place)
    package = tmp_path / "case.zip"
    on_server = "--url" in place
    signing = {"SWARMKEEP_SIGNING_KEY": str(private)}
    assert cli("anchor", "-o", str(tmp_path / "note"), *place, env=signing).code == 0
    named = [] if on_server else ["--signing-key", str(private)]
    made = cli("evidence", recorded.session_id, "packed", "-o", str(package), *named, *place)
    assert (made.code, made.out) == (0, "")
    assert "wrote 2 sessions" in made.err
    with zipfile.ZipFile(package) as opened:
        manifest = json.loads(opened.read("manifest.json"))
        readme, audit = opened.read("README.txt").decode(), opened.read("audit.jsonl").decode()
        key = json.loads(opened.read("checkpoint.jsonl").splitlines()[-1]).get("public_key")
        assert all(opened.read(one.name) == one.read_bytes() for one in PROGRAMS)
        transcript = opened.read("transcript-2.html").decode()
    assert "verified when this was written" in transcript
    assert "has these instructions" in transcript
    assert [one["id"] for one in manifest["sessions"]] == [recorded.session_id, "packed"]
    assert "verified when this package was written" in readme
    assert '"session.redacted"' in audit
    assert ('"role":"support"' in audit) == ("--database-url" in place)
    assert all(one.name in manifest["files"] and one.name in readme for one in PROGRAMS)
    assert (key is None) == on_server
    found = check(package, *([] if on_server else ["--public-key", key]))
    assert (found.returncode, found.stderr) == (0, "")
    assert "packed: valid" in found.stdout
    assert "redacted: 3" in found.stdout
    assert "packed: event " in found.stdout
    assert "proofs.jsonl" in readme
    assert check(package, "--public-key", "0" * 64).returncode == 1
    ours = cli("verify", str(package), *([] if on_server else ["--public-key", str(public)]))
    assert (ours.code, "packed: valid" in ours.out, "2 unchanged" in ours.err) == (0, True, True)
    cli("sessions", "delete", "packed", *place)
    missing = cli("evidence", "packed", "-o", str(tmp_path / "none.zip"), *place)
    assert (missing.code, "packed" in missing.err, (tmp_path / "none.zip").exists()) == (1, True, False)


def test_programs_load_only_what_lies_beside_them(cli: CommandLine, recorded: RecordedSession, tmp_path: Path) -> None:
    """Nothing of the folder that they are started in, nor what was compiled before, and never less than is asked."""
    case, key = tmp_path / "case", "0" * 64
    case.mkdir()
    for name in ("swarmkeep_proofs.py", "swarmkeep_verify.py", "json.py", "zipfile.py"):
        (case / name).write_text("raise SystemExit('loaded')")
    assert cli("evidence", recorded.session_id, "-o", str(case / "case.zip"), *recorded.options).code == 0
    assert cli("export", recorded.session_id, "-o", str(case / "one.jsonl"), *recorded.options).code == 0
    assert cli("checkpoint", "-o", str(case / "heads.jsonl"), *recorded.options).code == 0
    own = tmp_path / "own"
    own.mkdir()
    program = shutil.copy(PROGRAMS[0], own)

    def run(*arguments: str, python: Sequence[str] = ("-I", "-S")) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *python, str(program), *arguments]
        return subprocess.run(command, cwd=case, env={}, capture_output=True, text=True, check=False)

    assert run("one.jsonl").stdout.startswith(f"{recorded.session_id}: valid")
    more = (
        ["case.zip"], ["one.jsonl", "--checkpoint", "heads.jsonl"], ["one.jsonl", "--public-key", key],
        ["--witness", key, "one.jsonl"], ["case.zip", "--checkpoint", ""],
    )  # fmt: skip
    for arguments in more:
        refused = run(*arguments)
        assert (refused.returncode, refused.stdout) == (2, ""), refused
        assert "put swarmkeep_proofs.py beside this file" in refused.stderr
    shutil.copy(PROGRAMS[1], own)
    planted = Path(cache_from_source(str(own / "swarmkeep_proofs.py")))
    planted.parent.mkdir()
    (own / "planted.py").write_text("raise SystemExit('loaded')")
    py_compile.compile(
        str(own / "planted.py"), str(planted), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    for python in ([], ["-I"], ["-S"], ["-O"], ["-OO"], ["-B"], ["-I", "-S", "-W", "error", "-X", "dev"]):
        for arguments in more[:2]:
            found = run(*arguments, python=python)
            assert (found.returncode, f"{recorded.session_id}: valid" in found.stdout) == (0, True), (python, found)
        for arguments in more[2:]:
            assert run(*arguments, python=python).returncode == 2


def test_package_without_audit_log_says_so(cli: CommandLine, recorded: RecordedSession, tmp_path: Path) -> None:
    database = f"sqlite:///{shutil.copy(recorded.file, tmp_path / 'copy.db')}"
    key, writing = (
        cli("keys", "create", "--name", f"the {role}r", "--role", role, "--database-url", database).out.strip()
        for role in ("read", "write")
    )
    package, whole = tmp_path / "case.zip", tmp_path / "whole.zip"
    with ServerProcess(tmp_path, database_url=database, agents=[ACME]) as server:
        place = ("--url", server.url, "--api-key")
        assert cli("sessions", "note", recorded.session_id, "seen", *place, writing).code == 0
        made = cli("evidence", recorded.session_id, "-o", str(package), *place, key)
        assert cli("evidence", recorded.session_id, "-o", str(whole), *place, writing).code == 0
    assert made.code == 0, made.err
    for file, has_roles in ((package, False), (whole, True)):
        with zipfile.ZipFile(file) as opened:
            shown = opened.read("transcript-1.html").decode()
            assert ("the writer, role write, made 2" in shown) == has_roles
    with zipfile.ZipFile(package) as opened:
        assert "audit.jsonl" not in opened.namelist()
        assert "may not read the audit log" in opened.read("README.txt").decode()
    assert check(package).returncode == 0


def test_package_names_asked_sessions_that_it_lacks(cli: CommandLine, tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "ask_front", "arguments": "{}"}}
    reply = MessageAdded(
        message={"role": "assistant", "content": None, "tool_calls": [call], "sender": "Front"},
        completion=CompletionRecord(),
    )
    asked = ToolStarted(tool_call_id="c1", name="ask_front", arguments="{}", session_id="subsess_1")

    async def work() -> None:
        upgrade(database)
        store = open_store(database)
        for name, facts in (("asking", [reply, asked]), ("subsess_1", [])):
            begun = [*create_session("Front", {}, {}, []), RunStarted(options=RunOptions())]
            await store.append(SessionKey("default", name), State(), draft_events("Front", [*begun, *facts], "run_1"))
        await store.close()

    database = f"sqlite:///{tmp_path / 'swarmkeep.db'}"
    asyncio.run(work())
    for ids, is_told in ((["asking"], True), (["asking", "subsess_1"], False)):
        assert cli("evidence", *ids, "-o", "case.zip").code == 0
        with zipfile.ZipFile(tmp_path / "case.zip") as opened:
            readme = opened.read("README.txt").decode()
        assert ("not here: subsess_1, in which an agent of asking asked another" in readme) == is_told


def test_package_goes_to_standard_output(process: CommandLine, recorded: RecordedSession, tmp_path: Path) -> None:
    package = tmp_path / "case.zip"
    with package.open("wb") as file:
        made = process.to(file.fileno(), "evidence", recorded.session_id, "-o", "-", *recorded.options)
    assert made.code == 0
    assert f"SHA-256 {hashlib.sha256(package.read_bytes()).hexdigest()}" in made.err
    assert check(package).returncode == 0


def test_package_is_proven_from_checkpoint_of_others(
    cli: CommandLine, recorded: RecordedSession, tmp_path: Path
) -> None:
    """Its checkpoint was signed by a witness long before; the package is made when the log has gone on."""
    private, public = write_keys(tmp_path, "key")
    signing = {"SWARMKEEP_SIGNING_KEY": str(private)}
    package, held, key = tmp_path / "case.zip", tmp_path / "held.txt", load_public_key(public).hex()
    one = Witness()
    with (
        serving(one.answer) as url,
        serve_copy(recorded, tmp_path, env=signing) as server,
    ):
        for place in (["--url", server.url], ["--database-url", server.database_url]):
            witness = ["--witness", url, "--witness-key", one.verifier_key]
            assert cli("anchor", "-o", str(held), *witness, *place, env=signing).code == 0
            name = f"late{place[0]}"
            for _ in range(3):
                cli("sessions", "rename", recorded.session_id, "renamed", *place)
                cli("sessions", "fork", recorded.session_id, "--id", name, *place)
                assert cli("anchor", "-o", str(tmp_path / "newer.txt"), *place, env=signing).code == 0
            made = cli(
                "evidence", recorded.session_id, "-o", str(package), "--checkpoint", str(held), *place, env=signing
            )
            assert made.code == 0, made.err
            required = ["--checkpoint", held.name, "--public-key", key, "--witness", one.verifier_key]
            found = check(package, *required)
            assert (found.returncode, found.stderr) == (0, ""), found
            assert "the checkpoint was signed by witness.example at 2" in found.stdout
            ours = ["--public-key", str(public), "--witness", one.verifier_key]
            assert cli("verify", str(package), "--public-key", format_named(key)).code == 0
            assert check(package, "--public-key", format_named(key)).returncode == 0
            # The same key signs another log of the operator's.
            other_log = ["--public-key", format_named(key, "swarmkeep/other")]
            assert "not of swarmkeep/other" in cli("verify", str(package), *other_log).err
            assert "not from swarmkeep/other" in check(package, *other_log).stderr
            verified = cli("verify", str(package), "--checkpoint", str(held), *ours)
            assert (verified.code, "1 unchanged" in verified.err) == (0, True), verified
            assert f"{recorded.session_id}: the checkpoint has its events up to " in verified.err
            # A checkpoint that the proofs do not lead to, one without the witness, and none at all.
            newer = ["--checkpoint", "newer.txt", "--public-key", key]
            named = format_named(key)
            assert check(package, "--checkpoint", held.name, "--public-key", named).returncode == 0
            for wrong, why in (
                (
                    ["--checkpoint", held.name, "--public-key", format_named(key, "xswarmkeep/default")],
                    "not of xswarmkeep",
                ),
                (newer, "leads to the checkpoint that was given"),
                ([*newer, "--witness", one.verifier_key], "is not signed by witness.example"),
                (["--witness", one.verifier_key], "only a checkpoint of the log is signed by witnesses"),
                ([*required, "--witness", Witness("other").verifier_key], "is not signed by other"),
            ):
                assert why in check(package, *wrong).stderr
            other = cli(
                "verify", str(package), "--checkpoint", str(tmp_path / "newer.txt"), "--public-key", str(public)
            )
            assert (other.code, "NOT COVERED, no proof leads to the checkpoint" in other.out) == (1, True)
            missing = cli("evidence", name, "-o", str(package), "--checkpoint", str(held), *place)
            assert (missing.code, "checkpoint" in missing.err) == (1, True), missing
    assert cli("export", recorded.session_id, "-o", "one.jsonl", "--database-url", server.database_url).code == 0
    assert "no proofs" in cli("verify", "one.jsonl", "--checkpoint", str(held)).err


def format_named(key: str, log: str = "swarmkeep/default") -> str:
    return format_verifier_key(log, bytes.fromhex(key))


def test_package_has_no_proof_of_former_session(cli: CommandLine, recorded: RecordedSession, tmp_path: Path) -> None:
    place = ["--database-url", f"sqlite:///{shutil.copy(recorded.file, tmp_path / 'copy.db')}"]
    package, held = tmp_path / "case.zip", tmp_path / "held.txt"
    cli("sessions", "fork", recorded.session_id, "--id", "again", *place)
    assert cli("anchor", "-o", str(held), *place).code == 0
    cli("sessions", "delete", "again", *place)
    cli("sessions", "fork", recorded.session_id, "--at", "2", "--id", "again", *place)
    made = cli("evidence", "again", "-o", str(package), *place)
    assert made.code == 0, made.err
    assert check(package).returncode == 0
    refused = cli("evidence", "again", "-o", str(package), "--checkpoint", str(held), *place)
    assert (refused.code, "checkpoint 1" in refused.err) == (1, True), refused


def test_false_proof_in_package_is_found(cli: CommandLine, recorded: RecordedSession, tmp_path: Path) -> None:
    """Who packs the files anew, with a manifest that fits, cannot make the proofs fit."""
    database = f"sqlite:///{shutil.copy(recorded.file, tmp_path / 'copy.db')}"
    package = tmp_path / "case.zip"
    cli("sessions", "fork", recorded.session_id, "--id", "other", "--database-url", database)
    assert cli("anchor", "--database-url", database).code == 0
    for spoil in (
        lambda proof: {**proof, "index": 1 - proof["index"]},
        lambda proof: {**proof, "inclusion": []},
        lambda proof: {**proof, "inclusion": ["00" * 32]},
        lambda proof: {**proof, "leaf": proof["leaf"].replace(recorded.session_id, "other")},
        lambda proof: {**proof, "leaf": proof["leaf"].replace(proof["hash"], "00" * 32)},
    ):
        made = cli("evidence", recorded.session_id, "-o", str(package), "--database-url", database)
        assert made.code == 0, made.err
        repack(package, spoil)
        assert check(package).returncode == 1
        ours = cli("verify", str(package))
        assert (ours.code, "Traceback" in ours.err) == (1, False), ours


SPOILT = {
    "transcript-1.html", "audit.jsonl", "README.txt", "events.jsonl", "checkpoint.jsonl",
    *(program.name for program in PROGRAMS),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SPOILT))
def test_file_changed_with_its_digest_is_found_by_key(
    cli: CommandLine, recorded: RecordedSession, tmp_path: Path, name: str
) -> None:
    """Who makes the manifest anew cannot sign it: not without a signature, nor with the old one, nor with a key of
    their own, is the package taken for the operator's."""
    database = f"sqlite:///{shutil.copy(recorded.file, tmp_path / 'copy.db')}"
    private, public = write_keys(tmp_path, "key")
    stranger, _ = write_keys(tmp_path, "stranger")
    package, key = tmp_path / "case.zip", load_public_key(public).hex()
    making = ["evidence", recorded.session_id, "-o", str(package), "--database-url", database, "--signing-key"]
    assert cli(*making, str(private)).code == 0
    assert check(package, "--public-key", key.upper()).stdout.startswith(f"{recorded.session_id}: valid")
    with zipfile.ZipFile(package) as opened:
        manifest = json.loads(opened.read("manifest.json"))
    old = {one: manifest[one] for one in ("public_key", "signature")}
    other = load_signer(stranger)
    assert other is not None

    def change(files: dict[str, bytes]) -> None:
        files[name] += b"\n"

    for signed in ({}, old, {**old, "public_key": other.public.hex()}):
        rewrite(package, change, **signed)
        found = check(package, "--public-key", key)
        ours = cli("verify", str(package), "--public-key", str(public))
        assert (found.returncode, ours.code) == (1, 1), (signed, found, ours)
        assert "Traceback" not in found.stderr + ours.err
    assert cli(*making, str(stranger)).code == 0
    assert "not signed with this key" in check(package, "--public-key", key).stderr
    unnamed = check(package)
    assert (unnamed.returncode, "the word of who wrote it" in unnamed.stdout) == (0, True)
    assert "the word of who wrote it" in cli("verify", str(package)).err


@pytest.mark.parametrize("key", ["", "x", "00", "a+b", "a+b+c", "a+00000000+" + "A" * 44, "key.pub"])
@pytest.mark.parametrize("option", ["--public-key", "--witness"])
def test_what_is_no_key_is_wrong_use(tmp_path: Path, option: str, key: str) -> None:
    (tmp_path / "case.zip").write_bytes(b"")
    found = check(tmp_path / "case.zip", option, key)
    assert (found.returncode, "a key is 64 hexadecimal digits, or NAME+ID+KEY" in found.stderr) == (2, True), found


def repack(package: Path, spoil: Callable[[Any], Any]) -> None:
    """Change the proof in a package, and make the digests anew."""

    def change(files: dict[str, bytes]) -> None:
        files["proofs.jsonl"] = json.dumps(spoil(json.loads(files["proofs.jsonl"]))).encode() + b"\n"

    rewrite(package, change)


def rewrite(package: Path, change: Callable[[dict[str, bytes]], None], **signed: str) -> None:
    """Change the files of a package, and make the digests anew. The manifest has a signature only if that is given."""
    with zipfile.ZipFile(package) as opened:
        files = {name: opened.read(name) for name in opened.namelist()}
    manifest = json.loads(files.pop("manifest.json"))
    change(files)
    manifest.pop("public_key", None)
    manifest.pop("signature", None)
    for name, content in files.items():
        manifest["files"][name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    manifest |= signed
    with zipfile.ZipFile(package, "w") as made:
        for name, content in {**files, "manifest.json": swarmkeep_verify.compact(manifest).encode() + b"\n"}.items():
            swarmkeep_proofs.add_member(made, name, io.BytesIO(content), len(content))


def make_bomb(package: zipfile.ZipFile) -> None:
    with package.open(zipfile.ZipInfo("events.jsonl"), "w") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))


def repeat_member(package: zipfile.ZipFile) -> None:
    package.writestr("events.jsonl", b"")


@pytest.mark.parametrize(("spoil", "compression"), [(make_bomb, zipfile.ZIP_DEFLATED), (repeat_member, 0)])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_hostile_package_is_refused_unread(
    cli: CommandLine, recorded: RecordedSession, tmp_path: Path, spoil: Callable[..., None], compression: int
) -> None:
    package = tmp_path / "case.zip"
    assert cli("evidence", recorded.session_id, "-o", str(package), *recorded.options).code == 0
    with zipfile.ZipFile(package, "a", compression) as opened:
        spoil(opened)
    found = check(package)
    assert (found.returncode, "it is not written as a package is" in found.stderr) == (1, True)
    ours = cli("verify", str(package))
    assert (ours.code, "NOT VALID, the package was changed" in ours.out) == (1, True)


def test_each_changed_byte_is_found(
    cli: CommandLine, recorded: RecordedSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, changed = tmp_path / "case.zip", tmp_path / "changed.zip"
    assert cli("evidence", recorded.session_id, "-o", str(package), *recorded.options).code == 0
    content, dice = package.read_bytes(), random.Random(7)
    central = content.rindex(b"PK\x01\x02", 0, content.index(b"PK\x01\x02") + 4)
    monkeypatch.setattr(sys, "argv", ["swarmkeep_verify.py", str(changed)])
    # Between the files anywhere, and each byte of what describes them.
    places = [*(dice.randrange(central) for _ in range(200)), *range(central, len(content))]
    for place in places:
        other = bytearray(content)
        other[place] ^= 1 << dice.randrange(8)
        changed.write_bytes(other)
        with pytest.raises(SystemExit) as left:
            swarmkeep_verify.main()
        assert str(left.value).startswith("NOT VALID: "), place
    for size in (4, central, len(content) - 1):
        changed.write_bytes(content[:size])
        assert check(changed).stderr == f"NOT VALID: {swarmkeep_proofs.CUT_OFF}\n"
        for key in ([], ["--public-key", format_named("00" * 32)]):
            ours = cli("verify", str(changed), *key)
            assert (ours.code, swarmkeep_proofs.CUT_OFF in ours.out) == (1, True)
    for more in (b"\0", b"PK\x05\x06" + bytes(18)):
        changed.write_bytes(content + more)
        assert check(changed).returncode == 1
