// What the events of a session add up to, for the page: the state, and the conversation as a list of items.

// No value is nested as deeply; a longer pointer changes nothing.
const MAX_POINTER_STEPS = 500;
// Pure: the same events give the same result. `apply` changes the state that it is given, and nothing else.

export function initial() {
  return {
    seq: 0,
    agent: "",
    agents: [],
    context: {},
    metadata: {},
    messages: 0,
    status: "idle",
    run: null,
    queue: [],
    usage: { prompt: 0, completion: 0, total: 0, calls: 0 },
    items: [],
    calls: new Map(),
    open: new Map(),
    lastInput: null,
  };
}

export function fold(events, upto = events.length) {
  const state = initial();
  for (let index = 0; index < upto; index += 1) apply(state, events[index]);
  return state;
}

export function apply(state, event) {
  state.seq = event.seq;
  seen(state, event.agent);
  const data = event.data;
  if (data === null || typeof data !== "object") {
    add(state, { kind: "removed", seq: event.seq });
    return state;
  }
  try {
    HANDLERS[event.type]?.(state, data, event);
  } catch {
    // What was redacted, or recorded by a later release, may lack what this one expects; the rest is shown.
    add(state, { kind: "unreadable", seq: event.seq });
  }
  return state;
}

const HANDLERS = {
  "session.created": (state, data) => {
    activate(state, data.agent);
    state.context = data.context_variables ?? {};
    state.metadata = data.metadata ?? {};
  },
  "session.forked": (state, data, { seq }) => {
    state.run = null;
    state.queue = [];
    state.status = "idle";
    leave(state);
    add(state, { kind: "forked", seq, from: data.from_session_id, at: data.from_seq });
  },
  "session.imported": (state, data, { seq }) => {
    for (const { id } of state.open.values()) change(state, id, { approval: null, reason: null, by: null, expires: null });
    add(state, { kind: "imported", seq, by: data.by, last: data.last_seq });
  },
  "session.updated": (state, data, { seq }) => {
    if (data.metadata) state.metadata = merge(state.metadata, data.metadata);
    if (!data.agent) return;
    activate(state, data.agent);
    add(state, { kind: "agent", seq, agent: data.agent });
  },
  "session.redacted": (state, data, { seq }) => add(state, { kind: "redacted", seq, count: data.seqs.length, reason: data.reason }),
  "context.updated": (state, data) => {
    state.context = withNulls(merge(state.context, data.patch), data.nulls ?? []);
  },
  "run.queued": (state, data, { seq, run_id }) => {
    const item = add(state, { kind: "queued", seq, run_id, text: data.messages.map((message) => textOf(message.content)).join("\n\n") });
    state.queue.push({ run_id, item });
  },
  "run.started": (state, data, { run_id }) => {
    const queued = state.queue.find((entry) => entry.run_id === run_id);
    state.queue = state.queue.filter((entry) => entry !== queued);
    if (queued) remove(state, queued.item);
    state.run = { id: run_id, status: "running", pending: [] };
    state.status = "running";
  },
  "message.added": (state, data, event) => {
    state.messages += 1;
    (MESSAGES[data.message.role] ?? MESSAGES.user)(state, data, event);
  },
  "tool.started": (state, data) => change(state, data.tool_call_id, { status: "started", attempt: data.attempt }),
  "handoff.made": (state, data, { seq }) => {
    activate(state, data.to);
    add(state, { kind: "handoff", seq, from: data.from, to: data.to, made: true });
  },
  "handoff.ignored": (state, data, { seq }) => {
    seen(state, data.to);
    add(state, { kind: "handoff", seq, from: data.from, to: data.to, made: false });
  },
  "approval.requested": (state, data) =>
    change(state, data.tool_call_id, { status: "approval", approval: "requested", expires: data.expires_at }),
  "approval.decided": (state, data) =>
    change(state, data.tool_call_id, { approval: data.decision, reason: data.reason, by: data.by, status: data.decision === "approve" ? "asked" : "denied" }),
  "run.waiting": (state, data, { run_id }) => {
    state.run = { id: run_id, status: "waiting", pending: data.pending };
    state.status = "waiting";
    for (const { tool_call_id: id, reason } of data.pending) {
      const status = reason === "tool_results" ? "outside" : "approval";
      // What waits on as before is left alone: somebody may be writing there.
      if (state.calls.get(id)?.status !== status) change(state, id, { status });
    }
  },
  "run.resumed": (state, data, { run_id }) => {
    state.run = { id: run_id, status: "running", pending: [] };
    state.status = "running";
    for (const item of state.items) {
      if (item.kind === "end" && item.run_id === run_id && !item.over) Object.assign(item, { over: true, version: item.version + 1 });
    }
  },
  "run.completed": (state, data, event) => ended(state, data, event, "completed"),
  "run.failed": (state, data, event) => ended(state, data, event, "failed"),
  "run.cancelled": (state, data, event) => ended(state, data, event, "cancelled"),
  "run.interrupted": (state, data, event) => ended(state, data, event, "interrupted"),
};

const MESSAGES = {
  user: (state, data, { seq, run_id, at }) => {
    const item = add(state, { kind: "user", seq, run_id, at, role: data.message.role, text: textOf(data.message.content) });
    if (data.message.role === "user") state.lastInput = item.text;
  },
  assistant: (state, data, { seq, run_id, agent, at }) => {
    const { message, completion } = data;
    const sender = message.sender ?? agent;
    const said = textOf(message.content) || textOf(message.refusal);
    count(state.usage, completion?.usage);
    if (said) add(state, { kind: "assistant", seq, run_id, at, agent: sender, text: said, partial: completion?.partial === true });
    for (const call of message.tool_calls ?? []) {
      const item = add(state, {
        kind: "call", seq, run_id, at, agent: sender, id: call.id, name: call.function?.name ?? "", input: call.function?.arguments ?? "",
        status: "asked", output: null, attempt: 1, duration: null, approval: null, reason: null, by: null, expires: null,
      });
      state.calls.set(call.id, item);
      state.open.set(call.id, item);
    }
  },
  tool: (state, data) => {
    const { message, tool } = data;
    const status = tool?.status ?? "ok";
    change(state, message.tool_call_id, { status, output: textOf(message.content), duration: tool?.duration_ms ?? null });
    state.open.delete(message.tool_call_id);
  },
};

function ended(state, data, { seq, run_id }, status) {
  const queued = state.queue.find((entry) => entry.run_id === run_id);
  if (queued) {
    state.queue = state.queue.filter((entry) => entry !== queued);
    remove(state, queued.item);
  } else {
    state.run = null;
    state.status = "idle";
    leave(state);
  }
  const remarkable = status !== "completed" || !["end_turn", null, undefined].includes(data.stop_reason);
  if (remarkable) add(state, { kind: "end", seq, run_id, status, stop: data.stop_reason, error: data.error, over: false });
}

// Nobody carries these calls out any more, or decides about them. An interrupted run that goes on says so anew.
function leave(state) {
  for (const { id, status } of state.open.values()) change(state, id, { status: status === "started" ? "unknown_outcome" : "left" });
}

function add(state, item) {
  const made = { ...item, key: `${item.kind}-${item.seq}-${item.id ?? ""}`, version: 0 };
  state.items.push(made);
  return made;
}

function remove(state, item) {
  state.items = state.items.filter((other) => other !== item);
}

function change(state, callId, fields) {
  const item = state.calls.get(callId);
  if (item) Object.assign(item, fields, { version: item.version + 1 });
}

function seen(state, agent) {
  if (agent && !state.agents.includes(agent)) state.agents.push(agent);
}

function activate(state, agent) {
  state.agent = agent;
  seen(state, agent);
}

function count(usage, reported) {
  usage.calls += 1;
  usage.prompt += reported?.prompt_tokens || 0;
  usage.completion += reported?.completion_tokens || 0;
  usage.total += reported?.total_tokens || 0;
}

export function textOf(content) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content.map((part) => part?.text ?? part?.refusal ?? `[${part?.type ?? "?"}]`).join("");
}

// RFC 7396.
export function merge(target, patch) {
  if (!isObject(patch)) return patch;
  const result = new Map(Object.entries(isObject(target) ? target : {}));
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) result.delete(name);
    else result.set(name, merge(result.get(name), value));
  }
  return Object.fromEntries(result);
}

// `value` with null at each of these places. Every object on the way is copied once, however many of them are in it.
function withNulls(value, pointers) {
  const copies = new Set();
  const copy = (inner) => {
    if (copies.has(inner)) return inner;
    const made = Object.fromEntries(Object.entries(isObject(inner) ? inner : {}));
    copies.add(made);
    return made;
  };
  const result = copy(value);
  for (const pointer of pointers) {
    const path = pointer.split("/").slice(1).map((step) => step.replaceAll("~1", "/").replaceAll("~0", "~"));
    if (path.length === 0 || path.length > MAX_POINTER_STEPS) continue;
    const last = path.pop();
    let inner = result;
    for (const step of path) inner = put(inner, step, copy(Object.hasOwn(inner, step) ? inner[step] : null));
    put(inner, last, null);
  }
  return result;
}

// An assignment would take "__proto__" for the prototype.
function put(object, key, value) {
  Object.defineProperty(object, key, { value, writable: true, enumerable: true, configurable: true });
  return value;
}

export const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
