// Runs: the spans that took time in them, their cost, and both ways to draw them.

import { get } from "./api.js";
import { formatLength } from "./descriptions.js";
import { clear, h, icon, lane, timeOf, wideTable } from "./dom.js";
import { hrefOf } from "./route.js";
import { text } from "./text.js";
import { viewText } from "./viewtext.js";

// What model calls cost, by the server's table of prices: as it reckons itself, so that each call can be told its own.

let priceTable = null;
let pricesAsked = null;
const pricesFound = new Map();

// Asked for with the first thing that shows a cost, and once. Without an answer nothing has a price.
export function loadPrices() {
  pricesAsked ??= get("prices").then((found) => {
    priceTable = found;
    pricesFound.clear();
  }).catch(() => (pricesAsked = null));
  return pricesAsked;
}

function priceOf(model) {
  if (!pricesFound.has(model)) {
    const fitting = (priceTable?.data ?? []).filter((price) => price.model === model || fitsPattern(price.model, model));
    fitting.sort((one, other) => (other.model === model) - (one.model === model) || other.model.length - one.model.length);
    pricesFound.set(model, fitting[0] ?? null);
  }
  return pricesFound.get(model);
}

// As the server has it: what is between two stars is put as early as it can be and never moved, so that names of models, which providers
// choose, and patterns with many stars do not multiply, as they would in a regular expression.
function fitsPattern(pattern, model) {
  const [first, ...others] = pattern.split("*").map((piece) => [...piece]);
  const name = [...model];
  const standsAt = (piece, at) => piece.every((sign, place) => at + place < name.length && (sign === "?" || sign === name[at + place]));
  if (!others.length) return first.length === name.length && standsAt(first, 0);
  const last = others.pop();
  const end = name.length - last.length;
  let at = first.length;
  if (at > end || !standsAt(first, 0) || !standsAt(last, end)) return false;
  for (const piece of others) {
    while (at + piece.length <= end && !standsAt(piece, at)) at += 1;
    at += piece.length;
    if (at > end) return false;
  }
  return true;
}

// Null where the price is unknown.
function costOf({ name, tokens }) {
  const price = tokens && priceOf(name);
  if (!price) return null;
  const cached = Math.min(tokens.cached, tokens.prompt);
  return ((tokens.prompt - cached) * price.input + cached * price.cached_input + tokens.completion * price.output) / 1_000_000;
}

function costOfRun(run) {
  let [sum, part] = [null, false];
  for (const span of run.spans) {
    if (!span.tokens) continue;
    const cost = costOf(span);
    if (cost === null) part = true;
    else sum = (sum ?? 0) + cost;
  }
  return sum === null ? "" : `${formatCost(sum)}${part ? "+" : ""}`;
}

function formatCost(amount) {
  if (amount === null || !priceTable.currency) return "";
  const digits = amount > 0 && amount < 1 ? { maximumSignificantDigits: 2, minimumFractionDigits: 0 } : { maximumFractionDigits: 2 };
  return new Intl.NumberFormat("en", { style: "currency", currency: priceTable.currency, ...digits }).format(amount);
}

// The spans of a session, run by run, from its events alone: model calls, functions, and waits for people.

const RUN_ENDS = { "run.completed": "completed", "run.failed": "failed", "run.cancelled": "cancelled" };

export class Runs {
  constructor() {
    this.list = [];
    this.byId = new Map();
  }

  take(event) {
    if (!event.run_id) return;
    const run = this.byId.get(event.run_id) ?? this.begin(event);
    const time = Date.parse(event.at);
    run.seqs.push(event.seq);
    run.last = time;
    run.version += 1;
    if (event.data === null || typeof event.data !== "object") return;
    try {
      SPANNING[event.type]?.(run, event.data, { ...event, time });
      if (RUN_ENDS[event.type]) endRun(run, RUN_ENDS[event.type], event.data, { ...event, time });
    } catch {
      // What a later release recorded, or what was damaged, may lack what is looked for here: it is in the list all the same.
    }
    run.mark = time;
  }

  begin({ run_id: id, seq, at, agent }) {
    const time = Date.parse(at);
    const run = { id, number: this.list.length + 1, first: seq, begun: time, last: time, ended: null, mark: time, status: "running", agent, error: null, seqs: [], spans: [], open: new Map(), waits: [], version: 0 };
    this.list.push(run);
    this.byId.set(id, run);
    return run;
  }
}

const SPANNING = {
  "run.queued": (run, data, event) => {
    run.status = "queued";
    openSpan(run, "queue", { kind: "queue", name: "" }, event);
  },
  "run.started": (run, data, event) => {
    run.status = "running";
    closeSpan(run, "queue", "ok", event);
  },
  "run.waiting": (run, data, event) => {
    for (const { tool_call_id: id, name, reason } of data.pending) {
      if (reason === "tool_results" && !run.open.has(`outside ${id}`)) openSpan(run, `outside ${id}`, { kind: "outside", name }, event);
    }
    run.status = "waiting";
    if (run.waits.at(-1)?.to !== null) run.waits.push({ from: event.time, to: null });
  },
  "run.resumed": (run, data, event) => {
    run.status = "running";
    closeSpan(run, "interrupted", "ok", event);
    stopWaiting(run, event.time);
  },
  "run.interrupted": (run, data, event) => {
    for (const key of [...run.open.keys()]) closeSpan(run, key, "unknown_outcome", event);
    run.status = "interrupted";
    run.error = data.error ?? null;
    stopWaiting(run, event.time);
    openSpan(run, "interrupted", { kind: "interrupted", name: "" }, event);
  },
  "message.added": (run, data, event) => {
    if (data.completion) run.spans.push(modelSpan(run, data.completion, event));
    else if (data.message.role === "tool") toolEnded(run, data, event);
  },
  "compaction.summarised": (run, data, event) => {
    if (data.completion) run.spans.push({ ...modelSpan(run, data.completion, event), kind: "summary" });
  },
  "tool.started": (run, data, event) => {
    const key = `tool ${data.tool_call_id}`;
    closeSpan(run, key, "unknown_outcome", event);
    openSpan(run, key, { kind: data.session_id ? "asked" : "tool", name: data.name, session: data.session_id ?? null }, event);
  },
  "approval.requested": (run, data, event) => openSpan(run, `approval ${data.tool_call_id}`, { kind: "approval", name: data.name }, event),
  "approval.decided": (run, data, event) => closeSpan(run, `approval ${data.tool_call_id}`, data.decision === "deny" ? "denied" : "ok", event),
  "handoff.made": (run, data, event) => momentSpan(run, { kind: "handoff", name: `${data.from} → ${data.to}` }, event),
  "guardrail.tripped": (run, data, event) => momentSpan(run, { kind: "guardrail", name: data.name, status: "refused" }, event),
};

function openSpan(run, key, fields, { time, seq, agent }) {
  const span = { status: "open", agent, from: time, to: null, start: seq, seq, ...fields };
  run.open.set(key, span);
  run.spans.push(span);
}

function closeSpan(run, key, status, { time, seq }, more = {}) {
  const span = run.open.get(key);
  if (!span) return null;
  run.open.delete(key);
  return Object.assign(span, { status, to: time, seq, ...more });
}

const momentSpan = (run, fields, { time, seq, agent }) => run.spans.push({ status: "ok", agent, from: time, to: time, start: seq, seq, ...fields });

function modelSpan(run, completion, { time, seq, agent }) {
  const took = completion.duration_ms || 0;
  const usage = completion.usage ?? {};
  return {
    kind: "model",
    // The duration of a cut-off call was not measured: it began after the event before it.
    from: Math.max(took ? time - took : run.mark, run.begun),
    to: time, start: seq, seq, agent,
    status: completion.partial ? "cut" : "ok",
    name: completion.model ?? completion.request?.params?.model ?? "",
    first: completion.time_to_first_token_ms ?? null,
    tokens: { prompt: usage.prompt_tokens || 0, cached: usage.prompt_tokens_details?.cached_tokens || 0, completion: usage.completion_tokens || 0 },
  };
}

function toolEnded(run, { message, tool }, event) {
  const status = tool?.status ?? "ok";
  const known = closeSpan(run, `outside ${message.tool_call_id}`, status, event) ?? closeSpan(run, `tool ${message.tool_call_id}`, status, event);
  if (known || !tool) return;
  // It was refused, or did not run for another reason: there is no start.
  momentSpan(run, { kind: "tool", name: tool.name, status }, event);
}

function stopWaiting(run, time) {
  const wait = run.waits.at(-1);
  if (wait?.to === null) wait.to = time;
}

function endRun(run, status, { error }, event) {
  const { time, seq, agent } = event;
  // The call that failed the run has no answer, and so no event of its own.
  const asked = status === "failed" && run.open.size === 0 && time > run.mark;
  if (asked) run.spans.push({ kind: "model", name: error?.code ?? "", status: "error", agent, from: run.mark, to: time, start: seq, seq, first: null, tokens: null });
  for (const key of [...run.open.keys()]) closeSpan(run, key, "left", event);
  stopWaiting(run, time);
  Object.assign(run, { status, ended: time, error: error ?? null });
}

// The spans as they began, the same array as long as nothing happens in the run.
export function sortedSpans(run) {
  if (run.sortedAt !== run.version) {
    run.inOrder = [...run.spans].sort((one, other) => one.from - other.from || one.start - other.start);
    run.sortedAt = run.version;
  }
  return run.inOrder;
}

const endOfRun = (run) => run.ended ?? run.last;
const lengthOfSpan = (span, run) => Math.max((span.to ?? endOfRun(run)) - span.from, 0);

const BAD_OUTCOMES = new Set(["error", "timeout", "unknown_outcome", "denied", "refused"]);
const isBadSpan = ({ status }) => BAD_OUTCOMES.has(status);

// All that the calls of a run took together.
function runTotals(run) {
  const sum = { calls: 0, tools: 0, prompt: 0, cached: 0, completion: 0 };
  for (const { kind, tokens } of run.spans) {
    if (kind === "tool" || kind === "asked") sum.tools += 1;
    if (!tokens) continue;
    sum.calls += 1;
    for (const name of ["prompt", "cached", "completion"]) sum[name] += tokens[name];
  }
  return sum;
}

// The places of a run's moments in the width of its bar. An approval may have waited overnight: long pauses are drawn short.

const BUSY_KINDS = new Set(["model", "summary", "tool", "asked"]);
// A pause is as wide as this part of all the work, at most.
const LONGEST_PAUSE_PART = 0.15;

export function scaleFor(run) {
  if (run.scaledAt !== run.version) {
    run.scale = makeTimeScale(run);
    run.scaledAt = run.version;
  }
  return run.scale;
}

// A function from a time to a part of the width, between 0 and 1.
function makeTimeScale(run) {
  const end = endOfRun(run);
  const pieces = timeSegments(run, end);
  const work = pieces.reduce((sum, { busy, from, to }) => sum + (busy ? to - from : 0), 0);
  const most = work > 0 ? work * LONGEST_PAUSE_PART : Infinity;
  let width = 0;
  const stops = [{ time: run.begun, place: 0 }];
  for (const { busy, from, to } of pieces) {
    width += busy ? to - from : Math.min(to - from, most);
    stops.push({ time: to, place: width });
  }
  return (time) => (width > 0 ? placeAtTime(stops, time) / width : 0);
}

function placeAtTime(stops, time) {
  let [low, high] = [0, stops.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (stops[middle].time < time) low = middle + 1;
    else high = middle;
  }
  const after = stops[low];
  const before = stops[Math.max(low - 1, 0)];
  if (time >= after.time || after.time === before.time) return after.place;
  return before.place + ((after.place - before.place) * Math.max(time - before.time, 0)) / (after.time - before.time);
}

// The time of the run in pieces, in which something is done or nothing is.
function timeSegments(run, end) {
  const points = [];
  const from = (time) => Math.min(Math.max(time, run.begun), end);
  const note = (span, work, wait) => {
    points.push({ time: from(span.from), work, wait }, { time: from(span.to ?? end), work: -work, wait: -wait });
  };
  for (const span of run.spans) if (BUSY_KINDS.has(span.kind)) note(span, 1, 0);
  for (const wait of run.waits) note(wait, 0, 1);
  points.sort((one, other) => one.time - other.time);
  points.push({ time: end, work: 0, wait: 0 });
  const found = [];
  let [last, working, waiting] = [run.begun, 0, 0];
  for (const { time, work, wait } of points) {
    const busy = working > 0 && waiting === 0;
    if (time > last) {
      if (found.length && found.at(-1).busy === busy) found.at(-1).to = time;
      else found.push({ busy, from: last, to: time });
    }
    last = Math.max(last, time);
    working += work;
    waiting += wait;
  }
  return found;
}

// The rows of runs: a head with what a run took, and a bar for each thing that took time in it.

const runText = viewText.spans;
const NARROWEST_BAR = 0.4;

export function headRow(run, folded) {
  const sum = runTotals(run);
  const cost = costOfRun(run);
  const said = [runText.calls(sum.calls), sum.tools && runText.tools(sum.tools), runText.tokens(sum.prompt, sum.completion), sum.cached && runText.cached(sum.cached)].filter(Boolean).join(" · ");
  return [
    icon(folded ? "right" : "down"),
    h("span", { class: "run-name" }, runText.name(run.number)),
    h("span", { class: `state ${run.status}` }, text.status[run.status] ?? run.status),
    h("span", { class: "row-summary" }, said, run.error && ` · ${run.error.message}`),
    cost && h("span", { class: "row-tokens" }, cost),
    h("span", { class: "row-time" }, formatLength(endOfRun(run) - run.begun)),
  ];
}

// A call that asks an agent can be unfolded; `isFolded` is undefined for all others.
export function spanRow(run, span, laneOf, isFolded) {
  return [
    isFolded === undefined ? null : h("span", { class: "fold-sign", "aria-hidden": "true" }, icon(isFolded ? "right" : "down")),
    h("span", { class: "span-agent" }, span.agent ? lane(h("span", { class: "dot", "aria-hidden": "true" }), laneOf(span.agent)) : null),
    h("span", { class: `row-title span-name ${isBadSpan(span) ? "bad" : ""}`, "aria-hidden": "true" }, h("span", { class: "span-kind" }, runText.kinds[span.kind]), h("bdi", {}, span.name)),
    h("span", { class: "track", "aria-hidden": "true" }, spanBar(run, span)),
    h("span", { class: "row-time", "aria-hidden": "true" }, span.from === span.to ? "" : formatLength(lengthOfSpan(span, run))),
    h("span", { class: "unseen" }, describeSpan(run, span)),
  ];
}

function spanBar(run, span) {
  const place = scaleFor(run);
  const [from, to] = [place(span.from), place(span.to ?? endOfRun(run))].map((part) => part * 100);
  const width = Math.max(to - from, NARROWEST_BAR);
  const node = h("span", { class: `bar bar-${span.kind} ${isBadSpan(span) ? "bad" : ""} ${span.to === null ? "open" : ""}`, title: describeSpan(run, span) });
  node.style.insetInlineStart = `${Math.min(from, 100 - NARROWEST_BAR)}%`;
  node.style.width = `${width}%`;
  const waited = span.first && lengthOfSpan(span, run) ? Math.min(span.first / lengthOfSpan(span, run), 1) : 0;
  if (waited) {
    const silent = h("span", { class: "bar-silent" });
    silent.style.width = `${waited * 100}%`;
    node.append(silent);
  }
  return node;
}

const spanStatus = ({ status }) => (status === "ok" ? "" : status === "open" ? runText.open : status === "cut" ? text.chat.partial : text.tool[status] ?? status);

// All of it in words, for those who do not see the bar.
function describeSpan(run, span) {
  const { first, tokens, agent, kind, name } = span;
  const cost = formatCost(costOf(span));
  return [
    `${runText.kinds[kind]} ${name}`.trim(),
    agent && runText.by(agent),
    spanStatus(span),
    runText.began(formatLength(Math.max(span.from - run.begun, 0))),
    span.from === span.to ? null : runText.took(formatLength(lengthOfSpan(span, run))),
    first === null || first === undefined ? null : runText.first(formatLength(first)),
    tokens && runText.tokens(tokens.prompt, tokens.completion),
    tokens?.cached ? runText.cached(tokens.cached) : null,
    cost,
  ].filter(Boolean).join(", ");
}

const beganAt = (run) => timeOf(new Date(run.begun));

// A run as a table: the same as its bars, for those who want figures, or do not see.

const columnNames = runText.columns;
// Of a run that went on and on, the first ones.
const MOST_LINES = 500;

export function runTable(run, session, as = null) {
  const spans = sortedSpans(run);
  const sum = runTotals(run);
  const number = (count) => (count ? count.toLocaleString("en") : "");
  const cells = (...values) => values.map((value) => h("td", {}, value));
  const line = (span) => h("tr", {},
    h("th", { scope: "row" }, h("a", { href: hrefOf({ view: "timeline", id: session, at: span.seq, as }) }, `${runText.kinds[span.kind]} `, h("bdi", {}, span.name))),
    cells(span.agent ? h("bdi", {}, span.agent) : "", spanStatus(span), formatLength(Math.max(span.from - run.begun, 0)), span.from === span.to ? "" : formatLength(lengthOfSpan(span, run)),
      span.first ? formatLength(span.first) : "", number(span.tokens?.prompt), number(span.tokens?.cached), number(span.tokens?.completion), formatCost(costOf(span))));
  const parts = () => [
    wideTable(runText.table(run.number), "run-table", columnNames,
      h("tbody", {}, spans.slice(0, MOST_LINES).map(line)),
      h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, runText.all),
        cells("", text.status[run.status] ?? run.status, beganAt(run), formatLength(endOfRun(run) - run.begun), "", number(sum.prompt), number(sum.cached), number(sum.completion), costOfRun(run))))),
    spans.length > MOST_LINES && h("p", { class: "muted" }, runText.more(spans.length - MOST_LINES))];
  const node = h("div", {}, parts());
  if (!priceTable) loadPrices().then(() => priceTable?.data.length && clear(node, parts()));
  return node;
}
