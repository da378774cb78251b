// A button with more behind it: opened by a press, closed by Escape, by a choice, or by going elsewhere.

import { button, h } from "./dom.js";

export class Disclosure {
  constructor(label, entries, { icon = "down", kind = "", ...props } = {}) {
    this.button = button(label, { icon, kind, "aria-expanded": "false", onclick: () => this.toggle(), ...props });
    this.list = h("div", { class: "pop-list", role: "group", "aria-label": label, hidden: true }, entries);
    this.node = h("div", { class: "pop" }, this.button, this.list);
    this.node.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || this.list.hidden) return;
      event.stopPropagation();
      this.toggle(false);
      this.button.focus();
    });
    this.node.addEventListener("focusout", ({ relatedTarget }) => relatedTarget && !this.node.contains(relatedTarget) && this.toggle(false));
    this.list.addEventListener("click", (event) => event.target.closest("a, button") && this.chosen());
    this.away = (event) => this.node.contains(event.target) || this.toggle(false);
    this.place = () => this.moveInside();
  }

  toggle(open = this.list.hidden) {
    this.list.hidden = !open;
    this.button.setAttribute("aria-expanded", String(open));
    const change = open ? "addEventListener" : "removeEventListener";
    document[change]("pointerdown", this.away);
    window[change]("resize", this.place);
    if (open) this.place();
  }

  // What was chosen may have taken the keyboard elsewhere; otherwise it goes back to the button.
  chosen() {
    const inside = this.list.contains(document.activeElement);
    this.toggle(false);
    if (inside) this.button.focus();
  }

  // It ends where its button does, and begins within the window.
  moveInside() {
    this.list.style.translate = "none";
    const { left } = this.list.getBoundingClientRect();
    if (left < EDGE_PX) this.list.style.translate = `${EDGE_PX - left}px`;
  }
}

const EDGE_PX = 8;
