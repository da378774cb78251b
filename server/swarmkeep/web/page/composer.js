// The field that a message is written in, and drafts of messages.

import { button, clear, h } from "./dom.js";
import { sizeOf, text } from "./text.js";

// Drafts of messages, one for each session: kept in this tab, through reloads and changes of view.

const NAME = "swarmkeep.draft.";

const nameOf = (id) => `${NAME}${id ?? ""}`;

const draftOf = (id) => sessionStorage.getItem(nameOf(id)) ?? "";

function keepDraft(id, words) {
  try {
    if (words.trim()) sessionStorage.setItem(nameOf(id), words);
    else sessionStorage.removeItem(nameOf(id));
  } catch {
    // The storage is full; the draft is still on the screen.
  }
}

// Files that were chosen are kept until the page is left.
const chosenFiles = new Map();

// What was begun about approvals, by session and call: also until then.
export const begunDecisions = new Map();

export function forgetDrafts() {
  chosenFiles.clear();
  begunDecisions.clear();
  for (const name of Object.keys(sessionStorage)) if (name.startsWith(NAME)) sessionStorage.removeItem(name);
}

// Where a message is written. Enter sends; while a run is active the message waits for its turn.

export class Composer {
  constructor({ send, cancel }) {
    this.on = { send, cancel };
    this.busy = false;
    this.input = h("textarea", { id: "composer", class: "input", rows: 1, dir: "auto", "aria-label": text.chat.input, "aria-describedby": "composer-hint", enterkeyhint: "send" });
    this.send = button(text.chat.send, { icon: "send", kind: "primary", quiet: true, type: "submit" });
    this.cancel = button(text.chat.cancel, { icon: "stop", kind: "danger", onclick: (event) => this.cancelled(event), hidden: true });
    this.picker = h("input", { type: "file", multiple: true, hidden: true, onchange: () => this.attach([...this.picker.files]) });
    this.clip = button(text.attach.open, { icon: "clip", kind: "ghost", quiet: true, onclick: () => this.pick() });
    this.attached = h("ul", { class: "attached", "aria-label": text.attach.there, hidden: true });
    this.refused = h("div", { class: "reason", role: "status" });
    this.hint = h("p", { id: "composer-hint", class: "muted hint" }, text.chat.hint);
    this.modes = h("select", { class: "field", "aria-label": text.desk.how, onchange: () => this.choose() });
    this.how = h("div", { class: "row composer-how", hidden: true }, this.modes);
    this.node = h(
      "form",
      { class: "composer", onsubmit: (event) => this.submit(event) },
      h("div", { class: "column" },
        this.how,
        this.refused, this.attached,
        h("div", { class: "composer-box", "data-drop": text.attach.drop }, this.clip, this.picker, this.input, h("div", { class: "composer-actions" }, this.cancel, this.send)),
        this.hint),
    );
    this.input.addEventListener("paste", (event) => {
      const files = [...event.clipboardData.files];
      // What was copied from a document may be a picture of it, too.
      if (!files.length || event.clipboardData.types.includes("text/plain")) return;
      event.preventDefault();
      this.attach(files);
    });
    this.input.addEventListener("keydown", (event) => {
      // While an input method is composing, Enter chooses a character.
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) this.submit(event);
    });
    this.input.addEventListener("input", () => {
      keepDraft(this.id, this.input.value);
      this.grow();
    });
  }

  // The session that is written to; null for one that is not made yet. What was begun there is there again.
  open(id) {
    this.id = id;
    this.chosen = null;
    this.refused.replaceChildren();
    this.showFiles();
    this.input.value = draftOf(id);
    requestAnimationFrame(() => this.grow());
  }

  // What is written may be said in these `modes`, the first of which is the usual one: as the customer (`user`), in the agent's place
  // (`answer`, `takeOver`, from its `holder` if another person is there), or to colleagues (`note`).
  show(shown) {
    const { agent, busy, may, modes: offered = ["user"], holder, mayDecide } = shown;
    // What was begun as a note stays one, whatever happens meanwhile.
    const modes = !may ? ["user"] : this.chosen === "note" && !offered.includes("note") ? [...offered, "note"] : offered;
    this.shown = shown;
    this.busy = busy;
    const nameOfMode = (name) => (name === "takeOver" && holder ? text.desk.takeFrom(holder) : text.desk.modes[name]);
    if (this.offered !== `${modes} ${holder}`) {
      this.offered = `${modes} ${holder}`;
      clear(this.modes, modes.map((name) => h("option", { value: name }, nameOfMode(name))));
      this.modes.value = modes.includes(this.chosen) ? this.chosen : modes[0];
    }
    this.how.hidden = !may || modes.length < 2;
    const mode = (this.mode = this.modes.value);
    const person = mode !== "user";
    const words = { user: text.chat.input, answer: text.takeover.answer }[mode] ?? nameOfMode(mode);
    const closed = mayDecide ? [text.chat.approvesOnly, text.chat.approvesOnlyHint] : [text.chat.readOnly, text.chat.readOnlyHint];
    this.input.placeholder = !may ? closed[0] : mode === "note" ? text.desk.noteHint : person ? text.takeover.placeholder(agent) : text.chat.placeholder(agent);
    this.input.setAttribute("aria-label", words);
    this.input.disabled = !may;
    this.send.hidden = !may;
    this.clip.hidden = !may || person;
    this.attached.hidden = person || !this.files.length;
    this.cancel.hidden = !busy || !may;
    if (!busy) this.cancelling(false);
    this.hint.textContent = !may ? closed[1] : mode === "note" ? text.desk.noteHint : person ? text.takeover.hint : busy ? text.chat.busyHint : text.chat.hint;
    const label = person ? words : busy ? text.chat.queue : text.chat.send;
    this.send.title = label;
    this.send.setAttribute("aria-label", label);
  }

  choose() {
    this.chosen = this.modes.value;
    this.show(this.shown);
    this.focus();
  }

  // The usual way to speak from here on, unless something is being written in another one.
  forget() {
    if (this.input.value.trim()) return;
    this.chosen = null;
    this.offered = null;
    this.show(this.shown);
  }

  // The button goes with the run. A keyboard goes on where one writes.
  cancelled({ detail }) {
    if (!detail) this.focus();
    this.on.cancel();
  }

  cancelling(yes) {
    this.cancel.disabled = yes;
    this.cancel.lastChild.textContent = yes ? text.chat.cancelling : text.chat.cancel;
  }

  async submit(event) {
    event.preventDefault();
    const words = this.input.value;
    const files = this.mode === "user" ? this.files : [];
    if (!(words.trim() || files.length) || this.sending) return;
    this.sending = true;
    this.send.disabled = true;
    this.put("");
    if (files.length) this.keepFiles([]);
    const taken = await this.on.send(words, this.busy, this.mode, files);
    this.sending = false;
    this.send.disabled = false;
    // Nothing that was written is lost, also if more was written meanwhile.
    if (!taken) this.put([words, this.input.value].filter(Boolean).join("\n"));
    if (!taken && files.length) this.keepFiles([...files, ...this.files]);
  }

  get files() {
    return chosenFiles.get(this.id) ?? [];
  }

  keepFiles(files) {
    chosenFiles.set(this.id, files);
    this.showFiles();
  }

  pick() {
    this.loadAttach().then(({ ACCEPTED }) => {
      this.picker.accept = ACCEPTED;
      this.picker.click();
    }, () => {});
  }

  // Files that are dropped anywhere on `place` are attached.
  takeDrops(place) {
    const isFile = ({ dataTransfer }) => dataTransfer?.types.includes("Files");
    const mark = (yes) => this.node.classList.toggle("dropping", yes);
    place.addEventListener("dragover", (event) => {
      if (!isFile(event)) return;
      event.preventDefault();
      mark(true);
    });
    place.addEventListener("dragleave", ({ relatedTarget }) => place.contains(relatedTarget) || mark(false));
    place.addEventListener("drop", (event) => {
      mark(false);
      if (!isFile(event)) return;
      event.preventDefault();
      this.attach([...event.dataTransfer.files]);
    });
  }

  // What finds out what they are is loaded with the first ones.
  loadAttach() {
    return import("./attach.js").catch(() => {
      clear(this.refused, h("p", {}, text.viewAway));
      throw new Error(text.viewAway);
    });
  }

  async attach(files) {
    this.picker.value = "";
    if (this.input.disabled) return null;
    if (this.clip.hidden) return clear(this.refused, h("p", {}, text.attach.onlyAsUser));
    const { id } = this;
    try {
      const { takeFiles } = await this.loadAttach();
      const { taken, refused } = await takeFiles(files, this.files);
      if (id !== this.id) return null;
      clear(this.refused, refused.map((words) => h("p", { dir: "auto" }, words)));
      this.keepFiles([...this.files, ...taken]);
      this.focus();
    } catch {
      // It was said.
    }
    return null;
  }

  showFiles() {
    const remove = (file) => {
      this.keepFiles(this.files.filter((other) => other !== file));
      this.focus();
    };
    clear(this.attached, this.files.map((file) => h("li", {},
      file.type.startsWith("image/") && h("img", { src: file.url, alt: "" }),
      h("span", { dir: "auto", title: file.name }, file.name), h("span", { class: "muted" }, sizeOf(file.size)),
      button(text.attach.remove(file.name), { icon: "cross", kind: "ghost small", quiet: true, onclick: () => remove(file) }))));
    this.attached.hidden = !this.files.length;
  }

  put(words) {
    this.input.value = words;
    keepDraft(this.id, words);
    this.grow();
  }

  grow() {
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight, 220)}px`;
  }

  focus() {
    this.input.focus({ preventScroll: true });
  }
}

// The agents to begin with, as one choice.
export function agentChoice(agents, chosen, onChoose) {
  const list = h("div", { class: "agents", role: "radiogroup", "aria-label": text.chat.agents });
  const option = (agent) => {
    const radio = h("input", { type: "radio", name: "agent", value: agent.name, checked: agent.name === chosen, onchange: () => onChoose(agent.name) });
    const does = [agent.tools.length && text.chat.tools(agent.tools.length), agent.handoffs.length && text.chat.handsOver(agent.handoffs.join(", "))].filter(Boolean);
    return h("label", { class: "agent-card" }, radio,
      h("span", { class: "agent-name", dir: "auto" }, agent.name), h("span", { class: "agent-model muted" }, agent.offline ? text.chat.offlineModel : agent.model),
      h("span", { class: "agent-does muted", dir: "auto" }, does.join(" · ")));
  };
  return clear(list, agents.map(option));
}
