// What a message says, as text.

import { isFile, nameOf } from "./files.js";

export function textOf(content) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content.map((part) => part?.text ?? part?.refusal ?? `[${isFile(part) ? nameOf({ ...part.blob, type: part.type }) : part?.type ?? "?"}]`).join("");
}

// Without the files, which are shown beside it.
export const wordsOf = (content) => textOf(Array.isArray(content) ? content.filter((part) => !isFile(part)) : content);
