// What took time in a session, run by run, from its events alone: model calls, functions, and waits for somebody.

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
    // Of what was cut off nobody measured how long it took: it began after what was before it.
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

export const endOfRun = (run) => run.ended ?? run.last;
export const lengthOfSpan = (span, run) => Math.max((span.to ?? endOfRun(run)) - span.from, 0);

const BAD_OUTCOMES = new Set(["error", "timeout", "unknown_outcome", "denied", "refused"]);
export const isBadSpan = ({ status }) => BAD_OUTCOMES.has(status);

// All that the calls of a run took together.
export function runTotals(run) {
  const sum = { calls: 0, tools: 0, prompt: 0, cached: 0, completion: 0 };
  for (const { kind, tokens } of run.spans) {
    if (kind === "tool" || kind === "asked") sum.tools += 1;
    if (!tokens) continue;
    sum.calls += 1;
    for (const name of ["prompt", "cached", "completion"]) sum[name] += tokens[name];
  }
  return sum;
}
