"""Fixtures that more than one file needs."""

import sys

import fake_cupy
import pytest

from ministem import backend


@pytest.fixture
def gpu(monkeypatch):
    """-> the stand-in for CuPy, in its place"""
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)
    monkeypatch.setitem(sys.modules, "cupyx", fake_cupy.cupyx)
    monkeypatch.delenv("CUPY_TF32", raising=False)
    backend._sum_rows.cache_clear()
    fake_cupy.reset()
    yield fake_cupy
    fake_cupy.reset()
    backend._sum_rows.cache_clear()
