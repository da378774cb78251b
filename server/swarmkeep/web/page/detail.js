// One event in full: its content, the state after it, its request, comparison and redaction.

import { get, getText, may, post, sessionPath } from "./api.js";
import { filesNode, filesOf, textOf } from "./content.js";
import { changes, titleOf, whoIs } from "./descriptions.js";
import { bdi, button, clear, copyButton, dayAndTime, h, pretty } from "./dom.js";
import { apply, fold, initial } from "./fold.js";
import { escapedSigns } from "./json.js";
import { body } from "./log.js";
import { RedactDialog } from "./redact.js";
import { go, hrefOf, replaceRoute } from "./route.js";
import { runTable } from "./spans.js";
import { text } from "./text.js";
import { viewText } from "./viewtext.js";

// The state at any event: one step on from the last one, or folded again from the beginning.

class Stepper {
  constructor() {
    this.reset();
  }

  reset() {
    this.state = initial();
    this.done = 0;
  }

  // What the context was before this event, and the state after it. The state is there until the next step.
  at(events, seq) {
    if (seq <= this.done) this.reset();
    while (this.done < seq - 1) this.take(events);
    const before = this.state.context;
    this.take(events);
    return { before, after: this.state };
  }

  take(events) {
    apply(this.state, events[this.done]);
    this.done += 1;
  }
}

// The exact request that a model was sent: to be read, and to be sent again by hand.

const HEREDOC_END = "END_OF_REQUEST";

function requestNode(session, seq) {
  const place = h("div", { class: "request" }, h("p", { class: "muted", role: "status" }, text.timeline.loading));
  getText(sessionPath(session, `/events/${seq}/request`)).then(
    (body) => clear(place, ...shownRequest(body)),
    (error) => clear(place, h("p", { class: "reason" }, error.message)),
  );
  return place;
}

function shownRequest(body) {
  const block = (value) => h("pre", { class: "code", tabindex: 0, dir: "ltr" }, value);
  const curl = h("details", { class: "fold" }, h("summary", {}, text.timeline.asCurl));
  curl.addEventListener("toggle", () => {
    if (!curl.open || curl.childElementCount > 1) return;
    const command = curlOf(body);
    curl.append(h("p", { class: "muted" }, text.timeline.asCurlHint), h("div", { class: "row" }, copyButton(() => command)), block(command));
  });
  return [h("div", { class: "row" }, h("p", { class: "muted grow" }, text.timeline.requestBytes(new Blob([body]).size)), copyButton(() => body)), block(pretty(body)), curl];
}

// For a shell. The key comes from its environment, and the body by a here-document: a long one is too long for an argument.
// A JSON text has no line breaks in it, so that nothing in it can end the document.
function curlOf(body) {
  // In a terminal some signs do more than to stand there.
  const safe = escapedSigns(body.replaceAll(/\r?\n/g, " "));
  return [
    'curl "${OPENAI_BASE_URL:-https://api.openai.com/v1}/chat/completions" \\',
    '  -H "Authorization: Bearer $OPENAI_API_KEY" \\',
    '  -H "Content-Type: application/json" \\',
    `  --data-binary @- <<'${HEREDOC_END}'`,
    safe,
    HEREDOC_END,
    "",
  ].join("\n");
}

// What lies between two events of a session: the state, the messages and the runs, before and after.

const diffText = viewText.diff;

// A button, and the panel that it opens: the state at two events, side by side. `from` is the event to begin at, if the address named
// one; it is looked at at once then.
function eventDiff(id, at, last, { from, as }) {
  const other = h("input", { class: "field", type: "number", min: 0, max: last, value: String(from ?? Math.max(at - 1, 0)), required: true, "aria-label": diffText.other });
  const found = h("div", { class: "diff", role: "status" });
  const show = async () => {
    const [before, after] = [Number(other.value), at].sort((one, two) => one - two);
    clear(found, h("p", { class: "muted" }, text.timeline.loading));
    try {
      clear(found, diffNodes(await get(sessionPath(id, `/diff?before=${before}&after=${after}`))));
    } catch (error) {
      clear(found, h("p", { class: "reason" }, error.message));
    }
  };
  const compare = () => {
    if (!other.checkValidity()) return;
    replaceRoute({ view: "timeline", id, at, from: Number(other.value), as });
    show();
  };
  const submit = (event) => {
    event.preventDefault();
    compare();
  };
  const panel = h("section", { class: "diff-panel", "aria-label": diffText.title, hidden: from === null },
    h("form", { class: "row", onsubmit: submit }, h("label", { class: "row" }, h("span", {}, diffText.label), other), button(diffText.show, { type: "submit" })), found);
  const control = button(diffText.open, { icon: "compare", title: diffText.title, "aria-label": diffText.title, "aria-expanded": String(from !== null), onclick: () => {
    panel.hidden = !panel.hidden;
    control.setAttribute("aria-expanded", String(!panel.hidden));
    if (panel.hidden) return replaceRoute({ view: "timeline", id, at, as });
    other.focus();
    return compare();
  } });
  if (from !== null) show();
  return { control, panel };
}

function diffNodes({ before, after, changes: places, messages, removed, runs }) {
  const isSame = !places.length && !messages.length && !removed.length && !runs.length;
  return [
    h("h3", {}, diffText.between(before, after)),
    isSame ? h("p", { class: "muted" }, diffText.same) : null,
    places.length ? placeTable(places) : null,
    messages.length ? [h("h3", {}, diffText.messages(messages.length)), h("ul", { class: "diff-messages" }, messages.map(messageLine))] : null,
    removed.length ? h("p", {}, diffText.removed(removed.join(", "))) : null,
    runs.length ? h("ul", {}, runs.map((run) => h("li", {}, h("code", {}, run.id), " ", diffText.run(run.before, run.after)))) : null,
  ].flat().filter(Boolean);
}

const valueCell = (value) => h("td", {}, value === undefined ? h("span", { class: "muted" }, text.timeline.nothing) : h("code", { dir: "auto" }, JSON.stringify(value)));

const placeTable = (places) =>
  h("div", { class: "changes" }, h("div", { class: "wide", tabindex: 0, role: "group", "aria-label": diffText.places },
    h("table", {}, h("thead", {}, h("tr", {}, [diffText.place, text.timeline.before, text.timeline.now].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, places.map(({ path, before, after }) => h("tr", {}, h("th", { scope: "row", dir: "auto" }, path || "/"), valueCell(before), valueCell(after)))))));

function messageLine({ seq, role, content, tool_calls: calls }) {
  const said = [textOf(content), ...(calls ?? []).map((call) => `${call.function?.name} ${call.function?.arguments}`)].filter(Boolean).join(" · ");
  return h("li", {}, h("span", { class: "muted" }, `#${seq} `), h("b", {}, text.event[role] ?? role), " ", h("span", { dir: "auto" }, said));
}

// One event in full, what it changed, the request behind it, and the state that it led to.

const t = text.timeline;

export class Detail {
  constructor(app, session) {
    this.app = app;
    this.id = session.id;
    this.session = session;
    this.redaction = new RedactDialog(app, session);
    this.steps = new Stepper();
    this.node = h("section", { class: "detail scroll", "aria-label": t.detail, tabindex: 0 });
  }

  close() {
    this.redaction.node.close();
  }

  clear() {
    this.steps.reset();
    clear(this.node);
    return null;
  }

  // `runs` are those of the session; `from` is the event that this one is to be compared with, if the address names one, and
  // `as` the shape of the list, which links leave as it is.
  show(events, seq, { runs = null, from = null, as = null } = {}) {
    const event = events[seq - 1];
    if (!event) return;
    const { before, after } = this.steps.at(events, seq);
    const run = runs?.byId.get(event.run_id);
    const wasOpen = this.node.querySelector(".fold.of-run")?.open;
    const focused = this.node.contains(document.activeElement);
    const diff = eventDiff(this.id, seq, events.length, { from, as });
    const sides = inAndOut(event, after, this.session.state);
    clear(this.node,
      h("header", { class: "detail-head" }, h("h2", {}, titleOf(event)), h("span", { class: "muted" }, `#${seq}`)),
      h("div", { class: "row" }, may("run") && button(t.fork, { icon: "fork", title: t.forkHint, onclick: () => this.fork(seq) }), h("a", { class: "button ghost", href: hrefOf({ view: "chat", id: this.id, at: seq }) }, t.chat), diff.control,
        may("write") && button(viewText.redact.open, { kind: "danger", onclick: () => this.redaction.open(seq, chosenWords(this.node)) })),
      diff.panel,
      sides,
      facts(event, events, after),
      readable(event, this.id, sides !== null),
      changesNode(before, after.context),
      run && makeFold(viewText.spans.table(run.number), () => runTable(run, this.id, as), { open: wasOpen, kind: "of-run" }),
      this.request(event),
      stateNode(after),
      makeFold(t.raw, () => code(JSON.stringify(event, null, 2))));
    this.node.scrollTop = 0;
    if (focused) this.node.focus();
  }

  // An event of the session of an asked agent: what took time there.
  showBelow({ span, session, events }) {
    const index = events.findIndex(({ seq }) => seq === span.seq);
    const event = events[index];
    if (!event) return;
    const state = fold(events);
    const after = fold(events, index + 1);
    const sides = inAndOut(event, after, state);
    const focused = this.node.contains(document.activeElement);
    clear(this.node,
      h("header", { class: "detail-head" }, h("h2", {}, titleOf(event)), h("span", { class: "muted" }, `#${event.seq}`)),
      h("p", { class: "muted", dir: "auto" }, text.asked.in(event.agent, session)),
      h("div", { class: "row" }, h("a", { class: "button", href: hrefOf({ view: "timeline", id: session, at: event.seq }) }, text.asked.timeline), h("a", { class: "button ghost", href: hrefOf({ view: "chat", id: session, at: event.seq }) }, t.chat)),
      sides,
      facts(event, events, after),
      readable(event, session, sides !== null));
    this.node.scrollTop = 0;
    if (focused) this.node.focus();
  }

  request({ data, seq }) {
    return data?.completion?.request ? makeFold(t.request, () => requestNode(this.id, seq)) : null;
  }

  async fork(seq) {
    try {
      const made = await post(sessionPath(this.id, "/fork"), { at: seq });
      this.app.refresh();
      go({ view: "chat", id: made.id });
    } catch (error) {
      this.app.fail(error);
    }
  }
}

// What is marked in a node, if that may be what is to be removed.
function chosenWords(node) {
  const chosen = getSelection();
  const words = node.contains(chosen?.anchorNode) ? String(chosen).trim() : "";
  return words.length <= MOST_CHOSEN ? words : "";
}

const MOST_CHOSEN = 200;

const code = (value) => h("pre", { class: "code", tabindex: 0, dir: "auto" }, value);
const table = (pairs) => h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => [h("dt", {}, name), h("dd", { dir: "auto" }, value)]));

function makeFold(title, make, { open = false, kind = "" } = {}) {
  const node = h("details", { class: `fold ${kind}`, open }, h("summary", {}, title));
  const fill = () => node.open && node.childElementCount === 1 && node.append(make());
  node.addEventListener("toggle", fill);
  fill();
  return node;
}

function facts({ agent, run_id: run, at, hash, data }, events, after) {
  const tokens = data?.completion?.usage;
  return table([
    [t.at, dayAndTime(at)],
    [t.agent, agent],
    ...people({ run_id: run, data }, events, after),
    [t.model, data?.completion?.model],
    [t.took, durationOf(data)],
    [t.first, data?.completion?.time_to_first_token_ms && text.tool.duration(data.completion.time_to_first_token_ms)],
    [t.finish, data?.completion?.finish_reason],
    [t.usage, tokens && `${tokens.prompt_tokens ?? 0} + ${tokens.completion_tokens ?? 0} = ${tokens.total_tokens ?? 0}`],
    [t.run, run],
    [t.hash, h("code", { class: "hash" }, hash)],
  ]);
}

// The caller who began the run, the one who decided on the event's call, or else the one who caused the event.
function people({ run_id: run, data }, events, after) {
  const call = after.calls.get(data?.tool_call_id ?? data?.message?.tool_call_id);
  return [
    [t.startedBy, run && starterOf(run, events)],
    call?.approval === "approve" ? [t.approvedBy, person(call.by)] : [t.deniedBy, call?.approval === "deny" ? person(call.by) : null],
    [t.by, run ? null : person(data?.by)],
  ];
}

function starterOf(run, events) {
  const begun = events.find((event) => event.run_id === run && (event.type === "run.queued" || event.type === "run.started"));
  return person(begun?.data?.by);
}

const person = (by) => whoIs(by) && h("span", { title: by }, whoIs(by));

function durationOf(data) {
  const ms = data?.completion?.duration_ms ?? data?.tool?.duration_ms;
  return ms === undefined || ms === null ? null : text.tool.duration(ms);
}

// `isBeside` says that what a call was given and what came back are shown already.
function readable(event, session, isBeside) {
  try {
    return content(event, session, isBeside);
  } catch {
    return h("p", { class: "muted" }, text.notice.unreadable);
  }
}

function content({ data }, session, isBeside) {
  if (data === null) return h("p", { class: "muted" }, text.notice.removed);
  const parts = [];
  const message = data.message;
  if (message) {
    const said = textOf(message.content);
    if (said && !(isBeside && message.role === "tool")) parts.push(message.role === "assistant" ? body(said) : code(message.role === "tool" ? pretty(said) : said));
    parts.push(filesNode(() => session, [...filesOf(message.content), ...filesOf(data.tool?.files)]));
    for (const call of message.tool_calls ?? []) parts.push(h("h3", {}, h("code", {}, call.function?.name)), code(pretty(call.function?.arguments ?? "")));
  }
  if (!isBeside && typeof data.arguments === "string") parts.push(h("h3", {}, h("code", {}, data.name)), code(pretty(data.arguments)));
  if (data.error) parts.push(h("p", { class: "reason", dir: "auto" }, data.error.message, " ", h("code", {}, data.error.code)));
  for (const queued of data.messages ?? []) parts.push(filesNode(() => session, filesOf(queued.content)));
  return parts.some(Boolean) ? h("div", { class: "content" }, parts) : null;
}

// A call's arguments and what came back, beside each other, at each event of it. `state` is that of now.
function inAndOut({ type, data }, after, state) {
  const id = data?.tool_call_id ?? (data?.message?.role === "tool" ? data.message.tool_call_id : undefined);
  const then = id === undefined || type === "context.updated" ? undefined : after.calls.get(id);
  if (!then) return null;
  // A later call may have the same id.
  const now = state.calls.get(id);
  const call = now?.seq === then.seq ? now : then;
  const side = (name, value) => h("section", {}, h("h3", {}, name), code(value));
  return h("div", { class: "in-out" }, side(text.tool.input, pretty(call.edited ?? call.input)), side(text.tool.output, call.output === null ? text.tool[call.status] ?? call.status : pretty(call.output)),
    call.session && h("p", { class: "whole" }, h("a", { href: hrefOf({ view: "timeline", id: call.session }) }, text.asked.timeline)));
}

function changesNode(before, after) {
  const found = changes(before, after);
  if (!found.length) return null;
  const cell = (value) => h("td", {}, value === undefined ? h("span", { class: "muted" }, t.nothing) : h("code", { dir: "auto" }, JSON.stringify(value)));
  return h("div", { class: "changes" }, h("h3", {}, t.changes),
    h("div", { class: "wide", tabindex: 0, role: "group", "aria-label": t.changes }, h("table", {}, h("thead", {}, h("tr", {}, [t.key, t.before, t.now].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, found.map(({ name, before: old, after: now, how }) => h("tr", { class: how }, h("th", { scope: "row" }, bdi(name)), cell(old), cell(now)))))));
}

function stateNode(state) {
  return h("div", { class: "state-after" }, h("h3", {}, t.after),
    table([
      [t.agent, state.agent],
      [t.status, text.status[state.status]],
      [t.messages, String(state.messages)],
      [t.usage, state.usage.total.toLocaleString("en")],
    ]),
    makeFold(t.context, () => code(JSON.stringify(state.context, null, 2)), { open: Object.keys(state.context).length > 0 }));
}
