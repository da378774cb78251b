// Would today's agents do the same? The server compares them with what is recorded, and this lists where they part.

import { post, sessionPath } from "./api.js";
import { button, clear, h, icon, pretty } from "./dom.js";
import { hrefOf } from "./route.js";
import { text } from "./text.js";

const todayText = text.today;

export class Today {
  constructor(id, onChange) {
    this.id = id;
    this.onChange = onChange;
    // The divergences by the event that they show at.
    this.marks = new Map();
    this.node = h("section", { class: "panel", "aria-label": todayText.title, hidden: true });
  }

  close() {
    this.node.hidden = true;
    this.marks = new Map();
    this.onChange();
  }

  async ask() {
    this.node.hidden = false;
    this.show(h("p", { class: "muted", role: "status" }, todayText.asking));
    try {
      const found = await post(sessionPath(this.id, "/replay"));
      this.marks = new Map();
      for (const one of found.divergences) this.marks.set(one.seq, [...(this.marks.get(one.seq) ?? []), one]);
      this.show(this.verdict(found), h("ul", { class: "divergences" }, found.divergences.map((one) => this.line(one))));
    } catch (error) {
      this.show(h("p", { class: "reason", role: "alert" }, error.message));
    }
    this.onChange();
  }

  show(...nodes) {
    clear(this.node, h("header", { class: "row" }, h("h2", {}, todayText.title), h("span", { class: "grow" }), button(text.close, { icon: "cross", kind: "ghost small", quiet: true, onclick: () => this.close() })), nodes);
  }

  verdict({ matches, turns, divergences, redacted, last_seq: last, cut_short: cut }) {
    const words = matches ? todayText.same(turns) : divergences.length ? todayText.differs(divergences.length, turns) : todayText.soFar(turns);
    return h("div", { role: "status" }, h("p", { class: matches ? "" : "reason" }, words),
      cut && h("p", { class: "reason" }, todayText.cut(last)),
      redacted.length > 0 && h("p", { class: "muted" }, todayText.redacted(redacted.join(", "))));
  }

  line({ seq, kind, recorded, actual }) {
    const side = (name, value) => [h("dt", {}, name), h("dd", {}, h("pre", { class: "code", tabindex: 0, dir: "auto" }, pretty(value)))];
    return h("li", {}, h("details", {}, h("summary", {}, icon("cross"), todayText.kinds[kind] ?? kind), h("dl", { class: "parts" }, side(todayText.recorded, recorded), side(todayText.actual, actual))),
      h("a", { href: hrefOf({ view: "timeline", id: this.id, at: seq }) }, text.timeline.damagedAt(seq)));
  }
}
