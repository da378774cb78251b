"""`swarmkeep forward`: the audit log to a SIEM, without a gap."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from swarmkeep.cli.opening import open_source
from swarmkeep.cli.options import ApiKey, DatabaseUrl, ServerUrl, Tenant
from swarmkeep.cli.output import lock_file, parse_duration, write_atomically
from swarmkeep.cli.sources import Source, SourceOptions
from swarmkeep.cli.terminal import Refused, describe_os_error, say
from swarmkeep.events.codec import Json
from swarmkeep.events.wording import pluralize

AUTHORIZATION = "SWARMKEEP_FORWARD_AUTHORIZATION"
_AT_ONCE = 200
# The last line of a file is looked for in so many bytes: an entry has a few hundred.
_TAIL_BYTES = 1 << 20


def register(app: typer.Typer) -> None:
    app.command(
        "forward",
        epilog="""
        \b
        Examples:
          swarmkeep forward --to audit.ocsf.jsonl
          swarmkeep forward --to https://siem.example/ingest --state forwarded.json --every 30s
        """,
    )(forward)


def forward(
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FILE|URL",
            help=f"Append to this file, or POST JSON lines to this URL, with {AUTHORIZATION} as Authorization.",
        ),
    ],
    state: Annotated[
        Path | None,
        typer.Option("--state", metavar="FILE", help="Remember here how far it went; by default FILE.state."),
    ] = None,
    every: Annotated[
        str | None, typer.Option("--every", metavar="TIME", help="Go on, and look so often: 10s, 5m, 1h.")
    ] = None,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Forward the audit log to a SIEM, as events of OCSF 1.5, from where it was left. After a crash or an outage
    nothing is missing; what a URL was sent and did not confirm comes again, with the same metadata.uid."""
    from swarmkeep.history.ocsf import NotDelivered

    is_url = to.startswith(("http://", "https://"))
    if is_url and state is None:
        raise typer.BadParameter("give a file for it: a URL does not tell how far it went", param_hint="'--state'")
    pause = None if every is None else parse_duration(every, "--every").total_seconds()
    place = state or Path(f"{to}.state")
    with _lock(place), open_source(SourceOptions(url, database_url, tenant, api_key)) as source:
        while True:
            count = 0
            try:
                for done in _forward_new(source, to, place, is_url=is_url):
                    count += done
            except NotDelivered as error:
                if pause is None:
                    raise Refused(str(error)) from None
                say(f"not delivered, and tried again in {every}: {error}")
            if count or pause is None:
                say(f"forwarded {pluralize(count, 'entry', 'entries')}")
            if pause is None:
                return
            time.sleep(pause)


@contextmanager
def _lock(place: Path) -> Iterator[None]:
    """Keep others from forwarding by the same state. Raises Refused."""
    try:
        with place.with_name(f"{place.name}.lock").open("ab") as file:
            if not lock_file(file.fileno()):
                raise Refused(f"another process forwards by {place}")
            yield
    except OSError as error:
        raise Refused(f"cannot write beside {place}: {describe_os_error(error)}") from None


def _forward_new(source: Source, to: str, place: Path, *, is_url: bool) -> Iterator[int]:
    """Forward what is new, a batch at a time; give the size of each. Raises NotDelivered, Refused."""
    from swarmkeep import __version__
    from swarmkeep.history.ocsf import deliver, to_ocsf

    last = _read_state(place)
    if not is_url:
        last = max(last, _read_last_line(Path(to)))
    entries = source.audit(after=max(0, last.seq - 1))
    if last.seq and (found := next(entries, None)) is not None and (found.seq, found.hash) != last:
        found = None
    if last.seq and found is None:
        raise Refused(
            f"the audit log does not have entry {last.seq} as it was forwarded: it is another one, or rewritten"
        )
    while batch := list(islice(entries, _AT_ONCE)):
        events = [to_ocsf(one.seq, one.type, one.by, one.at, one.data, one.hash, version=__version__) for one in batch]
        if is_url:
            deliver(to, events, os.environ.get(AUTHORIZATION))
        else:
            _append(Path(to), events)
        done = {"seq": batch[-1].seq, "hash": batch[-1].hash}
        write_atomically(place, [json.dumps(done).encode() + b"\n"])
        yield len(batch)


class _Position(NamedTuple):
    """The last entry that was forwarded."""

    seq: int = 0
    hash: str = ""


def _read_state(place: Path) -> _Position:
    try:
        found = json.loads(place.read_bytes())
        return _Position(int(found["seq"]), str(found["hash"]))
    except FileNotFoundError:
        return _Position()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refused(f"cannot read {place}, which says how far it went: {error}") from None


def _read_last_line(file: Path) -> _Position:
    """The entry of the last whole line; what a crash left behind it is cut off."""
    try:
        with file.open("r+b") as opened:
            size = opened.seek(0, os.SEEK_END)
            begin = max(0, size - _TAIL_BYTES)
            opened.seek(begin)
            tail = opened.read()
            whole = tail[: tail.rfind(b"\n") + 1]
            opened.truncate(begin + len(whole))
    except FileNotFoundError:
        return _Position()
    except OSError as error:
        raise Refused(f"cannot write {file}: {describe_os_error(error)}") from None
    lines = whole.splitlines()
    try:
        if not lines:
            return _Position()
        event = json.loads(lines[-1])["metadata"]
        return _Position(int(event["sequence"]), str(event["uid"]))
    except (ValueError, KeyError, TypeError):
        raise Refused(f"{file} has other lines than those that were forwarded; name another file") from None


def _append(file: Path, events: list[Json]) -> None:
    from swarmkeep.history.ocsf import write_lines

    try:
        with file.open("ab") as opened:
            opened.write(write_lines(events))
            opened.flush()
            os.fsync(opened.fileno())
    except OSError as error:
        raise Refused(f"cannot write {file}: {describe_os_error(error)}") from None
