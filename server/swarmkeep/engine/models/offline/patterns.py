"""How values look in what people write: ids, numbers, dates, addresses, places, and what stands in quotes."""

import re

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
