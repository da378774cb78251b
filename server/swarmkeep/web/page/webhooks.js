// The webhooks of the tenant: where events are sent, how that goes, and a button that sends a test message.

import { get, may, post, segment } from "./api.js";
import { button, clear, dayAndTime, h } from "./dom.js";
import { text } from "./text.js";
import { viewText } from "./viewtext.js";

const hookText = viewText.webhooks;

export class WebhooksView {
  constructor(app) {
    this.app = app;
    this.rows = h("tbody");
    this.note = h("p", { class: "muted parting", role: "status" }, hookText.loading);
    this.table = h("div", { class: "audit-table wide", tabindex: 0, role: "group", "aria-label": text.webhooks.title, hidden: true },
      h("table", {}, h("thead", {}, h("tr", {}, hookText.columns.map((name) => h("th", { scope: "col" }, name)))), this.rows));
    this.node = h("section", { class: "audit scroll", "aria-label": text.webhooks.title },
      h("header", { class: "view-head" }, h("h1", { class: "view-title" }, text.webhooks.title)),
      this.table, this.note);
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
    } catch (error) {
      this.say(error.message);
    }
  }

  say(words) {
    this.note.textContent = words;
    this.note.hidden = !words;
  }

  row(hook) {
    const outcome = h("p", { class: "muted", role: "status", dir: "auto" });
    const test = button(hookText.test, { kind: "small", "aria-label": hookText.testOf(hook.url), onclick: () => this.test(hook, test, outcome) });
    return h("tr", {},
      h("th", { scope: "row", dir: "auto", title: hook.id }, hook.url),
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
