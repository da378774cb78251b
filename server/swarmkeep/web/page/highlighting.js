// Colours of code, made in a worker, and the sanitiser that lets markup into the page.

import { pause } from "./api.js";
import "./purify.min.js";

// The one way from markup to elements: what is not allowed is left out.

export const sanitized = (markup, allowed) => globalThis.DOMPurify.sanitize(markup, allowed);

// Colours in blocks of code. A worker finds them: where a text keeps its regular expressions busy, the page goes on, and the text
// stays as it was written. The worker is begun, and its library loaded, with the first block whose language it knows.

// As they are named behind the fence of a block.
const LANGUAGES = new Set(
  ("atom bash c c# c++ cc cjs console cpp cs csharp css cts cxx diff gemspec go golang gql graphql gyp h h++ hh hpp html hxx ini ipython irb java javascript "
    + "js json json5 jsonc jsp jsx kotlin kt ktm kts ktx less lua mak make makefile markdown md mjs mk mkd mkdown mm mts obj-c obj-c++ objc objective-c++ "
    + "objectivec patch perl php php-template pl plist pluto pm podspec py pycon python python-repl r rb rs rss ruby rust scss sh shell shellsession sql svg "
    + "swift thor toml ts tsx typescript vb vbnet wasm wsf xhtml xjb xml xsd xsl yaml yml zsh").split(" "),
);
const LONGEST = 50_000;
// What a program has written, as a rule: to find the place of each colour in it takes a browser long.
const LONGEST_LINE = 10_000;
const PATIENCE_MS = 2_000;
const SLICE_MS = 12;
const MOST_KEPT = 100;

const ALLOWED = { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false, RETURN_DOM_FRAGMENT: true };

// What runs in a worker comes from this one address.
const HIGHLIGHTER = new URL("./highlighter.js", import.meta.url).href;
let addresses = null;

// A message is drawn more than once: what was found is kept, so that its colours do not come and go.
const found = new Map();
const waiting = [];
let worker = null;
let timer = null;

// Gives a `code` element its colours, at once or a little later.
export function highlight(node, language) {
  const code = node.textContent;
  const name = language.toLowerCase();
  if (!LANGUAGES.has(name) || isTooLong(code) || !code.trim()) return;
  const known = found.get(`${name}\n${code}`);
  if (known !== undefined) paint(node, known);
  else if (worker !== false) {
    waiting.push({ node, code, name });
    if (waiting.length === 1) next();
  }
}

const isTooLong = (code) => code.length > LONGEST || code.split("\n").some((line) => line.length > LONGEST_LINE);

function paint(node, painted) {
  if (painted) node.replaceChildren(painted.cloneNode(true));
}

// Colours change no letter of a text. Those of a long one are made in slices.
async function sanitizePieces(pieces, code) {
  const painted = document.createDocumentFragment();
  let until = performance.now() + SLICE_MS;
  for (const markup of pieces) {
    painted.append(sanitized(markup, ALLOWED));
    if (performance.now() < until) continue;
    await pause(0);
    until = performance.now() + SLICE_MS;
  }
  return painted.textContent === code ? painted : null;
}

// The first of those that wait is with the worker. One that is drawn again meanwhile waits a second time, and is known by then.
function next() {
  clearTimeout(timer);
  const known = ({ code, name }) => found.get(`${name}\n${code}`);
  while (waiting.length && known(waiting[0]) !== undefined) paint(waiting[0].node, known(waiting.shift()));
  const [job] = waiting;
  if (!job) return;
  worker ??= begin();
  worker.postMessage({ code: job.code, language: job.name });
  // Until its library is there, it is the network that takes the time.
  if (worker.isReady) timer = setTimeout(giveUp, PATIENCE_MS);
}

async function take(pieces) {
  clearTimeout(timer);
  const { node, code, name } = waiting[0];
  const painted = await sanitizePieces(pieces, code);
  waiting.shift();
  found.set(`${name}\n${code}`, painted);
  if (found.size > MOST_KEPT) found.delete(found.keys().next().value);
  paint(node, painted);
  next();
}

// What took too long is left as it is, and its worker with it.
function giveUp() {
  worker.terminate();
  worker = null;
  take([]);
}

function begin() {
  addresses ??= globalThis.trustedTypes?.createPolicy("highlighter", { createScriptURL: () => HIGHLIGHTER });
  const begun = new Worker(addresses?.createScriptURL("") ?? HIGHLIGHTER, { type: "module" });
  begun.isReady = false;
  begun.addEventListener("message", ({ data }) => {
    if (begun !== worker) return;
    if (Array.isArray(data)) return take(data);
    begun.isReady = true;
    timer = setTimeout(giveUp, PATIENCE_MS);
  });
  // Without its library nothing has colours; all is there to read.
  begun.addEventListener("error", () => {
    if (begun !== worker) return;
    clearTimeout(timer);
    worker = false;
    waiting.length = 0;
  });
  return begun;
}
