// Tool calls that wait: for a decision about their arguments, or for a result from outside.

import { begunDecisions } from "./composer.js";
import { button, dayAndTime, h, pretty, single } from "./dom.js";
import { ArgumentsForm, summaryOf } from "./form.js";
import { text } from "./text.js";

// Calls that a run waits for: a decision about one, or the result of one that runs elsewhere.

export function callParts(item) {
  const parts = item.edited ? [[text.approval.asked, pretty(item.input)], [text.tool.input, pretty(item.edited)]] : [[text.tool.input, pretty(item.input)]];
  if (item.output !== null) parts.push([text.tool.output, pretty(item.output)]);
  return h("dl", { class: "parts" }, parts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, h("pre", { tabindex: 0, dir: "auto" }, value))]));
}

export function approvalNode(item, act) {
  const agent = act.agent?.(item.agent);
  const title = summaryOf(agent, item.name, item.input)?.words ?? text.approval.title(item.name);
  if (!act.may("approve")) return watched(text.approval.label, title, act.why ?? text.approval.others, [callParts({ ...item, output: null }), contextNode(act, { open: false })]);
  const reason = h("input", { class: "field", type: "text", "aria-label": text.approval.reason, placeholder: text.approval.reason, maxlength: 2000, dir: "auto" });
  const form = new ArgumentsForm(item.input, agent?.tools.find((tool) => tool.function?.name === item.name)?.function.parameters);
  const decide = (decision) => {
    const given = decision === "approve" ? form.read() : null;
    return given === false ? null : once(buttons, () => act.decide(item, decision, reason.value.trim(), given));
  };
  const buttons = [
    button(text.approval.approve, { icon: "check", kind: "primary", onclick: single(() => decide("approve")) }),
    button(text.approval.deny, { icon: "cross", kind: "danger", onclick: single(() => decide("deny")) }),
  ];
  const name = `${act.session()} ${item.id}`;
  const begun = begunDecisions.get(name);
  if (begun) {
    reason.value = begun.reason;
    form.restore(begun.written);
  }
  return h("section", { class: "decide", "aria-label": text.approval.label, oninput: () => begunDecisions.set(name, { reason: reason.value, written: form.written }) },
    h("h2", { dir: "auto", title: item.name }, title),
    form.node,
    contextNode(act, { open: /^[\s{}]*$/.test(item.input) }),
    item.expires && h("p", { class: "muted" }, text.approval.expires(dayAndTime(item.expires))),
    reason,
    h("div", { class: "row" }, buttons));
}

// What the call was shown with, for the server to compare; null where the page cannot say: browsers digest on safe pages only, and
// text that is no Unicode becomes other bytes.
export async function digestOf(input) {
  if (!globalThis.crypto?.subtle || input.isWellFormed?.() === false) return null;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(input)));
  return [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

// What was done is not done again, unless it failed. The keyboard stays in the conversation when its button goes.
async function once(buttons, work) {
  buttons[0].closest('[role="log"]')?.focus({ preventScroll: true });
  buttons.forEach((each) => (each.disabled = true));
  if (!(await work())) buttons.forEach((each) => (each.disabled = false));
}

// What a call means may depend on them: an order has no arguments when it is about all that is in the cart.
function contextNode(act, { open }) {
  const shown = h("pre", { class: "code", tabindex: 0, dir: "auto" });
  const show = () => (shown.textContent = pretty(act.context()));
  show();
  return h("details", { class: "fold", open, ontoggle: show }, h("summary", {}, text.approval.context), shown);
}

// For keys that may not decide: a notice without buttons.
const watched = (label, title, hint, parts) => h("section", { class: "decide", "aria-label": label }, h("h2", { dir: "auto" }, title), h("p", { class: "muted" }, hint), parts);

export function resultNode(item, act) {
  if (!act.may("run")) return watched(text.outside.label, text.outside.title(item.name), act.why ?? text.outside.others, callParts({ ...item, output: null }));
  const words = h("textarea", { class: "field", rows: 2, required: true, "aria-label": text.outside.result, placeholder: text.outside.result, dir: "auto" });
  const failed = h("input", { type: "checkbox" });
  const send = button(text.outside.deliver, { icon: "check", kind: "primary", type: "submit" });
  const deliver = (event) => {
    event.preventDefault();
    return once([send], () => act.deliver(item, words.value, failed.checked));
  };
  return h("form", { class: "decide", "aria-label": text.outside.label, onsubmit: deliver },
    h("h2", { dir: "auto" }, text.outside.title(item.name)),
    h("p", { class: "muted" }, text.outside.hint),
    callParts({ ...item, output: null }),
    words,
    h("div", { class: "row" }, send, h("label", { class: "tick" }, failed, text.outside.error)));
}
