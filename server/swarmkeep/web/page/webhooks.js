// The webhooks of the tenant: where events are sent, how that goes, a button that sends a test message, and what was not delivered.

import { get, may, post, segment } from "./api.js";
import { button, clear, dayAndTime, h, wideTable } from "./dom.js";
import { hrefOf } from "./route.js";
import { text } from "./text.js";
import { viewText } from "./viewtext.js";

const hookText = viewText.webhooks;
const MOST_LEFT = 50;

export class WebhooksView {
  constructor(app) {
    this.app = app;
    this.rows = h("tbody");
    this.note = h("p", { class: "muted parting", role: "status" }, hookText.loading);
    this.table = wideTable(text.webhooks.title, "audit-table", hookText.columns, this.rows);
    this.table.hidden = true;
    this.left = h("section", { "aria-label": hookText.left, hidden: true });
    this.node = h("section", { class: "audit scroll", "aria-label": text.webhooks.title },
      h("header", { class: "view-head" }, h("h1", { class: "view-title" }, text.webhooks.title)),
      this.table, this.note, this.left);
    this.load();
  }

  close() {
    this.isClosed = true;
  }

  async load() {
    if (!may("webhooks")) return this.say(hookText.refused);
    try {
      const { data } = await get("webhooks");
      if (this.isClosed) return;
      clear(this.rows, data.map((hook) => this.row(hook)));
      this.table.hidden = !data.length;
      this.say(data.length ? "" : hookText.none);
      await this.loadLeft(data);
    } catch (error) {
      this.say(error.message);
    }
  }

  say(words) {
    this.note.textContent = words;
    this.note.hidden = !words;
  }

  // The first events of each webhook that were not delivered: they are tried again, or were given up.
  async loadLeft(hooks) {
    const pages = await Promise.all(hooks.map((hook) => get(`webhooks/${segment(hook.id)}/deliveries?limit=${MOST_LEFT}`)));
    if (this.isClosed) return;
    const rows = pages.flatMap(({ data }, index) => data.map((delivery) => this.leftRow(hooks[index], delivery)));
    this.left.hidden = !rows.length;
    clear(this.left, h("h2", { class: "parting" }, hookText.left),
      wideTable(hookText.left, "audit-table", hookText.leftColumns, h("tbody", {}, rows)),
      pages.some(({ next_cursor: next }) => next) && h("p", { class: "muted parting" }, hookText.leftMore(MOST_LEFT)));
  }

  leftRow(hook, { cursor, session_id: id, seq, state, attempts, next_at: next, error, updated_at: at }) {
    const event = `${id} #${seq}`;
    const outcome = h("p", { class: "muted", role: "status" });
    const again = button(hookText.again, { kind: "small", "aria-label": hookText.againOf(event), onclick: () => this.resend(hook, cursor, again, outcome) });
    return h("tr", {},
      h("th", { scope: "row", class: "address", dir: "auto" }, h("a", { href: hrefOf({ view: "timeline", id, at: seq }) }, event)),
      h("td", { dir: "auto" }, hook.url),
      h("td", {}, state === "dead" ? hookText.dead : next ? hookText.triedAt(dayAndTime(next)) : hookText.waits),
      h("td", { dir: "auto" }, error ? hookText.failed(attempts, error) : ""),
      h("td", {}, h("time", { datetime: at }, dayAndTime(at))),
      h("td", {}, again, outcome));
  }

  async resend(hook, cursor, control, outcome) {
    control.disabled = true;
    try {
      await post(`webhooks/${segment(hook.id)}/deliveries/${segment(cursor)}/resend`);
      outcome.textContent = hookText.sent;
    } catch (error) {
      this.app.fail(error);
    } finally {
      control.disabled = false;
      if (document.activeElement === document.body) control.focus();
    }
  }

  row(hook) {
    const outcome = h("p", { class: "muted", role: "status", dir: "auto" });
    const test = button(hookText.test, { kind: "small", "aria-label": hookText.testOf(hook.url), onclick: () => this.test(hook, test, outcome) });
    return h("tr", {},
      h("th", { scope: "row", class: "address", dir: "auto", title: hook.id }, hook.url),
      h("td", { dir: "auto" }, wanted(hook)),
      h("td", {}, hookText.states[hook.state] ?? hook.state),
      h("td", {}, hook.delivered_at ? h("time", { datetime: hook.delivered_at }, dayAndTime(hook.delivered_at)) : hookText.never),
      h("td", { dir: "auto" }, hook.error ? hookText.failed(hook.failures, hook.error) : ""),
      h("td", {}, test, outcome));
  }

  async test(hook, control, outcome) {
    control.disabled = true;
    outcome.textContent = hookText.testing;
    try {
      outcome.textContent = hookText.outcome(await post(`webhooks/${segment(hook.id)}/test`));
    } catch (error) {
      outcome.textContent = "";
      this.app.fail(error);
    } finally {
      control.disabled = false;
      if (document.activeElement === document.body) control.focus();
    }
  }
}

function wanted({ types, agents, metadata }) {
  const labels = Object.entries(metadata).map(([name, value]) => `${name}=${value}`);
  return [...types, ...agents, ...labels].join(", ") || hookText.everything;
}
