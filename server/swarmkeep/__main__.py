"""Where the command line begins: `swarmkeep`, and `python -m swarmkeep` for wherever the script is not on the path."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it at any moment, without a traceback."""
    try:
        # Loading takes long enough for somebody to think better of it.
        from swarmkeep.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
