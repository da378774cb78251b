// Files to send with a message: what they are, by their first bytes, and whether the server takes them.

import { me } from "./api.js";
import { addressOf } from "./content.js";
import { text } from "./text.js";

const t = text.attach;

// As the server recognises them. What a provider would refuse is not sent: every later request of the session had it in it, too.
const SIGNATURES = [
  ["\x89PNG\r\n\x1a\n", "image/png"],
  ["\xff\xd8\xff", "image/jpeg"],
  ["GIF87a", "image/gif"],
  ["GIF89a", "image/gif"],
  ["%PDF-", "application/pdf"],
  ["ID3", "audio/mpeg"],
  ["\xff\xfb", "audio/mpeg"],
  ["\xff\xf3", "audio/mpeg"],
  ["\xff\xf2", "audio/mpeg"],
];
const RIFF = { WEBP: "image/webp", WAVE: "audio/wav" };
const AUDIO_FORMATS = { "audio/mpeg": "mp3", "audio/wav": "wav" };
const LONGEST_START = 12;

// What the file dialog offers first.
export const ACCEPTED = "image/png,image/jpeg,image/gif,image/webp,.mp3,.wav,application/pdf";

// A server that does not tell its limits refuses by itself.
const NO_RULES = { types: ["*/*"], max_bytes: Infinity, max_message_bytes: Infinity, max_count: Infinity };

async function typeOf(file) {
  const start = new Uint8Array(await file.slice(0, LONGEST_START).arrayBuffer());
  const signs = String.fromCharCode(...start);
  if (signs.startsWith("RIFF")) return RIFF[signs.slice(8, 12)];
  return SIGNATURES.find(([begin]) => signs.startsWith(begin))?.[1];
}

// Takes `files` beside those that are `there`; returns what was taken, and of each of the others why it was not.
export async function takeFiles(files, there) {
  const taken = [];
  const refused = [];
  for (const file of files) {
    const why = await take(file, [...there, ...taken]).catch(() => t.unreadable);
    if (typeof why === "string") refused.push(t.refused(file.name, why));
    else taken.push(why);
  }
  return { taken, refused };
}

async function take(file, there) {
  const { types, max_bytes: most, max_message_bytes: mostTogether, max_count: count } = me.known?.files ?? NO_RULES;
  if (!file.size) return t.isEmpty;
  const type = await typeOf(file);
  if (!type) return t.kinds;
  if (!types.some((allowed) => [type, `${type.split("/")[0]}/*`, "*/*"].includes(allowed))) return t.notHere(type);
  if (file.size > most) return t.tooLarge(most);
  if (there.length >= count) return t.tooMany(count);
  if (there.reduce((sum, { size }) => sum + size, file.size) > mostTogether) return t.tooLargeTogether(mostTogether);
  // What the file is called says nothing about what it is.
  const url = await addressOf(new Blob([file], { type }));
  return { name: file.name, size: file.size, type, url, part: partOf(type, url, file.name) };
}

function partOf(type, url, name) {
  if (type.startsWith("image/")) return { type: "image_url", image_url: { url } };
  if (type in AUDIO_FORMATS) return { type: "input_audio", input_audio: { data: url.slice(url.indexOf(",") + 1), format: AUDIO_FORMATS[type] } };
  return { type: "file", file: { filename: name, file_data: url } };
}

// A message of words and files, as the API takes it.
export const messageOf = (words, files) => [{ role: "user", content: [...(words.trim() ? [{ type: "text", text: words }] : []), ...files.map(({ part }) => part)] }];
