"""Drops the privilege by which a superuser writes where nobody may, for tests of what everybody else meets."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

# linux/capability.h: version 3 has two words of each set; these two are how permissions of files are passed over.
_VERSION = 0x20080522
_PASSES_OVER_PERMISSIONS = (1 << 1) | (1 << 2)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextmanager
def bound_by_permissions() -> Iterator[None]:
    """Within, this thread and those that it starts may do with files only what their permissions say."""
    if sys.platform != "linux":
        pytest.skip("privileges can be dropped on Linux only")
    library = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(_VERSION, 0), (_Sets * 2)()
    assert library.capget(ctypes.byref(header), sets) == 0
    before = sets[0].effective
    sets[0].effective = before & ~_PASSES_OVER_PERMISSIONS
    assert library.capset(ctypes.byref(header), sets) == 0
    try:
        yield
    finally:
        sets[0].effective = before
        assert library.capset(ctypes.byref(header), sets) == 0
