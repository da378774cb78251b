"""How a model wants to be asked: the few things in which servers of Chat Completions differ."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from swarmkeep.agent.values import quote

# The first of each is what holds for a model of which nothing is known.
PROFILE_FIELDS: dict[str, tuple[str, ...]] = {
    "parallel_tool_calls": ("send", "omit"),
    "stream_options": ("send", "omit"),
    "tokens_parameter": ("as_given", "max_tokens", "max_completion_tokens"),
    "system_messages": ("anywhere", "one_leading"),
    "developer_role": ("developer", "system"),
    "content_parts": ("parts", "text"),
    "attachments": ("send_back", "omit"),
    "missing_attachments": ("omit", "signature", "reasoning"),
}
_MOST_PATTERNS = 100
_MAX_PATTERN = 200


class ModelProfileError(ValueError):
    """A model profile cannot be like this. `name` is the field, if it is about one."""

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


def check_model_profile(value: object, label: str = "model_profile") -> dict[str, str]:
    """Return a copy of a profile's fields. Raises ModelProfileError, naming what is wrong."""
    if not isinstance(value, dict):
        raise ModelProfileError(f"{label} must be an object (a dict), not a {type(value).__name__}")
    for name, choice in value.items():
        choices = PROFILE_FIELDS.get(name) if isinstance(name, str) else None
        if choices is None:
            raise ModelProfileError(f"{label} has no field {quote(str(name))}; it has {', '.join(PROFILE_FIELDS)}")
        if choice not in choices:
            raise ModelProfileError(f"{label}.{name} must be one of {', '.join(choices)}", name)
    return dict(value)


def check_profile_setting(value: object, label: str = "model_profile") -> dict[str, Any]:
    """Return a copy of the profiles of a server's models: fields that hold for all of them, and objects of fields under
    patterns of model names, such as `qwen*`. Raises ModelProfileError."""
    if not isinstance(value, dict):
        raise ModelProfileError(f"{label} must be an object, not a {type(value).__name__}")
    patterns = {name: fields for name, fields in value.items() if isinstance(fields, dict)}
    if len(patterns) > _MOST_PATTERNS or any(len(name) > _MAX_PATTERN for name in patterns):
        raise ModelProfileError(
            f"{label} may have {_MOST_PATTERNS} patterns of model names, of {_MAX_PATTERN} characters each"
        )
    common = check_model_profile({name: item for name, item in value.items() if name not in patterns}, label)
    return {**common, **{name: check_model_profile(item, f"{label}[{quote(name)}]") for name, item in patterns.items()}}


def choose_fields(setting: dict[str, Any], model: str) -> dict[str, str]:
    """Return what a server's profiles say of a model; the last pattern that fits its name counts. Total."""
    chosen: dict[str, str] = {name: value for name, value in setting.items() if isinstance(value, str)}
    for pattern, fields in setting.items():
        if isinstance(fields, dict) and fnmatchcase(model.lower()[:_MAX_PATTERN], pattern.lower()):
            chosen |= fields
    return chosen
