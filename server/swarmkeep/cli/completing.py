"""Complete words in the shell at a tab: ids of sessions and runs, names of agents, where the command would look for
them."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import typer

from swarmkeep.cli.sources import SourceOptions
from swarmkeep.cli.terminal import put

if TYPE_CHECKING:
    from swarmkeep.cli.opening import Source


# More are not looked at: the user waits, and does not read a longer list.
_MAX_SESSIONS = 200
_ASKS = "_SWARMKEEP_COMPLETE"
# Bash takes them for ends of words, so that a URL is several, and puts what it is offered behind the last one.
_BREAKS = frozenset(":=@")
_SPECIAL_TO_BASH = re.compile(r"[^\w.,:=@%+/-]")
_ESCAPED = re.compile(r"\\(.)")
# What a shell acts on, or what ends them, within quotation marks: a server says what its agents are called.
_ALIVE = frozenset("\"'`$\\!")


@dataclass(frozen=True)
class BashWord:
    """The part of the word at the cursor that bash has, and leaves as it is: its beginning, and whether a quotation
    mark."""

    kept: str = ""
    is_quoted: bool = False

    def write(self, name: str) -> str:
        """The rest of a name as bash is to put it."""
        rest = name.removeprefix(_ESCAPED.sub(r"\1", self.kept))
        return rest if self.is_quoted else _SPECIAL_TO_BASH.sub(r"\\\g<0>", rest)


@contextmanager
def adapt_to_bash(environment: MutableMapping[str, str]) -> Iterator[None]:
    """If it is bash that asks: its words are put together again, and it is offered what comes behind what it has."""
    if environment.get(_ASKS) != "complete_bash":
        yield
        return
    word, offered = _join_words(environment), io.StringIO()
    try:
        with contextlib.redirect_stdout(offered):
            yield
    finally:
        put("\n".join(word.write(name) for name in offered.getvalue().splitlines()))


def _join_words(environment: MutableMapping[str, str]) -> BashWord:
    parts = environment.get("COMP_WORDS", "").split("\n")
    at = min(int(environment.get("COMP_CWORD") or 0), len(parts) - 1)
    words: list[str] = []
    for number, part in enumerate(parts[: at + 1]):
        before = parts[number - 1] if number else ""
        if number and part and (_is_break(part) or _is_break(before)):
            words[-1] += part
        else:
            words.append(part)
    current = parts[at]
    kept = words[-1] if _is_break(current) else words[-1].removesuffix(current)
    # Of `--session=a:`, the value.
    kept = kept.partition("=")[2] if kept.startswith("-") else kept
    environment.update(COMP_WORDS="\n".join(words), COMP_CWORD=str(len(words) - 1))
    return BashWord(kept, current.startswith(("'", '"')))


def _is_break(part: str) -> bool:
    return bool(part) and _BREAKS.issuperset(part)


def complete_session(ctx: typer.Context, incomplete: str) -> list[str]:
    """The sessions that were used last."""

    def find() -> list[str]:
        with _open_source(ctx) as source:
            sessions = source.sessions(agent=None, status=None, order="activity", metadata={})
            return [session.id for session in islice(sessions, _MAX_SESSIONS)]

    return _offer(find, incomplete)


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """The runs of the session that the line names, the last one first."""

    def find() -> list[str]:
        with _open_source(ctx) as source:
            begun = source.events(_find_session(ctx), types=("run.queued", "run.started"))
            return [*reversed(dict.fromkeys(event.run_id for event in begun if event.run_id))]

    return _offer(find, incomplete)


def _find_session(ctx: typer.Context) -> str:
    # Behind an option that has no value yet, arguments are left as they were given.
    return str(ctx.params["session_id"] or ctx.args[0])


def _open_source(ctx: typer.Context) -> AbstractContextManager[Source]:
    """Open the source that the line names, or the settings, as far as the line goes."""
    from swarmkeep.cli.opening import open_source

    return open_source(SourceOptions(*(ctx.params.get(name) for name in ("url", "database_url", "tenant", "api_key"))))


def complete_agent(ctx: typer.Context, incomplete: str) -> list[str]:
    """The server's agents, or those of `--agents`."""

    def find() -> list[str]:
        from swarmkeep.cli.configure import load_settings
        from swarmkeep.cli.server_source import open_client
        from swarmkeep.runs.agents import load_registry

        given = ctx.params
        where = SourceOptions(given.get("url"), given.get("database_url"), None, given.get("api_key"))
        if where.server_url is None:
            return load_registry(load_settings(agents=list(given.get("agents") or ())).agents).names
        with open_client(where.server_url, where.api_key) as client:
            return [agent.name for agent in client.agents.list()]

    return _offer(find, incomplete)


def _offer(find: Callable[[], list[str]], incomplete: str) -> list[str]:
    """Those that begin so, and do nothing in a shell's line; none where they cannot be found out.

    Nothing is said in the middle of a user's line.
    """
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            found = [name for name in find() if name.startswith(incomplete)]
            return [name for name in found if name.isprintable() and _ALIVE.isdisjoint(name)]
    except Exception:
        return []
