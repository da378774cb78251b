// One event in full, what it changed, the request behind it, and the state that it led to.

import { get, getText, post, sessionPath } from "./api.js";
import { bdi, button, clear, dayAndTime, h, pretty } from "./dom.js";
import { body } from "./items.js";
import { fold, textOf } from "./fold.js";
import { go, hrefOf } from "./route.js";
import { changes, titleOf, whoIs } from "./descriptions.js";
import { text } from "./text.js";

const t = text.timeline;

export class Detail {
  constructor(app, id) {
    this.app = app;
    this.id = id;
    this.node = h("section", { class: "detail scroll", "aria-label": t.detail, tabindex: 0 });
  }

  show(events, seq) {
    const event = events[seq - 1];
    if (!event) return;
    const before = fold(events, seq - 1);
    const after = fold(events, seq);
    clear(this.node,
      h("header", { class: "detail-head" }, h("h2", {}, titleOf(event)), h("span", { class: "muted" }, `#${seq}`)),
      h("div", { class: "row" }, button(t.fork, { icon: "fork", title: t.forkHint, onclick: () => this.fork(seq) }), h("a", { class: "button ghost", href: hrefOf({ view: "chat", id: this.id }) }, t.chat)),
      facts(event, events, after),
      readable(event),
      changed(before.context, after.context),
      this.request(event),
      stateNode(after),
      folded(t.raw, () => code(JSON.stringify(event, null, 2))));
    this.node.scrollTop = 0;
  }

  request({ type, data, seq }) {
    if (type !== "message.added" || !data?.completion?.request) return null;
    return folded(t.request, () => {
      const place = h("div", {}, h("p", { class: "muted", role: "status" }, t.loading));
      getText(sessionPath(this.id, `/events/${seq}/request`)).then(
        (body) => clear(place, h("p", { class: "muted" }, t.requestBytes(new Blob([body]).size)), code(pretty(body))),
        (error) => clear(place, h("p", { class: "reason" }, error.message)),
      );
      return place;
    });
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

function folded(title, make, open = false) {
  const node = h("details", { class: "fold", open }, h("summary", {}, title));
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

function readable(event) {
  try {
    return content(event);
  } catch {
    return h("p", { class: "muted" }, text.notice.unreadable);
  }
}

function content({ data }) {
  if (data === null) return h("p", { class: "muted" }, text.notice.removed);
  const parts = [];
  const message = data.message;
  if (message) {
    const said = textOf(message.content);
    if (said) parts.push(message.role === "assistant" ? body(said) : code(message.role === "tool" ? pretty(said) : said));
    for (const call of message.tool_calls ?? []) parts.push(h("h3", {}, h("code", {}, call.function?.name)), code(pretty(call.function?.arguments ?? "")));
  }
  if (typeof data.arguments === "string") parts.push(h("h3", {}, h("code", {}, data.name)), code(pretty(data.arguments)));
  if (data.error) parts.push(h("p", { class: "reason", dir: "auto" }, data.error.message, " ", h("code", {}, data.error.code)));
  return parts.length ? h("div", { class: "content" }, parts) : null;
}

function changed(before, after) {
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
    folded(t.context, () => code(JSON.stringify(state.context, null, 2)), Object.keys(state.context).length > 0));
}

export const verification = (id) => get(sessionPath(id, "/verify"));
