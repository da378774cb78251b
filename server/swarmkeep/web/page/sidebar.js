// The list of sessions beside every view, and the stream that says when it changes.

import { get, ownName, pause, sessionPath, stream } from "./api.js";
import { bdi, button, clear, h, renew, since } from "./dom.js";
import { chooseFilters, chosenFilters, go, hrefOf, listQuery, matchLines, parseRoute, replaceRoute, wordsOf, ENDS, SPANS, STATES } from "./route.js";
import { sessionTitle } from "./session.js";
import { text } from "./text.js";

// Says when the list of sessions needs to be read: the server tells which have changed. A hidden tab has no stream, because
// browsers allow few connections to a server; it reads the list when it is seen again.

const SHORTEST_PAUSE = 300;
const LONGEST_PAUSE = 10_000;
const PATIENCE_MS = 1_500;
// However much happens, the list is asked for no more often.
const READ_MS = 2_000;

class ListFeed {
  // `onChange` is given what a session is now, by its id, and the ids of those that were deleted; `onRead` is called when the list is to be read, and may take its time;
  // `onLost` when the stream has ended.
  constructor({ onChange, onRead, onLost }) {
    this.on = { change: onChange, read: onRead, lost: onLost };
    this.wanted = false;
    this.heard = false;
    this.running = null;
    document.addEventListener("visibilitychange", () => this.check());
  }

  // Starts again for the caller of the current key. The stream begins with a word that makes the list be read; where none comes, it is read all
  // the same.
  start() {
    this.stop();
    this.heard = false;
    this.wanted = true;
    this.check();
    setTimeout(() => this.readFirst(), this.running ? PATIENCE_MS : 0);
  }

  readFirst() {
    if (this.heard || !this.wanted) return;
    this.heard = true;
    this.read();
  }

  stop() {
    this.wanted = false;
    this.check();
  }

  check() {
    const runs = this.wanted && !document.hidden;
    if (runs && !this.running) this.keepUp((this.running = new AbortController()));
    if (runs || !this.running) return;
    this.running.abort();
    this.running = null;
    clearTimeout(this.due);
    this.due = null;
  }

  async keepUp({ signal }) {
    let wait = SHORTEST_PAUSE;
    while (!signal.aborted) {
      try {
        await stream("sessions", {
          signal,
          onFrame: ({ event, data }) => {
            if (event !== "sessions.changed" || signal.aborted) return;
            wait = SHORTEST_PAUSE;
            this.heard = true;
            this.on.change(new Map(data.sessions.map((session) => [session.id, session])), data.deleted ?? []);
            this.read();
          },
        });
      } catch (error) {
        // A key that is refused is reported by the other requests.
        if (!signal.aborted && error.status >= 400 && error.status < 500 && error.status !== 429) {
          this.readFirst();
          return this.stop();
        }
      }
      if (!signal.aborted) {
        this.readFirst();
        this.on.lost();
      }
      await pause(wait, signal);
      wait = Math.min(wait * 2, LONGEST_PAUSE);
    }
  }

  // At once, and once more later if there was more meanwhile.
  read() {
    if (this.due) return (this.again = true);
    this.again = false;
    this.due = setTimeout(() => {
      this.due = null;
      if (this.again) this.read();
    }, READ_MS);
    this.on.read();
  }

  // For a read that came to nothing.
  readLater() {
    if (this.due) this.again = true;
    else if (this.running) {
      this.due = setTimeout(() => {
        this.due = null;
        this.read();
      }, READ_MS);
    }
  }
}

// The list of sessions, with search and filters. Both views share it.

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
    this.owner = h("select", { class: "field", "aria-label": t.owner, onchange: () => this.filter() });
    this.owners = new Set();
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
      h("div", { class: "filters" }, this.search, h("div", { class: "row" }, this.status, this.agent), h("div", { class: "row" }, this.owner, this.time, this.clearing)),
      h("div", { class: "scroll" }, this.note, this.list, this.more),
    );
    this.setAgents([]);
    this.setOwners();
    this.feed = new ListFeed({ onChange: (changed, deleted) => this.changed(changed, deleted), onRead: () => this.locked || (this.load({ quiet: this.sessions !== null }), this.onNews(null)), onLost: () => this.onNews(null) });
    // How long ago things were.
    setInterval(() => document.hidden || this.render(), CLOCK_MS);
  }

  // The list for the caller of the current key, and its changes.
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
    // An agent that is no longer served can still be searched for.
    const all = !chosen || names.includes(chosen) ? names : [...names, chosen];
    clear(this.agent, h("option", { value: "" }, t.anyAgent), all.map((name) => h("option", { value: name }, name)));
    this.agent.value = chosen;
    this.names = names;
  }

  // Mine, those of no one, and the people and queues that were seen.
  setOwners() {
    const { owner: chosen = "" } = chosenFilters();
    const mine = ownName();
    const names = [...this.owners, chosen].filter((name) => name && name !== mine && name !== "none").sort();
    const all = [["", t.anyOwner], ...(mine ? [[mine, t.mine]] : []), ["none", t.unassigned], ...[...new Set(names)].map((name) => [name, name])];
    if (this.listed === JSON.stringify([all, chosen])) return;
    this.listed = JSON.stringify([all, chosen]);
    clear(this.owner, all.map(([value, words]) => h("option", { value }, words)));
    this.owner.value = chosen;
  }

  // What the address says is what is looked for.
  adoptFilters() {
    const { q = "", status = "", last = "", active = "" } = chosenFilters();
    if (this.search.value.trim() !== q) this.search.value = q;
    this.status.value = last ? `last:${last}` : status;
    this.time.value = active;
    this.setAgents(this.names);
    this.setOwners();
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
    const chosen = { q: this.search.value.trim(), status: last ? "" : status, last, agent: this.agent.value, owner: this.owner.value, active: this.time.value };
    chooseFilters(Object.fromEntries(Object.entries(chosen).filter(([, value]) => value)));
    replaceRoute(parseRoute());
    return this.load();
  }

  unfilter() {
    this.search.value = this.status.value = this.agent.value = this.owner.value = this.time.value = "";
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
    // An answer to an earlier search is dropped.
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
      // The key dialog opens once, not with each refused request.
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
    for (const { assignee } of this.sessions) if (assignee) this.owners.add(assignee);
    this.setOwners();
    // Until the server has answered, what is here already is looked through.
    const typed = this.search.value.trim();
    const { words } = wordsOf(typed === this.answered ? "" : typed);
    const wanted = words.toLowerCase();
    const shown = this.sessions.filter((session) => `${session.id} ${sessionTitle(session)} ${session.agent}`.toLowerCase().includes(wanted));
    if (this.current && !this.isFiltered && !shown.some((session) => session.id === this.current.id)) shown.unshift(this.current);
    const focused = document.activeElement?.closest?.(".sessions a")?.getAttribute("href");
    renew(this.list, shown.map((session) => this.entry(session)));
    if (focused) [...this.list.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
    const isSearched = typed !== "" && typed === this.answered;
    this.note.hidden = shown.length > 0 && !isSearched;
    this.note.textContent = shown.length ? t.found(shown.length, this.cursor !== null) : !this.isFiltered ? t.none : this.cursor ? t.noMatchYet : t.noMatch;
    this.note.classList.toggle("count", shown.length > 0);
    this.clearing.hidden = !this.isFiltered;
    this.more.hidden = this.cursor === null;
  }

  get isFiltered() {
    return Boolean(this.status.value || this.agent.value || this.owner.value || this.time.value || this.search.value.trim());
  }

  entry(session) {
    const { id, agent, last_run_status: ended } = session;
    const status = session.damaged_seq !== undefined ? "damaged" : session.status === "idle" && TELLING_ENDS.has(ended) ? ended : session.status;
    const here = this.route.id === id;
    const link = h(
      "a",
      { class: "session", href: hrefOf({ view: this.route.view === "timeline" ? "timeline" : "chat", id }), "aria-current": here ? "page" : null },
      h("span", { class: "session-head" }, h("span", { class: "session-name", dir: "auto" }, sessionTitle(session)), h("time", { datetime: session.updated_at }, since(session.updated_at))),
      h("span", { class: "session-meta" },
        status === "idle" ? null : h("span", { class: `state ${status}` }, text.status[status]),
        bdi(agent),
        session.assignee && h("span", { class: "owner", dir: "auto", title: t.owner }, session.assignee),
        h("span", {}, t.messages(session.message_count)),
        session.forked_from && h("span", {}, t.forked),
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
