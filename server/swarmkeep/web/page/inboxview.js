// The inbox as a desk: the cases that need attention, the conversation of one of them, and the keys that go through them.

import { begin, get, may, segment, sessionPath } from "./api.js";
import { Chat } from "./chat.js";
import { textOf } from "./content.js";
import { bdi, button, clear, h, redraw, since, single } from "./dom.js";
import { summaryOf } from "./form.js";
import { brief } from "./log.js";
import { go, hrefOf, replaceRoute } from "./route.js";
import { sessionTitle } from "./session.js";
import { text } from "./text.js";
import { viewText } from "./viewtext.js";

const inboxText = text.inbox;
const deskText = viewText.desk;
const SHOWN_AT_ONCE = 50;
const ASKED_AT_ONCE = 3;
// A call is decided in its row only where all of it can be read there.
const LONGEST_IN_ROW = 100;
const LONGEST_SAID = 300;
// A case that opened by itself is decided by no key that was meant for the one before.
const MEANT_BEFORE_MS = 500;
const CLOCK_MS = 60_000;

// The sessions that were opened here, each up to its last event then.

const READ = "swarmkeep.read";
const MOST_READ = 500;

function readMarks() {
  try {
    return JSON.parse(localStorage.getItem(READ)) ?? {};
  } catch {
    return {};
  }
}

function markRead({ id, seq }) {
  const { [id]: _, ...others } = readMarks();
  localStorage.setItem(READ, JSON.stringify(Object.fromEntries([...Object.entries(others), [id, seq]].slice(-MOST_READ))));
}

// What a case is about, in words: what was said last, what is asked, and the calls that are to be decided on.

async function readCase({ session, care }, agents) {
  const path = care === "waiting" && session.active_run_id ? `/runs/${segment(session.active_run_id)}` : "/runs?limit=1";
  const found = await get(sessionPath(session.id, path));
  const run = found.data ? found.data[0] : found;
  const said = textOf(run?.messages.findLast(({ role, content }) => (role === "user" || role === "assistant") && textOf(content))?.content).slice(0, LONGEST_SAID);
  if (care === "damaged") return { said, asked: inboxText.damagedFrom(session.damaged_seq), calls: [] };
  if (care !== "waiting") return { said, asked: run?.error?.message ?? "", calls: [] };
  const agent = agents.find(({ name }) => name === session.agent);
  const asked = run.pending.map((call) => askedOf(call, call.reason === "approval" ? summaryOf(agent, call.name, call.arguments) : null)).join(" ");
  const calls = run.pending.filter(({ reason }) => reason === "approval").map((call) => ({ ...call, run: run.id }));
  return { said, asked, calls };
}

function askedOf({ reason, name, arguments: input }, summary) {
  if (reason !== "approval") return (inboxText.waits[reason] ?? inboxText.waits.result)(name);
  if (summary?.isWhole) return summary.words;
  return `${summary ? `${summary.words}.` : inboxText.waits.approval(name)} ${brief(input)}`.trim();
}

const customerOf = ({ metadata }) => [metadata?.customer, metadata?.customer_name].find((name) => typeof name === "string" && name.trim());

// The list of keys. Whoever dictates, or presses keys by accident, turns those off that are single letters.

const OFF = "swarmkeep.keys";

class KeysDialog {
  constructor() {
    this.on = h("input", { type: "checkbox", checked: this.isOn, onchange: () => localStorage.setItem(OFF, this.on.checked ? "on" : "off") });
    this.node = h("dialog", { class: "dialog", "aria-labelledby": "keys-title" }, h("form", { method: "dialog" },
      h("h2", { id: "keys-title" }, deskText.keys),
      h("dl", { class: "facts" }, deskText.listed.map(([key, does]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, does)])),
      h("label", { class: "tick" }, this.on, deskText.keysOn), h("div", { class: "row" }, button(text.close, { type: "submit" }))));
  }

  get isOn() {
    return localStorage.getItem(OFF) !== "off";
  }
}

export class InboxView {
  constructor(app, route) {
    this.app = app;
    this.inbox = app.waiting.inbox;
    this.cases = new Map();
    this.asked = [];
    this.asking = 0;
    this.openedAt = -Infinity;
    this.shown = SHOWN_AT_ONCE;
    this.kinds = h("nav", { class: "kinds", "aria-label": inboxText.kinds });
    this.hint = h("p", { class: "muted" });
    this.seen = h("input", { type: "checkbox", onchange: () => this.app.choose({ seen: this.seen.checked ? "1" : null }) });
    this.notes = this.inbox.canNotify && button("", { kind: "ghost small", onclick: () => this.notify() });
    this.note = h("p", { class: "note muted", role: "status" });
    this.all = may("run") && button(inboxText.markAll, { kind: "small", icon: "check", hidden: true, onclick: () => this.markAll() });
    this.list = h("ul", { class: "inbox-list" });
    this.rest = button(text.sessions.more, { kind: "ghost", hidden: true, onclick: () => this.showMore() });
    this.scroll = h("div", { class: "scroll inbox-main", tabindex: 0, role: "group", "aria-label": inboxText.list }, this.list, this.rest);
    this.keys = new KeysDialog();
    this.back = h("a", { class: "button small desk-back" }, deskText.back);
    this.place = h("div", { class: "desk-case" });
    this.node = h("section", { class: "inbox", "aria-label": inboxText.title },
      h("div", { class: "desk-list" },
        h("header", { class: "view-head" }, h("h1", { class: "view-title" }, inboxText.title), h("span", { class: "grow" }), this.notes, button(deskText.keys, { icon: "keyboard", kind: "ghost small", quiet: true, onclick: () => this.keys.node.showModal() })),
        h("div", { class: "row inbox-bar" }, this.kinds, h("label", { class: "tick" }, this.seen, inboxText.showSeen), this.all),
        this.note, this.scroll),
      this.place, this.keys.node);
    this.press = (event) => this.pressed(event);
    document.addEventListener("keydown", this.press);
    // How long ago things were.
    this.clock = setInterval(() => document.hidden || this.refreshed(), CLOCK_MS);
    this.moved(route);
    this.inbox.expect(0);
  }

  close() {
    this.closed = true;
    clearInterval(this.clock);
    this.asked = [];
    this.chat?.close();
    document.removeEventListener("keydown", this.press);
  }

  moved({ choices, id }) {
    this.choices = choices;
    this.seen.checked = Boolean(choices.seen);
    this.shown = Math.max(this.shown, SHOWN_AT_ONCE);
    this.back.href = hrefOf({ view: "inbox", choices });
    if (id !== this.id || !this.place.hasChildNodes()) this.open(id);
    this.refreshed();
  }

  // The case beside the list. Its decisions are noted: once it is gone from the list, the next one opens.
  open(id) {
    this.chat?.close();
    this.id = id;
    this.acted = null;
    this.chat = id && new Chat(this.app, { id, onAct: () => this.noteAct(id) });
    clear(this.place, this.back, id ? this.chat.node : h("div", { class: "nothing" }, this.hint));
  }

  noteAct(id) {
    this.acted = id;
    this.inbox.expect(0);
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
    const focused = document.activeElement?.closest?.(".case-item")?.dataset.id;
    const chosen = [...(document.activeElement?.classList ?? [])].find((name) => ["inbox-mark", "case-yes", "case-no"].includes(name));
    redraw(this.kinds, () => clear(this.kinds, [null, ...this.inbox.cares].map((care) => this.kindLink(care))));
    this.says(error ? error.message : items === null ? (this.app.locked ? text.sessions.locked : inboxText.loading) : wanted.length ? "" : inboxText.nothing[this.care ?? "all"]);
    this.hint.textContent = wanted.length ? deskText.choose : deskText.noCase;
    this.asked = [];
    const here = wanted.findIndex(({ session }) => session.id === this.id);
    if (here >= 0) markRead(wanted[here].session);
    clear(this.list, wanted.slice(0, this.shown).map((item) => this.entry(item)));
    this.rest.hidden = wanted.length <= this.shown;
    if (this.all) this.all.hidden = this.unseen.length < 2;
    this.showNotes();
    if (focused) this.focusEntry(focused, chosen, { preventScroll: true });
    if (here >= 0) this.position = here;
    else if (items && this.acted && this.acted === this.id) this.openNext(wanted);
  }

  // What is being written is not taken away: the next letters could be keys there.
  openNext(wanted) {
    const { activeElement: field } = document;
    const writes = this.place.contains(field) && field.matches("input, textarea");
    if (writes && field.value.trim()) return;
    this.acted = null;
    this.openedAt = performance.now();
    const next = wanted[Math.min(this.position ?? 0, wanted.length - 1)];
    if (!next) return this.app.say(inboxText.nothing.all);
    replaceRoute({ view: "inbox", id: next.session.id, choices: this.choices });
    this.app.follow();
    if (writes) this.chat.composer.focus();
    else this.focusEntry(next.session.id);
  }

  says(words) {
    this.note.textContent = words;
    this.note.hidden = !words;
  }

  // The keyboard stays where it was, or where that was.
  focusEntry(id, control, options) {
    const entry = [...this.list.children].find(({ dataset }) => dataset.id === id);
    (entry?.querySelector((control && `.${control}`) || "a") ?? entry?.querySelector("a") ?? this.list.querySelector("a") ?? this.scroll).focus(options);
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
    const name = customerOf(session) ?? sessionTitle(session);
    const isOpen = session.id === this.id;
    const unread = !isOpen && (readMarks()[session.id] ?? 0) < session.seq;
    const place = { said: h("p", { class: "case-said muted", dir: "auto" }), asked: h("p", { class: care === "waiting" ? "inbox-why" : "inbox-why reason", dir: "auto" }), acts: h("div", { class: "row case-acts" }), name };
    const entry = h("li", { class: `case-item${unread ? " unread" : ""}` },
      h("a", { class: "case-link", href: hrefOf({ view: "inbox", id: session.id, choices: this.choices }), title: session.id, "aria-current": isOpen ? "true" : null },
        h("span", { class: "session-head" }, unread && h("span", { class: "unread-mark" }, h("span", { class: "unseen" }, deskText.unread)), h("span", { class: "session-name", dir: "auto" }, name), h("time", { datetime: session.updated_at }, since(session.updated_at))),
        place.said, place.asked,
        h("span", { class: "session-meta" }, h("span", { class: `state ${care}` }, text.status[care]), seen && h("span", { class: "state" }, inboxText.seen), bdi(session.agent), h("span", { class: "owner", dir: "auto", title: text.sessions.owner }, session.assignee ?? text.sessions.unassigned))),
      place.acts);
    if (care !== "waiting" && care !== "damaged" && may("run")) place.acts.append(button(seen ? inboxText.unmark : inboxText.mark, { kind: "small inbox-mark", onclick: () => this.mark(item, !seen), "aria-label": `${seen ? inboxText.unmark : inboxText.mark}: ${name}` }));
    entry.dataset.id = session.id;
    this.explain(item, { ...place, entry });
    return entry;
  }

  explain(item, place) {
    const name = `${item.session.id} ${item.session.seq}`;
    if (this.cases.has(name)) this.fill(place, item, this.cases.get(name));
    else {
      // Until it is known what it says now, it takes the room that it had.
      const before = [...this.list.children].find(({ dataset }) => dataset.id === item.session.id);
      if (before) place.entry.style.minHeight = `${before.offsetHeight}px`;
      this.asked.push({ item, name, place });
      this.ask();
    }
  }

  fill({ said, asked, acts, name, entry }, item, found) {
    entry.style.minHeight = "";
    said.textContent = found.said;
    asked.textContent = found.asked;
    const [call, ...others] = found.calls;
    if (!call || others.length || !may("approve") || found.asked.length > LONGEST_IN_ROW) return;
    acts.append(...["approve", "deny"].map((decision) => button(text.approval[decision], {
      kind: `small ${decision === "approve" ? "primary case-yes" : "danger case-no"}`, "aria-label": `${text.approval[decision]}: ${call.name}, ${name}`,
      onclick: single(() => this.decide(item, call, decision, acts)),
    })));
  }

  async decide({ session }, call, decision, acts) {
    const approval = { tool_call_id: call.tool_call_id, decision, arguments_digest: call.arguments_digest };
    for (const control of acts.children) control.disabled = true;
    try {
      await begin(sessionPath(session.id, `/runs/${segment(call.run)}/resume`), { approvals: [approval] });
      this.app.say(deskText.decided[decision](call.name));
      this.noteAct(session.id);
    } catch (error) {
      this.app.fail(error);
      for (const control of acts.children) control.disabled = false;
    }
  }

  // Few at a time, and each once.
  async ask() {
    if (this.asking >= ASKED_AT_ONCE || this.closed) return;
    const next = this.asked.shift();
    if (!next) return;
    const { item, name, place } = next;
    this.asking += 1;
    try {
      if (!this.cases.has(name)) this.cases.set(name, await readCase(item, this.app.agents));
    } catch {
      // What it is, is said without.
    }
    this.asking -= 1;
    if (this.cases.has(name)) this.fill(place, item, this.cases.get(name));
    this.ask();
  }

  // Single keys, while nothing is being written.
  pressed(event) {
    const key = event.key.toLowerCase();
    const writes = event.target.closest?.("textarea, select, input:not([type=checkbox])");
    if (event.defaultPrevented || event.repeat || event.ctrlKey || event.metaKey || event.altKey || writes || document.querySelector("dialog[open]")) return;
    if (key !== "?" && !this.keys.isOn) return;
    const find = (selector) => this.place.querySelector(`section.decide ${selector}`);
    const act = { j: () => this.step(1), k: () => this.step(-1), a: () => find(".primary")?.click(), d: () => find(".danger")?.click(), r: () => this.chat?.composer.focus(), e: () => find(".edit :is(.arguments:not([hidden]), .arguments-json:not([hidden])) .field")?.focus(), "?": () => this.keys.node.showModal() }[key];
    if (!act) return;
    event.preventDefault();
    if ((key !== "a" && key !== "d") || performance.now() - this.openedAt > MEANT_BEFORE_MS) act();
  }

  step(by) {
    const { wanted } = this;
    const here = wanted.findIndex(({ session }) => session.id === this.id);
    // From a case that has left the list to what is in its place.
    const next = wanted[here < 0 ? Math.min(this.position ?? 0, wanted.length - 1) : here + by];
    if (!next) return;
    this.shown = Math.max(this.shown, wanted.indexOf(next) + 1);
    go({ view: "inbox", id: next.session.id, choices: this.choices });
    this.app.follow();
    this.focusEntry(next.session.id);
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
    this.scroll.focus();
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
