"""Words as the indexes of both databases hold them: each begins with its tenant's mark.

So a search walks through its own tenant's words only, and takes as long as these do, however much others have stored.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from swarmkeep.domain.finding.words import Term


def join_words(tenant: str, words: Sequence[str]) -> str:
    """Words of a text, for a row of the index."""
    mark = _mark_tenant(tenant)
    return mark + f" {mark}".join(words) if words else ""


def write_query(dialect: str, tenant: str, terms: Sequence[Term]) -> str:
    """What finds the rows that have all terms. The keys are letters and digits, so nothing in them is an operator."""
    mark = _mark_tenant(tenant)
    keys = dict.fromkeys(mark + key for term in terms for key in term.keys)
    if dialect == "sqlite":
        return " AND ".join(f'"{key}"*' for key in keys)
    return " & ".join(f"'{key}':*" for key in keys)


def _mark_tenant(tenant: str) -> str:
    # Two that have the same one share a range of the index, and nothing else.
    return f"{zlib.crc32(tenant.encode(errors='surrogatepass')):08x}"
