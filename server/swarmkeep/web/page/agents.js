// The agents that are served: list, diagram of handoffs, and one of them in full.

import { bdi, button, clear, copyButton, h, pretty } from "./dom.js";
import { hrefOf } from "./route.js";
import { text } from "./text.js";
import { viewText } from "./viewtext.js";

// Who can hand over to whom, and ask whom, as a picture: agents in columns, each as far from the first as it takes handoffs.

const SVG_SPACE = "http://www.w3.org/2000/svg";
const CHARACTER_PX = 9;
const GRAPH_BOX = { height: 52, padding: 14, least: 120, most: 260 };
const GRAPH_GAP = { column: 76, row: 22, edge: 12 };
// Lines of asking leave a little below those of handoffs.
const ASKING_LOWER_PX = 10;

function svgNode(tag, attributes, ...children) {
  const node = document.createElementNS(SVG_SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// For the eye alone: what it shows stands in each agent's text, with links.
function graphNode(agents, chosen) {
  const boxes = placeGraphBoxes(agents);
  const width = Math.max(...boxes.map(({ x, width: wide }) => x + wide)) + GRAPH_GAP.edge + 40;
  const height = Math.max(...boxes.map(({ y }) => y + GRAPH_BOX.height)) + GRAPH_GAP.edge;
  const svg = svgNode("svg", { class: "graph", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" }, svgNode("defs", {}, graphHead()));
  const places = new Map(agents.map(({ name }, index) => [name, index]));
  for (const kind of ["handoffs", "asks"]) svg.append(...graphEdges(agents, boxes, places, kind));
  svg.append(...boxes.map((box) => graphBoxNode(box, box.agent.name === chosen)));
  return h("div", { class: "graph-place", tabindex: 0, role: "group", "aria-label": viewText.agents.graph }, svg, h("p", { class: "muted" }, viewText.agents.legend));
}

const graphHead = () => svgNode("marker", { id: "graph-head", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" }, svgNode("path", { class: "graph-head", d: "M0 0.500 8 4 0 7.500z" }));

const reachedAgents = (agent, kind) => (kind === "asks" ? [...new Set(Object.values(agent.asks))] : agent.handoffs);

function graphColumnsOf(agents) {
  const columns = new Map();
  const byName = new Map(agents.map((agent) => [agent.name, agent]));
  for (const first of agents) {
    if (columns.has(first.name)) continue;
    columns.set(first.name, 0);
    const open = [first];
    for (let agent = open.shift(); agent; agent = open.shift()) {
      for (const name of [...reachedAgents(agent, "handoffs"), ...reachedAgents(agent, "asks")]) {
        if (columns.has(name) || !byName.has(name)) continue;
        columns.set(name, columns.get(agent.name) + 1);
        open.push(byName.get(name));
      }
    }
  }
  return columns;
}

function placeGraphBoxes(agents) {
  const columns = graphColumnsOf(agents);
  const widths = new Map();
  for (const agent of agents) {
    const longest = Math.max([...agent.name].length, [...toolsLine(agent)].length * 0.9);
    const wide = Math.min(Math.max(longest * CHARACTER_PX + 2 * GRAPH_BOX.padding, GRAPH_BOX.least), GRAPH_BOX.most);
    widths.set(columns.get(agent.name), Math.max(widths.get(columns.get(agent.name)) ?? 0, wide));
  }
  const left = (column) => Array.from({ length: column }, (_, index) => widths.get(index) + GRAPH_GAP.column).reduce((sum, part) => sum + part, GRAPH_GAP.edge);
  const rows = new Map();
  return agents.map((agent) => {
    const column = columns.get(agent.name);
    const row = rows.get(column) ?? 0;
    rows.set(column, row + 1);
    return { agent, x: left(column), y: GRAPH_GAP.edge + row * (GRAPH_BOX.height + GRAPH_GAP.row), width: widths.get(column) };
  });
}

const toolsLine = (agent) => [text.chat.tools(agent.tools.length), agent.approvals.length && viewText.agents.approvals(agent.approvals.length)].filter(Boolean).join(", ");

// Two that lead to each other are one line with a head at both ends.
function graphEdges(agents, boxes, places, kind) {
  const pairs = new Set(agents.flatMap((agent, start) => reachedAgents(agent, kind).filter((name) => places.has(name)).map((name) => `${start} ${places.get(name)}`)));
  const lines = [];
  for (const pair of pairs) {
    const [start, end] = pair.split(" ").map(Number);
    const both = start !== end && pairs.has(`${end} ${start}`);
    if (!both || start < end) lines.push(graphEdge(boxes[start], boxes[end], kind, both));
  }
  return lines;
}

function graphEdge(from, to, kind, both) {
  const lower = kind === "asks" ? ASKING_LOWER_PX : 0;
  const middle = ({ y }) => y + GRAPH_BOX.height / 2 + lower;
  const forward = from.x < to.x;
  const within = from.x === to.x;
  const [x1, x2] = within ? [from.x + from.width, to.x + to.width] : forward ? [from.x + from.width, to.x] : [from.x, to.x + to.width];
  const bend = GRAPH_GAP.column / 2;
  const [out, into] = within ? [bend, bend] : forward ? [bend, -bend] : [-bend, bend];
  const [y1, y2] = from === to ? [middle(from) - 8, middle(to) + 8] : [middle(from), middle(to)];
  return svgNode("path", {
    class: `graph-edge ${kind}`, d: `M${x1} ${y1} C${x1 + out} ${y1} ${x2 + into} ${y2} ${x2} ${y2}`,
    "marker-end": "url(#graph-head)", ...(both && { "marker-start": "url(#graph-head)" }),
  });
}

function graphBoxNode({ agent, x, y, width }, chosen) {
  const line = (words, top, kind) => {
    const most = Math.floor((width - 2 * GRAPH_BOX.padding) / CHARACTER_PX / (kind === "graph-name" ? 1 : 0.86));
    const signs = [...words];
    return svgNode("text", { class: kind, x: x + GRAPH_BOX.padding, y: y + top }, signs.length > most ? `${signs.slice(0, most - 1).join("")}…` : words);
  };
  return svgNode("a", { href: hrefOf({ view: "agents", name: agent.name }), tabindex: -1, class: `graph-agent ${chosen ? "chosen" : ""}` },
    svgNode("title", {}, agent.name),
    svgNode("rect", { x, y, width, height: GRAPH_BOX.height, rx: 8 }), line(agent.name, 22, "graph-name"), line(toolsLine(agent), 40, "graph-tools"));
}

// The agents that are served: what each is told, what it may call, and whom it hands over to and asks.

const agentText = viewText.agents;

export class AgentsView {
  constructor(app, { name }) {
    this.app = app;
    this.node = h("section", { class: "agents-view", "aria-label": text.agents.title });
    this.moved({ name });
  }

  close() {}

  moved({ name }) {
    const { agents, locked } = this.app;
    if (!agents.length) {
      clear(this.node, h("div", { class: "nothing" }, h("h1", {}, text.agents.title), h("p", { class: "muted" }, locked ? text.chat.lockedAgents : text.chat.noAgents),
        locked && h("div", { class: "row" }, button(text.key.enter, { icon: "key", onclick: () => this.app.askForKey() }))));
      return;
    }
    const chosen = agents.find((agent) => agent.name === name) ?? agents[0];
    const focused = this.node.contains(document.activeElement);
    clear(this.node,
      h("header", { class: "view-head" }, h("h1", { class: "view-title" }, text.agents.title), h("span", { class: "muted" }, agentText.count(agents.length))),
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
