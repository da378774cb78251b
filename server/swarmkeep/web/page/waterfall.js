// The rows of runs: a head with what a run took, and a bar for each thing that took time in it.

import { formatLength } from "./descriptions.js";
import { h, icon, lane, timeOf } from "./dom.js";
import { costOf, costOfRun, formatCost } from "./prices.js";
import { endOfRun, isBadSpan, lengthOfSpan, runTotals } from "./spans.js";
import { scaleFor } from "./timescale.js";
import { text } from "./text.js";

const runText = text.runs;
const NARROWEST_BAR = 0.4;

export function headRow(run, folded) {
  const sum = runTotals(run);
  const cost = costOfRun(run);
  const said = [runText.calls(sum.calls), sum.tools && runText.tools(sum.tools), runText.tokens(sum.prompt, sum.completion), sum.cached && runText.cached(sum.cached)].filter(Boolean).join(" · ");
  return [
    icon(folded ? "right" : "down"),
    h("span", { class: "run-name" }, runText.name(run.number)),
    h("span", { class: `state ${run.status}` }, text.status[run.status] ?? run.status),
    h("span", { class: "row-summary" }, said, run.error && ` · ${run.error.message}`),
    cost && h("span", { class: "row-tokens" }, cost),
    h("span", { class: "row-time" }, formatLength(endOfRun(run) - run.begun)),
  ];
}

export function spanRow(run, span, laneOf) {
  return [
    h("span", { class: "span-agent" }, span.agent ? lane(h("span", { class: "dot", "aria-hidden": "true" }), laneOf(span.agent)) : null),
    h("span", { class: `row-title span-name ${isBadSpan(span) ? "bad" : ""}`, "aria-hidden": "true" }, h("span", { class: "span-kind" }, runText.kinds[span.kind]), h("bdi", {}, span.name)),
    h("span", { class: "track", "aria-hidden": "true" }, spanBar(run, span)),
    h("span", { class: "row-time", "aria-hidden": "true" }, span.from === span.to ? "" : formatLength(lengthOfSpan(span, run))),
    h("span", { class: "unseen" }, describeSpan(run, span)),
  ];
}

function spanBar(run, span) {
  const place = scaleFor(run);
  const [from, to] = [place(span.from), place(span.to ?? endOfRun(run))].map((part) => part * 100);
  const width = Math.max(to - from, NARROWEST_BAR);
  const node = h("span", { class: `bar bar-${span.kind} ${isBadSpan(span) ? "bad" : ""} ${span.to === null ? "open" : ""}`, title: describeSpan(run, span) });
  node.style.insetInlineStart = `${Math.min(from, 100 - NARROWEST_BAR)}%`;
  node.style.width = `${width}%`;
  const waited = span.first && lengthOfSpan(span, run) ? Math.min(span.first / lengthOfSpan(span, run), 1) : 0;
  if (waited) {
    const silent = h("span", { class: "bar-silent" });
    silent.style.width = `${waited * 100}%`;
    node.append(silent);
  }
  return node;
}

export const spanStatus = ({ status }) => (status === "ok" ? "" : status === "open" ? runText.open : status === "cut" ? text.chat.partial : text.tool[status] ?? status);

// All of it in words, for those who do not see the bar.
function describeSpan(run, span) {
  const { first, tokens, agent, kind, name } = span;
  const cost = formatCost(costOf(span));
  return [
    `${runText.kinds[kind]} ${name}`.trim(),
    agent && runText.by(agent),
    spanStatus(span),
    runText.began(formatLength(Math.max(span.from - run.begun, 0))),
    span.from === span.to ? null : runText.took(formatLength(lengthOfSpan(span, run))),
    first === null || first === undefined ? null : runText.first(formatLength(first)),
    tokens && runText.tokens(tokens.prompt, tokens.completion),
    tokens?.cached ? runText.cached(tokens.cached) : null,
    cost,
  ].filter(Boolean).join(", ");
}

export const beganAt = (run) => timeOf(new Date(run.begun));
