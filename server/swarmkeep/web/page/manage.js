// What is done to a session as a whole: another title, its metadata, its end. Each asks before it changes anything.

import { patch, remove, sessionPath } from "./api.js";
import { button, clear, h } from "./dom.js";
import { may } from "./me.js";
import { go } from "./route.js";
import { text } from "./text.js";

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
