// The timeline: every event of a session, the state after any of them, and replay.

import { me, post, sessionPath } from "./api.js";
import { Below } from "./below.js";
import { HeadCheck } from "./checkpoint.js";
import { isBad, matches, titleOf } from "./descriptions.js";
import { Detail } from "./detail.js";
import { button, clear, Disclosure, h, icon, pretty } from "./dom.js";
import { hrefOf, replaceRoute } from "./route.js";
import { eventRow, Grouping, Rows, showLegend, SHAPES } from "./rows.js";
import { Badge, Problems, stateTitle } from "./session.js";
import { ExportMenu, Forks, SessionTools } from "./sessiontools.js";
import { headRow, loadPrices, Runs, spanRow } from "./spans.js";
import { text } from "./text.js";
import { viewText } from "./viewtext.js";

// What can be checked of a session: whether today's agents would do the same, whether the log is the one that was noted.

function checksMenu(view) {
  const entry = (label, act) => button(label, { kind: "pop-item", onclick: act });
  return new Disclosure(viewText.check.menu, [
    entry(viewText.today.ask, () => view.today.ask()),
    entry(viewText.check.open, () => view.against.open()),
    entry(viewText.check.copy, () => copyHead(view)),
    h("a", { class: "button pop-item", href: hrefOf({ view: "compare", id: view.id }) }, text.compare.open),
  ], { icon: "check" }).node;
}

async function copyHead({ app, feed }) {
  const { seq, hash } = feed.events.at(-1) ?? {};
  if (!seq) return;
  try {
    await navigator.clipboard.writeText(`${seq}:${hash}`);
    app.say(viewText.check.copied);
  } catch {
    app.fail({ message: text.exports.noClipboard, advice: `${seq}:${hash}` });
  }
}

// Goes through the events by itself, at a speed, and follows what is still to come.

const PLAY_SPEEDS = [1, 2, 5, 20];

class Player {
  // `onStep` goes one event on and says whether there was one; `onStop` hears of the end; `onFollow` of whether to follow.
  constructor({ onStep, onStop, onFollow }) {
    this.on = { step: onStep, stop: onStop, follow: onFollow };
    this.follows = false;
    this.timer = null;
    this.start = button(viewText.player.play, { icon: "play", kind: "ghost", quiet: true, onclick: () => (this.plays ? this.stop() : this.play()) });
    this.speed = h("select", { class: "field speed", "aria-label": viewText.player.speed, onchange: () => this.plays && this.play() },
      PLAY_SPEEDS.map((count) => h("option", { value: String(count) }, viewText.player.perSecond(count))));
    this.follow = button(viewText.player.follow, { kind: "small follow", "aria-pressed": "false", onclick: () => this.setFollowing(!this.follows) });
    this.node = h("div", { class: "player" }, this.start, this.speed, this.follow);
  }

  get plays() {
    return this.timer !== null;
  }

  play() {
    clearInterval(this.timer);
    this.setFollowing(false);
    this.timer = setInterval(() => this.on.step() || this.stop(), 1000 / Number(this.speed.value));
    this.show("stop", viewText.player.pause);
  }

  stop() {
    if (!this.plays) return;
    clearInterval(this.timer);
    this.timer = null;
    this.show("play", viewText.player.play);
    this.on.stop();
  }

  show(sign, label) {
    this.start.replaceChildren(icon(sign));
    this.start.title = label;
    this.start.setAttribute("aria-label", label);
  }

  setFollowing(yes) {
    if (this.follows === yes) return;
    this.follows = yes;
    this.follow.setAttribute("aria-pressed", String(yes));
    if (yes) this.stop();
    this.on.follow(yes);
  }

  close() {
    clearInterval(this.timer);
  }
}

// Marks above the slider: where runs begin, where agents hand over, and where something failed.

// No screen shows more of them.
const TICK_PLACES = 1000;
const TICK_MARKS = { run: [2, 1], handoff: [1, 2], bad: [0, 3] };

class Ticks {
  constructor() {
    this.node = h("div", { class: "ticks", "aria-hidden": "true" });
    this.clear();
  }

  clear() {
    this.seqs = { run: [], handoff: [], bad: [] };
    this.drawn = "";
  }

  take(event) {
    if (event.type === "run.started") this.seqs.run.push(event.seq);
    else if (event.type === "handoff.made") this.seqs.handoff.push(event.seq);
    if (isBad(event)) this.seqs.bad.push(event.seq);
  }

  get failures() {
    return this.seqs.bad.length;
  }

  show(last) {
    const wanted = `${last} ${Object.values(this.seqs).map((seqs) => seqs.length).join()}`;
    if (this.drawn === wanted) return;
    this.drawn = wanted;
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", `0 0 ${TICK_PLACES} 3`);
    svg.setAttribute("preserveAspectRatio", "none");
    for (const [kind, seqs] of Object.entries(this.seqs)) svg.append(this.path(kind, seqs, last));
    this.node.replaceChildren(svg);
  }

  path(kind, seqs, last) {
    const [top, height] = TICK_MARKS[kind];
    const places = new Set(seqs.map((seq) => Math.round(((seq - 1) / Math.max(last - 1, 1)) * TICK_PLACES)));
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("class", `tick-${kind}`);
    path.setAttribute("d", [...places].map((place) => `M${place} ${top}v${height}`).join(""));
    return path;
  }
}

// Would today's agents do the same? The server compares them with what is recorded, and this lists where they part.

const todayText = viewText.today;

class Today {
  constructor(id, onChange) {
    this.id = id;
    this.onChange = onChange;
    // The divergences by the event that they show at.
    this.marks = new Map();
    this.node = h("section", { class: "panel", "aria-label": todayText.title, hidden: true });
  }

  close() {
    this.node.hidden = true;
    this.marks = new Map();
    this.onChange();
  }

  async ask() {
    this.node.hidden = false;
    this.show(h("p", { class: "muted", role: "status" }, todayText.asking));
    try {
      const found = await post(sessionPath(this.id, "/replay"));
      this.marks = new Map();
      for (const one of found.divergences) this.marks.set(one.seq, [...(this.marks.get(one.seq) ?? []), one]);
      this.show(this.verdict(found), h("ul", { class: "divergences" }, found.divergences.map((one) => this.line(one))));
    } catch (error) {
      this.show(h("p", { class: "reason", role: "alert" }, error.message));
    }
    this.onChange();
  }

  show(...nodes) {
    clear(this.node, h("header", { class: "row" }, h("h2", {}, todayText.title), h("span", { class: "grow" }), button(text.close, { icon: "cross", kind: "ghost small", quiet: true, onclick: () => this.close() })), nodes);
  }

  verdict({ matches, turns, divergences, redacted, last_seq: last, cut_short: cut }) {
    const words = matches ? todayText.same(turns) : divergences.length ? todayText.differs(divergences.length, turns) : todayText.soFar(turns);
    return h("div", { role: "status" }, h("p", { class: matches ? "" : "reason" }, words),
      cut && h("p", { class: "reason" }, todayText.cut(last)),
      redacted.length > 0 && h("p", { class: "muted" }, todayText.redacted(redacted.join(", "))));
  }

  line({ seq, kind, recorded, actual }) {
    const side = (name, value) => [h("dt", {}, name), h("dd", {}, h("pre", { class: "code", tabindex: 0, dir: "auto" }, pretty(value)))];
    return h("li", {}, h("details", {}, h("summary", {}, icon("cross"), todayText.kinds[kind] ?? kind), h("dl", { class: "parts" }, side(todayText.recorded, recorded), side(todayText.actual, actual))),
      h("a", { href: hrefOf({ view: "timeline", id: this.id, at: seq }) }, text.timeline.damagedAt(seq)));
  }
}

// Everything that happened in a session, with what it was like after any event.

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
    this.elsewhere = [];
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
    this.below = new Below({ onChange: () => this.shape === "waterfall" && this.render() });
    this.grouping = new Grouping(this.below);
    this.ticks = new Ticks();
    this.player = new Player({ onStep: () => this.step(1, { quiet: true, plays: true }), onStop: () => this.keepRoute(), onFollow: (yes) => yes && this.feed.last && this.choose(this.feed.last, { follows: true }) });
    this.shapes = h("div", { class: "segments", role: "group", "aria-label": viewText.spans.shape }, SHAPES.map((shape) => button(viewText.spans.shapes[shape], { kind: "small", "aria-pressed": String(shape === this.shape), onclick: () => this.reshape(shape) })));
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

  // Events that were shown may have changed: everything is drawn again.
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

  // The address has another seq: the user went back. Until all events are there, `render` has still to choose.
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
    if (feed.complete && this.shape !== "list") this.priced ??= loadPrices().then(() => this.render());
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
    this.failures.lastChild.textContent = viewText.spans.failures(this.ticks.failures);
    this.failures.setAttribute("aria-pressed", String(this.kind.value === "bad"));
    // Until all events are there, a tree would be built again with each frame.
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
    const { span } = this.entry ?? {};
    if (span?.session && this.shape === "waterfall" && (key === "ArrowLeft" || key === "ArrowRight")) return this.foldSpan(span, key === "ArrowLeft");
    const run = this.entry?.span || this.shape === "list" ? null : this.entry?.run;
    const how = { Enter: undefined, ArrowLeft: true, ArrowRight: false };
    return Boolean(run) && key in how && this.foldRun(run, how[key]);
  }

  clickedHead(target) {
    const entry = this.grouping.entries[target.closest?.(".row-line")?.dataset.index];
    if (entry?.run && !entry.span) this.foldRun(entry.run);
    else if (entry?.span && target.closest(".fold-sign")) this.foldSpan(entry.span);
  }

  foldSpan(span, folded) {
    if (this.below.fold(span, folded)) this.render();
    return true;
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
    if (entry?.outer) this.detail.showBelow(entry);
    else this.detail.show(feed.events, this.at, { runs: this.runs, from: this.from, as: this.shapeInAddress });
    this.detailed = this.at;
    if (!quiet) this.keepRoute();
  }

  // Agents of other sessions have lanes of their own, behind those of this one.
  laneOf(agent) {
    const here = this.agents.indexOf(agent);
    if (here >= 0) return here;
    if (!this.elsewhere.includes(agent)) this.elsewhere.push(agent);
    return this.agents.length + this.elsewhere.indexOf(agent);
  }

  entryRow(entry) {
    if (entry.span) return spanRow(entry.run, entry.span, (agent) => this.laneOf(agent), entry.span.session ? this.below.isFolded(entry.span, Boolean(entry.outer)) : undefined);
    return entry.run ? headRow(entry.run, this.grouping.folded.has(entry.run.id)) : eventRow(entry, { damage: this.session.verification.damaged.get(entry.seq), differs: this.today.marks.get(entry.seq), before: this.feed.events[entry.seq - 2], agents: this.agents });
  }
}
