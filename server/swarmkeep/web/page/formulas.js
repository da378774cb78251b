// Formulas in Markdown: between $ and $ or \( and \) within a line, between $$ and $$ or \[ and \] apart. What draws them is loaded
// with the first one; until then, and where it cannot be read, a formula stands there as it was written.

import { pause } from "./api.js";
import { h } from "./dom.js";
import { text } from "./text.js";

const LONGEST = 3_000;
const MOST_KEPT = 200;
const SLICE_MS = 12;
const CLOSES = { "$$": "$$", "\\[": "\\]", "\\(": "\\)", "$": "$" };
// Sums of money are no formulas: "from $5 to $10", "US$5 or 6$".
const IS_NUMBER = /^\d/;
const IS_FORMULA = /[\\^_{}=+*/<>|-]/;
const IS_WORD = /^[\p{L}\p{N}]/u;

export const mayHaveFormulas = (source) => source.includes("$") || source.includes("\\(") || source.includes("\\[");

const opening = (source) => Object.keys(CLOSES).find((open) => source.startsWith(open));

// The formula that a text begins with, as it was written; undefined if that is none.
function formulaAt(source) {
  const open = opening(source);
  if (!open) return undefined;
  const close = CLOSES[open];
  const within = source.slice(0, LONGEST);
  let end = within.indexOf(close, open.length);
  while (end > 0 && close.startsWith("$") && within[end - 1] === "\\") end = within.indexOf(close, end + close.length);
  const tex = within.slice(open.length, end);
  if (end < 0 || !tex.trim() || tex.includes("\n\n")) return undefined;
  if (open === "$" && (tex !== tex.trim() || IS_WORD.test(source.slice(end + 1)) || (IS_NUMBER.test(tex) && !IS_FORMULA.test(tex)))) return undefined;
  return within.slice(0, end + close.length);
}

const nearest = (...places) => {
  const found = places.filter((place) => place >= 0);
  return found.length ? Math.min(...found) : undefined;
};

const isApart = (raw) => raw.startsWith("$$") || raw.startsWith("\\[");

const inline = {
  name: "formula",
  level: "inline",
  start: (source) => nearest(source.indexOf("$"), source.indexOf("\\("), source.indexOf("\\[")),
  tokenizer(source) {
    const raw = formulaAt(source);
    return raw && { type: "formula", raw };
  },
};

const block = {
  name: "formulaBlock",
  level: "block",
  start: (source) => nearest(source.indexOf("\n$$"), source.indexOf("\n\\[")),
  tokenizer(source) {
    if (!isApart(source)) return undefined;
    const formula = formulaAt(source);
    const rest = formula && /^[ \t]*(?:\n|$)/.exec(source.slice(formula.length));
    if (rest) return { type: "formulaBlock", raw: formula + rest[0], formula };
    // One that is still being written is one block, too.
    if (formula || !/^(?:\$\$|\\\[)[ \t]*(?:\n|$)/.test(source)) return undefined;
    const end = source.indexOf("\n\n");
    return { type: "formulaBlock", raw: end < 0 ? source : source.slice(0, end + 1), formula: null };
  },
};

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
const escaped = (source) => source.replaceAll(/[&<>]/g, (sign) => ESCAPES[sign]);
const written = (raw) => `<code class="tex">${escaped(raw)}</code>`;

export const extensions = [
  { ...inline, renderer: ({ raw }) => written(raw) },
  { ...block, renderer: ({ raw, formula }) => `<p>${formula ? written(formula) : escaped(raw)}</p>` },
];

// Drawing them. A message is drawn more than once: what was found is kept.

const found = new Map();
const waiting = [];
let loading = null;
let library = null;

// Puts the formula in the place of a `code` element that has it as it was written.
export function drawFormula(node) {
  if (library) return put(node);
  waiting.push(node);
  loading ??= load().catch(() => {
    // The next one tries again.
    loading = null;
  });
  return undefined;
}

async function load() {
  const loaded = await import("./mathml.js");
  library = loaded;
  let until = performance.now() + SLICE_MS;
  while (waiting.length) {
    put(waiting.shift());
    if (performance.now() < until) continue;
    await pause(0);
    until = performance.now() + SLICE_MS;
  }
}

function put(node) {
  const raw = node.textContent;
  if (!found.has(raw)) {
    const length = opening(raw).length;
    found.set(raw, library.drawMath(raw.slice(length, -length), isApart(raw)));
    if (found.size > MOST_KEPT) found.delete(found.keys().next().value);
  }
  const math = found.get(raw)?.cloneNode(true);
  if (math) node.replaceWith(isApart(raw) ? h("span", { class: "formula", tabindex: 0, role: "group", "aria-label": text.chat.formula, dir: "ltr" }, math) : math);
}
