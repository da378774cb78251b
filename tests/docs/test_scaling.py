"""The columns that tables would be distributed by fit the tables."""

from __future__ import annotations

from sqlalchemy import UniqueConstraint

from swarmkeep.store.tables import metadata
from tests.docs.pages import DOCS, find_code_spans, read_sections, read_table_rows


def test_unique_keys_have_their_distribution_column() -> None:
    rows = read_table_rows(read_sections(DOCS / "running.md")["Beyond one primary"])
    placed = {name: row[0].partition(",")[0].strip("`") for row in rows for name in find_code_spans(row[1])}
    assert set(placed) == set(metadata.tables)
    for name, column in placed.items():
        table = metadata.tables[name]
        unique = [set(table.primary_key.columns.keys())]
        unique += [set(index.columns.keys()) for index in table.indexes if index.unique]
        unique += [set(one.columns.keys()) for one in table.constraints if isinstance(one, UniqueConstraint)]
        assert column.startswith("nothing") or all(column in columns for columns in unique), name
        assert not table.foreign_keys
