// Edit and fork: the messages that began a run, sent again in a new session with other words.

import { getBlob, post, segment, sessionPath } from "./api.js";
import { addressOf, isFile } from "./content.js";
import { button, clear, h } from "./dom.js";
import { go } from "./route.js";
import { text } from "./text.js";

// How a run began: what was said, what was asked for besides, and the last event before all of that.

// Another run has every option but these: how that one was followed, its server's limits, and what names its session.
const NOT_ASKED = ["stream", "loop_turns", "history_turns", "request"];

// The opening that the message of event `seq` belongs to; `index` is its place among the messages.
function openingOf(events, seq) {
  const { run_id: run, data } = events[seq - 1];
  const begun = run ? events.find((event) => event.run_id === run && event.type === "run.started") : undefined;
  const alone = { at: seq - 1, messages: [data.message], index: 0, options: {} };
  if (!begun || begun.seq > seq) return alone;
  const opening = { at: begun.seq - 1, messages: [], index: -1, options: optionsOf(begun.data?.options) };
  for (const event of events.slice(begun.seq)) {
    if (event.run_id !== run) continue;
    if (!takeIn(opening, event)) break;
    if (event.seq === seq) opening.index = opening.messages.length - 1;
  }
  return opening.index < 0 ? alone : opening;
}

function optionsOf(options) {
  return Object.fromEntries(Object.entries(options ?? {}).filter(([name, value]) => value !== null && !NOT_ASKED.includes(name)));
}

function takeIn({ messages, options }, { type, data }) {
  if (data === null || typeof data !== "object") return false;
  if (type === "session.updated" && data.agent && !messages.length) options.agent = data.agent;
  else if (type === "context.updated" && !data.tool_call_id && !messages.length) options.context_variables = data.patch;
  else if (type === "message.added" && !data.completion && !data.tool) messages.push(data.message);
  else return false;
  return true;
}

// A message with other words: its files stay.
function reword(message, words) {
  if (!Array.isArray(message.content)) return { ...message, content: words };
  const rest = message.content.filter((part) => part?.type !== "text");
  return { ...message, content: words ? [{ type: "text", text: words }, ...rest] : rest };
}

// The dialog: a fork that ends before the message, and a run with other words, another agent or another model.

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

// A recorded message names its files by hash; sending it again needs their content.
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
