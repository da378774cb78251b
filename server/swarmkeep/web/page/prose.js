// A text as Markdown, whole or while it is being written. What draws it is loaded with the first text, which is plain until then.
// A long one is drawn in slices, so that the page goes on meanwhile; of one that grows, what is finished stays as it is, and only
// its last block is drawn again, also when it ends.

import { pause } from "./api.js";
import { h, plain } from "./dom.js";

// What is shorter is drawn at once.
const SHORT = 4_000;
const SLICE_MS = 12;
// The last block of a text, as a list or a piece of code, may be long itself. Then it is drawn again each time that it has grown by
// a part of itself, so that the work stays in proportion to the text.
const LONG = 10_000;
const GROWTH = 1.03;
// Longer texts are shown plain, unless they were seen to grow: Markdown of that size is not a message.
const LONGEST_MARKDOWN = 100_000;
// Names for addresses, which may stand behind what uses them, and in quotes and lists, too.
const DEFINITION = /^(?:[ \t]*(?:>|[-+*]|\d{1,9}[.)]))*[ \t]*\[(?:\\[^]|[^[\]\\])+\]:/m;
// A server that is away is asked again, less and less often.
const SHORTEST_PAUSE = 500;
const LONGEST_PAUSE = 30_000;

let library = null;
let loading = null;
const waiting = new Set();
const unfinished = new Set();

export function loadMarkdown() {
  return (loading ??= load());
}

async function load() {
  let wait = SHORTEST_PAUSE;
  while (!(library = await import("./markdown.js").catch(() => null))) {
    await pause(wait);
    wait = Math.min(wait * 2, LONGEST_PAUSE);
  }
  for (const prose of waiting) prose.draw();
  waiting.clear();
}

// For paper, which does not wait.
export function finishAll() {
  for (const prose of unfinished) prose.steps && prose.go(Infinity);
}

export class Prose {
  constructor() {
    this.node = h("div", { class: "prose", dir: "auto" });
    this.source = "";
    this.isWhole = false;
    this.steps = null;
    this.clear();
  }

  clear() {
    this.finished = 0;
    this.last = [];
    this.drawn = 0;
  }

  // What was written so far.
  show(written) {
    this.source = written.replaceAll(/\r\n?/g, "\n");
    this.draw();
  }

  // All of it; drawn again where it does not begin with the text that was shown before.
  finish(written) {
    const before = this.source.slice(0, this.finished);
    this.source = written.replaceAll(/\r\n?/g, "\n");
    this.isWhole = true;
    this.steps = null;
    unfinished.delete(this);
    if (!this.source.startsWith(before) || DEFINITION.test(this.source)) this.clear();
    if (this.source.length > LONGEST_MARKDOWN && !this.finished) this.node.replaceChildren(plain(this.source));
    else this.draw();
  }

  draw() {
    if (!library) return this.wait();
    const rest = this.source.length - this.finished;
    if (this.steps || (!this.isWhole && this.drawn > LONG && rest < this.drawn * GROWTH)) return;
    const isFresh = this.isWhole && !this.node.firstChild;
    this.drawing = this.source;
    this.steps = library.draw(this.source.slice(this.finished), { grows: !this.isWhole, into: isFresh ? this.node : null });
    this.go(rest > SHORT && !document.hidden ? SLICE_MS : Infinity);
  }

  wait() {
    this.node.replaceChildren(plain(this.source));
    waiting.add(this);
    loadMarkdown();
  }

  go(ms) {
    const { steps } = this;
    const until = performance.now() + ms;
    let step = steps.next();
    while (!step.done && performance.now() < until) step = steps.next();
    if (step.done) return this.put(step.value);
    unfinished.add(this);
    setTimeout(() => steps === this.steps && this.go(document.hidden ? Infinity : SLICE_MS));
  }

  put({ fixed, last, length }) {
    const { finished, drawing } = this;
    const nodes = [...last.childNodes];
    if (!finished && fixed !== this.node) this.node.replaceChildren(fixed, last);
    else {
      this.last.forEach((node) => node.remove());
      if (fixed !== this.node) this.node.append(fixed);
      this.node.append(last);
    }
    this.finished = finished + length;
    this.last = nodes;
    this.drawn = drawing.length - this.finished;
    this.steps = null;
    unfinished.delete(this);
    if (this.source !== drawing) this.draw();
  }
}
