// Figures as bars. What they show stands in a table as well; the bars are for the eye.

import { bdi, h } from "./dom.js";

const CHART_SPACE = "http://www.w3.org/2000/svg";
const DAY_HEIGHT = 100;
const DAY_GAP = 0.2;

function chartPart(tag, attributes, ...children) {
  const node = document.createElementNS(CHART_SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function chartBar(x, y, width, height, told) {
  const bar = chartPart("rect", { class: "chart-bar", x, y, width, height });
  if (told) {
    const title = chartPart("title", {});
    title.textContent = told;
    bar.append(title);
  }
  return bar;
}

// Columns, one a day: `values` of pairs of a name and an amount. `label` says in words what one sees.
export function columnChart(values, { label, show }) {
  const most = Math.max(...values.map(([, amount]) => amount), 0);
  const bars = values.map(([name, amount], index) => {
    const height = most ? (amount / most) * DAY_HEIGHT : 0;
    return chartBar(index + DAY_GAP / 2, DAY_HEIGHT - height, 1 - DAY_GAP, height, `${name}: ${show(amount)}`);
  });
  const svg = chartPart("svg", { class: "day-bars", viewBox: `0 0 ${values.length} ${DAY_HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, ...bars);
  return h("div", { class: "chart" },
    h("div", { class: "chart-most", "aria-hidden": "true" }, most ? show(most) : ""), svg,
    h("div", { class: "chart-ends", "aria-hidden": "true" }, h("span", {}, values[0][0]), h("span", {}, values.at(-1)[0])));
}

// Lines of bars with their names: `values` of a name, an amount and, if it leads somewhere, an address.
export function lineChart(values, { show }) {
  const most = Math.max(...values.map(({ amount }) => amount), 0);
  return h("ul", { class: "chart lines" }, values.map(({ name, amount, href, title }) => h("li", { class: "chart-line" },
    href ? h("a", { class: "chart-name", href, title, dir: "auto" }, name) : h("span", { class: "chart-name" }, bdi(name)),
    chartPart("svg", { class: "line-bar", viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" }, chartBar(0, 0, most ? (amount / most) * 100 : 0, 1)),
    h("span", { class: "chart-amount" }, show(amount)))));
}
