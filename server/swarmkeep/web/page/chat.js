// The chat: a conversation, the agent or the person who answers in it, and its runs.

import { begin, may, me, patch, post, sessionPath } from "./api.js";
import { digestOf } from "./calls.js";
import { agentChoice, Composer } from "./composer.js";
import { whoIs } from "./descriptions.js";
import { bdi, button, clear, dayAndTime, h } from "./dom.js";
import { initial } from "./fold.js";
import { announce, Log } from "./log.js";
import { go, hrefOf, replaceRoute } from "./route.js";
import { Problems, stateTitle } from "./session.js";
import { ExportMenu, Forks, OwnerMenu, SessionTools } from "./sessiontools.js";
import { text } from "./text.js";

// The active agent and its switch. Choosing another one changes nothing until the user confirms it.

const t = text.chat;

class AgentSwitch {
  // `onHandOver(name)` says whether it was done.
  constructor({ onHandOver }) {
    this.onHandOver = onHandOver;
    this.agent = "";
    this.select = h("select", { class: "field agent-select", "aria-label": t.active, onchange: () => this.offer() });
    this.question = h("p", { dir: "auto" });
    this.confirm = button(t.handOver, { kind: "primary small", onclick: () => this.handOver() });
    this.keep = button(t.keep, { kind: "small", onclick: () => this.back() });
    this.offered = h("div", { class: "handover", role: "group", "aria-label": t.handOver, hidden: true }, this.question, h("div", { class: "row" }, this.confirm, this.keep));
    for (const node of [this.select, this.offered]) node.addEventListener("keydown", (event) => event.key === "Escape" && this.isOpen && this.back());
  }

  get isOpen() {
    return !this.offered.hidden;
  }

  show(agent, served, { may = true } = {}) {
    this.select.disabled = !may;
    const shown = `${agent}\n${served.join("\n")}`;
    if (this.shown === shown || this.isOpen) return;
    this.shown = shown;
    this.agent = agent;
    const gone = agent && !served.includes(agent) ? [h("option", { value: agent }, t.notServed(agent))] : [];
    clear(this.select, gone, served.map((name) => h("option", { value: name }, name)));
    this.select.value = agent;
  }

  offer() {
    const chosen = this.select.value;
    this.offered.hidden = chosen === this.agent;
    this.question.textContent = t.handOverTo(chosen);
  }

  back() {
    this.close(this.agent);
  }

  close(agent) {
    const inside = this.offered.contains(document.activeElement);
    this.offered.hidden = true;
    this.shown = null;
    this.select.value = agent;
    if (inside) this.select.focus();
  }

  async handOver() {
    const chosen = this.select.value;
    this.confirm.disabled = true;
    const done = await this.onHandOver(chosen);
    this.confirm.disabled = false;
    if (done) this.agent = chosen;
    this.close(this.agent);
  }
}

// A person in the agent's place: who has taken over, and the ways there and back.

const tOver = text.takeover;
const MOST_NOTE = 10_000;

// True if the caller has taken over. Without keys no caller has a name.
function isMine(taken) {
  const id = me.known?.key?.id;
  if (!taken) return false;
  if (taken.by === null) return !id;
  // A key without a name is called by its id alone.
  return Boolean(id) && (taken.by === id || taken.by.startsWith(`${id} `));
}

// How the caller may speak in a session. Only who began a conversation speaks in it as the customer without saying so.
function modesOf({ taken, begunBy }) {
  if (isMine(taken)) return ["answer", "note"];
  const { key, role } = me.known ?? {};
  const began = begunBy === undefined || begunBy === key?.id || String(begunBy).startsWith(`${key?.id} `);
  return key && (role === "support" || taken || !began) ? ["takeOver", "note", "user"] : ["user"];
}

class Takeover {
  // `onTake(note, force)` and `onBack(note, force)` say whether it was done.
  constructor({ onTake, onBack }) {
    this.on = { take: onTake, back: onBack };
    this.button = button(tOver.take, { icon: "handoff", kind: "take", title: tOver.take, onclick: () => this.ask("take"), hidden: true });
    this.note = h("input", { class: "field", type: "text", maxlength: MOST_NOTE, dir: "auto" });
    this.confirm = button(tOver.take, { kind: "primary small", type: "submit" });
    this.form = h("form", { class: "handover taking", hidden: true, onsubmit: (event) => this.submit(event) },
      this.note, h("div", { class: "row" }, this.confirm, button(text.chat.keep, { kind: "small", onclick: () => this.shut() })));
    this.form.addEventListener("keydown", (event) => event.key === "Escape" && this.shut());
    this.banner = h("div", { class: "handover taken", role: "group", "aria-label": tOver.label, hidden: true });
    this.node = h("div", {}, this.banner, this.form);
  }

  show(taken, agent, { may }) {
    this.agent = agent;
    this.button.hidden = !may || taken !== null;
    const shown = JSON.stringify([taken, agent, may]);
    if (this.shown === shown) return;
    this.shown = shown;
    // A note that is being written stays, unless the question has changed.
    const isOther = JSON.stringify(taken) !== JSON.stringify(this.taken ?? null);
    this.taken = taken;
    if (isOther || !may) this.shut();
    this.banner.hidden = taken === null;
    if (!taken) return;
    const mine = isMine(taken);
    const words = mine ? tOver.mine(agent) : tOver.theirs(whoIs(taken.by), agent);
    clear(this.banner,
      h("p", { class: "grow", title: [dayAndTime(taken.at), taken.by].filter(Boolean).join(" · ") }, bdi(words), taken.note ? [" ", h("q", { dir: "auto" }, taken.note)] : null),
      may ? h("div", { class: "row" }, mine ? null : button(tOver.takeFrom, { kind: "small", onclick: () => this.ask("take") }), button(tOver.back, { kind: "small primary", onclick: () => this.ask("back") })) : null);
  }

  ask(what) {
    this.what = what;
    const back = what === "back";
    const label = back ? tOver.noteBack : tOver.noteTake;
    this.form.setAttribute("aria-label", back ? tOver.back : tOver.take);
    this.note.setAttribute("aria-label", label);
    this.note.placeholder = label;
    this.note.value = "";
    this.confirm.lastChild.textContent = back ? tOver.back : tOver.take;
    this.form.hidden = false;
    this.note.focus();
  }

  shut() {
    const inside = this.form.contains(document.activeElement);
    this.form.hidden = true;
    if (inside) (this.button.hidden ? this.banner.querySelector("button") : this.button)?.focus();
  }

  async submit(event) {
    event.preventDefault();
    this.confirm.disabled = true;
    const done = await this.on[this.what](this.note.value.trim(), this.taken !== null && !isMine(this.taken));
    this.confirm.disabled = false;
    if (done) this.shut();
  }
}

// A conversation with agents: shows the session's events, and sends messages and decisions.

export class Chat {
  // `onAct` is called when something was sent or decided; a chat that is part of another view has it, and leaves the keyboard where it is.
  constructor(app, { id, at = null, onAct = null }) {
    this.app = app;
    this.id = id;
    this.at = at;
    this.onAct = onAct;
    this.showsEnd = true;
    this.act = {
      may,
      session: () => this.id,
      agent: (name) => app.agents.find((agent) => agent.name === name),
      decide: (...given) => this.decide(...given),
      deliver: (...given) => this.deliver(...given),
      context: () => this.state.context,
      resume: (run) => this.resume(run),
      again: () => this.again(),
      withdraw: (run) => this.withdraw(run),
      edit: (item) => this.edit(item),
      rate: ({ seq }, value) => this.tryOut(({ openFeedback }) => openFeedback(this.app, this.id, seq, value, () => this.panel.querySelector(`[data-seq="${seq}"] button`)?.focus())),
      makeCase: (run) => this.tryOut(({ openCase }) => openCase(this.app, this.id, run)),
    };
    this.log = new Log(this.act);
    this.composer = new Composer({ send: (...given) => this.send(...given), cancel: () => this.cancel() });
    this.agent = new AgentSwitch({ onHandOver: (agent) => this.handTo(agent) });
    this.takeover = new Takeover({ onTake: (note, force) => this.takeOver("takeover", note, force), onBack: (note, force) => this.takeOver("handback", note, force) });
    this.link = h("span", { class: "link", role: "status" });
    this.title = h("h1", { class: "view-title", dir: "auto" });
    this.way = h("a", { class: "button ghost", href: "#" }, t.toTimeline);
    this.taken = h("span", { class: "row" });
    this.head = h("header", { class: "view-head" }, this.title, this.link, h("span", { class: "grow" }), this.takeover.button, this.agent.select, this.way, this.taken);
    this.panel = h("section", { class: "chat", "aria-label": t.title });
    this.composer.takeDrops(this.panel);
    this.aside = h("section", { class: "facts-pane scroll", id: "facts", tabindex: 0, "aria-label": t.facts, onkeydown: ({ key }) => key === "Escape" && this.node.classList.contains("facts-open") && this.toggleFacts() });
    this.toFacts = button(t.facts, { icon: "info", kind: "ghost facts-button", quiet: true, "aria-controls": "facts", "aria-expanded": "false", onclick: () => this.toggleFacts() });
    this.node = h("div", { class: "case" }, this.panel);
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
    this.sight?.disconnect();
    this.editor?.node.close();
    this.asked?.close();
  }

  begin() {
    const [{ agents }, words] = [this.app, may("run") ? t : t.reading];
    const choice = agents.length ? may("run") && agentChoice(agents, agents[0].name, (name) => this.choose(name)) : this.withoutAgents();
    clear(this.panel, h("div", { class: "start scroll" }, h("div", { class: "column" }, h("h1", {}, words.begin), h("p", { class: "muted" }, words.beginHint), choice)), this.composer.node);
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
    this.composer.show({ agent: name, busy: false, may: may("run"), mayDecide: may("approve") });
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
    this.owner = new OwnerMenu(this.app, id);
    clear(this.taken, this.toFacts, this.owner.node, this.forks.node, new ExportMenu(this.app, id, () => ({ view: "chat", id }), { print: true }).node);
    clear(this.panel, this.head, this.agent.offered, this.takeover.node, this.problems.node, h("div", { class: "log-frame" }, this.log.node, this.log.latest), this.composer.node);
    this.composer.open(id);
    this.node.append(this.aside);
    this.sight = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && this.showFacts());
    this.sight.observe(this.aside);
    this.render();
    this.session.show(this);
    if (!this.at && !this.onAct) this.composer.focus();
  }

  // The facts are loaded when their pane is first in sight.
  async showFacts() {
    this.sight.disconnect();
    const { Facts } = await import("./facts.js").catch(() => ({}));
    if (!Facts) return this.sight.observe(this.aside);
    this.facts = new Facts(this.session);
    clear(this.aside, button(text.close, { icon: "cross", kind: "ghost small facts-close", quiet: true, onclick: () => this.toggleFacts() }), this.facts.node);
    return this.facts.show();
  }

  // Where there is no room for a pane of their own, they are laid over the conversation.
  toggleFacts() {
    const open = this.node.classList.toggle("facts-open");
    this.toFacts.setAttribute("aria-expanded", String(open));
    (open ? this.aside : this.toFacts).focus();
  }

  failed(error) {
    for (const node of [this.taken, this.composer.node, this.link, this.takeover.button, this.takeover.node, this.agent.select, this.way, this.tools.node]) node.remove();
    this.aside.remove();
    clear(this.panel, this.head, h("div", { class: "problem", role: "alert" }, h("h2", { dir: "auto" }, error.message), h("p", {}, error.advice),
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
    this.facts?.show();
    this.owner.show(state.assignee);
    const { link } = feed;
    const name = stateTitle(this.id, state);
    if (this.title.textContent !== name) this.title.textContent = name;
    this.app.showTitle(this.id, name);
    this.title.title = this.id;
    this.link.className = `link ${link === "live" ? state.outlook : link}`;
    this.link.textContent = link === "live" ? (state.outlook === "idle" ? "" : text.status[state.outlook]) : text.link[link];
    this.agent.show(state.agent, this.app.agents.map((agent) => agent.name), { may: may("run") });
    this.takeover.show(state.taken, state.agent, { may: may("run") });
    this.composer.show({ agent: state.agent, busy: state.run !== null, may: may("run"), modes: modesOf(state), mayDecide: may("approve"), holder: isMine(state.taken) ? null : whoIs(state.taken?.by) });
  }

  async attempt(work) {
    try {
      await work();
      this.onAct?.();
      return true;
    } catch (error) {
      this.app.fail(error);
      return false;
    }
  }

  send(words, busy, mode, files) {
    return this.attempt(async () => {
      if (!this.id) {
        const session = await post("sessions", this.chosen ? { agent: this.chosen } : {});
        this.app.adopt(session.id);
        replaceRoute({ view: "chat", id: session.id });
        this.open(session.id);
      }
      this.log.toEnd();
      if (mode === "note") return post(this.path("/notes"), { text: words });
      if (mode === "takeOver") await post(this.path("/takeover"), { force: this.state.taken !== null });
      if (mode !== "user") return post(this.path("/answer"), { content: words });
      const input = files.length ? (await import("./attach.js")).messageOf(words, files) : words;
      return this.run(input, busy, this.composer.how.hidden ? {} : { relayed: true });
    });
  }

  async run(input, busy, more = {}) {
    // A run without a reader does not stream.
    await this.feed.opened;
    await post(this.path("/runs"), { input, background: true, on_busy: busy ? "queue" : "reject", ...more });
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
    if (done) this.composer.forget();
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

  async tryOut(open) {
    try {
      const part = await import("./tryout.js").catch(() => Promise.reject(new Error(text.viewAway)));
      if (this.node.isConnected) this.asked = open(part);
    } catch (error) {
      this.app.fail(error);
    }
  }

  deliver(item, content, failed) {
    const result = { tool_call_id: item.id, content, ...(failed && { is_error: true }) };
    return this.attempt(() => begin(this.runPath(item.run_id, "resume"), { tool_results: [result] }));
  }

  resume(runId) {
    return this.attempt(() => begin(this.runPath(runId, "resume"), {}));
  }

  // The log has the messages already: the model is asked again, and no message is sent twice.
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
