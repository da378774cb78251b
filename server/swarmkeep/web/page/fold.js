// The state of a session and the items of its conversation, folded from its events.

import { filesOf, textOf, wordsOf } from "./content.js";
import { merge, withNulls } from "./json.js";

// The state of a session before its first event.

export function initial() {
  return {
    seq: 0,
    agent: "",
    agents: [],
    context: {},
    metadata: {},
    messages: 0,
    status: "idle",
    // As `status`; of an idle session the end of its last run, if that was a failure.
    outlook: "idle",
    run: null,
    // The person who answers in the agent's place, or null.
    taken: null,
    // The person or queue that looks after the session, or null.
    assignee: null,
    // Who asked for the first run; null without keys.
    begunBy: undefined,
    queue: [],
    usage: { prompt: 0, completion: 0, total: 0, calls: 0 },
    items: [],
    ends: [],
    calls: new Map(),
    open: new Map(),
  };
}

// The fold: the state of a session, and its conversation as a list of items.

// Pure: the same events give the same result. `apply` changes the state that it is given, and nothing else.

export function fold(events, upto = events.length) {
  const state = initial();
  for (let index = 0; index < upto; index += 1) apply(state, events[index]);
  return state;
}

export function apply(state, event) {
  state.seq = event.seq;
  noteAgent(state, event.agent);
  const data = event.data;
  if (data === null || typeof data !== "object") {
    add(state, { kind: "removed", seq: event.seq });
    return state;
  }
  try {
    HANDLERS[event.type]?.(state, data, event);
  } catch {
    // A redacted event, or one of a later release, may lack fields that are expected here; the rest is shown.
    add(state, { kind: "unreadable", seq: event.seq });
  }
  return state;
}

const UNDECIDED = { approval: null, reason: null, by: null, expires: null, edited: null };

const HANDLERS = {
  "session.created": (state, data) => {
    activate(state, data.agent);
    state.context = data.context_variables ?? {};
    state.metadata = data.metadata ?? {};
    if (data.parent) add(state, { kind: "asked", seq: state.seq, from: data.parent.session_id });
  },
  "session.forked": (state, data, { seq }) => {
    state.run = null;
    state.taken = null;
    state.assignee = null;
    state.queue = [];
    settle(state, "idle");
    leave(state);
    // What was approved there was approved once.
    for (const item of state.items) if (item.rating) rate(item, null);
    for (const { id, approval } of state.open.values()) if (approval === "approve") change(state, id, UNDECIDED);
    add(state, { kind: "forked", seq, from: data.from_session_id, at: data.from_seq });
  },
  "session.imported": (state, data, { seq }) => {
    for (const { id } of state.open.values()) change(state, id, UNDECIDED);
    state.taken = null;
    state.assignee = null;
    add(state, { kind: "imported", seq, by: data.by, last: data.last_seq });
  },
  "session.updated": (state, data, { seq }) => {
    if (data.metadata) state.metadata = merge(state.metadata, data.metadata);
    if (!data.agent) return;
    activate(state, data.agent);
    add(state, { kind: "agent", seq, agent: data.agent });
  },
  "session.redacted": (state, data, { seq }) => add(state, { kind: "redacted", seq, count: data.seqs.length, reason: data.reason }),
  "session.taken_over": (state, data, { seq, at }) => {
    state.taken = { by: data.by ?? null, note: data.note ?? null, at };
    add(state, { kind: "takeover", seq, by: data.by, note: data.note, back: false });
  },
  "session.handed_back": (state, data, { seq }) => {
    state.taken = null;
    if (state.run) state.run = { ...state.run, pending: state.run.pending.filter(({ reason }) => reason !== "person") };
    add(state, { kind: "takeover", seq, by: data.by, back: true });
  },
  "session.held": (state, data, { seq }) => {
    add(state, { kind: "hold", seq, by: data.by, reason: data.reason });
  },
  "session.released": (state, data, { seq }) => {
    add(state, { kind: "hold", seq, by: data.by, reason: null });
  },
  "session.assigned": (state, data, { seq, agent }) => {
    state.assignee = data.to ?? null;
    add(state, { kind: "assigned", seq, by: data.tool_call_id ? agent : data.by, to: state.assignee, reason: data.reason });
  },
  "note.added": (state, data, { seq, at }) => {
    add(state, { kind: "note", seq, at, by: data.by, text: data.text });
  },
  "feedback.added": (state, { seq, value, comment, by }) => {
    const item = state.items.find((one) => one.kind === "assistant" && one.seq === seq);
    if (item) rate(item, { value, comment, by });
  },
  "context.updated": (state, data) => {
    state.context = withNulls(merge(state.context, data.patch), data.nulls ?? []);
  },
  "run.queued": (state, data, { seq, run_id }) => {
    const item = add(state, { kind: "queued", seq, run_id, text: data.messages.map((message) => wordsOf(message.content)).join("\n\n"), files: data.messages.flatMap((message) => filesOf(message.content)) });
    state.queue.push({ run_id, item });
  },
  "run.started": (state, data, { run_id }) => {
    const queued = state.queue.find((entry) => entry.run_id === run_id);
    state.queue = state.queue.filter((entry) => entry !== queued);
    if (queued) remove(state, queued.item);
    if (state.begunBy === undefined) state.begunBy = data.by ?? null;
    state.run = { id: run_id, status: "running", pending: [] };
    settle(state, "running");
    mark(state, (item) => item.status === "failed", "past");
  },
  "message.added": (state, data, event) => {
    state.messages += 1;
    (MESSAGES[data.message.role] ?? MESSAGES.user)(state, data, event);
  },
  "message.removed": (state, data, { seq }) => {
    const gone = new Set(data.seqs);
    state.messages = Math.max(state.messages - gone.size, 0);
    const isGone = (item) => ["user", "assistant"].includes(item.kind)
        ? gone.has(item.seq) || (data.content === true && item.seq === data.message_seq)
        : isGoneCall(item);
    const isGoneCall = (item) => item.kind === "call" && (gone.has(item.seq) || (item.seq === data.message_seq && item.id === data.tool_call_id));
    for (const item of state.items.filter(isGoneCall)) state.open.delete(item.id);
    state.items = state.items.filter((item) => !isGone(item));
    add(state, { kind: "takenOut", seq, at: data.message_seq, by: data.by });
  },
  "compaction.summarised": (state, data, { seq }) => {
    count(state.usage, data.completion?.usage);
    add(state, { kind: "summary", seq, first: data.first_seq, last: data.last_seq, text: data.summary });
  },
  "tool.started": (state, data) => change(state, data.tool_call_id, { status: "started", attempt: data.attempt, session: data.session_id ?? null }),
  "handoff.made": (state, data, { seq }) => {
    activate(state, data.to);
    add(state, { kind: "handoff", seq, from: data.from, to: data.to, made: true });
  },
  "handoff.ignored": (state, data, { seq }) => {
    noteAgent(state, data.to);
    add(state, { kind: "handoff", seq, from: data.from, to: data.to, made: false });
  },
  "guardrail.tripped": (state, data, { seq }) => add(state, { kind: "guardrail", seq, stage: data.stage, name: data.name, error: data.error }),
  "approval.requested": (state, data) =>
    change(state, data.tool_call_id, { status: "approval", approval: "requested", expires: data.expires_at }),
  "approval.decided": (state, data) =>
    change(state, data.tool_call_id, {
      approval: data.decision, reason: data.reason, by: data.by, status: data.decision === "approve" ? "asked" : "denied",
      edited: data.decision === "approve" ? (data.arguments ?? null) : null,
    }),
  "run.waiting": (state, data, { run_id }) => {
    state.run = { id: run_id, status: "waiting", pending: data.pending };
    settle(state, "waiting");
    for (const { tool_call_id: id, reason } of data.pending) {
      const status = { tool_results: "outside", session: "below" }[reason] ?? "approval";
      // A call that waits as before stays unchanged: the user may be writing in its form.
      if (state.calls.get(id)?.status !== status) change(state, id, { status });
    }
  },
  "run.resumed": (state, data, { run_id }) => {
    state.run = { id: run_id, status: "running", pending: [] };
    settle(state, "running");
    mark(state, (item) => item.run_id === run_id, "over");
  },
  "run.completed": (state, data, event) => finishRun(state, data, event, "completed"),
  "run.failed": (state, data, event) => finishRun(state, data, event, "failed"),
  "run.cancelled": (state, data, event) => finishRun(state, data, event, "cancelled"),
  "run.interrupted": (state, data, event) => finishRun(state, data, event, "interrupted"),
};

const MESSAGES = {
  user: (state, data, { seq, run_id, at }) => {
    add(state, { kind: "user", seq, run_id, at, role: data.correction ? "correction" : data.person ? "note" : data.message.role, text: wordsOf(data.message.content), files: filesOf(data.message.content) });
  },
  assistant: (state, data, { seq, run_id, agent, at }) => {
    const { message, completion } = data;
    const sender = data.person ?? message.sender ?? agent;
    const said = textOf(message.content) || textOf(message.refusal);
    if (completion) count(state.usage, completion.usage);
    if (said) add(state, { kind: "assistant", seq, run_id, at, agent: sender, text: said, partial: completion?.partial === true, person: Boolean(data.person) });
    for (const call of message.tool_calls ?? []) {
      const item = add(state, {
        kind: "call", seq, run_id, at, agent: sender, id: call.id, name: call.function?.name ?? "", input: call.function?.arguments ?? "",
        status: "asked", output: null, attempt: 1, duration: null, approval: null, reason: null, by: null, expires: null, session: null, edited: null,
      });
      state.calls.set(call.id, item);
      state.open.set(call.id, item);
    }
  },
  tool: (state, data, { seq }) => {
    const { message, tool } = data;
    const status = tool?.status ?? "ok";
    change(state, message.tool_call_id, { status, resultSeq: seq, output: textOf(message.content), files: filesOf(tool?.files), duration: tool?.duration_ms ?? null });
    if (tool?.session_id) change(state, message.tool_call_id, { session: tool.session_id });
    state.open.delete(message.tool_call_id);
  },
};

function finishRun(state, data, { seq, run_id }, status) {
  const queued = state.queue.find((entry) => entry.run_id === run_id);
  if (queued) {
    state.queue = state.queue.filter((entry) => entry !== queued);
    remove(state, queued.item);
    if (status === "cancelled") {
      add(state, { kind: "withdrawn", seq });
      return;
    }
  } else {
    state.run = null;
    settle(state, "idle", BAD_ENDS.has(status) ? status : "idle");
    leave(state);
  }
  const remarkable = status !== "completed" || !["end_turn", null, undefined].includes(data.stop_reason);
  if (remarkable) state.ends.push(add(state, { kind: "end", seq, run_id, status, stop: data.stop_reason, error: data.error, over: false, past: false }));
}

const BAD_ENDS = new Set(["failed", "interrupted"]);

function settle(state, status, outlook = status) {
  state.status = status;
  state.outlook = outlook;
}

// An end that its run went on after is `over`; one that another run came after is `past`, and offers no new try.
function mark(state, isMeant, field) {
  for (const item of state.ends) {
    if (isMeant(item) && !item[field]) Object.assign(item, { [field]: true, version: item.version + 1 });
  }
  state.ends = state.ends.filter(({ over, past }) => !over && !past);
}

// These calls will not run and need no decision. An interrupted run that continues records them again.
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

// Of several ratings of one answer the last one counts.
function rate(item, rating) {
  Object.assign(item, { rating, version: item.version + 1 });
}

function noteAgent(state, agent) {
  if (agent && !state.agents.includes(agent)) state.agents.push(agent);
}

function activate(state, agent) {
  state.agent = agent;
  noteAgent(state, agent);
}

function count(usage, reported) {
  usage.calls += 1;
  usage.prompt += reported?.prompt_tokens || 0;
  usage.completion += reported?.completion_tokens || 0;
  usage.total += reported?.total_tokens || 0;
}
