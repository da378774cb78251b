// Content of messages: text and files.

import { getBlob, sessionPath } from "./api.js";
import { button, h } from "./dom.js";
import { text } from "./text.js";

// Files of a message: a picture is shown once it comes into sight, and each can be saved. They come from this server only.

const KINDS = new Set(["image_url", "input_audio", "file"]);

const pathOf = (session, file) => sessionPath(session, `/blobs/${encodeURIComponent(file.sha256)}`);

export const isFile = (part) => KINDS.has(part?.type) && typeof part.blob?.sha256 === "string";

export const filesOf = (content) => (Array.isArray(content) ? content : []).filter(isFile).map(({ type, blob }) => ({ type, ...blob }));

const nameOf = ({ type, name, media_type: media, size }) => text.file.named(text.file[type], name, String(media), Number(size) || 0);

// `session` gives the id of theirs.
export const filesNode = (session, files) => files.length > 0 && h("div", { class: "files" }, files.map((file) => fileNode(session(), file)));

function fileNode(session, file) {
  const said = h("span", { class: "muted", dir: "auto" }, nameOf(file));
  const node = h("figure", { class: "file" }, h("figcaption", {}, said, button(text.file.save, { icon: "download", quiet: true, kind: "ghost small", onclick: () => save(session, file, said) })));
  if (file.type === "image_url") onSight(node, () => show(session, file, node, said));
  return node;
}

function onSight(node, act) {
  const seen = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    seen.disconnect();
    act();
  }, { rootMargin: "400px" });
  seen.observe(node);
}

async function show(session, file, node, said) {
  const content = await load(session, file, said);
  // What the server does not take for a picture is none.
  if (content?.type.startsWith("image/")) node.prepend(h("img", { class: "picture", alt: nameOf(file), src: await addressOf(content) }));
}

async function load(session, file, said) {
  try {
    return await getBlob(pathOf(session, file));
  } catch (error) {
    said.textContent = error.code === "blob_not_found" ? text.file.gone(nameOf(file)) : `${nameOf(file)}: ${error.advice ?? error.message}`;
    return null;
  }
}

// As data, which the page's policy takes for pictures.
export const addressOf = (content) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(content);
  });

async function save(session, file, said) {
  const content = await load(session, file, said);
  if (content === null) return;
  // Nothing that a browser would open as a page of this server.
  const link = h("a", { href: URL.createObjectURL(new Blob([content], { type: "application/octet-stream" })), download: file.name ?? file.sha256.slice(0, 12) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// What a message says, as text.

export function textOf(content) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content.map((part) => part?.text ?? part?.refusal ?? `[${isFile(part) ? nameOf({ ...part.blob, type: part.type }) : part?.type ?? "?"}]`).join("");
}

// Without the files, which are shown beside it.
export const wordsOf = (content) => textOf(Array.isArray(content) ? content.filter((part) => !isFile(part)) : content);
