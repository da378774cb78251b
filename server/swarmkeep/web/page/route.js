// Addresses of views, and the filters of the session list in them.

import { bdi, clear, h } from "./dom.js";
import { text } from "./text.js";

// What is looked for in the list of sessions: as the address has it, as the server is asked for it, and what it found.

const FILTER_NAMES = ["q", "status", "last", "agent", "owner", "active"];
const LABEL = /^([^=\s"]+)=("[^"]*"|\S*)$/;
const HOURS = { hour: 1, day: 24, week: 24 * 7, month: 24 * 30 };
export const SPANS = Object.keys(HOURS);
export const STATES = ["idle", "running", "waiting"];
export const ENDS = ["completed", "failed", "interrupted", "cancelled"];
// What an address may have of each. An agent of any name may be looked for, and any words up to some length.
const LONGEST_WORDS = 300;
const FILTERS = { status: STATES, last: ENDS, active: SPANS };

let kept = {};

// Words behind the `?` of the address, and none of those that a view has there.
const filterParts = () => FILTER_NAMES.filter((name) => kept[name]).map((name) => [name, kept[name]]);

export const chosenFilters = () => kept;

// An address that says nothing of filters leaves them as they are: it is a link to a session.
function adoptFilters(query) {
  const given = new URLSearchParams(query);
  const found = FILTER_NAMES.map((name) => [name, checkedFilter(name, given.get(name) ?? "")]).filter(([, value]) => value);
  if (found.length) kept = Object.fromEntries(found);
  return found.length > 0;
}

function checkedFilter(name, value) {
  if (Object.hasOwn(FILTERS, name)) return FILTERS[name].includes(value) ? value : "";
  return Array.from(value).slice(0, LONGEST_WORDS).join("").trim();
}

export function chooseFilters(values) {
  kept = values;
}

// `key=value` narrows down by metadata; all else is looked for in what was said.
export function wordsOf(typed = "") {
  const parts = typed.match(/[^=\s"]+="[^"]*"|\S+/g) ?? [];
  const labels = parts.map((part) => part.match(LABEL)).filter(Boolean);
  const words = parts.filter((part) => !LABEL.test(part)).join(" ");
  return { words, labels: labels.map(([, name, value]) => [name, value.replace(/^"|"$/g, "")]) };
}

export function listQuery({ q, status, last, agent, owner, active }, { cursor = null, now = Date.now() } = {}) {
  const query = new URLSearchParams({ limit: "50", order: "activity" });
  const { words, labels } = wordsOf(q);
  if (words) query.set("q", Array.from(words).slice(0, 200).join(""));
  for (const [name, value] of labels) query.set(`metadata.${name}`, value);
  if (status) query.set("status", status);
  if (last) query.set("last_run", last);
  if (agent) query.set("agent", agent);
  if (owner) query.set("assignee", Array.from(owner).slice(0, 200).join(""));
  if (HOURS[active]) query.set("active_after", new Date(now - HOURS[active] * 3_600_000).toISOString());
  if (cursor) query.set("cursor", cursor);
  return `sessions?${query}`;
}

// The places where something was found. The server counts characters, and a string of JavaScript counts otherwise.
export function matchLines(matches, hrefOfSeq) {
  return (matches ?? []).filter(({ snippet }) => snippet).map(({ seq, snippet, ranges }) => {
    const line = markedText(snippet, ranges);
    return seq === null ? h("p", { class: "hit" }, line) : h("a", { class: "hit", href: hrefOfSeq(seq), title: text.sessions.hit(seq) }, line);
  });
}

function markedText(snippet, ranges) {
  const characters = Array.from(snippet);
  const node = bdi("");
  let at = 0;
  clear(node);
  for (const [begin, end] of ranges) {
    if (begin < at) continue;
    node.append(characters.slice(at, begin).join(""), h("mark", {}, characters.slice(begin, end).join("")));
    at = end;
  }
  node.append(characters.slice(at).join(""));
  return node;
}

// Where the page is: `#/chat`, `#/chat/ID?at=12`, `#/timeline`, `#/timeline/ID?at=12&from=4&as=runs`, `#/agents`, `#/agents/NAME`,
// `#/compare/ID?with=OTHER`, `#/audit`, `#/webhooks`, `#/inbox/ID?show=failed`, `#/usage?days=90&measure=calls`, `#/runs?state=failed&sort=latency_ms`; and behind the `?` what is looked for in the list of sessions, which links leave as it is.

const VIEWS = new Set(["chat", "timeline", "agents", "compare", "audit", "inbox", "usage", "runs", "webhooks"]);
// Views that are about no session: the one that was open stays so behind them.
export const OF_NO_SESSION = new Set(["agents", "audit", "inbox", "usage", "runs", "webhooks"]);
// What is chosen in these, by names that no filter of the list of sessions has.
const CHOICES = { inbox: ["show", "seen"], usage: ["days", "measure", "of", "model"], runs: ["show", "state", "of", "model", "stop", "error", "since", "until", "sort", "by", "cols"] };
const SHAPES_SHOWN = new Set(["runs", "waterfall"]);

export function parseRoute(hash = location.hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [view, id] = path.split("/");
  const asked = new URLSearchParams(query);
  const seqOf = (name, least) => (/^\d{1,15}$/.test(asked.get(name)) && Number(asked.get(name)) >= least ? Number(asked.get(name)) : null);
  const named = id ? decodePart(id) : null;
  return {
    view: VIEWS.has(view) ? view : "chat",
    // Of a session, also beside the inbox; an agent has a `name`.
    id: OF_NO_SESSION.has(view) && view !== "inbox" ? null : named,
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
