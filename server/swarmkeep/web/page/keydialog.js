// Asks for an API key, says when one is not accepted, and whose it is.

import { get, key } from "./api.js";
import { button, h } from "./dom.js";
import { forgetDrafts } from "./drafts.js";
import { nameOfMe } from "./me.js";
import { text } from "./text.js";

const t = text.key;

export class KeyDialog {
  constructor({ onChange }) {
    this.onChange = onChange;
    this.field = h("input", { class: "field", id: "api-key", type: "password", autocomplete: "off", spellcheck: "false", "aria-describedby": "key-wrong key-hint" });
    this.wrong = h("p", { class: "reason", id: "key-wrong", role: "alert" });
    this.who = h("p", { dir: "auto" });
    this.keeps = h("input", { type: "checkbox" });
    this.use = button(t.save, { kind: "primary", type: "submit" });
    this.node = h("dialog", { class: "dialog", "aria-labelledby": "key-title" },
      h("form", { onsubmit: (event) => this.submit(event) },
        h("h2", { id: "key-title" }, t.title), this.who,
        h("label", { for: "api-key" }, t.label), this.field, this.wrong,
        h("label", { class: "tick" }, this.keeps, t.remember),
        h("p", { class: "muted", id: "key-hint" }, t.hint),
        h("div", { class: "row" }, this.use, button(t.forget, { onclick: () => this.forget() }), button(text.close, { kind: "ghost", onclick: () => this.node.close() }))));
  }

  open() {
    const name = nameOfMe();
    this.who.textContent = name ? t.youAre(name) : "";
    this.keeps.checked = key.isKept;
    if (!this.node.open) this.node.showModal();
  }

  // The server has refused a request for want of a key, or of one that counts.
  refused() {
    if (this.trying) return;
    this.say(key.get() ? t.gone : "");
    this.open();
  }

  say(words) {
    this.wrong.textContent = words;
    this.field.setAttribute("aria-invalid", words !== "");
  }

  async submit(event) {
    event.preventDefault();
    const given = this.field.value.trim();
    if (!given || this.trying) return this.say(given ? "" : t.empty);
    if (!(await this.isAccepted(given))) return this.field.select();
    key.set(given, { keep: this.keeps.checked });
    this.field.value = "";
    this.say("");
    this.node.close();
    return this.onChange();
  }

  // Tried out before it takes the place of another one, which may be right.
  async isAccepted(given) {
    // No header can carry it, which would look as if the server were away.
    if (!/^[\x21-\x7e]+$/.test(given)) {
      this.say(t.wrong);
      return false;
    }
    this.trying = true;
    this.use.disabled = true;
    try {
      await get("me", { secret: given });
      return true;
    } catch (error) {
      if (error.status === 404) return true;
      this.say(error.code === "unauthenticated" ? t.wrong : error.message);
      return false;
    } finally {
      this.trying = false;
      this.use.disabled = false;
    }
  }

  forget() {
    key.set("");
    forgetDrafts();
    this.field.value = "";
    this.say("");
    this.node.close();
    this.onChange();
  }
}
