// A session taken along: as a document, as its log, on paper, or as a link.

import { getBlob, sessionPath } from "./api.js";
import { button, h } from "./dom.js";
import { Disclosure } from "./disclosure.js";
import { hrefOf } from "./route.js";
import { text } from "./text.js";

const exportText = text.exports;
const FORMS = {
  markdown: ["/transcript?format=markdown", "text/markdown", "md"],
  html: ["/transcript?format=html", "text/html", "html"],
  jsonl: ["/events", "application/x-ndjson", "jsonl"],
};

export class ExportMenu {
  // `place` gives the route of what a link is to lead to.
  constructor(app, id, place, { print = false } = {}) {
    this.app = app;
    this.id = id;
    this.place = place;
    const files = Object.keys(FORMS).map((form) => this.entry(exportText[form], () => this.save(form)));
    this.menu = new Disclosure(text.timeline.export, [files, print && this.entry(exportText.print, () => window.print()), this.entry(exportText.link, () => this.copy())], { icon: "download" });
    this.node = this.menu.node;
  }

  entry(label, act) {
    return button(label, { kind: "pop-item", onclick: act });
  }

  async save(form) {
    const [path, type, suffix] = FORMS[form];
    try {
      const content = await getBlob(sessionPath(this.id, path), { Accept: type });
      // Nothing that a browser would open as a page of this server.
      const link = h("a", { href: URL.createObjectURL(new Blob([content], { type: "application/octet-stream" })), download: `${this.id.replaceAll(/[^\w.-]/g, "_")}.${suffix}` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    } catch (error) {
      this.app.fail(error);
    }
  }

  async copy() {
    const link = new URL(hrefOf(this.place()), document.baseURI).href;
    try {
      await navigator.clipboard.writeText(link);
      this.app.say(exportText.copied);
      this.menu.button.focus();
    } catch {
      this.app.fail({ message: exportText.noClipboard, advice: link });
    }
  }
}
