// A conversation of AG-UI's own client: text, a call, an approval, a function of its own, and a client that joins.
// It is given the server's address, and writes what it holds after each run, as lines of JSON.
import { HttpAgent, buildResumeArray } from "@ag-ui/client";

const url = process.argv[2];
const warnings = [];
console.warn = (...words) => warnings.push(words.join(" "));

function open(options = {}) {
  return new HttpAgent({ url: `${url}/agui/Front`, threadId: "node", ...options });
}

function tell(name, agent, more = {}) {
  const messages = agent.messages.map(({ id, ...message }) => message);
  console.log(JSON.stringify({ name, messages, state: agent.state, warnings, ...more }));
}

const tools = [{ name: "open_door", description: "Open a door.", parameters: { type: "object", properties: {} } }];
const agent = open({ initialState: { name: "Ann" } });

agent.addMessage({ id: "u1", role: "user", content: "Weather?" });
await agent.runAgent({ tools });
tell("calls", agent);

agent.addMessage({ id: "u2", role: "user", content: "Refund it." });
await agent.runAgent({ tools });
const asked = agent.pendingInterrupts;
tell("interrupt", agent, { asked: asked.map(({ reason, toolCallId }) => ({ reason, toolCallId })) });

const other = open();
await other.runAgent({ tools });
tell("joined", other, { same: JSON.stringify(other.pendingInterrupts) === JSON.stringify(asked) });

const approved = { status: "resolved", payload: { approved: true } };
await agent.runAgent({ tools, resume: buildResumeArray(asked, { [asked[0].id]: approved }) });
tell("resumed", agent, { open: agent.pendingInterrupts.length });

agent.addMessage({ id: "u3", role: "user", content: "Open the door." });
const { newMessages } = await agent.runAgent({ tools });
const call = newMessages.flatMap((message) => message.toolCalls ?? [])[0];
agent.addMessage({ id: "r1", role: "tool", toolCallId: call.id, content: "It is open." });
await agent.runAgent({ tools });
tell("own function", agent);

const late = open();
await late.runAgent();
tell("rejoined", late);

const failing = open({ threadId: "node-failing" });
failing.addMessage({ id: "u1", role: "user", content: "Fail." });
await failing.runAgent().catch(() => undefined);
tell("failed", failing);
