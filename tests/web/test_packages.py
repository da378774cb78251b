"""Evidence packages, checked in the browser: as the program in them does it, and without sending anything."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import random
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Request, expect

from swarmkeep.history import swarmkeep_proofs, swarmkeep_verify
from swarmkeep.history.checkpoints import CheckpointHead, Signer, load_signer, write_checkpoint
from tests.cli.command_line import InProcessCommandLine
from tests.history.exports import write_hostile_exports, write_raw
from tests.support.scripted import ScriptedModel
from tests.support.signing import write_keys
from tests.web.test_accessibility import check_accessibility
from tests.web.window import Api, Window

pytestmark = pytest.mark.long

CHECK = """async ([packages, key]) => {
  const { checkPackage } = await import("/page/package.js");
  const found = [];
  for (const content of packages) {
    const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
    found.push(await checkPackage(new Blob([bytes]), key).then(() => true, () => false));
  }
  return found;
}"""


@pytest.fixture
def package(model: ScriptedModel, api: Api) -> bytes:
    """Two sessions: one with odd text, a picture, a call and a redaction."""
    model.call("get_weather", {"city": "Rome \\u2028 \x7f é 😀"}, id="c1")
    model.say("It is sunny.")
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(PNG).decode()}}
    first = api.session(metadata={"10": 1, "2": [1.5, None, {"a": "b"}]})
    api.run(first, [{"role": "user", "content": [{"type": "text", "text": 'Weather, "}]?'}, picture]}])
    model.say("Hello.")
    second = api.session()
    api.run(second, "Hi")
    half = json.dumps({"messages": [{"role": "user", "content": "half of a pair: \ud83d é"}]})
    headers = {"content-type": "application/json"}
    assert api.client.post(f"sessions/{second}/messages", content=half, headers=headers).status_code == 200
    assert api.client.post(f"sessions/{first}/redact", json={"seqs": [3], "reason": "a name"}).status_code == 200
    api.session()
    assert api.get("checkpoint")["size"] > 2
    answer = api.client.get(f"evidence?id={first}&id={second}")
    assert answer.status_code == 200, answer.text
    return answer.content


PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def is_valid(content: bytes, key: str | None = None) -> bool:
    """What the program in it says."""
    try:
        swarmkeep_proofs.check(io.BytesIO(content), None, key)
    except Exception:
        return False
    return True


def rewrite(content: bytes, change: Any, sign: Callable[[bytes], bytes] = bytes) -> bytes:
    """A package whose files were changed by who makes the digests anew. `sign` adds to the manifest what signs it."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as package, zipfile.ZipFile(made, "w") as again:
        files = {name: package.read(name) for name in package.namelist()}
        change(files)
        manifest = json.loads(files.pop("manifest.json"))
        for name in ("public_key", "signature"):
            manifest.pop(name, None)
        manifest["files"] = {}
        for name, body in files.items():
            digest = swarmkeep_proofs.add_member(again, name, io.BytesIO(body), len(body))
            manifest["files"][name] = {"sha256": digest, "bytes": len(body)}
        body = sign(swarmkeep_verify.compact(manifest).encode()) + b"\n"
        swarmkeep_proofs.add_member(again, "manifest.json", io.BytesIO(body), len(body))
    return made.getvalue()


def test_browser_and_program_agree(window: Window, package: bytes) -> None:
    dice = random.Random(11)
    assert is_valid(package)
    central = package.rindex(b"PK\x01\x02", 0, package.index(b"PK\x01\x02") + 4)
    changed = []
    for place in [*(dice.randrange(central) for _ in range(40)), *range(central, len(package), 9)]:
        other = bytearray(package)
        other[place] ^= 1 << dice.randrange(8)
        changed.append(bytes(other))

    def flip(files: dict[str, bytes]) -> None:
        body = bytearray(files["events.jsonl"])
        place = dice.randrange(len(body))
        body[place] = dice.choice(b'0123456789abcdef",:{}[] ') if dice.random() < 0.9 else body[place] ^ 1
        files["events.jsonl"] = bytes(body)

    def cut(files: dict[str, bytes]) -> None:
        lines = files["events.jsonl"].splitlines(keepends=True)
        del lines[dice.randrange(len(lines))]
        files["events.jsonl"] = b"".join(lines)

    def misname(files: dict[str, bytes]) -> None:
        files["proofs.jsonl"] = files["proofs.jsonl"].replace(b'"number"', b'"nomber"', 1)

    def add_blank(files: dict[str, bytes]) -> None:
        files["proofs.jsonl"] = b"\n" + files["proofs.jsonl"]

    def loosen_padding(files: dict[str, bytes]) -> None:
        files["proofs.jsonl"] = files["proofs.jsonl"].replace(b"=\\n\\n", b" \\n\\n", 1)

    def move_leaf(files: dict[str, bytes]) -> None:
        files["proofs.jsonl"] = re.sub(
            rb'"index":(\d+)', lambda found: b'"index":%d' % (int(found[1]) + 4), files["proofs.jsonl"]
        )

    def join_note(files: dict[str, bytes]) -> None:
        files["proofs.jsonl"] = files["proofs.jsonl"].replace(b"=\\n\\n", b"=\\n4n", 1)

    def flip_proof(files: dict[str, bytes]) -> None:
        body = bytearray(files["proofs.jsonl"])
        place = dice.randrange(len(body))
        body[place] = dice.choice(b"0123456789abcdef")
        files["proofs.jsonl"] = bytes(body)

    changed += [rewrite(package, flip) for _ in range(90)] + [rewrite(package, cut) for _ in range(10)]
    changed += [rewrite(package, flip_proof) for _ in range(40)]
    changed += [rewrite(package, change) for change in (misname, join_note, add_blank, loosen_padding, move_leaf)]
    changed += [package + b"\0", package[:-1], rewrite(package, lambda files: None)]
    window.open("#/audit")
    sent = [base64.b64encode(one).decode() for one in [package, *changed]]
    found = window.page.evaluate(CHECK, [sent, ""])
    assert found == [is_valid(one) for one in [package, *changed]]
    assert found[0]
    assert found[-1]
    # Some of what stands in a proof says nothing of it: times, and what is of the newest checkpoint.
    assert found.count(True) < 40


def test_every_reader_refuses_what_no_server_packs(window: Window, package: bytes, tmp_path: Path) -> None:
    """All digests and hashes are right: what one reader takes for evidence, and another one does not, is none."""

    def pack(export: bytes, *wrong: CheckpointHead) -> bytes:
        heads = list(wrong)
        for line in export.splitlines():
            found = re.search(rb'"hash":"([0-9a-f]{64})".*"export":', line)
            if found and (name := re.match(rb'.{0,9}"session_id":("(?:[^"\\]|\\.)*")', line)):
                id = json.loads(name[1]).encode("utf-8", "replace").decode()
                heads.append(CheckpointHead(tenant=None, session_id=id, seq=1, hash=found[1].decode()))

        def change(files: dict[str, bytes]) -> None:
            del files["proofs.jsonl"]
            files["events.jsonl"] = export
            files["checkpoint.jsonl"] = b"".join(write_checkpoint(heads, "2026-01-01T00:00:00.000000Z", None))

        return rewrite(package, change)

    def spell(old: bytes, new: bytes) -> bytes:
        return rewrite(package, lambda files: None, lambda manifest: manifest.replace(old, new, 1))

    def add(name: str) -> bytes:
        return rewrite(package, lambda files: files.update({name: b"x"}))

    of_other_tenant = CheckpointHead(tenant="other", session_id="forged", seq=1, hash="0" * 64)
    several = write_raw({}, id='"a"') + write_raw({}, id='"b"')
    sound = [pack(write_raw({})), pack(write_raw({}), of_other_tenant), pack(several), add("more.txt")]
    hostile = [
        *map(pack, write_hostile_exports().values()),
        *map(add, ("../x", "/x", "x/", "a b", "é", "a\\b", ".x", "10", "con\u202e", "-x")),
        *(spell(b'"version":1', b'"version":%b' % other) for other in (b"true", b"1.0", b"2", b'"1"')),
        spell(b'"swarmkeep evidence"', b'"swarmkeep"'),
        spell(b'"files":{', b'"files": {'),
        spell(b'"files":{', b'"files":{},"files":{'),
        b"x" + package,
    ]
    file, command = tmp_path / "case.zip", InProcessCommandLine(tmp_path)

    def is_valid_here(content: bytes) -> bool:
        file.write_bytes(content)
        found = command("verify", str(file))
        assert found.code in (0, 1), found
        return found.code == 0

    window.open("#/audit")
    sent = [base64.b64encode(one).decode() for one in [*sound, *hostile]]
    wanted = [True] * len(sound) + [False] * len(hostile)
    assert [is_valid(one) for one in [*sound, *hostile]] == wanted
    assert [is_valid_here(one) for one in [*sound, *hostile]] == wanted
    assert window.page.evaluate(CHECK, [sent, ""]) == wanted


def test_browser_and_program_agree_on_who_packed(window: Window, package: bytes, tmp_path: Path) -> None:
    """A key that is given signs the whole package: no file can be changed by who makes the digests anew."""
    ours, theirs = (load_signer(write_keys(tmp_path, name)[0]) for name in ("ours", "theirs"))
    assert ours is not None
    assert theirs is not None

    def sign(manifest: bytes, signer: Signer) -> bytes:
        signature = signer.sign(swarmkeep_proofs.SIGNED_AS + hashlib.sha256(manifest[:-1]).digest())
        seal = {"public_key": signer.public.hex(), "signature": signature.hex()}
        return manifest[:-1] + b"," + swarmkeep_verify.compact(seal).encode()[1:]

    def sign_heads(files: dict[str, bytes]) -> None:
        del files["proofs.jsonl"]
        heads = [
            msgspec.json.decode(line, type=CheckpointHead) for line in files["checkpoint.jsonl"].splitlines()[1:-1]
        ]
        files["checkpoint.jsonl"] = b"".join(write_checkpoint(heads, "2026-01-01T00:00:00.000000Z", ours))

    def spoil(files: dict[str, bytes]) -> None:
        files["transcript-1.html"] += b"<p>It was approved.</p>"

    signed = rewrite(package, sign_heads, lambda manifest: sign(manifest, ours))
    with zipfile.ZipFile(io.BytesIO(signed)) as opened:
        manifest = opened.read("manifest.json")
    old = manifest[manifest.index(b',"public_key":') : -1]
    spoilt = [old.upper(), old[:-1] + b" }", old[:-1] + b',"x":1}', old.replace(b":", b": "), old[:40] + b"}"]
    changed = [
        rewrite(signed, spoil),
        rewrite(signed, spoil, lambda manifest: manifest[:-1] + old),
        rewrite(signed, spoil, lambda manifest: sign(manifest, theirs)),
        *(rewrite(signed, lambda files: None, lambda manifest, end=end: manifest[:-1] + end) for end in spoilt),
    ]
    window.open("#/audit")
    for key, wanted in ((ours.public.hex(), True), (theirs.public.hex(), False)):
        sent = [base64.b64encode(one).decode() for one in [signed, *changed]]
        found = window.page.evaluate(CHECK, [sent, key])
        assert found == [is_valid(one, key) for one in [signed, *changed]] == [wanted] + [False] * len(changed)


def test_package_is_checked_without_sending_it(window: Window, package: bytes, tmp_path: Path) -> None:
    file, changed = tmp_path / "case.zip", tmp_path / "changed.zip"
    file.write_bytes(package)
    changed.write_bytes(package.replace(b"sunny", b"rainy"))
    window.open("#/audit")
    window.page.get_by_role("button", name="Check a package").click()
    panel = window.page.get_by_role("region", name="Check an evidence package")
    panel.get_by_label("Evidence package").set_input_files(file)
    asked: list[Request] = []
    window.page.on("request", lambda request: asked.append(request))
    panel.get_by_role("button", name="Check the package").click()
    expect(panel.get_by_role("status")).to_contain_text("Unchanged since it was written")
    expect(panel.get_by_role("status")).to_contain_text("redacted: 3")
    expect(panel.get_by_role("status")).to_contain_text("is in checkpoint")
    panel.get_by_label("Evidence package").set_input_files(changed)
    panel.get_by_role("button", name="Check the package").click()
    expect(panel.get_by_role("status")).to_contain_text("NOT VALID")
    expect(panel.get_by_role("status")).to_contain_text("was changed.")
    # Views that are loaded later are.
    assert [one.url for one in asked if one.resource_type != "script"] == []
    check_accessibility(window)
