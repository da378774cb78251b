"""`swarmkeep erase`: erase a person in every copy of the database."""

from __future__ import annotations

from typing import Annotated

import typer

from swarmkeep.cli.opening import open_source
from swarmkeep.cli.options import Commands, JsonOutput
from swarmkeep.cli.sources import SourceOptions
from swarmkeep.cli.terminal import put, put_json
from swarmkeep.events.wording import pluralize

commands = Commands()


@commands.add("""
    swarmkeep erase anna@example.com --reason "request of 3 May" --dry-run
    swarmkeep erase anna@example.com --reason "request of 3 May"
""")
def erase(
    where: SourceOptions,
    person: Annotated[str, typer.Argument(metavar="PERSON", help="The person, as the sessions' metadata say.")],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept in the sessions.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show which sessions there are.")] = False,
    as_json: JsonOutput = False,
) -> None:
    """Erase a person, for good: redact all events of the person's sessions, and destroy the key that encrypts them in
    backups, replicas and archives. The hash chains still verify. SWARMKEEP_PERSON says which metadata name people."""
    with open_source(where, writes=True) as source:
        done = source.erase(person, reason, dry_run=dry_run)
    if as_json:
        put_json(done)
        return
    for name in done.sessions:
        put(name)
    put(f"{'would erase' if dry_run else 'erased'} the person in {pluralize(len(done.sessions), 'session')}")
