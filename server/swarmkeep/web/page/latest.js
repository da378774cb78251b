// The end of a long session, made of its last events alone: it is there to look at until all of them are.

import { get, sessionPath } from "./api.js";
import { fold } from "./fold.js";

// Whoever is so far behind has the end first.
const FAR = 1_000;
export const LATEST = 200;

export const isFar = (missing) => missing > FAR;

// `session` is what the server says of it.
export async function readLatest(session, signal) {
  const state = fold(await readEnd(session, signal));
  const { agent, metadata, title, context_variables: context, message_count: messages, active_run_id: run } = session;
  if (!state.run && run) state.run = { id: run, status: session.status, pending: [] };
  const taken = session.taken_over ? { note: null, ...session.taken_over } : null;
  const outlook = state.outlook === "idle" ? session.status : state.outlook;
  return Object.assign(state, { agent, metadata, title, context, messages, taken, outlook, status: session.status, isPart: true });
}

// A page of large events ends early, and is not the end then.
export async function readEnd({ id, seq }, signal) {
  const [events, after] = [[], Math.max(seq - LATEST, 0)];
  let cursor = "";
  do {
    const { data, next_cursor: next } = await get(sessionPath(id, `/events?after=${after}&limit=${LATEST}${cursor}`), { signal });
    events.push(...data);
    cursor = next && `&cursor=${encodeURIComponent(next)}`;
  } while (cursor);
  return events;
}
