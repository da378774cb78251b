"""Checks an export of Swarmkeep with nothing but Python: python3 -I swarmkeep_verify.py FILE

It is written to be read by a stranger: what it checks is what docs/events.md of Swarmkeep says of an export. It prints
where each session ends. Exit code 0 if all is as it was recorded, 1 if not, 2 for wrong use. Evidence packages, and all
that an export can be compared with (see --help), are the subject of swarmkeep_proofs.py, which lies beside this file.
"""

import base64
import hashlib
import json
import os
import re
import sys
import types

ZIP = b"PK\3\4"
KINDS = {"seq": [int], "type": [str], "version": [int], "run_id": [str, type(None)], "agent": [str], "at": [str]}
OTHERWISE = "it is not written as an export is"


class Bad(Exception):
    """Something is not as it was recorded."""


def expect(condition, why):
    if not condition:
        raise Bad(why)


def compact(value):
    """JSON as Swarmkeep writes it: without spaces, beyond ASCII only what UTF-8 can hold."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text if text.encode("utf-8", "replace").decode() == text else json.dumps(value, separators=(",", ":"))


def no_repeats(pairs):
    expect(len(dict(pairs)) == len(pairs), "a key stands twice in an object")
    return dict(pairs)


def read_number(text):
    expect(abs(float(text)) < float("inf"), "a number is out of range")
    return int(text) if len(text) < 20 and text.lstrip("-").isdigit() else float(text)


def split_event(line):
    """The members of an event's line, and its payload as it is written; all other bytes must be as Swarmkeep's."""
    read = {"parse_int": read_number, "parse_float": read_number, "parse_constant": read_number}
    decoder = json.JSONDecoder(object_pairs_hook=no_repeats, **read)
    event = decoder.decode(line)
    begin = compact({name: event[name] for name in ("session_id", *KINDS)})[:-1] + ',"data":'
    expect(line.startswith(begin) and all(type(event[name]) in KINDS[name] for name in KINDS), OTHERWISE)
    expect(type(event["data"]) is dict, "its data is not an object")
    end = decoder.raw_decode(line, len(begin))[1]
    rest = {name: event[name] for name in ("hash", "salt", "commitment", "texts", "export") if name in event}
    expect(line[end:] == "," + compact(rest)[1:], OTHERWISE)
    expect({"hash", "salt", "commitment"} <= rest.keys(), "members are missing")
    return event, line[len(begin) : end].encode()


def combine(is_measured, name, *parts):
    """The hash of several parts: the second recipe, with names and sizes, or the first, without."""
    measured = (len(part).to_bytes(8, "big") + part for part in (name, *parts))
    return hashlib.sha256(b"".join(measured if is_measured else parts)).digest()


class Session:
    """One session's chain, event by event."""

    def __init__(self, event):
        self.id, self.start, self.seq, self.hash = event["session_id"], event["export"], 0, bytes(32)
        expect(re.fullmatch("[A-Za-z0-9._:-]{1,128}", self.id), "its id is not one of a session")
        kinds = [(name, type(value)) for name, value in self.start.items()]
        expect(kinds == [("format", int), ("seq", int), ("hash", str), ("alone", bool)], OTHERWISE)
        expect(self.start["format"] in (1, 2), "it was made by another release than this program")
        self.hashes, self.removed, self.explained, self.named = {}, {}, set(), set()

    def take(self, event, payload, files):
        self.seq += 1
        name = f"event {self.seq} of {self.id}"
        expect((event["session_id"], event["seq"]) == (self.id, self.seq), f"{name} is missing")
        expect("export" not in event or self.seq == 1, "a session begins in the middle of another one")
        expect(self.seq > 1 or event["type"] == "session.created", "a session begins with session.created")
        commitment, salt = bytes.fromhex(event["commitment"]), bytes.fromhex(event["salt"] or "")
        expect((commitment.hex(), salt.hex()) == (event["commitment"], event["salt"] or ""), OTHERWISE)
        parts = (b"swarmkeep event v2", self.hash, compact([event[one] for one in KINDS]).encode(), commitment)
        recipe = next((one for one in (True, False) if combine(one, *parts).hex() == event["hash"]), None)
        expect(recipe is not None, f"{name} does not follow from the one before it")
        self.hash, self.hashes[self.seq] = bytes.fromhex(event["hash"]), event["hash"]
        if event["salt"] is None:
            self.removed[str(self.seq)] = hashlib.sha256(payload).hexdigest()
        else:
            made = combine(recipe, b"swarmkeep payload v2", salt, payload)
            expect(len(salt) == 16 and made == commitment, f"{name} says something else")
            if event["type"] == "session.redacted":
                self.explain(event["data"])
        texts, names = event.get("texts", {}), set(re.findall("[0-9a-f]{64}", payload.decode()))
        for digest, text in texts.items():
            made = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            expect(made == digest, f"the text {made} has another name")
        for digest in (*texts, *files):
            expect(digest not in self.named and digest in names, f"{digest} is not this event's")
            self.named.add(digest)

    def explain(self, data):
        """A redaction names the events that lost their payload, and the digest of what stands there instead."""
        kept = data.get("kept") or []
        expect(len(kept) == len(data["seqs"]), "a redaction does not say of each event what is left of it")
        for seq, digest in zip(map(compact, data["seqs"]), kept):
            expect(self.removed.get(seq) == digest is not None, f"what is left of event {seq} of {self.id} was changed")
            self.explained.add(seq)

    def __str__(self):
        redacted = f", redacted: {', '.join(self.removed)}" if self.removed else ""
        return f"{self.id}: valid, {self.seq} events, head {self.seq}:{self.hash.hex()}{redacted}"

    def close(self):
        expect(self.hash.hex() == self.start["hash"], f"{self.id} does not end with the hash of its first line")
        expect(self.removed.keys() == self.explained, f"an event of {self.id} has no payload, and no redaction says so")


def read_export(file):
    """The sessions of an export, each once it has proved to be whole; then those that are missing are named."""
    session, files, digest, counts, ended, known, missing = None, [], hashlib.sha256(), [0, 0], False, set(), {}
    for number, raw in enumerate(file, start=1):
        try:
            expect(raw.endswith(b"\n"), "the file is cut off")
            line = raw[:-1].decode()
            if line.startswith('{"session_id":'):
                event, payload = split_event(line)
                if session is None:
                    session, counts[0] = Session(event), counts[0] + 1
                    is_first = digest.digest() == hashlib.sha256().digest() or not session.start["alone"]
                    expect(is_first and session.id not in known, f"{session.id} is twice, or not alone, in this file")
                    known.add(session.id)
                session.take(event, payload, files)
                files, counts[1], ended = [], counts[1] + 1, False
                if session.seq == session.start["seq"]:
                    session.close()
                    yield session
                    session, ended = None, session.start["alone"]
            elif line.startswith('{"record":"file",'):
                content = base64.b64decode(json.loads(line)["content"])
                name = hashlib.sha256(content).hexdigest()
                made = {"record": "file", "sha256": name, "content": base64.b64encode(content).decode()}
                expect(session is not None and line == compact(made), f"the file {name} is not what it was")
                files.append(name)
            else:
                expect(line.startswith(('{"record":"missing",', '{"record":"end",')), "it is not a line of an export")
                expect(session is None and not files, "a session is cut off")
                ended = line.startswith('{"record":"end",')
                end = {"record": "end", "sessions": counts[0], "events": counts[1], "sha256": digest.hexdigest()}
                expect(line == compact(end if ended else json.loads(line)), "lines before are missing or changed")
                missing.update({} if ended else {json.loads(line)["session_id"]: line})
            digest.update(raw)
            if ended:
                digest, counts = hashlib.sha256(), [0, 0]
        except (Bad, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise Bad(f"line {number}: {error}") from None
    expect(ended and session is None, "the export is cut off: its last line is missing")
    expect(missing.keys() <= known, f"sessions are missing: {[missing[name] for name in missing.keys() - known]}")


def load_proofs():
    """The second file, from the folder of this one: what runs is its text, and nothing that was compiled before."""
    try:
        path = os.path.join(os.path.dirname(os.path.realpath(__file__)), "swarmkeep_proofs.py")
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec")
    except (OSError, NameError):
        why = "packages, and all that an export is compared with, need it"
        raise OSError(f"put swarmkeep_proofs.py beside this file: {why}") from None
    proofs = types.ModuleType("beside.swarmkeep_proofs")
    proofs.__package__, sys.modules["beside.swarmkeep_verify"] = "beside", sys.modules[__name__]
    exec(code, vars(proofs))
    return proofs


def main():
    try:
        if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
            sys.exit(load_proofs().main())
        with open(sys.argv[1], "rb") as file:
            if file.peek(len(ZIP)).startswith(ZIP):
                sys.exit(load_proofs().main())
            session = None
            for session in read_export(file):
                print(session)
    except OSError as error:
        print(f"swarmkeep_verify.py: {error}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        sys.exit(f"NOT VALID: {error}")
    if session is None:
        print("the file has no sessions")


if __name__ == "__main__":
    main()
