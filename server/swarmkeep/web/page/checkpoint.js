// Earlier heads of logs: read from text or a file, checked against a session.

import { button, clear, dayAndTime, h } from "./dom.js";
import { text } from "./text.js";
import { viewText } from "./viewtext.js";

// A checkpoint file, as `swarmkeep checkpoint` writes it, read and checked in the browser: nothing of it is sent anywhere.

const checkpointText = viewText.check;
const MOST_BYTES = 200_000_000;
const SIGNED_PREFIX = "swarmkeep checkpoint v1\n";

class BadCheckpoint extends Error {
  name = "BadCheckpoint";
}

// Its heads, when it was made, and whose signature it has. Raises BadCheckpoint.
export async function readCheckpoint(file, trusted = "") {
  if (!crypto.subtle) throw new BadCheckpoint(checkpointText.noDigests);
  if (file.size > MOST_BYTES) throw new BadCheckpoint(checkpointText.tooLarge);
  const bytes = new Uint8Array(await file.arrayBuffer());
  if (bytes.at(-1) !== 10) throw new BadCheckpoint(checkpointText.cutOff);
  const begin = bytes.lastIndexOf(10, bytes.length - 2) + 1;
  const body = bytes.subarray(0, begin);
  const seal = asJson(new TextDecoder().decode(bytes.subarray(begin)));
  const lines = new TextDecoder().decode(body).split("\n").slice(0, -1);
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", body));
  if (typeof seal?.sha256 !== "string") throw new BadCheckpoint(checkpointText.cutOff);
  if (seal.sha256 !== hexOf(digest) || seal.lines !== lines.length) throw new BadCheckpoint(checkpointText.changed);
  const first = asJson(lines[0] ?? "");
  if (first?.format !== "swarmkeep checkpoint" || first.version !== 1) throw new BadCheckpoint(checkpointText.noCheckpoint);
  const signed = await checkSignature(seal, digest, trusted.trim());
  return { at: String(first.at), heads: lines.slice(1).map(asHead), signed };
}

function asJson(line) {
  try {
    return JSON.parse(line);
  } catch {
    return null;
  }
}

function asHead(line) {
  const head = asJson(line);
  if (!Number.isSafeInteger(head?.seq) || typeof head.hash !== "string") throw new BadCheckpoint(checkpointText.noCheckpoint);
  return head;
}

// The key that it is signed with, in hex; null for one that is not signed.
async function checkSignature(seal, digest, trusted) {
  if (!seal.public_key || !seal.signature) {
    if (trusted) throw new BadCheckpoint(checkpointText.notSigned);
    return null;
  }
  if (trusted && keyOf(trusted) !== seal.public_key) throw new BadCheckpoint(checkpointText.otherKey);
  const prefix = new TextEncoder().encode(SIGNED_PREFIX);
  const said = new Uint8Array([...prefix, ...digest]);
  let right;
  try {
    const known = await crypto.subtle.importKey("raw", fromHex(seal.public_key), { name: "Ed25519" }, false, ["verify"]);
    right = await crypto.subtle.verify({ name: "Ed25519" }, known, fromHex(seal.signature), said);
  } catch (error) {
    throw new BadCheckpoint(error.name === "NotSupportedError" ? checkpointText.noSignatures : checkpointText.badSignature);
  }
  if (!right) throw new BadCheckpoint(checkpointText.badSignature);
  return seal.public_key;
}

const KEY_BYTES = 32;

// A public key as the user gives it: in hex, or as PEM, which ends with its bytes.
function keyOf(given) {
  if (/^[0-9a-f]{64}$/i.test(given)) return given.toLowerCase();
  try {
    const bytes = Uint8Array.from(atob(given.replaceAll(/-----[^-]+-----|\s/g, "")), (letter) => letter.charCodeAt(0));
    if (bytes.length > KEY_BYTES) return hexOf(bytes.subarray(-KEY_BYTES));
  } catch {
    // It is neither.
  }
  throw new BadCheckpoint(checkpointText.noKey);
}

const hexOf = (bytes) => [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");

function fromHex(digits) {
  if (!/^([0-9a-f]{2})+$/.test(digits)) throw new BadCheckpoint(checkpointText.badSignature);
  return Uint8Array.from(digits.match(/../g), (pair) => parseInt(pair, 16));
}

// A log against what was noted of it before: a SEQ:HASH, or the head that a checkpoint file has of it.

const checkText = viewText.check;
const WRITTEN_HEAD = /^[1-9][0-9]{0,15}:[0-9a-fA-F]{64}$/;

export class HeadCheck {
  // `verify(head)` asks the server and gives what it found; `isOurs(head)` tells the log's own among a checkpoint's heads;
  // `forget` is called when the noted head no longer applies.
  constructor({ verify, isOurs, forget }) {
    this.verify = verify;
    this.forget = forget;
    this.isOurs = isOurs;
    this.head = h("input", { class: "field", autocomplete: "off", spellcheck: "false", placeholder: checkText.form, "aria-label": checkText.head });
    this.file = h("input", { class: "field", type: "file", "aria-label": checkText.file });
    this.key = h("input", { class: "field", autocomplete: "off", spellcheck: "false", placeholder: checkText.keyHint, "aria-label": checkText.key });
    this.result = h("div", { class: "check-result", role: "status" });
    this.node = h("section", { class: "panel", "aria-label": checkText.title, hidden: true },
      h("header", { class: "row" }, h("h2", {}, checkText.title), h("span", { class: "grow" }), button(text.close, { icon: "cross", kind: "ghost small", quiet: true, onclick: () => this.close() })),
      h("p", { class: "muted" }, checkText.hint),
      h("form", { class: "row", onsubmit: (event) => this.withHead(event) }, this.head, button(checkText.checkHead, { type: "submit" })),
      h("form", { class: "row", onsubmit: (event) => this.withFile(event) }, this.file, this.key, button(checkText.checkFile, { type: "submit" })),
      this.result);
  }

  open() {
    this.node.hidden = false;
    this.head.focus();
  }

  close() {
    this.node.hidden = true;
    this.say([]);
    this.forget();
  }

  say(words, isBad = false) {
    clear(this.result, [words].flat().map((sentence) => h("p", { class: isBad ? "reason" : "", dir: "auto" }, sentence)));
  }

  withHead(event) {
    event.preventDefault();
    const noted = this.head.value.trim();
    return WRITTEN_HEAD.test(noted) ? this.against(noted, []) : this.say(checkText.noHead, true);
  }

  async withFile(event) {
    event.preventDefault();
    const [file] = this.file.files;
    if (!file) return this.say(checkText.noFile, true);
    this.say(checkText.reading);
    try {
      const { at, heads, signed } = await readCheckpoint(file, this.key.value);
      const about = [checkText.checkpoint(dayAndTime(at), heads.length), signed ? checkText.signed(signed) : checkText.unsigned];
      const own = heads.find(this.isOurs);
      if (!own) return this.say([...about, checkText.notInIt], true);
      return await this.against(`${own.seq}:${own.hash}`, about);
    } catch (error) {
      return this.say(error.message, true);
    }
  }

  async against(head, about) {
    this.say([...about, text.timeline.verify]);
    try {
      const found = await this.verify(head);
      const seq = Number(head.split(":")[0]);
      const since = found.redacted_count ? [checkText.redactedSince(found.redacted.slice(0, 20).join(", "), found.redacted_count)] : [];
      if (found.valid) this.say([...about, checkText.holds(seq), ...since]);
      else this.say([...about, checkText.fails(found.problem_count), ...found.problems.slice(0, 5).map(({ detail }) => detail)], true);
    } catch (error) {
      this.say(error.message, true);
    }
  }
}
