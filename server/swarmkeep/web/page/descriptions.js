// One line for an event: its kind, title and summary.

import { textOf } from "./content.js";
import { text } from "./text.js";

const t = text.timeline;

export function kindOf({ type, data }) {
  if (type === "message.added") return data?.message?.role === "tool" ? "tool" : "message";
  return type.split(".")[0];
}

export function titleOf({ type, data }) {
  if (type !== "message.added" || !data?.message) return text.event[type] ?? type;
  const { role, content, tool_calls: calls } = data.message;
  if (data.correction && role === "user") return text.event.correction;
  if (data.person) return role === "assistant" ? text.event.person : text.event.note;
  if (role === "assistant" && calls?.length && !textOf(content)) return text.event.call;
  return text.event[role] ?? role;
}

// A caller as people read it: by the name of the API key, or by its id where it has none.
export const whoIs = (by) => (typeof by === "string" && by ? by.replace(/^key_[0-9a-f]{16} \(([^]+)\)$/, "$1") : null);

export function summaryOf(event) {
  if (event.data === null) return text.notice.removed;
  try {
    return (SUMMARIES[event.type] ?? (() => ""))(event.data, event) ?? "";
  } catch {
    return "";
  }
}

const keys = (patch) => Object.keys(patch ?? {}).join(", ");
const joined = (...parts) => parts.filter(Boolean).join(" · ");
const settingsOf = (options) => (options?.model_settings ? JSON.stringify(options.model_settings) : null);
const ended = ({ stop_reason: reason, error }) => error?.message ?? reason ?? "";

const SUMMARIES = {
  "session.created": ({ agent }) => agent,
  "session.forked": ({ from_session_id: from, from_seq: seq }) => `${from} · ${seq}`,
  "session.imported": ({ last_seq: last, source, by }) => joined(`1–${last}`, source, whoIs(by)),
  "session.updated": ({ agent, metadata }) => joined(agent, keys(metadata)),
  "session.taken_over": ({ by, note }) => joined(whoIs(by), note),
  "session.handed_back": ({ by, note }) => joined(whoIs(by), note),
  "session.held": ({ by, reason }) => joined(whoIs(by), reason),
  "session.released": ({ by }) => joined(whoIs(by)),
  "session.assigned": ({ to, by, reason }) => joined(to, whoIs(by), reason),
  "feedback.added": ({ seq, value, comment, by }) => joined(String(seq), value, comment, whoIs(by)),
  "note.added": ({ text, by }) => joined(whoIs(by), text),
  "session.redacted": ({ seqs, reason }) => `${seqs.join(", ")} · ${reason}`,
  "message.removed": ({ message_seq: seq, tool_call_id: call, content, by }) =>
    joined(String(seq), call, content === true ? "what it says" : null, whoIs(by)),
  "compaction.started": ({ reason, last_seq: last, by }) => joined(reason, last ? `1–${last}` : "", whoIs(by)),
  "compaction.summarised": ({ first_seq: first, last_seq: last, summary }) => joined(`${first}–${last}`, summary),
  "compaction.failed": ({ message }) => message,
  "tools.listed": ({ server, tools, error }) => joined(server, error ?? tools.map((tool) => tool.name).join(", ")),
  "run.hidden": ({ by, part }) => joined(part === undefined ? null : `part ${part}`, whoIs(by)),
  "run.queued": ({ messages, by }) => joined(whoIs(by), messages.map((message) => textOf(message.content)).join(" ")),
  "run.started": ({ options, by }) => joined(whoIs(by), options?.model, settingsOf(options)),
  "run.waiting": ({ pending }) => pending.map((call) => (call.reason === "person" ? t.person : call.name)).join(", "),
  "run.resumed": ({ reason }) => reason,
  "run.completed": ended,
  "run.failed": ended,
  "run.cancelled": ended,
  "run.interrupted": ended,
  "tool.started": ({ name, arguments: given }) => `${name} ${given}`,
  "handoff.made": ({ from, to }) => `${from} → ${to}`,
  "handoff.ignored": ({ from, to }) => `${from} → ${to}`,
  "guardrail.tripped": ({ stage, name, message, error }) => joined(stage, name, message, error),
  "context.updated": ({ patch }) => keys(patch),
  "approval.requested": ({ name, arguments: given }) => `${name} ${given}`,
  "approval.decided": ({ decision, by, reason, arguments: given }) => joined(decision, whoIs(by), reason, given),
  "message.added": ({ message, tool, person }) => {
    const calls = (message.tool_calls ?? []).map((call) => `${call.function?.name} ${call.function?.arguments}`);
    const said = textOf(message.content);
    const name = tool?.name ?? message.tool_name;
    return joined(whoIs(person), name, said, ...calls);
  },
};

export const tokensOf = ({ data }) => data?.completion?.usage?.total_tokens ?? null;

export function formatLength(ms) {
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} m ${seconds % 60} s`;
  if (ms < 86_400_000) return `${(ms / 3_600_000).toFixed(1)} h`;
  return `${(ms / 86_400_000).toFixed(1)} d`;
}

export const elapsed = (from, to) => `+${formatLength(Math.max(new Date(to) - new Date(from), 0))}`;

const BAD_ENDS = new Set(["run.failed", "run.interrupted", "guardrail.tripped", "compaction.failed"]);
const BAD_RESULTS = new Set(["error", "timeout", "unknown_outcome", "denied"]);

// True for events that report a failure.
export const isBad = ({ type, data }) => BAD_ENDS.has(type) || BAD_RESULTS.has(data?.tool?.status);

const hasCalls = ({ data }) => data?.message?.tool_calls?.length > 0;

function isOfKind(event, kind) {
  if (kind === "all") return true;
  if (kind === "bad") return isBad(event);
  return kindOf(event) === kind || (kind === "tool" && hasCalls(event));
}

export function matches(event, kind, words) {
  if (!isOfKind(event, kind)) return false;
  if (!words) return true;
  return `${event.type} ${event.agent} ${titleOf(event)} ${summaryOf(event)}`.toLowerCase().includes(words);
}

// What a change did to an object's keys: one entry each that is not as it was.
export function changes(before, after) {
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  return names
    .filter((name) => JSON.stringify(before[name]) !== JSON.stringify(after[name]))
    .map((name) => ({ name, before: before[name], after: after[name], how: !Object.hasOwn(before, name) ? t.added : !Object.hasOwn(after, name) ? t.removed : t.changed }));
}
