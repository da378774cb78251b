// What is looked for in the list of sessions: as the address has it, as the server is asked for it, and what it found.

import { bdi, clear, h } from "./dom.js";
import { text } from "./text.js";

const FILTER_NAMES = ["q", "status", "last", "agent", "active"];
const LABEL = /^([^=\s"]+)=("[^"]*"|\S*)$/;
const HOURS = { hour: 1, day: 24, week: 24 * 7, month: 24 * 30 };
export const SPANS = Object.keys(HOURS);
export const STATES = ["idle", "running", "waiting"];
export const ENDS = ["completed", "failed", "interrupted", "cancelled"];
// What an address may have of each. An agent of any name may be looked for, and any words up to some length.
const LONGEST_WORDS = 300;
const CHOICES = { status: STATES, last: ENDS, active: SPANS };

let kept = {};

// Words behind the `?` of the address, and none of those that a view has there.
export const filterParts = () => FILTER_NAMES.filter((name) => kept[name]).map((name) => [name, kept[name]]);

export const chosenFilters = () => kept;

// An address that says nothing of filters leaves them as they are: it is a link to a session.
export function adoptFilters(query) {
  const given = new URLSearchParams(query);
  const found = FILTER_NAMES.map((name) => [name, checkedFilter(name, given.get(name) ?? "")]).filter(([, value]) => value);
  if (found.length) kept = Object.fromEntries(found);
  return found.length > 0;
}

function checkedFilter(name, value) {
  if (Object.hasOwn(CHOICES, name)) return CHOICES[name].includes(value) ? value : "";
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

export function listQuery({ q, status, last, agent, active }, { cursor = null, now = Date.now() } = {}) {
  const query = new URLSearchParams({ limit: "50", order: "activity" });
  const { words, labels } = wordsOf(q);
  if (words) query.set("q", Array.from(words).slice(0, 200).join(""));
  for (const [name, value] of labels) query.set(`metadata.${name}`, value);
  if (status) query.set("status", status);
  if (last) query.set("last_run", last);
  if (agent) query.set("agent", agent);
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
