// A session as it goes on: every event once and in order, whatever happens to the connection.

import { get, pause, sessionPath, stream } from "./api.js";
import { throttle } from "./dom.js";
import { isFar } from "./latest.js";

const SHORTEST_PAUSE = 300;
const LONGEST_PAUSE = 5000;

export class Feed {
  // `onChange` is called at most once per frame, `onReset` when the session turns out to be another one.
  // `onFar` is given what the server says of a session of which much is missing here.
  constructor(id, { onEvent = () => {}, onChange = () => {}, onReset = () => {}, onError = () => {}, onFar = () => {} }) {
    this.id = id;
    this.events = [];
    this.draft = null;
    this.link = "connecting";
    this.complete = false;
    this.changed = throttle(() => !this.stopped.signal.aborted && onChange());
    this.on = { event: onEvent, reset: onReset, error: onError, far: onFar };
    this.stopped = new AbortController();
    this.opened = new Promise((resolve) => (this.open = resolve));
    this.keepUp();
  }

  get last() {
    return this.events.length;
  }

  close() {
    this.stopped.abort();
  }

  async keepUp() {
    const { signal } = this.stopped;
    let wait = SHORTEST_PAUSE;
    while (!signal.aborted) {
      try {
        const session = await get(sessionPath(this.id), { signal });
        if (session.seq < this.last) this.reset();
        this.target = session.seq;
        if (this.last >= this.target) this.complete = true;
        else if (isFar(this.target - this.last)) this.on.far(session, signal);
        await stream(sessionPath(this.id, "/events"), {
          after: this.last,
          signal,
          onOpen: () => {
            wait = SHORTEST_PAUSE;
            this.open();
            this.show("live");
          },
          onFrame: (frame) => this.take(frame),
        });
      } catch (error) {
        if (signal.aborted) return;
        if (error.status >= 400 && error.status < 500 && error.status !== 429) {
          this.open();
          this.on.error(error);
          return;
        }
      }
      this.show("lost");
      await pause(wait, signal);
      wait = Math.min(wait * 2, LONGEST_PAUSE);
    }
  }

  show(link) {
    this.link = link;
    this.changed();
  }

  reset() {
    this.events = [];
    this.draft = null;
    this.on.reset();
  }

  take({ event, id, data }) {
    // A session that was deleted and made anew under its id comes from its beginning.
    if (id === 1 && this.last > 0) this.reset();
    if (id === null) this.pass(event, data);
    else if (id === this.last + 1) this.record(data);
    this.changed();
  }

  record(event) {
    this.events.push(event);
    if (this.last >= this.target) this.complete = true;
    if (this.draft?.run_id === event.run_id && endsDraft(event)) this.draft = null;
    this.on.event(event);
  }

  // What is shown while a model writes; the whole message comes as an event.
  pass(event, { run_id, agent, content, tool_calls: calls }) {
    if (event === "message.started" || this.draft?.run_id !== run_id) this.draft = { run_id, agent, text: "", calls: [] };
    if (content) this.draft.text += content;
    for (const call of calls ?? []) {
      if (call.function?.name) this.draft.calls.push(call.function.name);
    }
  }
}

function endsDraft({ type, data }) {
  if (type === "message.added") return data?.message?.role === "assistant";
  return ["run.completed", "run.failed", "run.cancelled", "run.interrupted", "run.resumed", "run.waiting"].includes(type);
}
