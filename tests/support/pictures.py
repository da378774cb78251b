"""Pictures and other files, and the content parts that bring them."""

from __future__ import annotations

import base64
import hashlib
import random
from typing import Any

PNG = b"\x89PNG\r\n\x1a\n"


def make_png(size: int, seed: int = 0) -> bytes:
    """Bytes that begin like a picture, and do not compress."""
    return PNG + random.Random(seed).randbytes(size - len(PNG))


def hash_content(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def encode_content(content: bytes) -> str:
    return base64.b64encode(content).decode()


def make_data_url(content: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{encode_content(content)}"


def make_inline_picture(content: bytes, media_type: str = "image/png", **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": make_data_url(content, media_type), **more}}


def make_inline_audio(content: bytes, form: str = "wav") -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": encode_content(content), "format": form}}


def make_inline_file(content: bytes, name: str = "a.pdf", media_type: str = "application/pdf") -> dict[str, Any]:
    return {"type": "file", "file": {"file_data": make_data_url(content, media_type), "filename": name}}


def make_message(*parts: Any, text: str = "What is this?") -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}, *parts]}
