"""Finding a function's arguments in what was said; nothing is made up unless a call is forced."""

import re
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from swarmkeep.engine.models.offline import patterns
from swarmkeep.engine.models.offline.patterns import SourceText
from swarmkeep.engine.models.offline.schema import (
    Parameter,
    choose_kind,
    choose_type,
    iterate_parameters,
    resolve_schema,
)
from swarmkeep.engine.models.offline.words import (
    CHAT_WORDS,
    agrees,
    find_stem,
    find_stems,
    make_word_set,
    refuses,
    split_words,
)

MAX_OBJECT_DEPTH = 3
# Of one function: to look for each takes up to some milliseconds, and references can make millions of a few.
MAX_PARAMETERS = 100
# Of one parameter.
MAX_CHOICES = 300
MAX_ANSWER_WORDS = 8

_PATTERNS: dict[str, tuple[re.Pattern[str], ...]] = {
    "email": (patterns.EMAIL,),
    "phone": (patterns.PHONE,),
    "url": (patterns.URL,),
    "id": (patterns.ID,),
    "date": (patterns.DATE,),
    "iso_date": (patterns.ISO_DATE,),
    "place": patterns.PLACES,
    "name": (patterns.NAME,),
    "body": (patterns.SAID_TEXT,),
    "subject": (patterns.SUBJECT,),
    "reason": (patterns.REASON,),
    "text": (),
}
# What an older message said is only taken up where it can hardly be something else.
_LASTING_KINDS = frozenset({"email", "phone", "url", "id", "date", "iso_date", "name"})
_FREE_TEXT_KINDS = frozenset({"text", "body", "subject", "reason"})
_ANY_SHAPE_KINDS = frozenset(_PATTERNS) - {"email", "url", "iso_date"}
_UNSPOKEN_WORDS = make_word_set(
    "id ids number numbers no code codes ref reference name is has include with want should use"
)
_LINK_PATTERN = r"(?:[\s_-]*\b(?:ids?|numbers?|no|nr|code|ref|reference|is|was|of|the|to|as)\b)*[\s_:=#.'\"-]*?"


@dataclass
class ArgumentSources:
    """The texts to find values in, the newest first; values are taken out of them as they are used."""

    latest: SourceText
    earlier: list[SourceText] = field(default_factory=list)
    instructions: SourceText = field(default_factory=lambda: SourceText(""))
    is_answer: bool = False  # the last message answers a question for missing arguments
    request: str = ""  # the words that asked for the call
    parameters_left: int = MAX_PARAMETERS

    def take_parameters(self, schema: dict[str, Any], root: dict[str, Any]) -> list[Parameter]:
        """The parameters of an object, as many as are looked at."""
        taken = list(islice(iterate_parameters(schema, root), self.parameters_left))
        self.parameters_left -= len(taken)
        return taken


def find_arguments(
    schema: dict[str, Any], sources: ArgumentSources, *, force: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """The arguments found for a parameters schema, and the names of required ones that were not.

    With `force`, nothing is missing: the user's words, zero or false stand in.
    """
    values, missing = _fill_object(resolve_schema(schema, schema), schema, sources, 1)
    if sources.is_answer and missing:
        _take_short_answer(values, missing, sources)
    if force:
        for parameter in missing:
            values[parameter.name] = _make_stand_in(parameter, schema, sources, 1)
        missing = []
    return values, [parameter.spoken_name for parameter in missing]


def _fill_object(
    schema: dict[str, Any], root: dict[str, Any], sources: ArgumentSources, depth: int
) -> tuple[dict[str, Any], list[Parameter]]:
    parameters = sources.take_parameters(schema, root)
    found: dict[str, Any] = {}
    # What is said by name comes first for all of them, so that "item 3 for user 1" fits whichever way it is declared.
    for look in (
        _find_named_now,
        _recognise_now,
        _find_named_before,
        _take_first_number,
        _recognise_before,
        _take_free_text,
    ):
        for parameter in parameters:
            if parameter.name not in found and (value := look(parameter, sources)) is not None:
                found[parameter.name] = value
    missing: list[Parameter] = []
    for parameter in parameters:
        if parameter.name in found:
            continue
        if parameter.kind == "object" and parameter.required and depth < MAX_OBJECT_DEPTH:
            found[parameter.name], inner = _fill_object(parameter.schema, root, sources, depth + 1)
            missing += inner if not inner else [parameter]
        elif parameter.kind == "array" and (items := _take_several(parameter, root, sources)):
            found[parameter.name] = items
        elif parameter.required:
            missing.append(parameter)
    return {p.name: found[p.name] for p in parameters if p.name in found}, missing


def _make_phrase_pattern(parameter: Parameter) -> str:
    words = [
        word for word in parameter.spoken_name.split() if word not in _UNSPOKEN_WORDS
    ] or parameter.spoken_name.split()
    return r"[\s_-]+".join(re.escape(word.removesuffix("s")) + "s?" for word in words)


def _find_named_now(parameter: Parameter, sources: ArgumentSources) -> Any:
    return _find_named(parameter, [sources.latest])


def _find_named_before(parameter: Parameter, sources: ArgumentSources) -> Any:
    return _find_named(parameter, [*sources.earlier, sources.instructions]) if parameter.required else None


def _find_named(parameter: Parameter, materials: list[SourceText]) -> Any:
    """A value that stands beside the parameter's own name: "order 12", "subject: hello", "3 nights"."""
    phrase = _make_phrase_pattern(parameter)
    wanted: list[str] = []
    if parameter.kind == "id":
        start = re.escape(parameter.spoken_name[:3])
        wanted = [rf"\b({start}[a-z]*[_-]?\d[\w-]*)", rf"\b{phrase}{_LINK_PATTERN}(\w*\d[\w-]*)"]
    elif parameter.kind == "number":
        wanted = [
            rf"\b{phrase}{_LINK_PATTERN}(?<![\d.])(-?\d+(?:\.\d+)?)(?![\w/-]|[.:]\d)",
            rf"(?<![\w.-])(\d+(?:\.\d+)?)\s+{phrase}\b",
        ]
    elif parameter.kind in _PATTERNS and parameter.kind not in ("email", "iso_date"):
        wanted = [rf"\b{phrase}\s*(?::|=|\bis\b|\bshould be\b)\s*[\"'“]?([^\s\"'“”.,;!?][^\"“”.,;!?\n]*)"]
    for material in materials:
        for pattern in wanted:
            if value := material.take_first(re.compile(pattern, re.IGNORECASE)):
                return _parse_number(value, parameter) if parameter.kind == "number" else value
    return None


def _recognise_now(parameter: Parameter, sources: ArgumentSources) -> Any:
    """A value known by how it looks, or by being one of the choices."""
    match parameter.kind:
        case "const":
            return parameter.schema["const"] if parameter.required else None
        case "choice":
            return _find_choice(parameter, sources)
        case "boolean":
            return _find_boolean(parameter, sources)
        case "id" if not parameter.required:
            return None
        case "place":
            looks = _choose_place_patterns(parameter)
        case _:
            looks = _PATTERNS.get(parameter.kind, ())
    value = sources.latest.take_first(*looks)
    return value.strip("\"'“”") if value else None


def _recognise_before(parameter: Parameter, sources: ArgumentSources) -> str | None:
    if not parameter.required or parameter.kind not in _LASTING_KINDS:
        return None
    looks = _PATTERNS[parameter.kind]
    return next((value for material in sources.earlier if (value := material.take_first(*looks))), None)


def _choose_place_patterns(parameter: Parameter) -> tuple[re.Pattern[str], ...]:
    words = set(parameter.spoken_name.split())
    if words & {"destination", "to", "arrival"}:
        return (patterns.DESTINATION, *patterns.PLACES)
    if words & {"origin", "from", "departure"}:
        return (patterns.ORIGIN,)
    return patterns.PLACES if parameter.required else patterns.PLACES[:1]


def _find_choices(parameter: Parameter, text: str) -> list[Any]:
    said = {find_stem(word) for word in split_words(text)}
    values = sorted(parameter.schema["enum"][:MAX_CHOICES], key=lambda value: -len(str(value)))
    return [
        value for value in values if (words := split_words(str(value))) and {find_stem(word) for word in words} <= said
    ]


def _find_choice(parameter: Parameter, sources: ArgumentSources) -> Any:
    texts = [sources.latest.whole, *(material.whole for material in sources.earlier)]
    for text in texts if parameter.required else texts[:1]:
        if values := _find_choices(parameter, text):
            return values[0]
    return None


def _find_boolean(parameter: Parameter, sources: ArgumentSources) -> bool | None:
    text = sources.latest.whole
    if sources.is_answer and parameter.required and (agrees(text) or refuses(text)):
        return agrees(text)
    words = {find_stem(word) for word in parameter.spoken_name.split() if word not in _UNSPOKEN_WORDS}
    if not words or not words <= find_stems(text):
        return None
    return not re.search(
        rf"\b(?:no|not|without|never|n't|don't)\s+(?:\w+\s+){{0,2}}{_make_phrase_pattern(parameter)}", text.lower()
    )


def _parse_number(value: str, parameter: Parameter) -> int | float | None:
    number = float(value.replace(",", ""))
    if number.is_integer():
        return int(number)
    return None if choose_type(parameter.schema) == "integer" else number


def _take_first_number(parameter: Parameter, sources: ArgumentSources) -> int | float | str | None:
    """Any number at all, where one is needed."""
    if not parameter.required or parameter.kind not in ("number", "id"):
        return None
    if value := sources.latest.take_first(patterns.NUMBER):
        return value if parameter.kind == "id" else _parse_number(value, parameter)
    if parameter.kind == "number" and (value := sources.latest.take_first(patterns.NUMBER_WORD)):
        return patterns.NUMBER_WORDS[value.lower()]
    return None


def _take_free_text(parameter: Parameter, sources: ArgumentSources) -> str | None:
    """For free text: what stands in quotes, or else the words that asked for the call."""
    if not parameter.required or parameter.kind not in (*_FREE_TEXT_KINDS, "name", "place"):
        return None
    if value := sources.latest.take_first(patterns.QUOTED):
        return value
    return sources.request.strip() or None if parameter.kind in _FREE_TEXT_KINDS else None


def _take_several(parameter: Parameter, root: dict[str, Any], sources: ArgumentSources) -> list[Any]:
    items = resolve_schema(parameter.schema.get("items"), root)
    kind = choose_kind(parameter.name, items)
    if kind == "choice":
        return _find_choices(Parameter(parameter.name, kind, items, True), sources.latest.whole)
    if not parameter.required:
        return []
    one = Parameter(parameter.name, kind, items, True)
    if kind == "number":
        numbers = (_parse_number(value, one) for value in sources.latest.take_all(patterns.NUMBER))
        return [number for number in numbers if number is not None]
    for look in (*_PATTERNS.get(kind, ()), *((patterns.NUMBER,) if kind == "id" else ()), patterns.QUOTED):
        if values := sources.latest.take_all(look):
            return values
    return [sources.request] if kind in _FREE_TEXT_KINDS and sources.request else []


def _take_short_answer(values: dict[str, Any], missing: list[Parameter], sources: ArgumentSources) -> None:
    """Take a short answer as it stands: for the one text that was asked for, or part by part for several."""
    answer = patterns.strip_answer(sources.latest.remaining)
    if not answer or refuses(sources.latest.whole) or all(word in CHAT_WORDS for word in split_words(answer)):
        return
    parts = [part for part in re.split(r"\s*[,;\n]\s*|\s+and\s+", answer) if part] if len(missing) > 1 else [answer]
    for parameter, part in zip(list(missing), parts, strict=False):
        if parameter.kind in _ANY_SHAPE_KINDS and len(part.split()) <= MAX_ANSWER_WORDS:
            values[parameter.name] = part
            missing.remove(parameter)


def _make_stand_in(parameter: Parameter, root: dict[str, Any], sources: ArgumentSources, depth: int) -> Any:
    match parameter.kind:
        case "choice":
            return parameter.schema["enum"][0]
        case "number":
            return 0
        case "boolean":
            return False
        case "iso_date":
            return "1970-01-01"
        case "array":
            return []
        case "const":
            return parameter.schema["const"]
        case "object":
            inner = sources.take_parameters(parameter.schema, root) if depth < MAX_OBJECT_DEPTH else ()
            return {one.name: _make_stand_in(one, root, sources, depth + 1) for one in inner if one.required}
    return sources.request.strip() or "unknown"
