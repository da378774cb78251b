// Marks above the slider: where runs begin, where agents hand over, and where something failed.

import { h } from "./dom.js";
import { isBad } from "./descriptions.js";

// No screen shows more of them.
const TICK_PLACES = 1000;
const TICK_MARKS = { run: [2, 1], handoff: [1, 2], bad: [0, 3] };

export class Ticks {
  constructor() {
    this.node = h("div", { class: "ticks", "aria-hidden": "true" });
    this.clear();
  }

  clear() {
    this.seqs = { run: [], handoff: [], bad: [] };
    this.drawn = "";
  }

  take(event) {
    if (event.type === "run.started") this.seqs.run.push(event.seq);
    else if (event.type === "handoff.made") this.seqs.handoff.push(event.seq);
    if (isBad(event)) this.seqs.bad.push(event.seq);
  }

  get failures() {
    return this.seqs.bad.length;
  }

  show(last) {
    const wanted = `${last} ${Object.values(this.seqs).map((seqs) => seqs.length).join()}`;
    if (this.drawn === wanted) return;
    this.drawn = wanted;
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", `0 0 ${TICK_PLACES} 3`);
    svg.setAttribute("preserveAspectRatio", "none");
    for (const [kind, seqs] of Object.entries(this.seqs)) svg.append(this.path(kind, seqs, last));
    this.node.replaceChildren(svg);
  }

  path(kind, seqs, last) {
    const [top, height] = TICK_MARKS[kind];
    const places = new Set(seqs.map((seq) => Math.round(((seq - 1) / Math.max(last - 1, 1)) * TICK_PLACES)));
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("class", `tick-${kind}`);
    path.setAttribute("d", [...places].map((place) => `M${place} ${top}v${height}`).join(""));
    return path;
  }
}
