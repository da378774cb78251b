"""Secrets of this process's environment: taken out of everything that models and tools send back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar
from urllib.parse import unquote

T = TypeVar("T")

REMOVED = "[secret removed]"

# What is shorter stands in too many texts that have nothing to do with it.
_SHORTEST = 8
_SECRET_NAMES = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)
# Headers for a collector of traces: `name=value,name=value`, percent-encoded.
_HEADER_NAMES = re.compile(r"OTEL_EXPORTER_OTLP_(\w+_)?HEADERS")
_PASSWORD_IN_URL = re.compile(r"://(?:[^/?#@\s:]*:([^/?#@\s]+)@|[^\s#?]*\?(?:[^\s#]*&)?password=([^&#\s]+))")


class Secrets:
    """Texts that must not be recorded, logged or shown."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        written = {form for text in texts if len(text) >= _SHORTEST for form in _list_forms(text)}
        # The longest first, so that one that is part of another does not leave the rest of that.
        found = sorted(written, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, found))) if found else None

    def mask(self, value: T) -> T:
        """The same JSON value, each secret in its texts and keys replaced; the very value if there is none."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self._pattern.sub(REMOVED, value)  # type: ignore[return-value]
        if isinstance(value, list):
            return [self.mask(item) for item in value]  # type: ignore[return-value]
        if isinstance(value, dict):
            return {self.mask(key): self.mask(item) for key, item in value.items()}  # type: ignore[return-value]
        return value

    def mask_content(self, content: bytes) -> bytes:
        """A file without secrets, if it is text in UTF-8; any other as it is, which a change would break."""
        if self._pattern is None:
            return content
        try:
            return self._pattern.sub(REMOVED, content.decode()).encode()
        except UnicodeDecodeError:
            return content


NO_SECRETS = Secrets()


def _list_forms(text: str) -> set[str]:
    """A text as it is, and as it stands in JSON, which calls' arguments and many results are, or in what Python prints:
    a key of several lines looks otherwise there."""
    # Files end with a line break, which does not always come along.
    plain = {text, text.strip()} if len(text.strip()) >= _SHORTEST else {text}
    quoted = (form for each in plain for form in (json.dumps(each), json.dumps(each, ensure_ascii=False), repr(each)))
    return {*plain, *(form[1:-1] for form in quoted)}


def find_secrets(environment: Mapping[str, str], *more: str | None) -> Secrets:
    """The values of variables that are named like secrets, the passwords in those that hold URLs, the values of headers
    for a collector of traces, and `more` texts."""
    named = [value for name, value in environment.items() if _SECRET_NAMES.search(name)]
    texts = [*environment.values(), *(text for text in more if text)]
    headers = [
        value for name, text in environment.items() if _HEADER_NAMES.fullmatch(name) for value in _read_headers(text)
    ]
    passwords = ["".join(found) for text in texts for found in _PASSWORD_IN_URL.findall(text)]
    passwords += [unquote(password) for password in passwords]
    return Secrets([*named, *(text for text in more if text and "://" not in text), *passwords, *headers])


def _read_headers(text: str) -> list[str]:
    """The values of headers, as they are written and as they are sent; of `Bearer abc`, `abc` as well."""
    written = [value.strip() for _, _, value in (pair.partition("=") for pair in text.split(","))]
    sent = [unquote(value) for value in written]
    return [*written, *sent, *(value.rpartition(" ")[2] for value in sent)]
