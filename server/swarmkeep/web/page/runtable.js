// A run as a table: the same as its bars, for those who want figures, or do not see.

import { formatLength } from "./descriptions.js";
import { h } from "./dom.js";
import { costOf, costOfRun, formatCost } from "./prices.js";
import { hrefOf } from "./route.js";
import { endOfRun, lengthOfSpan, sortedSpans, runTotals } from "./spans.js";
import { text } from "./text.js";
import { beganAt, spanStatus } from "./waterfall.js";

const columnNames = text.runs.columns;
// Of a run that went on and on, the first ones.
const MOST_LINES = 500;

export function runTable(run, session, as = null) {
  const spans = sortedSpans(run);
  const sum = runTotals(run);
  const number = (count) => (count ? count.toLocaleString("en") : "");
  const cells = (...values) => values.map((value) => h("td", {}, value));
  const line = (span) => h("tr", {},
    h("th", { scope: "row" }, h("a", { href: hrefOf({ view: "timeline", id: session, at: span.seq, as }) }, `${text.runs.kinds[span.kind]} `, h("bdi", {}, span.name))),
    cells(h("bdi", {}, span.agent ?? ""), spanStatus(span), formatLength(Math.max(span.from - run.begun, 0)), span.from === span.to ? "" : formatLength(lengthOfSpan(span, run)),
      span.first ? formatLength(span.first) : "", number(span.tokens?.prompt), number(span.tokens?.cached), number(span.tokens?.completion), formatCost(costOf(span))));
  return h("div", { class: "run-table" },
    h("div", { class: "wide", tabindex: 0, role: "group", "aria-label": text.runs.table(run.number) },
      h("table", {},
        h("thead", {}, h("tr", {}, columnNames.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, spans.slice(0, MOST_LINES).map(line)),
        h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, text.runs.all),
          cells("", text.status[run.status] ?? run.status, beganAt(run), formatLength(endOfRun(run) - run.begun), "", number(sum.prompt), number(sum.cached), number(sum.completion), costOfRun(run)))))),
    spans.length > MOST_LINES && h("p", { class: "muted" }, text.runs.more(spans.length - MOST_LINES)));
}
