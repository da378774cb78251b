"""Searching by words: what a text is found by, what a search asks for, and where in a text that stands.

A word is found by its beginning, without regard to case and accents. Scripts that put no space between words (Chinese,
Japanese, Thai and so on) are found by any two characters that follow one another.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise

import msgspec

from swarmkeep.events.codec import Json, encode_text
from swarmkeep.events.messages import read_tool_calls
from swarmkeep.events.redaction import REDACTED
from swarmkeep.events.state import State
from swarmkeep.events.wording import join_text

MAX_QUERY_CHARACTERS = 200
MAX_TERMS = 10
MAX_TEXT_CHARACTERS = 200_000
"""Of one message: what comes behind them is not found."""
# PostgreSQL takes no more than a megabyte for a row.
_MAX_WORD_BYTES = 400_000
_MAX_WORD = 64
# Nothing else goes on in the process while Unicode's functions work, and rows of accents take them the square of their
# length.
_PIECE_CHARACTERS = 1000
_MOST_JOINED = 30
# The most signs that join two words of a search, as the hyphen of `A-118`.
_MOST_SIGNS = 3
_SNIPPET_BEFORE = 40
_SNIPPET_CHARACTERS = 160

_DENSE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3041-\u30ff\u3400-\u9fff\uac00-\ud7af"
    "\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_DENSE}]+|[^\W_{_DENSE}]+")
_IS_DENSE = re.compile(rf"[{_DENSE}]")
# Of ASCII the letters and digits, in lower case, and a space for all else: a twentieth of the time of the long way.
_PLAIN = "".join(chr(code).lower() if chr(code).isalnum() else " " for code in range(128))
# Of Korean syllables the letters that become one with those before.
_JOINS = re.compile("[\u1160-\u11ff]")


class Term(msgspec.Struct, frozen=True):
    """A word that is searched for; `keys` are the beginnings of what a text with it is found by."""

    text: str
    keys: tuple[str, ...]
    is_dense: bool
    is_joined: bool = False
    """It stands in the search with another one and only signs between them, as `A` and `118` in `A-118`."""


class Snippet(msgspec.Struct, frozen=True):
    """A piece of a text. `ranges`: where in it the words are, from and to, in characters (code points)."""

    text: str
    ranges: list[tuple[int, int]]


def parse_terms(text: str) -> tuple[Term, ...]:
    """Parse the terms of a search: up to MAX_TERMS words, of which a text has to have each. No signs have a meaning."""
    found: dict[str, Term] = {}
    text = _normalise(text[:MAX_QUERY_CHARACTERS])
    words = list(_WORD.finditer(text))
    joined = {word for pair in pairwise(words) if _is_joined(text, pair[0].end(), pair[1].start()) for word in pair}
    for word in words:
        term = _make_term(word.group())
        if term is not None and len(found) < MAX_TERMS:
            found.setdefault(term.text, msgspec.structs.replace(term, is_joined=word in joined))
    return tuple(found.values())


def _is_joined(text: str, end: int, begin: int) -> bool:
    """Return whether only signs stand between the end of a word and the beginning of the next."""
    between = text[end:begin] if 0 < begin - end <= _MOST_SIGNS else " "
    return not any(each.isspace() or each.isalnum() for each in between)


def list_words(text: str) -> list[str]:
    """The words that a text is found by, each once."""
    text = text[:MAX_TEXT_CHARACTERS]
    if text.isascii():
        return list(dict.fromkeys([word[:_MAX_WORD] for word in text.translate(_PLAIN).split()]))
    found: dict[str, None] = {}
    size = 0
    for word in _WORD.findall(_normalise(text)):
        for key in _make_keys(word):
            if key not in found:
                found[key] = None
                size += len(key.encode()) + 1
        if size > _MAX_WORD_BYTES:
            break
    return list(found)


def make_snippet(text: str, terms: Sequence[Term]) -> Snippet | None:
    """The piece of a text around the first place where a term stands; None if not every term is in it."""
    text = _normalise(text[:MAX_TEXT_CHARACTERS])
    places: list[tuple[int, int]] = []
    lone: set[tuple[int, int]] = set()
    missing = set(terms)
    for word in _find_candidates(text, terms):
        if not missing and word.start() > places[0][0] + _SNIPPET_CHARACTERS:
            break
        for term, place in _find_places(word, terms):
            missing.discard(term)
            places.append(place)
            if term.is_joined:
                lone.add(place)
    if missing:
        return None
    # Of `A-118` the words are shown where they stand together; an article is none of it.
    pairs = [pair for pair in pairwise(sorted(places)) if _is_joined(text, pair[0][1], pair[1][0])]
    together = lone.intersection(place for pair in pairs for place in pair)
    return _cut(text, [place for place in places if place in together or place not in lone] if together else places)


def _find_candidates(text: str, terms: Sequence[Term]) -> Iterator[re.Match[str]]:
    """The words of a text that may have a term: of much text with no more than plain letters these are soon found."""
    if not text.isascii():
        return _WORD.finditer(text)
    beginnings = "|".join(re.escape(term.text) for term in terms)
    return re.finditer(rf"(?<![A-Za-z0-9])(?:{beginnings})[A-Za-z0-9]*", text, re.IGNORECASE)


def _find_places(word: re.Match[str], terms: Sequence[Term]) -> Iterator[tuple[Term, tuple[int, int]]]:
    """The terms in a word, each with where it stands; all of the word if that cannot be told."""
    folded, (begin, end) = _fold(word.group()), word.span()
    for term in terms:
        at = folded.find(term.text) if term.is_dense else 0 if folded.startswith(term.text) else -1
        if at >= 0:
            exact = len(folded) == (end - begin if term.is_dense else min(end - begin, _MAX_WORD))
            yield term, (begin + at, begin + at + len(term.text)) if exact else (begin, end)


def list_said(message: Json) -> str:
    """List the texts of a message, and of its calls of functions."""
    calls = [f"{name} {arguments}" for _, name, arguments in read_tool_calls(message)]
    said = join_text(message.get("content"), "\n")
    return "\n".join([said, *calls]) if calls else said


def list_labels(session_id: str, metadata: Json) -> str:
    """List the words that a session is found by beside its messages: its id, and its metadata."""
    return "\n".join([session_id, *(f"{name}: {value}" for name, value in _flatten(metadata))])


def _flatten(metadata: Json) -> Iterator[tuple[str, str]]:
    for name, value in metadata.items():
        if isinstance(value, dict | list):
            yield name, encode_text(value)
        elif value is not None:
            yield name, str(value)


def _normalise(text: str) -> str:
    if text.isascii():
        return text
    return "".join(unicodedata.normalize("NFC", piece) for piece in _divide(text))


def _divide(text: str) -> Iterator[str]:
    """A text in pieces, between which nothing is joined unless very much of it is."""
    begin = 0
    while begin < len(text):
        end = begin + _PIECE_CHARACTERS
        most = min(len(text), end + _MOST_JOINED)
        while end < most and (unicodedata.combining(text[end]) or _JOINS.match(text[end])):
            end += 1
        yield text[begin:end]
        begin = end


def _make_term(word: str) -> Term | None:
    folded = _fold(word)
    if not folded:
        return None
    if _IS_DENSE.match(word) is None:
        return Term(folded[:_MAX_WORD], (folded[:_MAX_WORD],), is_dense=False)
    pairs = [folded[at : at + 2] for at in range(len(folded) - 1)]
    return Term(folded, tuple(dict.fromkeys(pairs or [folded])), is_dense=True)


def _make_keys(word: str) -> list[str]:
    folded = _fold(word)
    if not folded or word.isascii() or _IS_DENSE.match(word) is None:
        return [folded[:_MAX_WORD]] if folded else []
    # The last character by itself, so that each is the beginning of something.
    return [folded[at : at + 2] for at in range(len(folded))]


def _fold(word: str) -> str:
    """Return the form of a word that is compared: of one that stands between others its beginning, of dense scripts all
    of it."""
    if word.isascii():
        return word[:_MAX_WORD].lower()
    if _IS_DENSE.match(word):
        return _keep_letters("".join(unicodedata.normalize("NFKC", piece).casefold() for piece in _divide(word)))
    plain = unicodedata.normalize("NFKD", word[:_MAX_WORD]).casefold()
    return _keep_letters("".join(each for each in plain if not unicodedata.combining(each)))


def _keep_letters(text: str) -> str:
    return text if text.isalnum() else "".join(each for each in text if each.isalnum())


def _cut(text: str, places: Sequence[tuple[int, int]]) -> Snippet:
    places = _join_places(places)
    begin = max(0, places[0][0] - _SNIPPET_BEFORE)
    end = min(len(text), begin + _SNIPPET_CHARACTERS)
    # Line breaks and the like are one character each, so that the places stay where they are.
    shown = "".join(" " if each.isspace() else each for each in text[begin:end])
    ranges = [(at - begin, min(to, end) - begin) for at, to in places if at < end]
    return Snippet(shown, ranges)


def _join_places(places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """In order, and those that overlap as one."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(places):
        if joined and begin < joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined


# The title of a session: the name that a user gave it, or else how it began.

MAX_TITLE_CHARACTERS = 80
FIRST_MESSAGES = 20
"""Those that a title is looked for in, with every append. A history that begins otherwise has none."""

# A user who wants a longer title than these many characters of a message has named the session.
_LOOKED_AT = 400


def find_title(state: State) -> str | None:
    """`metadata.title`, or else the first line or so of what a user said first. None before that.

    It is stored with the session, and `verify` computes it again: its result for a state stays.
    """
    named = state.metadata.get("title")
    if isinstance(named, str) and (title := shorten(named)):
        return title
    for entry in islice(state.messages, FIRST_MESSAGES):
        if entry.is_question and not entry.removed:
            title = shorten(join_text(entry.shown_message.get("content"), "\n"))
            if title and title != REDACTED:
                return title
    return None


def shorten(text: str) -> str:
    """A text as one line of at most MAX_TITLE_CHARACTERS."""
    line = " ".join(text[:_LOOKED_AT].split())
    if len(line) <= MAX_TITLE_CHARACTERS:
        return line
    cut = line[: MAX_TITLE_CHARACTERS - 1]
    # At a word's end, if there is one in sight.
    at = cut.rfind(" ")
    return (cut[:at] if at > MAX_TITLE_CHARACTERS // 2 else cut).rstrip(" ,;:.-") + "…"
