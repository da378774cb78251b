"""Run the command line: `swarmkeep`, and `python -m swarmkeep` for wherever the script is not on the path."""

from __future__ import annotations

import atexit
import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sys import UnraisableHookArgs


def open_standard_streams() -> None:
    """Standard streams that the caller has closed (`>&-`) are open again, to nothing.

    The next file, a database even, would get their number, and what is printed would be written into that.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # It gets the lowest number that is free, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False, encoding="utf-8"))


def raise_ctrl_c_again(lost: UnraisableHookArgs) -> None:
    """Raise Ctrl-C again where it came in a callback, of an import for one, or in a destructor: there it gets lost."""
    if lost.exc_type is KeyboardInterrupt:
        import signal
        import threading

        # Not before this function has ended: in here it would get lost, too.
        main_thread = threading.main_thread().ident
        threading.Timer(0.01, signal.pthread_kill, (main_thread, signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(lost)


def main() -> None:
    """Run the command line. Ctrl-C ends it at any moment, without a traceback."""
    # The interpreter's last collection would go through all that was loaded, to free what goes with the process anyway.
    atexit.register(gc.freeze)
    sys.unraisablehook = raise_ctrl_c_again
    open_standard_streams()
    try:
        # Loading takes long enough for a user to think better of it.
        from swarmkeep.cli.app import main as run

        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
