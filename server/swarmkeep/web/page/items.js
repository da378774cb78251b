// One item of a conversation as an element: who said it, what it was, and what can be done about it.

import { bdi, button, clear, dayAndTime, h, icon, lane, timeOf } from "./dom.js";
import { filesNode } from "./files.js";
import { escapedSigns, membersOfJson } from "./jsontext.js";
import { whoIs } from "./descriptions.js";
import { approvalNode, callParts, resultNode } from "./pending.js";
import { Prose } from "./prose.js";
import { hrefOf } from "./route.js";
import { advice, text } from "./text.js";

const MOST_BRIEF = 120;
// An approval may also have been asked for, and nobody has given it.
const DECIDED = new Set(["approve", "deny"]);

export function body(source, prose = new Prose()) {
  prose.finish(source);
  return prose.node;
}

function speaker(name, at, index) {
  const who = h("header", { class: "speaker" }, lane(h("span", { class: "avatar", "aria-hidden": "true" }, initials(name)), index), h("span", { class: "name", dir: "auto" }, name));
  if (at) who.append(h("time", { datetime: at, title: dayAndTime(at) }, timeOf(at)));
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

export function continues(item, previous) {
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
      filesNode(() => act.session(), item.files ?? [])),
  assistant: (item, { laneOf, continued, prose }) =>
    h("article", { class: `message assistant${item.person ? " person" : ""}`, "aria-label": whoIs(item.agent) },
      continued ? null : saidBy(item, laneOf),
      body(item.text, prose),
      item.partial && h("p", { class: "muted partial" }, text.chat.partial)),
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
  takeover: ({ by, note, back }) => moment([(back ? text.takeover.gaveBack : text.takeover.took)(whoIs(by)), note].filter(Boolean).join(": ")),
  forked: ({ from, at }, { act }) =>
    h("div", { class: "moment quiet" }, icon("fork"), sessionLink(from, text.notice.forked(from, at)), h("a", { href: hrefOf({ view: "compare", id: from, other: act.session() }) }, text.forks.sideBySide)),
  imported: ({ by, last }) => moment(text.notice.imported(whoIs(by), last), "fork"),
  asked: ({ from }) => h("div", { class: "moment quiet" }, icon("fork"), sessionLink(from, text.asked.by(from))),
  redacted: ({ count, reason }) => moment(text.notice.redacted(count, reason)),
  summary: ({ first, last, text: summary }) => h("details", { class: "moment quiet" }, h("summary", {}, text.notice.summary(first, last)), body(summary)),
  takenOut: ({ at, by }) => moment(text.notice.takenOut(at, whoIs(by))),
  removed: () => moment(text.notice.removed),
  unreadable: () => moment(text.notice.unreadable),
  end: endNode,
};

function saidBy({ agent, at, person }, laneOf) {
  const who = speaker(whoIs(agent) ?? "", at, laneOf(agent));
  if (person) who.append(h("span", { class: "muted inplace" }, text.takeover.inPlace));
  return who;
}

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
  if (item.files?.length) node.append(filesNode(() => act.session(), item.files));
  if (item.session) node.append(h("p", { class: "decision muted" }, icon("fork"), sessionLink(item.session, text.asked.there(status === "below"))), belowNode(item.session));
  if (status === "outside") node.append(resultNode(item, act));
  else if (status === "approval") node.append(approvalNode(item, act));
  else if (DECIDED.has(item.approval)) node.append(decisionNode(item));
  return continued ? node : h("div", { class: "call-first" }, speaker(item.agent, item.at, laneOf(item.agent)), node);
}

function belowNode(id) {
  const place = h("div", { class: "items below" });
  const show = async ({ target }) => target.open && (await import("./below.js")).showBelow(place, id, itemNodes);
  return h("details", { ontoggle: show }, h("summary", { class: "there" }, text.asked.said), place);
}

const sessionLink = (id, words) => h("a", { href: hrefOf({ view: "chat", id }), dir: "auto" }, words);

function brief(input) {
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
  return h("p", { class: "decision muted" }, icon(denied ? "cross" : "check"), h("span", {}, bdi(words)), reason && h("q", { dir: "auto" }, reason), edited && h("code", { class: "edited", dir: "auto" }, edited));
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
