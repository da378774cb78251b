// The field that a message is written in, and drafts of messages.

import { button, clear, h } from "./dom.js";
import { text } from "./text.js";

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

export function forgetDrafts() {
  for (const name of Object.keys(sessionStorage)) if (name.startsWith(NAME)) sessionStorage.removeItem(name);
}

// Where a message is written. Enter sends; while a run is active the message waits for its turn.

export class Composer {
  constructor({ send, cancel }) {
    this.on = { send, cancel };
    this.busy = false;
    this.input = h("textarea", { id: "composer", class: "input", rows: 1, dir: "auto", "aria-label": text.chat.input, "aria-describedby": "composer-hint", enterkeyhint: "send" });
    this.send = button(text.chat.send, { icon: "send", kind: "primary", quiet: true, type: "submit" });
    this.cancel = button(text.chat.cancel, { icon: "stop", kind: "danger", onclick: () => this.on.cancel(), hidden: true });
    this.hint = h("p", { id: "composer-hint", class: "muted hint" }, text.chat.hint);
    this.node = h(
      "form",
      { class: "composer", onsubmit: (event) => this.submit(event) },
      h("div", { class: "column" },
        h("div", { class: "composer-box" }, this.input, h("div", { class: "composer-actions" }, this.cancel, this.send)),
        this.hint),
    );
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
    this.input.value = draftOf(id);
    requestAnimationFrame(() => this.grow());
  }

  // `person`: what is written is said in the agent's place.
  show({ agent, busy, may, person = false }) {
    this.busy = busy;
    this.input.placeholder = person ? text.takeover.placeholder(agent) : may ? text.chat.placeholder(agent) : text.chat.readOnly;
    this.input.setAttribute("aria-label", person ? text.takeover.answer : text.chat.input);
    this.input.disabled = !may;
    this.send.hidden = !may;
    this.cancel.hidden = !busy || !may;
    if (!busy) this.cancelling(false);
    this.hint.textContent = !may ? text.chat.readOnlyHint : person ? text.takeover.hint : busy ? text.chat.busyHint : text.chat.hint;
    const label = person ? text.takeover.answer : busy ? text.chat.queue : text.chat.send;
    this.send.title = label;
    this.send.setAttribute("aria-label", label);
  }

  cancelling(yes) {
    this.cancel.disabled = yes;
    this.cancel.lastChild.textContent = yes ? text.chat.cancelling : text.chat.cancel;
  }

  async submit(event) {
    event.preventDefault();
    const words = this.input.value;
    if (!words.trim() || this.sending) return;
    this.sending = true;
    this.send.disabled = true;
    this.put("");
    const taken = await this.on.send(words, this.busy);
    this.sending = false;
    this.send.disabled = false;
    // Nothing that was written is lost.
    if (!taken && !this.input.value) this.put(words);
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
