// The list of sessions, with search and filters. Both views share it.

import { get, sessionPath } from "./api.js";
import { bdi, button, clear, h, since } from "./dom.js";
import { chooseFilters, chosenFilters, ENDS, listQuery, matchLines, SPANS, STATES, wordsOf } from "./finding.js";
import { ListFeed } from "./listfeed.js";
import { go, hrefOf, parseRoute, replaceRoute } from "./route.js";
import { text } from "./text.js";
import { sessionTitle } from "./titles.js";

const CLOCK_MS = 60_000;
const TYPING_MS = 250;
const t = text.sessions;
const TELLING_ENDS = new Set(["failed", "interrupted"]);

const isPassing = ({ status }) => status === 0 || status === 429 || status >= 500;

export class Sidebar {
  // `onNews` is told which sessions are other than they were, by their ids, and null where the list is to be read.
  constructor({ onError, onNews }) {
    this.onError = onError;
    this.onNews = onNews;
    this.route = {};
    this.sessions = null;
    this.cursor = null;
    this.search = h("input", { type: "search", class: "field", "aria-label": t.search, placeholder: t.searchHint, autocomplete: "off", maxlength: 300, oninput: () => this.typed() });
    this.status = h("select", { class: "field", "aria-label": t.status, onchange: () => this.filter() });
    this.agent = h("select", { class: "field", "aria-label": t.agent, onchange: () => this.filter() });
    this.time = h("select", { class: "field", "aria-label": t.time, onchange: () => this.filter() });
    this.time.append(h("option", { value: "" }, t.anyTime), ...SPANS.map((name) => h("option", { value: name }, t.within[name])));
    this.clearing = button(t.clear, { icon: "cross", kind: "ghost small", quiet: true, hidden: true, onclick: () => this.unfilter() });
    this.status.append(h("option", { value: "" }, t.anyStatus), ...STATES.map((name) => h("option", { value: name }, text.status[name])), ...ENDS.map((name) => h("option", { value: `last:${name}` }, t.lastRun(text.status[name]))));
    this.list = h("ul", { class: "sessions" });
    this.note = h("p", { class: "muted note", role: "status" }, t.loading);
    this.more = button(t.more, { kind: "ghost", hidden: true, onclick: () => this.load({ more: true }) });
    this.list.addEventListener("keydown", (event) => this.moved(event));
    this.search.addEventListener("keydown", (event) => this.chosen(event));
    this.node = h(
      "nav",
      { class: "sidebar", id: "sessions", "aria-label": t.title },
      h("div", { class: "sidebar-head" }, h("h2", {}, t.title), (this.fresh = button(t.fresh, { icon: "plus", kind: "primary small", onclick: () => go({ view: "chat" }) }))),
      h("div", { class: "filters" }, this.search, h("div", { class: "row" }, this.status, this.agent), h("div", { class: "row" }, this.time, this.clearing)),
      h("div", { class: "scroll" }, this.note, this.list, this.more),
    );
    this.setAgents([]);
    this.feed = new ListFeed({ onChange: (changed, deleted) => this.changed(changed, deleted), onRead: () => this.locked || (this.load({ quiet: this.sessions !== null }), this.onNews(null)) });
    // How long ago things were.
    setInterval(() => document.hidden || this.render(), CLOCK_MS);
  }

  // The list of whoever sits here now, and whatever changes in it.
  follow() {
    this.sessions = null;
    this.locked = false;
    this.feed.start();
  }

  changed(sessions, deleted) {
    this.onNews(sessions);
    const isGone = ({ id }) => deleted.includes(id);
    if (this.current && isGone(this.current)) this.current = null;
    this.sessions = this.sessions?.filter((session) => !isGone(session)) ?? null;
    for (const session of this.sessions ?? []) Object.assign(session, sessions.get(session.id));
    this.render();
  }

  setAgents(names) {
    const { agent: chosen = "" } = chosenFilters();
    // One that is not served any more may be looked for all the same.
    const all = !chosen || names.includes(chosen) ? names : [...names, chosen];
    clear(this.agent, h("option", { value: "" }, t.anyAgent), all.map((name) => h("option", { value: name }, name)));
    this.agent.value = chosen;
    this.names = names;
  }

  // What the address says is what is looked for.
  adoptFilters() {
    const { q = "", status = "", last = "", active = "" } = chosenFilters();
    if (this.search.value.trim() !== q) this.search.value = q;
    this.status.value = last ? `last:${last}` : status;
    this.time.value = active;
    this.setAgents(this.names);
    if (this.asked && this.asked !== this.query(false)) this.load();
  }

  typed() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.filter(), TYPING_MS);
    this.render();
  }

  filter() {
    clearTimeout(this.typing);
    const [status, last] = this.status.value.split(":");
    const chosen = { q: this.search.value.trim(), status: last ? "" : status, last, agent: this.agent.value, active: this.time.value };
    chooseFilters(Object.fromEntries(Object.entries(chosen).filter(([, value]) => value)));
    replaceRoute(parseRoute());
    return this.load();
  }

  unfilter() {
    this.search.value = this.status.value = this.agent.value = this.time.value = "";
    this.search.focus();
    return this.filter();
  }

  show(route) {
    const moved = this.route.id !== route.id;
    this.route = route;
    if (moved) this.current = null;
    this.render();
    if (moved && this.sessions) this.findCurrent();
  }

  // The session that is open is in the list, wherever it would be found.
  async findCurrent() {
    const { id } = this.route;
    if (!id || this.locked || this.sessions.some((session) => session.id === id)) return;
    try {
      const found = await get(sessionPath(id));
      if (this.route.id === id) this.current = found;
      this.render();
    } catch {
      // The view itself says that there is none.
    }
  }

  lock(locked) {
    this.locked = locked;
    if (!locked) return;
    this.feed.stop();
    this.sessions = null;
    clear(this.list);
    this.note.hidden = false;
    this.note.textContent = t.locked;
    this.more.hidden = true;
  }

  query(more) {
    return listQuery(chosenFilters(), { cursor: more ? this.cursor : null, now: this.now });
  }

  // A session that was deleted here is not shown until the server has said so.
  forget(id) {
    if (this.current?.id === id) this.current = null;
    this.sessions = this.sessions?.filter((session) => session.id !== id) ?? null;
    this.render();
  }

  // A quiet one renews the first page and keeps what was loaded below it.
  async load({ more = false, quiet = false } = {}) {
    if (quiet && this.waiting) return this.feed.readLater();
    if (!more) this.now = Date.now();
    const asked = this.query(more);
    const { q: sought = "" } = chosenFilters();
    this.asked = asked;
    // What was asked for before is not wanted any more.
    this.waiting?.abort();
    const waiting = new AbortController();
    this.waiting = waiting;
    try {
      const page = await get(asked, { signal: waiting.signal });
      this.locked = false;
      if (this.asked !== asked) return;
      const fresh = new Set(page.data.map((session) => session.id));
      const kept = (this.sessions ?? []).filter((session) => !fresh.has(session.id));
      const below = quiet && kept.length && (this.sessions?.length ?? 0) > 50;
      if (more) this.sessions = [...kept, ...page.data];
      else this.sessions = below ? [...page.data, ...kept] : page.data;
      if (!below) this.cursor = page.next_cursor;
      this.answered = sought;
      this.render();
      if (!this.current || quiet) this.findCurrent();
    } catch (error) {
      if (error.name === "AbortError") return quiet && this.feed.readLater();
      // Nobody is asked for a key again and again.
      this.locked = error.code === "unauthenticated";
      if (quiet) return isPassing(error) && this.feed.readLater();
      if (error.code === "search_off") clear(this.list);
      this.note.hidden = false;
      this.note.textContent = error.message;
      this.onError(error);
    } finally {
      if (this.waiting === waiting) this.waiting = null;
    }
  }

  render() {
    if (this.sessions === null) return;
    // Until the server has answered, what is here already is looked through.
    const typed = this.search.value.trim();
    const { words } = wordsOf(typed === this.answered ? "" : typed);
    const wanted = words.toLowerCase();
    const shown = this.sessions.filter((session) => `${session.id} ${sessionTitle(session)} ${session.agent}`.toLowerCase().includes(wanted));
    if (this.current && !this.isFiltered && !shown.some((session) => session.id === this.current.id)) shown.unshift(this.current);
    const focused = document.activeElement?.closest?.(".sessions a")?.getAttribute("href");
    clear(this.list, shown.map((session) => this.entry(session)));
    if (focused) [...this.list.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
    const isSearched = typed !== "" && typed === this.answered;
    this.note.hidden = shown.length > 0 && !isSearched;
    this.note.textContent = shown.length ? t.found(shown.length, this.cursor !== null) : !this.isFiltered ? t.none : this.cursor ? t.noMatchYet : t.noMatch;
    this.note.classList.toggle("count", shown.length > 0);
    this.clearing.hidden = !this.isFiltered;
    this.more.hidden = this.cursor === null;
  }

  get isFiltered() {
    return Boolean(this.status.value || this.agent.value || this.time.value || this.search.value.trim());
  }

  entry(session) {
    const { id, agent, last_run_status: ended } = session;
    const status = session.damaged_seq !== undefined ? "damaged" : session.status === "idle" && TELLING_ENDS.has(ended) ? ended : session.status;
    const here = this.route.id === id;
    const link = h(
      "a",
      { class: "session", href: hrefOf({ view: this.route.view === "timeline" ? "timeline" : "chat", id }), "aria-current": here ? "page" : null },
      h("span", { class: "session-name", dir: "auto" }, sessionTitle(session)),
      h("span", { class: "session-meta" },
        status === "idle" ? null : h("span", { class: `state ${status}` }, text.status[status]),
        bdi(agent),
        h("span", {}, t.messages(session.message_count)),
        session.forked_from && h("span", {}, t.forked),
        h("time", { datetime: session.updated_at }, since(session.updated_at)),
      ),
    );
    link.dataset.id = id;
    link.title = id;
    return h("li", {}, link, matchLines(session.matches, (seq) => hrefOf({ view: "timeline", id, at: seq })));
  }

  moved(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const links = [...this.list.querySelectorAll("a")];
    const next = links.indexOf(document.activeElement) + step;
    (next < 0 ? this.search : links[next])?.focus();
    event.preventDefault();
  }

  // From the search to what it has found, or is about to find.
  async chosen(event) {
    if (event.isComposing || !["Enter", "ArrowDown"].includes(event.key)) return;
    event.preventDefault();
    const typed = this.search.value;
    if (!this.list.querySelector(".session") && typed.trim() !== this.answered) await this.filter();
    const first = this.list.querySelector(".session");
    if (typed === this.search.value && document.activeElement === this.search) event.key === "Enter" ? first?.click() : first?.focus();
  }
}
