"""Words as the offline model compares them: folded, lightly stemmed, with a few synonyms."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any


def make_word_set(words: str) -> frozenset[str]:
    """A vocabulary, written as words with spaces between them."""
    return frozenset(words.split())


# No question turns on these; they are dropped before anything is compared.
STOP_WORDS = make_word_set(
    """a an the this that these those i me my mine we us our you your he she it its they them their is am are was were
    be been being do does did doing have has had having will would can could shall should may might must not no and or
    but if then than so as at by for from in into of off on onto out over to up with about against between through
    during before after above below again here there when where which who whom what why how all any both each few more
    most other some such only own same too very just also please lets let d ll m re s t ve don didn isn"""
)

# Words that function names and descriptions are full of: they count, but a quarter as much.
GENERIC_WORDS = make_word_set(
    """get call calls function tool user users agent agents customer client transfer handoff hand use using used need
    needs want wants like help make sure take takes input argument arguments format based given give return returns
    value string id ids ask asks asking current new immediately information info tell show know talk speak thing
    things something anything handle handled topic instance example"""
)

# What people say to be polite, to agree or to close; a message of nothing else asks for nothing.
CHAT_WORDS = make_word_set(
    """hi hello hey good morning afternoon evening day thanks thank bye goodbye ok okay cool great nice fine perfect
    yes yep yeah sure right correct absolutely go ahead confirm confirmed no nope nah well welcome ciao"""
)

AGREEING_WORDS = make_word_set(
    "yes yep yeah sure ok okay correct absolutely confirm confirmed right go ahead please si oui ja"
)
REFUSING_WORDS = make_word_set("no nope nah never stop forget nevermind")

_SYNONYM_GROUPS = (
    "refund reimburse reimbursement moneyback return",
    "buy purchase order",
    "buy purchase sale sell price cost shop",
    "cancel cancellation abort",
    "change modify modification reschedule rebook update edit",
    "lost lose missing",
    "baggage luggage suitcase bag bags",
    "weather forecast temperature rain raining rainy sunny snow snowing wind windy umbrella degrees",
    "email mail",
    "human person representative manager supervisor escalate",
    "issue problem repair broken broke defect defective fault complaint",
    "ticket issue problem bug complaint",
    "discount coupon promo promotion cheaper expensive",
    "status track tracking progress",
    "bill billing invoice payment charge pay",
    "search find look lookup query",
    "doc docs documentation faq article guide",
    "notify inform alert",
    "credit voucher",
    "delivery deliver shipping shipment ship",
    "account profile",
    "spanish espanol hola gracias quiero necesito habla hablas buenos buenas dias como estas por favor",
)

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD = re.compile(r"[^\W_]+")
_PHRASES = ((re.compile(r"\bmoney\s+back\b"), "moneyback"), (re.compile(r"\blook(?:ing)?\s+up\b"), "lookup"))
_SUFFIXES = (
    ("ations", ""),
    ("ation", ""),
    ("ies", "y"),
    ("ings", ""),
    ("ing", ""),
    ("ed", ""),
    ("es", ""),
    ("s", ""),
    ("e", ""),
)


def split_words(text: str) -> list[str]:
    """The words of a text in order, folded but whole; `snake_case` and `camelCase` fall apart into theirs."""
    folded = unicodedata.normalize("NFKD", _CAMEL.sub(" ", text)).casefold()
    folded = "".join(c for c in folded if not unicodedata.combining(c)) if not folded.isascii() else folded
    for phrase, word in _PHRASES:
        folded = phrase.sub(word, folded)
    return _WORD.findall(folded)


@lru_cache(maxsize=4096)
def find_stem(word: str) -> str:
    """The word without the endings that English grammar adds; never shorter than three letters."""
    for suffix, ending in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) + len(ending) >= 3:
            word = word[: len(word) - len(suffix)] + ending
            break
    if len(word) > 3 and word[-1] == word[-2]:
        word = word[:-1]
    return word


@lru_cache(maxsize=512)
def find_stems(text: str) -> frozenset[str]:
    """The stems of a text's words, stop words left out."""
    return frozenset(find_stem(word) for word in split_words(text) if word not in STOP_WORDS)


GENERIC_STEMS = frozenset(find_stem(word) for word in GENERIC_WORDS)


def _build_synonyms() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for group in _SYNONYM_GROUPS:
        members = {find_stem(word) for word in group.split()}
        for member in members:
            found.setdefault(member, set()).update(members - {member})
    return {word: frozenset(others) for word, others in found.items()}


SYNONYMS = _build_synonyms()


def weigh_stem(word: str) -> float:
    """Weigh how much a stem says about the meaning."""
    return 0.25 if word in GENERIC_STEMS else 1.0


def says_nothing_else(text: str, vocabulary: frozenset[str]) -> bool:
    """Tell if every word of a text is a stop word or from the vocabulary, and at least one is the latter."""
    words = split_words(text)
    return any(word in vocabulary for word in words) and all(word in vocabulary or word in STOP_WORDS for word in words)


def agrees(text: str) -> bool:
    return says_nothing_else(text, AGREEING_WORDS)


def refuses(text: str) -> bool:
    """Tell if the text begins by declining, or by calling off what was asked before."""
    words = split_words(text)
    return bool(words) and words[0] in REFUSING_WORDS


def is_small_talk(text: str) -> bool:
    """Tell if nothing in the text asks for anything."""
    return all(word in STOP_WORDS or word in CHAT_WORDS or word in GENERIC_WORDS for word in split_words(text))


def spell_out(name: str) -> str:
    """A function's or parameter's name as it would be said: `item_id` is "item id"."""
    return " ".join(_WORD.findall(_CAMEL.sub(" ", name))).lower() or name


# The part of JSON Schema that function parameters use, reduced to what a value should look like.

MAX_REFERENCES = 8

# By the words of a parameter's name; the first kind that has one of them.
_KINDS: tuple[tuple[str, frozenset[str]], ...] = (
    ("email", frozenset({"email", "mail", "recipient", "recipients"})),
    ("phone", frozenset({"phone", "telephone", "mobile"})),
    ("url", frozenset({"url", "link", "website"})),
    ("id", frozenset({"id", "ids", "number", "numbers", "code", "codes", "reference", "ref", "sku", "order", "pnr"})),
    ("date", frozenset({"date", "dates", "day", "time", "when", "deadline", "birthday"})),
    (
        "place",
        frozenset({"city", "cities", "location", "locations", "place", "country", "destination", "origin", "town"}),
    ),
    ("name", frozenset({"name", "username"})),
    ("body", frozenset({"message", "body", "text", "content", "comment", "note", "notes"})),
    ("subject", frozenset({"subject", "topic", "title"})),
    ("reason", frozenset({"reason", "cause", "why"})),
)


@dataclass(frozen=True)
class Parameter:
    """One parameter: its name, what kind of value it wants, and whether the call can do without."""

    name: str
    kind: str
    schema: dict[str, Any]
    required: bool

    @property
    def spoken_name(self) -> str:
        return spell_out(self.name)


def resolve_schema(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    """The schema behind local references, single `allOf`s and "or null"; {} where there is none."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, dict):
            return {}
        reference = schema.get("$ref")
        if isinstance(reference, str):
            schema = _look_up(reference, root)
        elif isinstance(options := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"), list):
            schema = next((option for option in options if option != {"type": "null"}), {})
        else:
            return schema
    return {}


def _look_up(reference: str, root: dict[str, Any]) -> Any:
    found: Any = root
    for step in reference.removeprefix("#/").split("/"):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def choose_type(schema: dict[str, Any]) -> str:
    """The JSON type a value should have; a string where the schema leaves it open."""
    wanted = schema.get("type", "string")
    if isinstance(wanted, list):
        wanted = next((one for one in wanted if one != "null"), "string")
    if "properties" in schema:
        return "object"
    return wanted if wanted in ("integer", "number", "boolean", "array", "object") else "string"


def list_choices(schema: dict[str, Any]) -> list[Any]:
    """The values an `enum` allows; none where there is no `enum`."""
    choices = schema.get("enum")
    return choices if isinstance(choices, list) else []


def choose_kind(name: str, schema: dict[str, Any]) -> str:
    """The kind of value to look for: a choice, a JSON type other than string, or a sort of text such as "email"."""
    if "const" in schema:
        return "const"
    if list_choices(schema):
        return "choice"
    if (wanted := choose_type(schema)) != "string":
        return "number" if wanted == "integer" else wanted
    match schema.get("format"):
        case "date" | "date-time":
            return "iso_date"
        case "email":
            return "email"
        case "uri":
            return "url"
    words = set(spell_out(name).split())
    return next((kind for kind, known in _KINDS if words & known), "text")


def iterate_parameters(schema: dict[str, Any], root: dict[str, Any]) -> Iterator[Parameter]:
    """The parameters that an object schema declares, in its order."""
    properties = schema.get("properties")
    required = schema.get("required")
    for name, declared in properties.items() if isinstance(properties, dict) else ():
        found = resolve_schema(declared, root)
        yield Parameter(name, choose_kind(name, found), found, isinstance(required, list) and name in required)


# Recognize values in people's texts: ids, numbers, dates, addresses, places, and what stands in quotes.

EMAIL = re.compile(r"([\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+)")
URL = re.compile(r"(https?://[^\s<>\"']+[^\s<>\"'.,;:!?)])")
PHONE = re.compile(r"(?<![\w-])(\+?\d[\d ()/-]{5,18}\d)(?!\w)")
QUOTED = re.compile(r"\"([^\"\n]+)\"|“([^”\n]+)”|«([^»\n]+)»|`([^`\n]+)`|(?<!\w)'([^'\n]+)'(?!\w)")

# ORD-123, item_99, A17, #123: letters and digits together, or a number after a hash sign.
ID = re.compile(r"#(\w[\w-]*)|(?<![\w@.])([A-Za-z]+[_-][\w-]*\d[\w-]*|[A-Za-z]{1,6}\d[\w-]*|\d+[A-Z][\w-]*)(?![@\w])")
NUMBER = re.compile(r"(?<![\w.\-/:])(-?\d+(?:,\d{3})*(?:\.\d+)?)(?![\w/-]|[.:,]\d)")
_NUMBER_NAMES = "zero one two three four five six seven eight nine ten eleven twelve"
NUMBER_WORDS = {word: number for number, word in enumerate(_NUMBER_NAMES.split(" "))}
NUMBER_WORD = re.compile(rf"\b({'|'.join(NUMBER_WORDS)})\b", re.IGNORECASE)

_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_WEEKDAY = r"(?:mon|tues|wednes|thurs|fri|satur|sun)day"
_ISO = r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?(?:Z|[+-]\d{2}:?\d{2})?)?"
ISO_DATE = re.compile(rf"(?<!\d)({_ISO})(?!\d)")
DATE = re.compile(
    rf"(?<!\d)({_ISO}|\d{{1,2}}[./]\d{{1,2}}[./]\d{{2,4}})(?!\d)"
    rf"|\b({_MONTH}\s+\d{{1,2}}(?:st|nd|rd|th)?(?:,?\s+\d{{4}})?)\b"
    rf"|\b(\d{{1,2}}(?:st|nd|rd|th)?\s+(?:of\s+)?{_MONTH}(?:\s+\d{{4}})?)(?!\w)"
    rf"|\b((?:next|this|last)\s+(?:week|month|year|{_WEEKDAY})|{_WEEKDAY}|today|tonight|tomorrow|yesterday)\b"
    r"|\b(\d{1,2}(?::\d{2})?\s?[ap]m|\d{1,2}:\d{2})\b",
    re.IGNORECASE,
)

# A word that begins with a capital (no digit, underscore or lower-case letter), but "I".
_CAPITAL = r"(?!I['’])[^\W\d_a-z][\w'’-]+(?:\.(?=\s[A-Z]))?"
_PLACE_NAME = rf"({_CAPITAL}(?:[ -]{_CAPITAL})*(?:,\s{_CAPITAL})?)"
_PLACE_END = r"(?=\s*(?:[.,;:?!]|$|\b(?:today|tomorrow|now|tonight|right|please|on|this|next|and|like)\b))"
PLACES = (
    re.compile(rf"\b(?:in|at|near|around|for|of)\s+(?:the\s+)?{_PLACE_NAME}"),
    re.compile(rf"\b(?:in|at|near|for)\s+(?:the\s+)?([a-z][a-z' -]{{1,30}}?){_PLACE_END}"),
    re.compile(rf"(?<=\w[ ,]){_PLACE_NAME}"),
)
DESTINATION = re.compile(rf"\bto\s+{_PLACE_NAME}")
ORIGIN = re.compile(rf"\bfrom\s+{_PLACE_NAME}")
NAME = re.compile(rf"\b(?:[Mm]y name is|[Ii] am|I'm|[Cc]alled|[Nn]amed|[Tt]his is)\s+({_CAPITAL}(?: {_CAPITAL})*)")

SAID_TEXT = re.compile(
    r"\b(?:saying|says?|that reads|with the (?:text|message|body|words))\s*(?:that\s+)?[:,]?\s*(\S.*)", re.DOTALL
)
SUBJECT = re.compile(
    r"\b(?:about|regarding|concerning|on the subject of)\s+(\S[^.?!\n]*?)(?=\s+(?:saying|that says|to)\b|[.?!\n]|$)"
)
REASON = re.compile(r"\b(?:because(?: of)?|since|due to|as it|the reason is(?: that)?)\s+(\S[^.!?\n]*)", re.IGNORECASE)

_OPENING = re.compile(
    r"^(?:yes|ok|okay|sure|well|please|it's|it is|it was|that's|that is|i think|use|take|make it|the|my)[\s,.!:]+",
    re.IGNORECASE,
)
_IS = re.compile(r"^[\w ]{1,40}?\s(?:is|are)\s+(?=\S)", re.IGNORECASE)


class SourceText:
    """A text that arguments are taken from; what was taken is blanked out, so that no two arguments share it."""

    def __init__(self, text: str) -> None:
        self.whole = text
        self.remaining = text

    def take_first(self, *looks: re.Pattern[str]) -> str | None:
        """The text that the first pattern found captures, or None; the whole match is used up."""
        for look in looks:
            if match := look.search(self.remaining):
                start, end = match.span()
                self.remaining = self.remaining[:start] + " " * (end - start) + self.remaining[end:]
                return next(group for group in match.groups() if group is not None).strip()
        return None

    def take_all(self, look: re.Pattern[str]) -> list[str]:
        values: list[str] = []
        while (value := self.take_first(look)) is not None:
            values.append(value)
        return values


def strip_answer(text: str) -> str:
    """The rest of an answer to "which one?" without its opening: "it's blue." is "blue"."""
    text = text.strip().rstrip(" .,;:!?")
    while match := _OPENING.match(text):
        text = text[match.end() :]
    return _IS.sub("", text, count=1).strip()
