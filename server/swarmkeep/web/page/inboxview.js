// The inbox: each session that needs attention, the reason, and a link to it.

import { bdi, button, clear, h, redraw, since } from "./dom.js";
import { may } from "./api.js";
import { hrefOf } from "./route.js";
import { text } from "./text.js";
import { sessionTitle } from "./session.js";

const inboxText = text.inbox;
const SHOWN_AT_ONCE = 50;
const ASKED_AT_ONCE = 3;

export class InboxView {
  constructor(app, route) {
    this.app = app;
    this.inbox = app.waiting.inbox;
    this.reasons = new Map();
    this.asked = [];
    this.asking = 0;
    this.shown = SHOWN_AT_ONCE;
    this.kinds = h("nav", { class: "kinds", "aria-label": inboxText.kinds });
    this.seen = h("input", { type: "checkbox", onchange: () => this.app.choose({ seen: this.seen.checked ? "1" : null }) });
    this.notes = this.inbox.canNotify && button("", { kind: "ghost small", onclick: () => this.notify() });
    this.note = h("p", { class: "note muted", role: "status" });
    this.all = may("run") && button(inboxText.markAll, { kind: "small", icon: "check", hidden: true, onclick: () => this.markAll() });
    this.list = h("ul", { class: "inbox-list" });
    this.rest = button(text.sessions.more, { kind: "ghost", hidden: true, onclick: () => this.showMore() });
    this.node = h("section", { class: "inbox", "aria-label": inboxText.title },
      h("header", { class: "view-head" }, h("h1", { class: "view-title" }, inboxText.title), h("span", { class: "grow" }), this.notes),
      h("div", { class: "row inbox-bar" }, this.kinds, h("label", { class: "tick" }, this.seen, inboxText.showSeen), h("span", { class: "grow" }), this.all),
      h("div", { class: "scroll inbox-main", tabindex: 0, role: "group", "aria-label": inboxText.list }, this.note, this.list, this.rest));
    this.moved(route);
    this.inbox.expect(0);
  }

  close() {
    this.closed = true;
    this.asked = [];
  }

  moved({ choices }) {
    this.choices = choices;
    this.seen.checked = Boolean(choices.seen);
    this.shown = SHOWN_AT_ONCE;
    this.refreshed();
  }

  get care() {
    return this.inbox.cares.includes(this.choices.show) ? this.choices.show : null;
  }

  get wanted() {
    return (this.inbox.items ?? []).filter(({ care, seen }) => (!this.care || care === this.care) && (!seen || this.choices.seen));
  }

  refreshed() {
    const { items, error } = this.inbox;
    const { wanted } = this;
    const focused = document.activeElement?.closest?.(".inbox-item")?.dataset.id;
    const chosen = document.activeElement?.classList.contains("inbox-mark");
    redraw(this.kinds, () => clear(this.kinds, [null, ...this.inbox.cares].map((care) => this.kindLink(care))));
    this.says(error ? error.message : items === null ? (this.app.locked ? text.sessions.locked : inboxText.loading) : wanted.length ? "" : inboxText.nothing[this.care ?? "all"]);
    this.asked = [];
    clear(this.list, wanted.slice(0, this.shown).map((item) => this.entry(item)));
    this.rest.hidden = wanted.length <= this.shown;
    if (this.all) this.all.hidden = this.unseen.length < 2;
    this.showNotes();
    if (focused) this.focusEntry(focused, chosen);
  }

  says(words) {
    this.note.textContent = words;
    this.note.hidden = !words;
  }

  // The keyboard stays where it was, or where that was.
  focusEntry(id, onMark) {
    const entry = [...this.list.children].find(({ dataset }) => dataset.id === id);
    (entry?.querySelector((onMark && ".inbox-mark") || "a") ?? this.list.querySelector("a") ?? this.note.parentElement).focus();
  }

  showNotes() {
    if (!this.notes) return;
    const on = this.inbox.notifies;
    this.notes.lastChild.textContent = on ? inboxText.notifying : inboxText.notify;
    this.notes.setAttribute("aria-pressed", String(on));
  }

  kindLink(care) {
    const { show: _, ...others } = this.choices;
    const here = care === this.care;
    return h("a", { class: "button small", href: hrefOf({ view: "inbox", choices: care ? { ...others, show: care } : others }), "aria-current": here ? "true" : null },
      care ? inboxText.names[care] : inboxText.all, " ", h("span", { class: "tally" }, this.inbox.count(care) || "0"));
  }

  entry(item) {
    const { session, care, seen } = item;
    const why = h("p", { class: care === "waiting" ? "inbox-why" : "inbox-why reason", dir: "auto" });
    this.explain(item, why);
    const entry = h("li", { class: "inbox-item" },
      h("div", { class: "inbox-about" },
        h("a", { class: "session-name", dir: "auto", href: hrefOf({ view: "chat", id: session.id }), title: session.id }, sessionTitle(session)),
        h("div", { class: "session-meta" }, h("span", { class: `state ${care}` }, text.status[care]), seen && h("span", { class: "state" }, inboxText.seen), bdi(session.agent), h("time", { datetime: session.updated_at }, since(session.updated_at))),
        why),
      care !== "waiting" && care !== "damaged" && may("run") && button(seen ? inboxText.unmark : inboxText.mark, { kind: "small inbox-mark", onclick: () => this.mark(item, !seen), "aria-label": `${seen ? inboxText.unmark : inboxText.mark}: ${sessionTitle(session)}` }));
    entry.dataset.id = session.id;
    return entry;
  }

  explain(item, node) {
    const name = `${item.session.id} ${item.session.seq}`;
    const known = this.reasons.get(name);
    if (known !== undefined) node.textContent = known;
    else {
      this.asked.push({ item, name, node });
      this.ask();
    }
  }

  // Few at a time, and each once.
  async ask() {
    if (this.asking >= ASKED_AT_ONCE || this.closed) return;
    const next = this.asked.shift();
    if (!next) return;
    const { item, name } = next;
    this.asking += 1;
    try {
      if (!this.reasons.has(name)) this.reasons.set(name, await this.inbox.reasonOf(item));
    } catch {
      // What it is, is said without.
    }
    this.asking -= 1;
    const said = this.reasons.get(name);
    if (said !== undefined) next.node.textContent = said;
    this.ask();
  }

  async mark(item, seen) {
    try {
      await this.inbox.mark(item, seen);
      this.app.say(seen ? inboxText.marked : inboxText.unmarked);
    } catch (error) {
      this.app.fail(error);
    }
  }

  get unseen() {
    return this.wanted.filter(({ care, seen }) => care !== "waiting" && !seen).slice(0, this.shown);
  }

  async markAll() {
    this.all.disabled = true;
    const { unseen } = this;
    try {
      for (const item of unseen) await this.inbox.mark(item, true);
      this.app.say(inboxText.markedAll(unseen.length));
    } catch (error) {
      this.app.fail(error);
    } finally {
      this.all.disabled = false;
    }
    this.note.parentElement.focus();
  }

  async notify() {
    const wants = !this.inbox.notifies;
    const on = await this.inbox.notify(wants);
    this.showNotes();
    this.app.say(on ? inboxText.notifying : wants ? inboxText.denied : inboxText.quiet);
    if (wants && !on) this.says(inboxText.denied);
  }

  showMore() {
    this.shown += SHOWN_AT_ONCE;
    this.refreshed();
  }
}
