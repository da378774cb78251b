// What the timeline's list shows, in each of its shapes: events, events by run, or the spans of runs with their bars.

import { matches } from "./descriptions.js";
import { sortedSpans } from "./spans.js";

export const SHAPES = ["list", "runs", "waterfall"];

export class Grouping {
  constructor() {
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
      if (!this.folded.has(run.id)) for (const span of spans) entries.push({ run, span });
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
    const { run, span, seq } = this.entries[index];
    return span ? span.seq : run ? run.first : seq;
  }

  // Fold a run, or unfold it; as it is told, or else the other way than it is. Says whether anything changed.
  levelOf(index) {
    const { run, span, run_id: id } = this.entries[index];
    if (run && !span) return { level: 1, unfolded: !this.folded.has(run.id) };
    return { level: span || id ? 2 : 1 };
  }

  fold(run, folded = !this.folded.has(run.id)) {
    if (folded === this.folded.has(run.id)) return false;
    if (folded) this.folded.add(run.id);
    else this.folded.delete(run.id);
    return true;
  }
}
