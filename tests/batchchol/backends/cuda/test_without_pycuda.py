"""What stands for PyCUDA, over a library that stands for the driver; and over the real one, where there is a GPU."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from batchchol.backends.cuda import launching
from batchchol.backends.cuda.launching import driver
from batchchol.backends.cuda.launching.device_array import DeviceArray

# A GPU whose memory is the host's, and whose one kernel adds its second argument to an int64 at its first.
LIBRARY = """
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef void *P;
static P current[8]; static int depth; static float now;
int cuGetErrorString(int s, const char **t) { *t = s == 2 ? "out of memory" : "invalid argument"; return 0; }
int cuInit(unsigned f) { return f ? 1 : 0; }
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *d, int n) { *d = n + 5; return n ? 1 : 0; }
int cuDeviceGetName(char *t, int n, int d) { strcpy(t, d == 5 ? "A GPU" : "none"); return 0; }
int cuDeviceGetPCIBusId(char *t, int n, int d) { strcpy(t, "0000:01:00.0"); return 0; }
int cuDeviceTotalMem_v2(size_t *n, int d) { *n = (size_t)1 << 37; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 9 : a == 76 ? 0 : a; return 0; }
int cuDevicePrimaryCtxRetain(P *c, int d) { *c = (P)0xC0DE; return 0; }
int cuDevicePrimaryCtxRelease_v2(int d) { return d == 5 ? 0 : 1; }
int cuCtxPushCurrent_v2(P c) { current[++depth] = c; return 0; }
int cuCtxPopCurrent_v2(P *c) { *c = current[depth--]; return 0; }
int cuCtxGetCurrent(P *c) { *c = current[depth]; return 0; }
int cuMemAlloc_v2(P *p, size_t n) { if (n > 1 << 20) return 2; *p = malloc(n); return 0; }
int cuMemFree_v2(P p) { free(p); return 0; }
int cuMemHostAlloc(P *p, size_t n, unsigned f) { *p = malloc(n); return 0; }
int cuMemFreeHost(P p) { free(p); return 0; }
int cuMemGetInfo_v2(size_t *f, size_t *t) { *f = 7; *t = 9; return 0; }
int cuMemcpyHtoD_v2(P t, P s, size_t n) { memcpy(t, s, n); return 0; }
int cuMemcpyDtoH_v2(P t, P s, size_t n) { memcpy(t, s, n); return 0; }
int cuMemcpyHtoDAsync_v2(P t, P s, size_t n, P q) { memcpy(t, s, n); return q ? 0 : 1; }
int cuMemcpyDtoHAsync_v2(P t, P s, size_t n, P q) { memcpy(t, s, n); return q ? 0 : 1; }
int cuMemcpyDtoDAsync_v2(P t, P s, size_t n, P q) { memcpy(t, s, n); return q ? 1 : 0; }
int cuStreamCreate(P *q, unsigned f) { *q = (P)0x51; return 0; }
int cuStreamSynchronize(P q) { return q == (P)0x51 ? 0 : 1; }
int cuEventCreate(P *e, unsigned f) { *e = malloc(sizeof(float)); return 0; }
int cuEventRecord(P e, P q) { *(float *)e = now += 1.5f; return 0; }
int cuEventSynchronize(P e) { return 0; }
int cuEventElapsedTime(float *t, P a, P b) { *t = *(float *)b - *(float *)a; return 0; }
int cuEventDestroy_v2(P e) { free(e); return 0; }
int cuModuleLoadData(P *m, const char *i) { *m = (P)0x30; return strcmp(i, "image") ? 1 : 0; }
int cuModuleGetFunction(P *f, P m, const char *n) { *f = (P)0x40; return strcmp(n, "add") ? 1 : 0; }
int cuFuncSetCacheConfig(P f, int c) { return c == 1 ? 0 : 1; }
int cuFuncSetAttribute(P f, int a, int v) { return a == 8 && v == 64 ? 0 : 1; }
int cuLaunchKernel(P f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned s, P q,
                   P *a, P *e) {
    if (x != 3 || y != 1 || z != 1 || bx != 32 || by != 1 || bz != 1 || s != 64 || e) return 1;
    **(int64_t **)a[0] += *(int64_t *)a[1] + (q ? 100 : 0);
    return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(LIBRARY)
    made = folder / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", str(made), str(folder / "driver.c")], check=True)
    return str(made)


@pytest.fixture
def cuda(library: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(driver, "LIBRARY", library)
    monkeypatch.delitem(sys.modules, "batchchol.backends.cuda.launching.without_pycuda", raising=False)
    module = importlib.import_module("batchchol.backends.cuda.launching.without_pycuda")
    module.init()
    yield module
    del sys.modules["batchchol.backends.cuda.launching.without_pycuda"], launching.without_pycuda


def test_the_gpu_and_its_context(cuda: Any) -> None:
    gpu = cuda.Device(0)
    assert (cuda.Device.count(), cuda.get_driver_version()) == (1, 13000)
    assert (gpu.name(), gpu.pci_bus_id(), gpu.total_memory()) == ("A GPU", "0000:01:00.0", 1 << 37)
    assert gpu.compute_capability() == (9, 0)
    assert gpu.get_attribute(cuda.device_attribute.MULTIPROCESSOR_COUNT) == 16
    context = gpu.retain_primary_context()
    assert cuda.Context.get_current() is None
    context.push()
    assert cuda.Context.get_current().handle == context.handle == 0xC0DE
    context.pop()
    assert cuda.Context.get_current() is None
    context.detach()
    with pytest.raises(cuda.LogicError, match="cuDeviceGet failed: invalid argument"):
        cuda.Device(1)


def test_memory_and_copies(cuda: Any) -> None:
    a, stream = np.arange(6.0), cuda.Stream()
    first, second = cuda.mem_alloc(a.nbytes), cuda.mem_alloc(a.nbytes)
    pinned, back = cuda.pagelocked_empty(6, np.float64), np.empty(6)
    cuda.memcpy_htod(first, a)
    cuda.memcpy_dtod_async(int(second), int(first), a.nbytes)
    cuda.memcpy_dtoh_async(pinned, int(second), stream)
    stream.synchronize()
    pinned *= 2
    cuda.memcpy_htod_async(int(first), pinned, stream)
    cuda.memcpy_dtoh(back, int(first))
    assert back.tolist() == (2 * a).tolist()
    first.free()
    second.free()
    assert cuda.mem_get_info() == (7, 9)
    with pytest.raises(cuda.MemoryError, match="cuMemAlloc_v2 failed: out of memory"):
        cuda.mem_alloc(1 << 21)


def test_kernels_and_time(cuda: Any) -> None:
    function = cuda.module_from_buffer(b"image").get_function("add")
    function.set_cache_config(cuda.func_cache.PREFER_SHARED)
    function.set_attribute(cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, 64)
    number, events = np.zeros(1, np.int64), [cuda.Event(), cuda.Event()]
    events[0].record()
    function.prepare("QQ").prepared_call((3, 1), (32, 1, 1), number.ctypes.data, 7, shared_size=64)
    function.prepared_async_call((3, 1), (32, 1, 1), cuda.Stream(), number.ctypes.data, 2, shared_size=64)
    events[1].record()
    events[1].synchronize()
    assert (number[0], events[0].time_till(events[1])) == (109, 1.5)
    with pytest.raises(cuda.LogicError, match="cuLaunchKernel failed"):
        function.prepared_call((4, 1), (32, 1, 1), number.ctypes.data, 7)
    with pytest.raises(cuda.LogicError, match="cuModuleGetFunction failed"):
        cuda.module_from_buffer(b"image").get_function("subtract")


def test_arrays(cuda: Any) -> None:
    host = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert DeviceArray((4, 3), "float32", host.ctypes.data)[1:3].get().tolist() == host[1:3].tolist()
    a = DeviceArray((4, 3), "float32", 4096)
    assert (a.size, a.nbytes, a.ndim, len(a)) == (12, 48, 2, 4)
    part = a[1:3]
    assert (part.shape, part.gpudata, part.base) == ((2, 3), 4108, a)
    assert a.reshape(2, -1).shape == a.reshape((2, 6)).shape == (2, 6)
    assert a.__cuda_array_interface__["data"] == (4096, False)
    with pytest.raises(ValueError, match=r"^shape: got \(5, -1\), expected one of 12 elements"):
        a.reshape(5, -1)
    with pytest.raises(ValueError, match=r"^rows: got slice"):
        a[::2]


SCRIPT = """
import sys
for name in ("pycuda", "pycuda.driver", "pycuda.gpuarray"):
    sys.modules[name] = None
import numpy as np, batchchol
from batchchol.backends.cuda import memory
r = np.random.default_rng(1).random((5000, 12, 12), np.float32)
a, b = (r + r.swapaxes(1, 2)) / 2 + 12 * np.eye(12, dtype=np.float32), np.ones((5000, 12), np.float32)
expected = np.linalg.solve(a, b[..., None])[..., 0]
assert np.allclose(batchchol.cholesky(a, backend="cuda"), np.linalg.cholesky(a), atol=1e-4)
there, sides = memory.to_device(a, "a"), memory.to_device(b, "b")
x = batchchol.solve(there, sides)
assert np.allclose(x.get(), expected, atol=1e-4)
batch = batchchol.get_backend("cuda").from_dense(a)
factors, info = batchchol.factor(batch)
assert not info.get().any()
assert np.allclose(batchchol.cho_solve(factors, sides).get(), expected, atol=1e-4)
print(type(x).__module__)
"""


@pytest.mark.gpu
def test_the_gpu_works_without_pycuda(run_python: Callable[..., Any]) -> None:
    done = run_python("-c", SCRIPT)
    assert done.stdout.split() == ["batchchol.backends.cuda.launching.device_array"], done.stderr
