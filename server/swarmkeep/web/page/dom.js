// Elements, and the controls that all views share.

import { indentedJson } from "./json.js";
import { text } from "./text.js";

// Elements without markup: text stays text.

const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "textContent", "tabIndex", "open", "dir"]);

export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (PROPERTIES.has(name)) node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const PATHS = {
  brand: "M8 1.8 13.4 4.9v6.2L8 14.2 2.6 11.1V4.9zM5.4 6.5h5.2M5.4 9.5h3.2",
  menu: "M2 4h12M2 8h12M2 12h12",
  keyboard: "M1.500 4h13v8h-13zM4 6.500h.01M6.700 6.500h.01M9.300 6.500h.01M12 6.500h.01M5 9.500h6",
  info: "M8 2.500a5.5 5.5 0 1 0 0 11 5.500 5.500 0 0 0 0-11zM8 7.300v3.500M8 5.200h.01",
  person: "M8 2.500a2.6 2.6 0 1 0 0 5.200 2.600 2.600 0 0 0 0-5.200zM3 13.500c.4-2.500 2.400-4 5-4s4.600 1.500 5 4",
  plus: "M8 3v10M3 8h10",
  send: "M3 8h9M8.5 4.5 12 8l-3.5 3.5",
  stop: "M4.5 4.5h7v7h-7z",
  tool: "M9.5 3.2a3.3 3.3 0 0 0-3.9 4.4L2.6 10.6l2.8 2.8 3-3a3.3 3.3 0 0 0 4.4-3.9L10.6 8.7 8.2 7.8 7.4 5.400z",
  handoff: "M2.5 5h9M8.5 2 11.5 5 8.5 8M13.5 11h-9M7.5 8 4.5 11 7.5 14",
  key: "M5 5.200a2.8 2.8 0 1 0 0 5.6 2.8 2.8 0 0 0 0-5.600zM7.8 8H14M11 8v2.300M14 8v2.8",
  sun: "M8 5.200a2.8 2.8 0 1 0 0 5.6 2.8 2.8 0 0 0 0-5.600zM8 1.500v1.500M8 13v1.500M1.5 8H3M13 8h1.500M3.4 3.400l1 1M11.6 11.600l1 1M12.6 3.400l-1 1M4.4 11.600l-1 1",
  moon: "M13 9.500A5.5 5.5 0 0 1 6.5 3a5.5 5.5 0 1 0 6.5 6.500z",
  auto: "M8 2.500a5.5 5.5 0 1 0 0 11zM8 2.500a5.5 5.5 0 0 1 0 11",
  fork: "M5 3v4a3 3 0 0 0 3 3h3M5 3v10M8.5 7.5 11 10l-2.5 2.5",
  download: "M8 2.500v7.500M5 7.2 8 10.200l3-3M3 13h10",
  pen: "M3 13l.7-3L11 2.700l2.300 2.300L6 12.300zM9.500 4.200l2.300 2.300",
  tag: "M2.500 7.800V2.500h5.300l5.700 5.700-5.300 5.300zM5 5h.01",
  bin: "M3 4.500h10M6 4.500V3h4v1.500M4.500 4.500l.6 8.500h5.800l.6-8.500M6.800 7v3.500M9.200 7v3.500",
  compare: "M6.500 3.500h-4v9h4M9.500 3.500h4v9h-4M8 1.500v13",
  clip: "M12.500 7.500l-4.800 4.800a2.900 2.900 0 0 1-4.100-4.100l5.300-5.300a1.900 1.900 0 0 1 2.700 2.700l-5.300 5.300a.9.9 0 0 1-1.300-1.300l4.800-4.800",
  copy: "M5.500 5.500h8v8h-8zM2.500 10.500v-8h8",
  check: "M3.5 8.5 6.5 11.5 12.5 4.5",
  cross: "M4 4l8 8M12 4l-8 8",
  flask: "M6 2h4M7 2v4.500L3.500 13h9L9 6.500V2M5 10.500h6",
  good: "M5 7v6H3V7zM5 7l2.500-4.500c1.200 0 1.700 1 1.400 2L8.500 6.500h3.700c.8 0 1.300.8 1.100 1.500l-1.100 4.200c-.1.500-.6.800-1.100.8H5",
  bad: "M5 9V3H3v6zM5 9l2.500 4.500c1.200 0 1.700-1 1.400-2L8.500 9.500h3.700c.8 0 1.300-.8 1.100-1.500l-1.100-4.200c-.1-.5-.6-.8-1.100-.8H5",
  left: "M10 3.5 5.5 8l4.5 4.5",
  right: "M6 3.5 10.5 8 6 12.5",
  clock: "M8 2.500a5.5 5.5 0 1 0 0 11 5.500 5.500 0 0 0 0-11zM8 5v3.200l2 1.300",
  play: "M5 3.2v9.600L12.5 8z",
  down: "M3.5 6 8 10.5 12.5 6",
};

export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}

export function button(label, { icon: sign, kind = "", quiet = false, ...props } = {}) {
  const named = quiet ? { "aria-label": label, title: label } : {};
  return h("button", { type: "button", class: `button ${kind}`, ...named, ...props }, sign && icon(sign), !quiet && h("span", {}, label));
}

// The second click of a double click does nothing: what is under the pointer by then may be the next case.
export const single = (work) => (event) => event.detail > 1 || work();

// Where the browser lets no page write to the clipboard, the text is not copied, and the button says nothing else.
export function copyButton(textOf, { label = text.copy, sign = null } = {}) {
  const control = button(label, {
    ...(sign ? { icon: sign, quiet: true, kind: "ghost small" } : { kind: "small" }),
    onclick: async () => {
      try {
        await navigator.clipboard.writeText(textOf());
      } catch {
        return;
      }
      show(text.copied, "check");
      setTimeout(() => show(label, sign), COPIED_MS);
    },
  });
  const show = (words, picture) => {
    if (!sign) control.lastChild.textContent = words;
    else {
      control.replaceChildren(icon(picture));
      control.title = words;
      control.setAttribute("aria-label", words);
    }
  };
  return control;
}

const COPIED_MS = 2_000;
const NAMED_LANES = 6;

// The colour of an agent: of any number of them no two are alike.
export function lane(node, index) {
  if (index < NAMED_LANES) node.classList.add(`lane-${index}`);
  else node.style.setProperty("--lane", `light-dark(oklch(0.45 0.1 ${hueOf(index)}), oklch(0.76 0.1 ${hueOf(index)}))`);
  return node;
}

// By the golden angle, so that neighbours are far from one another.
const hueOf = (index) => Math.round(index * 137.508) % 360;

// A text as it was written.
export const plain = (source) => h("p", { class: "plain" }, source);

export const bdi = (value) => h("bdi", {}, value);

// Once per frame at most, and also while the tab is hidden, when there are no frames.
export function throttle(work) {
  let due = false;
  const run = () => {
    due = false;
    work();
  };
  return () => {
    if (due) return;
    due = true;
    if (document.hidden) setTimeout(run, 200);
    else requestAnimationFrame(run);
  };
}

export function clear(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter(Boolean));
  return node;
}

// Children that would look the same, but for how long ago something was, stay: a press on one of them is still a click
// when an answer came in between.
export function renew(node, children) {
  children.forEach((child, place) => {
    const old = node.children[place];
    if (!old) return node.append(child);
    const times = child.querySelectorAll("time");
    old.querySelectorAll("time").forEach((time, which) => (time.textContent = times[which]?.textContent ?? ""));
    if (!old.isEqualNode(child)) old.replaceWith(child);
  });
  while (node.children.length > children.length) node.lastElementChild.remove();
}

// Draws a part again and keeps the keyboard in it: the control that had the focus gets it back, or the one in its place.
export function redraw(node, draw) {
  const controls = () => [...node.querySelectorAll("a[href], summary, [tabindex]")];
  const keyOf = (control) => control.getAttribute("href") ?? control.textContent;
  const before = controls();
  const place = before.indexOf(document.activeElement);
  draw();
  if (place < 0) return;
  const after = controls();
  const alike = (list) => list.filter((control) => keyOf(control) === keyOf(before[place]));
  (alike(after)[alike(before).indexOf(before[place])] ?? after[Math.min(place, after.length - 1)])?.focus();
}

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });
export const timeOf = (at) => clock.format(new Date(at));

// When something was said; the tooltip has the day and the seconds.
const minutes = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
export const timeNode = (at) => h("time", { class: "muted said-at", datetime: at, title: dayAndTime(at) }, minutes.format(new Date(at)));

const wholeDay = new Intl.DateTimeFormat(undefined, { weekday: "long", day: "numeric", month: "long", year: "numeric" });
export function dayName(at, now = new Date()) {
  const date = new Date(at);
  const ago = (days) => new Date(now.getFullYear(), now.getMonth(), now.getDate() - days).toDateString() === date.toDateString();
  return ago(0) ? text.today : ago(1) ? text.yesterday : wholeDay.format(date);
}
export const dayAndTime = (at) => `${day.format(new Date(at))}, ${timeOf(at)}`;

const ago = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "narrow" });
export function since(at, now = Date.now()) {
  const seconds = Math.round((new Date(at) - now) / 1000);
  if (seconds > -60) return ago.format(Math.min(seconds, 0), "second");
  if (seconds > -3600) return ago.format(Math.trunc(seconds / 60), "minute");
  if (seconds > -86400) return ago.format(Math.trunc(seconds / 3600), "hour");
  return day.format(new Date(at));
}

export function pretty(value) {
  if (typeof value !== "string") return JSON.stringify(value, null, 2) ?? "";
  try {
    return indentedJson(value);
  } catch {
    return value;
  }
}

// A button with more behind it: opened by a press, closed by Escape, by a choice, or by going elsewhere.

export class Disclosure {
  constructor(label, entries, { icon = "down", kind = "", ...props } = {}) {
    this.button = button(label, { icon, kind, title: label || null, "aria-expanded": "false", onclick: () => this.toggle(), ...props });
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

// A table in its place. Where it is wider than that, each row is a card: what is in it, behind the names of the columns.
// `head` are the names of the columns, or the cells above them; `parts` are the bodies.
export function wideTable(label, kind, head, ...parts) {
  const above = h("tr", {}, head.map((cell) => (typeof cell === "string" ? h("th", { scope: "col" }, cell) : cell)));
  const table = h("table", {}, h("thead", {}, above), parts);
  const edge = h("div");
  const place = h("div", { class: `wide ${kind}`, tabindex: 0, role: "group", "aria-label": label }, edge, table);
  const fit = () => {
    place.classList.remove("cards");
    if (place.scrollWidth <= place.clientWidth) return;
    const names = [...above.cells].map((cell) => (cell.dataset.name ?? cell.textContent).trim());
    for (const { cells } of table.rows) for (const [index, cell] of [...cells].entries()) cell.dataset.name = names[index];
    place.classList.add("cards");
  };
  // Of the edge, whose height stays: what is measured changes that of the place.
  new ResizeObserver(fit).observe(edge);
  new MutationObserver(fit).observe(table, { childList: true, subtree: true });
  return place;
}
