// A conversation with agents: it shows what the session's events say, and sends what somebody wants.

import { begin, patch, post, sessionPath } from "./api.js";
import { agentChoice, Composer } from "./composer.js";
import { button, clear, h } from "./dom.js";
import { Feed } from "./feed.js";
import { apply, initial } from "./fold.js";
import { Log } from "./log.js";
import { go, hrefOf, replaceRoute } from "./route.js";
import { nameOf } from "./descriptions.js";
import { text } from "./text.js";

const t = text.chat;

export class Chat {
  constructor(app, { id }) {
    this.app = app;
    this.id = id;
    this.state = initial();
    this.act = { decide: (...given) => this.decide(...given), deliver: (...given) => this.deliver(...given), context: () => this.state.context, resume: (run) => this.resume(run), again: () => this.again() };
    this.log = new Log(this.act);
    this.composer = new Composer({ send: (words, busy) => this.send(words, busy), cancel: () => this.cancel() });
    this.agent = h("select", { class: "field", "aria-label": t.active, onchange: () => this.handTo(this.agent.value) });
    this.link = h("span", { class: "link", role: "status" });
    this.title = h("h1", { class: "view-title", dir: "auto" });
    this.head = h("header", { class: "view-head" }, this.title, this.link, h("span", { class: "grow" }), this.agent, h("a", { class: "button ghost", href: "#" }, t.toTimeline));
    this.node = h("section", { class: "chat", "aria-label": t.title });
    if (id) this.open(id);
    else this.begin();
  }

  close() {
    this.feed?.close();
    this.log.close();
  }

  begin() {
    this.chosen = this.app.agents[0]?.name;
    const choice = this.app.agents.length ? agentChoice(this.app.agents, this.chosen, (name) => this.choose(name)) : h("p", { class: "muted" }, t.noAgents);
    clear(this.node, h("div", { class: "start scroll" }, h("div", { class: "column" }, h("h1", {}, t.begin), h("p", { class: "muted" }, t.beginHint), choice)), this.composer.node);
    this.choose(this.chosen);
    this.composer.focus();
  }

  choose(name) {
    this.chosen = name;
    this.composer.show({ agent: name, busy: false });
  }

  open(id) {
    this.id = id;
    this.head.querySelector("a").href = hrefOf({ view: "timeline", id });
    clear(this.node, this.head, h("div", { class: "log-frame" }, this.log.node, this.log.latest), this.composer.node);
    this.feed = new Feed(id, {
      onEvent: (event) => this.happened(event),
      onChange: () => this.render(),
      onReset: () => {
        this.state = initial();
        this.log.reset();
      },
      onError: (error) => this.lost(error),
    });
    this.render();
    this.composer.focus();
  }

  lost(error) {
    for (const node of [this.composer.node, this.link, this.agent, this.head.lastChild]) node.remove();
    clear(this.node, this.head, h("div", { class: "problem", role: "alert" }, h("h2", { dir: "auto" }, error.message), h("p", {}, error.advice),
      h("div", { class: "row" }, button(text.retry, { kind: "primary", onclick: () => this.app.reload() }), button(text.sessions.fresh, { onclick: () => go({ view: "chat" }) }))));
  }

  happened(event) {
    const items = this.state.items.length;
    apply(this.state, event);
    if (!this.feed.complete) return;
    this.announce(this.state.items.slice(items), event);
    if (event.type.startsWith("run.")) this.app.refresh();
  }

  // For screen readers: each thing once, when it is whole.
  announce(items, event) {
    for (const item of items) {
      if (item.kind === "assistant") this.app.say(t.says(item.agent, item.text.slice(0, 1000)));
      else if (item.kind === "handoff" && item.made) this.app.say(text.handoff.made(item.from, item.to));
      else if (item.kind === "end") this.app.say(text.notice[item.status] ?? text.notice[item.stop] ?? item.status);
    }
    if (event.type === "approval.requested" && event.data) this.app.say(text.approval.needed(event.data.name));
    if (event.type !== "run.waiting") return;
    for (const { name, reason } of event.data?.pending ?? []) {
      if (reason === "tool_results") this.app.say(text.outside.needed(name));
    }
  }

  render() {
    const { state, feed } = this;
    this.log.render(state, feed.draft, feed.complete);
    const { link } = feed;
    this.title.textContent = nameOf({ id: this.id, metadata: state.metadata });
    this.title.title = this.id;
    this.link.className = `link ${link}`;
    this.link.textContent = link === "live" ? (state.status === "idle" ? "" : text.status[state.status]) : text.link[link];
    this.renderAgents();
    this.composer.show({ agent: state.agent, busy: state.run !== null });
  }

  renderAgents() {
    const served = this.app.agents.map((agent) => agent.name);
    const { agent } = this.state;
    const shown = `${agent}\n${served.join("\n")}`;
    if (this.shownAgents === shown || document.activeElement === this.agent) return;
    this.shownAgents = shown;
    const gone = agent && !served.includes(agent) ? [h("option", { value: agent }, t.notServed(agent))] : [];
    clear(this.agent, gone, served.map((name) => h("option", { value: name }, name)));
    this.agent.value = agent;
  }

  async attempt(work) {
    try {
      await work();
      return true;
    } catch (error) {
      this.app.fail(error);
      return false;
    }
  }

  send(words, busy) {
    return this.attempt(async () => {
      if (!this.id) {
        const session = await post("sessions", this.chosen ? { agent: this.chosen } : {});
        this.app.adopt(session.id);
        replaceRoute({ view: "chat", id: session.id });
        this.open(session.id);
      }
      this.log.toEnd();
      // A model that nobody listens to is not asked to stream.
      await this.feed.opened;
      await post(this.path("/runs"), { input: words, background: true, on_busy: busy ? "queue" : "reject" });
      this.app.refresh();
    });
  }

  cancel() {
    const { run } = this.state;
    if (!run) return null;
    this.composer.cancelling(true);
    return this.attempt(() => post(this.path(`/runs/${encodeURIComponent(run.id)}/cancel`))).then((done) => done || this.composer.cancelling(false));
  }

  decide(item, decision, reason) {
    const approval = { tool_call_id: item.id, decision, ...(reason && { reason }) };
    return this.attempt(() => begin(this.resuming(item.run_id), { approvals: [approval] }));
  }

  deliver(item, content, failed) {
    const result = { tool_call_id: item.id, content, ...(failed && { is_error: true }) };
    return this.attempt(() => begin(this.resuming(item.run_id), { tool_results: [result] }));
  }

  resume(runId) {
    return this.attempt(() => begin(this.resuming(runId), {}));
  }

  again() {
    return this.state.lastInput === null ? null : this.send(this.state.lastInput, this.state.run !== null);
  }

  async handTo(agent) {
    const done = await this.attempt(() => patch(sessionPath(this.id), { agent }));
    if (!done) this.agent.value = this.state.agent;
    this.shownAgents = null;
    this.composer.focus();
  }

  resuming(runId) {
    return this.path(`/runs/${encodeURIComponent(runId)}/resume`);
  }

  path(rest) {
    return sessionPath(this.id, rest);
  }
}
