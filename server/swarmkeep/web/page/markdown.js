// Markdown from models and people, made harmless: no scripts, no images, no forms, no styles, no foreign frames.

import DOMPurify from "./purify.es.mjs";
import { Marked } from "./marked.esm.js";

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escaped = (source) => source.replaceAll(/[&<>"]/g, (sign) => ESCAPES[sign]);

// HTML in a message is shown as it was written, and a picture as a link to it: nothing is hidden, nothing is loaded.
const renderer = {
  html: ({ text, block }) => (block ? `<p>${escaped(text)}</p>` : escaped(text)),
  image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
};
const marked = new Marked({ gfm: true, breaks: true, renderer });

const ALLOWED = {
  ALLOWED_TAGS: [
    "p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "strong", "em", "b", "i", "s", "del", "sub", "sup", "code", "pre", "blockquote",
    "ul", "ol", "li", "a", "table", "thead", "tbody", "tr", "th", "td",
  ],
  ALLOWED_ATTR: ["href", "title", "align", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

// A conversation's headings stand below the page's own.
const LEVELS = { H1: "h4", H2: "h5", H3: "h6", H4: "h6", H5: "h6" };

// Quotes and lists within each other as nobody writes them, and more marks than a long answer has: the parser has no end of
// them, or needs minutes. What it cannot read otherwise is shown as it was written, too.
const DEEP = /^(?:[ \t]*(?:>|[-+*]|\d{1,9}[.)])){50}/m;
const MOST_MARKS = 4_000;

export function markdown(source) {
  if (DEEP.test(source) || (source.match(/[_*]/g)?.length ?? 0) > MOST_MARKS) return plain(source);
  try {
    return formatted(source);
  } catch {
    return plain(source);
  }
}

export function plain(source) {
  const node = document.createElement("p");
  node.className = "plain";
  node.append(source);
  return node;
}

function formatted(source) {
  const fragment = DOMPurify.sanitize(marked.parse(source), ALLOWED);
  for (const link of fragment.querySelectorAll("a")) {
    link.rel = "noopener noreferrer nofollow";
    link.target = "_blank";
  }
  for (const heading of fragment.querySelectorAll("h1,h2,h3,h4,h5")) {
    const lower = document.createElement(LEVELS[heading.tagName]);
    lower.append(...heading.childNodes);
    heading.replaceWith(lower);
  }
  for (const wide of fragment.querySelectorAll("pre,table")) wide.tabIndex = 0;
  for (const block of fragment.querySelectorAll("p,li,blockquote,h4,h5,h6,td,th")) block.dir = "auto";
  return fragment;
}
