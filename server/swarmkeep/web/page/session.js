// One session as both views see it: its events, what they add up to, and whether its log holds.

import { get, sessionPath } from "./api.js";
import { Feed } from "./feed.js";
import { apply, fold } from "./fold.js";
import { initial } from "./initial.js";
import { readLatest } from "./latest.js";
import { Verification } from "./verification.js";

const PAGE = 200;
// While much is still to come, what there is by now is shown so often.
const LOADING_MS = 250;

export class Session {
  constructor(id) {
    this.id = id;
    this.state = initial();
    this.views = new Set();
    this.error = null;
    this.latest = null;
    // What was forked from it, once somebody asked: see `forks.js`.
    this.forks = null;
    this.verification = new Verification(this, () => this.tell("checked"));
    this.feed = new Feed(id, {
      onEvent: (event) => this.happened(event),
      onChange: () => this.changed(),
      onReset: () => this.begunAnew(),
      onFar: (session, signal) => this.readLatest(session, signal),
      onError: (error) => {
        this.error = error;
        this.tell("failed", error);
      },
    });
  }

  get events() {
    return this.feed.events;
  }

  get complete() {
    return this.feed.complete;
  }

  // What can be shown by now: of a long session its end, before all of it is there; null until that has come.
  get shown() {
    return this.complete || !this.latest ? this.state : this.latest.state;
  }

  // For a view that `showsEnd` of what it does not have yet. What was read of it before stays until then.
  async readLatest(session, signal) {
    if (![...this.views].some((view) => view.showsEnd)) return;
    const shown = this.latest?.state;
    const latest = (this.latest = { seq: session.seq, state: null, ...this.latest });
    let state = null;
    try {
      state = await readLatest(session, signal);
    } catch {
      // Then it is shown as it comes.
    }
    if (this.latest !== latest || this.complete) return;
    if (state) this.latest = { seq: session.seq, state };
    else if (!shown) this.latest = null;
    // What it says again may be other than it was.
    this.tell(shown ? "renewed" : "changed");
  }

  // A view may have `happened(event)`, `changed()`, `renewed()` (all of it may be other than it was), `checked()`, `failed(error)`.
  show(view) {
    this.views.add(view);
    if (this.error) view.failed?.(this.error);
  }

  hide(view) {
    this.views.delete(view);
  }

  tell(what, ...given) {
    for (const view of this.views) view[what]?.(...given);
  }

  close() {
    this.feed.close();
  }

  changed() {
    const { link } = this.feed;
    if (this.complete) {
      this.latest = null;
      this.verification.keepUp();
    } else if (this.toldLink === link && performance.now() < this.nextAt) return;
    this.toldLink = link;
    this.nextAt = performance.now() + LOADING_MS;
    this.tell("changed");
  }

  happened(event) {
    apply(this.state, event);
    this.tell("happened", event);
    if (event.type !== "session.redacted") return;
    // The end may have been read before that, and shown.
    if (event.seq > this.latest?.seq) {
      this.latest = null;
      this.tell("renewed");
    }
    this.forget(event.data?.seqs ?? []);
  }

  begunAnew() {
    this.state = initial();
    this.latest = null;
    this.verification.reset();
    this.tell("renewed");
  }

  // What was taken out while this window had it: it goes at once, and then what stands in its place comes.
  async forget(seqs) {
    const gone = seqs.filter((seq) => this.events[seq - 1] && this.events[seq - 1].data?.redacted !== true);
    if (!gone.length) return;
    for (const seq of gone) this.events[seq - 1] = { ...this.events[seq - 1], data: null };
    this.renew();
    try {
      await this.readAgain(new Set(gone));
      this.renew();
    } catch {
      // Without the stand-ins it says that something was there, and no more.
    }
  }

  renew() {
    this.state = fold(this.events);
    this.tell("renewed");
  }

  async readAgain(seqs) {
    let done = 0;
    for (const seq of [...seqs].sort((one, other) => one - other)) {
      if (seq <= done) continue;
      const { data } = await get(sessionPath(this.id, `/events?after=${seq - 1}&limit=${PAGE}`));
      for (const event of data) {
        if (seqs.has(event.seq)) this.events[event.seq - 1] = event;
        done = event.seq;
      }
    }
  }
}
