// What was said in the session of an agent that was asked, within the call that asks it. It is to be looked at: what is to be done
// about it is done there.

import { get, sessionPath } from "./api.js";
import { clear, h } from "./dom.js";
import { fold } from "./fold.js";
import { LATEST, readEnd } from "./latest.js";
import { text } from "./text.js";

// `nodesOf` draws items: within these there may be such calls again.
export async function showBelow(node, id, nodesOf) {
  try {
    const session = await get(sessionPath(id));
    const state = fold(await readEnd(session));
    const act = { session: () => id, context: () => state.context, may: () => false };
    const laneOf = (agent) => Math.max(state.agents.indexOf(agent), 0);
    // Who asked is above.
    const items = state.items.filter(({ kind }) => kind !== "asked");
    clear(node, session.seq > LATEST && h("p", { class: "muted" }, text.asked.part(LATEST)), nodesOf(items, { act, laneOf }));
  } catch (error) {
    clear(node, h("p", { class: "reason" }, error.message));
  }
}
