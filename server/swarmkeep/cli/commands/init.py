"""`swarmkeep init`: a team that comes with the package, copied out as a project of one's own."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from swarmkeep.cli.sources.source import JsonOutput
from swarmkeep.cli.terminal import Refused, put, put_json, put_table, say


def register(app: typer.Typer) -> None:
    app.command(
        "init",
        short_help="Make a project of one's own from a team that comes along.",
        epilog="""
        \b
        Examples:
          swarmkeep init --list
          swarmkeep init my-shop --team acme
        """,
    )(init)


def init(
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The project's folder; it must be new or empty.")
    ] = None,
    team: Annotated[str, typer.Option("--team", metavar="NAME", help="The team to begin with.")] = "triage",
    listed: Annotated[bool, typer.Option("--list", help="List the teams instead.")] = False,
    as_json: JsonOutput = False,
) -> None:
    """Copy a team into a new folder, with a README, an example of a .env file, evals and a test.

    Nothing is overwritten: a folder that has something in it is refused.
    """
    from swarmkeep.cli.init_files import build_project, list_teams

    known = list_teams()
    if listed:
        rows = [{"team": name, "about": about} for name, about in known.items()]
        put_json(rows) if as_json else put_table(("TEAM", "ABOUT"), [(row["team"], row["about"]) for row in rows])
        return
    if folder is None:
        raise typer.BadParameter("name the folder to make, or use --list", param_hint="'DIR'")
    if team not in known:
        raise typer.BadParameter(f"there is no team {team!r}; there are {', '.join(known)}", param_hint="'--team'")
    files = build_project(team)
    _write_project(folder, files)
    if as_json:
        put_json({"folder": str(folder), "team": team, "files": sorted(files)})
        return
    for name in sorted(files):
        put(str(folder / name))
    say(f"\nNext:\n\n  cd {shlex.quote(str(folder))}\n  swarmkeep chat --offline --agents {team}\n")


def _write_project(folder: Path, files: dict[str, str]) -> None:
    """Write the files. Raises Refused where there is something already, and then writes nothing."""
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise Refused(f"{folder} is not empty; nothing was written")
        for name, text in files.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("x", encoding="utf-8", newline="\n") as opened:
                opened.write(text)
    except OSError as error:
        raise Refused(f"cannot write {error.filename or folder}: {error.strerror}") from None
