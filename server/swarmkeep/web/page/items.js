// One item of a conversation as an element: who said it, what it was, and what can be done about it.

import { bdi, button, clear, dayAndTime, h, icon, timeOf } from "./dom.js";
import { markdown, plain } from "./markdown.js";
import { whoIs } from "./descriptions.js";
import { approvalNode, callParts, resultNode } from "./pending.js";
import { advice, text } from "./text.js";

// Longer texts are shown plain: Markdown of that size is no message any more.
const LONGEST_MARKDOWN = 100_000;

export function body(source) {
  const node = h("div", { class: "prose", dir: "auto" });
  node.append(source.length > LONGEST_MARKDOWN ? plain(source) : markdown(source));
  return node;
}

export function speaker(name, at, index) {
  const who = h("header", { class: "speaker" }, h("span", { class: `avatar lane-${index}`, "aria-hidden": "true" }, initials(name)), h("span", { class: "name", dir: "auto" }, name));
  if (at) who.append(h("time", { datetime: at, title: dayAndTime(at) }, timeOf(at)));
  return who;
}

function initials(name) {
  const letters = [...new Intl.Segmenter().segment(name.trim())].map(({ segment }) => segment);
  return letters[0]?.toUpperCase() ?? "?";
}

// `context` has `act` (decide, deliver, resume, again, and what the context variables are now), `laneOf` and what was said
// before by whom.
export function itemNode(item, context) {
  return (KINDS[item.kind] ?? KINDS.removed)(item, context);
}

const KINDS = {
  user: (item) =>
    h("article", { class: "message user", "aria-label": text.chat.you },
      item.role === "user" ? null : h("header", { class: "speaker" }, h("span", { class: "name" }, text.event[item.role] ?? item.role)),
      h("div", { class: "bubble" }, h("div", { class: "prose plain", dir: "auto" }, item.text))),
  assistant: (item, { laneOf, continued }) =>
    h("article", { class: "message assistant", "aria-label": item.agent },
      continued ? null : speaker(item.agent, item.at, laneOf(item.agent)),
      body(item.text),
      item.partial && h("p", { class: "muted partial" }, text.chat.partial)),
  call: callNode,
  handoff: ({ from, to, made }) =>
    h("div", { class: `moment ${made ? "handoff" : "quiet"}` }, icon("handoff"), h("span", {}, bdi(made ? text.handoff.made(from, to) : text.handoff.ignored(from, to)))),
  queued: (item) =>
    h("article", { class: "message user queued", "aria-label": text.chat.queued },
      h("div", { class: "bubble" }, h("div", { class: "prose plain", dir: "auto" }, item.text)), h("p", { class: "muted" }, text.chat.queued)),
  agent: ({ agent }) => moment(text.notice.agent(agent)),
  forked: ({ from, at }) => moment(text.notice.forked(from, at), "fork"),
  imported: ({ by, last }) => moment(text.notice.imported(whoIs(by), last), "fork"),
  redacted: ({ count, reason }) => moment(text.notice.redacted(count, reason)),
  removed: () => moment(text.notice.removed),
  unreadable: () => moment(text.notice.unreadable),
  end: endNode,
};

const moment = (words, sign = null) => h("div", { class: "moment quiet" }, sign && icon(sign), bdi(words));

function callNode(item, { act, laneOf, continued }) {
  const { status } = item;
  const state = h("span", { class: `state ${status}` }, text.tool[status] ?? status);
  const summary = h("summary", {}, icon("tool"), h("code", { class: "call-name", dir: "auto" }, item.name), h("span", { class: "call-brief", dir: "auto" }, brief(item.input)), state);
  if (item.duration !== null && status === "ok") summary.append(h("span", { class: "muted" }, text.tool.duration(item.duration)));
  if (item.attempt > 1) summary.append(h("span", { class: "muted" }, text.tool.attempt(item.attempt)));
  const fold = h("details", { class: "call-fold" }, summary);
  // What is folded costs nothing until somebody looks.
  fold.addEventListener("toggle", () => fold.open && fold.childElementCount === 1 && fold.append(callParts(item)), { once: false });
  const node = h("div", { class: `call ${status}` }, fold);
  if (status === "outside") node.append(resultNode(item, act));
  else if (status === "approval") node.append(approvalNode(item, act));
  else if (item.approval) node.append(decisionNode(item));
  return continued ? node : h("div", { class: "call-first" }, speaker(item.agent, item.at, laneOf(item.agent)), node);
}

function brief(input) {
  try {
    const given = Object.entries(JSON.parse(input));
    return given.map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ").slice(0, 120);
  } catch {
    return input.slice(0, 120);
  }
}

function decisionNode({ approval, by, reason }) {
  const denied = approval === "deny";
  const words = denied ? text.approval.denied(whoIs(by)) : text.approval.approved(whoIs(by));
  return h("p", { class: "decision muted" }, icon(denied ? "cross" : "check"), h("span", {}, bdi(words)), reason && h("q", { dir: "auto" }, reason));
}

function endNode(item, { act }) {
  const { status, stop, error } = item;
  const bad = status === "failed" || status === "interrupted";
  const words = text.notice[status] ?? text.notice[stop] ?? status;
  const actions = [];
  if (status === "interrupted" && !item.over) actions.push(button(text.notice.resume, { kind: "primary", onclick: () => act.resume(item.run_id) }));
  if (status === "failed") actions.push(button(text.notice.again, { onclick: () => act.again(item) }));
  return h("div", { class: `end ${bad && !item.over ? "bad" : "quiet"}` },
    h("p", {}, words),
    error && h("p", { class: "reason", dir: "auto" }, error.message, " ", h("code", {}, error.code)),
    error && h("p", { class: "muted" }, advice[error.code] ?? advice.fallback),
    actions.length > 0 && !item.over && h("div", { class: "row" }, actions));
}

// The message that is being written: renewed once per frame.
export class DraftNode {
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
      this.prose = h("div", { class: "prose", dir: "auto" });
      this.wait = h("p", { class: "thinking" }, h("span", { class: "dots", "aria-hidden": "true" }), h("span", {}, bdi(text.chat.thinking(draft.agent))));
      clear(this.node, speaker(draft.agent, null, laneOf(draft.agent)), this.prose, this.wait);
      this.length = 0;
      this.calls = 0;
    }
    if (draft.text.length !== this.length) {
      this.length = draft.text.length;
      clear(this.prose, this.length > 20_000 ? plain(draft.text) : markdown(draft.text));
      this.wait.hidden = true;
    }
    for (; this.calls < draft.calls.length; this.calls += 1) {
      this.node.append(h("p", { class: "call-soon muted" }, icon("tool"), h("code", { dir: "auto" }, draft.calls[this.calls])));
    }
  }
}
