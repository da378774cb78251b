"""`python -m swarmkeep`, for wherever the script is not on the path."""

from swarmkeep.cli import main

if __name__ == "__main__":
    main()
