"""The peers on a GPU, against stand-ins of their libraries: what they are called with, and their absence."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from batchchol.backends import Backend, get_backend
from batchchol.compare.contenders import SINGLE, Arena, Contender
from batchchol.compare.large import LargeArena
from batchchol.compare.peers import PEERS, cusolver, find, jax_lax, magma, mathdx
from batchchol.errors import BatchcholError, ResidualError

from ...fakes.pycuda import FakeGpu

N, BATCH, SETS = 5, 13, 3
GPU_PEERS = PEERS["cuda"]
DTYPES = ("float32", "float64")
Run = Callable[..., subprocess.CompletedProcess[str]]


def floats(address: int, count: int, dtype: str) -> np.ndarray[Any, Any]:
    """So many numbers at an address, where they are."""
    size = np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * (count * size)).from_address(address), dtype)


def potrf_batched(n: int, pointers: int, info: int, batch: int, dtype: str, uplo: int = 0) -> None:
    """The lower triangles of column-major matrices, or upper ones, in place; the others stay."""
    status = np.frombuffer((ctypes.c_int32 * batch).from_address(info), np.int32)
    for member in range(batch):
        address = ctypes.c_uint64.from_address(pointers + 8 * member).value
        rows = floats(address, n * n, dtype).reshape(n, n)
        matrix = rows if uplo else rows.T
        try:
            matrix[np.tril_indices(n)] = np.linalg.cholesky(np.tril(matrix) + np.tril(matrix, -1).T)[
                np.tril_indices(n)
            ]
            status[member] = 0
        except np.linalg.LinAlgError:
            status[member] = n


class Tensor:
    """An array on the fake GPU, in another library's clothes."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    @classmethod
    def over(cls, other: Any) -> Tensor:
        described = other.__cuda_array_interface__
        count = int(np.prod(described["shape"]))
        return cls(floats(described["data"][0], count, described["typestr"]).reshape(described["shape"]))

    @property
    def mT(self) -> Tensor:
        return Tensor(self.array.swapaxes(-1, -2))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        address = self.array.ctypes.data
        return {"shape": self.array.shape, "typestr": self.array.dtype.str, "data": (address, False), "version": 3}

    def block_until_ready(self) -> Tensor:
        return self

    def contiguous(self) -> Tensor:
        return Tensor(np.ascontiguousarray(self.array))


def put_in_place(patch: pytest.MonkeyPatch, name: str, **contents: Any) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(contents)
    patch.setitem(sys.modules, name, module)
    return module


@pytest.fixture
def fake_cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """CuPy's cusolver; the list says which handle works on which stream."""
    streams: list[tuple[int, int]] = []

    def function(dtype: str) -> Callable[..., None]:
        def call(handle: int, uplo: int, n: int, pointers: int, lda: int, info: int, batch: int) -> None:
            assert (handle, lda) == (77, n)
            potrf_batched(n, pointers, info, batch, dtype, uplo)

        return call

    put_in_place(monkeypatch, "cupy", __version__="14.0")
    put_in_place(
        monkeypatch,
        "cupy_backends.cuda.libs.cusolver",
        create=lambda: 77,
        setStream=lambda handle, stream: streams.append((handle, stream)),
        spotrfBatched=function("float32"),
        dpotrfBatched=function("float64"),
        _getVersion=lambda: (12, 0, 4),
    )
    cusolver._library.cache_clear()
    cusolver._handle.cache_clear()
    yield streams
    cusolver._library.cache_clear()
    cusolver._handle.cache_clear()


@pytest.fixture
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    def cholesky_ex(a: Tensor, out: tuple[Tensor, Tensor]) -> None:
        factors, info = out
        assert factors.array.strides[-2] < factors.array.strides[-1], "column by column, as torch has it"
        factors.array[...] = np.linalg.cholesky(a.array)
        info.array[...] = 0

    return put_in_place(
        monkeypatch,
        "torch",
        __version__="2.11",
        int32=np.int32,
        as_tensor=lambda a, device: Tensor.over(a),
        zeros=lambda count, dtype, device: Tensor(np.full(count, -1, dtype)),
        linalg=SimpleNamespace(cholesky_ex=cholesky_ex),
        cuda=SimpleNamespace(is_available=lambda: True, current_stream=lambda: SimpleNamespace(cuda_stream=0)),
    )


@pytest.fixture
def fake_jax(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    def cholesky(a: Tensor, *, symmetrize_input: bool) -> Tensor:
        assert not symmetrize_input
        return Tensor(np.linalg.cholesky(a.array))

    settings: dict[str, bool] = {}
    module = put_in_place(
        monkeypatch,
        "jax",
        __version__="0.9",
        default_backend=lambda: "gpu",
        numpy=SimpleNamespace(asarray=Tensor.over),
        lax=SimpleNamespace(linalg=SimpleNamespace(cholesky=cholesky)),
        jit=lambda function: function,
        config=SimpleNamespace(update=settings.__setitem__, settings=settings),
    )
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    jax_lax._jax.cache_clear()
    yield module
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    jax_lax._jax.cache_clear()


_MAGMA = """
#include <math.h>
#include <stdlib.h>
static int ready;
int magma_init(void) { ready = 1; return 0; }
void magma_version(int *major, int *minor, int *micro) { *major = 2; *minor = 10; *micro = 0; }
void magma_queue_create_from_cuda_internal(int device, void *stream, void *blas, void *sparse, void **queue,
                                           const char *function, const char *file, int line)
{
    *queue = stream || blas || sparse || device || line || !function || !file ? 0 : (void *)0x1234567890;
}
#define POTRF(NAME, REAL)                                                                              \\
int NAME(int uplo, int n, REAL **a, int lda, int *info, int batch, void *queue)                         \\
{                                                                                                        \\
    if (!ready || uplo != 122 || lda != n || queue != (void *)0x1234567890) return -1;                   \\
    for (int m = 0; m < batch; m++) {                                                                    \\
        REAL *l = a[m];                                                                                  \\
        info[m] = 0;                                                                                     \\
        for (int j = 0; j < n; j++) {                                                                    \\
            for (int k = 0; k < j; k++)                                                                  \\
                for (int i = j; i < n; i++) l[i + j * lda] -= l[i + k * lda] * l[j + k * lda];           \\
            if (!(l[j + j * lda] > 0)) { info[m] = j + 1; break; }                                       \\
            REAL root = sqrt(l[j + j * lda]);                                                            \\
            for (int i = j; i < n; i++) l[i + j * lda] /= root;                                          \\
        }                                                                                                \\
    }                                                                                                    \\
    return 0;                                                                                            \\
}
POTRF(magma_spotrf_batched, float)
POTRF(magma_dpotrf_batched, double)
#define ONE(NAME, BATCHED, REAL)                                                                         \\
int NAME(int uplo, int n, REAL *a, int lda, int *info)                                                   \\
{                                                                                                        \\
    return BATCHED(uplo, n, &a, lda, info, 1, (void *)0x1234567890);                                     \\
}
ONE(magma_spotrf_native, magma_spotrf_batched, float)
ONE(magma_dpotrf_native, magma_dpotrf_batched, double)
ONE(magma_spotrf_gpu, magma_spotrf_batched, float)
ONE(magma_dpotrf_gpu, magma_dpotrf_batched, double)
"""


@pytest.fixture
def fake_magma(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("a stand-in of MAGMA takes a C compiler")
    (tmp_path / "magma.c").write_text(_MAGMA)
    library = tmp_path / "libmagma.so"
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(tmp_path / "magma.c"), "-lm"]
    subprocess.run(command, check=True, timeout=60)
    monkeypatch.setenv(magma.VARIABLE, str(library))
    for cached in (magma._library, magma._queue):
        cached.cache_clear()
    yield library
    for cached in (magma._library, magma._queue):
        cached.cache_clear()


@pytest.fixture
def backend(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> Backend:
    found = get_backend("cuda")
    cache = N * N * 4 * BATCH * SETS // 4
    monkeypatch.setattr(type(found), "last_level_cache_bytes", lambda self: cache)
    return found


def all_right(arena: Arena, contender: Contender) -> None:
    """Every call factors its own set, and all of them can be made again once the inputs are restored."""
    for _ in range(2):
        if contender.restore is not None:
            contender.restore()
        for index, call in enumerate(contender.calls):
            call()
            assert 0 < arena.verify(contender, index) <= 1.5
    assert len(contender.calls) == arena.sets > 1


def test_cusolver_through_cupy(backend: Backend, fake_cupy: list[tuple[int, int]]) -> None:
    for dtype in DTYPES:
        arena = Arena(backend, "wishart", N, BATCH, dtype, "ieee")
        ways = GPU_PEERS["cusolver"].contenders(arena)
        name = f"cusolverDn{'S' if dtype == 'float32' else 'D'}potrfbatched"
        assert [way.spec for way in ways] == [f"{name}, {mode}, in place" for mode in ("lower", "upper")]
        for contender in ways:
            all_right(arena, contender)
            assert contender.restore is not None, "it overwrites its input"
    assert fake_cupy == [(77, 0)], "one handle, on the default stream"
    assert GPU_PEERS["cusolver"].survey().detail == "cuSOLVER 12.0.4, CuPy 14.0"


def test_a_matrix_that_cusolver_refuses_reaches_the_check(backend: Backend, fake_cupy: list[tuple[int, int]]) -> None:
    arena = Arena(backend, "failing", N, BATCH, "float32", "ieee")
    contender = GPU_PEERS["cusolver"].contenders(arena)[0]
    contender.restore()  # type: ignore[misc]
    contender.calls[0]()
    with pytest.raises(ResidualError, match="info"):
        arena.verify(contender, 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch(dtype: str, backend: Backend, fake_torch: ModuleType) -> None:
    assert GPU_PEERS["torch"].survey().found
    arena = Arena(backend, "wishart", N, BATCH, dtype, "ieee")
    (contender,) = GPU_PEERS["torch"].contenders(arena)
    all_right(arena, contender)
    assert contender.protocols == ("queued", "single")


def test_torch_without_a_gpu_or_on_another_stream_is_absent(fake_torch: Any) -> None:
    fake_torch.cuda.current_stream = lambda: SimpleNamespace(cuda_stream=5)
    assert "not the default one" in GPU_PEERS["torch"].survey().detail
    fake_torch.cuda.is_available = lambda: False
    assert "finds no GPU" in GPU_PEERS["torch"].survey().detail


@pytest.mark.parametrize("dtype", DTYPES)
def test_jax_is_waited_for_and_leaves_memory_to_others(dtype: str, backend: Backend, fake_jax: Any) -> None:
    assert GPU_PEERS["jax"].survey().found
    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    arena = Arena(backend, "wishart", N, BATCH, dtype, "ieee")
    (contender,) = GPU_PEERS["jax"].contenders(arena)
    all_right(arena, contender)
    assert contender.protocols == SINGLE
    assert fake_jax.config.settings == ({"jax_enable_x64": True} if dtype == "float64" else {})


def test_jax_on_a_cpu_is_absent(fake_jax: Any) -> None:
    fake_jax.default_backend = lambda: "cpu"
    found = GPU_PEERS["jax"].survey()
    assert not found.found
    assert "default backend is 'cpu'" in found.detail


@pytest.mark.parametrize("dtype", DTYPES)
def test_magma(dtype: str, backend: Backend, fake_magma: Path) -> None:
    assert GPU_PEERS["magma"].survey().detail == "MAGMA 2.10.0"
    arena = Arena(backend, "wishart", N, BATCH, dtype, "ieee")
    (contender,) = GPU_PEERS["magma"].contenders(arena)
    all_right(arena, contender)
    assert contender.restore is not None, "it overwrites its input"


@pytest.mark.parametrize("dtype", DTYPES)
def test_magma_of_larger_matrices(dtype: str, backend: Backend, fake_magma: Path) -> None:
    """In a batch, and on the GPU alone or with the host's help one after the other, in single calls."""
    arena = LargeArena(backend, "wishart", 130, 2, dtype, "ieee")
    batched, *ones = GPU_PEERS["magma"].contenders(arena)
    letter = {"float32": "s", "float64": "d"}[dtype]
    assert [each.spec for each in ones] == [f"magma_{letter}potrf_{how}, in place" for how in ("native", "gpu")]
    for contender in (batched, *ones):
        contender.restore()
        contender.calls[0]()
        assert contender.result(0).ratio(backend, "ieee") <= 1.5
    assert {each.protocols for each in ones} == {SINGLE}
    ctypes.memset(int(arena.room.data.gpudata), 0, 4 * arena.n)
    with pytest.raises(BatchcholError, match=r"magma_.potrf_native: info is 1, expected 0"):
        ones[0].calls[0]()


def test_what_magma_refuses_is_an_error(backend: Backend, fake_magma: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena(backend, "wishart", N, BATCH, "float32", "ieee")
    monkeypatch.setattr(magma, "_LOWER", 121)
    (contender,) = GPU_PEERS["magma"].contenders(arena)
    with pytest.raises(BatchcholError, match="magma_spotrf_batched returned -1"):
        contender.calls[0]()


@pytest.mark.parametrize(("name", "hint"), [("magma", magma.VARIABLE), ("cusolverdx", "nvidia-libmathdx")])
def test_libraries_that_cannot_be_loaded_are_named_with_how_to_get_them(
    name: str, hint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(magma.VARIABLE, str(tmp_path / "libnone.so"))
    monkeypatch.setenv(mathdx.VARIABLE, str(tmp_path / "libnone.so"))
    for cached in (magma._library, mathdx.libraries):
        cached.cache_clear()
    found = GPU_PEERS[name].survey()
    assert not found.found
    assert "No such file" in found.detail or "cannot open" in found.detail
    assert hint in found.hint
    for cached in (magma._library, mathdx.libraries):
        cached.cache_clear()


@pytest.mark.parametrize(("name", "package"), [("torch", "torch"), ("jax", "jax"), ("cusolver", "cupy")])
def test_packages_that_are_not_installed_are_named(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (package, "cupy_backends.cuda.libs.cusolver"):
        monkeypatch.setitem(sys.modules, module, None)
    cusolver._library.cache_clear()
    jax_lax._jax.cache_clear()
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    found = GPU_PEERS[name].survey()
    assert not found.found
    assert "pip install" in found.hint


def test_unknown_peers_are_refused_with_the_known_ones() -> None:
    assert [peer.name for peer in find("cuda", ["magma", "torch"])] == ["magma", "torch"]
    assert [peer.name for peer in find("cuda")] == list(GPU_PEERS)
    with pytest.raises(BatchcholError, match=r"'numpy', expected some of cublas, cusolver, torch.* on a GPU"):
        find("cuda", ["numpy"])


def test_importing_the_peers_loads_none_of_them(run_python: Run) -> None:
    script = (
        "import sys, batchchol.compare.peers, batchchol.compare.comparison; "
        "print([name for name in ('torch', 'jax', 'cupy', 'pycuda') if name in sys.modules])"
    )
    done = run_python("-c", script)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GPU_PEERS)
def test_every_peer_factors_a_ragged_batch_on_a_gpu(name: str, dtype: str) -> None:
    found = GPU_PEERS[name].survey()
    if not found.found:
        pytest.skip(f"{found.detail}: {found.hint}")
    arena = Arena(get_backend("cuda"), "wishart", 17, 333, dtype, "ieee", cold=False)
    for contender in GPU_PEERS[name].contenders(arena):
        if contender.restore is not None:
            contender.restore()
        contender.calls[0]()
        assert 0 < arena.verify(contender, 0) <= 1.5
