"""Labels: digests of metadata entries, by which the session list is filtered."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from swarmkeep.domain.codec import encode, encode_text


def label_of(key: str, text: str) -> bytes:
    """The label of a metadata key whose value reads as `text`. Labels are compared, never read back."""
    return hashlib.sha256(encode(key) + b"\0" + text.encode("utf-8", "surrogatepass")).digest()


def labels_of(metadata: Mapping[str, Any]) -> list[bytes]:
    """One label per top-level value: text as it is, anything else as its JSON."""
    return [label_of(key, value if isinstance(value, str) else encode_text(value)) for key, value in metadata.items()]
