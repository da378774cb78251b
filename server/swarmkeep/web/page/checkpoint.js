// A checkpoint file, as `swarmkeep checkpoint` writes it, read and checked in the browser: nothing of it is sent anywhere.

import { text } from "./text.js";

const checkpointText = text.check;
const MOST_BYTES = 200_000_000;
const SIGNED_PREFIX = "swarmkeep checkpoint v1\n";

class BadCheckpoint extends Error {}

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

// A public key as somebody gives it: in hex, or as PEM, which ends with its bytes.
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
