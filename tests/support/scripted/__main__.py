"""The scripted model as a program of its own, for load tests and for programs under test."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.support.scripted.exchange import Json
from tests.support.scripted.model import Default, ScriptedModel
from tests.support.scripted.replies import When


def load_script(model: ScriptedModel, entries: Iterable[Json]) -> None:
    """Fill a script from JSON: each entry is one verb with its main argument, and its options beside it.

    `{"say": "Hello", "when": "words of the last message", "delay": 0.2}`, `{"call": {"name": "f", "arguments": {}}}`,
    `{"calls": [...]}`, `{"raw": {...}}`, `{"fail": 429, "headers": {"retry-after": "0"}}`, `{"hang": ""}`,
    `{"half_stream": "partial te"}`, `{"chunks": [...]}`.
    """
    verbs = ("say", "call", "calls", "raw", "fail", "hang", "half_stream", "chunks")
    for entry in entries:
        options = dict(entry)
        verb = next((name for name in verbs if name in options), None)
        if verb is None:
            raise ValueError(f"an entry needs one of {', '.join(verbs)}: {entry}")
        value = options.pop(verb)
        if "when" in options:
            options["when"] = _last_message_has(options["when"])
        if verb == "call":
            verb, value = "calls", [value]
        getattr(model, verb)(value, **options)


def _last_message_has(words: str) -> When:
    return lambda request: words in str(request["messages"][-1].get("content"))


def _make_default(entry: Json) -> Default:
    rehearsal = ScriptedModel()
    load_script(rehearsal, [entry])
    reply = rehearsal._replies[0]
    return lambda request: reply


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve a script until SIGTERM or SIGINT; 0 if it went as written, 1 if not, 2 for a wrong script."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.scripted", description=__doc__)
    parser.add_argument("--script", type=Path, required=True, help="entries, or {replies, default, strict, remember}")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--url-file", type=Path, help="also write the URL to this file, once it can be used")
    options = parser.parse_args(arguments)
    script = json.loads(options.script.read_text())
    script = script if isinstance(script, dict) else {"replies": script}
    try:
        default = _make_default(script["default"]) if "default" in script else None
        settings = {name: script[name] for name in ("strict", "remember") if name in script}
        model = ScriptedModel(default=default, host=options.host, port=options.port, **settings)
        load_script(model, script.get("replies", []))
    except (TypeError, ValueError) as problem:
        parser.error(f"{options.script}: {problem}")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    model.start()
    print(model.url, flush=True)
    if options.url_file:
        options.url_file.write_text(model.url)
    stop.wait()
    model.close()
    found = model.problems()
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
