// Two sessions side by side, from where they part, as they are now and as they go on.

import { get } from "./api.js";
import { button, clear, h, pretty, throttle } from "./dom.js";
import { changes } from "./descriptions.js";
import { Log } from "./log.js";
import { go, hrefOf } from "./route.js";
import { Session, sessionTitle, stateTitle } from "./session.js";
import { text } from "./text.js";

const compareText = text.compare;

export class Compare {
  constructor(app, { id, other }) {
    this.app = app;
    this.id = id;
    this.sides = [];
    this.node = h("section", { class: "compare scroll", "aria-label": compareText.title });
    this.render = throttle(() => this.sides.length && this.draw());
    clear(this.node, h("header", { class: "view-head" }, h("h1", { class: "view-title" }, compareText.title)), this.form(id, other));
    if (id && other) this.open(id, other);
    else this.node.append(h("p", { class: "muted parting" }, compareText.hint));
  }

  close() {
    this.sides.forEach((side) => side.close());
  }

  form(id, other) {
    const known = h("datalist", { id: "known-sessions" });
    const field = (label, value, name) => h("label", { class: "pick" }, h("span", {}, label), h("input", { class: "field", name, value: value ?? "", list: "known-sessions", autocomplete: "off", required: true, dir: "auto", onfocus: () => this.fill(known) }));
    return h("form", { class: "picks", onsubmit: (event) => this.choose(event) }, field(compareText.first, id, "first"), field(compareText.second, other, "second"), button(compareText.go, { type: "submit", kind: "primary" }), known);
  }

  async fill(known) {
    if (known.childElementCount) return;
    try {
      const { data } = await get("sessions?limit=100&order=activity");
      clear(known, data.map((session) => h("option", { value: session.id }, sessionTitle(session))));
    } catch {
      // An id can be written as well.
    }
  }

  choose(event) {
    event.preventDefault();
    const { first, second } = event.target.elements;
    go({ view: "compare", id: first.value.trim(), other: second.value.trim() });
  }

  open(id, other) {
    this.parting = h("p", { class: "parting", role: "status" }, compareText.loading);
    this.facts = h("div", { class: "compare-facts" });
    this.sides = [new ComparedSide(this.app.sessionOf(id), this.render), new ComparedSide(new Session(other), this.render, { own: true })];
    this.node.append(this.parting, h("div", { class: "columns" }, this.sides.map((side) => side.node)), this.facts);
    this.draw();
  }

  draw() {
    const [a, b] = this.sides.map((side) => side.session);
    const isThere = this.sides.every((side) => side.isThere);
    const shared = isThere ? sharedCount(a.events, b.events) : 0;
    this.sides.forEach((side) => side.draw(isThere ? shared : null));
    this.parting.hidden = this.sides.some((side) => side.session.error);
    if (!isThere) return;
    const same = shared === a.events.length && shared === b.events.length;
    this.parting.textContent = same ? compareText.same(shared) : shared ? compareText.shared(shared) : compareText.nothingShared;
    clear(this.facts, factTable(a, b, shared), changeTable(compareText.context, a.state.context, b.state.context), changeTable(compareText.metadata, a.state.metadata, b.state.metadata));
  }
}

// A hash covers all that came before it, so that those of two logs are alike up to where they part.
function sharedCount(a, b) {
  let [low, high] = [0, Math.min(a.length, b.length)];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (a[middle - 1].hash === b[middle - 1].hash) low = middle;
    else high = middle - 1;
  }
  return low;
}

function factTable(a, b, shared) {
  const since = ({ state, events }) => state.items.filter((item) => item.seq > shared && item.seq <= events.length);
  const rows = [
    [compareText.events, a.events.length, b.events.length],
    [compareText.agent, a.state.agent, b.state.agent],
    [compareText.status, text.status[a.state.outlook], text.status[b.state.outlook]],
    [compareText.calls, ...[a, b].map((one) => since(one).filter((item) => item.kind === "call").map((item) => item.name).join(", "))],
    [compareText.answers, ...[a, b].map((one) => since(one).filter((item) => item.kind === "assistant").length)],
    [compareText.tokens, a.state.usage.total, b.state.usage.total],
  ];
  return comparedTable(compareText.facts, [a, b].map(({ id }) => id), rows.map(([name, one, other]) => ({ name, one: String(one), other: String(other), differs: one !== other })));
}

function changeTable(title, before, after) {
  const said = (value) => (value === undefined ? "" : pretty(JSON.stringify(value)));
  const rows = changes(before, after).map(({ name, before: one, after: other }) => ({ name, one: said(one), other: said(other), differs: true }));
  return rows.length ? comparedTable(title, [compareText.left, compareText.right], rows) : null;
}

const comparedTable = (title, heads, rows) =>
  h("div", { class: "changes" }, h("h2", {}, title), h("div", { class: "wide", tabindex: 0, role: "group", "aria-label": title },
    h("table", {}, h("thead", {}, h("tr", {}, ["", ...heads].map((name) => (name ? h("th", { scope: "col", dir: "auto" }, name) : h("td", {}))))),
      h("tbody", {}, rows.map(({ name, one, other, differs }) => h("tr", { class: differs ? "differs" : null }, h("th", { scope: "row", dir: "auto" }, name), h("td", { dir: "auto" }, one), h("td", { dir: "auto" }, other)))))));

const NOTHING_TO_DO = { may: () => false, why: compareText.waits };

class ComparedSide {
  // `own`: no other view shows the session, so it is closed with this one.
  constructor(session, onChange, { own = false } = {}) {
    this.session = session;
    this.own = own;
    this.onChange = onChange;
    this.log = new Log({ ...NOTHING_TO_DO, session: () => session.id, context: () => session.state.context });
    this.log.empty.textContent = compareText.nothing;
    this.title = h("h2", { class: "view-title", dir: "auto", title: session.id });
    this.status = h("span", { class: "link" });
    this.wrong = h("div", { class: "problem", role: "alert", hidden: true });
    this.node = h("section", { class: "side", "aria-label": session.id },
      h("header", { class: "side-head" }, this.title, this.status,
        h("a", { class: "button ghost small", href: hrefOf({ view: "chat", id: session.id }) }, text.nav.chat),
        h("a", { class: "button ghost small", href: hrefOf({ view: "timeline", id: session.id }) }, text.nav.timeline)),
      this.wrong, h("div", { class: "log-frame" }, this.log.node, this.log.latest));
    session.show(this);
  }

  get isThere() {
    return this.session.complete && this.session.events.length > 0;
  }

  close() {
    this.session.hide(this);
    this.log.close();
    if (this.own) this.session.close();
  }

  changed() {
    this.onChange();
  }

  renewed() {
    this.log.forget();
    this.onChange();
  }

  checked() {
    this.onChange();
  }

  failed() {
    this.onChange();
  }

  draw(shared) {
    const { session } = this;
    const { state, feed, error } = session;
    const name = stateTitle(session.id, state);
    this.title.textContent = name === session.id ? name : text.forks.named(name, session.id);
    this.status.className = `link ${state.outlook}`;
    this.status.textContent = state.outlook === "idle" ? "" : text.status[state.outlook];
    this.wrong.hidden = !error;
    if (error) clear(this.wrong, h("p", { dir: "auto" }, error.message), h("p", {}, error.advice));
    if (shared === null) return;
    const first = this.log.state === null && state.run === null;
    this.log.render({ ...state, items: state.items.filter((item) => item.seq > shared) }, feed.draft, feed.complete, session.verification.damaged);
    // One that has ended is read from where they part; one that goes on is followed.
    if (first) requestAnimationFrame(() => (this.log.node.scrollTop = 0));
  }
}
