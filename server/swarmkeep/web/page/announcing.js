// What has just happened in a conversation, said aloud.

import { whoIs } from "./descriptions.js";
import { text } from "./text.js";

// For screen readers: each thing once, when it is whole.
export function announce(app, items, event) {
  for (const item of items) {
    if (item.kind === "assistant") app.say(text.chat.says(whoIs(item.agent), item.text.slice(0, 1000)));
    else if (item.kind === "takeover") app.say((item.back ? text.takeover.gaveBack : text.takeover.took)(whoIs(item.by)));
    else if (item.kind === "handoff" && item.made) app.say(text.handoff.made(item.from, item.to));
    else if (item.kind === "end") app.say(text.notice[item.status] ?? text.notice[item.stop] ?? item.status);
  }
  if (event.type === "approval.requested" && event.data) app.say(text.approval.needed(event.data.name));
  if (event.type !== "run.waiting") return;
  for (const { name, reason } of event.data?.pending ?? []) {
    if (reason === "tool_results") app.say(text.outside.needed(name));
    if (reason === "person") app.say(text.takeover.needed);
    if (reason === "session") app.say(text.asked.needed(name));
  }
}
