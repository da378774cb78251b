"""Input of a chat: lines from a terminal with history, or from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output.defaults import create_output
from prompt_toolkit.output.vt100 import Vt100_Output

from swarmkeep.cli.terminal import Refused, is_interactive


class LineReader:
    """Reads from a terminal with a history and a line editor, and from anything else line by line, without a prompt.

    At a terminal Enter sends; Alt-Enter begins another line, and what is pasted may have several.
    """

    def __init__(self, history: Iterable[str] = ()) -> None:
        """`history`: what was said before, oldest first; the arrow keys bring it back."""
        self.at_terminal = is_interactive()
        self._session = _open_prompt(history) if self.at_terminal else None

    def read(self, prompt: str) -> str | None:
        """The next input, or None at its end: Ctrl-D on an empty line, or the end of a file.

        Raises KeyboardInterrupt for Ctrl-C.
        """
        if self._session is None:
            line = _read_line(sys.stdin)
            return line.removesuffix("\n") if line else None
        try:
            return self._session.prompt(prompt)
        except EOFError:
            return None


def _read_line(stream: TextIO) -> str:
    try:
        return stream.readline()
    except UnicodeDecodeError as error:
        raise Refused(
            f"the input is not valid {error.encoding}, the encoding of this terminal "
            f"(byte 0x{error.object[error.start]:02x}); set PYTHONUTF8=1 to read UTF-8"
        ) from None


def _open_prompt(history: Iterable[str]) -> PromptSession[str]:
    keys = KeyBindings()

    @keys.add("enter")
    @keys.add("c-j")
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("escape", "c-j")
    def begin_a_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    output = create_output()
    if isinstance(output, Vt100_Output):
        # Asking a terminal where its cursor is serves menus, which there are none of; some never answer.
        output.enable_cpr = False
    return PromptSession(
        history=InMemoryHistory(list(history)),
        key_bindings=keys,
        multiline=True,
        prompt_continuation="  ",
        output=output,
    )
