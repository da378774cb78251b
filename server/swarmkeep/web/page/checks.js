// What can be checked of a session: whether today's agents would do the same, whether the log is the one that was noted.

import { button, h } from "./dom.js";
import { Disclosure } from "./disclosure.js";
import { hrefOf } from "./route.js";
import { text } from "./text.js";

export function checksMenu(view) {
  const entry = (label, act) => button(label, { kind: "pop-item", onclick: act });
  return new Disclosure(text.check.menu, [
    entry(text.today.ask, () => view.today.ask()),
    entry(text.check.open, () => view.against.open()),
    entry(text.check.copy, () => copyHead(view)),
    h("a", { class: "button pop-item", href: hrefOf({ view: "compare", id: view.id }) }, text.compare.open),
  ], { icon: "check" }).node;
}

async function copyHead({ app, feed }) {
  const { seq, hash } = feed.events.at(-1) ?? {};
  if (!seq) return;
  try {
    await navigator.clipboard.writeText(`${seq}:${hash}`);
    app.say(text.check.copied);
  } catch {
    app.fail({ message: text.exports.noClipboard, advice: `${seq}:${hash}` });
  }
}
