// A log against what was noted of it before: a SEQ:HASH, or the head that a checkpoint file has of it.

import { button, clear, dayAndTime, h } from "./dom.js";
import { readCheckpoint } from "./checkpoint.js";
import { text } from "./text.js";

const checkText = text.check;
const WRITTEN_HEAD = /^[1-9][0-9]{0,15}:[0-9a-fA-F]{64}$/;

export class HeadCheck {
  // `verify(head)` asks the server and gives what it found; `isOurs(head)` tells the log's own among a checkpoint's heads;
  // `forget` is called when what was noted does not count any more.
  constructor({ verify, isOurs, forget }) {
    this.verify = verify;
    this.forget = forget;
    this.isOurs = isOurs;
    this.head = h("input", { class: "field", autocomplete: "off", spellcheck: "false", placeholder: checkText.form, "aria-label": checkText.head });
    this.file = h("input", { class: "field", type: "file", "aria-label": checkText.file });
    this.key = h("input", { class: "field", autocomplete: "off", spellcheck: "false", placeholder: checkText.keyHint, "aria-label": checkText.key });
    this.result = h("div", { class: "check-result", role: "status" });
    this.node = h("section", { class: "panel", "aria-label": checkText.title, hidden: true },
      h("header", { class: "row" }, h("h2", {}, checkText.title), h("span", { class: "grow" }), button(text.close, { icon: "cross", kind: "ghost small", quiet: true, onclick: () => this.close() })),
      h("p", { class: "muted" }, checkText.hint),
      h("form", { class: "row", onsubmit: (event) => this.withHead(event) }, this.head, button(checkText.checkHead, { type: "submit" })),
      h("form", { class: "row", onsubmit: (event) => this.withFile(event) }, this.file, this.key, button(checkText.checkFile, { type: "submit" })),
      this.result);
  }

  open() {
    this.node.hidden = false;
    this.head.focus();
  }

  close() {
    this.node.hidden = true;
    this.say([]);
    this.forget();
  }

  say(words, isBad = false) {
    clear(this.result, [words].flat().map((sentence) => h("p", { class: isBad ? "reason" : "", dir: "auto" }, sentence)));
  }

  withHead(event) {
    event.preventDefault();
    const noted = this.head.value.trim();
    return WRITTEN_HEAD.test(noted) ? this.against(noted, []) : this.say(checkText.noHead, true);
  }

  async withFile(event) {
    event.preventDefault();
    const [file] = this.file.files;
    if (!file) return this.say(checkText.noFile, true);
    this.say(checkText.reading);
    try {
      const { at, heads, signed } = await readCheckpoint(file, this.key.value);
      const about = [checkText.checkpoint(dayAndTime(at), heads.length), signed ? checkText.signed(signed) : checkText.unsigned];
      const own = heads.find(this.isOurs);
      if (!own) return this.say([...about, checkText.notInIt], true);
      return await this.against(`${own.seq}:${own.hash}`, about);
    } catch (error) {
      return this.say(error.message, true);
    }
  }

  async against(head, about) {
    this.say([...about, text.timeline.verify]);
    try {
      const found = await this.verify(head);
      const seq = Number(head.split(":")[0]);
      const since = found.redacted_count ? [checkText.redactedSince(found.redacted.slice(0, 20).join(", "), found.redacted_count)] : [];
      if (found.valid) this.say([...about, checkText.holds(seq), ...since]);
      else this.say([...about, checkText.fails(found.problem_count), ...found.problems.slice(0, 5).map(({ detail }) => detail)], true);
    } catch (error) {
      this.say(error.message, true);
    }
  }
}
