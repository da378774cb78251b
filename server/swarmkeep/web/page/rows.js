// The timeline's list: rows of events, grouped by run or as spans, drawn as far as they are in sight.

import { elapsed, isBad, kindOf, matches, summaryOf, titleOf, tokensOf } from "./descriptions.js";
import { clear, h, icon, lane, since, timeOf } from "./dom.js";
import { sortedSpans } from "./spans.js";
import { text } from "./text.js";
import { viewText } from "./viewtext.js";

// An event in the timeline's list, as one line.

// So many agents have a lane each; of more, an event's own is named in its row.
const LANES = 6;

// `differs`: in what today's agents would do otherwise, if it was asked.
export function eventRow(event, { damage, differs, before, agents }) {
  const tokens = tokensOf(event);
  return [
    h("span", { class: "row-seq" }, String(event.seq)),
    lanesOf(event.agent, agents),
    h("span", { class: `row-title kind-${kindOf(event)} ${damage || isBad(event) ? "bad" : ""}` }, titleOf(event)),
    damage ? h("span", { class: "row-damage", title: damage.detail }, icon("cross"), text.timeline.damagedRow) : null,
    differs ? h("span", { class: "row-damage differs", title: differs.map(({ kind }) => viewText.today.kinds[kind] ?? kind).join(", ") }, viewText.today.mark) : null,
    h("span", { class: "row-summary", dir: "auto", title: event.data?.by }, summaryOf(event).slice(0, 200)),
    tokens ? h("span", { class: "row-tokens" }, text.timeline.tokens(tokens)) : null,
    h("time", { class: "row-time", datetime: event.at, title: timeOf(event.at) }, before ? elapsed(before.at, event.at) : since(event.at)),
  ];
}

export function lanesOf(agent, agents) {
  const here = agents.indexOf(agent);
  if (agents.length > LANES) return h("span", { class: "row-who" }, agent ? lane(h("span", { class: "dot", "aria-hidden": "true" }), here) : null, h("bdi", {}, agent));
  const places = agents.map((_, index) => lane(h("span", { class: `lane ${index === here ? "here" : ""}` }), index));
  return [h("span", { class: "lanes", "aria-hidden": "true" }, places), h("span", { class: "unseen" }, agent)];
}

// Who is in which lane.
export function showLegend(node, agents) {
  if (node.childElementCount === agents.length) return;
  clear(node, agents.map((agent, index) => h("li", {}, lane(h("span", { class: "dot", "aria-hidden": "true" }), index), h("span", { dir: "auto" }, agent))));
}

// What the timeline's list shows, in each of its shapes: events, events by run, or the spans of runs with their bars.

export const SHAPES = ["list", "runs", "waterfall"];

export class Grouping {
  // `below` has what was done in the sessions of asked agents.
  constructor(below) {
    this.below = below;
    this.folded = new Set();
    this.entries = [];
  }

  // `shown` are the events that the filter leaves.
  build(shape, { shown, events, runs, kind, words }) {
    this.events = events;
    if (shape === "list") this.entries = shown;
    else if (shape === "runs") this.entries = this.byRun(shown, runs);
    else this.entries = this.spans(runs, kind, words);
    this.note(shape);
  }

  byRun(shown, runs) {
    const groups = [];
    const open = new Map();
    for (const event of shown) {
      const run = runs.byId.get(event.run_id);
      if (!run) groups.push({ order: event.seq, events: [event] });
      else if (open.has(run)) open.get(run).events.push(event);
      else {
        const group = { order: run.first, run, events: [event] };
        open.set(run, group);
        groups.push(group);
      }
    }
    groups.sort((one, other) => one.order - other.order);
    const entries = [];
    for (const { run, events } of groups) {
      if (run) entries.push({ run });
      if (!run) entries.push(events[0]);
      else if (!this.folded.has(run.id)) entries.push(...events);
    }
    return entries;
  }

  spans(runs, kind, words) {
    const all = kind === "all" && !words;
    const isMeant = (seq) => matches(this.events[seq - 1], kind, words);
    const entries = [];
    for (const run of runs.list) {
      const spans = all ? sortedSpans(run) : sortedSpans(run).filter((span) => isMeant(span.seq) || (span.start !== span.seq && isMeant(span.start)));
      if (!all && !spans.length && !isMeant(run.seqs.at(-1))) continue;
      entries.push({ run });
      if (!this.folded.has(run.id)) for (const span of spans) entries.push({ run, span }, ...(all && span.session ? this.below.rows(run, span) : []));
    }
    return entries;
  }

  // The seqs of a list are in order: there is no need to note where each is.
  note(shape) {
    this.places = shape === "list" ? null : new Map();
    this.heads = new Map();
    this.spanPlaces = new Map();
    if (!this.places) return;
    this.entries.forEach((entry, index) => {
      if (!entry.run) this.places.set(entry.seq, index);
      else if (!entry.span) this.heads.set(entry.run.id, index);
      else if (entry.outer) this.spanPlaces.set(entry.span, index);
      else {
        this.spanPlaces.set(entry.span, index);
        if (!this.places.has(entry.span.start)) this.places.set(entry.span.start, index);
        this.places.set(entry.span.seq, index);
      }
    });
  }

  // Where an event stands, or the run that it belongs to; -1 where neither is shown. One event may close many spans: the `entry`
  // that was chosen tells which of them is meant.
  indexOf(seq, entry = null) {
    const run = this.events?.[seq - 1]?.run_id;
    const chosen = entry?.span ? this.spanPlaces?.get(entry.span) : entry?.run && this.heads?.get(entry.run.id);
    if (chosen !== undefined) return chosen;
    if (this.places) return this.places.get(seq) ?? this.heads.get(run) ?? -1;
    let [low, high] = [0, this.entries.length - 1];
    while (low <= high) {
      const middle = (low + high) >> 1;
      const found = this.entries[middle].seq;
      if (found === seq) return middle;
      if (found < seq) low = middle + 1;
      else high = middle - 1;
    }
    return -1;
  }

  // The event that stands for an entry.
  seqOf(index) {
    const { run, span, outer, seq } = this.entries[index];
    return span ? (outer ?? span).seq : run ? run.first : seq;
  }

  // Fold a run, or unfold it; as it is told, or else the other way than it is. Says whether anything changed.
  levelOf(index) {
    const { run, span, level = 2, run_id: id } = this.entries[index];
    if (span) return { level, unfolded: span.session ? !this.below.isFolded(span, level > 2) : undefined };
    if (run && !span) return { level: 1, unfolded: !this.folded.has(run.id) };
    return { level: id ? 2 : 1 };
  }

  fold(run, folded = !this.folded.has(run.id)) {
    if (folded === this.folded.has(run.id)) return false;
    if (folded) this.folded.add(run.id);
    else this.folded.delete(run.id);
    return true;
  }
}

// A list of any length with rows of one height: only what is in sight exists.

const ROW_PX = 40;
const SPARE = 8;

export class Rows {
  // `rowOf(index)` makes a row's content; `onChoose(index)` hears of the row that is chosen. As a tree `levelOf(index)` says how
  // deep a row is, and whether it is unfolded; `onKey(event)` is true where that was for the tree.
  constructor({ label, rowOf, onChoose, onOpen, onKey = () => false, levelOf = () => ({}) }) {
    this.rowOf = rowOf;
    this.onChoose = onChoose;
    this.levelOf = levelOf;
    this.isTree = false;
    this.count = 0;
    this.chosen = -1;
    this.space = h("div", { class: "rows-space", role: "presentation" });
    this.node = h("div", { class: "rows", role: "listbox", tabindex: 0, "aria-label": label }, this.space);
    this.node.addEventListener("scroll", () => this.draw(), { passive: true });
    this.node.addEventListener("keydown", (event) => onKey(event) || (event.key === "Enter" ? onOpen() : this.move(event)));
    this.node.addEventListener("click", (event) => {
      const row = event.target.closest(".row-line");
      if (row) this.onChoose(Number(row.dataset.index));
    });
    this.resized = new ResizeObserver(() => this.show(this.count, this.chosen, { reveal: true }));
    this.resized.observe(this.node);
  }

  close() {
    this.resized.disconnect();
  }

  // A list, or a tree of as many rows.
  become(tree) {
    this.isTree = tree;
    this.node.setAttribute("role", tree ? "tree" : "listbox");
  }

  show(count, chosen, { reveal = false } = {}) {
    this.count = count;
    this.chosen = chosen;
    this.space.style.height = `${count * ROW_PX}px`;
    if (reveal && chosen >= 0) this.reveal(chosen);
    this.draw();
  }

  reveal(index) {
    const { scrollTop, clientHeight } = this.node;
    const top = index * ROW_PX;
    if (top < scrollTop) this.node.scrollTop = top;
    else if (top + ROW_PX > scrollTop + clientHeight) this.node.scrollTop = top + ROW_PX - clientHeight;
  }

  draw() {
    const first = Math.max(Math.floor(this.node.scrollTop / ROW_PX) - SPARE, 0);
    const last = Math.min(Math.ceil((this.node.scrollTop + this.node.clientHeight) / ROW_PX) + SPARE, this.count);
    const lines = [];
    for (let index = first; index < last; index += 1) lines.push(this.line(index));
    this.space.replaceChildren(...lines);
    if (this.chosen >= first && this.chosen < last) this.node.setAttribute("aria-activedescendant", `row-${this.chosen}`);
    else this.node.removeAttribute("aria-activedescendant");
  }

  line(index) {
    const place = this.isTree ? this.treePlace(index) : { role: "option", "aria-posinset": index + 1, "aria-setsize": this.count };
    const line = h("div", { class: "row-line", id: `row-${index}`, "aria-selected": String(index === this.chosen), ...place }, this.rowOf(index));
    line.dataset.index = index;
    line.style.transform = `translateY(${index * ROW_PX}px)`;
    return line;
  }

  treePlace(index) {
    const { level, unfolded } = this.levelOf(index);
    return { role: "treeitem", "aria-level": level, "aria-expanded": unfolded === undefined ? undefined : String(unfolded) };
  }

  move(event) {
    const page = Math.max(Math.floor(this.node.clientHeight / ROW_PX) - 1, 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (step === undefined || !this.count) return;
    event.preventDefault();
    this.onChoose(Math.min(Math.max(this.chosen + step, 0), this.count - 1));
  }
}
