// The worker that finds colours in code: it is sent a text and its language, and answers with markup, one after the other.

import hljs from "./highlight.min.js";

// The markup in pieces of about that length, within a long line, too. Each stands for itself: what is open at the end of one is
// closed there, and opened again in the next.
const PIECE = 8_000;

function split(markup) {
  const open = [];
  const pieces = [];
  let piece = "";
  for (const part of markup.split(/(<[^>]*>|\n)/)) {
    piece += part;
    if (part.startsWith("<span")) {
      open.push(part);
      continue;
    }
    if (part === "</span>") open.pop();
    if (piece.length > PIECE) {
      pieces.push(piece + "</span>".repeat(open.length));
      piece = open.join("");
    }
  }
  return [...pieces, piece];
}

addEventListener("message", ({ data: { code, language } }) => postMessage(split(hljs.highlight(code, { language, ignoreIllegals: true }).value)));
postMessage({ ready: true });
