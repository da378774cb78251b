// A list of any length with rows of one height: only what is in sight exists.

import { h } from "./dom.js";

const ROW_PX = 40;
const SPARE = 8;

export class Rows {
  // `rowOf(index)` makes a row's content; `onChoose(index)` hears of the row that is chosen. As a tree `levelOf(index)` says how
  // deep a row is, and whether it is unfolded; `onKey(event)` is true where that was for the tree.
  constructor({ label, rowOf, onChoose, onOpen, onKey = () => false, levelOf = () => ({}) }) {
    this.rowOf = rowOf;
    this.onChoose = onChoose;
    this.levelOf = levelOf;
    this.isTree = false;
    this.count = 0;
    this.chosen = -1;
    this.space = h("div", { class: "rows-space", role: "presentation" });
    this.node = h("div", { class: "rows", role: "listbox", tabindex: 0, "aria-label": label }, this.space);
    this.node.addEventListener("scroll", () => this.draw(), { passive: true });
    this.node.addEventListener("keydown", (event) => onKey(event) || (event.key === "Enter" ? onOpen() : this.move(event)));
    this.node.addEventListener("click", (event) => {
      const row = event.target.closest(".row-line");
      if (row) this.onChoose(Number(row.dataset.index));
    });
    this.resized = new ResizeObserver(() => this.show(this.count, this.chosen, { reveal: true }));
    this.resized.observe(this.node);
  }

  close() {
    this.resized.disconnect();
  }

  // A list, or a tree of as many rows.
  become(tree) {
    this.isTree = tree;
    this.node.setAttribute("role", tree ? "tree" : "listbox");
  }

  show(count, chosen, { reveal = false } = {}) {
    this.count = count;
    this.chosen = chosen;
    this.space.style.height = `${count * ROW_PX}px`;
    if (reveal && chosen >= 0) this.reveal(chosen);
    this.draw();
  }

  reveal(index) {
    const { scrollTop, clientHeight } = this.node;
    const top = index * ROW_PX;
    if (top < scrollTop) this.node.scrollTop = top;
    else if (top + ROW_PX > scrollTop + clientHeight) this.node.scrollTop = top + ROW_PX - clientHeight;
  }

  draw() {
    const first = Math.max(Math.floor(this.node.scrollTop / ROW_PX) - SPARE, 0);
    const last = Math.min(Math.ceil((this.node.scrollTop + this.node.clientHeight) / ROW_PX) + SPARE, this.count);
    const lines = [];
    for (let index = first; index < last; index += 1) lines.push(this.line(index));
    this.space.replaceChildren(...lines);
    if (this.chosen >= first && this.chosen < last) this.node.setAttribute("aria-activedescendant", `row-${this.chosen}`);
    else this.node.removeAttribute("aria-activedescendant");
  }

  line(index) {
    const place = this.isTree ? this.treePlace(index) : { role: "option", "aria-posinset": index + 1, "aria-setsize": this.count };
    const line = h("div", { class: "row-line", id: `row-${index}`, "aria-selected": String(index === this.chosen), ...place }, this.rowOf(index));
    line.dataset.index = index;
    line.style.transform = `translateY(${index * ROW_PX}px)`;
    return line;
  }

  treePlace(index) {
    const { level, unfolded } = this.levelOf(index);
    return { role: "treeitem", "aria-level": level, "aria-expanded": unfolded === undefined ? undefined : String(unfolded) };
  }

  move(event) {
    const page = Math.max(Math.floor(this.node.clientHeight / ROW_PX) - 1, 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (step === undefined || !this.count) return;
    event.preventDefault();
    this.onChoose(Math.min(Math.max(this.chosen + step, 0), this.count - 1));
  }
}
