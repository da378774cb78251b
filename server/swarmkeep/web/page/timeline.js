// Everything that happened in a session, with what it was like after any event.

import { checksMenu } from "./checks.js";
import { button, clear, h } from "./dom.js";
import { Detail } from "./detail.js";
import { eventRow, showLegend } from "./eventrow.js";
import { ExportMenu } from "./exports.js";
import { Forks } from "./forks.js";
import { Grouping, SHAPES } from "./grouping.js";
import { HeadCheck } from "./headcheck.js";
import { SessionTools } from "./manage.js";
import { me } from "./me.js";
import { Player } from "./player.js";
import { loadPrices } from "./prices.js";
import { replaceRoute } from "./route.js";
import { Rows } from "./rows.js";
import { Runs } from "./spans.js";
import { Ticks } from "./ticks.js";
import { headRow, spanRow } from "./waterfall.js";
import { matches, titleOf } from "./descriptions.js";
import { text } from "./text.js";
import { stateTitle } from "./titles.js";
import { Today } from "./today.js";
import { Badge, Problems } from "./verification.js";

const t = text.timeline;

export class Timeline {
  constructor(app, { id, at, as, from = null }) {
    this.app = app;
    this.id = id;
    this.at = at;
    this.from = from;
    this.shape = as ?? "list";
    this.entry = null;
    this.agents = [];
    this.shown = [];
    this.node = h("section", { class: "timeline", "aria-label": t.title });
    if (id) this.open();
    else clear(this.node, h("div", { class: "nothing" }, h("h1", {}, t.title), h("p", { class: "muted" }, t.choose),
      h("div", { class: "row narrow" }, button(t.sessions, { icon: "menu", onclick: () => this.app.toggleMenu(true) }))));
  }

  close() {
    this.session?.hide(this);
    this.rows?.close();
    this.player?.close();
    this.detail?.close();
  }

  open() {
    this.kind = h("select", { class: "field", "aria-label": t.filter, onchange: () => this.filter() });
    this.kind.append(...Object.entries(t.kinds).map(([value, name]) => h("option", { value }, name)));
    this.words = h("input", { class: "field", type: "search", "aria-label": t.search, placeholder: t.search, oninput: () => this.filter() });
    this.slider = h("input", { type: "range", class: "slider", min: 1, max: 1, value: "1", "aria-label": t.slider, oninput: () => this.choose(Number(this.slider.value)) });
    this.position = h("output", { class: "position" });
    this.session = this.app.sessionOf(this.id);
    this.feed = this.session.feed;
    this.badge = new Badge(this.session);
    this.problems = new Problems(this.session);
    this.link = h("span", { class: "link", role: "status" });
    this.legend = h("ul", { class: "legend", "aria-label": t.lanes });
    this.note = h("p", { class: "muted note", role: "status" }, t.loading);
    this.forks = new Forks(this.session);
    this.today = new Today(this.id, () => this.render());
    this.against = new HeadCheck({ verify: (head) => this.session.verification.against(head), forget: () => this.session.verification.forget(), isOurs: ({ session_id: id, tenant }) => id === this.id && [null, me.known?.tenant ?? tenant].includes(tenant) });
    this.export = new ExportMenu(this.app, this.id, () => ({ view: "timeline", id: this.id, at: this.at, as: this.shapeInAddress }));
    this.rows = new Rows({
      label: t.list,
      rowOf: (index) => this.entryRow(this.grouping.entries[index]),
      levelOf: (index) => this.grouping.levelOf(index),
      onChoose: (index) => this.choose(this.grouping.seqOf(index), { entry: this.grouping.entries[index] }),
      onOpen: () => this.detail.node.focus(),
      onKey: (event) => this.foldedBy(event),
    });
    this.rows.node.addEventListener("click", (event) => this.clickedHead(event.target));
    this.grouping = new Grouping();
    this.ticks = new Ticks();
    this.player = new Player({ onStep: () => this.step(1, { quiet: true, plays: true }), onStop: () => this.keepRoute(), onFollow: (yes) => yes && this.feed.last && this.choose(this.feed.last, { follows: true }) });
    this.shapes = h("div", { class: "segments", role: "group", "aria-label": text.runs.shape }, SHAPES.map((shape) => button(text.runs.shapes[shape], { kind: "small", "aria-pressed": String(shape === this.shape), onclick: () => this.reshape(shape) })));
    this.failures = button("", { kind: "small failures", hidden: true, "aria-pressed": "false", onclick: () => this.toggleFailures() });
    this.rows.become(this.shape !== "list");
    this.detail = new Detail(this.app, this.session);
    this.title = h("h1", { class: "view-title", dir: "auto", title: this.id }, this.id);
    this.tools = new SessionTools(this.app, this.id, this.title, () => this.session.state.metadata);
    this.top = h("header", { class: "view-head" }, this.title, this.tools.node, this.link, this.badge.node, h("span", { class: "grow" }), h("span", { class: "row" }, this.forks.node, checksMenu(this), this.export.node));
    clear(this.node, this.top, this.problems.node, this.against.node, this.today.node,
      h("div", { class: "scrubber" }, button(t.previous, { icon: "left", kind: "ghost", quiet: true, onclick: () => this.step(-1) }), h("div", { class: "slider-place" }, this.ticks.node, this.slider), button(t.next, { icon: "right", kind: "ghost", quiet: true, onclick: () => this.step(1) }), this.position, this.player.node),
      h("div", { class: "panes" },
        h("div", { class: "events" }, h("div", { class: "filters row" }, this.kind, this.words), h("div", { class: "shaping row" }, this.shapes, this.failures), this.legend, this.rows.node, this.note),
        this.detail.node));
    this.renewed();
    this.session.show(this);
  }

  // To the event before or after this one, of those that the filter leaves; says whether there was one.
  step(by, how = {}) {
    const next = by > 0 ? this.shown.find(({ seq }) => seq > this.at) : this.shown.findLast(({ seq }) => seq < this.at);
    if (next) this.choose(next.seq, how);
    return next !== undefined;
  }

  failed(error) {
    this.tools.node.remove();
    clear(this.node, this.top, h("div", { class: "problem", role: "alert" }, h("h2", { dir: "auto" }, error.message), h("p", {}, error.advice), h("div", { class: "row" }, button(text.retry, { kind: "primary", onclick: () => this.app.reload() }))));
  }

  // What was shown may be other than it was: it is all made anew.
  renewed() {
    this.agents = [];
    this.shown = [];
    this.runs = new Runs();
    this.ticks.clear();
    this.detailed = undefined;
    this.detail.steps.reset();
    if (!this.feed.last) this.at = this.detail.clear() ?? this.at;
    this.feed.events.forEach((event) => this.happened(event));
    this.render();
  }

  changed() {
    this.render();
  }

  checked() {
    this.render();
  }

  happened(event) {
    if (event.agent && !this.agents.includes(event.agent)) this.agents.push(event.agent);
    this.runs.take(event);
    this.ticks.take(event);
    if (matches(event, this.kind.value, this.sought)) this.shown.push(event);
  }

  get sought() {
    return this.words.value.trim().toLowerCase();
  }

  // The address has another seq: somebody went back. Until all events are there, `render` has still to choose.
  moved({ at, as, from }) {
    if (!this.id) return;
    this.from = from;
    if ((as ?? "list") !== this.shape) this.showAs(as ?? "list");
    if (this.detailed === undefined) this.at = at ?? this.at;
    else if ((at && at !== this.at) || from !== null) this.choose(at ?? this.at, { quiet: true });
  }

  filter() {
    const words = this.sought;
    this.shown = this.feed.events.filter((event) => matches(event, this.kind.value, words));
    this.render();
    this.showRows({ reveal: true });
  }

  toggleFailures() {
    this.kind.value = this.kind.value === "bad" ? "all" : "bad";
    this.filter();
  }

  reshape(shape) {
    this.showAs(shape);
    this.keepRoute();
  }

  showAs(shape) {
    this.shape = shape;
    [...this.shapes.children].forEach((node, index) => node.setAttribute("aria-pressed", String(SHAPES[index] === shape)));
    this.rows.become(shape !== "list");
    this.render();
    this.showRows({ reveal: true });
  }

  keepRoute() {
    replaceRoute({ view: "timeline", id: this.id, at: this.at, from: this.from, as: this.shapeInAddress });
  }

  get shapeInAddress() {
    return this.shape === "list" ? null : this.shape;
  }

  render() {
    const { feed } = this;
    if (feed.complete) this.priced ??= loadPrices().then(() => this.render());
    this.badge.show();
    this.problems.show();
    this.forks.show();
    this.title.textContent = stateTitle(this.id, this.session.state);
    this.app.showTitle(this.id, this.title.textContent);
    this.link.className = `link ${feed.link}`;
    this.link.textContent = feed.link === "live" ? "" : text.link[feed.link];
    this.note.hidden = feed.complete && this.shown.length > 0;
    this.note.textContent = feed.complete ? t.none : t.loading;
    this.slider.max = String(Math.max(feed.last, 1));
    showLegend(this.legend, this.agents);
    this.ticks.show(feed.last);
    this.failures.hidden = !this.ticks.failures && this.kind.value !== "bad";
    this.failures.lastChild.textContent = text.runs.failures(this.ticks.failures);
    this.failures.setAttribute("aria-pressed", String(this.kind.value === "bad"));
    // Until all is there, a tree would be made anew with each frame.
    if (this.shape === "list" || feed.complete) this.grouping.build(this.shape, { shown: this.shown, events: feed.events, runs: this.runs, kind: this.kind.value, words: this.sought });
    if (feed.complete && feed.last && this.detailed === undefined) this.choose(Math.min(this.at ?? feed.last, feed.last), { quiet: true });
    else if (this.player.follows && this.at !== feed.last && feed.last) this.choose(feed.last, { quiet: true, follows: true });
    this.showRows();
    if (this.at) this.position.textContent = t.position(this.at, feed.last);
  }

  showRows(how = {}) {
    this.rows.show(this.grouping.entries.length, this.grouping.indexOf(this.at, this.entry), how);
  }

  // In a tree Enter folds a run and unfolds it, and so do the arrows to the sides.
  foldedBy({ key }) {
    const run = this.entry?.span || this.shape === "list" ? null : this.entry?.run;
    const how = { Enter: undefined, ArrowLeft: true, ArrowRight: false };
    return Boolean(run) && key in how && this.foldRun(run, how[key]);
  }

  clickedHead(target) {
    const entry = this.grouping.entries[target.closest?.(".row-line")?.dataset.index];
    if (entry?.run && !entry.span) this.foldRun(entry.run);
  }

  foldRun(run, folded) {
    if (this.grouping.fold(run, folded)) this.render();
    return true;
  }

  choose(seq, { quiet = false, entry = null, follows = false, plays = false } = {}) {
    const { feed } = this;
    this.entry = entry;
    if (!follows) this.player.setFollowing(false);
    if (!plays) this.player.stop();
    this.at = Math.min(Math.max(seq, 1), feed.last);
    this.slider.value = String(this.at);
    const event = feed.events[this.at - 1];
    this.slider.setAttribute("aria-valuetext", `${t.position(this.at, feed.last)}: ${titleOf(event)}`);
    this.position.textContent = t.position(this.at, feed.last);
    this.showRows({ reveal: true });
    if (!quiet || plays) this.from = null;
    this.detail.show(feed.events, this.at, { runs: this.runs, from: this.from, as: this.shapeInAddress });
    this.detailed = this.at;
    if (!quiet) this.keepRoute();
  }

  entryRow(entry) {
    if (entry.span) return spanRow(entry.run, entry.span, (agent) => Math.max(this.agents.indexOf(agent), 0));
    return entry.run ? headRow(entry.run, this.grouping.folded.has(entry.run.id)) : eventRow(entry, { damage: this.session.verification.damaged.get(entry.seq), differs: this.today.marks.get(entry.seq), before: this.feed.events[entry.seq - 2], agents: this.agents });
  }
}
