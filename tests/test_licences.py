"""Whoever installs Swarmkeep gets nothing whose licence asks for more than to be named."""

from __future__ import annotations

import re

from tests.support.licences import read_licences

PERMISSIVE = re.compile(r"\b(MIT|MIT-0|BSD|Apache|ISC|PSF-2\.0|Python Software Foundation|MPL|Mozilla)\b")


def test_installed_packages_have_permissive_licences() -> None:
    licences = read_licences()
    assert len(licences) > 40
    assert {package: licence for package, licence in licences.items() if not PERMISSIVE.search(licence)} == {}
