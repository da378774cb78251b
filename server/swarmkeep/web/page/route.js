// Where the page is: `#/chat`, `#/chat/ID?at=12`, `#/timeline`, `#/timeline/ID?at=12&from=4&as=runs`, `#/agents`, `#/agents/NAME`,
// `#/compare/ID?with=OTHER`, `#/audit`, `#/inbox?show=failed`, `#/usage?days=90&measure=calls`; and behind the `?` what is looked for in the list of sessions, which links leave as it is.

import { adoptFilters, filterParts } from "./finding.js";

const VIEWS = new Set(["chat", "timeline", "agents", "compare", "audit", "inbox", "usage"]);
// Views that are about no session: the one that was open stays so behind them.
export const OF_NO_SESSION = new Set(["agents", "audit", "inbox", "usage"]);
// What is chosen in these, by names that no filter of the list of sessions has.
const CHOICES = { inbox: ["show", "seen"], usage: ["days", "measure", "of", "model"] };
const SHAPES_SHOWN = new Set(["runs", "waterfall"]);

export function parseRoute(hash = location.hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [view, id] = path.split("/");
  const asked = new URLSearchParams(query);
  const seqOf = (name, least) => (/^\d{1,15}$/.test(asked.get(name)) && Number(asked.get(name)) >= least ? Number(asked.get(name)) : null);
  const named = id ? decodePart(id) : null;
  return {
    view: VIEWS.has(view) ? view : "chat",
    // Of a session; an agent has a `name`.
    id: OF_NO_SESSION.has(view) ? null : named,
    name: view === "agents" ? named : null,
    at: seqOf("at", 1),
    from: seqOf("from", 0),
    other: asked.get("with") || null,
    choices: Object.fromEntries((CHOICES[view] ?? []).filter((name) => asked.get(name)).map((name) => [name, asked.get(name)])),
    as: SHAPES_SHOWN.has(asked.get("as")) ? asked.get("as") : null,
  };
}

function decodePart(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function hrefOf({ view, id = null, name = null, at = null, from = null, other = null, as = null, choices = {} }) {
  const parts = [["at", at], ["from", at && from], ["with", other], ["as", as], ...Object.entries(choices)].filter(([, value]) => value !== null);
  const query = parts.map(([part, value]) => `${part}=${encodeURIComponent(value)}`);
  return `#/${view}${id ?? name ? `/${encodeURIComponent(id ?? name)}` : ""}${query.length ? `?${query.join("&")}` : ""}`;
}

export const go = (route) => {
  location.hash = hrefOf(route);
};

// Without a new step in the history, for what changes as often as a slider does.
export const replaceRoute = (route) => {
  const href = hrefOf(route);
  const found = new URLSearchParams(filterParts()).toString();
  history.replaceState(null, "", found ? `${href}${href.includes("?") ? "&" : "?"}${found}` : href);
};

// What the address says of filters counts; one that says nothing gets those that there are. Says whether it did.
export function adoptAddress() {
  const adopted = adoptFilters(location.hash.split("?")[1] ?? "");
  if (!adopted && filterParts().length) replaceRoute(parseRoute());
  return adopted;
}
