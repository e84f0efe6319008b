"""cuSOLVERDx as a peer: which blocks are tried, what is compiled and kept, and the kernel around its function."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from batchchol.artifacts.elf import code_sections
from batchchol.backends import get_backend
from batchchol.backends.cuda.device import device
from batchchol.compare.contenders import Arena
from batchchol.compare.peers import PEERS, cusolverdx, mathdx, mathdx_source
from batchchol.compare.peers.mathdx import Shape
from batchchol.errors import BatchcholError
from batchchol.operations.posv import oracle
from batchchol.operations.qr import BOUND, factor_ratios
from kernelgen import KernelSource, Launch

from ...emulation.programs import compile_program
from ...fakes.pycuda import FakeGpu

DTYPES = ("float32", "float64")


@pytest.mark.parametrize(
    ("n", "suggested", "tried"),
    [
        (8, (32, 4), [(32, 4), (128, 32), (32, 16), (64, 16), (32, 32), (32, 8)]),
        (4, (32, 32), [(32, 32), (32, 64)]),
        (64, (64, 1), [(64, 1), (128, 1), (32, 1), (64, 2)]),
        (128, (256, 1), [(256, 1), (512, 1), (128, 1), (256, 2)]),
        (27, (32, 1), [(32, 1), (128, 8), (32, 4), (64, 4), (32, 8), (32, 2)]),
    ],
)
def test_the_suggested_block_and_larger_and_smaller_ones_are_tried(
    n: int, suggested: tuple[int, int], tried: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cusolverdx, "_suggestion", lambda *of: suggested)
    found = cusolverdx.shapes(n, "float32", "sm_90")
    plain = [
        [(each.threads, each.matrices) for each in found if (each.padding, each.by_rows) == (0, rows)]
        for rows in (False, True)
    ]
    assert plain == [tried, tried]
    padded = [(shape.threads, shape.matrices) for shape in found if shape.lda == n + 1]
    assert padded == ([] if n % 2 else tried)
    assert all(shape.n == n and shape.matrices * n * shape.lda * 4 <= 200 << 10 for shape in found)


def test_a_kernel_of_cusolverdx_is_made_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Shape] = []

    def cubin(shape: Shape) -> bytes:
        made.append(shape)
        return shape.entry.encode()

    version = ["libmathdx 0.4"]
    monkeypatch.setattr(cusolverdx, "version", lambda: version[0])
    monkeypatch.setattr(cusolverdx, "cubin", cubin)
    first, second = (Shape(7, "float32", threads, 3, "sm_90") for threads in (32, 64))
    assert [cusolverdx._image(shape) for shape in (first, first, second)] == [
        first.entry.encode(), first.entry.encode(), second.entry.encode(),
    ]  # fmt: skip
    assert made == [first, second]
    version[0] = "libmathdx 0.5"
    cusolverdx._image(first)
    assert made == [first, second, first]


def test_the_likeliest_blocks_of_all_orders_are_compiled_first_and_once(
    fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Shape] = []

    def cubin(shape: Shape) -> bytes:
        made.append(shape)
        if shape.matrices == 4:
            raise BatchcholError("too many registers")
        return shape.entry.encode()

    def suggestion(shape: Shape) -> tuple[int, int]:
        if shape.n == 6:
            raise BatchcholError("no such order")
        return 32, shape.n

    monkeypatch.setattr(cusolverdx, "version", lambda: "libmathdx 0.4")
    monkeypatch.setattr(cusolverdx, "cubin", cubin)
    monkeypatch.setattr(cusolverdx, "suggestion", suggestion)
    monkeypatch.setattr(cusolverdx, "_in_parallel", lambda work, items: [work(item) for item in items])
    monkeypatch.setattr(cusolverdx, "_SMALL", ((1, 1), (1, 2)))
    prepare = PEERS["cuda"]["cusolverdx"].prepare
    assert prepare
    prepare([1, 6, 2], "float32", 0, "potrf")
    assert [(shape.n, shape.matrices) for shape in made[:2]] == [(1, 1), (2, 2)]
    assert len({shape.entry for shape in made}) == len(made) == 10
    few = cusolverdx.limited(PEERS["cuda"]["cusolverdx"], 1).prepare
    made.clear()
    assert few
    few([3, 5], "float32", 0, "potrf")
    assert [(shape.n, shape.matrices) for shape in made] == [(3, 3), (5, 5)]
    made.clear()
    prepare([1, 2], "float32", 0, "potrf")
    assert {shape.matrices for shape in made} == {4}, "only what was refused is tried again"


def test_a_block_that_is_refused_does_not_keep_the_others_out(
    fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = Arena(get_backend("cuda"), "wishart", 5, 13, "float32", "ieee", cold=False)
    monkeypatch.setattr(cusolverdx, "_suggestion", lambda *of: (32, 2))
    monkeypatch.setattr(cusolverdx, "version", lambda: "libmathdx 0.4")

    def function(shape: Shape) -> Any:
        if shape.matrices != 4:
            raise BatchcholError("too many registers")

    monkeypatch.setattr(cusolverdx, "_function", function)
    contender, by_rows = PEERS["cuda"]["cusolverdx"].contenders(arena)
    assert contender.spec.endswith("for 4 matrices")
    assert by_rows.spec == f"{contender.spec}, factors in rows"
    early, _ = PEERS["cuda"]["cusolverdx_pdl"].contenders(arena)
    assert early.spec == f"{contender.spec}, pdl"
    monkeypatch.setattr(cusolverdx, "_suggestion", lambda *of: (32, 1))
    monkeypatch.setattr(cusolverdx, "_SMALL", ((1, 1), (1, 2)))
    with pytest.raises(BatchcholError, match="no block works at n = 5: too many registers"):
        PEERS["cuda"]["cusolverdx"].contenders(arena)


def test_early_launches_are_of_kernels_that_wait_on_gpus_that_have_them(
    fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cusolverdx, "version", lambda: "libmathdx 0.4")
    monkeypatch.setattr(cusolverdx, "_image", lambda shape: b"")
    monkeypatch.setattr(cusolverdx, "_suggestion", lambda *of: (32, 2))
    plain, early = (Shape(5, "float32", 32, 2, "sm_90", pdl) for pdl in (False, True))
    assert [mathdx.macros(shape, "potrf")["PDL"] for shape in (plain, early)] == ["0", "1"]
    monkeypatch.setattr(device().driver, "function", lambda *of, **said: 1)
    assert [cusolverdx._function(shape).launch.pdl for shape in (plain, early)] == [False, True]
    assert plain.entry != early.entry
    arena = Arena(get_backend("cuda"), "wishart", 5, 13, "float32", "ieee", cold=False)
    monkeypatch.setattr(device(), "has_pdl", False)
    with pytest.raises(BatchcholError, match="the GPU has no programmatic dependent launches"):
        PEERS["cuda"]["cusolverdx_pdl"].contenders(arena)


# What stands for cuSOLVERDx's function: threads share the matrices of a block.
_POTRF = """
extern "C" __device__ void SYMBOL(SCALAR *matrices, int *info)
{
    for (int m = (int)threadIdx.x; m < MATRICES; m += THREADS) {
        SCALAR *l = matrices + m * N * LDA;
        info[m] = 0;
        for (int j = 0; j < N; j++) {
            for (int k = 0; k < j; k++)
                for (int i = j; i < N; i++) l[i + j * LDA] -= l[i + k * LDA] * l[j + k * LDA];
            if (!(l[j + j * LDA] > 0)) { info[m] = j + 1; break; }
            SCALAR root = sqrt(l[j + j * LDA]);
            for (int i = j; i < N; i++) l[i + j * LDA] /= root;
        }
    }
}
"""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "matrices", "batch", "padding"),
    [(4, 4, 8, 0), (4, 3, 10, 0), (5, 1, 3, 0), (5, 4, 9, 0), (3, 2, 1, 0), (4, 3, 10, 1), (6, 2, 4, 1)],
)
def test_the_kernel_around_cusolverdx_loads_and_stores_ragged_batches(
    n: int, matrices: int, batch: int, padding: int, dtype: str
) -> None:
    shape = Shape(n, dtype, 32, matrices, "sm_90", padding=padding)
    macros = mathdx.macros(shape, "stand_in")
    text = mathdx_source.SOURCE + _POTRF
    for name, value in macros.items():
        text = replaced(text, name, value)
    launch = Launch(shape.threads, shape.matrices, shape.shared_bytes, "shared")
    source = KernelSource(text, shape.entry, 1, (), launch)
    a = np.random.default_rng(0).random((batch, n, n)).astype(dtype)
    a = a @ a.swapaxes(-1, -2) + n * np.eye(n, dtype=dtype)
    a[batch // 2, n - 1, n - 1] = -1
    factors, info = np.zeros_like(a), np.full(batch, -1, np.int32)
    a.flags.writeable = False
    compile_program((source,)).launch(source, batch, a, factors, info, np.int64(batch))
    expected = np.zeros(batch, np.int32)
    expected[batch // 2] = n
    assert (info == expected).all()
    right = info == 0
    lower = np.tril(factors.swapaxes(-1, -2))
    np.testing.assert_allclose(
        lower[right], np.linalg.cholesky(a[right].astype(np.float64)), rtol=1e-4 if dtype == "float32" else 1e-12
    )


# The same, and then solves for right-hand sides in rows.
_POSV = """
extern "C" __device__ void SYMBOL(SCALAR *matrices, SCALAR *columns, int *info)
{
    for (int m = (int)threadIdx.x; m < MATRICES; m += THREADS) {
        SCALAR *l = matrices + m * N * LDA, *x = columns + m * N * NRHS;
        info[m] = 0;
        for (int j = 0; j < N; j++) {
            for (int k = 0; k < j; k++)
                for (int i = j; i < N; i++) l[i + j * LDA] -= l[i + k * LDA] * l[j + k * LDA];
            if (!(l[j + j * LDA] > 0)) { info[m] = j + 1; break; }
            SCALAR root = sqrt(l[j + j * LDA]);
            for (int i = j; i < N; i++) l[i + j * LDA] /= root;
        }
        for (int c = 0; c < NRHS; c++) {
            for (int i = 0; i < N; i++) {
                for (int k = 0; k < i; k++) x[i * NRHS + c] -= l[i + k * LDA] * x[k * NRHS + c];
                x[i * NRHS + c] /= l[i + i * LDA];
            }
            for (int i = N - 1; i >= 0; i--) {
                for (int k = i + 1; k < N; k++) x[i * NRHS + c] -= l[k + i * LDA] * x[k * NRHS + c];
                x[i * NRHS + c] /= l[i + i * LDA];
            }
        }
    }
}
"""


# ... and for its function of general matrices, whose rows it exchanges so that the last one becomes the first.
_GESV = """
static __device__ void exchange(SCALAR *one, SCALAR *other, int count)
{
    for (int j = 0; j < count; j++) {
        SCALAR kept = one[j];
        one[j] = other[j];
        other[j] = kept;
    }
}

extern "C" __device__ void SYMBOL(SCALAR *matrices, int *pivots, SCALAR *columns, int *info)
{
    for (int m = (int)threadIdx.x; m < MATRICES; m += THREADS) {
        SCALAR *a = matrices + m * N * LDA, *x = columns + m * N * NRHS;
        info[m] = 0;
        for (int k = 0; k < N; k++) {
            pivots[m * N + k] = k ? k + 1 : N;
            exchange(a, a + (N - 1) * LDA, k ? 0 : N);
            exchange(x, x + (N - 1) * NRHS, k ? 0 : NRHS);
            for (int i = k + 1; i < N; i++) {
                a[i * LDA + k] /= a[k * LDA + k];
                for (int j = k + 1; j < N; j++) a[i * LDA + j] -= a[i * LDA + k] * a[k * LDA + j];
                for (int c = 0; c < NRHS; c++) x[i * NRHS + c] -= a[i * LDA + k] * x[k * NRHS + c];
            }
        }
        for (int k = N; k-- > 0;)
            for (int c = 0; c < NRHS; c++) {
                x[k * NRHS + c] /= a[k * LDA + k];
                for (int i = 0; i < k; i++) x[i * NRHS + c] -= a[i * LDA + k] * x[k * NRHS + c];
            }
    }
}
"""


# ... and for that of least squares, the same for square matrices.
_GELS = (
    _GESV.replace("int *pivots, SCALAR *columns, int *info", "SCALAR *tau, SCALAR *columns")
    .replace("info[m] = 0;", "tau[m] = 1;")
    .replace("pivots[m * N + k] = k ? k + 1 : N;", "")
)


# ... and for that which factors general matrices, without a choice of pivots.
_GETRF = """
extern "C" __device__ void SYMBOL(SCALAR *matrices, int *pivots, int *info)
{
    for (int m = (int)threadIdx.x; m < MATRICES; m += THREADS) {
        SCALAR *a = matrices + m * N * LDA;
        info[m] = 0;
        for (int k = 0; k < N; k++) {
            pivots[m * N + k] = k + 1;
            for (int i = k + 1; i < N; i++) {
                a[i * LDA + k] /= a[k * LDA + k];
                for (int j = k + 1; j < N; j++) a[i * LDA + j] -= a[i * LDA + k] * a[k * LDA + j];
            }
        }
    }
}
"""


@pytest.mark.parametrize(("n", "matrices", "batch", "padding"), [(4, 4, 9, 0), (5, 1, 3, 0), (6, 3, 10, 1)])
def test_the_kernel_around_cusolverdx_writes_lu_factors(n: int, matrices: int, batch: int, padding: int) -> None:
    shape = Shape(n, "float32", 32, matrices, "sm_90", padding=padding, general=True)
    text = mathdx_source.LU + _GETRF
    for name, value in mathdx.macros(shape, "stand_in").items():
        text = replaced(text, name, value)
    launch = Launch(shape.threads, shape.matrices, shape.shared_bytes, "shared")
    source = KernelSource(text, shape.entry, 1, (), launch)
    a = np.random.default_rng(0).random((batch, n, n)).astype(np.float32) + n * np.eye(n, dtype=np.float32)
    lu, pivots, info = np.zeros_like(a), np.zeros((batch, n), np.int32), np.full(batch, -1, np.int32)
    compile_program((source,)).launch(source, batch, a, lu, pivots, info, np.int64(batch))
    assert not info.any()
    assert (pivots == np.arange(1, n + 1)).all()
    np.testing.assert_allclose((np.tril(lu, -1) + np.eye(n)) @ np.triu(lu), a, rtol=1e-5)


# ... and for that which makes reflectors, here of single precision.
_GEQRF = """
extern "C" __device__ void SYMBOL(SCALAR *matrices, SCALAR *tau)
{
    for (int m = (int)threadIdx.x; m < MATRICES; m += THREADS) {
        SCALAR *a = matrices + m * N * LDA;
        for (int k = 0; k < N; k++) {
            SCALAR squares = 0, alpha = a[k * LDA + k];
            for (int i = k + 1; i < N; i++) squares += a[i * LDA + k] * a[i * LDA + k];
            const SCALAR beta = squares > 0 ? -copysignf(sqrtf(squares + alpha * alpha), alpha) : alpha;
            tau[m * N + k] = squares > 0 ? (beta - alpha) / beta : 0;
            for (int i = k + 1; i < N; i++) a[i * LDA + k] /= squares > 0 ? alpha - beta : 1;
            for (int j = k + 1; j < N; j++) {
                SCALAR sum = a[k * LDA + j];
                for (int i = k + 1; i < N; i++) sum += a[i * LDA + k] * a[i * LDA + j];
                a[k * LDA + j] -= tau[m * N + k] * sum;
                for (int i = k + 1; i < N; i++) a[i * LDA + j] -= tau[m * N + k] * sum * a[i * LDA + k];
            }
            a[k * LDA + k] = beta;
        }
    }
}
"""


@pytest.mark.parametrize(("n", "matrices", "batch", "padding"), [(4, 4, 9, 0), (6, 3, 10, 1)])
def test_the_kernel_around_cusolverdx_writes_reflectors(n: int, matrices: int, batch: int, padding: int) -> None:
    shape = Shape(n, "float32", 32, matrices, "sm_90", padding=padding, general=True, reflects=True)
    text = mathdx_source.QR + _GEQRF
    for name, value in mathdx.macros(shape, "stand_in").items():
        text = replaced(text, name, value)
    launch = Launch(shape.threads, shape.matrices, shape.shared_bytes, "shared")
    source = KernelSource(text, shape.entry, 1, (), launch)
    a = np.random.default_rng(0).standard_normal((batch, n, n)).astype(np.float32)
    factors, tau = np.zeros_like(a), np.zeros((batch, n), np.float32)
    compile_program((source,)).launch(source, batch, a, factors, tau, np.int64(batch))
    assert factor_ratios(a, factors, tau).max() <= BOUND["fast"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "nrhs", "matrices", "batch", "padding", "op"),
    [
        (4, 1, 4, 8, 0, "posv"),
        (4, 3, 3, 10, 0, "gesv"),
        (5, 2, 1, 3, 0, "posv"),
        (5, 1, 4, 9, 0, "gesv"),
        (4, 1, 4, 8, 1, "posv"),
        (6, 2, 3, 10, 1, "gesv"),
        (5, 2, 3, 10, 0, "gels"),
    ],
)
def test_the_kernel_around_cusolverdx_solves_ragged_batches(
    n: int, nrhs: int, matrices: int, batch: int, padding: int, op: str, dtype: str
) -> None:
    general = op != "posv"
    kind = {"general": general, "reflects": op == "gels"}
    shape = Shape(n, dtype, 32, matrices, "sm_90", nrhs=nrhs, padding=padding, **kind)
    text = mathdx_source.SOLVER + {"posv": _POSV, "gesv": _GESV, "gels": _GELS}[op]
    for name, value in mathdx.macros(shape, "stand_in").items():
        text = replaced(text, name, value)
    launch = Launch(shape.threads, shape.matrices, shape.shared_bytes, "shared")
    source = KernelSource(text, shape.entry, 1, (), launch)
    a = np.random.default_rng(0).random((batch, n, n)).astype(dtype)
    a = a @ a.swapaxes(-1, -2) + n * np.eye(n, dtype=dtype)
    b = np.random.default_rng(1).random((batch, n, nrhs)).astype(dtype)
    if general:
        # Not symmetric, and large where rows that change places come to the diagonal.
        a = np.ascontiguousarray(a[:, [n - 1, *range(1, n - 1), 0]] * np.arange(1, n + 1, dtype=dtype))
    a.flags.writeable = b.flags.writeable = False
    x, info = np.zeros_like(b), np.full(batch, -1, np.int32)
    compile_program((source,)).launch(source, batch, a, b, x, info, np.int64(batch))
    assert not info.any()
    expected = np.linalg.solve(a.astype(float), b) if general else oracle(a, b)
    np.testing.assert_allclose(x, expected, rtol=1e-3 if dtype == "float32" else 1e-12)


def replaced(text: str, name: str, value: str) -> str:
    return re.sub(rf"\b{name}\b", value, text)


@pytest.mark.parametrize(("nrhs", "general"), [(0, False), (1, False), (1, True), (0, True)])
def test_cusolverdx_itself_makes_a_kernel_without_a_gpu(nrhs: int, general: bool) -> None:
    found = PEERS["cuda"]["cusolverdx"].survey()
    if not found.found:
        pytest.skip(f"{found.detail}: {found.hint}")
    shape = Shape(6, "float32", 32, 2, "sm_90", nrhs=nrhs, general=general)
    assert [name for name, _ in code_sections(mathdx.cubin(shape))] == [f".text.{shape.entry}"]
