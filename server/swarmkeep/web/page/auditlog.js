// The audit log: what was done to sessions and keys, by whom and why, the latest first, and whether it is whole.

import { get, may, me } from "./api.js";
import { button, clear, dayAndTime, h, icon, wideTable } from "./dom.js";
import { whoIs } from "./descriptions.js";
import { HeadCheck } from "./checkpoint.js";
import { hrefOf } from "./route.js";
import { text } from "./text.js";
import { viewText } from "./viewtext.js";

const auditText = viewText.audit;
const AUDIT_PAGE = 100;

export class AuditLog {
  constructor(app) {
    this.app = app;
    this.first = null;
    this.names = new Map();
    this.badge = h("span", { class: "badge", role: "status" }, text.timeline.verify);
    this.rows = h("tbody");
    this.note = h("p", { class: "muted note", role: "status" }, auditText.loading);
    this.earlier = button(auditText.earlier, { kind: "ghost", hidden: true, onclick: () => this.more() });
    this.problems = h("section", { class: "damage", role: "alert", hidden: true });
    this.check = new HeadCheck({ verify: (head) => this.verify(head), forget: () => this.verify().catch((error) => this.app.fail(error)), isOurs: ({ session_id: id, tenant }) => id === null && [null, me.known?.tenant].includes(tenant) });
    this.package = h("div");
    this.copy = button(viewText.check.copy, { kind: "ghost", hidden: true, onclick: () => navigator.clipboard?.writeText(`${this.head.seq}:${this.head.hash}`).then(() => this.app.say(viewText.check.copied)) });
    this.node = h("section", { class: "audit scroll", "aria-label": text.audit.title },
      h("header", { class: "view-head" }, h("h1", { class: "view-title" }, text.audit.title), this.badge, h("span", { class: "grow" }), this.copy, button(viewText.check.open, { kind: "ghost", onclick: () => this.check.open() }), button(viewText.package.open, { kind: "ghost", onclick: () => this.openPackage() })),
      this.problems, this.check.node, this.package,
      wideTable(text.audit.title, "audit-table", auditText.columns, this.rows),
      this.note, this.earlier);
    this.open();
  }

  close() {
    this.isClosed = true;
  }

  async openPackage() {
    try {
      const { PackageCheck } = await import("./package.js").catch(() => Promise.reject(new Error(text.viewAway)));
      const check = new PackageCheck();
      clear(this.package, check.node);
      check.file.focus();
    } catch (error) {
      this.app.fail(error);
    }
  }

  async open() {
    if (!may("audit")) return this.say(auditText.refused);
    try {
      const { head } = await this.verify();
      this.first = head ? head.seq + 1 : 1;
      await this.more();
      if (may("keys")) this.nameKeys((await get("keys?limit=200")).data);
    } catch (error) {
      this.badge.hidden = true;
      this.say(error.message);
    }
  }

  say(words) {
    this.badge.hidden = !this.first;
    this.note.textContent = words;
  }

  async verify(noted) {
    const found = await get(`audit/verify${noted ? `?head=${encodeURIComponent(noted)}` : ""}`);
    this.head = found.head;
    this.copy.hidden = !found.head;
    this.badge.className = `badge ${found.valid ? "good" : "bad"}`;
    clear(this.badge, icon(found.valid ? "check" : "cross"), found.valid ? auditText.valid(found.events) : text.timeline.invalid(found.problem_count));
    this.problems.hidden = found.valid;
    clear(this.problems, h("h2", {}, icon("cross"), text.timeline.damagedTitle(found.problem_count)), h("ul", {}, found.problems.map((problem) => this.problem(problem))));
    this.damaged = new Map(found.problems.map((problem) => [problem.seq, problem]));
    for (const row of this.rows.children) row.classList.toggle("damaged-row", this.damaged.has(Number(row.dataset.seq)));
    return found;
  }

  problem({ seq, code, detail }) {
    const lead = (event) => {
      event.preventDefault();
      this.find(seq);
    };
    return h("li", {}, h("span", { dir: "auto" }, detail), " ", h("code", {}, code), " ", seq ? h("a", { href: hrefOf({ view: "audit" }), onclick: lead }, auditText.entry(seq)) : null);
  }

  async find(seq) {
    while (this.first > seq && this.first > 1) if (this.isClosed || !(await this.more())) return;
    const row = [...this.rows.children].find((one) => Number(one.dataset.seq) === seq);
    row?.scrollIntoView({ block: "center" });
    row?.querySelector("th")?.focus();
  }

  // The entries before those that are shown; the server gives them oldest first. Says whether they came.
  async more() {
    const after = Math.max(this.first - 1 - AUDIT_PAGE, 0);
    const shown = [];
    let cursor = after;
    try {
      while (cursor !== null && cursor < this.first - 1) {
        const { data, next_cursor: next } = await get(`audit?after=${cursor}&limit=${Math.min(AUDIT_PAGE, this.first - 1 - cursor)}`);
        shown.push(...data.filter((entry) => entry.seq < this.first));
        cursor = next === null ? null : Number(next);
      }
    } catch (error) {
      this.app.fail(error);
      return false;
    }
    this.first = after + 1;
    this.rows.append(...shown.reverse().map((entry) => this.row(entry)));
    this.nameKeys(shown.filter(({ data }) => data?.key_id).map(({ data }) => ({ id: data.key_id, name: data.name })));
    this.earlier.hidden = this.first <= 1;
    this.note.hidden = this.rows.childElementCount > 0;
    this.note.textContent = auditText.none;
    return true;
  }

  // Names before ids, as far as they are known: from the entries of keys that are shown, and from the list for who may see that.
  nameKeys(keys) {
    for (const { id, name } of keys) if (name) this.names.set(id, name);
    for (const cell of this.rows.querySelectorAll("td[title]")) cell.textContent = this.names.get(cell.title) ?? whoIs(cell.title);
  }

  row({ seq, type, by, at, data }) {
    const about = data?.session_id ?? data?.key_id ?? data?.address ?? data?.server ?? "";
    const rest = Object.entries(data ?? {}).filter(([name, value]) => !["session_id", "reason", "hash"].includes(name) && value !== null && value !== about);
    const row = h("tr", { class: this.damaged?.has(seq) ? "damaged-row" : null },
      h("th", { scope: "row", tabindex: -1 }, String(seq), this.damaged?.has(seq) ? h("span", { class: "row-damage" }, icon("cross"), text.timeline.damagedRow) : null),
      h("td", {}, h("time", { datetime: at }, dayAndTime(at))),
      h("td", {}, auditText.types[type] ?? type),
      h("td", { dir: "auto" }, data?.session_id && type !== "session.deleted" ? h("a", { href: hrefOf({ view: "timeline", id: about, at: data.seq ?? null }) }, about) : h("span", { title: data?.key_id }, String((data?.key_id && data.name) || about))),
      h("td", { dir: "auto", title: by }, whoIs(by) ?? ""),
      h("td", { dir: "auto" }, data?.reason && h("span", {}, data.reason), rest.length ? h("details", {}, h("summary", {}, auditText.more), h("code", {}, JSON.stringify(Object.fromEntries(rest)))) : null));
    row.dataset.seq = seq;
    return row;
  }
}
