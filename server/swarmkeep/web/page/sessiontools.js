// Actions on a whole session: rename, metadata, delete, export, forks.

import { get, getBlob, may, ownName, patch, post, remove, sessionPath } from "./api.js";
import { button, clear, Disclosure, h } from "./dom.js";
import { go, hrefOf } from "./route.js";
import { sessionTitle } from "./session.js";
import { text } from "./text.js";

// What is done to a session as a whole: another title, its metadata, its end. Each asks before it changes anything.

const t = text.manage;

export class SessionTools {
  // `title`: the heading in whose place a new title is written; `metadataOf` gives the session's metadata.
  constructor(app, id, title, metadataOf) {
    this.app = app;
    this.id = id;
    this.title = title;
    this.metadataOf = metadataOf;
    this.metadata = new MetadataDialog((change) => this.change(change), metadataOf);
    this.end = new DeleteDialog((reason, force) => this.delete(reason, force));
    this.node = h("div", { class: "tools", role: "group", "aria-label": t.label },
      may("run") && (this.pen = button(t.rename, { icon: "pen", kind: "ghost small", quiet: true, onclick: () => this.rename() })),
      may("run") && button(t.metadata, { icon: "tag", kind: "ghost small", quiet: true, onclick: () => this.metadata.open() }),
      may("write") && button(t.delete, { icon: "bin", kind: "ghost small", quiet: true, onclick: () => this.end.open(title.textContent) }),
      this.metadata.node, this.end.node);
  }

  rename() {
    if (this.field) return this.field.focus();
    this.field = h("input", { class: "field rename", "aria-label": t.newTitle, value: this.title.textContent === this.id ? "" : this.title.textContent, placeholder: t.newTitleHint, maxlength: 200 });
    const done = (event) => {
      if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
      event.preventDefault();
      event.stopPropagation();
      this.renamed(event.key === "Enter");
    };
    this.field.addEventListener("keydown", done);
    this.title.hidden = true;
    this.title.after(this.field);
    return this.field.select();
  }

  async renamed(keep) {
    const { field } = this;
    const given = field.value.trim();
    if (keep && given !== this.title.textContent && !(await this.change({ title: given || null }))) return field.focus();
    this.field = null;
    this.title.hidden = false;
    field.remove();
    return this.pen.focus();
  }

  async change(metadata) {
    try {
      await patch(sessionPath(this.id), { metadata });
    } catch (error) {
      this.app.fail(error);
      return false;
    }
    this.app.say(t.saved);
    this.app.refresh();
    return true;
  }

  async delete(reason, force) {
    const query = new URLSearchParams({ ...(reason && { reason }), ...(force && { force: "true" }) });
    await remove(sessionPath(this.id, `?${query}`));
    this.app.say(t.deleted);
    go({ view: this.app.route.view });
    this.app.forgetSession(this.id);
  }
}

class MetadataDialog {
  constructor(onSave, metadataOf) {
    this.onSave = onSave;
    this.metadataOf = metadataOf;
    this.rows = h("ul", { class: "pairs" });
    this.wrong = h("p", { class: "reason", role: "alert" });
    this.node = h("dialog", { class: "dialog wide", "aria-label": t.metadata },
      h("form", { onsubmit: (event) => this.submit(event) },
        h("h2", {}, t.metadata), h("p", { class: "muted" }, t.metadataHint), this.rows, this.wrong,
        h("div", { class: "row" }, button(t.add, { icon: "plus", kind: "small", onclick: () => this.add("", "").querySelector("input").focus() })),
        h("div", { class: "row" }, button(t.save, { kind: "primary", type: "submit" }), button(text.close, { kind: "ghost", onclick: () => this.node.close() }))));
  }

  open() {
    this.wrong.textContent = "";
    clear(this.rows);
    // As it is shown: what others write meanwhile is none of what is changed here.
    this.before = structuredClone(this.metadataOf() ?? {});
    for (const [name, value] of Object.entries(this.before)) this.add(name, typeof value === "string" ? value : JSON.stringify(value), value);
    if (!this.rows.childElementCount) this.add("", "");
    this.node.showModal();
  }

  add(name, shown, was) {
    const row = h("li", { class: "row pair" },
      h("input", { class: "field", "aria-label": t.name, value: name, placeholder: t.name }),
      h("input", { class: "field grow", "aria-label": t.value, value: shown, placeholder: t.value }),
      button(t.remove, { icon: "cross", kind: "ghost small", quiet: true, onclick: () => this.drop(row) }));
    // Text stays text, and what was a number or a list is read as one again.
    row.was = { shown, value: was };
    this.rows.append(row);
    return row;
  }

  drop(row) {
    const next = row.nextElementSibling ?? row.previousElementSibling;
    row.remove();
    (next?.querySelector("input") ?? this.node.querySelector("button")).focus();
  }

  read() {
    const found = {};
    for (const row of this.rows.children) {
      const [name, value] = [...row.querySelectorAll("input")].map((field) => field.value);
      if (!name.trim()) continue;
      if (Object.hasOwn(found, name.trim())) throw new Error(t.twice(name.trim()));
      found[name.trim()] = valueOf(value, row.was);
    }
    return found;
  }

  async submit(event) {
    event.preventDefault();
    const { before } = this;
    let now;
    try {
      now = this.read();
    } catch (error) {
      this.wrong.textContent = error.message;
      return;
    }
    const change = Object.fromEntries(Object.entries(now).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(before[name])));
    for (const name of Object.keys(before)) if (!Object.hasOwn(now, name)) change[name] = null;
    if (!Object.keys(change).length || (await this.onSave(change))) this.node.close();
  }
}

function valueOf(typed, { shown, value }) {
  if (typed === shown && value !== undefined) return value;
  if (value === undefined || typeof value === "string") return typed;
  try {
    return JSON.parse(typed);
  } catch {
    return typed;
  }
}

class DeleteDialog {
  constructor(onDelete) {
    this.onDelete = onDelete;
    this.about = h("p", { dir: "auto" });
    this.reason = h("input", { class: "field", id: "delete-reason", maxlength: 1000, autocomplete: "off" });
    this.force = h("input", { type: "checkbox" });
    this.wrong = h("p", { class: "reason", role: "alert" });
    this.confirm = button(t.deleteNow, { kind: "danger", type: "submit" });
    this.node = h("dialog", { class: "dialog", "aria-labelledby": "delete-title" },
      h("form", { onsubmit: (event) => this.submit(event) },
        h("h2", { id: "delete-title" }, t.deleteTitle), this.about, h("p", { class: "muted" }, t.deleteHint),
        h("label", { for: "delete-reason" }, t.reason), this.reason,
        h("label", { class: "tick" }, this.force, t.force), this.wrong,
        h("div", { class: "row" }, this.confirm, button(t.keep, { kind: "ghost", onclick: () => this.node.close() }))));
  }

  open(name) {
    this.about.textContent = name;
    this.wrong.textContent = "";
    this.force.checked = false;
    this.node.showModal();
    this.reason.focus();
  }

  async submit(event) {
    event.preventDefault();
    this.confirm.disabled = true;
    try {
      await this.onDelete(this.reason.value.trim(), this.force.checked);
      this.node.close();
    } catch (error) {
      this.wrong.textContent = error.message;
    } finally {
      this.confirm.disabled = false;
    }
  }
}

// Who looks after a session: the caller, a person or queue that was seen, another name, or no one.

const deskText = text.desk;
const MOST_OWNERS = 8;

export class OwnerMenu {
  constructor(app, id) {
    this.app = app;
    this.id = id;
    this.field = h("input", { class: "field grow", "aria-label": deskText.other, placeholder: deskText.other, maxlength: 200, dir: "auto" });
    this.choices = h("div", { class: "pop-choices" });
    const submit = (event) => {
      event.preventDefault();
      if (this.field.value.trim()) this.assign(this.field.value.trim());
    };
    this.menu = new Disclosure("", [this.choices, h("form", { class: "row pop-form", onsubmit: submit }, this.field, button(deskText.assign, { kind: "small", type: "submit" }))], { icon: "person", kind: "owner-button" });
    this.menu.button.disabled = !may("run");
    this.node = this.menu.node;
  }

  show(owner) {
    const mine = ownName();
    const seen = [...this.app.sidebar.owners].filter((name) => name !== owner && name !== mine).sort().slice(0, MOST_OWNERS);
    const shown = JSON.stringify([owner, mine, seen]);
    if (this.shown === shown) return;
    this.shown = shown;
    const { button: control } = this.menu;
    control.lastChild.textContent = owner ?? text.sessions.unassigned;
    control.setAttribute("aria-label", `${text.sessions.owner}: ${owner ?? text.sessions.unassigned}`);
    control.title = text.sessions.owner;
    const entry = (label, to) => button(label, { kind: "pop-item", dir: "auto", onclick: () => this.assign(to) });
    clear(this.choices, mine && mine !== owner && entry(deskText.toMe, mine), seen.map((name) => entry(name, name)), owner && entry(deskText.unassign, null));
  }

  async assign(to) {
    try {
      await post(sessionPath(this.id, "/assign"), { to });
      this.field.value = "";
      this.app.say(deskText.assignedTo(to));
      this.app.refresh();
    } catch (error) {
      this.app.fail(error);
    }
  }
}

// A session taken along: as a document, as its log, on paper, or as a link.

const exportText = text.exports;
const FORMS = {
  markdown: [(id) => sessionPath(id, "/transcript?format=markdown"), "text/markdown", "md"],
  html: [(id) => sessionPath(id, "/transcript?format=html"), "text/html", "html"],
  jsonl: [(id) => sessionPath(id, "/events"), "application/x-ndjson", "jsonl"],
  evidence: [(id) => `evidence?id=${encodeURIComponent(id)}`, "application/zip", "zip"],
};

// Nothing that a browser would open as a page of this server.
export function saveFile(content, name) {
  const link = h("a", { href: URL.createObjectURL(new Blob([content], { type: "application/octet-stream" })), download: name.replaceAll(/[^\w.-]/g, "_") });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

export class ExportMenu {
  // `place` gives the route of what a link is to lead to.
  constructor(app, id, place, { print = false } = {}) {
    this.app = app;
    this.id = id;
    this.place = place;
    const files = Object.keys(FORMS).map((form) => this.entry(exportText[form], () => this.save(form)));
    this.menu = new Disclosure(text.timeline.export, [files, print && this.entry(exportText.print, () => window.print()), this.entry(exportText.link, () => this.copy())], { icon: "download" });
    this.node = this.menu.node;
  }

  entry(label, act) {
    return button(label, { kind: "pop-item", onclick: act });
  }

  async save(form) {
    const [path, type, suffix] = FORMS[form];
    try {
      const content = await getBlob(path(this.id), { Accept: type });
      saveFile(content, `${this.id}.${suffix}`);
    } catch (error) {
      this.app.fail(error);
    }
  }

  async copy() {
    const link = new URL(hrefOf(this.place()), document.baseURI).href;
    try {
      await navigator.clipboard.writeText(link);
      this.app.say(exportText.copied);
      this.menu.button.focus();
    } catch {
      this.app.fail({ message: exportText.noClipboard, advice: link });
    }
  }
}

// Where a session is from and what was forked from it: each with a way to see both side by side.

const forkText = text.forks;
const MOST_PAGES = 10;

export class Forks {
  constructor(session) {
    this.session = session;
    this.found = [];
    this.menu = new Disclosure("", [], { icon: "fork" });
    this.node = this.menu.node;
    this.node.hidden = true;
    this.load();
  }

  // Asked for once, however often the view changes; a new fork from this page discards the answer.
  async load() {
    this.session.forks ??= findForks(this.session.id);
    const { found, more } = await this.session.forks;
    this.found = found;
    this.more = more;
    this.show();
  }

  show() {
    const origin = this.session.state.items.findLast((item) => item.kind === "forked");
    const shown = `${origin?.from} ${this.found.length}`;
    if (this.shown === shown) return;
    this.shown = shown;
    this.node.hidden = !origin && !this.found.length;
    const label = this.found.length ? forkText.count(this.found.length) : forkText.origin;
    this.menu.button.lastChild.textContent = label;
    clear(this.menu.list,
      origin && this.entry(origin.from, forkText.from(origin.from), origin.at),
      this.found.map((fork) => this.entry(fork.id, sessionTitle(fork) === fork.id ? fork.id : forkText.named(sessionTitle(fork), fork.id), fork.forked_from.seq)),
      this.more && h("p", { class: "muted" }, forkText.more));
  }

  entry(id, name, seq) {
    return h("div", { class: "pop-entry" },
      h("a", { href: hrefOf({ view: "chat", id }), dir: "auto" }, name),
      h("span", { class: "muted" }, forkText.after(seq)),
      h("a", { href: hrefOf({ view: "compare", id: this.session.id, other: id }), "aria-label": forkText.compareWith(id) }, forkText.sideBySide));
  }
}

async function findForks(id) {
  const found = [];
  let cursor = null;
  try {
    for (let page = 0; page < MOST_PAGES; page += 1) {
      const { data, next_cursor: next } = await get(sessionPath(id, `/forks?limit=50${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`));
      found.push(...data);
      cursor = next;
      if (!cursor) break;
    }
  } catch {
    // The view itself says that there is no such session; a server that lists no forks has none to show.
  }
  return { found, more: cursor !== null };
}
