// The state at any event: one step further from where it was last, or all of it anew.

import { apply } from "./fold.js";
import { initial } from "./initial.js";

export class Stepper {
  constructor() {
    this.reset();
  }

  reset() {
    this.state = initial();
    this.done = 0;
  }

  // What the context was before this event, and the state after it. The state is there until the next step.
  at(events, seq) {
    if (seq <= this.done) this.reset();
    while (this.done < seq - 1) this.take(events);
    const before = this.state.context;
    this.take(events);
    return { before, after: this.state };
  }

  take(events) {
    apply(this.state, events[this.done]);
    this.done += 1;
  }
}
