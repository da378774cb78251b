// What lies between two events of a session: the state, the messages and the runs, before and after.

import { get, sessionPath } from "./api.js";
import { button, clear, h } from "./dom.js";
import { textOf } from "./content.js";
import { replaceRoute } from "./route.js";
import { text } from "./text.js";

const diffText = text.diff;

// `from` is the event to begin at, if the address named one; it is looked at at once then.
export function eventDiff(app, id, at, last, { from, as }) {
  const other = h("input", { class: "field", type: "number", min: 0, max: last, value: String(from ?? Math.max(at - 1, 0)), required: true, "aria-label": diffText.other });
  const found = h("div", { class: "diff", role: "status" });
  const show = async () => {
    const [before, after] = [Number(other.value), at].sort((one, two) => one - two);
    clear(found, h("p", { class: "muted" }, text.timeline.loading));
    try {
      clear(found, diffNodes(await get(sessionPath(id, `/diff?before=${before}&after=${after}`))));
    } catch (error) {
      clear(found, h("p", { class: "reason" }, error.message));
    }
  };
  const submit = (event) => {
    event.preventDefault();
    replaceRoute({ view: "timeline", id, at, from: Number(other.value), as });
    show();
  };
  if (from !== null) show();
  return h("details", { class: "fold", open: from !== null }, h("summary", {}, diffText.title),
    h("form", { class: "row", onsubmit: submit }, h("label", { class: "row" }, h("span", {}, diffText.label), other), button(diffText.show, { type: "submit" })), found);
}

function diffNodes({ before, after, changes: places, messages, removed, runs }) {
  const isSame = !places.length && !messages.length && !removed.length && !runs.length;
  return [
    h("h3", {}, diffText.between(before, after)),
    isSame ? h("p", { class: "muted" }, diffText.same) : null,
    places.length ? placeTable(places) : null,
    messages.length ? [h("h3", {}, diffText.messages(messages.length)), h("ul", { class: "diff-messages" }, messages.map(messageLine))] : null,
    removed.length ? h("p", {}, diffText.removed(removed.join(", "))) : null,
    runs.length ? h("ul", {}, runs.map((run) => h("li", {}, h("code", {}, run.id), " ", diffText.run(run.before, run.after)))) : null,
  ].flat().filter(Boolean);
}

const valueCell = (value) => h("td", {}, value === undefined ? h("span", { class: "muted" }, text.timeline.nothing) : h("code", { dir: "auto" }, JSON.stringify(value)));

const placeTable = (places) =>
  h("div", { class: "changes" }, h("div", { class: "wide", tabindex: 0, role: "group", "aria-label": diffText.places },
    h("table", {}, h("thead", {}, h("tr", {}, [diffText.place, text.timeline.before, text.timeline.now].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, places.map(({ path, before, after }) => h("tr", {}, h("th", { scope: "row", dir: "auto" }, path || "/"), valueCell(before), valueCell(after)))))));

function messageLine({ seq, role, content, tool_calls: calls }) {
  const said = [textOf(content), ...(calls ?? []).map((call) => `${call.function?.name} ${call.function?.arguments}`)].filter(Boolean).join(" · ");
  return h("li", {}, h("span", { class: "muted" }, `#${seq} `), h("b", {}, text.event[role] ?? role), " ", h("span", { dir: "auto" }, said));
}
