// Who sits before this page, as the server knows them, and what they may do.

import { get } from "./api.js";
import { text } from "./text.js";

export const me = { known: null };

// Raises whatever the server refuses with. A server that cannot say who it is lets its routes refuse.
export async function findMe() {
  try {
    me.known = await get("me");
  } catch (error) {
    me.known = null;
    if (error.status !== 404) throw error;
  }
  return me.known;
}

export const may = (permission) => me.known === null || me.known.permissions.includes(permission);

// Names before ids.
export function nameOfMe() {
  const { key, tenant, role } = me.known ?? {};
  return key ? text.key.me(key.name || key.id, tenant, role) : null;
}
