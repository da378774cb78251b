"""The command line, one module per group of commands. Each imports what it needs when it is called."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from swarmkeep.cli.commands import (
    chat,
    check,
    checkpoint,
    compare,
    db,
    demo,
    doctor,
    eval,
    events,
    export,
    import_,
    init,
    keys,
    prune,
    replay,
    serve,
    sessions,
    usage,
    verify,
    whatif,
)
from swarmkeep.cli.refusals import find_refusal
from swarmkeep.cli.terminal import drop_stdout, escape_unencodable, say

__all__ = ["app", "main"]

app = typer.Typer(
    name="swarmkeep",
    help="The server that keeps conversations of agents: every message, handoff and context change is an event.",
    epilog="A first look, without a key: swarmkeep demo",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
serve.register(app)
demo.register(app)
chat.register(app)
app.add_typer(sessions.app, name="sessions")
events.register(app)
replay.register(app)
check.register(app)
compare.register(app)
whatif.register(app)
export.register(app)
import_.register(app)
usage.register(app)
app.add_typer(keys.app, name="keys")
verify.register(app)
checkpoint.register(app)
prune.register(app)
app.add_typer(db.app, name="db")
eval.register(app)
init.register(app)
doctor.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        from swarmkeep import __version__

        print(f"swarmkeep {__version__}")
        raise typer.Exit


@app.callback()
def swarmkeep(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line: exit code 0, 1 when a command says no (in a line on stderr), 2 for wrong use."""
    escape_unencodable()
    try:
        app()
    except Exception as error:
        refused = find_refusal(error)
        if refused is None:
            raise
        say(f"error: {refused.sentence}")
        if isinstance(error, OSError):
            drop_stdout()
        sys.exit(refused.exit_code)
