// A person in the agent's place: who has taken over, and the ways there and back.

import { bdi, button, clear, dayAndTime, h } from "./dom.js";
import { whoIs } from "./descriptions.js";
import { me } from "./me.js";
import { text } from "./text.js";

const tOver = text.takeover;
const MOST_NOTE = 10_000;

// Whether it is the one who sits here. Without keys nobody has a name.
export function isMine(taken) {
  const id = me.known?.key?.id;
  if (!taken) return false;
  if (taken.by === null) return !id;
  // A key without a name is called by its id alone.
  return Boolean(id) && (taken.by === id || taken.by.startsWith(`${id} `));
}

export class Takeover {
  // `onTake(note, force)` and `onBack(note, force)` say whether it was done.
  constructor({ onTake, onBack }) {
    this.on = { take: onTake, back: onBack };
    this.button = button(tOver.take, { onclick: () => this.ask("take"), hidden: true });
    this.note = h("input", { class: "field", type: "text", maxlength: MOST_NOTE, dir: "auto" });
    this.confirm = button(tOver.take, { kind: "primary small", type: "submit" });
    this.form = h("form", { class: "handover taking", hidden: true, onsubmit: (event) => this.submit(event) },
      this.note, h("div", { class: "row" }, this.confirm, button(text.chat.keep, { kind: "small", onclick: () => this.shut() })));
    this.form.addEventListener("keydown", (event) => event.key === "Escape" && this.shut());
    this.banner = h("div", { class: "handover taken", role: "group", "aria-label": tOver.label, hidden: true });
    this.node = h("div", {}, this.banner, this.form);
  }

  show(taken, agent, { may }) {
    this.agent = agent;
    this.button.hidden = !may || taken !== null;
    const shown = JSON.stringify([taken, agent, may]);
    if (this.shown === shown) return;
    this.shown = shown;
    // Whoever writes why goes on, unless it has become another matter.
    const isOther = JSON.stringify(taken) !== JSON.stringify(this.taken ?? null);
    this.taken = taken;
    if (isOther || !may) this.shut();
    this.banner.hidden = taken === null;
    if (!taken) return;
    const mine = isMine(taken);
    const words = mine ? tOver.mine(agent) : tOver.theirs(whoIs(taken.by), agent);
    clear(this.banner,
      h("p", { class: "grow", title: dayAndTime(taken.at) }, bdi(words), taken.note ? [" ", h("q", { dir: "auto" }, taken.note)] : null),
      may ? h("div", { class: "row" }, mine ? null : button(tOver.takeFrom, { kind: "small", onclick: () => this.ask("take") }), button(tOver.back, { kind: "small primary", onclick: () => this.ask("back") })) : null);
  }

  ask(what) {
    this.what = what;
    const back = what === "back";
    const label = back ? tOver.noteBack : tOver.noteTake;
    this.form.setAttribute("aria-label", back ? tOver.back : tOver.take);
    this.note.setAttribute("aria-label", label);
    this.note.placeholder = label;
    this.note.value = "";
    this.confirm.lastChild.textContent = back ? tOver.back : tOver.take;
    this.form.hidden = false;
    this.note.focus();
  }

  shut() {
    const inside = this.form.contains(document.activeElement);
    this.form.hidden = true;
    if (inside) (this.button.hidden ? this.banner.querySelector("button") : this.button)?.focus();
  }

  async submit(event) {
    event.preventDefault();
    this.confirm.disabled = true;
    const done = await this.on[this.what](this.note.value.trim(), this.taken !== null && !isMine(this.taken));
    this.confirm.disabled = false;
    if (done) this.shut();
  }
}
