// Usage by day, agent and model, as charts and tables.

import { get } from "./api.js";
import { bdi, clear, h, redraw, wideTable } from "./dom.js";
import { go, hrefOf } from "./route.js";
import { text } from "./text.js";
import { viewText } from "./viewtext.js";

// Figures as bars. What they show stands in a table as well; the bars are for the eye.

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
function columnChart(values, { label, show, open }) {
  const most = Math.max(...values.map(([, amount]) => amount), 0);
  const bars = values.map(([name, amount], index) => {
    const height = most ? (amount / most) * DAY_HEIGHT : 0;
    const bar = chartBar(index + DAY_GAP / 2, DAY_HEIGHT - height, 1 - DAY_GAP, height, `${name}: ${show(amount)}`);
    // The same is a link in the table behind it, for the keyboard.
    bar.addEventListener("click", () => open(name));
    return bar;
  });
  const svg = chartPart("svg", { class: "day-bars", viewBox: `0 0 ${values.length} ${DAY_HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, ...bars);
  return h("div", { class: "chart" },
    h("div", { class: "chart-most", "aria-hidden": "true" }, most ? show(most) : ""), svg,
    h("div", { class: "chart-ends", "aria-hidden": "true" }, h("span", {}, values[0][0]), h("span", {}, values.at(-1)[0])));
}

// Lines of bars with their names: `values` of a name, an amount and, if it leads somewhere, an address; `runs` is that of its runs.
function lineChart(values, { show }) {
  const most = Math.max(...values.map(({ amount }) => amount), 0);
  const bar = (amount, runs) => {
    const drawn = chartBar(0, 0, most ? (amount / most) * 100 : 0, 1);
    // The amount beside it is the link to the same, for the keyboard.
    if (runs) drawn.addEventListener("click", () => (location.hash = runs));
    return chartPart("svg", { class: `line-bar${runs ? " leads" : ""}`, viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" }, drawn);
  };
  return h("ul", { class: "chart lines" }, values.map(({ name, amount, href, title, runs }) => h("li", { class: "chart-line" },
    href ? h("a", { class: "chart-name", href, title, dir: "auto" }, name) : h("span", { class: "chart-name" }, bdi(name)),
    bar(amount, runs),
    runs ? h("a", { class: "chart-amount", href: runs, title: viewText.usage.runsOf(name) }, show(amount)) : h("span", { class: "chart-amount" }, show(amount)))));
}

// What model and tool calls took, by day, agent and model: as charts, each with a table behind it.

const usageText = viewText.usage;
const SPAN_DAYS = ["7", "30", "90", "365"];
const USUAL_DAYS = "30";
const DAY_MS = 86_400_000;
const GROUPS = ["day", "agent", "model"];
const MOST_LINES_SHOWN = 12;
// However much happens, it is not added up more often.
const AGAIN_MS = 10_000;
const MEASURES = {
  tokens: (row) => row.total_tokens,
  calls: (row) => row.model_calls,
  tools: (row) => row.tool_calls,
  time: (row) => row.model_ms + row.tool_ms,
  cost: (row) => row.cost?.amount ?? 0,
};
const dayText = (ms) => new Date(ms).toISOString().slice(0, 10);

export class UsageView {
  constructor(app, route) {
    this.app = app;
    this.rows = null;
    const picker = (label, name) => h("select", { class: "field", "aria-label": label, onchange: (event) => this.app.choose({ [name]: event.target.value }) });
    this.days = picker(usageText.days, "days");
    this.agent = picker(usageText.agent, "of");
    this.model = picker(usageText.model, "model");
    this.measure = picker(usageText.measure, "measure");
    this.days.append(...SPAN_DAYS.map((count) => h("option", { value: count }, usageText.lastDays[count])));
    this.note = h("p", { class: "note muted", role: "status" }, usageText.loading);
    this.charts = h("div", { class: "usage-charts" });
    this.node = h("section", { class: "usage", "aria-label": text.usage.title },
      h("header", { class: "view-head" }, h("h1", { class: "view-title" }, text.usage.title)),
      h("div", { class: "row usage-bar" }, this.measure, this.days, this.agent, this.model),
      h("div", { class: "scroll usage-main", tabindex: 0, role: "group", "aria-label": text.usage.title }, this.note, this.charts));
    this.moved(route);
  }

  close() {
    clearTimeout(this.due);
    this.closed = true;
  }

  moved({ choices }) {
    const before = this.asked;
    this.choices = choices;
    this.asked = JSON.stringify([this.span, choices.of, choices.model]);
    if (before === this.asked) this.draw();
    else this.load();
  }

  get span() {
    return SPAN_DAYS.includes(this.choices.days) ? this.choices.days : USUAL_DAYS;
  }

  get shown() {
    const named = this.choices.measure;
    return Object.hasOwn(MEASURES, named ?? "") && (named !== "cost" || this.currency) ? named : "tokens";
  }

  // Something was recorded somewhere.
  noteChanges() {
    this.due ??= setTimeout(() => {
      this.due = null;
      this.load();
    }, AGAIN_MS);
  }

  async load() {
    const turn = (this.turn = {});
    const last = Date.now();
    this.first = last - (Number(this.span) - 1) * DAY_MS;
    const only = { from: dayText(this.first), to: dayText(last), ...(this.choices.of && { agent: this.choices.of }), ...(this.choices.model && { model: this.choices.model }) };
    try {
      const found = await Promise.all(GROUPS.map((group) => usageRows(group, only)));
      if (turn !== this.turn || this.closed) return;
      this.rows = Object.fromEntries(GROUPS.map((group, index) => [group, found[index]]));
    } catch (error) {
      if (turn !== this.turn || this.closed) return;
      this.rows = null;
      clear(this.charts);
      this.says(error.message);
      return;
    }
    this.draw();
  }

  says(words) {
    this.note.textContent = words;
    this.note.hidden = !words;
  }

  draw() {
    const { rows } = this;
    if (!rows) return;
    this.currency = rows.day.find(({ cost }) => cost)?.cost.currency ?? null;
    this.fill();
    const narrowed = this.choices.of || this.choices.model;
    const unpriced = rows.day.reduce((sum, { cost }) => sum + (cost?.unpriced_calls ?? 0), 0);
    this.says(!rows.day.length ? (narrowed ? usageText.nothingOf : usageText.nothing) : this.shown === "cost" && unpriced ? usageText.unpriced(unpriced) : "");
    const open = new Set([...this.charts.querySelectorAll("details[open]")].map(({ dataset }) => dataset.group));
    redraw(this.charts, () => clear(this.charts, rows.day.length ? GROUPS.map((group) => this.figure(group, open.has(group))) : []));
  }

  fill() {
    const options = (node, all, names, chosen) => {
      const found = [...new Set([...names, ...(chosen ? [chosen] : [])])];
      clear(node, h("option", { value: "" }, all), found.map((name) => h("option", { value: name }, name)));
      node.value = chosen ?? "";
    };
    options(this.agent, usageText.anyAgent, [...this.app.agents.map(({ name }) => name), ...this.rows.agent.map(({ agent }) => agent)], this.choices.of);
    options(this.model, usageText.anyModel, this.rows.model.map(({ model }) => model).filter(Boolean), this.choices.model);
    clear(this.measure, Object.keys(MEASURES).filter((name) => name !== "cost" || this.currency).map((name) => h("option", { value: name }, usageText.measures[name])));
    this.measure.value = this.shown;
    this.days.value = this.span;
  }

  figure(group, open) {
    const show = (amount) => this.show(amount);
    const amountOf = MEASURES[this.shown];
    const sum = this.rows.day.reduce((total, row) => total + amountOf(row), 0);
    const label = `${usageText.by[group]}, ${usageText.sum(usageText.measures[this.shown], show(sum))}`;
    return h("figure", { class: "usage-figure" },
      h("figcaption", {}, h("h2", {}, usageText.by[group]), h("span", { class: "muted" }, usageText.sum(usageText.measures[this.shown], show(sum)))),
      group === "day" ? this.dayChart(label, amountOf, show) : lineChart(this.lines(group, amountOf), { show }),
      this.table(group, open));
  }

  dayChart(label, amountOf, show) {
    const amounts = new Map(this.rows.day.map((row) => [row.day, amountOf(row)]));
    const values = Array.from({ length: Number(this.span) }, (_, index) => dayText(this.first + index * DAY_MS)).map((day) => [day, amounts.get(day) ?? 0]);
    const [day, most] = values.reduce((best, value) => (value[1] > best[1] ? value : best));
    return columnChart(values, { label: `${label}. ${usageText.most(day, show(most))}`, show, open: (name) => go({ view: "runs", choices: this.runsOf("day", name) }) });
  }

  lines(group, amountOf) {
    const values = this.rows[group].map((row) => ({ ...this.named(group, row), amount: amountOf(row) })).filter(({ amount }) => amount > 0).sort((one, other) => other.amount - one.amount);
    const rest = values.slice(MOST_LINES_SHOWN);
    return rest.length ? [...values.slice(0, MOST_LINES_SHOWN), { name: usageText.others(rest.length), amount: rest.reduce((sum, { amount }) => sum + amount, 0) }] : values;
  }

  // A name leads to the same of that agent or model only.
  named(group, row) {
    const name = row[group];
    if (name === null) return { name: usageText.noModel };
    const runs = hrefOf({ view: "runs", choices: this.runsOf(group, name) });
    if (group === "day") return { name, href: runs };
    return { name, runs, title: usageText.only(name), href: hrefOf({ view: "usage", choices: { ...this.choices, [group === "agent" ? "of" : "model"]: name } }) };
  }

  // The runs behind a bar, by when they began.
  runsOf(group, name) {
    const [since, until] = group === "day" ? [name, name] : [dayText(this.first), dayText(this.first + (Number(this.span) - 1) * DAY_MS)];
    const { of, model } = this.choices;
    return { ...(of && { of }), ...(model && { model }), since, until, ...(group !== "day" && { [group === "agent" ? "of" : "model"]: name }) };
  }

  show(amount) {
    if (this.shown === "cost") return this.money(amount);
    return this.shown === "time" ? durationText(amount) : amount.toLocaleString("en");
  }

  money(amount) {
    const digits = amount > 0 && amount < 1 ? { maximumSignificantDigits: 2, minimumFractionDigits: 0 } : { maximumFractionDigits: 2 };
    return new Intl.NumberFormat("en", { style: "currency", currency: this.currency, ...digits }).format(amount);
  }

  table(group, open) {
    const figures = (row) => [row.total_tokens, row.prompt_tokens, row.cached_tokens, row.completion_tokens, row.model_calls, row.tool_calls].map((count) => count.toLocaleString("en"));
    const cells = (row) => [...figures(row), durationText(row.model_ms + row.tool_ms), ...(this.currency ? [row.cost ? this.money(row.cost.amount) : ""] : [])].map((value) => h("td", {}, value));
    const head = (row) => {
      const { name, href } = this.named(group, row);
      return h("th", { scope: "row", dir: "auto" }, href ? h("a", { href }, name) : name);
    };
    const details = h("details", { class: "fold", open },
      h("summary", {}, usageText.table, h("span", { class: "unseen" }, ` ${usageText.by[group]}`)),
      wideTable(usageText.by[group], "run-table", [usageText.names[group], ...usageText.columns, ...(this.currency ? [usageText.cost] : [])], h("tbody", {}, this.rows[group].map((row) => h("tr", {}, head(row), cells(row))))));
    details.dataset.group = group;
    return details;
  }
}

async function usageRows(group, only) {
  const found = [];
  let cursor = null;
  do {
    const page = await get(`usage?${new URLSearchParams({ group_by: group, limit: "200", ...only, ...(cursor && { cursor }) })}`);
    found.push(...page.data);
    cursor = page.next_cursor;
  } while (cursor);
  return found;
}

const rounded = (count) => (count < 10 ? Math.round(count * 10) / 10 : Math.round(count)).toLocaleString("en");

function durationText(ms) {
  const seconds = ms / 1000;
  if (seconds < 1) return usageText.milliseconds(Math.round(ms));
  if (seconds < 90) return usageText.seconds(rounded(seconds));
  return seconds < 5_400 ? usageText.minutes(rounded(seconds / 60)) : usageText.hours(rounded(seconds / 3_600));
}
