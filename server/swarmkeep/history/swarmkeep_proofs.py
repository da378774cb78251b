"""Checks what an export of Swarmkeep can be compared with, and evidence packages, with nothing but Python.

It is the second file of swarmkeep_verify.py, which loads it for a package (a ZIP file, of which every byte is checked)
and for its options. `--checkpoint` was kept elsewhere: a list of heads, or a checkpoint of the log, a few lines long.
`--public-key` is the Ed25519 key that it, or the package, must be signed with, in 64 hexadecimal digits, or, with the
log's name, as NAME+ID+KEY; `--witness` the key (NAME+ID+KEY) of a witness that must have signed such a checkpoint, too.
"""

import argparse
import base64
import contextlib
import hashlib
import json
import re
import sys
import tempfile
import time
import zipfile

from .swarmkeep_verify import ZIP, Bad, compact, expect, no_repeats, read_export

MANIFEST = "manifest.json"
CUT_OFF = "the package is cut off: its end is missing"
SIGNED_AS = b"swarmkeep evidence v1\n"
UNSIGNED = "no given key signs the package: its transcripts and audit entries are the word of who wrote it"
LOG, WITNESS = b"\1", b"\4"


def sha256(data):
    return hashlib.sha256(data).digest()


def unbase64(text):
    """Bytes of base64 in the one form that they have: other readers take more, and each of them something else."""
    content = base64.b64decode(text, validate=True)
    expect(base64.b64encode(content).decode() == text, "base64 is not written as it should be")
    return content


def unhex(text):
    """Bytes of hexadecimal digits in the one form that they have, likewise."""
    content = bytes.fromhex(text)
    expect(content.hex() == text, "hexadecimal digits are not written as they should be")
    return content


def read_count(text):
    expect(text.isascii() and text.isdigit() and text[0] != "0", "a number is not written as it should be")
    return int(text)


# Ed25519 as in RFC 8032, section 6, for signatures only: points are (x, y, z, t) with x = X/Z, y = Y/Z, xy = T/Z.
P, Q = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P


def add(a, b):
    e, f = (a[1] - a[0]) * (b[1] - b[0]) % P, (a[1] + a[0]) * (b[1] + b[0]) % P
    g, h = 2 * a[3] * b[3] * D % P, 2 * a[2] * b[2] % P
    e, f, g, h = f - e, h - g, h + g, f + e
    return e * f % P, g * h % P, f * g % P, e * h % P


def multiply(number, point):
    found = (0, 1, 1, 0)
    while number:
        found = add(found, point) if number & 1 else found
        point, number = add(point, point), number >> 1
    return found


def point_of(data):
    y, sign = int.from_bytes(data, "little") & (2**255 - 1), data[31] >> 7
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if (x * x - square) % P == 0 else x * pow(2, (P - 1) // 4, P) % P
    expect(y < P and (x * x - square) % P == 0 and (x or not sign), "the signature is not valid")
    x = x if x & 1 == sign else P - x
    return x, y, 1, x * y % P


def check_signature(public, message, signature):
    expect(len(public) == 32 and len(signature) == 64, "the signature is not valid")
    base = point_of((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))
    key, start, scale = point_of(public), point_of(signature[:32]), int.from_bytes(signature[32:], "little")
    factor = int.from_bytes(hashlib.sha512(signature[:32] + public + message).digest(), "little") % Q
    left, right = multiply(scale, base), add(start, multiply(factor, key))
    same = all((left[n] * right[2] - right[n] * left[2]) % P == 0 for n in (0, 1))
    expect(scale < Q and same, "the signature is not valid")


def read_heads(content, public_key):
    """The heads of a checkpoint, by session, once its digest and its signature prove to be right. Two tenants may have
    sessions of one id."""
    expect(content.endswith(b"\n"), "the checkpoint is cut off")
    lines = content.decode().split("\n")[:-1]
    seal, body = json.loads(lines[-1]), content[: content.rfind(b"\n", 0, -1) + 1]
    expect((seal["lines"], seal["sha256"]) == (len(lines) - 1, sha256(body).hex()), "the checkpoint was changed")
    first = json.loads(lines[0])
    expect(compact([first["format"], first["version"]]) == '["swarmkeep checkpoint",1]', "this is not a checkpoint")
    if public_key is not None:
        expect(seal.get("public_key") == public_key, "the checkpoint is not signed with this key")
    if public_key is not None or seal.get("signature"):
        expect(seal.get("signature"), "the checkpoint is not signed")
        text = b"swarmkeep checkpoint v1\n" + sha256(body)
        check_signature(unhex(seal["public_key"]), text, unhex(seal["signature"]))
    heads = {}
    for head in map(json.loads, lines[1:-1]):
        kinds = [type(head[name]) for name in ("seq", "hash")]
        expect(kinds == [int, str], "the checkpoint has a line that is not a head")
        if head["session_id"] is not None:
            heads.setdefault(head["session_id"], []).append(head)
    return heads


def compare(session, heads):
    """An export does not say of which tenant a session is: one head of its id has to be of its history."""
    expect(heads, f"the checkpoint has no head of {session.id}")
    if not any(session.hashes.get(head["seq"]) == head["hash"] for head in heads):
        expect(heads[0]["seq"] <= session.seq, f"{session.id} was cut off: the checkpoint has event {heads[0]['seq']}")
        raise Bad(f"{session.id} was rewritten since the checkpoint")


def check_note(note, public_key):
    """A log's checkpoint is signed with its key (C2SP signed-note), if that is known. Returns what is signed, twice:
    as text, and in its parts."""
    expect(all(map(str.isprintable, note.split("\n"))), "the log's checkpoint is not written as it should be")
    text, _, below = note.rpartition("\n\n")
    origin, size, root = (text + "\n").split("\n")[:3]
    if public_key is not None:
        key = bytes.fromhex(public_key)
        found = find_signature(below, origin, sha256(origin.encode() + b"\n" + LOG + key)[:4])
        expect(found, "the log's checkpoint is not signed with this key")
        check_signature(key, (text + "\n").encode(), found)
    return text + "\n", below, (origin, read_count(size), unbase64(root))


def read_key(text, kind):
    """The name and the key in NAME+ID+KEY; only a log's key may stand alone, in 64 hexadecimal digits."""
    if "+" not in text and kind == LOG:
        key = bytes.fromhex(text)
        expect(len(key) == 32, "a key has 64 hexadecimal digits")
        return None, key
    name, key_id, encoded = text.split("+", 2)
    key = unbase64(encoded)
    expect(key[:1] == kind and len(key) == 33, "it is the key of something else")
    expect(sha256(name.encode() + b"\n" + key)[:4].hex() == key_id, "its parts do not belong together")
    return name, key[1:]


def find_signature(below, name, key_id):
    lines = [line.split(" ")[2] for line in below.split("\n") if line.startswith(f"— {name} ")]
    return next((one[4:] for one in map(unbase64, lines) if one[:4] == key_id), None)


def check_witness(note, name, key):
    """The witness has signed the log's checkpoint (C2SP tlog-cosignature). Returns when, in seconds since 1970."""
    text, below, _ = check_note(note, None)
    found = find_signature(below, name, sha256(name.encode() + b"\n" + WITNESS + key)[:4])
    expect(found, f"the checkpoint is not signed by {name}")
    seconds = int.from_bytes(found[:8], "big")
    check_signature(key, f"cosignature/v1\ntime {seconds}\n{text}".encode(), found[8:])
    return seconds


def check_proof(proof, hashes, public_key, log):
    """A session's leaf leads to the root of its checkpoint (RFC 9162, 2.1.3.2), a signed note of C2SP's."""
    leaf, note, number = json.loads(proof["leaf"]), proof["checkpoint"]["note"], proof["checkpoint"]["number"]
    name, seq = leaf["session_id"], leaf["seq"]
    made = compact({"session_id": name, "seq": seq, "hash": leaf["hash"]})
    kinds = [type(one) for one in (name, seq, number)]
    expect(proof["leaf"] == made and kinds == [str, int, int], "a proof is not written as it should be")
    expect(hashes.get(name, {}).get(seq) == leaf["hash"], f"event {seq} of {name!r} is not the one that is proven")
    text, _, (origin, size, root) = check_note(note, public_key)
    expect(log in (None, origin), f"the proof of {name} is from the log {origin}, not from {log}")
    node, index, last = sha256(b"\0" + proof["leaf"].encode()), proof["index"], size - 1
    expect(type(index) is int and 0 <= index <= last, f"the checkpoint has no leaf {index}")
    for one in map(unhex, proof["inclusion"]):
        expect(last, "the proof is too long")
        right = index & 1 or index == last
        node = sha256(b"\1" + one + node if right else b"\1" + node + one)
        while right and index and not index & 1:
            index, last = index >> 1, last >> 1
        index, last = index >> 1, last >> 1
    expect(last == 0 and node == root, f"the proof of {name} does not lead to its checkpoint")
    print(f"{name}: event {seq} is in checkpoint {number} of {origin}, {size} leaves")
    return name, text


def add_member(package, name, file, size):
    """Add a file to a package as every package has it: uncompressed, without a time. Returns its SHA-256."""
    info, digest = zipfile.ZipInfo(name), hashlib.sha256()
    info.create_system, info.external_attr, info.file_size = 3, 0o600 << 16, size
    with package.open(info, "w") as target:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
            target.write(block)
    return digest.hexdigest()


def check_package(package, given):
    """Check each file by the manifest, and that the package has no byte that does not follow from them. Returns the
    key that the manifest is signed with; None if it is not."""
    members = package.infolist()
    plain = all(one.compress_type == zipfile.ZIP_STORED and one.compress_size == one.file_size for one in members)
    whole = sum(one.file_size for one in members) <= given.seek(0, 2)
    # Before anything is read of a file that may be made to fill a disk.
    expect(plain and whole and len(set(package.namelist())) == len(members), "it is not written as a package is")
    names = re.compile("[A-Za-z][A-Za-z0-9._-]*")
    expect(all(map(names.fullmatch, package.namelist())), "the package has a file with a name that no package has")
    manifest = package.read(MANIFEST)
    files = check_manifest(manifest)["files"]
    with tempfile.TemporaryFile() as made:
        with zipfile.ZipFile(made, "w") as again:
            for info in members:
                with package.open(info) as file:
                    found = add_member(again, info.filename, file, info.file_size)
                listed = info.filename == MANIFEST or files.pop(info.filename, {}).get("sha256") == found
                expect(listed, f"{info.filename} is not what it was")
        expect(not files, f"{', '.join(map(ascii, files))} is missing")
        made.seek(0)
        given.seek(0)
        for block in iter(lambda: given.read(1 << 20), b""):
            expect(made.read(len(block)) == block, "the package holds something that is none of its files")
        expect(not made.read(1), "the package is cut off")
    return check_seal(manifest)


def check_manifest(content):
    """What the manifest says, if it is written as Swarmkeep writes it: other readers take other forms."""
    manifest = json.loads(content.decode())
    about = [manifest["format"], manifest["version"]]
    expect(compact(about) == '["swarmkeep evidence",1]', "it was made by another release than this program")
    expect(content.decode() == compact(manifest) + "\n", "the manifest is not written as a package's is")
    return manifest


def check_seal(content):
    """The signature stands at the end of the manifest, over all that stands before it."""
    body, name, rest = content.rpartition(b',"public_key":')
    if not name:
        return None
    seal = json.loads(b'{"public_key":' + rest, object_pairs_hook=no_repeats)
    expect(len(seal) == 2, "members of the manifest are not known")
    expect(content == body + b"," + compact(seal).encode()[1:] + b"\n", "the manifest is not written as a package's is")
    key, signature = unhex(seal["public_key"]), unhex(seal["signature"])
    check_signature(key, SIGNED_AS + sha256(body), signature)
    return key.hex()


def check(file, checkpoint, public_key, witnesses=(), log=None):
    """Check an export, or a package, beside a checkpoint: by default the one that lies in the package, and then the
    package itself is to be signed with the key."""
    proofs, hashes, note = b"", {}, None
    if checkpoint is not None and not checkpoint.startswith(b"{"):
        note, checkpoint = checkpoint.decode(), None
        text, _, (origin, _, _) = check_note(note, public_key)
        expect(log in (None, origin), f"the checkpoint is of the log {origin}, not of {log}")
    expect(note or not witnesses, "only a checkpoint of the log is signed by witnesses: give one")
    for name, key in witnesses:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(check_witness(note, name, key)))
        print(f"the checkpoint was signed by {name} at {at} UTC")
    with contextlib.ExitStack() as stack:
        if is_package(file):
            expect(zipfile.is_zipfile(file), CUT_OFF)
            package = stack.enter_context(zipfile.ZipFile(file))
            signed = check_package(package, file)
            expect(checkpoint or note or public_key in (None, signed), "the package is not signed with this key")
            if public_key is None or signed != public_key:
                print(UNSIGNED)
            checkpoint = checkpoint or (None if note else package.read("checkpoint.jsonl"))
            proofs = package.read("proofs.jsonl") if "proofs.jsonl" in package.namelist() else b""
            file = stack.enter_context(package.open("events.jsonl"))
        heads = None if checkpoint is None else read_heads(checkpoint, public_key)
        for session in read_export(file):
            print(session)
            if heads is not None:
                compare(session, heads.get(session.id, []))
            hashes[session.id] = session.hashes if proofs or note else None
        if not hashes:
            print("the file has no sessions")
        # Of the checkpoint that was given, the signatures on that count.
        key = None if note else public_key
        *lines, rest = proofs.decode().split("\n")
        expect(not rest, "the proofs are cut off")
        proven = {check_proof(proof, hashes, key, log) for proof in map(json.loads, lines)}
        for name in hashes if note else ():
            expect((name, text) in proven, f"no proof of {name} leads to the checkpoint that was given")


def is_package(file):
    file.seek(0)
    start = file.read(len(ZIP))
    file.seek(0)
    return start == ZIP


def read_whole(path):
    with open(path, "rb") as file:
        return file.read()


def main():
    parser = argparse.ArgumentParser(description="Check an export of Swarmkeep, or a package, with nothing but Python.")
    parser.add_argument("file")
    parser.add_argument("--checkpoint")
    parser.add_argument("--public-key")
    parser.add_argument("--witness", action="append", default=[])
    given = parser.parse_args()
    try:
        log, key = (None, None) if given.public_key is None else read_key(given.public_key.strip(), LOG)
        witnesses = [read_key(one.strip(), WITNESS) for one in given.witness]
    except (Bad, ValueError) as error:
        parser.error(f"a key is 64 hexadecimal digits, or NAME+ID+KEY: {error}")
    try:
        checkpoint = None if given.checkpoint is None else read_whole(given.checkpoint)
        with open(given.file, "rb") as file:
            if key is not None and checkpoint is None and not is_package(file):
                parser.error("an export is not signed: give --public-key with --checkpoint, or for a package")
            try:
                check(file, checkpoint, None if key is None else key.hex(), witnesses, log)
            except Exception as error:
                sys.exit(f"NOT VALID: {error}")
    except OSError as error:
        parser.error(str(error))
