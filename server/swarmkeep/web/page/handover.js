// The active agent, and a way to another one: a choice by itself changes nothing, whoever chose says so.

import { button, clear, h } from "./dom.js";
import { text } from "./text.js";

const t = text.chat;

export class AgentSwitch {
  // `onHandOver(name)` says whether it was done.
  constructor({ onHandOver }) {
    this.onHandOver = onHandOver;
    this.agent = "";
    this.select = h("select", { class: "field agent-select", "aria-label": t.active, onchange: () => this.offer() });
    this.question = h("p", { dir: "auto" });
    this.confirm = button(t.handOver, { kind: "primary small", onclick: () => this.handOver() });
    this.keep = button(t.keep, { kind: "small", onclick: () => this.back() });
    this.offered = h("div", { class: "handover", role: "group", "aria-label": t.handOver, hidden: true }, this.question, h("div", { class: "row" }, this.confirm, this.keep));
    for (const node of [this.select, this.offered]) node.addEventListener("keydown", (event) => event.key === "Escape" && this.isOpen && this.back());
  }

  get isOpen() {
    return !this.offered.hidden;
  }

  show(agent, served, { may = true } = {}) {
    this.select.disabled = !may;
    const shown = `${agent}\n${served.join("\n")}`;
    if (this.shown === shown || this.isOpen) return;
    this.shown = shown;
    this.agent = agent;
    const gone = agent && !served.includes(agent) ? [h("option", { value: agent }, t.notServed(agent))] : [];
    clear(this.select, gone, served.map((name) => h("option", { value: name }, name)));
    this.select.value = agent;
  }

  offer() {
    const chosen = this.select.value;
    this.offered.hidden = chosen === this.agent;
    this.question.textContent = t.handOverTo(chosen);
  }

  back() {
    this.close(this.agent);
  }

  close(agent) {
    const inside = this.offered.contains(document.activeElement);
    this.offered.hidden = true;
    this.shown = null;
    this.select.value = agent;
    if (inside) this.select.focus();
  }

  async handOver() {
    const chosen = this.select.value;
    this.confirm.disabled = true;
    const done = await this.onHandOver(chosen);
    this.confirm.disabled = false;
    if (done) this.agent = chosen;
    this.close(this.agent);
  }
}
