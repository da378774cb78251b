"""`swarmkeep eval`, `case`: cases as data, tried on agents, and made of recorded runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmkeep.cli.configure import NO_MODEL, OFFLINE_NOTE, has_model, load_settings
from swarmkeep.cli.opening import open_source
from swarmkeep.cli.options import (
    Agents,
    Commands,
    DatabaseUrl,
    JsonOutput,
    Model,
    Offline,
    Output,
    Quiet,
    SessionId,
)
from swarmkeep.cli.output import Background, write_output
from swarmkeep.cli.sources import SourceOptions
from swarmkeep.cli.terminal import Progress, Refused, make_console, put_json, say, show_progress
from swarmkeep.events.wording import escape_controls, escape_line

if TYPE_CHECKING:
    from swarmkeep.evals.cases import Case, CaseFile
    from swarmkeep.evals.running import CaseOutcome, CaseRunner
    from swarmkeep.serve.settings import Settings


_NAMED_FILES = 5


commands = Commands()


@commands.add(
    """
    swarmkeep eval evals/ --agents shop.py --offline
    swarmkeep eval evals/routing.yaml --agents shop.py --repeat 5 --concurrency 4 --pass-rate 0.8
    swarmkeep eval evals/ --case refund --json
    """,
    name="eval",
)
def evaluate(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH", help="A file with cases (YAML or JSON), or a folder of such files."),
    ],
    agents: Agents = None,
    offline: Offline = False,
    model: Model = None,
    judge_model: Annotated[
        str | None, typer.Option("--judge-model", metavar="NAME", help="The model that judges; by default --model.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, metavar="N", help="How often each case is tried.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="How many are tried at the same time.")] = 1,
    pass_rate: Annotated[
        float, typer.Option("--pass-rate", min=0.0, max=1.0, metavar="SHARE", help="The share of tries that must pass.")
    ] = 1.0,
    wanted: Annotated[
        str | None, typer.Option("--case", metavar="TEXT", help="Only cases whose name contains this text.")
    ] = None,
    database_url: DatabaseUrl = None,
    as_json: JsonOutput = False,
    quiet: Quiet = False,
) -> None:
    """Try cases on agents, and report which pass; exit code 1 if one fails.

    Conversations need a model: the configured one, or the offline one. Recorded sessions, from the database, are
    compared with what today's agents would do, without a model. With --offline, cases that need a real model are
    skipped, and reported as such.
    """
    from swarmkeep.evals.cases import load_cases
    from swarmkeep.evals.running import count_outcomes

    skipped: list[Path] = []
    files = load_cases(paths, on_skip=skipped.append)
    if skipped:
        say(f"no cases in {_name_files(skipped)}: skipped")
    settings = load_settings(agents=agents, offline=offline, model=model, database_url=database_url)
    if settings.offline:
        say(OFFLINE_NOTE)
    chosen = [
        (file, cases)
        for file in files
        if (cases := [case for case in file.cases if wanted is None or wanted.casefold() in case.name.casefold()])
    ]
    plan = _Plan(settings, agents, judge_model, repeat, concurrency, pass_rate)
    total = repeat * sum(len(cases) for _, cases in chosen)
    with show_progress(
        "trying",
        "try",
        total,
        quiet=quiet,
        on_interrupt=lambda done: f"{done} made; their results are not kept",
    ) as progress:
        outcomes = [outcome for file, cases in chosen for outcome in _run_file(file, cases, plan, progress)]
    if not outcomes:
        raise Refused(f"no case has {wanted!r} in its name; leave the option out to try all")
    if as_json:
        put_json({**count_outcomes(outcomes), "cases": outcomes})
    else:
        _print_outcomes(outcomes)
    if any(outcome.status == "failed" for outcome in outcomes):
        raise typer.Exit(1)


_MOST_PROBLEMS = 3
# A file or another program has no width; there, few cells need a second line.
_WIDTH = 160
_STYLES: dict[str, str] = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


def _print_outcomes(outcomes: Sequence[CaseOutcome]) -> None:
    """A line for each, or several, and one that sums them up."""
    from rich.table import Table
    from rich.text import Text

    from swarmkeep.evals.running import count_outcomes

    console = make_console(width=None if sys.stdout.isatty() else _WIDTH)
    table = Table(box=None, pad_edge=False)
    for heading in ("CASE", "RESULT", "PASSED", "SECONDS", "WHY"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("RESULT", "PASSED", "SECONDS"))
    for outcome in outcomes:
        table.add_row(
            Text(escape_line(outcome.case)),
            Text(outcome.status, style=_STYLES[outcome.status]),
            Text(f"{outcome.passed}/{outcome.tried}" if outcome.tried else "-"),
            Text(f"{outcome.seconds:.2f}" if outcome.tried else "-"),
            Text(escape_controls(_explain_outcome(outcome))),
        )
    console.print(table)
    console.print(Text(", ".join(f"{count} {status}" for status, count in count_outcomes(outcomes).items())))


def _explain_outcome(outcome: CaseOutcome) -> str:
    more = len(outcome.problems) - _MOST_PROBLEMS
    lines = [*outcome.problems[:_MOST_PROBLEMS], *([f"and {more} more"] if more > 0 else [])]
    return outcome.reason or "\n".join(lines)


@dataclass(frozen=True)
class _Plan:
    """The plan of how cases are tried. `agents` are those that the command names, if it does."""

    settings: Settings
    agents: list[str] | None
    judge_model: str | None
    repeat: int
    concurrency: int
    pass_rate: float


def _name_files(files: Sequence[Path]) -> str:
    more = f" and {len(files) - _NAMED_FILES} more" if len(files) > _NAMED_FILES else ""
    return ", ".join(map(str, files[:_NAMED_FILES])) + more


def _run_file(file: CaseFile, cases: Sequence[Case], plan: _Plan, progress: Progress) -> Iterator[CaseOutcome]:
    from swarmkeep.evals.cases import as_tuple
    from swarmkeep.evals.running import CaseOutcome

    reasons = [_find_skip_reason(case, file, offline=plan.settings.offline) for case in cases]
    taken = [case for case, reason in zip(cases, reasons, strict=True) if reason is None]
    progress.advance(plan.repeat * (len(cases) - len(taken)))
    specs = plan.settings.agents if plan.agents or not file.agents else as_tuple(file.agents)
    with ExitStack() as stack:
        background = Background()
        stack.callback(background.close)
        bench = _open_bench(taken, plan, specs, stack, background)
        rounds = bench.run_rounds(taken, plan.repeat, on_try=progress.advance)
        attempts = iter(background.run(rounds))
    for case, reason in zip(cases, reasons, strict=True):
        yield CaseOutcome.from_attempts(
            file.path, case.name, [] if reason else next(attempts), reason=reason, pass_rate=plan.pass_rate
        )


def _find_skip_reason(case: Case, file: CaseFile, *, offline: bool) -> str | None:
    if not offline:
        return None
    if "model" in (case.needs, file.needs):
        return "it needs a model, and the offline model is not an LLM"
    return "it is judged by a model, and the offline model is not an LLM" if case.is_judged else None


def _open_bench(
    cases: Sequence[Case], plan: _Plan, specs: Sequence[str], stack: ExitStack, background: Background
) -> CaseRunner:
    from swarmkeep.evals.running import CaseRunner, Judge
    from swarmkeep.models.clients import make_model_client
    from swarmkeep.runs.agents import find_model_server, load_registry
    from swarmkeep.store.opening import open_store

    settings = plan.settings
    registry = load_registry(specs, model=settings.model, server=find_model_server(settings))
    asks = any(case.recorded is None or case.is_judged for case in cases)
    if asks and not has_model(settings):
        raise Refused(NO_MODEL)
    recorded = None
    if any(case.recorded for case in cases):
        store = recorded = open_store(settings.database_url, read_only=True, **settings.store_options)
        stack.callback(lambda: background.run(store.close()))
        background.run(store.ping())
    judge = None
    if any(case.is_judged for case in cases) and not settings.offline:
        client = make_model_client(settings)
        stack.callback(lambda: background.run(client.close()))
        judge = Judge(
            client, plan.judge_model or settings.model or registry.choose_model(registry.get(registry.default))
        )
    return CaseRunner(registry, settings if asks else None, judge, recorded, concurrency=plan.concurrency)


@commands.add(
    """
    swarmkeep case order-4711 --output evals/order-4711.yaml
    swarmkeep case order-4711 --run run_5f2d… --name "the refund needs an order number"
    """,
    name="case",
)
def make_case(
    where: SourceOptions,
    session_id: SessionId,
    run_id: Annotated[str | None, typer.Option("--run", metavar="ID", help="The run; by default the last one.")] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="TEXT", help="What the case is called; by default what was said.")
    ] = None,
    output: Output = None,
) -> None:
    """Make an eval case of a recorded run: what was said before it and in it, and what is expected by what was done.

    Expected are its calls in their order, the arguments of the last one, the agent in the end, what changed in the
    context, the output, and guardrails. Where the run went wrong, correct them. The file must not be there yet.
    """
    from swarmkeep.evals.proposing import NoCase, make_case_file

    if output is not None and output.exists():
        raise Refused(f"{output} is there already; name another file, or copy the case into it")
    with open_source(where) as source:
        try:
            case = make_case_file(next(iter(source.conversations([session_id]))).events, run_id, name)
        except NoCase as error:
            raise Refused(str(error)) from None
    write_output([case], output)
    if output is not None:
        say(f"wrote the case to {output}; try it with `swarmkeep eval {output}`")
