// The list of sessions, with search and filters. Both views share it.

import { get } from "./api.js";
import { bdi, button, clear, h, since } from "./dom.js";
import { go, hrefOf } from "./route.js";
import { nameOf } from "./descriptions.js";
import { text } from "./text.js";

const REFRESH_MS = 4000;
const t = text.sessions;

export class Sidebar {
  constructor({ onError }) {
    this.onError = onError;
    this.route = {};
    this.sessions = null;
    this.cursor = null;
    this.search = h("input", { type: "search", class: "field", "aria-label": t.search, placeholder: t.searchHint, autocomplete: "off", oninput: () => this.filtered() });
    this.status = h("select", { class: "field", "aria-label": t.status, onchange: () => this.load() });
    this.agent = h("select", { class: "field", "aria-label": t.agent, onchange: () => this.load() });
    this.status.append(h("option", { value: "" }, t.anyStatus), ...["idle", "running", "waiting"].map((name) => h("option", { value: name }, text.status[name])));
    this.list = h("ul", { class: "sessions" });
    this.note = h("p", { class: "muted note", role: "status" }, t.loading);
    this.more = button(t.more, { kind: "ghost", hidden: true, onclick: () => this.load({ more: true }) });
    this.list.addEventListener("keydown", (event) => this.moved(event));
    this.node = h(
      "nav",
      { class: "sidebar", id: "sessions", "aria-label": t.title },
      h("div", { class: "sidebar-head" }, h("h2", {}, t.title), button(t.fresh, { icon: "plus", kind: "primary small", onclick: () => go({ view: "chat" }) })),
      h("div", { class: "filters" }, this.search, h("div", { class: "row" }, this.status, this.agent)),
      h("div", { class: "scroll" }, this.list, this.note, this.more),
    );
    this.setAgents([]);
    this.timer = setInterval(() => document.hidden || this.locked || this.load({ quiet: true }), REFRESH_MS);
  }

  setAgents(names) {
    const chosen = this.agent.value;
    clear(this.agent, h("option", { value: "" }, t.anyAgent), names.map((name) => h("option", { value: name }, name)));
    this.agent.value = names.includes(chosen) ? chosen : "";
  }

  show(route) {
    this.route = route;
    this.render();
  }

  filtered() {
    clearTimeout(this.typing);
    if (this.search.value.includes("=") || this.asked?.includes("metadata.")) this.typing = setTimeout(() => this.load(), 250);
    this.render();
  }

  query(more) {
    const query = new URLSearchParams({ limit: "50" });
    if (this.status.value) query.set("status", this.status.value);
    if (this.agent.value) query.set("agent", this.agent.value);
    const [, name, value] = this.search.value.match(/^\s*([^=\s]+)=(.*)$/) ?? [];
    if (name) query.set(`metadata.${name}`, value.trim());
    if (more && this.cursor) query.set("cursor", this.cursor);
    return `sessions?${query}`;
  }

  // A quiet one renews the first page and keeps what was loaded below it.
  async load({ more = false, quiet = false } = {}) {
    const asked = this.query(more);
    this.asked = asked;
    try {
      const page = await get(asked);
      this.locked = false;
      if (this.asked !== asked) return;
      const fresh = new Set(page.data.map((session) => session.id));
      const kept = (this.sessions ?? []).filter((session) => !fresh.has(session.id));
      const below = quiet && kept.length && (this.sessions?.length ?? 0) > 50;
      if (more) this.sessions = [...kept, ...page.data];
      else this.sessions = below ? [...page.data, ...kept] : page.data;
      if (!below) this.cursor = page.next_cursor;
      this.render();
    } catch (error) {
      // Nobody is asked for a key again and again.
      this.locked = error.code === "unauthenticated";
      if (quiet) return;
      this.note.textContent = error.message;
      this.onError(error);
    }
  }

  render() {
    if (this.sessions === null) return;
    const wanted = this.search.value.includes("=") ? "" : this.search.value.trim().toLowerCase();
    const shown = this.sessions.filter((session) => `${session.id} ${nameOf(session)} ${session.agent}`.toLowerCase().includes(wanted));
    const focused = document.activeElement?.closest?.(".session")?.dataset.id;
    clear(this.list, shown.map((session) => this.entry(session)));
    if (focused) [...this.list.querySelectorAll(".session")].find((link) => link.dataset.id === focused)?.focus();
    this.note.hidden = shown.length > 0;
    const filtered = this.sessions.length || this.status.value || this.agent.value || this.search.value;
    this.note.textContent = !filtered ? t.none : this.cursor ? t.noMatchYet : t.noMatch;
    this.more.hidden = this.cursor === null;
  }

  entry(session) {
    const { id, agent, status } = session;
    const here = this.route.id === id;
    const link = h(
      "a",
      { class: "session", href: hrefOf({ view: this.route.view === "timeline" ? "timeline" : "chat", id }), "aria-current": here ? "page" : null },
      h("span", { class: "session-name", dir: "auto" }, nameOf(session)),
      h("span", { class: "session-meta" },
        status === "idle" ? null : h("span", { class: `state ${status}` }, text.status[status]),
        bdi(agent),
        h("span", {}, t.messages(session.message_count)),
        session.forked_from && h("span", {}, t.forked),
        h("time", { datetime: session.updated_at }, since(session.updated_at)),
      ),
    );
    link.dataset.id = id;
    return h("li", {}, link);
  }

  moved(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const links = [...this.list.querySelectorAll(".session")];
    const next = links[links.indexOf(document.activeElement) + step];
    if (next) next.focus();
    event.preventDefault();
  }
}
