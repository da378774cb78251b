// The arguments of a call as whoever approves it wants them: JSON in a field, looked at before it is sent.

import { h, pretty } from "./dom.js";
import { compactJson, WrittenJson } from "./jsontext.js";
import { text } from "./text.js";

const tEdit = text.approval;
let editors = 0;

export class ArgumentsEditor {
  constructor(input) {
    editors += 1;
    const wrongId = `arguments-wrong-${editors}`;
    this.before = pretty(input || "{}");
    this.wrong = h("p", { class: "reason wrong", id: wrongId, role: "alert", hidden: true });
    this.field = h("textarea", { class: "field code", rows: Math.min(this.before.split("\n").length + 1, 12), spellcheck: "false", "aria-label": tEdit.arguments, "aria-describedby": wrongId, dir: "auto" });
    this.field.value = this.before;
    this.field.addEventListener("input", () => this.complain(""));
    this.node = h("details", { class: "fold edit" }, h("summary", {}, tEdit.edit), h("p", { class: "muted" }, tEdit.editHint), this.field, this.wrong);
  }

  // What was changed, as it was written; null if nothing was, and false if it cannot be sent.
  read() {
    if (this.field.value === this.before) return null;
    try {
      const given = JSON.parse(this.field.value);
      if (given === null || typeof given !== "object" || Array.isArray(given)) return this.complain(tEdit.noObject);
      return this.isAsBefore() ? null : new WrittenJson(this.field.value);
    } catch (error) {
      return this.complain(tEdit.noJson(error.message));
    }
  }

  // White space changes nothing. The model may have given what is no JSON at all.
  isAsBefore() {
    try {
      return compactJson(this.field.value) === compactJson(this.before);
    } catch {
      return false;
    }
  }

  complain(words) {
    this.wrong.textContent = words;
    this.wrong.hidden = !words;
    if (words) this.field.setAttribute("aria-invalid", "true");
    else this.field.removeAttribute("aria-invalid");
    if (words) {
      this.node.open = true;
      this.field.focus();
    }
    return false;
  }
}
