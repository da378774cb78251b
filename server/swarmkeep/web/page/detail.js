// One event in full, what it changed, the request behind it, and the state that it led to.

import { post, sessionPath } from "./api.js";
import { bdi, button, clear, dayAndTime, h, pretty } from "./dom.js";
import { body } from "./items.js";
import { filesNode, filesOf } from "./files.js";
import { textOf } from "./content.js";
import { Stepper } from "./stepper.js";
import { may } from "./me.js";
import { go, hrefOf } from "./route.js";
import { requestNode } from "./request.js";
import { runTable } from "./runtable.js";
import { changes, titleOf, whoIs } from "./descriptions.js";
import { eventDiff } from "./eventdiff.js";
import { RedactDialog } from "./redaction.js";
import { text } from "./text.js";

const t = text.timeline;

export class Detail {
  constructor(app, session) {
    this.app = app;
    this.id = session.id;
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
    clear(this.node,
      h("header", { class: "detail-head" }, h("h2", {}, titleOf(event)), h("span", { class: "muted" }, `#${seq}`)),
      h("div", { class: "row" }, may("run") && button(t.fork, { icon: "fork", title: t.forkHint, onclick: () => this.fork(seq) }), h("a", { class: "button ghost", href: hrefOf({ view: "chat", id: this.id, at: seq }) }, t.chat),
        may("write") && button(text.redact.open, { kind: "danger", onclick: () => this.redaction.open(seq) })),
      facts(event, events, after),
      readable(event, this.id),
      changesNode(before, after.context),
      run && makeFold(text.runs.table(run.number), () => runTable(run, this.id, as), { open: wasOpen, kind: "of-run" }),
      this.request(event),
      stateNode(after),
      eventDiff(this.app, this.id, seq, events.length, { from, as }),
      makeFold(t.raw, () => code(JSON.stringify(event, null, 2))));
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

// Who began the run, who decided on the call that the event is about, and otherwise who did what it tells of.
function people({ run_id: run, data }, events, after) {
  const call = after.calls.get(data?.tool_call_id ?? data?.message?.tool_call_id);
  return [
    [t.startedBy, run && starterOf(run, events)],
    call?.approval === "approve" ? [t.approvedBy, whoIs(call.by)] : [t.deniedBy, call?.approval === "deny" ? whoIs(call.by) : null],
    [t.by, run ? null : whoIs(data?.by)],
  ];
}

function starterOf(run, events) {
  const begun = events.find((event) => event.run_id === run && (event.type === "run.queued" || event.type === "run.started"));
  return whoIs(begun?.data?.by);
}

function durationOf(data) {
  const ms = data?.completion?.duration_ms ?? data?.tool?.duration_ms;
  return ms === undefined || ms === null ? null : text.tool.duration(ms);
}

function readable(event, session) {
  try {
    return content(event, session);
  } catch {
    return h("p", { class: "muted" }, text.notice.unreadable);
  }
}

function content({ data }, session) {
  if (data === null) return h("p", { class: "muted" }, text.notice.removed);
  const parts = [];
  const message = data.message;
  if (message) {
    const said = textOf(message.content);
    if (said) parts.push(message.role === "assistant" ? body(said) : code(message.role === "tool" ? pretty(said) : said));
    parts.push(filesNode(() => session, [...filesOf(message.content), ...filesOf(data.tool?.files)]));
    for (const call of message.tool_calls ?? []) parts.push(h("h3", {}, h("code", {}, call.function?.name)), code(pretty(call.function?.arguments ?? "")));
  }
  if (typeof data.arguments === "string") parts.push(h("h3", {}, h("code", {}, data.name)), code(pretty(data.arguments)));
  if (data.error) parts.push(h("p", { class: "reason", dir: "auto" }, data.error.message, " ", h("code", {}, data.error.code)));
  for (const queued of data.messages ?? []) parts.push(filesNode(() => session, filesOf(queued.content)));
  return parts.some(Boolean) ? h("div", { class: "content" }, parts) : null;
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
