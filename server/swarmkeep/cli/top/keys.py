"""Keys of a terminal, one by one."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager

from prompt_toolkit.input import Input
from prompt_toolkit.input.defaults import create_input
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys

# How long what begins like the code of a key may stay unfinished before it is the Escape key.
_ESCAPE_SECONDS = 0.1
_NAMES = {
    Keys.Up: "up",
    Keys.Down: "down",
    Keys.PageUp: "pageup",
    Keys.PageDown: "pagedown",
    Keys.Enter: "enter",
    Keys.ControlJ: "enter",
    Keys.Escape: "escape",
    Keys.Backspace: "backspace",
    Keys.ControlC: "ctrl-c",
    Keys.ControlD: "ctrl-d",
}


class Keyboard:
    """Waits for a key or for a wake-up from another thread, whichever comes first."""

    def __init__(self, terminal: Input) -> None:
        self._terminal = terminal
        self._wake, self._waker = os.pipe()

    def wake(self) -> None:
        """End the wait; for any thread."""
        os.write(self._waker, b".")

    def wait(self, seconds: float) -> list[str]:
        """The keys that were pressed. Ends early when it is woken. Raises EOFError once the terminal is gone."""
        ready = self._select(seconds)
        if self._wake in ready:
            os.read(self._wake, 4096)
        if self._terminal.fileno() not in ready:
            return []
        pressed = self._terminal.read_keys()
        if self._terminal.closed:
            raise EOFError
        if not self._select(_ESCAPE_SECONDS, self._terminal.fileno()):
            pressed += self._terminal.flush_keys()
        return [name for key in pressed if (name := _find_name(key))]

    def close(self) -> None:
        os.close(self._wake)
        os.close(self._waker)

    def _select(self, seconds: float, *files: int) -> list[int]:
        return select.select(files or (self._terminal.fileno(), self._wake), (), (), seconds)[0]


@contextmanager
def open_keyboard() -> Iterator[Keyboard]:
    """Within, keys come as they are pressed, and none is shown. At the end the terminal is as it was."""
    terminal = create_input()
    with terminal.raw_mode():
        keyboard = Keyboard(terminal)
        try:
            yield keyboard
        finally:
            keyboard.close()


def _find_name(key: KeyPress) -> str:
    if isinstance(key.key, Keys):
        return _NAMES.get(key.key, "")
    return key.key
