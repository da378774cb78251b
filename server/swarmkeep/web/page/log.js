// A conversation on the screen: its items, and the part of them that is drawn.

import { get, sessionPath } from "./api.js";
import { approvalNode, callParts, resultNode } from "./calls.js";
import { filesNode } from "./content.js";
import { whoIs } from "./descriptions.js";
import { bdi, button, clear, copyButton, dayName, h, icon, lane, timeNode } from "./dom.js";
import { fold } from "./fold.js";
import { escapedSigns, membersOfJson } from "./json.js";
import { finishAll, Prose } from "./prose.js";
import { hrefOf } from "./route.js";
import { readEnd, LATEST } from "./session.js";
import { advice, text } from "./text.js";

// One item of a conversation as an element: who said it, what it was, and what can be done about it.

const MOST_BRIEF = 120;
// An approval may also have been asked for and not been given.
const DECIDED = new Set(["approve", "deny"]);

export function body(source, prose = new Prose()) {
  prose.finish(source);
  return prose.node;
}

// An agent, or the caller `by` a key, whose id the tooltip has.
function speaker(by, at, index) {
  const name = whoIs(by) ?? "";
  const who = h("header", { class: "speaker" }, lane(h("span", { class: "avatar", "aria-hidden": "true" }, initials(name)), index), h("span", { class: "name", dir: "auto", title: by }, name));
  if (at) who.append(timeNode(at));
  return who;
}

function initials(name) {
  const letters = [...new Intl.Segmenter().segment(name.trim())].map(({ segment }) => segment);
  return letters[0]?.toUpperCase() ?? "?";
}

// `context` has `act` (decide, deliver, resume, again, and what the context variables are now), `laneOf`, what was said before by
// whom, and the `prose` of what was seen as it was written.
export function itemNode(item, context) {
  const node = (KINDS[item.kind] ?? KINDS.removed)(item, context);
  // Within the item: what stands out of it is not drawn.
  if (context.act) (node.querySelector(":scope > .speaker") ?? node).append(eventLink(item, context));
  return context.damaged ? h("div", { class: "damaged" }, h("p", { class: "reason" }, icon("cross"), text.notice.damaged), node) : node;
}

// Items one after another, of which what one agent said in a row stands under its name once.
const itemNodes = (items, context) =>
  items.map((item, index) => itemNode(item, { ...context, continued: continues(item, items[index - 1]) }));

const SAID = new Set(["assistant", "call"]);

function continues(item, previous) {
  return SAID.has(item.kind) && SAID.has(previous?.kind) && previous.agent === item.agent && previous.run_id === item.run_id;
}

function eventLink({ seq }, { act }) {
  const label = text.chat.toEvent(seq);
  return h("a", { class: "to-event", href: hrefOf({ view: "timeline", id: act.session(), at: seq }), title: label, "aria-label": label }, icon("clock"));
}

const KINDS = {
  user: (item, { act }) =>
    h("article", { class: "message user", "aria-label": text.chat.you },
      item.role === "user" ? null : h("header", { class: "speaker" }, h("span", { class: "name" }, text.event[item.role] ?? item.role)),
      h("div", { class: "said" },
        item.text || !item.files?.length ? h("div", { class: "bubble" }, h("div", { class: "prose plain", dir: "auto" }, item.text)) : null,
        act?.edit && act.may("run") && item.role === "user" ? button(text.edit.open, { icon: "fork", kind: "ghost small edit", quiet: true, onclick: () => act.edit(item) }) : null),
      filesNode(() => act.session(), item.files ?? []), item.at && timeNode(item.at)),
  assistant: (item, { act, laneOf, continued, prose }) =>
    h("article", { class: `message assistant${item.person ? " person" : ""}`, "aria-label": whoIs(item.agent) },
      continued ? null : saidBy(item, laneOf),
      body(item.text, prose),
      item.partial && h("p", { class: "muted partial" }, text.chat.partial),
      footNode(item, act, continued)),
  call: callNode,
  handoff: ({ from, to, made }) =>
    h("div", { class: `moment ${made ? "handoff" : "quiet"}` }, icon("handoff"), h("span", {}, bdi(made ? text.handoff.made(from, to) : text.handoff.ignored(from, to)))),
  guardrail: ({ stage, name, error }) =>
    moment([(text.guardrail[stage] ?? text.guardrail.tool)(name), error && text.guardrail.failed(error)].filter(Boolean).join(". ")),
  withdrawn: () => moment(text.notice.withdrawn),
  queued: (item, { act }) =>
    h("article", { class: "message user queued", "aria-label": text.chat.queued },
      h("div", { class: "bubble" }, h("div", { class: "prose plain", dir: "auto" }, item.text)), filesNode(() => act.session(), item.files ?? []),
      h("p", { class: "muted row" }, text.chat.queued, act.may("run") && once(text.chat.withdraw, "ghost small", () => act.withdraw(item.run_id)))),
  agent: ({ agent }) => moment(text.notice.agent(agent)),
  takeover: ({ by, note, back }) => moment([(back ? text.takeover.gaveBack : text.takeover.took)(whoIs(by)), note].filter(Boolean).join(": "), { by }),
  forked: ({ from, at }, { act }) =>
    h("div", { class: "moment quiet" }, icon("fork"), sessionLink(from, text.notice.forked(from, at)), h("a", { href: hrefOf({ view: "compare", id: from, other: act.session() }) }, text.forks.sideBySide)),
  imported: ({ by, last }) => moment(text.notice.imported(whoIs(by), last), { sign: "fork", by }),
  asked: ({ from }) => h("div", { class: "moment quiet" }, icon("fork"), sessionLink(from, text.asked.by(from))),
  assigned: ({ by, to, reason }) => moment([text.desk.assigned(whoIs(by), to), reason].filter(Boolean).join(": "), { by }),
  note: ({ by, at, text: note }) =>
    h("article", { class: "message note", "aria-label": text.desk.note },
      speaker(by ?? text.desk.someone, at, 0), h("p", { class: "muted" }, text.desk.note), h("div", { class: "prose plain", dir: "auto" }, note)),
  hold: ({ by, reason }) => moment(text.notice.hold(whoIs(by), reason), { by }),
  redacted: ({ count, reason }) => moment(text.notice.redacted(count, reason)),
  summary: ({ first, last, text: summary }) => h("details", { class: "moment quiet" }, h("summary", {}, text.notice.summary(first, last)), body(summary)),
  takenOut: ({ at, by }) => moment(text.notice.takenOut(at, whoIs(by)), { by }),
  removed: () => moment(text.notice.removed),
  unreadable: () => moment(text.notice.unreadable),
  end: endNode,
};

// What can be done with an answer: copying it, making an eval case of its run, and, by who may, saying what one thinks of it.
function footNode(item, act, continued) {
  const { rating, seq, run_id: run } = item;
  const thumb = (value) => button(text.rate[value], { icon: value === "up" ? "good" : "bad", kind: "ghost small", quiet: true, "aria-pressed": String(rating?.value === value), onclick: () => act.rate(item, value) });
  const copy = act?.rate && copyButton(() => item.text, { label: text.rate.copy, sign: "copy" });
  const acts = act?.rate && act.may("run") && [thumb("up"), thumb("down")];
  const toCase = act?.rate && run && button(text.rate.case, { icon: "flask", kind: "ghost small", quiet: true, onclick: () => act.makeCase(run) });
  const time = continued && item.at && timeNode(item.at);
  if (!copy && !rating && !time) return null;
  return h("div", { class: `rating${rating ? " rated" : ""}`, "data-seq": seq }, time, copy, acts, toCase, rating && h("bdi", { class: "muted", title: rating.by }, [text.rate[rating.value], whoIs(rating.by)].filter(Boolean).join(", "), rating.comment ? `: ${rating.comment}` : ""));
}

function saidBy({ agent, at, person }, laneOf) {
  const who = speaker(agent, at, laneOf(agent));
  if (person) who.append(h("span", { class: "muted inplace" }, text.takeover.inPlace));
  return who;
}

const moment = (words, { sign, by } = {}) => h("div", { class: "moment quiet" }, sign && icon(sign), h("bdi", { title: by }, words));

function callNode(item, { act, laneOf, continued }) {
  const { status } = item;
  const state = h("span", { class: `state ${status}` }, text.tool[status] ?? status);
  const summary = h("summary", {}, icon("tool"), h("code", { class: "call-name", dir: "auto" }, item.name), h("span", { class: "call-brief", dir: "auto" }, brief(item.input)), state);
  if (item.duration !== null && status === "ok") summary.append(h("span", { class: "muted" }, text.tool.duration(item.duration)));
  if (item.attempt > 1) summary.append(h("span", { class: "muted" }, text.tool.attempt(item.attempt)));
  const fold = h("details", { class: "call-fold" }, summary);
  // Folded parts are drawn when they are opened.
  fold.addEventListener("toggle", () => fold.open && fold.childElementCount === 1 && fold.append(callParts(item)), { once: false });
  const node = h("div", { class: `call ${status}` }, fold);
  if (item.files?.length) node.append(filesNode(() => act.session(), item.files));
  if (item.session) node.append(h("p", { class: "decision muted" }, icon("fork"), sessionLink(item.session, text.asked.there(status === "below"))), belowNode(item.session));
  if (status === "outside") node.append(resultNode(item, act));
  else if (status === "approval") node.append(approvalNode(item, act));
  else if (DECIDED.has(item.approval)) node.append(decisionNode(item));
  return continued ? node : h("div", { class: "call-first" }, speaker(item.agent, item.at, laneOf(item.agent)), node);
}

function belowNode(id) {
  const place = h("div", { class: "items below" });
  const show = ({ target }) => target.open && showBelow(place, id, itemNodes);
  return h("details", { ontoggle: show }, h("summary", { class: "there" }, text.asked.said), place);
}

const sessionLink = (id, words) => h("a", { href: hrefOf({ view: "chat", id }), dir: "auto" }, words);

export function brief(input) {
  try {
    const given = membersOfJson(input, MOST_BRIEF);
    return escapedSigns(given.map(([name, value]) => `${name}: ${value.startsWith('"') ? JSON.parse(value) : value}`).join(", ")).slice(0, MOST_BRIEF);
  } catch {
    return escapedSigns(input.slice(0, MOST_BRIEF));
  }
}

function decisionNode({ approval, by, reason, edited }) {
  const denied = approval === "deny";
  const words = denied ? text.approval.denied(whoIs(by)) : edited ? text.approval.edited(whoIs(by)) : text.approval.approved(whoIs(by));
  return h("p", { class: "decision muted" }, icon(denied ? "cross" : "check"), h("bdi", { title: by }, words), reason && h("q", { dir: "auto" }, reason), edited && h("code", { class: "edited", dir: "auto" }, edited));
}

function endNode(item, { act }) {
  const { status, stop, error } = item;
  const bad = status === "failed" || status === "interrupted";
  const words = text.notice[status] ?? text.notice[stop] ?? status;
  const actions = [];
  const { may } = act;
  if (status === "interrupted" && may("run")) actions.push(button(text.notice.resume, { kind: "primary", onclick: () => act.resume(item.run_id) }));
  if (status === "failed" && !item.past && may("run")) actions.push(once(text.notice.again, "", () => act.again()));
  return h("div", { class: `end ${bad && !item.over ? "bad" : "quiet"}` },
    h("p", {}, words),
    error && h("p", { class: "reason", dir: "auto" }, error.message, " ", h("code", {}, error.code)),
    error && h("p", { class: "muted" }, advice[error.code] ?? advice.fallback),
    actions.length > 0 && !item.over && h("div", { class: "row" }, actions));
}

const TIMED = new Set(["user", "assistant", "call", "note"]);

// Where another day begins, and above what is shown first. What has no time of its own belongs to what is before it.
function withDays(items) {
  let shown = null;
  return items.flatMap((item) => {
    const day = TIMED.has(item.kind) && item.at ? new Date(item.at).toDateString() : shown;
    if (day === shown) return [item];
    shown = day;
    return [{ kind: "day", key: `day-${item.key}`, seq: item.seq, at: item.at, version: dayName(item.at) }, item];
  });
}

const dayNode = ({ at }) => h("p", { class: "day" }, h("time", { datetime: at }, dayName(at)));

// A button that does a thing once, unless it failed.
function once(label, kind, work) {
  const control = button(label, {
    kind,
    onclick: async () => {
      control.disabled = true;
      if (!(await work())) control.disabled = false;
    },
  });
  return control;
}

// The message that is being written: renewed once per frame.
class DraftNode {
  constructor() {
    this.node = h("article", { class: "message assistant draft" });
    this.shown = null;
  }

  clear() {
    this.shown = null;
    this.node.replaceChildren();
  }

  show(draft, laneOf) {
    if (draft !== this.shown) {
      this.shown = draft;
      this.prose = new Prose();
      this.wait = h("p", { class: "thinking" }, h("span", { class: "dots", "aria-hidden": "true" }), h("span", {}, bdi(text.chat.thinking(draft.agent))));
      clear(this.node, speaker(draft.agent, null, laneOf(draft.agent)), this.prose.node, this.wait);
      this.length = 0;
      this.calls = 0;
    }
    if (draft.text.length !== this.length) {
      this.length = draft.text.length;
      this.prose.show(draft.text);
      this.wait.hidden = true;
    }
    for (; this.calls < draft.calls.length; this.calls += 1) {
      this.node.append(h("p", { class: "call-soon muted" }, icon("tool"), h("code", { dir: "auto" }, draft.calls[this.calls])));
    }
  }

  // What was drawn of it goes on as the message that it has become, if it is this one.
  takeProse({ kind, run_id, text: said }) {
    const { shown, prose } = this;
    if (kind !== "assistant" || shown?.run_id !== run_id || !prose?.source || !said.startsWith(prose.source)) return undefined;
    this.prose = null;
    return prose;
  }
}

// What was said in the session of an agent that was asked, within the call that asks it. It is to be looked at: what is to be done
// about it is done there.

// `nodesOf` draws items: within these there may be such calls again.
async function showBelow(node, id, nodesOf) {
  try {
    const session = await get(sessionPath(id));
    const state = fold(await readEnd(session));
    const act = { session: () => id, context: () => state.context, may: () => false };
    const laneOf = (agent) => Math.max(state.agents.indexOf(agent), 0);
    // Who asked is above.
    const items = state.items.filter(({ kind }) => kind !== "asked");
    clear(node, session.seq > LATEST && h("p", { class: "muted" }, text.asked.part(LATEST)), nodesOf(items, { act, laneOf }));
  } catch (error) {
    clear(node, h("p", { class: "reason" }, error.message));
  }
}

// What has just happened in a conversation, said aloud.

// For screen readers: each thing once, when it is whole.
export function announce(app, items, event) {
  for (const item of items) {
    if (item.kind === "assistant") app.say(text.chat.says(whoIs(item.agent), item.text.slice(0, 1000)));
    else if (item.kind === "takeover") app.say((item.back ? text.takeover.gaveBack : text.takeover.took)(whoIs(item.by)));
    else if (item.kind === "handoff" && item.made) app.say(text.handoff.made(item.from, item.to));
    else if (item.kind === "end") app.say(text.notice[item.status] ?? text.notice[item.stop] ?? item.status);
  }
  if (event.type === "approval.requested" && event.data) app.say(text.approval.needed(event.data.name));
  if (event.type !== "run.waiting") return;
  for (const { name, reason } of event.data?.pending ?? []) {
    if (reason === "tool_results") app.say(text.outside.needed(name));
    if (reason === "person") app.say(text.takeover.needed);
    if (reason === "session") app.say(text.asked.needed(name));
  }
}

// The log: the latest items of a conversation, and earlier ones as the reader scrolls up to them.

const PAGE = 80;
const NEAR_PX = 80;

export class Log {
  constructor(act) {
    this.act = act;
    this.nodes = new Map();
    this.first = null;
    this.state = null;
    this.draft = new DraftNode();
    this.draft.node.hidden = true;
    this.earlier = button("", { kind: "ghost earlier", hidden: true, onclick: () => this.back() });
    this.items = h("div", { class: "items" });
    this.empty = h("p", { class: "muted empty", hidden: true }, text.chat.empty);
    // Not live: what is said is read aloud once it is complete, by the announcer.
    this.node = h("div", { class: "log", role: "log", "aria-live": "off", "aria-label": text.chat.log, tabindex: 0 }, h("div", { class: "column" }, this.earlier, this.empty, this.items, this.draft.node));
    this.latest = button(text.chat.latest, { icon: "down", kind: "small latest", hidden: true, onclick: () => this.toEnd() });
    this.node.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.sentinel = new IntersectionObserver((seen) => seen.some((entry) => entry.isIntersecting) && this.back(), { root: this.node, rootMargin: "400px 0px 0px 0px" });
    this.sentinel.observe(this.earlier);
    this.follows = true;
    // The height of what was never in sight is a guess until it is.
    this.grown = new ResizeObserver(() => this.follows && this.toEnd());
    this.grown.observe(this.items);
    this.grown.observe(this.draft.node);
    this.grown.observe(this.node);
  }

  close() {
    this.sentinel.disconnect();
    this.grown.disconnect();
  }

  laneOf = (agent) => Math.max(this.state.agents.indexOf(agent), 0);

  render(state, draft, settled, damaged = new Map()) {
    const held = this.held ?? (this.follows ? null : this.hold());
    this.held = null;
    if (this.state?.isPart && !state.isPart) this.first = this.placeIn(state.items);
    this.state = state;
    this.damaged = damaged;
    this.begun = null;
    const { items } = state;
    if (this.first === null || this.first > items.length) this.first = Math.max(items.length - PAGE, 0);
    if (this.follows && items.length - this.first > 3 * PAGE) this.first = items.length - PAGE;
    this.ended = this.draft.shown === draft ? null : this.draft;
    this.reconcile(items.slice(this.first), items[this.first - 1]);
    this.ended = null;
    this.earlier.hidden = this.first === 0;
    this.earlier.lastChild.textContent = text.chat.earlier(this.first);
    this.draft.node.hidden = draft === null;
    if (draft) this.draft.show(draft, this.laneOf);
    else this.draft.clear();
    this.empty.hidden = !settled || items.length > 0 || draft !== null;
    if (this.follows) this.toEnd();
    else this.latest.hidden = false;
    if (held) this.restore(held);
  }

  // Where what is shown of the end of a session begins in the whole of it.
  placeIn(items) {
    const key = this.state.items[this.first]?.key;
    const place = items.findLastIndex((item) => item.key === key);
    return place < 0 ? null : place;
  }

  // The item that a reader who scrolled up is looking at, and its place. Changes elsewhere do not move it.
  hold() {
    const edge = this.node.getBoundingClientRect().top;
    const nodes = [...this.items.children];
    if (!this.draft.node.hidden) nodes.push(this.draft.node);
    let [low, high] = [0, nodes.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (nodes[middle].getBoundingClientRect().bottom > edge) high = middle;
      else low = middle + 1;
    }
    const node = nodes[low];
    return node ? { key: node.dataset.key ?? null, top: node.getBoundingClientRect().top } : null;
  }

  restore({ key, top }) {
    const node = key !== null ? this.nodes.get(key)?.node : this.draft.node.hidden ? this.begun : this.draft.node;
    if (!node) return;
    // Its height is not a guess, or what is looked at within it would not be where it was.
    node.style.contentVisibility = "visible";
    const off = () => node.getBoundingClientRect().top - top;
    this.node.scrollTop += off();
    // A long answer that has just ended is guessed to be short, and leaves no room to scroll: then its height is needed, too.
    for (let below = this.items.lastChild; below && below !== node && Math.abs(off()) > 1; below = below.previousSibling) {
      below.style.contentVisibility = "visible";
      this.node.scrollTop += off();
    }
  }

  reconcile(said, before) {
    const items = withDays(said);
    const wanted = new Set(items.map((item) => item.key));
    for (const [key, { node }] of this.nodes) {
      if (!wanted.has(key)) {
        node.remove();
        this.nodes.delete(key);
      }
    }
    let previous = before;
    let place = this.items.firstChild;
    for (const item of items) {
      const old = this.nodes.get(item.key)?.node;
      const node = this.current(item, previous);
      if (old === place && old !== undefined) place = node;
      if (node === place) place = place.nextSibling;
      else this.items.insertBefore(node, place);
      previous = item;
    }
  }

  current(item, previous) {
    const kept = this.nodes.get(item.key);
    const damaged = this.damaged.has(item.seq) || this.damaged.has(item.resultSeq);
    const continued = continues(item, previous);
    const version = `${item.version} ${damaged} ${continued} ${item.agent && this.laneOf(item.agent)}`;
    if (kept?.version === version) return kept.node;
    const prose = kept ? undefined : this.ended?.takeProse(item);
    const node = item.kind === "day" ? dayNode(item) : itemNode(item, { act: this.act, laneOf: this.laneOf, continued, damaged, prose });
    node.dataset.key = item.key;
    if (!kept) this.begun ??= node;
    if (kept) {
      keepOpen(kept.node, node);
      const focused = kept.node.contains(document.activeElement) && document.activeElement;
      kept.node.replaceWith(node);
      const thumb = focused && focused.closest(".rating") && node.querySelector(".rating button");
      if (focused) (thumb || this.node).focus({ preventScroll: true });
    }
    this.nodes.set(item.key, { node, version });
    return node;
  }

  back() {
    if (!this.first || !this.state) return;
    const below = this.node.scrollHeight - this.node.scrollTop;
    this.follows = false;
    this.first = Math.max(this.first - PAGE, 0);
    const { items } = this.state;
    this.reconcile(items.slice(this.first), items[this.first - 1]);
    this.earlier.hidden = this.first === 0;
    this.earlier.lastChild.textContent = text.chat.earlier(this.first);
    this.node.scrollTop = this.node.scrollHeight - below;
  }

  // Bring what an event said into sight, and say which it is. Without such an item, what came last before it.
  point(seq) {
    const { items } = this.state;
    const exact = items.findIndex((item) => item.seq === seq || item.resultSeq === seq);
    const index = exact >= 0 ? exact : items.findLastIndex((item) => item.seq <= seq);
    if (index < 0) return;
    this.follows = false;
    if (index < this.first) {
      this.first = Math.max(index - PAGE / 2, 0);
      this.reconcile(items.slice(this.first), items[this.first - 1]);
      this.earlier.hidden = this.first === 0;
      this.earlier.lastChild.textContent = text.chat.earlier(this.first);
    }
    const { node } = this.nodes.get(items[index].key);
    this.items.querySelector(".pointed")?.classList.remove("pointed");
    node.classList.add("pointed");
    node.style.contentVisibility = "visible";
    node.scrollIntoView({ block: "center" });
    node.querySelector(".to-event")?.focus({ preventScroll: true });
  }

  scrolled() {
    const { scrollTop, clientHeight, scrollHeight } = this.node;
    this.follows = scrollHeight - scrollTop - clientHeight < NEAR_PX;
    if (this.follows) this.latest.hidden = true;
  }

  toEnd() {
    this.follows = true;
    this.latest.hidden = true;
    this.node.scrollTop = this.node.scrollHeight;
  }

  // Nothing of what was shown may be shown still.
  forget() {
    this.held = this.follows ? null : this.hold();
    this.nodes.clear();
    this.items.replaceChildren();
    this.draft.clear();
  }

  // All of it, as paper has no end: until then only the latest items are there.
  all() {
    if (!this.state) return;
    this.first = 0;
    this.reconcile(this.state.items, undefined);
    this.earlier.hidden = true;
    finishAll();
  }
}

// A conversation below a call is loaded again, with its own.
function keepOpen(from, to) {
  const before = from.querySelectorAll("details:not(.below details)");
  to.querySelectorAll("details:not(.below details)").forEach((fold, index) => before[index]?.open && (fold.open = true));
}
