// The table of runs that are over, across sessions: what is chosen of it is in the address. Beside it, what is to be reviewed.

import { get, getBlob, may, patch, post, sessionPath } from "./api.js";
import { bdi, button, clear, dayAndTime, Disclosure, h, redraw, wideTable } from "./dom.js";
import { hrefOf } from "./route.js";
import { sessionTitle } from "./session.js";
import { saveFile } from "./sessiontools.js";
import { text } from "./text.js";
import { viewText } from "./viewtext.js";

const runText = viewText.runs;
const PAGE = 50;
const FILTERS = ["of", "model", "state", "stop", "error", "since", "until"];
const SORTS = ["created_at", "latency_ms", "first_token_ms", "total_tokens"];
const STATES = ["completed", "failed", "cancelled", "interrupted"];
const GROUPS = ["day", "agent", "model"];
const PERCENTS = ["p50", "p90", "p99"];
const DAY = /^\d{4}-\d\d-\d\d$/;
const DAY_MS = 86_400_000;
const FORMS = { csv: "text/csv", jsonl: "application/x-ndjson" };
// A page may end before it is full where filters leave few of many runs.
const MOST_EMPTY_PAGES = 20;
const REVIEW_PAGE = 100;
const REVIEW_PAGES = 5;

const thisYear = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });
const shortTime = (at) => (new Date(at).getFullYear() === new Date().getFullYear() ? thisYear.format(new Date(at)) : dayAndTime(at));
const count = (value) => value.toLocaleString("en");
const milliseconds = (value) => (value === null ? "" : value < 1000 ? viewText.usage.milliseconds(Math.round(value)) : viewText.usage.seconds((value / 1000).toLocaleString("en", { maximumFractionDigits: 1 })));
const money = ({ amount, currency }) => new Intl.NumberFormat("en", { style: "currency", currency, maximumSignificantDigits: 3 }).format(amount);

// Of each column what a row has in it, and by what the table is sorted there. The first one stays.
const COLUMNS = {
  time: { sort: "created_at", cell: (run) => h("time", { datetime: run.created_at, title: dayAndTime(run.created_at) }, shortTime(run.created_at)) },
  session: { cell: (run) => h("a", { href: hrefOf({ view: "chat", id: run.session_id }), dir: "auto" }, run.session_id) },
  agent: { cell: (run) => bdi(run.agent) },
  model: { cell: (run) => run.model && bdi(run.model) },
  status: { cell: (run) => h("span", { class: `run-status ${run.status}` }, text.status[run.status] ?? run.status) },
  stop: { cell: (run) => run.stop_reason ?? "" },
  latency: { sort: "latency_ms", figure: true, cell: (run) => milliseconds(run.latency_ms) },
  first: { sort: "first_token_ms", figure: true, cell: (run) => milliseconds(run.first_token_ms) },
  tokens: { sort: "total_tokens", figure: true, cell: (run) => count(run.total_tokens) },
  cost: { figure: true, cell: (run) => (run.cost ? money(run.cost) : "") },
  errors: { cell: (run) => [run.error, run.tool_errors ? runText.toolErrors(run.tool_errors) : null].filter(Boolean).join(", ") },
  waited: { figure: true, cell: (run) => milliseconds(run.waited_ms) },
  calls: { figure: true, cell: (run) => count(run.model_calls) },
  tools: { figure: true, cell: (run) => count(run.tool_calls) },
  prompt: { figure: true, cell: (run) => count(run.prompt_tokens) },
  completion: { figure: true, cell: (run) => count(run.completion_tokens) },
};
const USUAL = ["time", "session", "agent", "model", "status", "stop", "latency", "first", "tokens", "cost", "errors"];

const dayAfter = (day) => new Date(Date.parse(day) + DAY_MS).toISOString().slice(0, 10);
const isDay = (day) => DAY.test(day ?? "") && !Number.isNaN(Date.parse(day));

// Views by name: an address each, kept by this browser.

const KEPT = "swarmkeep.views";
const MOST_KEPT = 30;

function keptViews() {
  try {
    return Object.entries(JSON.parse(localStorage.getItem(KEPT)) ?? {}).filter(([, href]) => typeof href === "string" && href.startsWith("#/runs"));
  } catch {
    return [];
  }
}

const keepViews = (views) => localStorage.setItem(KEPT, JSON.stringify(Object.fromEntries(views.slice(-MOST_KEPT))));

export class RunsView {
  constructor(app, route) {
    this.app = app;
    this.rows = [];
    this.chosen = new Set();
    const pick = (label, name, options) => h("label", { class: "run-filter" }, h("span", {}, label), h("select", { class: "field", name, onchange: (event) => this.app.choose({ [name]: event.target.value }) }, options.map(([value, words]) => h("option", { value }, words))));
    const input = (label, name, props = {}) => h("label", { class: "run-filter" }, h("span", {}, label), h("input", { class: "field", name, autocomplete: "off", onchange: (event) => this.app.choose({ [name]: event.target.value.trim() }), ...props }));
    this.known = h("datalist", { id: "run-agents" }, app.agents.map(({ name }) => h("option", { value: name })));
    this.filters = h("div", { class: "run-filters" },
      pick(runText.status, "state", [["", runText.any], ...STATES.map((state) => [state, text.status[state] ?? state])]),
      input(runText.agent, "of", { list: "run-agents" }), input(runText.model, "model"),
      input(runText.stop, "stop"), input(runText.error, "error"),
      input(runText.since, "since", { type: "date" }), input(runText.until, "until", { type: "date" }),
      pick(runText.sort, "sort", SORTS.map((sort) => [sort, runText.sorts[sort]])),
      pick(runText.percentiles, "by", [["", runText.hidden], ...GROUPS.map((group) => [group, runText.by[group]])]), this.known);
    this.columns = new Disclosure(runText.columns, [], { kind: "small" });
    this.views = new Disclosure(runText.views, [], { kind: "small" });
    this.download = new Disclosure(runText.download, Object.keys(FORMS).map((form) => button(runText.forms[form], { kind: "pop-item", onclick: () => this.save(form) })), { icon: "download", kind: "small" });
    this.check = button(runText.check, { kind: "small", icon: "check", hidden: true, onclick: () => this.checkChosen() });
    this.kinds = h("nav", { class: "kinds", "aria-label": runText.parts });
    this.note = h("p", { class: "note muted", role: "status" });
    this.checked = h("section", { class: "panel", "aria-label": runText.checkTitle, hidden: true });
    this.figures = h("div", { class: "run-figures" });
    this.table = h("div", {});
    this.more = button(text.sessions.more, { kind: "ghost", hidden: true, onclick: () => this.load(this.cursor) });
    this.tools = h("div", { class: "row" }, this.check, this.columns.node, this.download.node);
    // On a phone the table comes first.
    this.bar = h("details", { class: "runs-bar", open: matchMedia("(min-width: 700px)").matches }, h("summary", {}, runText.filters), this.filters);
    this.node = h("section", { class: "runs", "aria-label": text.runs.title },
      h("header", { class: "view-head" }, h("h1", { class: "view-title" }, text.runs.title), this.kinds, h("span", { class: "grow" }), this.views.node, this.tools),
      this.bar, h("div", { class: "scroll runs-main", tabindex: 0, role: "group", "aria-label": runText.list }, this.checked, this.figures, this.note, this.table, this.more));
    this.moved(route);
  }

  close() {
    this.closed = true;
    this.turn = null;
    this.dialog?.close();
  }

  get reviews() {
    return this.choices.show === "review";
  }

  get sort() {
    return SORTS.includes(this.choices.sort) ? this.choices.sort : "created_at";
  }

  get shownColumns() {
    const named = (this.choices.cols ?? "").split(".").filter((name) => Object.hasOwn(COLUMNS, name));
    return named.length ? ["time", ...Object.keys(COLUMNS).filter((name) => name !== "time" && named.includes(name))] : USUAL;
  }

  moved({ choices }) {
    this.choices = choices;
    const { cols: _, by, ...asked } = choices;
    const before = [this.asked, this.askedBy];
    [this.asked, this.askedBy] = [JSON.stringify(asked), JSON.stringify([asked, by])];
    this.drawControls();
    if (before[0] !== this.asked) this.load();
    else if (!this.reviews) this.drawTable();
    if (before[1] !== this.askedBy) this.loadFigures();
  }

  drawControls() {
    for (const control of this.filters.querySelectorAll("[name]")) control.value = this.choices[control.name] ?? (control.name === "sort" ? "created_at" : "");
    for (const part of [this.bar, this.tools]) part.hidden = this.reviews;
    const part = (name, choices) => h("a", { class: "button small", href: hrefOf({ view: "runs", choices }), "aria-current": (name === "review") === this.reviews ? "true" : null }, runText.kinds[name]);
    redraw(this.kinds, () => clear(this.kinds, part("table", {}), part("review", { show: "review" })));
    if (!this.columns.list.childElementCount) {
      const tick = (name) => h("label", { class: "tick" }, h("input", { type: "checkbox", name, onchange: () => this.chooseColumns() }), runText.names[name]);
      clear(this.columns.list, Object.keys(COLUMNS).slice(1).map(tick));
    }
    for (const box of this.columns.list.querySelectorAll("input")) box.checked = this.shownColumns.includes(box.name);
    this.drawViews();
  }

  chooseColumns() {
    const named = [...this.columns.list.querySelectorAll("input:checked")].map(({ name }) => name);
    this.app.choose({ cols: named.join() === USUAL.slice(1).join() ? null : named.join(".") || "time" });
  }

  drawViews() {
    const link = (name, href, remove = null) => h("div", { class: "pop-entry" }, h("a", { href, dir: "auto" }, name), remove);
    const here = hrefOf({ view: "runs", choices: this.choices });
    const field = h("input", { class: "field grow", "aria-label": runText.viewName, placeholder: runText.viewName, maxlength: 80, required: true });
    const keep = (event) => {
      event.preventDefault();
      keepViews([...keptViews().filter(([name]) => name !== field.value.trim()), [field.value.trim(), here]]);
      this.drawViews();
      this.app.say(runText.viewKept);
      this.views.button.focus();
    };
    const drop = (name) => button(runText.viewRemove(name), { icon: "cross", kind: "ghost small", quiet: true, onclick: () => {
      keepViews(keptViews().filter(([other]) => other !== name));
      this.drawViews();
      this.views.button.focus();
    } });
    clear(this.views.list, Object.entries(runText.given).map(([name, choices]) => link(name, hrefOf({ view: "runs", choices }))),
      keptViews().map(([name, href]) => link(name, href, drop(name))),
      h("form", { class: "row pop-form", onsubmit: keep }, field, button(runText.viewKeep, { kind: "small", type: "submit" })));
  }

  // What the server is asked for; `since` and `until` are days in UTC.
  query({ figures = false } = {}) {
    const { of: agent, model, state, stop, error, since, until } = this.choices;
    const only = { agent, model, stop_reason: stop, error, ...(figures ? { status: STATES.includes(state) ? state : null, from: isDay(since) ? since : null, to: isDay(until) ? until : null } : {
      status: STATES.includes(state) ? state : "ended", sort: this.sort,
      created_after: isDay(since) ? `${since}T00:00:00Z` : null, created_before: isDay(until) ? `${dayAfter(until)}T00:00:00Z` : null,
    }) };
    return new URLSearchParams(Object.entries(only).filter(([, value]) => value));
  }

  says(words) {
    this.note.textContent = words;
    this.note.hidden = !words;
  }

  async load(cursor = null) {
    const turn = (this.turn = {});
    if (!cursor) {
      this.rows = [];
      this.chosen.clear();
      clear(this.table);
      this.says(runText.loading);
    }
    this.more.hidden = true;
    try {
      if (this.reviews) return await this.loadReviews(turn);
      const query = this.query();
      query.set("limit", PAGE);
      for (let page = 0; page < MOST_EMPTY_PAGES; page += 1) {
        if (cursor) query.set("cursor", cursor);
        const found = await get(`runs?${query}`);
        if (turn !== this.turn) return undefined;
        this.rows.push(...found.data);
        cursor = found.next_cursor;
        if (found.data.length || !cursor) break;
      }
      this.cursor = cursor;
      this.more.hidden = !cursor;
      this.says(this.rows.length ? "" : cursor ? runText.notYet : FILTERS.some((name) => this.choices[name]) ? runText.nothing : runText.noneYet);
      this.drawTable();
    } catch (error) {
      if (turn === this.turn) this.says(error.message);
    }
    return undefined;
  }

  drawTable() {
    if (!this.rows.length) return this.drawCheck();
    const names = this.shownColumns;
    const head = (name) => {
      const { sort, figure } = COLUMNS[name];
      const sorted = sort === this.sort;
      return h("th", { scope: "col", class: figure ? "figure" : null, "aria-sort": sorted ? "descending" : null }, sort ? h("button", { type: "button", class: "sort", onclick: () => this.app.choose({ sort: sort === "created_at" ? null : sort }) }, runText.names[name], sorted ? " ↓" : "") : runText.names[name]);
    };
    const focused = document.activeElement?.closest?.(".sort")?.textContent.replace(" ↓", "");
    clear(this.table, wideTable(runText.list, "run-table", [h("td"), ...names.map(head), h("td")], h("tbody", {}, this.rows.map((run) => this.row(run, names)))));
    if (focused) [...this.table.querySelectorAll(".sort")].find((one) => one.textContent.replace(" ↓", "") === focused)?.focus();
    return this.drawCheck();
  }

  row(run, names) {
    const cell = (name) => (name === "time" ? h("th", { scope: "row" }, h("a", { href: hrefOf({ view: "timeline", id: run.session_id, as: "runs" }) }, COLUMNS.time.cell(run))) : h("td", { class: COLUMNS[name].figure ? "figure" : null }, COLUMNS[name].cell(run)));
    const box = h("input", { type: "checkbox", checked: this.chosen.has(run.session_id), "aria-label": runText.choose(run.session_id), onchange: () => this.choose(run.session_id, box.checked) });
    box.dataset.id = run.session_id;
    return h("tr", {}, h("td", {}, box), names.map(cell), h("td", {}, caseButton(this, run.session_id, run.id), may("run") && button(runText.whatIf, { icon: "fork", kind: "ghost small", quiet: true, onclick: () => this.whatIf(run) })));
  }

  choose(id, chosen) {
    this.chosen[chosen ? "add" : "delete"](id);
    for (const box of this.table.querySelectorAll("input[type=checkbox]")) if (box.dataset.id === id) box.checked = chosen;
    this.drawCheck();
  }

  drawCheck() {
    this.check.hidden = !this.chosen.size;
    this.check.lastChild.textContent = runText.checkCount(this.chosen.size);
  }

  // One after another: the server makes one replay of a tenant at a time.
  async checkChosen() {
    const ids = [...this.chosen];
    const list = h("ul", { class: "checks" });
    const note = h("p", { class: "muted", role: "status" });
    this.checked.hidden = false;
    const turn = (this.checking = {});
    const away = () => {
      this.checking = null;
      this.checked.hidden = true;
      this.check.focus();
    };
    clear(this.checked, h("header", { class: "row" }, h("h2", {}, runText.checkTitle), h("span", { class: "grow" }), button(text.close, { icon: "cross", kind: "ghost small", quiet: true, onclick: away })), note, list);
    let same = 0;
    for (const [index, id] of ids.entries()) {
      note.textContent = runText.checking(index + 1, ids.length);
      let words;
      try {
        const { matches, turns, divergences } = await post(sessionPath(id, "/replay"));
        same += matches ? 1 : 0;
        words = matches ? viewText.today.same(turns) : divergences.length ? viewText.today.differs(divergences.length, turns) : viewText.today.soFar(turns);
      } catch (error) {
        words = error.message;
      }
      if (turn !== this.checking || this.closed) return;
      list.append(h("li", {}, h("a", { href: hrefOf({ view: "timeline", id }), dir: "auto" }, id), " ", h("span", {}, words)));
    }
    note.textContent = runText.checkedAll(same, ids.length);
  }

  // The message that began the run, again in a fork with something changed; both are shown side by side then.
  async whatIf(run) {
    try {
      const [{ EditDialog }, { readAll }] = await Promise.all([import("./edit.js"), import("./tryout.js")]);
      const events = await readAll(run.session_id);
      const said = events.find(({ type, run_id: of, data }) => of === run.id && type === "message.added" && data?.message?.role === "user" && !data.completion);
      if (!said) throw new Error(runText.nothingSaid);
      if (this.closed) return;
      new EditDialog(this.app).open({ id: run.session_id, events }, { seq: said.seq, text: wordsOf(said.data.message.content) });
    } catch (error) {
      this.app.fail(error);
    }
  }

  async save(form) {
    try {
      saveFile(await getBlob(`runs?${this.query()}`, { Accept: FORMS[form] }), `runs.${form}`);
    } catch (error) {
      this.app.fail(error);
    }
  }

  async loadFigures() {
    const { by } = this.choices;
    const turn = (this.adding = {});
    clear(this.figures);
    if (!GROUPS.includes(by) || this.reviews) return;
    const query = this.query({ figures: true });
    query.set("group_by", by);
    query.set("limit", "200");
    const note = h("p", { class: "muted", role: "status" }, viewText.usage.loading);
    clear(this.figures, note);
    try {
      const { data } = await get(`runs/figures?${query}`);
      if (turn !== this.adding || this.closed) return;
      clear(this.figures, this.figureTable(by, data));
    } catch (error) {
      if (turn === this.adding) note.textContent = error.message;
    }
  }

  figureTable(by, groups) {
    const narrowed = (group) => ({ ...this.choices, ...(by === "day" ? { since: group, until: group } : { [by === "agent" ? "of" : "model"]: group }) });
    const title = `${runText.by[by]}${isDay(this.choices.since) ? "" : `, ${runText.lastDays}`}`;
    const head = [runText.names[by] ?? viewText.usage.names.day, runText.runs, ...STATES.map((state) => text.status[state] ?? state), ...PERCENTS.map((percent) => runText.latencyOf(percent)), ...PERCENTS.map((percent) => runText.firstOf(percent)), runText.toolErrorsHead, runText.names.tokens];
    const figures = (row) => [count(row.runs), ...STATES.map((state) => count(row[state])), ...PERCENTS.map((percent) => milliseconds(row.latency_ms[percent])), ...PERCENTS.map((percent) => milliseconds(row.first_token_ms[percent])), count(row.tool_errors), count(row.total_tokens)];
    return h("section", { "aria-label": runText.percentiles }, h("h2", {}, title), groups.length ? wideTable(title, "run-table", head.map((name, index) => h("th", { scope: "col", class: index ? "figure" : null }, name)),
      h("tbody", {}, groups.map((row) => h("tr", {}, h("th", { scope: "row", dir: "auto" }, row[by] === null ? viewText.usage.noModel : h("a", { href: hrefOf({ view: "runs", choices: narrowed(row[by]) }) }, row[by])), figures(row).map((value) => h("td", { class: "figure" }, value)))))) : h("p", { class: "muted" }, runText.nothing));
  }

  // Sessions with an answer that people did not find good, and those whose last run failed, that are not reviewed since.
  async loadReviews(turn) {
    const found = await Promise.all([{ feedback: "down" }, { last_run: "failed" }].map(readSessions));
    const sessions = new Map(found.flatMap(({ sessions: some }) => some).map((session) => [session.id, session]));
    const open = (await Promise.all([...sessions.values()].map(async (session) => ((await isReviewed(session)) ? null : session)))).filter(Boolean);
    if (turn !== this.turn) return;
    this.says(open.length ? "" : runText.nothingToReview);
    const cut = found.some(({ isCut }) => isCut) && h("p", { class: "muted" }, runText.reviewCut(REVIEW_PAGE * REVIEW_PAGES));
    clear(this.table, h("ul", { class: "reviews" }, open.map((session) => this.review(session))), cut);
  }

  review(session) {
    const down = session.feedback?.down ?? 0;
    const why = [down ? runText.downs(down) : null, session.last_run_status === "failed" ? runText.failed : null].filter(Boolean).join(", ");
    const item = h("li", { class: "review" },
      h("a", { class: "session-name", href: hrefOf({ view: "chat", id: session.id }), dir: "auto" }, sessionTitle(session)),
      h("span", { class: "reason" }, why), h("time", { class: "muted", datetime: session.updated_at }, dayAndTime(session.updated_at)), h("span", { class: "grow" }),
      caseButton(this, session.id, null), may("run") && button(runText.markReviewed, { kind: "small", icon: "check", onclick: () => this.markReviewed(session, item) }));
    return item;
  }

  // The mark is in the session's metadata: an event of its log, with its author and its hash, that all readers share.
  async markReviewed(session, item) {
    try {
      await patch(sessionPath(session.id), { metadata: { reviewed: { seq: session.seq, down: session.feedback?.down ?? 0 } } });
    } catch (error) {
      return this.app.fail(error);
    }
    const next = item.nextElementSibling ?? item.previousElementSibling;
    item.remove();
    this.app.say(runText.reviewed);
    if (!next) this.says(runText.nothingToReview);
    return (next?.querySelector("a") ?? this.kinds.lastChild).focus();
  }
}

const wordsOf = (content) => (typeof content === "string" ? content : (content ?? []).filter(({ type }) => type === "text").map((part) => part.text).join("\n"));

async function readSessions(only) {
  const sessions = [];
  let cursor = null;
  for (let page = 0; page < REVIEW_PAGES; page += 1) {
    const { data, next_cursor: next } = await get(`sessions?${new URLSearchParams({ ...only, limit: REVIEW_PAGE, order: "created", ...(cursor && { cursor }) })}`);
    sessions.push(...data);
    cursor = next;
    if (!cursor) break;
  }
  return { sessions, isCut: cursor !== null };
}

// Reviewed up to an event, with so many answers not found good: what went wrong since then is to be reviewed.
async function isReviewed({ id, seq, metadata, feedback, last_run_status: ended }) {
  const { reviewed } = metadata ?? {};
  if (!Number.isInteger(reviewed?.seq) || (feedback?.down ?? 0) > reviewed.down) return false;
  if (ended !== "failed" || reviewed.seq >= seq - 1) return true;
  const { data } = await get(sessionPath(id, "/runs?limit=1"));
  return data.length > 0 && data[0].last_seq <= reviewed.seq;
}

// Opens the dialog with the eval case of a run, by default the session's last one.
function caseButton(view, session, run) {
  return button(runText.makeCase, { icon: "flask", kind: "ghost small", quiet: true, onclick: async () => {
    try {
      const { openCase } = await import("./tryout.js").catch(() => Promise.reject(new Error(text.viewAway)));
      view.dialog = openCase(view.app, session, run);
    } catch (error) {
      view.app.fail(error);
    }
  } });
}
