// The agents that are served: what each is told, what it may call, and whom it hands over to and asks.

import { bdi, button, clear, copyButton, h, pretty } from "./dom.js";
import { graphNode } from "./graph.js";
import { hrefOf } from "./route.js";
import { text } from "./text.js";

const agentText = text.agents;

export class AgentsView {
  constructor(app, { name }) {
    this.app = app;
    this.node = h("section", { class: "agents-view", "aria-label": agentText.title });
    this.moved({ name });
  }

  close() {}

  moved({ name }) {
    const { agents, locked } = this.app;
    if (!agents.length) {
      clear(this.node, h("div", { class: "nothing" }, h("h1", {}, agentText.title), h("p", { class: "muted" }, locked ? text.chat.lockedAgents : text.chat.noAgents),
        locked && h("div", { class: "row" }, button(text.key.enter, { icon: "key", onclick: () => this.app.askForKey() }))));
      return;
    }
    const chosen = agents.find((agent) => agent.name === name) ?? agents[0];
    const focused = this.node.contains(document.activeElement);
    clear(this.node,
      h("header", { class: "view-head" }, h("h1", { class: "view-title" }, agentText.title), h("span", { class: "muted" }, agentText.count(agents.length))),
      h("div", { class: "agents-panes" },
        h("nav", { class: "agents-list scroll", "aria-label": agentText.list }, h("ul", {}, agents.map((agent) => h("li", {}, agentLink(agent, agent === chosen))))),
        h("div", { class: "agents-main scroll", tabindex: 0, role: "group", "aria-label": chosen.name },
          name && name !== chosen.name && h("p", { class: "reason", role: "alert" }, text.chat.notServed(name)),
          agents.length > 1 && graphNode(agents, chosen.name), agentDetails(chosen, chosen === agents[0]))));
    if (focused) this.node.querySelector("[aria-current]")?.focus();
  }
}

const agentLink = (agent, current) => h("a", { class: "session", href: hrefOf({ view: "agents", name: agent.name }), "aria-current": current && "true" },
  h("span", { class: "session-name", dir: "auto" }, agent.name), h("span", { class: "session-meta" }, bdi(modelOf(agent))));

const modelOf = (agent) => (agent.offline ? text.chat.offlineModel : agent.model);
const toAgent = (name) => h("a", { href: hrefOf({ view: "agents", name }), dir: "auto" }, name);
const separated = (nodes) => nodes.flatMap((node, index) => (index ? [", ", node] : [node]));
const agentFacts = (pairs) => h("dl", { class: "facts" }, pairs.filter(([, value]) => value && value.length !== 0).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
const codeBlock = (value) => h("pre", { class: "code", tabindex: 0, dir: "auto" }, value);

function agentDetails(agent, isFirst) {
  const settings = Object.keys(agent.model_settings).length > 0 && h("code", {}, JSON.stringify(agent.model_settings));
  return h("article", { class: "agent" },
    h("header", { class: "detail-head" }, h("h2", { dir: "auto" }, agent.name), isFirst && h("span", { class: "state" }, agentText.first)),
    agentFacts([
      [agentText.model, bdi(modelOf(agent))],
      [agentText.settings, settings],
      [agentText.handsOver, separated(agent.handoffs.map(toAgent))],
      [agentText.asks, separated([...new Set(Object.values(agent.asks))].map(toAgent))],
      [agentText.choice, agent.tool_choice && h("code", {}, JSON.stringify(agent.tool_choice))],
      [agentText.inputGuardrails, codeNames(agent.input_guardrails)],
      [agentText.outputGuardrails, codeNames(agent.output_guardrails)],
    ]),
    h("section", {}, h("div", { class: "row" }, h("h3", { class: "grow" }, agentText.instructions), agent.instructions && copyButton(() => agent.instructions)),
      agent.instructions === null ? h("p", { class: "muted" }, agentText.rendered) : agent.instructions ? codeBlock(agent.instructions) : h("p", { class: "muted" }, text.timeline.nothing)),
    h("section", {}, h("h3", {}, agentText.tools), agent.tools.length ? agent.tools.map((tool) => toolNode(tool.function ?? tool, agent)) : h("p", { class: "muted" }, text.timeline.nothing)),
    agent.mcp_servers.length > 0 && h("section", {}, h("h3", {}, agentText.servers), agent.mcp_servers.map(serverNode)),
    agent.output_schema && h("section", {}, h("h3", {}, agentText.output), codeBlock(pretty(agent.output_schema))));
}

const codeNames = (list) => separated(list.map((name) => h("code", {}, name)));

function toolNode({ name, description, parameters }, agent) {
  const signs = [
    agent.approvals.includes(name) && h("span", { class: "state approval" }, text.tool.approval),
    agent.concurrent_tools.includes(name) && h("span", { class: "state" }, agentText.concurrent),
    agent.asks[name] && h("span", { class: "state" }, agentText.asksWhom(agent.asks[name])),
    agent.tool_guardrails[name] && h("span", { class: "state" }, agentText.guardedBy(agent.tool_guardrails[name].join(", "))),
  ];
  return h("details", { class: "fold tool-of-agent" },
    h("summary", {}, h("code", { dir: "auto" }, name), " ", signs, description && h("span", { class: "muted tool-does", dir: "auto" }, description.split("\n")[0])),
    description && h("p", { class: "plain", dir: "auto" }, description), codeBlock(pretty(parameters ?? {})));
}

function serverNode(server) {
  const approval = server.requires_approval === true ? agentText.allTools : Array.isArray(server.requires_approval) ? codeNames(server.requires_approval) : null;
  return h("div", { class: "server" }, h("h4", { dir: "auto" }, server.name), agentFacts([
    [agentText.address, h("code", { dir: "ltr" }, `${server.transport}: ${server.address}`)],
    [agentText.tools, server.tools === null ? agentText.allTools : codeNames(server.tools)],
    [agentText.prefix, server.prefix && h("code", {}, server.prefix)],
    [agentText.needApproval, approval],
    [agentText.hints, server.trust_hints && agentText.yes],
    [agentText.scope, h("code", {}, server.scope)],
  ]));
}
