"""Programs as people write them for Swarm, run by changing the import and nothing else."""

from __future__ import annotations

from textwrap import dedent

import pytest

from swarmkeep.events.codec import Json
from tests.support.scripted import ScriptedModel

SMALLEST = """
    from swarm import Swarm, Agent

    client = Swarm()

    agent = Agent(
        name="Agent",
        instructions="You are a helpful agent.",
    )

    messages = [{"role": "user", "content": "Hi!"}]
    response = client.run(agent=agent, messages=messages)

    print(response.messages[-1]["content"])
"""

CONTEXT = """
    from swarm import Swarm, Agent

    client = Swarm()

    def instructions(context_variables):
        name = context_variables.get("name", "User")
        return f"You are a helpful agent. Greet the user by name ({name}). They live in {context_variables['city']}."

    def print_account_details(context_variables: dict):
        user_id = context_variables.get("user_id", None)
        name = context_variables.get("name", None)
        print(f"Account details: {name} {user_id}")
        return "Success"

    agent = Agent(
        name="Agent",
        instructions=instructions,
        functions=[print_account_details],
    )

    context_variables = {"name": "James", "user_id": 123}

    response = client.run(
        messages=[{"role": "user", "content": "Print my account details!"}],
        agent=agent,
        context_variables=context_variables,
    )
    print(response.messages[-1]["content"])
"""

FUNCTIONS = """
    from swarm import Swarm, Agent

    client = Swarm()

    def get_weather(location) -> str:
        return "{'temp':67, 'unit':'F'}"

    agent = Agent(
        name="Agent",
        instructions="You are a helpful agent.",
        functions=[get_weather],
    )

    messages = [{"role": "user", "content": "What's the weather in NYC?"}]

    response = client.run(agent=agent, messages=messages)
    print(response.messages[-1]["content"])
"""

HANDOFF = """
    from swarm import Swarm, Agent

    client = Swarm()

    english_agent = Agent(
        name="English Agent",
        instructions="You only speak English.",
    )

    spanish_agent = Agent(
        name="Spanish Agent",
        instructions="You only speak Spanish.",
    )

    def transfer_to_spanish_agent():
        \"\"\"Transfer spanish speaking users immediately.\"\"\"
        return spanish_agent

    english_agent.functions.append(transfer_to_spanish_agent)

    messages = [{"role": "user", "content": "Hola. ¿Como estás?"}]
    response = client.run(agent=english_agent, messages=messages)

    print(response.messages[-1]["content"])
    print(response.agent.name)
"""

RESULTS = """
    from swarm import Agent, Swarm
    from swarm.types import Result

    sales_agent = Agent(name="Sales Agent")

    def talk_to_sales():
        print("Hello, World!")
        return Result(
            value="Done",
            agent=sales_agent,
            context_variables={"department": "sales"},
        )

    agent = Agent(functions=[talk_to_sales])

    client = Swarm()

    response = client.run(
        agent=agent,
        messages=[{"role": "user", "content": "Transfer me to sales"}],
        context_variables={"user_name": "John"},
    )
    print(response.agent.name)
    print(response.context_variables)
"""

CONVERSATION = """
    from swarm import Swarm, Agent

    client = Swarm()
    agent = Agent(name="Agent", instructions="You are a helpful agent.")

    def pretty_print_messages(messages):
        for message in messages:
            if message["content"] is None:
                continue
            print(f"{message['sender']}: {message['content']}")

    messages = []
    for user_input in ("Hi!", "And now?"):
        messages.append({"role": "user", "content": user_input})
        response = client.run(agent=agent, messages=messages)
        messages = messages + response.messages
        agent = response.agent
        pretty_print_messages(response.messages)
"""

STREAMING = """
    from swarm import Swarm, Agent

    def add(a: int, b: int):
        return a + b

    client = Swarm()
    agent = Agent(name="Sums", functions=[add])

    def process_and_print_streaming_response(response):
        content = ""
        last_sender = ""

        for chunk in response:
            if "sender" in chunk:
                last_sender = chunk["sender"]

            if "content" in chunk and chunk["content"] is not None:
                if not content and last_sender:
                    print(f"{last_sender}:", end=" ", flush=True)
                    last_sender = ""
                print(chunk["content"], end="", flush=True)
                content += chunk["content"]

            if "tool_calls" in chunk and chunk["tool_calls"] is not None:
                for tool_call in chunk["tool_calls"]:
                    f = tool_call["function"]
                    name = f["name"]
                    if not name:
                        continue
                    print(f"{last_sender}: {name}()")

            if "delim" in chunk and chunk["delim"] == "end" and content:
                print()
                content = ""

            if "response" in chunk:
                return chunk["response"]

    messages = [{"role": "user", "content": "1 + 2?"}]
    response = client.run(agent=agent, messages=messages, stream=True)
    final = process_and_print_streaming_response(response)
    print(len(final.messages))
"""

TRIAGE = """
    from swarm import Agent, Swarm

    def process_refund(item_id, reason="NOT SPECIFIED"):
        \"\"\"Refund an item. Refund an item. Make sure you have the item_id of the form item_... Ask for user confirmation before processing the refund.\"\"\"
        print(f"[mock] Refunding item {item_id} because {reason}...")
        return "Success!"

    def transfer_back_to_triage():
        \"\"\"Call this function if a user is asking about a topic that is not handled by the current agent.\"\"\"
        return triage_agent

    def transfer_to_refunds():
        return refunds_agent

    triage_agent = Agent(
        name="Triage Agent",
        instructions="Determine which agent is best suited to handle the user's request, and transfer the conversation to that agent.",
    )
    refunds_agent = Agent(
        name="Refunds Agent",
        instructions="Help the user with a refund.",
        functions=[process_refund],
    )
    triage_agent.functions = [transfer_to_refunds]
    refunds_agent.functions.append(transfer_back_to_triage)

    client = Swarm()
    response = client.run(
        agent=triage_agent, messages=[{"role": "user", "content": "Refund item_9, it is too big."}], debug=False
    )
    print([message["role"] for message in response.messages])
    print(response.agent.name)
    response = client.run(
        agent=response.agent,
        messages=response.messages + [{"role": "user", "content": "Something else."}],
        max_turns=1,
    )
    print(response.agent.name)
"""  # noqa: E501


# `eval_utils.py` of Swarm's examples.
EVALS = """
    from swarm import Agent, Swarm

    def extract_response_info(response):
        results = {}
        for message in response.messages:
            if message["role"] == "tool":
                results["tool_calls"] = message["tool_name"]
                break
            elif not message["tool_calls"]:
                results["assistant_response"] = message["content"]
        return results

    def look_up(item):
        return "a lamp"

    client = Swarm()
    agent = Agent(functions=[look_up])
    messages = []
    for question in ("Hi!", "What is item_9?", "And now?"):
        messages = messages + [{"role": "user", "content": question}]
        response = client.run(agent=agent, messages=messages)
        print(extract_response_info(response))
        messages = messages + response.messages
    print([call["function"]["name"] for m in messages if m.get("tool_calls") for call in m["tool_calls"]])
"""


def run_program(program: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The output of a program once its import says swarmkeep."""
    source = dedent(program).replace("from swarm import", "from swarmkeep import")
    source = source.replace("from swarm.types import", "from swarmkeep import")
    space: Json = {"__name__": "__main__"}
    try:
        exec(compile(source, "program", "exec"), space)
    finally:
        for value in space.values():
            if type(value).__name__ == "Swarm":
                value.client.close()
    return capsys.readouterr().out.splitlines()


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, model: ScriptedModel) -> None:
    """Where Swarm finds its model: as the openai package does, in the environment."""
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    monkeypatch.setenv("OPENAI_BASE_URL", model.url)


def test_the_smallest_program(model: ScriptedModel, capsys: pytest.CaptureFixture[str]) -> None:
    model.say("Hello! How can I help you?")
    assert run_program(SMALLEST, capsys) == ["Hello! How can I help you?"]


def test_context_variables(model: ScriptedModel, capsys: pytest.CaptureFixture[str]) -> None:
    model.call("print_account_details")
    model.say("Hello, James!")
    assert run_program(CONTEXT, capsys) == ["Account details: James 123", "Hello, James!"]
    assert model.requests[0]["messages"][0]["content"].endswith("by name (James). They live in .")
    assert model.requests[0]["tools"][0]["function"]["parameters"] == {
        "type": "object", "properties": {}, "required": [],
    }  # fmt: skip


def test_function_calling(model: ScriptedModel, capsys: pytest.CaptureFixture[str]) -> None:
    model.call("get_weather", {"location": "NYC"})
    model.say("It is 67 °F.")
    assert run_program(FUNCTIONS, capsys) == ["It is 67 °F."]
    assert model.requests[1]["messages"][-1]["content"] == "{'temp':67, 'unit':'F'}"
    assert model.requests[0]["tools"][0]["function"]["parameters"]["properties"] == {"location": {"type": "string"}}


def test_a_handoff(model: ScriptedModel, capsys: pytest.CaptureFixture[str]) -> None:
    model.call("transfer_to_spanish_agent")
    model.say("¡Hola!")
    assert run_program(HANDOFF, capsys) == ["¡Hola!", "Spanish Agent"]


def test_a_result_with_agent_and_context(model: ScriptedModel, capsys: pytest.CaptureFixture[str]) -> None:
    model.call("talk_to_sales")
    model.say("Hi, I am Sales.")
    printed = run_program(RESULTS, capsys)
    assert printed == ["Hello, World!", "Sales Agent", "{'user_name': 'John', 'department': 'sales'}"]


def test_a_conversation(model: ScriptedModel, capsys: pytest.CaptureFixture[str]) -> None:
    model.say("Hello!")
    model.say("Now, too.")
    assert run_program(CONVERSATION, capsys) == ["Agent: Hello!", "Agent: Now, too."]
    assert len(model.requests[1]["messages"]) == 4


def test_streaming(model: ScriptedModel, capsys: pytest.CaptureFixture[str]) -> None:
    model.call("add", {"a": 1, "b": 2})
    model.say(["It ", "is 3."])
    assert run_program(STREAMING, capsys) == ["Sums: add()", "Sums: It is 3.", "3"]


def test_triage(model: ScriptedModel, capsys: pytest.CaptureFixture[str]) -> None:
    model.call("transfer_to_refunds")
    model.call("process_refund", {"item_id": "item_9", "reason": "too big"})
    model.say("Refunded.")
    model.call("transfer_back_to_triage")
    assert run_program(TRIAGE, capsys) == [
        "[mock] Refunding item item_9 because too big...",
        "['assistant', 'tool', 'assistant', 'tool', 'assistant']",
        "Refunds Agent",
        "Triage Agent",
    ]


def test_evals_and_histories_with_null_keys(model: ScriptedModel, capsys: pytest.CaptureFixture[str]) -> None:
    model.say("Hello!")
    model.call("look_up", {"item": "item_9"})
    model.say("A lamp.")
    model.say("Now, too.")
    assert run_program(EVALS, capsys) == [
        "{'assistant_response': 'Hello!'}",
        "{'tool_calls': 'look_up'}",
        "{'assistant_response': 'Now, too.'}",
        "['look_up']",
    ]
    for message in model.requests[-1]["messages"]:
        # A reply that only calls says null itself.
        assert {key for key in message if message[key] is None} <= {"content"}
        assert message["content"] or message["tool_calls"]
        assert message.keys() <= {"role", "content", "tool_calls", "tool_call_id"}
