// Where a session is from and what was forked from it: each with a way to see both side by side.

import { get, sessionPath } from "./api.js";
import { clear, h } from "./dom.js";
import { Disclosure } from "./disclosure.js";
import { hrefOf } from "./route.js";
import { text } from "./text.js";
import { sessionTitle } from "./titles.js";

const forkText = text.forks;
const MOST_PAGES = 10;

export class Forks {
  constructor(session) {
    this.session = session;
    this.found = [];
    this.menu = new Disclosure("", [], { icon: "fork" });
    this.node = this.menu.node;
    this.node.hidden = true;
    this.load();
  }

  // Asked for once, however often the view is changed: whoever makes a fork forgets what was found.
  async load() {
    this.session.forks ??= findForks(this.session.id);
    const { found, more } = await this.session.forks;
    this.found = found;
    this.more = more;
    this.show();
  }

  show() {
    const origin = this.session.state.items.findLast((item) => item.kind === "forked");
    const shown = `${origin?.from} ${this.found.length}`;
    if (this.shown === shown) return;
    this.shown = shown;
    this.node.hidden = !origin && !this.found.length;
    const label = this.found.length ? forkText.count(this.found.length) : forkText.origin;
    this.menu.button.lastChild.textContent = label;
    clear(this.menu.list,
      origin && this.entry(origin.from, forkText.from(origin.from), origin.at),
      this.found.map((fork) => this.entry(fork.id, sessionTitle(fork) === fork.id ? fork.id : forkText.named(sessionTitle(fork), fork.id), fork.forked_from.seq)),
      this.more && h("p", { class: "muted" }, forkText.more));
  }

  entry(id, name, seq) {
    return h("div", { class: "pop-entry" },
      h("a", { href: hrefOf({ view: "chat", id }), dir: "auto" }, name),
      h("span", { class: "muted" }, forkText.after(seq)),
      h("a", { href: hrefOf({ view: "compare", id: this.session.id, other: id }), "aria-label": forkText.compareWith(id) }, forkText.sideBySide));
  }
}

async function findForks(id) {
  const found = [];
  let cursor = null;
  try {
    for (let page = 0; page < MOST_PAGES; page += 1) {
      const { data, next_cursor: next } = await get(sessionPath(id, `/forks?limit=50${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`));
      found.push(...data);
      cursor = next;
      if (!cursor) break;
    }
  } catch {
    // The view itself says that there is no such session; a server that lists no forks has none to show.
  }
  return { found, more: cursor !== null };
}
