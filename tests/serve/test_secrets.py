"""Keys and passwords of a server's environment reach no event, file, log or error, whoever sends them back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serve.test_serve import ServeProcess
from tests.support.scripted import ScriptedModel

API_KEY = "sk-canary-0123456789"
BANK_TOKEN = "tok-canary-9876543210"
PASSWORD = "pw-canary-5555"
CANARY = "canary"

AGENTS = """
import os

from swarmkeep import Agent, Result


def look_up():
    return Result(value="token: " + os.environ["BANK_TOKEN"], context_variables={"used": os.environ["BANK_TOKEN"]})


def fail():
    raise RuntimeError("cannot reach " + os.environ["LEDGER_URL"])


clerk = Agent(name="Clerk", functions=[look_up, fail])
"""


@pytest.mark.long
def test_secrets_sent_back_are_removed(tmp_path: Path) -> None:
    (tmp_path / "team.py").write_text(AGENTS)
    with ScriptedModel() as model:
        environment = {
            "SWARMKEEP_OFFLINE": "false",
            "SWARMKEEP_AGENTS": str(tmp_path / "team.py"),
            "SWARMKEEP_MODEL_RETRIES": "1",
            "OPENAI_BASE_URL": model.url,
            "OPENAI_API_KEY": API_KEY,
            "BANK_TOKEN": BANK_TOKEN,
            "LEDGER_URL": f"https://clerk:{PASSWORD}@ledger.example/v2",
        }
        with ServeProcess(tmp_path, **environment) as server:
            server.request("POST", "/v1/sessions", {"id": "s"})
            model.calls([("look_up", {}), ("fail", {"unknown": API_KEY}), ("fail", {})], text=f"I know {API_KEY}")
            model.say(f"Your key is {API_KEY}.")
            answered = server.request("POST", "/v1/sessions/s/runs", {"input": "hello"})[1]
            # Once in a log line about the next attempt, once in the error of the run.
            model.fail(503, message=f"Bearer {API_KEY} is overloaded")
            model.fail(401, message=f"Incorrect API key provided: {API_KEY}")
            failed = server.request("POST", "/v1/sessions/s/runs", {"input": "again"})[1]
            assert server.stop() == 0
            assert model.headers[-1]["authorization"] == f"Bearer {API_KEY}"
        sent = b"".join(model.raw_requests).decode()
    assert answered["output_text"] == "Your key is [secret removed]."
    assert failed["error"]["message"] == "Incorrect API key provided: [secret removed]"
    assert "Bearer [secret removed] is overloaded" in server.output()
    assert "https://clerk:[secret removed]@ledger.example/v2" in sent
    assert answered["context_variables"] == {"used": "[secret removed]"}
    for place in (sent, server.output(), *(file.read_bytes().decode("latin-1") for file in tmp_path.glob("*.db*"))):
        assert CANARY not in place


@pytest.mark.long
def test_human_text_kept_unchanged(tmp_path: Path) -> None:
    """Only what models and tools send back is looked at: texts of people come back exactly as they were accepted."""
    with ServeProcess(tmp_path, BANK_TOKEN=BANK_TOKEN) as server:
        server.request("POST", "/v1/sessions", {"id": "s", "context_variables": {"said": BANK_TOKEN}})
        server.request("POST", "/v1/sessions/s/runs", {"input": f"Is {BANK_TOKEN} yours?"})
        messages = server.request("GET", "/v1/sessions/s/messages")[1]["data"]
        assert messages[0]["content"] == f"Is {BANK_TOKEN} yours?"
        assert server.request("GET", "/v1/sessions/s")[1]["context_variables"] == {"said": BANK_TOKEN}
