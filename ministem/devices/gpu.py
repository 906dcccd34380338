"""What a GPU needs: one kernel, memory, streams, and a clear error message when there is none.

The only file that imports cupy, inside its functions: without a GPU it is not needed. backend.py calls
`sum_rows` and `device_array`; the rest is for host.py."""

import functools
import os

import numpy as np

# --------------------------------------------------------------------------------------- the scatter-add

# np.add.at on a GPU adds atomically, in any order, so no two runs are alike. Here each block of 256 threads
# sums 256 columns of one row in the order of positions, as SciPy does, so that two runs agree to the bit. It
# needs no sorting; its price is that every row's blocks read all slots.
SUM_ROWS = r"""
extern "C" __global__ void sum_rows(const NUMBER* values, const int* slot, NUMBER* out, int N, int D) {
  __shared__ unsigned found[8];
  int row = blockIdx.x, column = 256 * blockIdx.y + threadIdx.x;
  NUMBER sum = 0;
  for (int start = 0; start < N; start += 256) {          // each thread looks at one slot, 256 at a time
    int i = start + threadIdx.x;
    bool mine = i < N && slot[i] == row;
    unsigned bits = __ballot_sync(0xffffffff, mine);      // what the 32 threads of a warp found, as bits
    if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = bits;
    if (__syncthreads_or(mine) && column < D)             // waits for all; true if anybody found anything
      for (int warp = 0; warp < 8; warp++)
        for (bits = found[warp]; bits; bits &= bits - 1)  // from the lowest bit to the highest
          sum += values[(size_t)(start + 32 * warp + __ffs(bits) - 1) * D + column];
    __syncthreads();                                      // all have read `found`: it may be filled anew
  }
  if (column < D) out[(size_t)row * D + column] = sum;
}
"""


@functools.cache
def kernel(dtype):
    import cupy

    number = {"float32": "float", "float64": "double"}[dtype]
    return cupy.RawKernel(SUM_ROWS, "sum_rows", options=(f"-DNUMBER={number}",))


def sum_rows(values, slot, n_rows):
    """values (N,D), slot (N,) on the GPU -> (n_rows,D): see backend.sum_rows"""
    (N, D), out = values.shape, np.empty_like(values, shape=(n_rows, values.shape[1]))
    arrays = np.ascontiguousarray(values, like=values), slot.astype("int32", copy=False), out
    kernel(values.dtype.name)((n_rows, -(-D // 256)), (256,), (*arrays, np.int32(N), np.int32(D)))
    return out


# ------------------------------------------------------------------------------------- memory and streams


def in_host_memory(x):
    """A host array -> two views of one copy of it: a NumPy array, and a device array.

    Its memory is pinned host memory, which a GPU reads and writes across the bus, only the bytes that it
    touches. (Not from CuPy's pool: that would round up to a power of two.)"""
    import cupy

    cuda = cupy.cuda
    memory = cuda.PinnedMemoryPointer(cuda.PinnedMemory(max(1, x.nbytes)), 0)
    host = np.frombuffer(memory, x.dtype, x.size).reshape(x.shape)
    host[...] = x
    seen = cuda.UnownedMemory(memory.ptr, x.nbytes, memory, cuda.Device().id)
    return host, cupy.ndarray(x.shape, x.dtype, cuda.MemoryPointer(seen, 0))


def second_stream():
    """A stream beside the default one: `with` it, what is launched goes there."""
    import cupy

    return cupy.cuda.Stream(non_blocking=True)  # or it would always wait for the default one


def event():
    """-> an event that completes when all work launched so far on this stream is done"""
    import cupy

    return cupy.cuda.get_current_stream().record()


def wait_for(event):
    """What is launched from now on waits for the event. (The host does not.)"""
    import cupy

    cupy.cuda.get_current_stream().wait_event(event)


def wait():
    """The host waits until the GPU is idle."""
    import cupy

    cupy.cuda.Device().synchronize()


# ------------------------------------------------------------------------------------------ is there one?


def device_array(tf32=False):
    """-> an empty array on the GPU.

    tf32: it may round the factors of matrix products to 10 bits (faster). Raises ValueError: one line that
    says what is missing and what to do."""
    if tf32:
        os.environ["CUPY_TF32"] = "1"  # CuPy looks at this when it makes its first product, below
    runtime, why = None, None
    try:
        import cupy

        runtime = cupy.cuda.runtime
        if not runtime.getDeviceCount():  # raises with a status; is_available() would hide why
            why = "no GPU visible"
        else:  # this loads the libraries, compiles a kernel, copies a number back:
            probe = cupy.ones((2, 2), dtype="float32")
            total = float((probe @ probe + 1).sum())
            if total == 12:
                return cupy.empty(0, dtype="float32")
            why = f"the GPU says that 4 x (2 + 1) is {total}"
    except Exception as error:
        # whatever an import raises is about what is installed: half of CuPy has no cupy.cuda, for instance
        kinds = ImportError, AttributeError, SystemError, RuntimeError, MemoryError, OSError
        if runtime and not isinstance(error, kinds) and type(error).__name__ != "CompileException":
            raise
        why = explain(error, runtime)
    raise ValueError(f"--device gpu: {why}; or use --device cpu")


def explain(error, runtime=None):
    """What CuPy raised when it was first used -> why, and what to do, in one line. runtime: its
    cupy.cuda.runtime, if the import came that far."""
    text, status = str(error).strip(), getattr(error, "status", None)
    lines = [line.strip() for line in text.splitlines() if line.strip(" =")] or [type(error).__name__]
    if isinstance(error, ModuleNotFoundError) and error.name == "cupy":
        return 'CuPy is not installed: pip install -e ".[gpu]" (CUDA 13) or ".[gpu-cuda12]"'
    if isinstance(error, ModuleNotFoundError):
        package = {"cuda": "cuda-pathfinder"}.get(error.name, error.name)
        return f"CuPy is installed, but not {package}, which it needs: pip install {package}"
    reinstall = "reinstall the one for your CUDA, cupy-cuda13x or cupy-cuda12x"
    if "Failed to import CuPy" in text:  # a banner of many lines, the reason in the last of them
        return f"CuPy cannot be loaded ({lines[-1]}): {reinstall}"
    if isinstance(error, AttributeError | SystemError):
        return f"only a part of CuPy is installed, or parts that do not fit ({lines[0]}): {reinstall}"
    if isinstance(error, MemoryError):
        return f"the GPU's memory is full ({lines[0]}): nvidia-smi shows who uses it"
    if status == 35:  # one status for two situations
        has, needs = runtime.driverGetVersion(), runtime.runtimeGetVersion() // 1000
        if has == 0:
            return "no NVIDIA driver found"
        has = f"{has // 1000}.{has % 1000 // 10}"
        wheel = "install cupy-cuda12x instead, or " if has.startswith("12.") else ""
        return f"the driver is for CUDA {has} and this CuPy needs {needs}.x: {wheel}update the driver"
    if status == 100:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return "no GPU visible" + (f" (CUDA_VISIBLE_DEVICES={visible})" if visible is not None else "")
    if status in (46, 802, 803):
        return f"the GPU is not ready ({lines[0]}): see what nvidia-smi says"
    if type(error).__name__ == "CompileException":
        found = next((line for line in lines if "error" in line.lower()), lines[0])
        return f'CUDA headers are missing or of another version ({found}): pip install "cupy-cuda13x[ctk]"'
    if type(error).__name__.startswith("DynamicLib") or isinstance(error, ImportError):
        return f'CUDA libraries are missing ({lines[0]}): pip install "cupy-cuda13x[ctk]"'
    if not runtime:
        return f"CuPy cannot be loaded ({type(error).__name__}: {lines[0]}): {reinstall}"
    return f"the GPU cannot be used ({lines[0]})"
