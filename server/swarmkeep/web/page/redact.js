// Events redacted from the page: the server says beforehand what that removes, and where else the same events are.

import { pause, post, sessionPath } from "./api.js";
import { summaryOf, titleOf } from "./descriptions.js";
import { button, clear, h } from "./dom.js";
import { stateTitle } from "./session.js";
import { text } from "./text.js";
import { viewText } from "./viewtext.js";

const redactText = viewText.redact;
const MOST_LISTED = 100;
const LEAST_WORDS = 3;
const SLICE_MS = 12;

// The seqs of the events that say some words, whatever their case, in a text or within JSON in a text. A number of six digits or more
// is the same with spaces, points or dashes in it. `isOver` says that it is not needed any more.
async function findWords(events, words, isOver) {
  const wanted = words.toLowerCase();
  const digits = /^\d{6,}$/.test(squeezed(words)) ? squeezed(words) : null;
  const says = (value) => value.toLowerCase().includes(wanted) || (digits !== null && squeezed(value).includes(digits));
  const found = [];
  let until = performance.now() + SLICE_MS;
  for (const { seq, data } of events) {
    if (data?.redacted !== true && textsIn(data).some(says)) found.push(seq);
    if (performance.now() < until) continue;
    await pause(0);
    if (isOver()) return found;
    until = performance.now() + SLICE_MS;
  }
  return found;
}

const squeezed = (value) => value.replaceAll(/[\s.-]/g, "");

function textsIn(value) {
  if (typeof value === "string") return [value, ...textsIn(/^\s*[[{]/.test(value) ? parsed(value) : null)];
  if (typeof value === "number") return [String(value)];
  if (value === null || typeof value !== "object") return [];
  return Object.values(value).flatMap(textsIn);
}

function parsed(source) {
  try {
    return JSON.parse(source);
  } catch {
    return null;
  }
}

export class RedactDialog {
  constructor(app, session) {
    this.app = app;
    this.session = session;
    this.seqs = h("input", { class: "field", id: "redact-seqs", inputmode: "numeric", autocomplete: "off", required: true, onchange: () => {
      if (this.alike.hasChildNodes()) this.showAlike();
      this.preview();
    } });
    this.about = h("p", { dir: "auto" });
    this.waits = h("p", { class: "muted", hidden: true }, redactText.waits);
    this.words = h("input", { class: "field", id: "redact-words", autocomplete: "off", maxlength: 200, dir: "auto", oninput: () => this.seek() });
    this.alike = h("div", { class: "redact-alike" });
    this.reason = h("textarea", { class: "field", id: "redact-reason", rows: 2, required: true, maxlength: 1000, dir: "auto" });
    this.forks = h("input", { type: "checkbox" });
    this.forksLabel = h("label", { class: "tick", hidden: true }, this.forks, redactText.forks);
    this.found = h("div", { class: "redact-found scroll", role: "status", tabindex: 0, "aria-label": redactText.removes });
    this.wrong = h("p", { class: "reason", role: "alert" });
    this.confirm = button(redactText.confirm, { kind: "danger", type: "submit", disabled: true });
    this.node = h("dialog", { class: "dialog wider", "aria-labelledby": "redact-title" },
      h("form", { onsubmit: (event) => this.submit(event) },
        h("h2", { id: "redact-title" }, redactText.title), this.about, h("p", { class: "muted" }, redactText.hint), this.waits,
        h("label", { for: "redact-seqs" }, redactText.seqs), this.seqs,
        h("label", { for: "redact-words" }, redactText.words), this.words, this.alike, this.found, this.forksLabel,
        h("label", { for: "redact-reason" }, redactText.reason), this.reason, this.wrong,
        h("div", { class: "row" }, this.confirm, button(text.close, { kind: "ghost", onclick: () => this.node.close() }))));
    this.node.addEventListener("close", () => this.node.remove());
  }

  open(seq, words = "") {
    const name = stateTitle(this.session.id, this.session.state);
    this.about.textContent = name === this.session.id ? name : text.forks.named(name, this.session.id);
    this.seqs.value = String(seq);
    this.words.value = words;
    this.waits.hidden = this.session.state.run?.status !== "waiting";
    this.reason.value = "";
    this.forks.checked = false;
    document.body.append(this.node);
    this.node.showModal();
    this.seek();
    return this.preview();
  }

  // The other events that say the same words, to be added: what the server copied is found by the server, what a model or a function
  // repeated is not.
  async seek() {
    const words = this.words.value.trim();
    const seeking = (this.seeking = {});
    if (words.length < LEAST_WORDS) return clear(this.alike);
    const found = await findWords(this.session.events, words, () => this.seeking !== seeking);
    if (this.seeking !== seeking) return null;
    this.foundAlike = found;
    return this.showAlike();
  }

  showAlike() {
    const { events } = this.session;
    const [named] = seqsIn(this.seqs.value);
    const others = this.foundAlike.filter((seq) => !named.includes(seq));
    const add = (...seqs) => {
      this.seqs.value = [...named, ...seqs].sort((one, other) => one - other).join(", ");
      this.showAlike();
      if (!this.alike.contains(document.activeElement)) (this.alike.querySelector("li button") ?? this.words).focus();
      return this.preview();
    };
    clear(this.alike, h("p", { role: "status" }, redactText.alike(others.length)),
      others.length > 1 && h("div", { class: "row" }, button(redactText.addAll(others.length), { kind: "small", onclick: () => add(...others) })),
      others.length > 0 && h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": redactText.alikeList }, h("ul", {}, others.slice(0, MOST_LISTED).map((seq) => h("li", { class: "row" },
        button(redactText.add, { kind: "small", "aria-label": redactText.addOne(seq), onclick: () => add(seq) }),
        h("span", { class: "muted" }, `#${seq}`), h("b", {}, titleOf(events[seq - 1])), h("span", { class: "grow", dir: "auto" }, summaryOf(events[seq - 1]).slice(0, 120)))))),
      others.length > MOST_LISTED && h("p", { class: "muted" }, text.timeline.damagedMore(others.length - MOST_LISTED)));
  }

  redact(body) {
    return post(sessionPath(this.session.id, "/redact"), { seqs: this.asked, include_forks: this.forks.checked, ...body });
  }

  async preview() {
    this.confirm.disabled = true;
    this.wrong.textContent = "";
    const [asked, wrong] = seqsIn(this.seqs.value);
    this.asked = asked;
    clear(this.found, wrong === null && h("p", { class: "muted" }, text.timeline.loading));
    if (wrong !== null) {
      this.wrong.textContent = redactText.noEvents(wrong);
      return;
    }
    try {
      const found = await this.redact({ reason: redactText.title, dry_run: true });
      if (this.asked !== asked) return;
      this.show(found);
    } catch (error) {
      if (this.asked !== asked) return;
      clear(this.found);
      this.wrong.textContent = error.code === "session_busy" && !this.waits.hidden ? redactText.awaited : error.message;
    }
  }

  show({ seqs, forks }) {
    const { events } = this.session;
    const line = (seq) => h("li", {}, h("span", { class: "muted" }, `#${seq} `), h("b", {}, titleOf(events[seq - 1] ?? { type: "?" })), " ", h("span", { dir: "auto" }, summaryOf(events[seq - 1] ?? { type: "?", data: null }).slice(0, 300)), !this.asked.includes(seq) && h("span", { class: "muted" }, ` ${redactText.copied}`));
    clear(this.found,
      h("p", {}, seqs.length ? redactText.count(seqs.length) : redactText.nothing),
      h("ul", {}, seqs.slice(0, MOST_LISTED).map(line)),
      seqs.length > MOST_LISTED && h("p", { class: "muted" }, text.timeline.damagedMore(seqs.length - MOST_LISTED)),
      forks.length > 0 && [h("p", {}, redactText.elsewhere(forks.length)), h("ul", {}, forks.slice(0, MOST_LISTED).map((copy) => h("li", {}, h("code", { dir: "auto" }, copy.session_id), " ", copy.seqs.join(", "))))]);
    this.forksLabel.hidden = !forks.length;
    this.confirm.disabled = !seqs.length && !forks.length;
  }

  async submit(event) {
    event.preventDefault();
    if (this.confirm.disabled || !this.reason.value.trim()) return;
    this.confirm.disabled = true;
    try {
      const { seqs, forks } = await this.redact({ reason: this.reason.value.trim() });
      this.node.close();
      this.app.say(redactText.done(seqs.length));
      const left = this.forks.checked ? forks.filter((copy) => !copy.redacted) : [];
      if (left.length) this.app.fail({ message: redactText.left(left.map((copy) => copy.session_id).join(", ")) });
    } catch (error) {
      this.wrong.textContent = error.message;
      this.confirm.disabled = false;
    }
  }
}

// "4, 6-9" as numbers, and the first part that is none of that: what is removed for good is not guessed at.
function seqsIn(written) {
  const found = new Set();
  for (const part of written.split(/[\s,;]+/).filter(Boolean)) {
    const [first, last = first] = /^\d{1,15}([-–]\d{1,15})?$/.test(part) ? part.split(/[-–]/).map(Number) : [NaN];
    if (!(first >= 1 && first <= last)) return [[], part];
    for (let seq = first; seq <= last && found.size <= MOST_SEQS; seq += 1) found.add(seq);
  }
  return [[...found], null];
}

// One more than the server takes, so that it says so.
const MOST_SEQS = 1000;
