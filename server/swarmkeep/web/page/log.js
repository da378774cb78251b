// A conversation's items on the screen: the latest ones, and earlier ones as somebody goes up to them.

import { button, h } from "./dom.js";
import { DraftNode, continues, itemNode } from "./items.js";
import { finishAll } from "./prose.js";
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

  laneOf = (agent) => Math.max(this.state.agents.indexOf(agent), 0);

  render(state, draft, settled, damaged = new Map()) {
    const held = this.held ?? (this.follows ? null : this.hold());
    this.held = null;
    if (this.state?.isPart && !state.isPart) this.first = this.placeIn(state.items);
    this.state = state;
    this.damaged = damaged;
    this.begun = null;
    const { items } = state;
    if (this.first === null || this.first > items.length) this.first = Math.max(items.length - PAGE, 0);
    if (this.follows && items.length - this.first > 3 * PAGE) this.first = items.length - PAGE;
    this.ended = this.draft.shown === draft ? null : this.draft;
    this.reconcile(items.slice(this.first), items[this.first - 1]);
    this.ended = null;
    this.earlier.hidden = this.first === 0;
    this.earlier.lastChild.textContent = text.chat.earlier(this.first);
    this.draft.node.hidden = draft === null;
    if (draft) this.draft.show(draft, this.laneOf);
    else this.draft.clear();
    this.empty.hidden = !settled || items.length > 0 || draft !== null;
    if (this.follows) this.toEnd();
    else this.latest.hidden = false;
    if (held) this.restore(held);
  }

  // Where what is shown of the end of a session begins in the whole of it.
  placeIn(items) {
    const key = this.state.items[this.first]?.key;
    const place = items.findLastIndex((item) => item.key === key);
    return place < 0 ? null : place;
  }

  // What somebody who went up is looking at, and where it stands. What comes and goes elsewhere does not move it.
  hold() {
    const edge = this.node.getBoundingClientRect().top;
    const nodes = [...this.items.children];
    if (!this.draft.node.hidden) nodes.push(this.draft.node);
    let [low, high] = [0, nodes.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (nodes[middle].getBoundingClientRect().bottom > edge) high = middle;
      else low = middle + 1;
    }
    const node = nodes[low];
    return node ? { key: node.dataset.key ?? null, top: node.getBoundingClientRect().top } : null;
  }

  restore({ key, top }) {
    const node = key !== null ? this.nodes.get(key)?.node : this.draft.node.hidden ? this.begun : this.draft.node;
    if (!node) return;
    // Its height is not a guess, or what is looked at within it would not be where it was.
    node.style.contentVisibility = "visible";
    const off = () => node.getBoundingClientRect().top - top;
    this.node.scrollTop += off();
    // A long answer that has just ended is guessed to be short, and leaves no room to scroll: then its height is needed, too.
    for (let below = this.items.lastChild; below && below !== node && Math.abs(off()) > 1; below = below.previousSibling) {
      below.style.contentVisibility = "visible";
      this.node.scrollTop += off();
    }
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
    const damaged = this.damaged.has(item.seq) || this.damaged.has(item.resultSeq);
    const continued = continues(item, previous);
    const version = `${item.version} ${damaged} ${continued} ${item.agent && this.laneOf(item.agent)}`;
    if (kept?.version === version) return kept.node;
    const prose = kept ? undefined : this.ended?.takeProse(item);
    const node = itemNode(item, { act: this.act, laneOf: this.laneOf, continued, damaged, prose });
    node.dataset.key = item.key;
    if (!kept) this.begun ??= node;
    if (kept) {
      keepOpen(kept.node, node);
      const focused = kept.node.contains(document.activeElement);
      kept.node.replaceWith(node);
      if (focused) this.node.focus({ preventScroll: true });
    }
    this.nodes.set(item.key, { node, version });
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

  // Bring what an event said into sight, and say which it is. Without such an item, what came last before it.
  point(seq) {
    const { items } = this.state;
    const exact = items.findIndex((item) => item.seq === seq || item.resultSeq === seq);
    const index = exact >= 0 ? exact : items.findLastIndex((item) => item.seq <= seq);
    if (index < 0) return;
    this.follows = false;
    if (index < this.first) {
      this.first = Math.max(index - PAGE / 2, 0);
      this.reconcile(items.slice(this.first), items[this.first - 1]);
      this.earlier.hidden = this.first === 0;
      this.earlier.lastChild.textContent = text.chat.earlier(this.first);
    }
    const { node } = this.nodes.get(items[index].key);
    this.items.querySelector(".pointed")?.classList.remove("pointed");
    node.classList.add("pointed");
    node.style.contentVisibility = "visible";
    node.scrollIntoView({ block: "center" });
    node.querySelector(".to-event")?.focus({ preventScroll: true });
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

  // Nothing of what was shown may be shown still.
  forget() {
    this.held = this.follows ? null : this.hold();
    this.nodes.clear();
    this.items.replaceChildren();
    this.draft.clear();
  }

  // All of it, as paper has no end: until then only the latest items are there.
  all() {
    if (!this.state) return;
    this.first = 0;
    this.reconcile(this.state.items, undefined);
    this.earlier.hidden = true;
    finishAll();
  }
}

// What was said below is loaded anew, with its own.
function keepOpen(from, to) {
  const before = from.querySelectorAll("details:not(.below details)");
  to.querySelectorAll("details:not(.below details)").forEach((fold, index) => before[index]?.open && (fold.open = true));
}
