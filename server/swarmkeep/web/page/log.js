// A conversation's items on the screen: the latest ones, and earlier ones as somebody goes up to them.

import { button, h } from "./dom.js";
import { DraftNode, itemNode } from "./items.js";
import { text } from "./text.js";

const PAGE = 80;
const NEAR_PX = 80;

export class Log {
  constructor(act) {
    this.act = act;
    this.nodes = new Map();
    this.first = null;
    this.state = null;
    this.draft = new DraftNode();
    this.draft.node.hidden = true;
    this.earlier = button("", { kind: "ghost earlier", hidden: true, onclick: () => this.back() });
    this.items = h("div", { class: "items" });
    this.empty = h("p", { class: "muted empty", hidden: true }, text.chat.empty);
    // Not live: what is said is read aloud once it is complete, by the announcer.
    this.node = h("div", { class: "log", role: "log", "aria-live": "off", "aria-label": text.chat.log, tabindex: 0 }, h("div", { class: "column" }, this.earlier, this.empty, this.items, this.draft.node));
    this.latest = button(text.chat.latest, { icon: "down", kind: "small latest", hidden: true, onclick: () => this.toEnd() });
    this.node.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.sentinel = new IntersectionObserver((seen) => seen.some((entry) => entry.isIntersecting) && this.back(), { root: this.node, rootMargin: "400px 0px 0px 0px" });
    this.sentinel.observe(this.earlier);
    this.follows = true;
    // The height of what was never in sight is a guess until it is.
    this.grown = new ResizeObserver(() => this.follows && this.toEnd());
    this.grown.observe(this.items);
    this.grown.observe(this.draft.node);
    this.grown.observe(this.node);
  }

  close() {
    this.sentinel.disconnect();
    this.grown.disconnect();
  }

  laneOf = (agent) => Math.max(this.state.agents.indexOf(agent), 0) % 6;

  render(state, draft, settled) {
    this.state = state;
    const { items } = state;
    if (this.first === null || this.first > items.length) this.first = Math.max(items.length - PAGE, 0);
    if (this.follows && items.length - this.first > 3 * PAGE) this.first = items.length - PAGE;
    this.reconcile(items.slice(this.first), items[this.first - 1]);
    this.earlier.hidden = this.first === 0;
    this.earlier.lastChild.textContent = text.chat.earlier(this.first);
    this.draft.node.hidden = draft === null;
    if (draft) this.draft.show(draft, this.laneOf);
    else this.draft.clear();
    this.empty.hidden = !settled || items.length > 0 || draft !== null;
    if (this.follows) this.toEnd();
    else this.latest.hidden = false;
  }

  reconcile(items, before) {
    const wanted = new Set(items.map((item) => item.key));
    for (const [key, { node }] of this.nodes) {
      if (!wanted.has(key)) {
        node.remove();
        this.nodes.delete(key);
      }
    }
    let previous = before;
    let place = this.items.firstChild;
    for (const item of items) {
      const old = this.nodes.get(item.key)?.node;
      const node = this.current(item, previous);
      if (old === place && old !== undefined) place = node;
      if (node === place) place = place.nextSibling;
      else this.items.insertBefore(node, place);
      previous = item;
    }
  }

  current(item, previous) {
    const kept = this.nodes.get(item.key);
    if (kept?.version === item.version) return kept.node;
    const node = itemNode(item, { act: this.act, laneOf: this.laneOf, continued: continues(item, previous) });
    if (kept) {
      keepOpen(kept.node, node);
      const focused = kept.node.contains(document.activeElement);
      kept.node.replaceWith(node);
      if (focused) this.node.focus();
    }
    this.nodes.set(item.key, { node, version: item.version });
    return node;
  }

  back() {
    if (!this.first || !this.state) return;
    const below = this.node.scrollHeight - this.node.scrollTop;
    this.follows = false;
    this.first = Math.max(this.first - PAGE, 0);
    const { items } = this.state;
    this.reconcile(items.slice(this.first), items[this.first - 1]);
    this.earlier.hidden = this.first === 0;
    this.earlier.lastChild.textContent = text.chat.earlier(this.first);
    this.node.scrollTop = this.node.scrollHeight - below;
  }

  scrolled() {
    const { scrollTop, clientHeight, scrollHeight } = this.node;
    this.follows = scrollHeight - scrollTop - clientHeight < NEAR_PX;
    if (this.follows) this.latest.hidden = true;
  }

  toEnd() {
    this.follows = true;
    this.latest.hidden = true;
    this.node.scrollTop = this.node.scrollHeight;
  }

  reset() {
    this.nodes.clear();
    this.items.replaceChildren();
    this.first = null;
  }
}

const SAID = new Set(["assistant", "call"]);

function continues(item, previous) {
  return SAID.has(item.kind) && SAID.has(previous?.kind) && previous.agent === item.agent && previous.run_id === item.run_id;
}

function keepOpen(from, to) {
  const open = from.querySelector("details")?.open;
  const fold = to.querySelector("details");
  if (open && fold) fold.open = true;
}
