// A conversation with agents: it shows what the session's events say, and sends what somebody wants.

import { announce } from "./announcing.js";
import { begin, patch, post, sessionPath } from "./api.js";
import { agentChoice, Composer } from "./composer.js";
import { button, clear, h } from "./dom.js";
import { ExportMenu } from "./exports.js";
import { initial } from "./initial.js";
import { Forks } from "./forks.js";
import { AgentSwitch } from "./handover.js";
import { Log } from "./log.js";
import { may } from "./me.js";
import { digestOf } from "./pending.js";
import { go, hrefOf, replaceRoute } from "./route.js";
import { SessionTools } from "./manage.js";
import { text } from "./text.js";
import { isMine, Takeover } from "./takeover.js";
import { stateTitle } from "./titles.js";
import { Problems } from "./verification.js";

const t = text.chat;

export class Chat {
  constructor(app, { id, at = null }) {
    this.app = app;
    this.id = id;
    this.at = at;
    this.showsEnd = true;
    this.act = {
      may,
      session: () => this.id,
      decide: (...given) => this.decide(...given),
      deliver: (...given) => this.deliver(...given),
      context: () => this.state.context,
      resume: (run) => this.resume(run),
      again: () => this.again(),
      withdraw: (run) => this.withdraw(run),
      edit: (item) => this.edit(item),
    };
    this.log = new Log(this.act);
    this.composer = new Composer({ send: (words, busy) => this.send(words, busy), cancel: () => this.cancel() });
    this.agent = new AgentSwitch({ onHandOver: (agent) => this.handTo(agent) });
    this.takeover = new Takeover({ onTake: (note, force) => this.takeOver("takeover", note, force), onBack: (note, force) => this.takeOver("handback", note, force) });
    this.link = h("span", { class: "link", role: "status" });
    this.title = h("h1", { class: "view-title", dir: "auto" });
    this.way = h("a", { class: "button ghost", href: "#" }, t.toTimeline);
    this.taken = h("span", { class: "row" });
    this.head = h("header", { class: "view-head" }, this.title, this.link, h("span", { class: "grow" }), this.takeover.button, this.agent.select, this.way, this.taken);
    this.node = h("section", { class: "chat", "aria-label": t.title });
    if (id) this.open(id);
    else this.begin();
  }

  get state() {
    return this.session?.shown ?? initial();
  }

  get feed() {
    return this.session.feed;
  }

  close() {
    this.session?.hide(this);
    this.log.close();
    this.editor?.node.close();
  }

  begin() {
    const [{ agents }, words] = [this.app, may("run") ? t : t.reading];
    const choice = agents.length ? may("run") && agentChoice(agents, agents[0].name, (name) => this.choose(name)) : this.withoutAgents();
    clear(this.node, h("div", { class: "start scroll" }, h("div", { class: "column" }, h("h1", {}, words.begin), h("p", { class: "muted" }, words.beginHint), choice)), this.composer.node);
    this.composer.open(null);
    this.choose(agents[0]?.name);
    this.composer.focus();
  }

  withoutAgents() {
    if (!this.app.locked) return h("p", { class: "muted" }, t.noAgents);
    return h("div", { class: "row" }, h("p", { class: "muted" }, t.lockedAgents), button(text.key.enter, { icon: "key", onclick: () => this.app.askForKey() }));
  }

  choose(name) {
    this.chosen = name;
    this.composer.show({ agent: name, busy: false, may: may("run") });
  }

  open(id) {
    this.id = id;
    this.session = this.app.sessionOf(id);
    this.problems = new Problems(this.session);
    this.way.href = hrefOf({ view: "timeline", id });
    this.tools?.node.remove();
    this.tools = new SessionTools(this.app, id, this.title, () => this.state.metadata);
    this.title.after(this.tools.node);
    this.forks = new Forks(this.session);
    clear(this.taken, this.forks.node, new ExportMenu(this.app, id, () => ({ view: "chat", id }), { print: true }).node);
    clear(this.node, this.head, this.agent.offered, this.takeover.node, this.problems.node, h("div", { class: "log-frame" }, this.log.node, this.log.latest), this.composer.node);
    this.composer.open(id);
    this.render();
    this.session.show(this);
    if (!this.at) this.composer.focus();
  }

  failed(error) {
    for (const node of [this.taken, this.composer.node, this.link, this.takeover.button, this.takeover.node, this.agent.select, this.way, this.tools.node]) node.remove();
    clear(this.node, this.head, h("div", { class: "problem", role: "alert" }, h("h2", { dir: "auto" }, error.message), h("p", {}, error.advice),
      h("div", { class: "row" }, button(text.retry, { kind: "primary", onclick: () => this.app.reload() }), button(text.sessions.fresh, { onclick: () => go({ view: "chat" }) }))));
  }

  happened(event) {
    if (!this.session.complete) return;
    announce(this.app, this.state.items.filter((item) => item.seq === event.seq), event);
    if (event.type.startsWith("run.")) this.app.refresh();
  }

  renewed() {
    this.log.forget();
    this.app.clearMessages();
    this.render();
  }

  checked() {
    this.render();
  }

  changed() {
    this.render();
  }

  // The address names an event, from the timeline: what it said is shown.
  moved({ at }) {
    this.at = at;
    this.point();
  }

  point() {
    if (!this.at || !this.session?.complete) return;
    if (this.node.isConnected) {
      this.log.point(this.at);
      this.at = null;
    } else requestAnimationFrame(() => this.node.isConnected && this.point());
  }

  render() {
    const { state, feed, session } = this;
    if (session.shown) this.log.render(state, feed.draft, feed.complete, session.verification.damaged);
    this.point();
    this.problems.show();
    this.forks.show();
    const { link } = feed;
    const name = stateTitle(this.id, state);
    if (this.title.textContent !== name) this.title.textContent = name;
    this.app.showTitle(this.id, name);
    this.title.title = this.id;
    this.link.className = `link ${link === "live" ? state.outlook : link}`;
    this.link.textContent = link === "live" ? (state.outlook === "idle" ? "" : text.status[state.outlook]) : text.link[link];
    this.agent.show(state.agent, this.app.agents.map((agent) => agent.name), { may: may("run") });
    this.takeover.show(state.taken, state.agent, { may: may("run") });
    this.composer.show({ agent: state.agent, busy: state.run !== null, may: may("run"), person: isMine(state.taken) });
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
      if (isMine(this.state.taken)) await post(this.path("/answer"), { content: words });
      else await this.run(words, busy);
    });
  }

  async run(input, busy) {
    // A model that nobody listens to is not asked to stream.
    await this.feed.opened;
    await post(this.path("/runs"), { input, background: true, on_busy: busy ? "queue" : "reject" });
    this.app.refresh();
  }

  cancel() {
    const { run } = this.state;
    if (!run) return null;
    this.composer.cancelling(true);
    return this.attempt(() => post(this.runPath(run.id, "cancel"))).then((done) => done || this.composer.cancelling(false));
  }

  withdraw(runId) {
    return this.attempt(() => post(this.runPath(runId, "cancel")));
  }

  async takeOver(verb, note, force) {
    const done = await this.attempt(() => post(this.path(`/${verb}`), { ...(note && { note }), ...(force && { force }) }));
    if (done) this.composer.focus();
    return done;
  }

  decide(item, decision, reason, edited) {
    return this.attempt(async () => {
      const shown = await digestOf(item.input);
      const approval = { tool_call_id: item.id, decision, ...(reason && { reason }), ...(edited && { arguments: edited }), ...(shown && { arguments_digest: shown }) };
      return begin(this.runPath(item.run_id, "resume"), { approvals: [approval] });
    });
  }

  edit(item) {
    return this.attempt(async () => {
      const { EditDialog } = await import("./edit.js").catch(() => Promise.reject(new Error(text.viewAway)));
      if (!this.node.isConnected) return;
      this.editor ??= new EditDialog(this.app);
      this.editor.open(this.session, item);
    });
  }

  deliver(item, content, failed) {
    const result = { tool_call_id: item.id, content, ...(failed && { is_error: true }) };
    return this.attempt(() => begin(this.runPath(item.run_id, "resume"), { tool_results: [result] }));
  }

  resume(runId) {
    return this.attempt(() => begin(this.runPath(runId, "resume"), {}));
  }

  // What was said stands in the log already: the model is asked anew, and nothing is said twice.
  again() {
    return this.attempt(() => this.run([], false));
  }

  async handTo(agent) {
    const done = await this.attempt(() => patch(sessionPath(this.id), { agent }));
    if (done) this.composer.focus();
    return done;
  }

  runPath(runId, verb) {
    return this.path(`/runs/${encodeURIComponent(runId)}/${verb}`);
  }

  path(rest) {
    return sessionPath(this.id, rest);
  }
}
