// An event in the timeline's list, as one line.

import { clear, h, icon, lane, since, timeOf } from "./dom.js";
import { elapsed, isBad, kindOf, summaryOf, titleOf, tokensOf } from "./descriptions.js";
import { text } from "./text.js";

// So many agents have a lane each; of more, an event's own is named in its row.
const LANES = 6;

// `differs`: in what today's agents would do otherwise, if it was asked.
export function eventRow(event, { damage, differs, before, agents }) {
  const tokens = tokensOf(event);
  return [
    h("span", { class: "row-seq" }, String(event.seq)),
    lanesOf(event.agent, agents),
    h("span", { class: `row-title kind-${kindOf(event)} ${damage || isBad(event) ? "bad" : ""}` }, titleOf(event)),
    damage ? h("span", { class: "row-damage", title: damage.detail }, icon("cross"), text.timeline.damagedRow) : null,
    differs ? h("span", { class: "row-damage differs", title: differs.map(({ kind }) => text.today.kinds[kind] ?? kind).join(", ") }, text.today.mark) : null,
    h("span", { class: "row-summary", dir: "auto" }, summaryOf(event).slice(0, 200)),
    tokens ? h("span", { class: "row-tokens" }, text.timeline.tokens(tokens)) : null,
    h("time", { class: "row-time", datetime: event.at, title: timeOf(event.at) }, before ? elapsed(before.at, event.at) : since(event.at)),
  ];
}

export function lanesOf(agent, agents) {
  const here = agents.indexOf(agent);
  if (agents.length > LANES) return h("span", { class: "row-who" }, agent ? lane(h("span", { class: "dot", "aria-hidden": "true" }), here) : null, h("bdi", {}, agent));
  const places = agents.map((_, index) => lane(h("span", { class: `lane ${index === here ? "here" : ""}` }), index));
  return [h("span", { class: "lanes", "aria-hidden": "true" }, places), h("span", { class: "unseen" }, agent)];
}

// Who is in which lane.
export function showLegend(node, agents) {
  if (node.childElementCount === agents.length) return;
  clear(node, agents.map((agent, index) => h("li", {}, lane(h("span", { class: "dot", "aria-hidden": "true" }), index), h("span", { dir: "auto" }, agent))));
}
