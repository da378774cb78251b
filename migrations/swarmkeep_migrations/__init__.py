"""Alembic migrations of the database schema, run by `swarmkeep db upgrade`."""

REVISIONS = (
    "0001",
    "0002",
    "0003",
    "0004",
    "0005",
    "0015",
    "0016",
    "0017",
    "0018",
    "0019",
    "0020",
    "0022",
    "0023",
    "0024",
    "0025",
    "0026",
    "0027",
    "0028",
    "0029",
)
"""Every revision, oldest first: known without loading Alembic, which takes a second."""

STEPS = ("0006", "0007", "0008", "0009", "0010", "0011", "0012", "0013", "0014")
"""Places on the way from 0005 to 0015, oldest first, that were revisions before 0.2.0 was released.

A database or a backup of that time may be at one of them: it has the first steps of 0015, and goes on from there.
"""
BEFORE_STEPS, AFTER_STEPS = "0005", "0015"


def count_steps(revision: str) -> int:
    """Return how many steps of 0015 are done at this revision, which is one of `STEPS` or 0015 itself."""
    return (*STEPS, AFTER_STEPS).index(revision) + 1
