// A session on the page: its title, its events as they come, their state, and the check of its log.

import { get, pause, sessionPath, stream } from "./api.js";
import { button, clear, h, icon, throttle } from "./dom.js";
import { apply, fold, initial } from "./fold.js";
import { hrefOf } from "./route.js";
import { text } from "./text.js";

// The title of a session: the one it was given, or its first words; its id without either.

const MAX_TITLE = 80;

const namedTitle = (metadata) => (typeof metadata?.title === "string" ? shortTitle(metadata.title) : "");

export const sessionTitle = ({ id, title, metadata }) => namedTitle(metadata) || title || id;

// The same of a session whose events are here, or the last of them.
export const stateTitle = (id, state) => namedTitle(state.metadata) || (state.isPart ? state.title : beginning(state.items)) || id;

function beginning(items) {
  for (const item of items.slice(0, 20)) {
    const said = item.kind === "user" && !item.removed ? shortTitle(item.text ?? "") : "";
    if (said && said !== "[redacted]") return said;
  }
  return "";
}

function shortTitle(said) {
  const characters = Array.from(said.slice(0, 800).replace(/\s+/g, " ").trim());
  if (characters.length <= MAX_TITLE) return characters.join("");
  const cut = characters.slice(0, MAX_TITLE - 1).join("");
  const at = cut.lastIndexOf(" ");
  return `${(at > MAX_TITLE / 2 ? cut.slice(0, at) : cut).replace(/[ ,;:.-]+$/, "")}…`;
}

// The end of a long session, made of its last events alone: it is there to look at until all of them are.

// A page that is this far behind shows the end first.
const FAR = 1_000;
export const LATEST = 200;

const isFar = (missing) => missing > FAR;

// `session` is what the server says of it.
async function readLatest(session, signal) {
  const state = fold(await readEnd(session, signal));
  const { agent, metadata, title, context_variables: context, message_count: messages, active_run_id: run } = session;
  if (!state.run && run) state.run = { id: run, status: session.status, pending: [] };
  const taken = session.taken_over ? { note: null, ...session.taken_over } : null;
  const assignee = session.assignee ?? null;
  const outlook = state.outlook === "idle" ? session.status : state.outlook;
  return Object.assign(state, { agent, metadata, title, context, messages, taken, assignee, outlook, status: session.status, isPart: true });
}

// A page of large events ends early, and is not the end then.
export async function readEnd({ id, seq }, signal) {
  const [events, after] = [[], Math.max(seq - LATEST, 0)];
  let cursor = "";
  do {
    const { data, next_cursor: next } = await get(sessionPath(id, `/events?after=${after}&limit=${LATEST}${cursor}`), { signal });
    events.push(...data);
    cursor = next && `&cursor=${encodeURIComponent(next)}`;
  } while (cursor);
  return events;
}

// The events of a session as they come: each once and in order, also across broken connections.

const SHORTEST_PAUSE = 300;
const LONGEST_PAUSE = 5000;

class Feed {
  // `onChange` is called at most once per frame, `onReset` when the session turns out to be another one.
  // `onFar` is given what the server says of a session of which much is missing here.
  constructor(id, { onEvent = () => {}, onChange = () => {}, onReset = () => {}, onError = () => {}, onFar = () => {} }) {
    this.id = id;
    this.events = [];
    this.draft = null;
    this.link = "connecting";
    this.complete = false;
    this.changed = throttle(() => !this.stopped.signal.aborted && onChange());
    this.on = { event: onEvent, reset: onReset, error: onError, far: onFar };
    this.stopped = new AbortController();
    this.opened = new Promise((resolve) => (this.open = resolve));
    this.keepUp();
  }

  get last() {
    return this.events.length;
  }

  close() {
    this.stopped.abort();
  }

  async keepUp() {
    const { signal } = this.stopped;
    let wait = SHORTEST_PAUSE;
    while (!signal.aborted) {
      try {
        const session = await get(sessionPath(this.id), { signal });
        if (session.seq < this.last) this.reset();
        this.target = session.seq;
        if (this.last >= this.target) this.complete = true;
        else if (isFar(this.target - this.last)) this.on.far(session, signal);
        await stream(sessionPath(this.id, "/events"), {
          after: this.last,
          signal,
          onOpen: () => {
            wait = SHORTEST_PAUSE;
            this.open();
            this.show("live");
          },
          onFrame: (frame) => this.take(frame),
        });
      } catch (error) {
        if (signal.aborted) return;
        if (error.status >= 400 && error.status < 500 && error.status !== 429) {
          this.open();
          this.on.error(error);
          return;
        }
      }
      this.show("lost");
      await pause(wait, signal);
      wait = Math.min(wait * 2, LONGEST_PAUSE);
    }
  }

  show(link) {
    this.link = link;
    this.changed();
  }

  reset() {
    this.events = [];
    this.draft = null;
    this.on.reset();
  }

  take({ event, id, data }) {
    // A session that was deleted and created again under its id comes from its beginning.
    if (id === 1 && this.last > 0) this.reset();
    if (id === null) this.pass(event, data);
    else if (id === this.last + 1) this.record(data);
    this.changed();
  }

  record(event) {
    this.events.push(event);
    if (this.last >= this.target) this.complete = true;
    if (this.draft?.run_id === event.run_id && endsDraft(event)) this.draft = null;
    this.on.event(event);
  }

  // What is shown while a model writes; the whole message comes as an event.
  pass(event, { run_id, agent, content, tool_calls: calls }) {
    if (event === "message.started" || this.draft?.run_id !== run_id) this.draft = { run_id, agent, text: "", calls: [] };
    if (content) this.draft.text += content;
    for (const call of calls ?? []) {
      if (call.function?.name) this.draft.calls.push(call.function.name);
    }
  }
}

function endsDraft({ type, data }) {
  if (type === "message.added") return data?.message?.role === "assistant";
  return ["run.completed", "run.failed", "run.cancelled", "run.interrupted", "run.resumed", "run.waiting"].includes(type);
}

// The check of a session's log: asked of the server, and asked again when the log has grown.

const t = text.timeline;

// A check reads the whole log. A longer log is checked once, and then when the user asks.
const LONGEST_CHECKED_AGAIN = 5_000;

class Verification {
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

// One session as both views see it: its events, what they add up to, and whether its log holds.

const PAGE = 200;
// The interval at which a session is shown while it is loading.
const LOADING_MS = 250;

export class Session {
  constructor(id) {
    this.id = id;
    this.state = initial();
    this.views = new Set();
    this.error = null;
    this.latest = null;
    // Its forks, once they were asked for: see `sessiontools.js`.
    this.forks = null;
    this.verification = new Verification(this, () => this.tell("checked"));
    this.feed = new Feed(id, {
      onEvent: (event) => this.happened(event),
      onChange: () => this.changed(),
      onReset: () => this.begunAnew(),
      onFar: (session, signal) => this.readLatest(session, signal),
      onError: (error) => {
        this.error = error;
        this.tell("failed", error);
      },
    });
  }

  get events() {
    return this.feed.events;
  }

  get complete() {
    return this.feed.complete;
  }

  // What can be shown by now: of a long session its end, before all of it is there; null until that has come.
  get shown() {
    return this.complete || !this.latest ? this.state : this.latest.state;
  }

  // For a view that `showsEnd` of what it does not have yet. What was read of it before stays until then.
  async readLatest(session, signal) {
    if (![...this.views].some((view) => view.showsEnd)) return;
    const shown = this.latest?.state;
    const latest = (this.latest = { seq: session.seq, state: null, ...this.latest });
    let state = null;
    try {
      state = await readLatest(session, signal);
    } catch {
      // Then it is shown as it comes.
    }
    if (this.latest !== latest || this.complete) return;
    if (state) this.latest = { seq: session.seq, state };
    else if (!shown) this.latest = null;
    // What it says again may be other than it was.
    this.tell(shown ? "renewed" : "changed");
  }

  // A view may have `happened(event)`, `changed()`, `renewed()` (all of it may be other than it was), `checked()`, `failed(error)`.
  show(view) {
    this.views.add(view);
    if (this.error) view.failed?.(this.error);
  }

  hide(view) {
    this.views.delete(view);
  }

  tell(what, ...given) {
    for (const view of this.views) view[what]?.(...given);
  }

  close() {
    this.feed.close();
  }

  changed() {
    const { link } = this.feed;
    if (this.complete) {
      this.latest = null;
      this.verification.keepUp();
    } else if (this.toldLink === link && performance.now() < this.nextAt) return;
    this.toldLink = link;
    this.nextAt = performance.now() + LOADING_MS;
    this.tell("changed");
  }

  happened(event) {
    apply(this.state, event);
    this.tell("happened", event);
    if (event.type !== "session.redacted") return;
    // The end may have been read before that, and shown.
    if (event.seq > this.latest?.seq) {
      this.latest = null;
      this.tell("renewed");
    }
    this.forget(event.data?.seqs ?? []);
  }

  begunAnew() {
    this.state = initial();
    this.latest = null;
    this.verification.reset();
    this.tell("renewed");
  }

  // What was taken out while this window had it: it goes at once, and then what stands in its place comes.
  async forget(seqs) {
    const gone = seqs.filter((seq) => this.events[seq - 1] && this.events[seq - 1].data?.redacted !== true);
    if (!gone.length) return;
    for (const seq of gone) this.events[seq - 1] = { ...this.events[seq - 1], data: null };
    this.renew();
    try {
      await this.readAgain(new Set(gone));
      this.renew();
    } catch {
      // Without the stand-ins it says that something was there, and no more.
    }
  }

  renew() {
    this.state = fold(this.events);
    this.tell("renewed");
  }

  async readAgain(seqs) {
    let done = 0;
    for (const seq of [...seqs].sort((one, other) => one - other)) {
      if (seq <= done) continue;
      const { data } = await get(sessionPath(this.id, `/events?after=${seq - 1}&limit=${PAGE}`));
      for (const event of data) {
        if (seqs.has(event.seq)) this.events[event.seq - 1] = event;
        done = event.seq;
      }
    }
  }
}
