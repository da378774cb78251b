// What is shown at each kind of address. The chat is there at once, all else is loaded when it is first asked for.

import { Chat } from "./chat.js";

const LOADS = {
  timeline: async () => (await import("./timeline.js")).Timeline,
  agents: async () => (await import("./agents.js")).AgentsView,
  compare: async () => (await import("./compare.js")).Compare,
  inbox: async () => (await import("./inboxview.js")).InboxView,
  usage: async () => (await import("./usage.js")).UsageView,
  audit: async () => (await import("./auditlog.js")).AuditLog,
};
const loaded = { chat: Chat };

export const viewOf = (name) => loaded[name] ?? null;

export async function loadView(name) {
  loaded[name] ??= await LOADS[name]();
}
