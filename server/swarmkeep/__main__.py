"""Where the command line begins: `swarmkeep`, and `python -m swarmkeep` for wherever the script is not on the path."""

import atexit
import gc
import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it at any moment, without a traceback."""
    # The interpreter's last collection would go through all that was loaded, to free what goes with the process anyway.
    atexit.register(gc.freeze)
    try:
        # Loading takes long enough for somebody to think better of it.
        from swarmkeep.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
