"""The forms in which sessions are written to files, and read from them."""

from __future__ import annotations

from typing import Literal

Form = Literal["markdown", "html"]
FileForm = Literal["export", "chat", "swarm", "assistants"]
