// What was said in the session of an agent that was asked, within the call that asks it. It is to be looked at: what is to be done
// about it is done there.

import { get, sessionPath } from "./api.js";
import { clear, h } from "./dom.js";
import { fold } from "./fold.js";
import { itemNode } from "./items.js";
import { LATEST, readEnd } from "./latest.js";
import { continues } from "./log.js";
import { text } from "./text.js";

export async function showBelow(node, id) {
  try {
    const session = await get(sessionPath(id));
    const state = fold(await readEnd(session));
    clear(node, session.seq > LATEST && h("p", { class: "muted" }, text.asked.part(LATEST)), itemNodes(state, id));
  } catch (error) {
    clear(node, h("p", { class: "reason" }, error.message));
  }
}

function itemNodes(state, id) {
  const act = { session: () => id, context: () => state.context, may: () => false };
  const laneOf = (agent) => Math.max(state.agents.indexOf(agent), 0);
  // Who asked is above.
  const items = state.items.filter(({ kind }) => kind !== "asked");
  return items.map((item, index) => itemNode(item, { act, laneOf, continued: continues(item, items[index - 1]) }));
}
