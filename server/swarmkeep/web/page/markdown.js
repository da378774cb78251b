// Markdown from models and people, made harmless: no scripts, no images, no forms, no styles, no foreign frames.

import { copyButton, h, plain } from "./dom.js";
import { drawFormula, extensions, mayHaveFormulas } from "./formulas.js";
import { highlight, sanitized } from "./highlighting.js";
import { Lexer, Marked } from "./marked.esm.js";
import { text } from "./text.js";

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escaped = (source) => source.replaceAll(/[&<>"]/g, (sign) => ESCAPES[sign]);

const BOXES = /^[☑☐] /;

// HTML in a message is shown as it was written, and a picture as a link to it: nothing is hidden, nothing is loaded. The boxes
// of a list are signs, because they cannot be ticked.
const renderer = {
  checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  html: ({ text: written, block }) => (block ? `<p>${escaped(written)}</p>` : escaped(written)),
  image: ({ href, text: words }) => `<a href="${escaped(href)}">${escaped(words || href)}</a>`,
};
const OPTIONS = { gfm: true, breaks: true, renderer };
const bare = new Marked(OPTIONS);
const marked = new Marked(OPTIONS, { extensions });

const ALLOWED = {
  ALLOWED_TAGS: [
    "p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "strong", "em", "b", "i", "s", "del", "sub", "sup", "code", "pre", "blockquote",
    "ul", "ol", "li", "a", "table", "thead", "tbody", "tr", "th", "td",
  ],
  // The class says what language a block of code is in, and goes when that is known.
  ALLOWED_ATTR: ["href", "title", "align", "start", "class"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  // Else their values would have to be addresses.
  ADD_URI_SAFE_ATTR: ["align", "start"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

// A conversation's headings stand below the page's own.
const LEVELS = { H1: "h4", H2: "h5", H3: "h6", H4: "h6", H5: "h6" };

// Quotes and lists nested deeper than people write them, and more marks than a long answer has: the parser has no end of
// them, or needs minutes. What it cannot read otherwise is shown as it was written, too.
const DEEP = /^(?:[ \t]*(?:>|[-+*]|\d{1,9}[.)])){50}/m;
const MOST_MARKS = 4_000;

const isTooMuch = (source) => DEEP.test(source) || (source.match(/[_*$]/g)?.length ?? 0) > MOST_MARKS;

// What is drawn in one step is about as long.
const STEP = 2_000;
// What may be long is drawn by its parts.
const PARTS = { list: ["items", "ul,ol"], table: ["rows", "tbody"] };

// Draws a text a step at a time. Of one that `grows` the last block is apart, as `last`: it may come to be another one, and its
// code has no colours yet. `length` is that of the text before it.
export function* draw(source, { grows = false, into = null } = {}) {
  const fixed = into ?? document.createDocumentFragment();
  const last = document.createDocumentFragment();
  try {
    if (!isTooMuch(source)) return { fixed, last, length: yield* drawBlocks(source, grows, fixed, last) };
  } catch {
    // It is shown as it was written.
  }
  fixed.replaceChildren();
  last.replaceChildren();
  (grows ? last : fixed).append(plain(source));
  return { fixed, last, length: 0 };
}

function* drawBlocks(source, grows, fixed, last) {
  const lexer = new Lexer((mayHaveFormulas(source) ? marked : bare).defaults);
  const blocks = lexer.blockTokens(source, lexer.tokens);
  for (const { src, tokens } of lexer.inlineQueue) {
    lexer.inlineTokens(src, tokens);
    yield;
  }
  const count = grows ? countFixed(source, blocks) : blocks.length;
  yield* drawParts(blocks.slice(0, count), fixed, false);
  yield* drawParts(blocks.slice(count), last, grows);
  return blocks.slice(0, count).reduce((sum, { raw }) => sum + raw.length, 0);
}

// The number of blocks whose form no later text changes: all but the last.
function countFixed(source, blocks) {
  const isAll = source.startsWith(blocks.map(({ raw }) => raw).join(""));
  return isAll ? Math.max(blocks.findLastIndex(({ type }) => type !== "space"), 0) : 0;
}

function* drawParts(blocks, into, unfinished) {
  let some = [];
  let length = 0;
  for (const block of blocks) {
    const isLong = block.raw.length > STEP && block[PARTS[block.type]?.[0]]?.length > 1;
    if (length > STEP || (isLong && some.length)) {
      into.append(format(some, unfinished));
      yield;
      some = [];
      length = 0;
    }
    if (isLong) yield* drawLong(block, into, unfinished);
    else {
      some.push(block);
      length += block.raw.length;
    }
  }
  if (some.length) into.append(format(some, unfinished));
}

function* drawLong(block, into, unfinished) {
  const [name, place] = PARTS[block.type];
  const parts = block[name];
  const few = Math.max(Math.ceil((parts.length * STEP) / block.raw.length), 1);
  let first = null;
  for (let index = 0; index < parts.length; index += few) {
    const made = format([{ ...block, [name]: parts.slice(index, index + few) }], unfinished);
    const part = made.querySelector(place);
    if (first) first.append(...part.children);
    else {
      first = part;
      into.append(made);
    }
    yield;
  }
}

function wrap(node, frame) {
  node.replaceWith(frame);
  frame.append(node);
  return frame;
}

// The language of a block; other classes are removed.
function takeLanguage(node) {
  const language = node.matches("pre > code") ? node.className.match(/^language-(\S{1,20})$/)?.[1] : null;
  node.removeAttribute("class");
  return language;
}

function format(blocks, unfinished) {
  const fragment = sanitized(marked.parser(blocks), ALLOWED);
  const formulas = fragment.querySelectorAll("code.tex");
  for (const node of fragment.querySelectorAll("[class]")) {
    const language = takeLanguage(node);
    if (language && !unfinished) highlight(node, language);
  }
  for (const link of fragment.querySelectorAll("a")) {
    link.rel = "noopener noreferrer nofollow";
    link.target = "_blank";
  }
  for (const heading of fragment.querySelectorAll("h1,h2,h3,h4,h5")) {
    const lower = document.createElement(LEVELS[heading.tagName]);
    lower.append(...heading.childNodes);
    heading.replaceWith(lower);
  }
  for (const item of fragment.querySelectorAll("li")) if (BOXES.test(item.textContent.trimStart())) item.className = "task";
  for (const table of fragment.querySelectorAll("table")) wrap(table, h("div", { class: "wide", tabindex: 0, role: "group", "aria-label": text.chat.table }));
  for (const block of fragment.querySelectorAll("pre")) {
    block.tabIndex = 0;
    wrap(block, h("div", { class: "copied" })).append(copyButton(() => block.textContent));
  }
  formulas.forEach(drawFormula);
  // Lists and tables go one way as a whole, so that numbers and columns do, too; each line in them reads its own way.
  for (const block of fragment.children) if (!block.matches(".copied")) block.dir = "auto";
  return fragment;
}
