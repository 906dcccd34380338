"""What more than one file needs."""

import signal
import sys

import fake_cupy
import pytest
import tiktoken
from commands import SIGNALS, once_each
from hypothesis import settings

from ministem import backend
from ministem.devices import gpu as devices_gpu

# properties are tried on the same examples every time: a failure of today is not gone tomorrow
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")

for number in SIGNALS:  # ignored (under nohup), they would be ignored in the commands that tests start, too;
    if signal.getsignal(number) == signal.SIG_IGN:  # a function is not inherited
        signal.signal(number, lambda *_: None)


@pytest.fixture(scope="module")
def known_encodings():
    """Each tiktoken.Encoding is made once in the module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiktoken, "Encoding", once_each(tiktoken.Encoding))
        yield


@pytest.fixture(params=[64, 2])
def blocks(request, monkeypatch):
    """Attention in a single block of queries (texts of tests are short), and in several."""
    monkeypatch.setattr(backend, "BLOCK", request.param)


@pytest.fixture
def gpu(monkeypatch):
    """-> the stand-in for CuPy, in its place"""
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)
    monkeypatch.setitem(sys.modules, "cupyx", fake_cupy.cupyx)
    monkeypatch.delenv("CUPY_TF32", raising=False)
    devices_gpu.kernel.cache_clear()
    fake_cupy.reset()
    yield fake_cupy
    fake_cupy.reset()
    devices_gpu.kernel.cache_clear()
