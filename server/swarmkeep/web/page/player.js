// Goes through the events by itself, at a speed, and follows what is still to come.

import { button, h, icon } from "./dom.js";
import { text } from "./text.js";

const PLAY_SPEEDS = [1, 2, 5, 20];

export class Player {
  // `onStep` goes one event on and says whether there was one; `onStop` hears of the end; `onFollow` of whether to follow.
  constructor({ onStep, onStop, onFollow }) {
    this.on = { step: onStep, stop: onStop, follow: onFollow };
    this.follows = false;
    this.timer = null;
    this.start = button(text.player.play, { icon: "play", kind: "ghost", quiet: true, onclick: () => (this.plays ? this.stop() : this.play()) });
    this.speed = h("select", { class: "field speed", "aria-label": text.player.speed, onchange: () => this.plays && this.play() },
      PLAY_SPEEDS.map((count) => h("option", { value: String(count) }, text.player.perSecond(count))));
    this.follow = button(text.player.follow, { kind: "small follow", "aria-pressed": "false", onclick: () => this.setFollowing(!this.follows) });
    this.node = h("div", { class: "player" }, this.start, this.speed, this.follow);
  }

  get plays() {
    return this.timer !== null;
  }

  play() {
    clearInterval(this.timer);
    this.setFollowing(false);
    this.timer = setInterval(() => this.on.step() || this.stop(), 1000 / Number(this.speed.value));
    this.show("stop", text.player.pause);
  }

  stop() {
    if (!this.plays) return;
    clearInterval(this.timer);
    this.timer = null;
    this.show("play", text.player.play);
    this.on.stop();
  }

  show(sign, label) {
    this.start.replaceChildren(icon(sign));
    this.start.title = label;
    this.start.setAttribute("aria-label", label);
  }

  setFollowing(yes) {
    if (this.follows === yes) return;
    this.follows = yes;
    this.follow.setAttribute("aria-pressed", String(yes));
    if (yes) this.stop();
    this.on.follow(yes);
  }

  close() {
    clearInterval(this.timer);
  }
}
