// The way to the inbox, and how much is in it. What finds that out is loaded a little later: a first visit is for what one came for.

import { h } from "./dom.js";
import { hrefOf } from "./route.js";
import { text } from "./text.js";

const INBOX_MS = 2_000;

export class InboxLink {
  // `onChange` is called when there is more or less in it.
  constructor({ onChange }) {
    this.onChange = onChange;
    this.inbox = null;
    this.tally = h("span", { class: "tally", hidden: true });
    this.node = h("a", { href: hrefOf({ view: "inbox" }) }, text.inbox.title, this.tally);
  }

  get count() {
    return this.inbox?.count() ?? "";
  }

  // For whoever sits here now; for nobody, while a key is asked for.
  follow(wanted) {
    this.wanted = wanted;
    this.inbox?.stop();
    this.show();
    clearTimeout(this.waking);
    if (wanted) this.waking = setTimeout(() => this.wake().catch(() => {}), INBOX_MS);
  }

  async wake() {
    const { Inbox } = await import("./inbox.js");
    this.inbox ??= new Inbox({ onChange: () => this.show() });
    if (this.wanted && !this.inbox.wanted) this.inbox.start();
  }

  show() {
    this.tally.textContent = this.count;
    this.tally.hidden = !this.count;
    this.onChange();
  }
}
