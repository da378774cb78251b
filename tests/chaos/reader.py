"""Somebody who reads or waits, in a thread, while the test goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any


class BackgroundReader:
    """The result of a call, or its error: the items of a stream as they come, or the one answer."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.items: list[Any] = []
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._read, args=(call,), daemon=True)
        self._thread.start()

    def _read(self, call: Callable[[], Any]) -> None:
        try:
            given = call()
            for item in given if isinstance(given, Iterable) else [given]:
                self.items.append(item)
        except Exception as error:
            self.error = error

    def join(self, seconds: float = 30.0) -> None:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"after {seconds:g} s it still goes on"
