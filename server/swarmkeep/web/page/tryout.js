// What is made of a recorded run: a case for `swarmkeep eval`, and all events of its session, to run it again.

import { get, getText, post, segment, sessionPath } from "./api.js";
import { button, clear, copyButton, h } from "./dom.js";
import { saveFile } from "./sessiontools.js";
import { text } from "./text.js";
import { viewText } from "./viewtext.js";

const caseText = viewText.cases;
const PAGE = 200;

export async function readAll(id) {
  const events = [];
  for (;;) {
    const { data } = await get(sessionPath(id, `/events?after=${events.length}&limit=${PAGE}`));
    events.push(...data);
    if (data.length < PAGE) return events;
  }
}

// The case of a run in a dialog, to be copied or saved. Expectations are what was done: a person corrects them.
export function openCase(app, session, run) {
  const code = h("pre", { class: "code case-text", tabindex: 0, dir: "auto" });
  const note = h("p", { class: "muted", role: "status" }, caseText.loading);
  const acts = h("span", { class: "row", hidden: true }, copyButton(() => code.textContent), button(caseText.save, { icon: "download", kind: "small primary", onclick: () => saveFile(code.textContent, `${session}.yaml`) }));
  const node = h("dialog", { class: "dialog wider", "aria-labelledby": "case-title" },
    h("h2", { id: "case-title" }, caseText.title), h("p", { class: "muted" }, caseText.hint), note, code,
    h("div", { class: "row" }, acts, button(text.close, { kind: "ghost", onclick: () => node.close() })));
  code.hidden = true;
  node.addEventListener("close", () => node.remove());
  document.body.append(node);
  node.showModal();
  getText(sessionPath(session, `/case${run ? `?run_id=${segment(run)}` : ""}`)).then((yaml) => {
    note.hidden = true;
    code.hidden = acts.hidden = false;
    code.textContent = yaml;
  }, (error) => (note.textContent = error.message));
  return node;
}

// What a person thinks of an answer: the word is recorded at once, a comment if there is one.
export function openFeedback(app, session, seq, value, onDone) {
  const comment = h("textarea", { class: "field", id: "feedback-comment", rows: 3, maxlength: 10_000, dir: "auto" });
  const wrong = h("p", { class: "reason", role: "alert" });
  const send = button(caseText.send, { kind: "primary", type: "submit" });
  const submit = async (event) => {
    event.preventDefault();
    send.disabled = true;
    try {
      await post(sessionPath(session, "/feedback"), { seq, value, ...(comment.value.trim() && { comment: comment.value.trim() }) });
      app.say(caseText.thanks);
      node.close();
      onDone();
    } catch (error) {
      wrong.textContent = error.message;
      send.disabled = false;
    }
  };
  const node = h("dialog", { class: "dialog", "aria-labelledby": "feedback-title" }, h("form", { onsubmit: submit },
    h("h2", { id: "feedback-title" }, caseText.values[value]), h("label", { for: "feedback-comment" }, caseText.comment), comment, wrong,
    h("div", { class: "row" }, send, button(text.close, { kind: "ghost", onclick: () => node.close() }))));
  node.addEventListener("close", () => node.remove());
  document.body.append(node);
  node.showModal();
  comment.focus();
  return node;
}
