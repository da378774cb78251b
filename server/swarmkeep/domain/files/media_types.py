"""What the first bytes of a file say that it is."""

from __future__ import annotations

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"\xff\xf2", "audio/mpeg"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"\x7fELF", "application/x-executable"),
    (b"MZ", "application/x-executable"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_MARKUP = "text/html"
# In these a browser runs nothing.
SHOWN = frozenset(
    (
        "image/png",
        "image/jpeg",
        "image/gif",
        "image/webp",
        "audio/mpeg",
        "audio/ogg",
        "audio/flac",
        "audio/wav",
        "application/pdf",
    )
)
_ALIASES = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/x-png": "image/png",
    "audio/mp3": "audio/mpeg",
    "audio/wave": "audio/wav",
    "audio/x-wav": "audio/wav",
    "audio/vnd.wave": "audio/wav",
}
UNKNOWN = "application/octet-stream"


def recognise(content: bytes) -> str | None:
    """The media type that the content begins like; None if it begins like none that is known here."""
    if content[:4] == b"RIFF":
        return _RIFF.get(content[8:12])
    for start, media_type in _SIGNATURES:
        if content.startswith(start):
            return media_type
    return _MARKUP if content[:64].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<") else None


def choose_shown_type(content: bytes) -> str:
    """The media type to serve content as, whatever somebody said that it is."""
    found = recognise(content)
    return found if found in SHOWN else UNKNOWN


def get_said_type(text: str) -> str:
    """The media type that a text names, without parameters, in the form that it has here."""
    said = text.partition(";")[0].strip().lower()
    return _ALIASES.get(said, said)


def find_contradiction(media_type: str, content: bytes) -> str | None:
    """What content is recognised as that is said to be of this type; None if it may well be.

    A provider refuses such a picture, and with it every later request of the session.
    """
    said = _ALIASES.get(media_type, media_type)
    found = recognise(content)
    if found is None or found == said:
        return None
    if said.startswith("audio/"):
        return None if found.startswith("audio/") else found
    return found if said.startswith("image/") or said == "application/pdf" else None
