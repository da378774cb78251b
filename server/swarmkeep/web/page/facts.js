// Facts about a session, beside its conversation: context variables, tools that ran, usage, and other sessions with the same metadata.

import { get } from "./api.js";
import { clear, h, pretty, redraw, since } from "./dom.js";
import { hrefOf } from "./route.js";
import { sessionTitle } from "./session.js";
import { text } from "./text.js";
import { viewText } from "./viewtext.js";

const t = viewText.facts;
const MOST_TOOLS = 30;
const MOST_LABELS = 3;
const MOST_OTHERS = 5;
const OWN_LABELS = new Set(["title", "seen_seq"]);

const plainValue = (value) => (typeof value === "string" ? value : pretty(value));
const pairs = (entries) => h("dl", { class: "facts" }, entries.map(([name, value]) => [h("dt", { dir: "auto" }, name), h("dd", { dir: "auto" }, value)]));
const part = (title, ...content) => h("section", {}, h("h2", {}, title), content);

export class Facts {
  constructor(session) {
    this.session = session;
    this.own = h("div", { class: "facts-part" });
    this.others = h("div", { class: "facts-part" });
    this.node = h("div", {}, this.own, this.others);
  }

  show() {
    const { shown: state, id } = this.session;
    const drawn = state && `${state.seq} ${state.isPart}`;
    if (!state || this.drawn === drawn) return;
    this.drawn = drawn;
    const calls = state.items.filter(({ kind }) => kind === "call").slice(-MOST_TOOLS);
    const { usage, context } = state;
    redraw(this.own, () => clear(this.own,
      part(t.context, Object.keys(context).length ? pairs(Object.entries(context).map(([name, value]) => [name, plainValue(value)])) : h("p", { class: "muted" }, t.none)),
      part(t.tools, calls.length ? h("ul", { class: "facts-tools" }, calls.map((call) => this.tool(call))) : h("p", { class: "muted" }, t.none)),
      part(t.usage, pairs([[t.calls, usage.calls.toLocaleString("en")], [t.prompt, usage.prompt.toLocaleString("en")], [t.completion, usage.completion.toLocaleString("en")], [text.sessions.agent, state.agent], [t.id, id]]))));
    const labels = Object.entries(state.metadata).filter(([name, value]) => !OWN_LABELS.has(name) && typeof value === "string").slice(0, MOST_LABELS);
    if (JSON.stringify(labels) !== this.asked) this.findOthers(labels);
  }

  tool({ seq, name, status, duration }) {
    return h("li", {}, h("a", { href: hrefOf({ view: "timeline", id: this.session.id, at: seq }) }, h("code", { dir: "auto" }, name)), " ",
      h("span", { class: `state ${status}` }, text.tool[status] ?? status), duration !== null && h("span", { class: "muted" }, ` ${text.tool.duration(duration)}`));
  }

  // Asked for when the metadata is other than it was.
  async findOthers(labels) {
    const asked = (this.asked = JSON.stringify(labels));
    const found = await Promise.all(labels.map(async ([name, value]) => {
      const query = new URLSearchParams({ [`metadata.${name}`]: value, order: "activity", limit: String(MOST_OTHERS + 1) });
      const { data } = await get(`sessions?${query}`).catch(() => ({ data: [] }));
      return data.filter(({ id }) => id !== this.session.id).slice(0, MOST_OTHERS);
    }));
    if (asked !== this.asked) return;
    clear(this.others, labels.map(([name, value], index) => part(t.others(name, value), found[index].length
      ? h("ul", { class: "facts-others" }, found[index].map((session) => h("li", {}, h("a", { href: hrefOf({ view: "chat", id: session.id }), title: session.id, dir: "auto" }, sessionTitle(session)), " ", h("time", { class: "muted", datetime: session.updated_at }, since(session.updated_at)))))
      : h("p", { class: "muted" }, t.none))));
  }
}
