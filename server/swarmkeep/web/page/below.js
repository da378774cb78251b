// The sessions of asked agents, as far as the waterfall shows them: what took time there, within the call that asks.

import { get, sessionPath } from "./api.js";
import { readEnd } from "./session.js";
import { Runs, sortedSpans } from "./spans.js";
import { viewText } from "./viewtext.js";

// So many are unfolded by themselves.
const MOST_UNFOLDED = 10;
const DEEPEST = 6;

export class Below {
  // `onChange` is called when something was loaded.
  constructor({ onChange }) {
    this.onChange = onChange;
    this.loaded = new Map();
    this.chosen = new Map();
    this.count = 0;
  }

  // One is folded until it is chosen, but for the first ones of the session itself.
  isFolded(span, isNested) {
    const chosen = this.chosen.get(keyOf(span));
    if (chosen !== undefined) return chosen;
    if (isNested || this.count >= MOST_UNFOLDED) return true;
    this.count += 1;
    this.chosen.set(keyOf(span), false);
    return false;
  }

  // Says whether anything changed.
  fold(span, folded = !this.isFolded(span, true)) {
    if (this.chosen.get(keyOf(span)) === folded) return false;
    this.chosen.set(keyOf(span), folded);
    return true;
  }

  // The rows within a call, one after another, as deep as they are unfolded. `outer` is the span of the session itself.
  *rows(run, span, { level = 3, outer = span } = {}) {
    if (level > DEEPEST || this.isFolded(span, level > 3)) return;
    const { events, runs } = this.find(span);
    for (const below of runs.flatMap(sortedSpans)) {
      yield { run, span: below, outer, level, session: span.session, events };
      if (below.session) yield* this.rows(run, below, { level: level + 1, outer });
    }
  }

  // What is there is loaded once, and again when the call has ended.
  find(span) {
    const version = span.to === null ? "open" : "over";
    const known = this.loaded.get(span.session);
    if (known?.version !== version) this.load(span.session, version, known);
    return this.loaded.get(span.session);
  }

  async load(id, version, known) {
    this.loaded.set(id, { runs: [], events: [], ...known, version });
    try {
      const session = await get(sessionPath(id));
      const events = await readEnd(session);
      const runs = new Runs();
      events.forEach((event) => runs.take(event));
      if (events[0].seq > 1) runs.list[0].spans.push(spanBefore(events[0], session));
      this.loaded.set(id, { version, events, runs: runs.list });
      this.onChange();
    } catch {
      // It is not there any more, or the server is away: the call is shown as it is, and its link says which.
    }
  }
}

// What stands for the events before the `first` that is here.
const spanBefore = ({ seq, at }, { created_at: from }) => ({ kind: "earlier", name: viewText.spans.earlier(seq - 1), status: "ok", agent: null, from: Date.parse(from), to: Date.parse(at), start: seq, seq });

// Whether it was folded outlives that it is drawn again.
const keyOf = ({ session, start }) => `${session} ${start}`;
