"""Log lines in both formats: nobody forges one, and secrets are in none."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from swarmkeep.logs import JsonFormatter, TextFormatter, bind_fields, log_fields, only_log_fields
from swarmkeep.models.failures import Secrets

SECRET = 'sk-"quoted"\\and-grün-0123'
PEM = "-----BEGIN PRIVATE KEY-----\nMC4CAQAw0123\n-----END PRIVATE KEY-----\n"
FORGED = "2026-01-01 00:00:00,000 INFO swarmkeep.serve.workers: all is well"
HOSTILE = f"name\n{FORGED}\r\u0085{FORGED}\u2028{FORGED}\x1b[2J\u202eevil\x00 \ud800"


def make_record(message: str, *args: Any, error: Exception | None = None, **extra: Any) -> logging.LogRecord:
    info = None
    if error is not None:
        try:
            raise error
        except Exception:
            info = sys.exc_info()
    record = logging.LogRecord("swarmkeep.runs", logging.WARNING, __file__, 1, message, args, info)
    vars(record).update(extra)
    return record


def format_json(record: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter(Secrets([SECRET, PEM]).mask).format(record)
    assert line.isascii()
    assert line.isprintable()
    found: dict[str, Any] = json.loads(line)
    return found


def format_text(record: logging.LogRecord) -> str:
    return TextFormatter(Secrets([SECRET, PEM]).mask).format(record)


def test_json_line_has_standard_fields() -> None:
    record = make_record("%s sessions", 3)
    record.created = 1767323045.0625
    assert format_json(record) == {
        "time": "2026-01-02T03:04:05.062Z",
        "level": "warning",
        "logger": "swarmkeep.runs",
        "message": "3 sessions",
    }


def test_json_line_names_its_trace() -> None:
    with TracerProvider().get_tracer("tests").start_as_current_span("turn") as span:
        found = format_json(make_record("hello"))
    context = span.get_span_context()
    assert (found["trace_id"], found["span_id"]) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")
    assert "trace_id" not in format_json(make_record("hello"))


def test_what_others_write_begins_no_line() -> None:
    for error in (None, ValueError(HOSTILE)):
        with only_log_fields(key=HOSTILE):
            found = format_json(make_record("from %s", HOSTILE, error=error, place=HOSTILE))
            lines = format_text(make_record("from %s", HOSTILE, error=error)).splitlines()
        assert found["message"] == f"from {HOSTILE}"
        assert found["key"] == found["place"] == HOSTILE
        assert [line for line in lines if not line.startswith("    ")] == lines[:1]
        assert lines[0].replace("\ud800", "").isprintable()
        assert not any(line.startswith("2026-01-01") for line in lines)
    assert HOSTILE in found["exception"]
    assert found["exception"].startswith("Traceback (most recent call last):\n")


def test_text_line_escapes_hidden_characters() -> None:
    line = format_text(make_record("%s and " + SECRET, "Ann\n1\troot\x1b[2J\x85\u202e\u2028"))
    assert line.endswith(" swarmkeep.runs: Ann\\x0a1\\x09root\\x1b[2J\\x85\\u202e\\u2028 and [secret removed]")


@pytest.mark.parametrize("write", [format_text, lambda record: json.dumps(format_json(record), ensure_ascii=False)])
@pytest.mark.parametrize("secret", [SECRET, PEM])
def test_secrets_are_masked_wherever_they_stand(write: Any, secret: str) -> None:
    with log_fields(key=secret):
        line = write(make_record("sent %s", secret, error=ValueError(f"<{secret}>"), place=secret))
    assert "sent [secret removed]" in line
    assert "<[secret removed]>" in line
    assert "0123" not in line


def test_foreign_exception_text_is_not_shown() -> None:
    record = make_record("hello", error=ValueError(f"first\n{FORGED} {SECRET}"))
    record.stack_info = f"Stack:\n{FORGED} {SECRET}"
    logging.Formatter().format(record)
    lines = format_text(record).splitlines()
    assert [line for line in lines if not line.startswith("    ")] == lines[:1]
    assert sum("[secret removed]" in line for line in lines) == 2
    assert "0123" not in "".join(lines)
    found = format_json(record)
    assert found["stack"].endswith("[secret removed]")
    assert found["exception"].endswith("[secret removed]")


def test_line_fields_are_shown() -> None:
    record = make_record("retry", attempt=2, model="m", seconds=0.5, odd=float("nan"), place={"a": 1}, nothing=None)
    found = format_json(record)
    assert {name: found[name] for name in ("attempt", "model", "seconds", "odd", "place", "nothing")} == {
        "attempt": 2,
        "model": "m",
        "seconds": 0.5,
        "odd": "nan",
        "place": "{'a': 1}",
        "nothing": None,
    }


def test_line_cannot_override_time_or_level() -> None:
    with log_fields(time="never", level="info"):
        found = format_json(make_record("hello", logger="mine", level="debug"))
    assert (found["level"], found["logger"]) == ("warning", "swarmkeep.runs")
    assert found["time"].startswith("20")


def test_fields_hold_while_set() -> None:
    with log_fields(request_id="r1", tenant="acme"):
        with log_fields(run_id="run_1", request_id=None):
            assert format_text(make_record("hello")).endswith(": hello [tenant=acme run_id=run_1]")
        assert format_text(make_record("hello")).endswith(": hello [request_id=r1 tenant=acme]")
        with only_log_fields(request_id="r2"):
            bind_fields(tenant="other")
            assert format_text(make_record("hello")).endswith(": hello [request_id=r2 tenant=other]")
        assert format_text(make_record("for acme")).endswith(": for acme [request_id=r1]")
    assert format_text(make_record("hello")).endswith("swarmkeep.runs: hello")
