// Whether the log of a session holds: asked of the server, and asked again when there is more of it.

import { get, sessionPath } from "./api.js";
import { button, clear, h, icon } from "./dom.js";
import { hrefOf } from "./route.js";
import { text } from "./text.js";

const t = text.timeline;

// A check reads the whole log. That of a longer one is made once, and then whenever somebody asks.
const LONGEST_CHECKED_AGAIN = 5_000;

export class Verification {
  constructor(session, onChange) {
    this.session = session;
    this.onChange = onChange;
    this.reset();
  }

  reset() {
    this.found = null;
    this.checking = false;
    this.damaged = new Map();
    this.noted = null;
  }

  get isStale() {
    return this.found !== null && this.found.events < this.session.events.length;
  }

  keepUp() {
    const { state, events } = this.session;
    if (this.found === null && !this.tried) this.check();
    else if (this.isStale && state.run === null && events.length <= LONGEST_CHECKED_AGAIN && events.length !== this.asked) this.check();
  }

  async check() {
    if (this.checking) return;
    this.tried = true;
    this.checking = true;
    this.asked = this.session.events.length;
    this.onChange();
    try {
      this.take(await this.ask(this.noted));
    } catch {
      // A server that cannot check has no badge, and the events are there all the same.
      this.found = null;
    }
    this.checking = false;
    this.onChange();
    if (this.found) this.keepUp();
  }

  // Whether it still has a head (SEQ:HASH) that was noted down; later checks ask for that as well. Raises what the server says.
  async against(head) {
    const found = await this.ask(head);
    this.noted = head;
    this.take(found);
    this.onChange();
    return found;
  }

  forget() {
    if (this.noted === null) return;
    this.noted = null;
    this.check();
  }

  ask(head) {
    return get(sessionPath(this.session.id, `/verify${head ? `?head=${encodeURIComponent(head)}` : ""}`));
  }

  take(found) {
    this.found = found;
    this.damaged = new Map(found.problems.map((problem) => [problem.seq, problem]));
  }
}

// What a check has found, in a few words; with a way to ask again.
export class Badge {
  constructor(session) {
    this.session = session;
    this.words = h("span", { class: "badge", role: "status", hidden: true });
    this.again = button(t.verifyAgain, { kind: "ghost small", hidden: true, onclick: () => session.verification.check() });
    this.node = h("span", { class: "badge-place" }, this.words, this.again);
  }

  show() {
    const { found, checking, isStale } = this.session.verification;
    this.words.hidden = !found && !checking;
    this.again.hidden = !found || checking || !isStale;
    const shown = found ? [found.valid, found.events, found.problem_count, isStale && this.session.events.length].join() : "";
    if (this.shown === shown) return;
    this.shown = shown;
    this.words.className = `badge ${!found ? "" : !found.valid ? "bad" : isStale ? "stale" : "good"}`;
    clear(this.words, found && !isStale && icon(found.valid ? "check" : "cross"), this.summary(found, isStale));
  }

  summary(found, isStale) {
    if (!found) return t.verify;
    if (!found.valid) return t.invalid(found.problem_count);
    return isStale ? t.validUpTo(found.events, this.session.events.length) : t.valid(found.events);
  }
}

// Everything that is wrong with a log, each with a way to it.
export class Problems {
  constructor(session) {
    this.session = session;
    this.node = h("section", { class: "damage", role: "alert", hidden: true });
  }

  show() {
    const { found } = this.session.verification;
    const problems = found?.valid === false ? found.problems : [];
    const shown = problems.map(({ seq, code }) => `${seq} ${code}`).join();
    const count = found?.problem_count ?? 0;
    if (this.shown === shown) return;
    this.shown = shown;
    this.node.hidden = !problems.length;
    clear(this.node, h("h2", {}, icon("cross"), t.damagedTitle(count)), h("p", {}, t.damagedHint), h("ul", {}, problems.slice(0, MOST_SHOWN).map((problem) => this.line(problem))),
      count > MOST_SHOWN && h("p", { class: "muted" }, t.damagedMore(count - MOST_SHOWN)));
  }

  line({ seq, code, detail }) {
    const place = seq ? h("a", { href: hrefOf({ view: "timeline", id: this.session.id, at: seq }) }, t.damagedAt(seq)) : null;
    return h("li", {}, h("span", { dir: "auto" }, detail), " ", h("code", {}, code), " ", place);
  }
}

const MOST_SHOWN = 50;
