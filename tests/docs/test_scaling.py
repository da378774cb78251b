"""What the page on scaling marks as checked: the statements that distribute the tables fit the tables."""

from __future__ import annotations

import re

from sqlalchemy import UniqueConstraint

from swarmkeep.store.sql.tables import metadata
from tests.docs.pages import DOCS, read_page

DISTRIBUTED = re.compile(r"create_distributed_table\('(\w+)', '(\w+)'")
REFERENCE = re.compile(r"create_reference_table\('(\w+)'\)")


def test_every_table_has_its_place_and_its_unique_keys_have_the_column_it_is_distributed_by() -> None:
    page = read_page(DOCS / "scaling.md")
    distributed, references = dict(DISTRIBUTED.findall(page)), set(REFERENCE.findall(page))
    assert {*distributed, *references} == set(metadata.tables)
    for name, column in distributed.items():
        table = metadata.tables[name]
        unique = [set(table.primary_key.columns.keys())]
        unique += [set(index.columns.keys()) for index in table.indexes if index.unique]
        unique += [set(one.columns.keys()) for one in table.constraints if isinstance(one, UniqueConstraint)]
        assert all(column in columns for columns in unique), name
        assert not table.foreign_keys
