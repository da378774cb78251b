"""Alembic migrations of the database schema, run by `swarmkeep db upgrade`."""

REVISIONS = (
    "0001",
    "0002",
    "0003",
    "0004",
    "0005",
    "0006",
    "0007",
    "0008",
    "0009",
    "0010",
    "0011",
    "0012",
    "0013",
    "0014",
    "0015",
)
"""Every revision, oldest first: known without loading Alembic, which takes a second."""
