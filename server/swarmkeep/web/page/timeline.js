// Everything that happened in a session, with what it was like after any event.

import { getBlob, sessionPath } from "./api.js";
import { button, clear, h, icon, since, timeOf } from "./dom.js";
import { Detail, verification } from "./detail.js";
import { Feed } from "./feed.js";
import { replaceRoute } from "./route.js";
import { Rows } from "./rows.js";
import { merge } from "./fold.js";
import { elapsed, kindOf, matches, nameOf, summaryOf, titleOf, tokensOf } from "./descriptions.js";
import { text } from "./text.js";

const t = text.timeline;
const LANES = 6;

export class Timeline {
  constructor(app, { id, at }) {
    this.app = app;
    this.id = id;
    this.at = at;
    this.agents = [];
    this.metadata = {};
    this.shown = [];
    this.node = h("section", { class: "timeline", "aria-label": t.title });
    if (id) this.open();
    else clear(this.node, h("div", { class: "nothing" }, h("h1", {}, t.title), h("p", { class: "muted" }, t.choose),
      h("div", { class: "row narrow" }, button(t.sessions, { icon: "menu", onclick: () => this.app.toggleMenu(true) }))));
  }

  close() {
    this.feed?.close();
    this.rows?.close();
  }

  open() {
    this.kind = h("select", { class: "field", "aria-label": t.filter, onchange: () => this.filter() });
    this.kind.append(...Object.entries(t.kinds).map(([value, name]) => h("option", { value }, name)));
    this.words = h("input", { class: "field", type: "search", "aria-label": t.search, placeholder: t.search, oninput: () => this.filter() });
    this.slider = h("input", { type: "range", class: "slider", min: 1, max: 1, value: "1", "aria-label": t.slider, oninput: () => this.choose(Number(this.slider.value)) });
    this.position = h("output", { class: "position" });
    this.badge = h("span", { class: "badge", hidden: true, role: "status" });
    this.link = h("span", { class: "link", role: "status" });
    this.legend = h("ul", { class: "legend", "aria-label": t.lanes });
    this.note = h("p", { class: "muted note", role: "status" }, t.loading);
    this.export = button(t.export, { icon: "download", onclick: () => this.save() });
    this.rows = new Rows({
      label: t.list,
      rowOf: (index) => this.row(this.shown[index]),
      onChoose: (index) => this.choose(this.shown[index].seq),
      onOpen: () => this.detail.node.focus(),
    });
    this.detail = new Detail(this.app, this.id);
    const step = (by) => () => this.choose(Math.min(Math.max(this.at + by, 1), this.feed.last));
    this.title = h("h1", { class: "view-title", dir: "auto", title: this.id }, this.id);
    this.head = h("header", { class: "view-head" }, this.title, this.link, this.badge, h("span", { class: "grow" }), this.export);
    clear(this.node, this.head,
      h("div", { class: "scrubber" }, button(t.previous, { icon: "left", kind: "ghost", quiet: true, onclick: step(-1) }), this.slider, button(t.next, { icon: "right", kind: "ghost", quiet: true, onclick: step(1) }), this.position),
      h("div", { class: "panes" },
        h("div", { class: "events" }, h("div", { class: "filters row" }, this.kind, this.words), this.legend, this.rows.node, this.note),
        this.detail.node));
    this.feed = new Feed(this.id, { onEvent: (event) => this.happened(event), onChange: () => this.render(), onReset: () => this.reset(), onError: (error) => this.lost(error) });
    this.check();
  }

  lost(error) {
    clear(this.node, this.head, h("div", { class: "problem", role: "alert" }, h("h2", { dir: "auto" }, error.message), h("p", {}, error.advice), h("div", { class: "row" }, button(text.retry, { kind: "primary", onclick: () => this.app.reload() }))));
  }

  reset() {
    this.agents = [];
    this.metadata = {};
    this.shown = [];
    this.at = null;
  }

  happened(event) {
    if (event.data?.metadata) this.metadata = merge(this.metadata, event.data.metadata);
    if (event.agent && !this.agents.includes(event.agent)) this.agents.push(event.agent);
    if (matches(event, this.kind.value, this.words.value.trim().toLowerCase())) this.shown.push(event);
  }

  // The address has another seq: somebody went back.
  moved({ at }) {
    if (at && at !== this.at) this.choose(at, { quiet: true });
  }

  filter() {
    const words = this.words.value.trim().toLowerCase();
    this.shown = this.feed.events.filter((event) => matches(event, this.kind.value, words));
    this.render();
    this.rows.show(this.shown.length, this.indexOf(this.at), { reveal: true });
  }

  render() {
    const { feed } = this;
    this.title.textContent = nameOf({ id: this.id, metadata: this.metadata });
    this.link.className = `link ${feed.link}`;
    this.link.textContent = feed.link === "live" ? "" : text.link[feed.link];
    this.note.hidden = feed.complete && this.shown.length > 0;
    this.note.textContent = feed.complete ? t.none : t.loading;
    this.slider.max = String(Math.max(feed.last, 1));
    this.renderLegend();
    if (feed.complete && feed.last && this.detailed === undefined) this.choose(Math.min(this.at ?? feed.last, feed.last), { quiet: true });
    this.rows.show(this.shown.length, this.indexOf(this.at));
    if (this.at) this.position.textContent = t.position(this.at, feed.last);
  }

  renderLegend() {
    if (this.legend.childElementCount === this.agents.length) return;
    clear(this.legend, this.agents.map((agent, index) => h("li", {}, h("span", { class: `dot lane-${index % LANES}`, "aria-hidden": "true" }), h("span", { dir: "auto" }, agent))));
  }

  indexOf(seq) {
    let [low, high] = [0, this.shown.length - 1];
    while (low <= high) {
      const middle = (low + high) >> 1;
      const found = this.shown[middle].seq;
      if (found === seq) return middle;
      if (found < seq) low = middle + 1;
      else high = middle - 1;
    }
    return -1;
  }

  choose(seq, { quiet = false } = {}) {
    const { feed } = this;
    this.at = Math.min(Math.max(seq, 1), feed.last);
    this.slider.value = String(this.at);
    const event = feed.events[this.at - 1];
    this.slider.setAttribute("aria-valuetext", `${t.position(this.at, feed.last)}: ${titleOf(event)}`);
    this.position.textContent = t.position(this.at, feed.last);
    this.rows.show(this.shown.length, this.indexOf(this.at), { reveal: true });
    this.detail.show(feed.events, this.at);
    this.detailed = this.at;
    if (!quiet) replaceRoute({ view: "timeline", id: this.id, at: this.at });
  }

  row(event) {
    const lane = this.agents.indexOf(event.agent);
    const before = this.feed.events[event.seq - 2];
    const tokens = tokensOf(event);
    const dots = this.agents.slice(0, LANES).map((_, index) => h("span", { class: `lane lane-${index} ${index === lane % LANES ? "here" : ""}` }));
    return [
      h("span", { class: "row-seq" }, String(event.seq)),
      h("span", { class: "lanes", "aria-hidden": "true" }, dots),
      h("span", { class: `row-title kind-${kindOf(event)}` }, titleOf(event)),
      h("span", { class: "row-agent unseen" }, event.agent),
      h("span", { class: "row-summary", dir: "auto" }, summaryOf(event).slice(0, 200)),
      tokens ? h("span", { class: "row-tokens" }, t.tokens(tokens)) : null,
      h("time", { class: "row-time", datetime: event.at, title: timeOf(event.at) }, before ? elapsed(before.at, event.at) : since(event.at)),
    ];
  }

  async check() {
    try {
      this.badge.textContent = t.verify;
      const { valid, events, problems } = await verification(this.id);
      clear(this.badge, icon(valid ? "check" : "cross"), valid ? t.valid(events) : t.invalid(problems.length));
      this.badge.classList.add(valid ? "good" : "bad");
      this.badge.title = problems.map((problem) => `${problem.seq}: ${problem.detail}`).join("\n");
      this.badge.hidden = false;
    } catch {
      // A server that cannot check has no badge, and the events are there all the same.
      this.badge.hidden = true;
    }
  }

  async save() {
    this.export.disabled = true;
    try {
      const blob = await getBlob(sessionPath(this.id, "/events"), { Accept: "application/x-ndjson" });
      const link = h("a", { href: URL.createObjectURL(blob), download: `${this.id.replaceAll(/[^\w.-]/g, "_")}.jsonl` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    } catch (error) {
      this.app.fail(error);
    } finally {
      this.export.disabled = false;
    }
  }
}

