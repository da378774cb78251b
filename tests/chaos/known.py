"""Shortcomings that the tests have found. A test that is marked with one is expected to fail until it is dealt with."""

from __future__ import annotations

import pytest


def falls_short(sentence: str) -> pytest.MarkDecorator:
    return pytest.mark.xfail(reason=sentence, strict=True)
