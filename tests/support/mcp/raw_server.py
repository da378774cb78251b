"""A server that knows nothing of the protocol but what it takes to be listened to, and then misbehaves."""

from __future__ import annotations

import json
import sys
from typing import Any

TOOLS = ["flood", "endless_line", "many_values", "many_parts", "two_megabytes", "garbage", "odd", "ok"]


def write(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def write_for_ever(text: str) -> None:
    while True:
        sys.stdout.write(text)


def answer_call(name: str) -> dict[str, Any]:
    if name == "flood":
        write_for_ever('{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}\n')
    if name == "endless_line":
        write_for_ever("A" * 65536)
    if name == "garbage":
        print("this is no JSON\n\n{}\n[]")
    if name == "odd":
        return {"content": "fine"}
    if name == "many_parts":
        return {"content": [{"type": "text", "text": "x"}] * 16_000}
    values = list(range(1_000_000)) if name == "many_values" else []
    text = "x" * 2_000_000 if name == "two_megabytes" else "fine"
    return {"content": [{"type": "text", "text": text}], "structuredContent": {"values": values}}


def list_tools() -> list[dict[str, Any]]:
    schema = {"type": "object", "properties": {}}
    # Its answers are checked against none of this.
    evil = {"type": "object", "properties": {"values": {"pattern": "^(a+)+$"}}}
    return [{"name": name, "inputSchema": schema, "outputSchema": evil} for name in TOOLS]


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    if request["method"] == "initialize":
        version = request["params"]["protocolVersion"]
        info = {"name": "raw", "version": "1"}
        result: dict[str, Any] = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    elif request["method"] == "tools/list":
        result = {"tools": list_tools()}
    elif request["method"] == "tools/call":
        result = answer_call(request["params"]["name"])
    else:
        write({"id": request["id"], "error": {"code": -32601, "message": "what?"}})
        continue
    write({"id": request["id"], "result": result})
