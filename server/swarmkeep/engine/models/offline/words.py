"""Words as the offline model compares them: folded, lightly stemmed, with a few synonyms."""

import re
import unicodedata
from functools import lru_cache


def make_word_set(words: str) -> frozenset[str]:
    """A vocabulary, written as words with spaces between them."""
    return frozenset(words.split())


# Nobody's question turns on these; they are dropped before anything is compared.
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
    """How much a stem says about what is meant."""
    return 0.25 if word in GENERIC_STEMS else 1.0


def says_nothing_else(text: str, vocabulary: frozenset[str]) -> bool:
    """Whether every word of a text is a stop word or from the vocabulary, and at least one is the latter."""
    words = split_words(text)
    return any(word in vocabulary for word in words) and all(word in vocabulary or word in STOP_WORDS for word in words)


def agrees(text: str) -> bool:
    return says_nothing_else(text, AGREEING_WORDS)


def refuses(text: str) -> bool:
    """Whether the text begins by declining, or by calling off what was asked before."""
    words = split_words(text)
    return bool(words) and words[0] in REFUSING_WORDS


def is_small_talk(text: str) -> bool:
    """Whether nothing in the text asks for anything."""
    return all(word in STOP_WORDS or word in CHAT_WORDS or word in GENERIC_WORDS for word in split_words(text))


def spell_out(name: str) -> str:
    """A function's or parameter's name as it would be said: `item_id` is "item id"."""
    return " ".join(_WORD.findall(_CAMEL.sub(" ", name))).lower() or name
