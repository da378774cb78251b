"""Checks Swarmkeep's exports with nothing but Python: python swarmkeep_verify.py FILE [--checkpoint CHECKPOINT]

It is written to be read by a stranger: what it checks is what docs/events.md of Swarmkeep says of an export. Exit code
0 if all is as it was recorded, 1 if not, 2 for wrong use. FILE is an export, or an evidence package (a ZIP file), of
which every byte is checked. `--checkpoint` was kept elsewhere: a list of heads, or a checkpoint of the log, a few
lines long. `--public-key` is the Ed25519 key that it must be signed with, in 64 hexadecimal digits, or, with the log's
name, as NAME+ID+KEY; `--witness` the key (NAME+ID+KEY) of a witness that must have signed such a checkpoint, too.
"""

import argparse
import base64
import contextlib
import hashlib
import json
import sys
import tempfile
import time
import zipfile

MANIFEST = "manifest.json"
ZIP, CUT_OFF = b"PK\3\4", "the package is cut off: its end is missing"
SIGNED_AS = b"swarmkeep evidence v1\n"
FORMATS = (1, 2)
UNSIGNED = "no given key signs the package: its transcripts and audit entries are the word of who wrote it"
LOG, WITNESS = b"\1", b"\4"
ORDER = ("session_id", "seq", "type", "version", "run_id", "agent", "at")


class Bad(Exception):
    """Something is not as it was recorded."""


def expect(condition, why):
    if not condition:
        raise Bad(why)


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


def compact(value):
    """JSON as Swarmkeep writes it: without spaces, beyond ASCII only what UTF-8 can hold."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(value, separators=(",", ":"))
    return text


def first_recipe(name, *parts):
    return sha256(b"".join(parts))


def second_recipe(*parts):
    return sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts))


def no_repeats(pairs):
    found = dict(pairs)
    expect(len(found) == len(pairs), "a key stands twice in an object")
    return found


def split_event(line):
    """The members of an event's line, and its payload as it is written; all other bytes must be as Swarmkeep's."""
    decoder = json.JSONDecoder(object_pairs_hook=no_repeats)
    event = decoder.decode(line)
    begin = compact({name: event[name] for name in ORDER})[:-1] + ',"data":'
    expect(line.startswith(begin), "it is not written as an export is")
    end = decoder.raw_decode(line, len(begin))[1]
    rest = {name: value for name, value in event.items() if name not in (*ORDER, "data")}
    expect(set(rest) - {"texts", "export"} == {"hash", "salt", "commitment"}, "members are missing, or not known")
    expect(line[end:] == "," + compact(rest)[1:], "it is not written as an export is")
    return event, line[len(begin) : end]


class Session:
    """One session's chain, event by event."""

    def __init__(self, event):
        self.id, self.start = event["session_id"], event["export"]
        kinds = {name: type(value) for name, value in self.start.items()}
        expect(kinds == {"format": int, "seq": int, "hash": str, "alone": bool}, "it is not written as an export is")
        expect(self.start["format"] in FORMATS, "it was made by another release than this program")
        self.seq, self.hash = 0, bytes(32)
        self.hashes, self.removed, self.explained = {}, {}, set()
        self.texts, self.files, self.named = set(), set(), set()

    def take(self, event, payload, files):
        self.seq += 1
        expect((event["session_id"], event["seq"]) == (self.id, self.seq), f"event {self.seq} of {self.id} is missing")
        expect("export" not in event or self.seq == 1, "a session begins in the middle of another one")
        expect(self.seq > 1 or event["type"] == "session.created", "a session begins with session.created")
        header, commitment = compact([event[name] for name in ORDER[1:]]).encode(), unhex(event["commitment"])
        parts = (b"swarmkeep event v2", self.hash, header, commitment)
        recipe = next((one for one in (second_recipe, first_recipe) if one(*parts).hex() == event["hash"]), None)
        expect(recipe is not None, f"event {self.seq} of {self.id} does not follow from the one before it")
        self.hash = unhex(event["hash"])
        self.hashes[self.seq] = event["hash"]
        if event["salt"] is None:
            self.removed[self.seq] = sha256(payload.encode("utf-8", "surrogatepass")).hex()
        else:
            salt = unhex(event["salt"])
            made = recipe(b"swarmkeep payload v2", salt, payload.encode("utf-8", "surrogatepass"))
            expect(len(salt) == 16 and made == commitment, f"event {self.seq} of {self.id} says something else")
        for name, text in event.get("texts", {}).items():
            expect(sha256(text.encode("utf-8", "surrogatepass")).hex() == name, f"the text {name} was changed")
            expect(name not in self.texts and name in payload, f"the text {name} is not this event's")
            self.texts.add(name)
        for name in files:
            expect(name not in self.files and name in payload, f"the file {name} is not this event's")
            self.files.add(name)
        if event["type"] == "session.redacted" and event["salt"] is not None:
            self.explain(event["data"])

    def explain(self, data):
        """A redaction names the events that lost their payload, and the digest of what stands there instead."""
        for seq, kept in zip(data["seqs"], data.get("kept") or [None] * len(data["seqs"]), strict=True):
            expect(self.removed.get(seq) == kept is not None, f"what is left of event {seq} of {self.id} was changed")
            self.explained.add(seq)

    def close(self):
        expect(self.hash.hex() == self.start["hash"], f"{self.id} does not end with the hash of its first line")
        expect(self.removed.keys() == self.explained, f"an event of {self.id} has no payload, and no redaction says so")


def check_file(record):
    expect(record.keys() == {"record", "sha256", "content"}, "it is not a file's line")
    content = unbase64(record["content"])
    expect(sha256(content).hex() == record["sha256"], f"the file {record['sha256']} was changed")


def read_export(file):
    """The sessions of an export, each once it has proved to be whole."""
    session, files, digest, counts, ended, known = None, [], hashlib.sha256(), [0, 0], False, set()
    for number, raw in enumerate(file, start=1):
        try:
            expect(raw.endswith(b"\n"), "the file is cut off")
            line = raw[:-1].decode()
            if line.startswith('{"session_id":'):
                event, payload = split_event(line)
                if session is None:
                    session, counts[0] = Session(event), counts[0] + 1
                    expect(session.id not in known, f"{session.id} is in this file twice")
                    known.add(session.id)
                session.take(event, payload, files)
                files, counts[1], ended = [], counts[1] + 1, False
                if session.seq == session.start["seq"]:
                    session.close()
                    ended = session.start["alone"]
                    yield session
                    session = None
            else:
                record = json.loads(line, object_pairs_hook=no_repeats)
                if record["record"] == "file":
                    check_file(record)
                    files.append(record["sha256"])
                else:
                    expect(session is None and not files, "a session is cut off")
                    end = {"record": "end", "sessions": counts[0], "events": counts[1], "sha256": digest.hexdigest()}
                    expect(record == end, "lines before this one are missing or changed")
                    ended = True
            digest.update(raw)
            if ended:
                digest, counts = hashlib.sha256(), [0, 0]
        except (Bad, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise Bad(f"line {number}: {error}") from None
    expect(ended and session is None, "the export is cut off: its last line is missing")


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
    lines = content.splitlines(keepends=True)
    expect(lines and lines[-1].endswith(b"\n"), "the checkpoint is cut off")
    body, seal = b"".join(lines[:-1]), json.loads(lines[-1])
    expect((seal["lines"], seal["sha256"]) == (len(lines) - 1, sha256(body).hex()), "the checkpoint was changed")
    expect(json.loads(lines[0]).get("format") == "swarmkeep checkpoint", "this is not a checkpoint")
    if public_key is not None:
        expect(seal.get("public_key") == public_key, "the checkpoint is not signed with this key")
    if seal.get("signature"):
        text = b"swarmkeep checkpoint v1\n" + sha256(body)
        check_signature(unhex(seal["public_key"]), text, unhex(seal["signature"]))
    heads = {}
    for head in map(json.loads, lines[1:-1]):
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
    leaf, note = json.loads(proof["leaf"]), proof["checkpoint"]["note"]
    name, seq = leaf["session_id"], leaf["seq"]
    expect(hashes.get(name, {}).get(seq) == leaf["hash"], f"event {seq} of {name} is not the one that is proven")
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
    print(f"{name}: event {seq} is in checkpoint {proof['checkpoint']['number']} of {origin}, {size} leaves")
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
    manifest = package.read(MANIFEST)
    files = json.loads(manifest)["files"]
    with tempfile.TemporaryFile() as made:
        with zipfile.ZipFile(made, "w") as again:
            for info in members:
                with package.open(info) as file:
                    found = add_member(again, info.filename, file, info.file_size)
                listed = info.filename == MANIFEST or files.pop(info.filename, {}).get("sha256") == found
                expect(listed, f"{info.filename} is not what it was")
        expect(not files, f"{', '.join(files)} is missing")
        made.seek(0)
        given.seek(0)
        for block in iter(lambda: given.read(1 << 20), b""):
            expect(made.read(len(block)) == block, "the package holds something that is none of its files")
        expect(not made.read(1), "the package is cut off")
    return check_manifest(manifest)


def check_manifest(content):
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


def read_whole(path):
    with open(path, "rb") as file:
        return file.read()


def check(file, checkpoint, public_key, witnesses=(), log=None):
    """Check an export, or a package, beside a checkpoint: by default the one that lies in the package, and then the
    package itself is to be signed with the key."""
    proofs, hashes, note = b"", {}, None
    if checkpoint and not checkpoint.startswith(b"{"):
        note, checkpoint = checkpoint.decode(), None
        text, _, (origin, _, _) = check_note(note, public_key)
        expect(log in (None, origin), f"the checkpoint is of the log {origin}, not of {log}")
    expect(note or not witnesses, "only a checkpoint of the log is signed by witnesses: give one")
    for name, key in witnesses:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(check_witness(note, name, key)))
        print(f"the checkpoint was signed by {name} at {at} UTC")
    with contextlib.ExitStack() as stack:
        if zipfile.is_zipfile(file):
            package = stack.enter_context(zipfile.ZipFile(file))
            signed = check_package(package, file)
            expect(checkpoint or note or public_key in (None, signed), "the package is not signed with this key")
            if public_key is None or signed != public_key:
                print(UNSIGNED)
            checkpoint = checkpoint or (None if note else package.read("checkpoint.jsonl"))
            proofs = package.read("proofs.jsonl") if "proofs.jsonl" in package.namelist() else b""
            file = stack.enter_context(package.open("events.jsonl"))
        else:
            file.seek(0)
            expect(file.read(4) != ZIP, CUT_OFF)
        file.seek(0)
        heads = checkpoint and read_heads(checkpoint, public_key)
        for session in read_export(file):
            redacted = f", redacted: {', '.join(map(str, session.removed))}" if session.removed else ""
            print(f"{session.id}: valid, {session.seq} events, head {session.seq}:{session.hash.hex()}{redacted}")
            if checkpoint:
                compare(session, heads.get(session.id, []))
            hashes[session.id] = session.hashes if proofs or note else None
        if not hashes:
            print("the file has no sessions")
        # Of the checkpoint that was given, the signatures on that count.
        key = None if note else public_key
        *lines, rest = proofs.decode().split("\n")
        expect(not rest, "the proofs are cut off")
        proven = [check_proof(proof, hashes, key, log) for proof in map(json.loads, lines)]
        for name in hashes if note else ():
            expect((name, text) in proven, f"no proof of {name} leads to the checkpoint that was given")


def main():
    parser = argparse.ArgumentParser(description="Check an export of Swarmkeep with nothing but Python.")
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
        checkpoint = given.checkpoint and read_whole(given.checkpoint)
        with open(given.file, "rb") as file:
            try:
                check(file, checkpoint, None if key is None else key.hex(), witnesses, log)
            except Exception as error:
                sys.exit(f"NOT VALID: {error}")
    except OSError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
