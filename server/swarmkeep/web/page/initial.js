// The state of a session before its first event.

export function initial() {
  return {
    seq: 0,
    agent: "",
    agents: [],
    context: {},
    metadata: {},
    messages: 0,
    status: "idle",
    // As `status`, but of an idle one how its last run ended, where somebody should know of it.
    outlook: "idle",
    run: null,
    // Who answers in the agent's place, if anybody does.
    taken: null,
    queue: [],
    usage: { prompt: 0, completion: 0, total: 0, calls: 0 },
    items: [],
    ends: [],
    calls: new Map(),
    open: new Map(),
  };
}
