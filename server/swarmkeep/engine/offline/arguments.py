"""Finding a function's arguments in what was said; nothing is made up unless a call is forced."""

import re
from dataclasses import dataclass, field
from typing import Any

from swarmkeep.engine.offline import patterns
from swarmkeep.engine.offline.patterns import Material
from swarmkeep.engine.offline.schema import Parameter, kind_of, parameters_of, resolve, type_of
from swarmkeep.engine.offline.words import CHAT, agrees, raw_words, refuses, stem, stems, word_set

DEEPEST_OBJECT = 3
LONGEST_ANSWER_WORDS = 8

_LOOKS: dict[str, tuple[re.Pattern[str], ...]] = {
    "email": (patterns.EMAIL,),
    "phone": (patterns.PHONE,),
    "url": (patterns.URL,),
    "id": (patterns.ID,),
    "date": (patterns.DATE,),
    "iso_date": (patterns.ISO_DATE,),
    "place": patterns.PLACES,
    "name": (patterns.NAME,),
    "body": (patterns.SAYING,),
    "subject": (patterns.ABOUT,),
    "reason": (patterns.BECAUSE,),
    "text": (),
}
# What an older message said is only taken up where it can hardly be something else.
_LASTING = frozenset({"email", "phone", "url", "id", "date", "iso_date", "name"})
_FREE = frozenset({"text", "body", "subject", "reason"})
_ANY_SHAPE = frozenset(_LOOKS) - {"email", "url", "iso_date"}
_UNSAID = word_set("id ids number numbers no code codes ref reference name is has include with want should use")
_LINK = r"(?:[\s_-]*\b(?:ids?|numbers?|no|nr|code|ref|reference|is|was|of|the|to|as)\b)*[\s_:=#.'\"-]*?"


@dataclass
class Sources:
    """What has been said, the newest first; values are taken out of it as they are used."""

    now: Material
    before: list[Material] = field(default_factory=list)
    instructions: Material = field(default_factory=lambda: Material(""))
    answering: bool = False  # the last message answers a question for missing arguments
    request: str = ""  # the words that asked for the call


def arguments(schema: dict[str, Any], sources: Sources, *, force: bool = False) -> tuple[dict[str, Any], list[str]]:
    """The arguments found for a parameters schema, and the names of required ones that were not.

    With `force`, nothing is missing: the user's words, zero or false stand in.
    """
    values, missing = _fill(resolve(schema, schema), schema, sources, 1)
    if sources.answering and missing:
        _take_the_answer(values, missing, sources)
    if force:
        for parameter in missing:
            values[parameter.name] = _stand_in(parameter, sources)
        missing = []
    return values, [parameter.spoken for parameter in missing]


def _fill(
    schema: dict[str, Any], root: dict[str, Any], sources: Sources, depth: int
) -> tuple[dict[str, Any], list[Parameter]]:
    parameters = list(parameters_of(schema, root))
    found: dict[str, Any] = {}
    # What is said by name comes first for all of them, so that "item 3 for user 1" fits whichever way it is declared.
    for look in (_named_now, _recognised_now, _named_before, _first_number, _recognised_before, _own_words):
        for parameter in parameters:
            if parameter.name not in found and (value := look(parameter, sources)) is not None:
                found[parameter.name] = value
    missing: list[Parameter] = []
    for parameter in parameters:
        if parameter.name in found:
            continue
        if parameter.kind == "object" and parameter.required and depth < DEEPEST_OBJECT:
            found[parameter.name], inner = _fill(parameter.schema, root, sources, depth + 1)
            missing += inner if not inner else [parameter]
        elif parameter.kind == "array" and (items := _several(parameter, root, sources)):
            found[parameter.name] = items
        elif parameter.required:
            missing.append(parameter)
    return {p.name: found[p.name] for p in parameters if p.name in found}, missing


def _phrase(parameter: Parameter) -> str:
    words = [word for word in parameter.spoken.split() if word not in _UNSAID] or parameter.spoken.split()
    return r"[\s_-]+".join(re.escape(word.removesuffix("s")) + "s?" for word in words)


def _named_now(parameter: Parameter, sources: Sources) -> Any:
    return _named(parameter, [sources.now])


def _named_before(parameter: Parameter, sources: Sources) -> Any:
    return _named(parameter, [*sources.before, sources.instructions]) if parameter.required else None


def _named(parameter: Parameter, materials: list[Material]) -> Any:
    """A value that stands beside the parameter's own name: "order 12", "subject: hello", "3 nights"."""
    phrase = _phrase(parameter)
    wanted: list[str] = []
    if parameter.kind == "id":
        start = re.escape(parameter.spoken[:3])
        wanted = [rf"\b({start}[a-z]*[_-]?\d[\w-]*)", rf"\b{phrase}{_LINK}(\w*\d[\w-]*)"]
    elif parameter.kind == "number":
        wanted = [
            rf"\b{phrase}{_LINK}(?<![\d.])(-?\d+(?:\.\d+)?)(?![\w/-]|[.:]\d)",
            rf"(?<![\w.-])(\d+(?:\.\d+)?)\s+{phrase}\b",
        ]
    elif parameter.kind in _LOOKS and parameter.kind not in ("email", "iso_date"):
        wanted = [rf"\b{phrase}\s*(?::|=|\bis\b|\bshould be\b)\s*[\"'“]?([^\s\"'“”.,;!?][^\"“”.,;!?\n]*)"]
    for material in materials:
        for pattern in wanted:
            if value := material.take(re.compile(pattern, re.IGNORECASE)):
                return _number(value, parameter) if parameter.kind == "number" else value
    return None


def _recognised_now(parameter: Parameter, sources: Sources) -> Any:
    """A value known by how it looks, or by being one of the choices."""
    match parameter.kind:
        case "const":
            return parameter.schema["const"] if parameter.required else None
        case "choice":
            return _choice(parameter, sources)
        case "boolean":
            return _boolean(parameter, sources)
        case "id" if not parameter.required:
            return None
        case "place":
            looks = _place_looks(parameter)
        case _:
            looks = _LOOKS.get(parameter.kind, ())
    value = sources.now.take(*looks)
    return value.strip("\"'“”") if value else None


def _recognised_before(parameter: Parameter, sources: Sources) -> str | None:
    if not parameter.required or parameter.kind not in _LASTING:
        return None
    looks = _LOOKS[parameter.kind]
    return next((value for material in sources.before if (value := material.take(*looks))), None)


def _place_looks(parameter: Parameter) -> tuple[re.Pattern[str], ...]:
    words = set(parameter.spoken.split())
    if words & {"destination", "to", "arrival"}:
        return (patterns.GOING_TO, *patterns.PLACES)
    if words & {"origin", "from", "departure"}:
        return (patterns.COMING_FROM,)
    return patterns.PLACES if parameter.required else patterns.PLACES[:1]


def _choices(parameter: Parameter, text: str) -> list[Any]:
    said = {stem(word) for word in raw_words(text)}
    values = sorted(parameter.schema["enum"], key=lambda value: -len(str(value)))
    return [value for value in values if (words := raw_words(str(value))) and {stem(word) for word in words} <= said]


def _choice(parameter: Parameter, sources: Sources) -> Any:
    texts = [sources.now.whole, *(material.whole for material in sources.before)]
    for text in texts if parameter.required else texts[:1]:
        if values := _choices(parameter, text):
            return values[0]
    return None


def _boolean(parameter: Parameter, sources: Sources) -> bool | None:
    text = sources.now.whole
    if sources.answering and parameter.required and (agrees(text) or refuses(text)):
        return agrees(text)
    words = {stem(word) for word in parameter.spoken.split() if word not in _UNSAID}
    if not words or not words <= stems(text):
        return None
    return not re.search(rf"\b(?:no|not|without|never|n't|don't)\s+(?:\w+\s+){{0,2}}{_phrase(parameter)}", text.lower())


def _number(value: str, parameter: Parameter) -> int | float | None:
    number = float(value.replace(",", ""))
    if number.is_integer():
        return int(number)
    return None if type_of(parameter.schema) == "integer" else number


def _first_number(parameter: Parameter, sources: Sources) -> int | float | str | None:
    """Any number at all, where one is needed."""
    if not parameter.required or parameter.kind not in ("number", "id"):
        return None
    if value := sources.now.take(patterns.NUMBER):
        return value if parameter.kind == "id" else _number(value, parameter)
    if parameter.kind == "number" and (value := sources.now.take(patterns.NUMBER_WORD)):
        return patterns.NUMBER_WORDS[value.lower()]
    return None


def _own_words(parameter: Parameter, sources: Sources) -> str | None:
    """For free text: what stands in quotes, or else the words that asked for the call."""
    if not parameter.required or parameter.kind not in (*_FREE, "name", "place"):
        return None
    if value := sources.now.take(patterns.QUOTED):
        return value
    return sources.request.strip() or None if parameter.kind in _FREE else None


def _several(parameter: Parameter, root: dict[str, Any], sources: Sources) -> list[Any]:
    items = resolve(parameter.schema.get("items"), root)
    kind = kind_of(parameter.name, items)
    if kind == "choice":
        return _choices(Parameter(parameter.name, kind, items, True), sources.now.whole)
    if not parameter.required:
        return []
    one = Parameter(parameter.name, kind, items, True)
    if kind == "number":
        numbers = (_number(value, one) for value in sources.now.take_all(patterns.NUMBER))
        return [number for number in numbers if number is not None]
    for look in (*_LOOKS.get(kind, ()), *((patterns.NUMBER,) if kind == "id" else ()), patterns.QUOTED):
        if values := sources.now.take_all(look):
            return values
    return [sources.request] if kind in _FREE and sources.request else []


def _take_the_answer(values: dict[str, Any], missing: list[Parameter], sources: Sources) -> None:
    """Take a short answer as it stands: for the one text that was asked for, or part by part for several."""
    answer = patterns.bare_answer(sources.now.left)
    if not answer or refuses(sources.now.whole) or all(word in CHAT for word in raw_words(answer)):
        return
    parts = [part for part in re.split(r"\s*[,;\n]\s*|\s+and\s+", answer) if part] if len(missing) > 1 else [answer]
    for parameter, part in zip(list(missing), parts, strict=False):
        if parameter.kind in _ANY_SHAPE and len(part.split()) <= LONGEST_ANSWER_WORDS:
            values[parameter.name] = part
            missing.remove(parameter)


def _stand_in(parameter: Parameter, sources: Sources) -> Any:
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
        case "object":
            return {}
    return sources.request.strip() or "unknown"
