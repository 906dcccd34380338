"""A strict stand-in for CuPy, for machines without a GPU: put it into sys.modules as `cupy`.

Its arrays keep their numbers in NumPy arrays and compute with NumPy. What it checks is that our code asks
for nothing that CuPy would refuse, and for nothing that a GPU would do silently wrong:

- only functions, methods, operators and arguments that CuPy really has (cupy_api.json, recorded from it);
- no NumPy array ever meets a device array, be it as operand, index, mask or value;
- ids out of range, which CuPy wraps around, and repeated places in an assignment are refused;
- `empty` is full of NaN (or -77), since on a GPU it holds what was there before;
- launches, uploads, downloads and synchronisations are counted;
- what one stream writes, another reads only after it has waited for an event recorded behind that.

It cannot know how a GPU rounds, how fast it is, or whether a kernel is right: of each RawKernel it
runs a twin written in NumPy. That all tests pass here does not mean that the code runs on a GPU.
"""

import contextlib
import functools
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np

API = json.loads(Path(__file__).with_name("cupy_api.json").read_text())
__version__ = f"{API['cupy']} (fake)"
float32, inf = np.float32, np.inf


# -------------------------------------------------------------------------------------------- counting


@dataclass
class Counts:
    launches: int = 0
    uploads: int = 0
    downloads: int = 0
    syncs: int = 0  # how often the host waits for the device
    slow: list = field(default_factory=list)  # what CuPy does in a slow way
    forbid_sync: bool = False
    memory: float = math.inf  # bytes the device still has: what is freed is not given back


counts = Counts()


def reset(**settings):
    counts.__init__(**settings)


def _sync(what):
    if counts.forbid_sync:
        raise AssertionError(f"{what} waits for the device")
    counts.syncs += 1


def _new(host, launches=1):
    """A result of `launches` kernels, in memory of its own."""
    host = np.asarray(host)
    counts.launches += launches
    counts.memory -= host.nbytes
    if counts.memory < 0:
        raise OutOfMemoryError(f"Out of memory allocating {host.nbytes:,} bytes (allocated so far: ...).")
    return ndarray._of(host)


class OutOfMemoryError(MemoryError):
    pass


# -------------------------------------------------------------------------------------------- streams


class Stream:
    """Work is done at once, in the order of the program. What is kept is who would have had to wait for
    whom: seen[other] is how much of the other's work is certainly done when this one goes on."""

    def __init__(self, null=False, non_blocking=False):
        self.seen = {self: 0}

    def __enter__(self):
        _streams.append(self)
        return self

    def __exit__(self, *error):
        _streams.pop()

    def record(self, event=None):
        return Event(dict(self.seen))

    def wait_event(self, event):
        for stream, tick in event.seen.items():
            self.seen[stream] = max(tick, self.seen.get(stream, 0))


class Event:
    def __init__(self, seen):
        self.seen = seen


Stream.null = Stream()
_streams = [Stream.null]


class Memory:
    """What views of one array share: who wrote there last."""

    def __init__(self):
        self.write()

    def write(self):
        stream = _streams[-1]
        stream.seen[stream] += 1
        self.written = stream, stream.seen[stream]

    def read(self):
        stream, tick = self.written
        if _streams[-1].seen.get(stream, 0) < tick:
            raise AssertionError("a stream reads what another may not have written yet: it has to wait")


# --------------------------------------------------------------------------------- what may meet an array


def _plain(x):
    """What to compute with instead of x. Refuses what CuPy refuses."""
    if isinstance(x, ndarray):
        return x._host
    if isinstance(x, bool | int | float | complex | np.generic) or x is None:
        return x
    raise TypeError(f"Unsupported type {type(x)}")


def _index(key, shape):
    """The key of a[key] in NumPy's terms -> key, whether it needs a kernel. Ids out of range are refused."""
    keys, plain, fancy, axis = key if isinstance(key, tuple) else (key,), [], False, 0
    after_dots = len(shape) - sum(k is not None and k is not Ellipsis for k in keys)
    for k in keys:
        if isinstance(k, np.ndarray | list):
            raise TypeError(f"{type(k)} as an index: CuPy would upload it, silently, each time")
        if isinstance(k, ndarray):
            fancy = True
            if k.dtype.kind == "b":
                _sync("a mask as an index (CuPy counts what is true)")
                counts.slow.append("mask")
            elif k.size and not (0 <= k._host.min() and k._host.max() < shape[axis]):
                raise IndexError(f"an index is outside 0..{shape[axis] - 1}: a GPU would wrap it around")
            k = k._host
        plain.append(k)
        axis += after_dots if k is Ellipsis else k is not None
    return tuple(plain), fancy


class ndarray:
    """Wraps a NumPy array; is none, so that nothing of NumPy's gets in by itself."""

    __array_priority__ = 100
    __hash__ = None

    def __init__(self, shape, dtype=float, memptr=None):
        buffer = np.empty(shape, dtype) if memptr is None else memptr.memory.owner
        self._raw = np.frombuffer(buffer, dtype, math.prod(shape)).reshape(shape)
        self._memory = Memory()

    @classmethod
    def _of(cls, host, memory=None):
        self = object.__new__(cls)
        self._raw, self._memory = host, memory or Memory()
        return self

    @property
    def _host(self):
        self._memory.read()
        return self._raw

    @property
    def __cuda_array_interface__(self):  # CuPy has it; what it says is not asked here
        return {}

    shape = property(lambda self: self._raw.shape)
    dtype = property(lambda self: self._raw.dtype)
    ndim = property(lambda self: self._raw.ndim)
    size = property(lambda self: self._raw.size)
    nbytes = property(lambda self: self._raw.nbytes)
    itemsize = property(lambda self: self._raw.itemsize)
    strides = property(lambda self: self._raw.strides)
    flags = property(lambda self: self._raw.flags)
    T = property(lambda self: ndarray._of(self._raw.T, self._memory))
    data = property(lambda self: SimpleNamespace(ptr=self._raw.ctypes.data))

    def __getattr__(self, name):
        if name in API["ndarray"]:
            raise NotImplementedError(f"CuPy has ndarray.{name}; the fake does not act it out yet")
        raise AttributeError(f"CuPy {API['cupy']} has no ndarray.{name}")

    # ---- to the host: each of these waits

    def get(self, stream=None, order="C", out=None, blocking=True):
        if blocking:
            _sync(".get()")
        counts.downloads += 1
        if out is None:
            return np.array(self._host, order=order)
        assert out.shape == self.shape and out.dtype == self.dtype and out.flags.c_contiguous
        out[...] = self._host
        return out

    def set(self, arr, stream=None):
        assert type(arr) is np.ndarray and arr.shape == self.shape and arr.dtype == self.dtype
        counts.uploads += 1
        self._raw[...] = arr
        self._memory.write()

    def __array__(self, *args, **kwargs):
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    def __iter__(self):
        raise TypeError("the fake refuses to iterate: on a GPU each turn is a kernel")

    def __len__(self):
        return len(self._raw)

    # ---- places in it

    def __getitem__(self, key):
        key, fancy = _index(key, self.shape)
        part = (self._host if fancy else self._raw)[key if self.ndim else ...]
        return _new(part) if fancy else ndarray._of(np.asarray(part), self._memory)

    def __setitem__(self, key, value):
        key, fancy = _index(key, self.shape)
        if fancy:
            places = np.arange(self.size).reshape(self.shape)[key]
            if len(np.unique(places)) != places.size:
                raise ValueError("an assignment to a repeated place: on a GPU any of the values may win")
        counts.launches += 1
        self._raw[key] = _plain(value)
        self._memory.write()

    # ---- NumPy's protocols, answered as CuPy does

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
        name = ufunc.__name__
        if name not in API["ufuncs"]:
            raise TypeError(f"np.{name} meets a device array, and {_unknown(name)}")
        if method != "__call__" or kwargs.keys() - {"dtype", "casting"}:
            raise TypeError(f"np.{name}: the fake knows no .{method} with {list(kwargs)}")
        if name == "matmul" and out is None:
            return _matmul(*inputs)
        plain = [_plain(x) for x in inputs]
        if out is None:
            return _new(ufunc(*plain, **kwargs))
        (out,) = out
        counts.launches += 1
        ufunc(*plain, out=out._raw, **kwargs)
        out._memory.write()
        return out

    def __array_function__(self, func, types, args, kwargs):
        name = ".".join([*func.__module__.split(".")[1:], func.__name__])
        if name not in API["functions"]:
            raise TypeError(f"np.{name} meets a device array, and {_unknown(name)}")
        return _function(name)(*args, **kwargs)


def _unknown(name):
    if name in API["missing"]:
        return f"CuPy {API['cupy']} has no {name}"
    return "the record does not have it: run gen_cupy_api.py where CuPy is installed"


@functools.cache
def _check(of, name):
    """-> a function that takes the recorded arguments and no others, and does nothing"""
    scope, arguments = {}, API[of][name] or "(*args, **kwargs)"
    exec(f"def {name}{arguments}: pass", scope)
    return scope[name]


# ------------------------------------------------------------------------------------------ operators


def _matmul(a, b):
    """CuPy's: flags for transposed matrices, but batches of matrices are first made contiguous."""
    for x in (a, b):
        if not isinstance(x, ndarray):
            raise TypeError(f"Unsupported type {type(x)}")
        contiguous = x.flags.c_contiguous or (x.ndim == 2 and x.flags.f_contiguous)
        if not contiguous:
            counts.launches += 1
            counts.slow.append("a copy for a product")
    if max(a.ndim, b.ndim) > 2 and a.shape[:-2] != b.shape[:-2]:
        counts.slow.append("a product of a batch with a matrix")
    return _new(a._host @ b._host)


def _operators():
    two = dict(add="add", sub="subtract", mul="multiply", truediv="divide", pow="power", matmul="matmul")
    compare = dict(eq="equal", ne="not_equal", lt="less", le="less_equal", gt="greater", ge="greater_equal")

    def operator(ufunc, swap=False, inplace=False):
        def call(self, other):
            pair = (other, self) if swap else (self, other)
            return self.__array_ufunc__(ufunc, "__call__", *pair, out=(self,) if inplace else None)

        return call

    for short, name in {**two, **compare}.items():
        ufunc = getattr(np, name)
        setattr(ndarray, f"__{short}__", operator(ufunc))
        if short in two:
            for letter, how in (("r", dict(swap=True)), ("i", dict(inplace=True))):
                if f"__{letter}{short}__" in API["dunders"]:
                    setattr(ndarray, f"__{letter}{short}__", operator(ufunc, **how))
    ndarray.__neg__ = lambda self: self.__array_ufunc__(np.negative, "__call__", self)
    for name in ("__float__", "__int__", "__bool__", "__complex__", "item", "tolist", "tobytes"):

        def read(self, *args, name=name):
            _sync(name)
            counts.downloads += 1
            return getattr(self._host, name)(*args)

        setattr(ndarray, name, read)
    ndarray.__repr__ = lambda self: f"<fake device array {self.dtype} {self.shape}>"  # pytest shows arrays


def _methods():
    """Methods that act as NumPy's do; a result in new memory costs a kernel, a view nothing."""

    def method(name):
        def call(self, *args, **kwargs):
            _check("ndarray", name)(self, *args, **kwargs)
            args = [x if isinstance(x, tuple | str | type | np.dtype) else _plain(x) for x in args]
            if name in views:
                result = getattr(self._raw, name)(*args, **kwargs)
                if np.may_share_memory(result, self._raw):
                    return ndarray._of(result, self._memory)
            result = getattr(self._host, name)(*args, **kwargs)
            return self if result is self._raw else _new(result)

        return call

    views = "reshape transpose swapaxes view ravel squeeze".split()
    for name in [*views, *"sum mean max min argmax argmin all any astype copy conj".split()]:
        setattr(ndarray, name, method(name))


_operators()
_methods()


# ------------------------------------------------------------------------------------------ functions

LAUNCHES = dict(  # of what has no code of its own below
    arange=1, concatenate=1, full_like=1, isin=3, ones=1, ones_like=1, stack=1, triu=2, vdot=1, zeros=1,
    zeros_like=1, ascontiguousarray=0,
)  # fmt: skip


def _function(name):
    """The recorded function of that name."""

    def call(*args, **kwargs):
        _check("functions", name)(*args, **kwargs)
        return act(*args, **kwargs)

    def numpys(*args, **kwargs):
        def plain(x):
            if isinstance(x, list | tuple):
                return type(x)(map(plain, x))
            return x if isinstance(x, str | type | np.dtype) else _plain(x)

        result = getattr(np, name)(*map(plain, args), **{k: plain(x) for k, x in kwargs.items()})
        same = [x for x in args if isinstance(x, ndarray) and x._raw is result]
        return same[0] if same else _new(result, LAUNCHES[name])

    act = globals().get(f"_{name}") or (numpys if name in LAUNCHES else None)
    if act is None:
        raise NotImplementedError(f"CuPy has {name}; the fake does not act it out yet")
    return call


def __getattr__(name):  # of this module: cupy.NAME
    if name in API["functions"]:
        return _function(name)
    raise AttributeError(f"{name}: {_unknown(name)}")


def _asarray(a, dtype=None, order=None, *, copy=None, blocking=False):
    if isinstance(a, ndarray):
        return a if dtype is None else a.astype(dtype, copy=False)
    counts.uploads += 1
    return _new(np.array(a, dtype), launches=0)


_array = _asarray


def _empty_like(prototype, dtype=None, order="K", subok=None, shape=None):
    dtype = prototype.dtype if dtype is None else dtype
    return _empty(prototype.shape if shape is None else shape, dtype)


def _empty(shape, dtype=float, order="C"):
    kind = np.dtype(dtype).kind
    return _new(np.full(shape, np.nan if kind in "fc" else -77, dtype), 0)


def _take_along_axis(a, indices, axis):
    _in_range(a, indices, axis)
    return _new(np.take_along_axis(a._host, indices._host, axis), a.ndim + 1)


def _put_along_axis(arr, indices, values, axis):
    _in_range(arr, indices, axis)
    ordered = np.sort(indices._host, axis)
    if (np.diff(ordered, axis=axis) == 0).any():
        raise ValueError("an assignment to a repeated place: on a GPU any of the values may win")
    counts.launches += arr.ndim + 1
    np.put_along_axis(arr._raw, indices._host, _plain(values), axis)
    arr._memory.write()


def _in_range(a, indices, axis):
    _index((slice(None),) * (axis % a.ndim) + (indices.reshape(-1),), a.shape)


def _unique(ar, return_index=False, return_inverse=False, return_counts=False, axis=None, *, equal_nan=True):
    _sync("unique")
    assert axis is None, "unique(axis=...) synchronises once per comparison"
    found = np.unique(ar._host, return_index, return_inverse, return_counts)
    return tuple(_new(x, 3) for x in found) if isinstance(found, tuple) else _new(found, 3)


def _flatnonzero(a):
    _sync("flatnonzero")
    return _new(np.flatnonzero(a._host))


# -------------------------------------------------------------------------------------------- kernels


def _sum_rows(number, grid, block, values, slot, out, N, D):
    """Adds in the kernel's order: to each row the positions that belong to it, one after the other."""
    assert values.dtype == out.dtype == number, f"a kernel for {number}: other bytes are no numbers to it"
    assert N.dtype == D.dtype == slot.dtype == "int32"
    assert (N, D) == values.shape and slot.shape == (N,) and out.shape == (grid[0], D)
    assert block == (256,) and 256 * (grid[1] - 1) < D <= 256 * grid[1]
    assert 0 <= slot.min() and slot.max() < len(out), "a slot outside the block: the kernel would drop it"
    out[...] = 0
    np.add.at(out, slot, values)


TWINS = {"sum_rows": _sum_rows}
NUMBERS = {("-DNUMBER=float",): "float32", ("-DNUMBER=double",): "float64"}


class RawKernel:
    def __init__(self, code, name, options=()):
        assert f"void {name}(" in code, f"the code has no {name}"
        assert options in NUMBERS, f"options {options}, and not one of {list(NUMBERS)}"
        self.twin = functools.partial(TWINS[name], NUMBERS[options])

    def __call__(self, grid, block, args):
        counts.launches += 1
        for x in args:
            if isinstance(x, ndarray):
                assert x.flags.c_contiguous, "a kernel sees addresses, not strides"
                x._memory.read()  # also where it writes: what another stream has begun there comes first
            elif not isinstance(x, np.generic):
                raise TypeError(f"a kernel's argument is a {type(x).__name__}: CuPy would guess its C type")
        self.twin(grid, block, *(x._raw if isinstance(x, ndarray) else x for x in args))
        for x in args:
            if isinstance(x, ndarray):
                x._memory.write()


runtime = SimpleNamespace(
    getDeviceCount=lambda: 1, driverGetVersion=lambda: 13000, runtimeGetVersion=lambda: 13000
)


class Device:
    id = 0

    def synchronize(self):
        _sync("Device.synchronize")


class PinnedMemory:
    """Memory of the host; the GPU sees it under the same address."""

    def __init__(self, size, flags=0):
        self.bytes = bytearray(size)


class PinnedMemoryPointer(bytearray):
    def __init__(self, mem, offset):
        assert type(mem) is PinnedMemory and offset == 0
        super().__init__(len(mem.bytes))
        self.ptr = np.frombuffer(self, "uint8").ctypes.data


class UnownedMemory:
    def __init__(self, ptr, size, owner, device_id=-1):
        assert ptr == owner.ptr and size <= len(owner) and device_id == 0
        self.owner = owner


class MemoryPointer:
    def __init__(self, mem, offset):
        assert offset == 0
        self.memory = mem


cuda = SimpleNamespace(
    runtime=runtime, Device=Device, Stream=Stream, get_current_stream=lambda: _streams[-1],
    PinnedMemory=PinnedMemory, PinnedMemoryPointer=PinnedMemoryPointer, UnownedMemory=UnownedMemory,
    MemoryPointer=MemoryPointer, memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
)  # fmt: skip


@contextlib.contextmanager
def _allow_synchronize(allow):
    counts.forbid_sync = not allow
    yield
    counts.forbid_sync = False


cupyx = SimpleNamespace(allow_synchronize=_allow_synchronize)
