// Says when the list of sessions is worth a look: the server tells which have changed. A tab that nobody sees has no stream, for
// browsers let a page and its likes have few at once; it looks at the list when it is seen again.

import { pause, stream } from "./api.js";

const SHORTEST_PAUSE = 300;
const LONGEST_PAUSE = 10_000;
const PATIENCE_MS = 1_500;
// However much happens, the list is asked for no more often.
const READ_MS = 2_000;

export class ListFeed {
  // `onChange` is given what a session is now, by its id, and the ids of those that were deleted; `onRead` is called when the list is to be read, and may take its time.
  constructor({ onChange, onRead }) {
    this.on = { change: onChange, read: onRead };
    this.wanted = false;
    this.heard = false;
    this.running = null;
    document.addEventListener("visibilitychange", () => this.check());
  }

  // Anew, for whoever sits here now. The stream begins with a word that makes the list be read; where none comes, it is read all
  // the same.
  start() {
    this.stop();
    this.heard = false;
    this.wanted = true;
    this.check();
    setTimeout(() => this.readFirst(), this.running ? PATIENCE_MS : 0);
  }

  readFirst() {
    if (this.heard || !this.wanted) return;
    this.heard = true;
    this.read();
  }

  stop() {
    this.wanted = false;
    this.check();
  }

  check() {
    const runs = this.wanted && !document.hidden;
    if (runs && !this.running) this.keepUp((this.running = new AbortController()));
    if (runs || !this.running) return;
    this.running.abort();
    this.running = null;
    clearTimeout(this.due);
    this.due = null;
  }

  async keepUp({ signal }) {
    let wait = SHORTEST_PAUSE;
    while (!signal.aborted) {
      try {
        await stream("sessions", {
          signal,
          onFrame: ({ event, data }) => {
            if (event !== "sessions.changed" || signal.aborted) return;
            wait = SHORTEST_PAUSE;
            this.heard = true;
            this.on.change(new Map(data.sessions.map((session) => [session.id, session])), data.deleted ?? []);
            this.read();
          },
        });
      } catch (error) {
        // Whoever is not let in is told so by what is asked for besides.
        if (!signal.aborted && error.status >= 400 && error.status < 500 && error.status !== 429) {
          this.readFirst();
          return this.stop();
        }
      }
      if (!signal.aborted) this.readFirst();
      await pause(wait, signal);
      wait = Math.min(wait * 2, LONGEST_PAUSE);
    }
  }

  // At once, and once more later if there was more meanwhile.
  read() {
    if (this.due) return (this.again = true);
    this.again = false;
    this.due = setTimeout(() => {
      this.due = null;
      if (this.again) this.read();
    }, READ_MS);
    this.on.read();
  }

  // For a read that came to nothing.
  readLater() {
    if (this.due) this.again = true;
    else if (this.running) {
      this.due = setTimeout(() => {
        this.due = null;
        this.read();
      }, READ_MS);
    }
  }
}
