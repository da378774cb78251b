// Another try at what was said: a fork that ends before it, and a run with other words, another agent or another model.

import { getBlob, post, segment, sessionPath } from "./api.js";
import { button, clear, h } from "./dom.js";
import { addressOf, isFile } from "./files.js";
import { openingOf, reword } from "./opening.js";
import { go } from "./route.js";
import { text } from "./text.js";

const editText = text.edit;

export class EditDialog {
  constructor(app) {
    this.app = app;
    this.words = h("textarea", { class: "field", rows: 4, dir: "auto", id: "edit-words" });
    this.agent = h("select", { class: "field", id: "edit-agent" });
    this.model = h("input", { class: "field", id: "edit-model", autocomplete: "off", spellcheck: "false", placeholder: editText.asItWas });
    this.wrong = h("p", { class: "reason", role: "alert" });
    this.go = button(editText.fork, { icon: "fork", kind: "primary", type: "submit" });
    this.node = h("dialog", { class: "dialog", "aria-labelledby": "edit-title" },
      h("form", { onsubmit: (event) => this.submit(event) },
        h("h2", { id: "edit-title" }, editText.title), h("p", { class: "muted" }, editText.hint),
        h("label", { for: "edit-words" }, editText.words), this.words,
        h("label", { for: "edit-agent" }, editText.agent), this.agent,
        h("label", { for: "edit-model" }, editText.model), this.model, this.wrong,
        h("div", { class: "row" }, this.go, button(text.close, { kind: "ghost", onclick: () => this.node.close() }))));
    this.node.addEventListener("close", () => this.node.remove());
  }

  open(session, item) {
    this.session = session;
    this.seq = item.seq;
    this.words.value = item.text;
    this.model.value = "";
    this.wrong.textContent = "";
    clear(this.agent, h("option", { value: "" }, editText.asItWas), this.app.agents.map(({ name }) => h("option", { value: name }, name)));
    document.body.append(this.node);
    this.node.showModal();
    this.words.focus();
  }

  async submit(event) {
    event.preventDefault();
    this.go.disabled = true;
    this.wrong.textContent = "";
    try {
      const fork = await this.fork();
      this.node.close();
      this.app.refresh();
      go({ view: "compare", id: this.session.id, other: fork });
    } catch (error) {
      this.wrong.textContent = error.message;
    }
    this.go.disabled = false;
  }

  async fork() {
    const { id, events } = this.session;
    const { at, messages, index, options } = openingOf(events, this.seq);
    const input = await Promise.all(messages.map((message, place) => withFiles(id, place === index ? reword(message, this.words.value) : message)));
    const made = await post(sessionPath(id, "/fork"), { at });
    this.session.forks = null;
    const changed = { ...(this.agent.value && { agent: this.agent.value }), ...(this.model.value.trim() && { model: this.model.value.trim() }) };
    try {
      await post(sessionPath(made.id, "/runs"), { ...options, ...changed, input, background: true });
    } catch (error) {
      // The fork is there all the same, and shows where it ends.
      this.app.fail(error);
    }
    return made.id;
  }
}

// What was recorded names its files; whoever says it again has to bring them.
async function withFiles(id, message) {
  if (!Array.isArray(message.content)) return message;
  return { ...message, content: await Promise.all(message.content.map((part) => (isFile(part) ? withContent(id, part) : part))) };
}

async function withContent(id, { blob, ...part }) {
  const content = await getBlob(sessionPath(id, `/blobs/${segment(blob.sha256)}`));
  const url = await addressOf(new Blob([content], { type: blob.media_type }));
  const bare = url.slice(url.indexOf(",") + 1);
  if (part.type === "image_url") return { ...part, image_url: { ...part.image_url, url } };
  if (part.type === "input_audio") return { ...part, input_audio: { ...part.input_audio, data: bare } };
  return { ...part, file: { ...part.file, file_data: blob.encoding === "base64" ? bare : url, ...(blob.name && { filename: blob.name }) } };
}
