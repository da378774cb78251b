"""The helpers of these tests fail where they must: each of these faults would make other tests pass for nothing."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
import yaml

from swarmkeep.events.codec import Json
from tests.chaos.plans import wait_until
from tests.support import warm
from tests.support.dialects import DIALECTS, Answer, DialectModel
from tests.support.markdown import read_blocks
from tests.support.processes import Process, clean_environment
from tests.support.rules import find_body_faults, find_faults, is_same
from tests.support.scripted import ScriptedModel

USER: Json = {"role": "user", "content": "hello"}
ASK: Json = {"model": "gpt-4o", "messages": [USER]}


def post(model: ScriptedModel, body: Json) -> httpx2.Response:
    return httpx2.post(f"{model.url}/chat/completions", json=body)


def test_unused_reply_fails_the_test() -> None:
    with pytest.raises(AssertionError, match=r"not used: Completion\(.*'never said'"), ScriptedModel() as model:
        model.say(["never said"])


@pytest.mark.parametrize(
    ("messages", "code", "problem"),
    [
        ([USER], "unexpected_call", r"request 1 was not expected.*hello"),
        ([{**USER, "sender": "me"}], "invalid_request", "unknown key 'sender'"),
    ],
)
def test_wrong_request_is_refused_and_remembered(messages: list[Json], code: str, problem: str) -> None:
    model = ScriptedModel().start()
    refusal = post(model, {**ASK, "messages": messages})
    model.close()
    assert (refusal.status_code >= 400, refusal.json()["error"]["code"]) == (True, code)
    with pytest.raises(AssertionError, match=problem):
        model.assert_done()


def tool_call(call_id: str, **function: object) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}", **function}}


def calling(*calls: object) -> Json:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def answered(call_id: object) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": "done"}


def test_accepted_request_has_no_faults() -> None:
    messages = [USER, calling(tool_call("1"), tool_call("2")), answered("1"), answered("2"), USER]
    assert find_faults(messages) == []
    assert find_body_faults(json.dumps({"model": "m", "messages": messages}).encode()) == []


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        [{}],
        [{"role": "function", "content": ""}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": [{}]}],
        [{**USER, "sender": "user"}],
        [{**USER, "name": "John Smith"}],
        [{**USER, "content": "\ud800"}],
        [{"role": "assistant"}],
        [{"role": "assistant", "content": "", "tool_calls": []}],
        [calling(tool_call("1")), USER],
        [answered("1")],
        [calling(tool_call("1")), answered("2")],
        [calling(tool_call("1")), answered("1"), answered("1")],
        [calling(tool_call("1"), tool_call("1")), answered("1")],
        [calling(tool_call("1"), tool_call("2")), answered("1"), USER, answered("2")],
        [calling(tool_call("1", name="a b")), answered("1")],
        [calling(tool_call("1", arguments="")), answered("1")],
        [calling(tool_call("1", arguments="[]")), answered("1")],
        [calling(tool_call("1", arguments='{"a": NaN}')), answered("1")],
        [calling({**tool_call("1"), "index": 0}), answered("1")],
        [calling(tool_call("1", extra=1)), answered("1")],
    ],
)
def test_refused_request_is_a_fault(messages: Any) -> None:
    assert find_faults(messages)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"model": "m", "messages": [{"role": "user", "content": "\xff"}]}',
        b'{"model": "m", "model": "m", "messages": [{"role": "user", "content": ""}]}',
        b'{"model": "m"}',
        b'{"model": "m", "messages": [{"role": "user", "content": ""}], "tools": []}',
        b'{"model": "m", "messages": [{"role": "user", "content": ""}], "sender": "me"}',
    ],
)
def test_refused_body_is_a_fault(body: bytes) -> None:
    assert find_body_faults(body)


def test_same_tells_types_and_signs_apart() -> None:
    for left, right in ((1, 1.0), (1, True), (0.0, -0.0), ([1], [1, 1]), ({"a": 1}, {"a": 1, "b": 1})):
        assert not is_same(left, right)


TOOLS = [{"type": "function", "function": {"name": "hang_up", "parameters": {"type": "object", "properties": {}}}}]
LATER_SYSTEM = [{"role": "system", "content": "a"}, {"role": "system", "content": "b"}, USER]
EMPTY_TEXT = [{"role": "user", "content": [{"type": "text", "text": ""}]}]
CALLED = [USER, calling(tool_call("call_of_another_server")), answered("call_of_another_server")]

# A request that breaks each rule, by what it has besides.
BROKEN: Mapping[str, Json] = {
    "parallel_tool_calls": {"tools": TOOLS, "parallel_tool_calls": True},
    "max_tokens": {"max_tokens": 5},
    "temperature": {"temperature": 0},
    "later system": {"messages": LATER_SYSTEM},
    "empty text": {"messages": EMPTY_TEXT},
    "calls without tools": {"messages": CALLED},
    "chosen function": {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "hang_up"}}},
    "long ids": {"messages": CALLED, "tools": TOOLS},
}


@pytest.mark.parametrize(("name", "rule"), [(name, rule) for name, row in DIALECTS.items() for rule in row.refuses])
def test_fake_server_keeps_its_rules(name: str, rule: str) -> None:
    fake = DialectModel(lambda messages: Answer("Fine."))
    with ScriptedModel(default=fake, strict=False) as model:
        assert post(model, {**ASK, "model": DIALECTS[name].model, **BROKEN[rule]}).status_code == 400
    assert len(fake.refused) == 1


@pytest.mark.parametrize("name", [name for name, row in DIALECTS.items() if row.attaches])
def test_fake_server_misses_its_attachments(name: str) -> None:
    dialect = DIALECTS[name]
    answer = Answer("Let me look.", (("hang_up", {}),))
    fake = DialectModel(lambda messages: answer if len(messages) == 1 else Answer("Done."))
    with ScriptedModel(default=fake, strict=False) as model:
        request: Json = {"model": dialect.model, "messages": [USER], "tools": TOOLS}
        message = post(model, request).json()["choices"][-1]["message"]
        (call,) = message["tool_calls"]
        call["function"]["arguments"] = "{}"
        result = {"role": "tool", "tool_call_id": call["id"], "content": "done"}
        bare = {"role": "assistant", "content": "Let me look.", "tool_calls": [tool_call(call["id"], name="hang_up")]}
        assert post(model, request | {"messages": [USER, message, result]}).status_code == 200
        assert post(model, request | {"messages": [USER, bare, result]}).status_code == 400


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# Page\n\n```python\nfine = 1\n1 / 0\n```\n", 'page.md", line 5'),
        ("# Page\n\n```bash\nfalse | true\n```\n", "page.md:4: exit code 1"),
    ],
)
def test_failing_block_names_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "page.md").write_text(text)
    command = [sys.executable, "-m", "tests.support.markdown", str(tmp_path / "page.md"), "127.0.0.1:9999"]
    with Process(command, folder=tmp_path, env={"PYTHONPATH": str(Path(__file__).parents[1])}) as reader:
        assert reader.wait() != 0
    assert said in reader.output()


@pytest.mark.parametrize("block", ["```json\n{broken}", "```yaml\na: [", "```bash no-run\nrm -rf /", "```ruby\nputs 1"])
def test_unchecked_block_is_refused(tmp_path: Path, block: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{block}\n```\n")
    (found,) = read_blocks(page)
    with pytest.raises((ValueError, yaml.YAMLError)):
        found.check()


def test_killed_process_ends_its_children(tmp_path: Path) -> None:
    sleep = "[sys.executable, '-c', 'import time; time.sleep(600)']"
    code = f"import subprocess, sys, time; print(subprocess.Popen({sleep}).pid, flush=True); time.sleep(600)"
    with Process([sys.executable, "-c", code], folder=tmp_path) as process:
        wait_until("it has a child", lambda: process.output().endswith("\n"))
        child = int(process.output())
        process.signal(signal.SIGKILL)
        assert process.wait(20) == -signal.SIGKILL
    # A process whose parent is gone stays a zombie where no init collects it.
    wait_until(
        "the child has ended",
        lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE,
    )


@pytest.mark.parametrize(
    "code",
    [
        "import sys; print(sys.argv, sys.stdin.read()); sys.exit(3)",
        "raise KeyboardInterrupt",
        "raise ValueError('mine')",
    ],
)
def test_warm_command_ends_like_cold(code: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", code, "--two"]
    with Process(command, folder=tmp_path, env=clean_environment(), cold=True) as cold:
        cold.wait()
    found = warm.run(command, folder=tmp_path, env=clean_environment())
    assert found.returncode == cold.returncode
    assert (found.stdout + found.stderr).splitlines()[-1:] == cold.output().splitlines()[-1:]
