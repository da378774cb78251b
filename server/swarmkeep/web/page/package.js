// An evidence package, checked in the browser: nothing of it is sent anywhere. What is checked is what swarmkeep_verify.py
// and swarmkeep_proofs.py check, which lie in each package.

import { readCheckpoint } from "./checkpoint.js";
import { button, clear, h } from "./dom.js";
import { text } from "./text.js";
import { viewText } from "./viewtext.js";

const packageText = viewText.package;
const MOST_BYTES = 200_000_000;
const MANIFEST = "manifest.json";
const HEADER_BYTES = 30;
const NAME = /^[A-Za-z][A-Za-z0-9._-]*$/;
const SESSION_ID = /^[A-Za-z0-9._:-]{1,128}$/;
const ORDER = ["session_id", "seq", "type", "version", "run_id", "agent", "at"];
const SEAL = ["hash", "salt", "commitment"];
const START = { format: "number", seq: "number", hash: "string", alone: "boolean" };

class Bad extends Error {}

function expect(condition, why) {
  if (!condition) throw new Bad(why);
}

const encoder = new TextEncoder();
// Neither what is not UTF-8 nor a mark at the beginning is passed over.
const decode = (bytes) => new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
const hexOf = (bytes) => [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");

function fromHex(digits) {
  expect(/^([0-9a-f]{2})*$/.test(digits), packageText.unreadable);
  return Uint8Array.from(digits.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

const sha256 = async (bytes) => new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
const hexDigest = async (bytes) => hexOf(await sha256(bytes));
const isSame = (a, b) => a.length === b.length && a.every((byte, index) => byte === b[index]);

function join(parts) {
  const whole = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let place = 0;
  for (const part of parts) {
    whole.set(part, place);
    place += part.length;
  }
  return whole;
}

// The ZIP file: uncompressed, without times, so that each of its bytes follows from its members.

const TABLE = Uint32Array.from({ length: 256 }, (_, start) => {
  let value = start;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});
const SLICE = 1 << 22;

async function crc32(bytes) {
  let value = 0xffffffff;
  for (let start = 0; start < bytes.length; start += SLICE) {
    const end = Math.min(start + SLICE, bytes.length);
    for (let place = start; place < end; place += 1) value = TABLE[(value ^ bytes[place]) & 255] ^ (value >>> 8);
    await null;
  }
  return (value ^ 0xffffffff) >>> 0;
}

// Numbers of these sizes (in bytes), little end first.
function pack(...pairs) {
  const bytes = new Uint8Array(pairs.reduce((size, [width]) => size + width, 0));
  let place = 0;
  for (const [width, value] of pairs) {
    for (let shift = 0; shift < width; shift += 1) bytes[place + shift] = (value / 2 ** (8 * shift)) & 255;
    place += width;
  }
  return bytes;
}

const FIRST_DAY = 0x21;
const described = (name, crc, size) => [[2, 0], [2, 0], [2, 0], [2, FIRST_DAY], [4, crc], [4, size], [4, size], [2, name.length], [2, 0]];

// The members by their names. Raises Bad for a file with any byte that a package does not have.
async function readMembers(bytes) {
  const members = new Map();
  const central = [];
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let place = 0;
  while (place + HEADER_BYTES <= bytes.length && view.getUint32(place, true) === 0x04034b50) {
    const size = view.getUint32(place + 22, true);
    const begin = place + HEADER_BYTES + view.getUint16(place + 26, true);
    const raw = bytes.subarray(place + HEADER_BYTES, begin);
    const name = decode(raw);
    expect(NAME.test(name), packageText.noPackage);
    expect(begin + size <= bytes.length && !members.has(name), packageText.noPackage);
    const content = bytes.subarray(begin, begin + size);
    const fields = described(raw, await crc32(content), size);
    expect(isSame(bytes.subarray(place, begin), join([pack([4, 0x04034b50], [2, 20], ...fields), raw])), packageText.changed(name));
    central.push(pack([4, 0x02014b50], [1, 20], [1, 3], [2, 20], ...fields, [2, 0], [2, 0], [2, 0], [4, 0o600 * 65536], [4, place]), raw);
    members.set(name, content);
    place = begin + size;
  }
  const directory = join(central);
  const end = pack([4, 0x06054b50], [2, 0], [2, 0], [2, members.size], [2, members.size], [4, directory.length], [4, place], [2, 0]);
  expect(members.size && isSame(bytes.subarray(place), join([directory, end])), packageText.noPackage);
  return members;
}

async function checkManifest(members) {
  expect(members.has(MANIFEST), packageText.noPackage);
  const written = decode(members.get(MANIFEST));
  const manifest = JSON.parse(written);
  expect(manifest.format === "swarmkeep evidence" && manifest.version === 1, packageText.noPackage);
  expect(written === `${compact(manifest)}\n`, packageText.unreadable);
  const listed = new Map(Object.entries(manifest.files));
  for (const [name, content] of members) {
    if (name === MANIFEST) continue;
    expect(listed.get(name)?.sha256 === (await hexDigest(content)), packageText.changed(name));
    listed.delete(name);
  }
  for (const name of listed.keys()) throw new Bad(packageText.missing(name));
  return { at: manifest.at, packedBy: await checkManifestSignature(members.get(MANIFEST)) };
}

const SIGNED_AS = "swarmkeep evidence v1\n";

// The key that signs the manifest, and so each file; null without one. The signature stands at the end, over what is before it.
async function checkManifestSignature(content) {
  const written = decode(content);
  const place = written.lastIndexOf(',"public_key":');
  if (place < 0) return null;
  const { public_key: key, signature } = JSON.parse(`{${written.slice(place + 1)}`);
  expect(written.slice(place) === `,${compact({ public_key: key, signature }).slice(1)}\n`, packageText.unreadable);
  const digest = await sha256(encoder.encode(written.slice(0, place)));
  expect(await isSigned(fromHex(key), fromHex(signature), join([encoder.encode(SIGNED_AS), digest])), packageText.badSignature);
  return key;
}

async function isSigned(key, signature, content) {
  const known = await crypto.subtle.importKey("raw", key, { name: "Ed25519" }, false, ["verify"]);
  return crypto.subtle.verify({ name: "Ed25519" }, known, signature, content);
}

// The export in it, line by line: as docs/events.md says how hashes are made.

const isWhole = (value) => (typeof value === "string" ? value.isWellFormed() : typeof value !== "object" || value === null || Object.entries(value).every(([name, one]) => isWhole(name) && isWhole(one)));
const escaped = (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`;

// JSON as the server writes it: beyond ASCII only what UTF-8 can hold.
function compact(value) {
  const written = JSON.stringify(value);
  return isWhole(value) ? written : written.replaceAll(/[\u007f-\uffff]/g, escaped);
}

// UTF-8, and for half a surrogate pair the three bytes that it would have.
function encodeText(words) {
  if (words.isWellFormed()) return encoder.encode(words);
  return join([...words].map((letter) => {
    const code = letter.codePointAt(0);
    return code >= 0xd800 && code < 0xe000 ? Uint8Array.of(0xe0 | (code >> 12), 0x80 | ((code >> 6) & 63), 0x80 | (code & 63)) : encoder.encode(letter);
  }));
}

const STRING = /"(?:[^"\\]|\\.)*"/y;

// Where the JSON value that begins here ends.
function findEnd(line, start) {
  let depth = 0;
  let place = start;
  while (place < line.length) {
    const letter = line[place];
    if (letter === '"') {
      STRING.lastIndex = place;
      expect(STRING.test(line), packageText.unreadable);
      place = STRING.lastIndex;
      if (!depth) return place;
      continue;
    }
    if (!depth && place > start && (letter === "," || letter === "}")) return place;
    if (letter === "{" || letter === "[") depth += 1;
    if (letter === "}" || letter === "]") depth -= 1;
    place += 1;
    if (!depth && (letter === "}" || letter === "]")) return place;
  }
  throw new Bad(packageText.unreadable);
}

const MARK = /"(?:[^"\\]|\\.)*"\s*:?|[{}[\]]/g;

// Of a key that stands twice, one reader takes the first value and another one the last.
function hasRepeats(json) {
  const open = [];
  for (const [mark] of json.matchAll(MARK)) {
    if (mark === "{" || mark === "[") open.push(new Set());
    else if (mark === "}" || mark === "]") open.pop();
    else if (mark.endsWith(":")) {
      const name = JSON.parse(mark.slice(0, -1));
      if (open.at(-1).has(name)) return true;
      open.at(-1).add(name);
    }
  }
  return false;
}

const isInRange = (value) => (typeof value === "number" ? Number.isFinite(value) : typeof value !== "object" || value === null || Object.values(value).every(isInRange));

function isTyped({ seq, type, version, run_id: runId, agent, at, data }) {
  const isWritten = [type, agent, at].every((one) => typeof one === "string") && (runId === null || typeof runId === "string");
  return isWritten && Number.isSafeInteger(seq) && Number.isSafeInteger(version) && data !== null && typeof data === "object" && !Array.isArray(data) && isInRange(data);
}

function splitEvent(line) {
  const event = JSON.parse(line);
  expect(isTyped(event), packageText.unreadable);
  const begin = `${compact(Object.fromEntries(ORDER.map((name) => [name, event[name]]))).slice(0, -1)},"data":`;
  expect(line.startsWith(begin), packageText.unreadable);
  const end = findEnd(line, begin.length);
  const rest = Object.fromEntries([...SEAL, "texts", "export"].filter((name) => name in event).map((name) => [name, event[name]]));
  expect(SEAL.every((name) => name in rest) && line.slice(end) === `,${compact(rest).slice(1)}`, packageText.unreadable);
  const payload = line.slice(begin.length, end);
  expect(!hasRepeats(payload), packageText.unreadable);
  return [event, payload];
}

const plain = (parts) => sha256(join(parts.slice(1)));
const lengthOf = (part) => pack([8, part.length]).reverse();
const measured = (parts) => sha256(join(parts.flatMap((part) => [lengthOf(part), part])));

const SALT_BYTES = 16;

class PackedSession {
  constructor(event) {
    const kinds = Object.entries(event.export).map(([name, value]) => [name, typeof value]);
    expect(typeof event.session_id === "string" && SESSION_ID.test(event.session_id), packageText.unreadable);
    expect(compact(kinds) === compact(Object.entries(START)) && [1, 2].includes(event.export.format), packageText.unreadable);
    Object.assign(this, { id: event.session_id, start: event.export, seq: 0, hash: new Uint8Array(32), hashes: new Map(), removed: new Map(), explained: new Set(), named: new Set() });
  }

  async take(event, payload, files) {
    this.seq += 1;
    expect(event.session_id === this.id && event.seq === this.seq && (this.seq === 1) === ("export" in event), packageText.gap(this.id, this.seq));
    expect(this.seq > 1 || event.type === "session.created", packageText.unreadable);
    const header = encoder.encode(compact(ORDER.slice(1).map((name) => event[name])));
    const parts = [encoder.encode("swarmkeep event v2"), this.hash, header, fromHex(event.commitment)];
    let recipe = null;
    for (const one of [measured, plain]) if (!recipe && hexOf(await one(parts)) === event.hash) recipe = one;
    expect(recipe, packageText.notNext(this.id, this.seq));
    this.hash = fromHex(event.hash);
    this.hashes.set(this.seq, event.hash);
    const body = encoder.encode(payload);
    if (event.salt === null) this.removed.set(this.seq, await hexDigest(body));
    else {
      const salt = fromHex(event.salt);
      const made = await recipe([encoder.encode("swarmkeep payload v2"), salt, body]);
      expect(salt.length === SALT_BYTES && hexOf(made) === event.commitment, packageText.other(this.id, this.seq));
    }
    const names = new Set(payload.match(/[0-9a-f]{64}/g));
    for (const [name, words] of Object.entries(event.texts ?? {})) {
      expect((await hexDigest(encodeText(words))) === name, packageText.changed(name));
      this.claim(name, names);
    }
    for (const name of files) this.claim(name, names);
    if (event.type === "session.redacted" && event.salt !== null) this.explain(event.data);
  }

  claim(name, names) {
    expect(!this.named.has(name) && names.has(name), packageText.stray(name));
    this.named.add(name);
  }

  explain({ seqs, kept }) {
    expect((kept ?? []).length === seqs.length, packageText.unreadable);
    for (const [index, seq] of seqs.entries()) {
      expect(kept?.[index] && this.removed.get(seq) === kept[index], packageText.other(this.id, seq));
      this.explained.add(seq);
    }
  }

  close() {
    expect(hexOf(this.hash) === this.start.hash, packageText.notNext(this.id, this.seq));
    for (const seq of this.removed.keys()) expect(this.explained.has(seq), packageText.unexplained(this.id, seq));
  }
}

async function readSessions(bytes) {
  const found = new Map();
  let session = null;
  let files = [];
  let ended = false;
  let [begin, sessions, events] = [0, 0, 0];
  for (let start = 0; start < bytes.length;) {
    const end = bytes.indexOf(10, start);
    expect(end >= 0, packageText.cutOff);
    const line = decode(bytes.subarray(start, end));
    if (line.startsWith('{"session_id":')) {
      const [event, payload] = splitEvent(line);
      if (!session) {
        session = new PackedSession(event);
        sessions += 1;
        expect(!found.has(session.id) && (sessions === 1 || !session.start.alone), packageText.unreadable);
      }
      await session.take(event, payload, files);
      [files, ended, events] = [[], false, events + 1];
      if (session.seq === session.start.seq) {
        session.close();
        found.set(session.id, session);
        ended = session.start.alone;
        session = null;
      }
    } else {
      const record = JSON.parse(line);
      if (record.record === "file") {
        const content = bytesOf(record.content);
        const digest = await hexDigest(content);
        expect(session && line === compact({ record: "file", sha256: digest, content: record.content }), packageText.changed(digest));
        files.push(digest);
      } else {
        const digest = await hexDigest(bytes.subarray(begin, start));
        expect(!session && !files.length && line === compact({ record: "end", sessions, events, sha256: digest }), packageText.cutOff);
        ended = true;
      }
    }
    start = end + 1;
    if (ended) [begin, sessions, events] = [start, 0, 0];
  }
  expect(ended && !session, packageText.cutOff);
  return found;
}

// Proofs from the log of heads: a session's leaf leads to the root of its checkpoint (RFC 9162, 2.1.3.2), a signed note of
// C2SP's.

// Of base64 in the one form that bytes have: `atob` takes others, too.
function bytesOf(encoded) {
  const letters = atob(encoded);
  expect(btoa(letters) === encoded, packageText.unreadable);
  return Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
}

const half = (number) => Math.floor(number / 2);

async function checkProof({ leaf, index: place, inclusion, checkpoint: { note, number } }, sessions, trusted) {
  const { session_id: id, seq, hash } = JSON.parse(leaf);
  expect(sessions.get(id)?.hashes.get(seq) === hash, packageText.notProven(id));
  const end = note.lastIndexOf("\n\n");
  expect(Number.isSafeInteger(number) && end >= 0, packageText.notProven(id));
  const [origin, size, root] = note.slice(0, end).split("\n");
  expect(compact({ session_id: id, seq, hash }) === leaf && typeof id === "string" && Number.isSafeInteger(seq), packageText.notProven(id));
  let [index, last] = [place, Number(size) - 1];
  expect(/^[1-9][0-9]*$/.test(size), packageText.unreadable);
  expect(Number.isSafeInteger(index) && index >= 0 && index <= last, packageText.notProven(id));
  let node = await sha256(join([Uint8Array.of(0), encoder.encode(leaf)]));
  for (const one of inclusion.map(fromHex)) {
    expect(last > 0, packageText.notProven(id));
    const right = index % 2 === 1 || index === last;
    node = await sha256(join([Uint8Array.of(1), ...(right ? [one, node] : [node, one])]));
    while (right && index && index % 2 === 0) [index, last] = [half(index), half(last)];
    [index, last] = [half(index), half(last)];
  }
  expect(last === 0 && isSame(node, bytesOf(root)), packageText.notProven(id));
  if (trusted) await checkNote(note, origin, trusted);
  return packageText.proven(id, seq, number, origin, Number(size));
}

const KEY_KIND = 1;
const KEY_ID_BYTES = 4;

async function checkNote(note, origin, trusted) {
  const key = fromHex(trusted);
  const keyId = (await sha256(join([encoder.encode(`${origin}\n`), Uint8Array.of(KEY_KIND), key]))).subarray(0, KEY_ID_BYTES);
  const end = note.lastIndexOf("\n\n") + 1;
  const begin = `\u2014 ${origin} `;
  const signed = note.slice(end).split("\n").filter((line) => line.startsWith(begin)).map((line) => bytesOf(line.slice(begin.length)));
  const signature = signed.find((one) => isSame(one.subarray(0, KEY_ID_BYTES), keyId))?.subarray(KEY_ID_BYTES);
  expect(signature && (await isSigned(key, signature, encoder.encode(note.slice(0, end)))), packageText.noteNotSigned);
}

// What the package says of itself, sentence by sentence. Raises Bad, and names what was changed.
export async function checkPackage(file, trusted) {
  expect(crypto.subtle, viewText.check.noDigests);
  expect(file.size <= MOST_BYTES, packageText.tooLarge);
  const members = await readMembers(new Uint8Array(await file.arrayBuffer()));
  const { at, packedBy } = await checkManifest(members);
  const sessions = await readSessions(members.get("events.jsonl"));
  const { heads, signed } = await readCheckpoint(new Blob([members.get("checkpoint.jsonl")]), trusted);
  expect(!trusted || packedBy === signed, packageText.otherKey);
  for (const session of sessions.values()) {
    const own = heads.filter(({ session_id: id }) => id === session.id);
    expect(own.some(({ seq, hash }) => session.hashes.get(seq) === hash), packageText.notNext(session.id, own[0]?.seq ?? 0));
  }
  const proven = [];
  const lines = decode(members.get("proofs.jsonl") ?? new Uint8Array()).split("\n");
  expect(lines.pop() === "", packageText.cutOff);
  for (const line of lines) {
    proven.push(await checkProof(JSON.parse(line), sessions, trusted && signed));
  }
  const about = [packageText.valid(at, members.size), signed ? viewText.check.signed(signed) : viewText.check.unsigned];
  if (!trusted) about.push(packageText.unsigned);
  return [...about, ...[...sessions.values()].map(({ id, seq, removed }) => packageText.session(id, seq, [...removed.keys()])), ...proven];
}

export class PackageCheck {
  constructor() {
    this.file = h("input", { class: "field", type: "file", accept: ".zip", "aria-label": packageText.file });
    this.key = h("input", { class: "field", autocomplete: "off", spellcheck: "false", placeholder: viewText.check.keyHint, "aria-label": viewText.check.key });
    this.result = h("div", { class: "check-result", role: "status" });
    this.node = h("section", { class: "panel", "aria-label": packageText.title, ondragover: (event) => event.preventDefault(), ondrop: (event) => this.drop(event) },
      h("header", { class: "row" }, h("h2", {}, packageText.title), h("span", { class: "grow" }), button(text.close, { icon: "cross", kind: "ghost small", quiet: true, onclick: () => this.node.remove() })),
      h("p", { class: "muted" }, packageText.hint),
      h("form", { class: "row", onsubmit: (event) => this.submit(event) }, this.file, this.key, button(packageText.check, { type: "submit" })),
      this.result);
  }

  say(sentences, isBad = false) {
    clear(this.result, [sentences].flat().map((sentence) => h("p", { class: isBad ? "reason" : "", dir: "auto" }, sentence)));
  }

  submit(event) {
    event.preventDefault();
    const [file] = this.file.files;
    return file ? this.check(file) : this.say(packageText.noFile, true);
  }

  drop(event) {
    event.preventDefault();
    const [file] = event.dataTransfer.files;
    return file && this.check(file);
  }

  async check(file) {
    this.say(packageText.reading);
    try {
      this.say(await checkPackage(file, this.key.value));
    } catch (error) {
      // What is no JSON, or has other members than it should, was changed, too.
      this.say([packageText.notValid, error instanceof Bad || error.name === "BadCheckpoint" ? error.message : packageText.unreadable], true);
    }
  }
}
