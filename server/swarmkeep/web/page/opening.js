// How a run began: what was said, what was asked for besides, and the last event before all of that.

// Another run has every option but these: how that one was followed, its server's limits, and what names its session.
const NOT_ASKED = ["stream", "loop_turns", "history_turns", "request"];

// The opening that the message of event `seq` belongs to; `index` is its place among the messages.
export function openingOf(events, seq) {
  const { run_id: run, data } = events[seq - 1];
  const begun = run ? events.find((event) => event.run_id === run && event.type === "run.started") : undefined;
  const alone = { at: seq - 1, messages: [data.message], index: 0, options: {} };
  if (!begun || begun.seq > seq) return alone;
  const opening = { at: begun.seq - 1, messages: [], index: -1, options: optionsOf(begun.data?.options) };
  for (const event of events.slice(begun.seq)) {
    if (event.run_id !== run) continue;
    if (!takeIn(opening, event)) break;
    if (event.seq === seq) opening.index = opening.messages.length - 1;
  }
  return opening.index < 0 ? alone : opening;
}

function optionsOf(options) {
  return Object.fromEntries(Object.entries(options ?? {}).filter(([name, value]) => value !== null && !NOT_ASKED.includes(name)));
}

function takeIn({ messages, options }, { type, data }) {
  if (data === null || typeof data !== "object") return false;
  if (type === "session.updated" && data.agent && !messages.length) options.agent = data.agent;
  else if (type === "context.updated" && !data.tool_call_id && !messages.length) options.context_variables = data.patch;
  else if (type === "message.added" && !data.completion && !data.tool) messages.push(data.message);
  else return false;
  return true;
}

// A message with other words: its files stay.
export function reword(message, words) {
  if (!Array.isArray(message.content)) return { ...message, content: words };
  const rest = message.content.filter((part) => part?.type !== "text");
  return { ...message, content: words ? [{ type: "text", text: words }, ...rest] : rest };
}
