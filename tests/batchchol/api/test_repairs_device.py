"""jitter on a GPU: the same as on the host, there, without waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import Layout, RepairedCholesky, RepairedSolution, cholesky, cholesky_ex, solve, solve_ex
from batchchol.backends import Backend
from batchchol.backends.cuda.batches.batch import DeviceBatch
from batchchol.backends.cuda.launching import functions
from batchchol.errors import CompilerNotFound
from batchchol.operations.posv import ratio_bound, ratios
from kernelgen import KernelSpec, Problem, ThreadSchedule

from ...fakes.pycuda import FakeGpu
from ..backends.cuda.test_batches import on_device
from .test_cho_solve import columns
from .test_repairs import N, batch_of

Array = NDArray[Any]
Spd = Callable[..., Array]
# Rounding does not decide which matrices fail.
SCALE = {"float32": 1e4, "float64": 1.0}
BATCH = 280


def many(spd: Spd, dtype: str) -> tuple[Array, float]:
    """More matrices than a block looks at, some of which cannot be repaired, and the first multiple."""
    a = np.concatenate([batch_of(spd, dtype=dtype, scale=SCALE[dtype])] * 20)
    a[20, 2, 2] = np.nan
    a[21, 3, 1] = a[21, 1, 3] = np.nan
    a[22, 2, 2] = np.inf
    a[23] = 0
    a[279] = -np.eye(N)
    return a, 1e-8 * SCALE[dtype]


def host(cuda: Backend, found: Any) -> list[Array]:
    return [cuda.host(each).reshape(BATCH, *each.shape[2:]) for each in found]


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_factors_as_on_the_host(cuda: Backend, spd: Spd, dtype: str, upper: bool) -> None:
    a, multiple = many(spd, dtype)
    expected = cholesky_ex(a, upper=upper, jitter=multiple)
    unread = a.copy()
    unread[:, *(np.tril_indices(N, -1) if upper else np.triu_indices(N, 1))] = np.nan
    there = on_device(unread.reshape(2, 140, N, N))
    found = cholesky_ex(there, upper=upper, jitter=multiple)
    assert isinstance(found, RepairedCholesky)
    assert [tuple(each.shape) for each in found] == [(2, 140, N, N), (2, 140), (2, 140)]
    l, info, added = host(cuda, found)
    assert info.tolist() == expected.info.tolist()
    np.testing.assert_allclose(added, expected.added, rtol=1e-6)
    assert added.dtype == a.dtype
    plain = host(cuda, cholesky_ex(there, upper=upper))[0]
    np.testing.assert_array_equal(l[added == 0], plain[added == 0])
    repaired = (added != 0) & (info == 0)
    assert repaired.sum() > BATCH // 10
    assert not (np.tril(l, -1) if upper else np.triu(l, 1))[repaired].any()
    factors = l[repaired].swapaxes(1, 2) if upper else l[repaired]
    with_more = a[repaired] + added[repaired, None, None] * np.eye(N)
    np.testing.assert_allclose(factors @ factors.swapaxes(1, 2), with_more, atol=8 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(cuda.host(there).reshape(a.shape), unread)


def test_zeros_take_the_place_of_the_other_triangle_of_what_failed(cuda: Backend, spd: Spd) -> None:
    a = batch_of(spd)
    l = cuda.host(cholesky_ex(on_device(a), jitter="auto").L)
    assert not np.triu(l, 1).any()


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (None, (BATCH, N)),
        (None, (N,)),
        (None, (BATCH, N, 0)),
        (Layout.chunked(32), (BATCH, N, 11)),
        (Layout.interleaved("row"), (3, 1, N, 2)),
    ],
    ids=["one each", "one for all", "none", "several", "several for all"],
)
def test_solutions_as_on_the_host(cuda: Backend, spd: Spd, layout: Layout | None, shape: tuple[int, ...]) -> None:
    a, multiple = many(spd, "float64")
    b = columns(*shape, dtype="float64")
    expected = solve_ex(a, b, jitter=multiple)
    given = on_device(a) if layout is None else DeviceBatch.from_dense(a, layout)
    found = solve_ex(given, on_device(b), jitter=multiple)
    assert isinstance(found, RepairedSolution)
    x, info, added = (cuda.host(each) for each in found)
    assert info.tolist() == expected.info.tolist()
    np.testing.assert_allclose(added, expected.added, rtol=1e-14)
    assert x.shape == expected.x.shape
    well = (added == 0) & (info == 0)
    plain = cuda.host(solve_ex(given, on_device(b)).x)
    others = (well,) if x.ndim == 2 else (..., well, slice(None), slice(None))
    np.testing.assert_array_equal(x[others], plain[others])
    whole = b[..., None] if shape in ((N,), (BATCH, N)) else b
    whole = np.broadcast_to(whole, (*np.broadcast_shapes(whole.shape[:-2], (BATCH,)), *whole.shape[-2:]))
    good = (info == 0) & np.isfinite(a).all((1, 2))
    repaired, panels = (a + added[:, None, None] * np.eye(N))[good], (-1, BATCH, N, max(whole.shape[-1], 1))
    for right, solved in zip(whole.reshape(panels), x.reshape(panels), strict=True):
        assert ratios(repaired, right[good], solved[good]).max() <= ratio_bound(N, "ieee")


def test_right_hand_sides_are_kept_until_then(cuda: Backend, spd: Spd) -> None:
    a, b = batch_of(spd), columns(14, N, dtype="float64")
    expected = solve_ex(a, b, jitter="auto").x
    for arguments in ({"overwrite_b": True}, {"out": None}):
        mine = on_device(b)
        x = solve_ex(
            on_device(a), mine, jitter="auto", **{name: value or mine for name, value in arguments.items()}
        ).x
        np.testing.assert_allclose(np.delete(cuda.host(x), 12, 0), np.delete(expected, 12, 0), rtol=1e-6)
        assert (x is mine) == ("out" in arguments)


def test_what_cannot_be_repaired_is_named(cuda: Backend, spd: Spd) -> None:
    a, b = on_device(batch_of(spd)), on_device(columns(14, N, dtype="float64"))
    for call in (lambda: cholesky(a, jitter="auto"), lambda: solve(a, b, jitter="auto")):
        with pytest.raises(np.linalg.LinAlgError, match=r"matrix 12 .* \(1 of 14 matrices failed; "):
            call()
    assert cuda.host(cholesky(a, jitter=1e-6)).shape == (14, N, N)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 0)], ids=str)
def test_nothing_to_repair(shape: tuple[int, ...]) -> None:
    a = on_device(np.empty(shape, np.float32))
    assert tuple(cholesky_ex(a, jitter="auto").added.shape) == shape[:-2]
    assert tuple(solve_ex(a, on_device(np.empty(shape[:-1], np.float32)), jitter="auto").added.shape) == shape[:-2]


def test_arrays_are_repaired_by_the_kernel_that_factors_them(fake_gpu: FakeGpu, spd: Spd) -> None:
    a = on_device(batch_of(spd))
    for _ in range(2):
        cholesky_ex(a, jitter="auto")
    names = [launch[0] for launch in fake_gpu.launches]
    assert all(name.startswith("potrf") and name.endswith("_repairs") for name in names)


def test_large_orders_and_streams(fake_gpu: FakeGpu, spd: Spd) -> None:
    a, b = batch_of(spd, 70), columns(14, 70, 2, dtype="float64")
    x, info, added = solve_ex(on_device(a), on_device(b), jitter="auto", stream=0x77)
    assert [launch[0].split("_")[0] for launch in fake_gpu.launches] == ["posv", "repair"]
    streams = [launch[2] for launch in fake_gpu.launches]
    assert streams == [0x77] * 2 or (streams == [0, 0x77] and (0x77, 0) in fake_gpu.waits)
    expected = solve_ex(a, b, jitter="auto")
    assert info.get().tolist() == expected.info.tolist()
    np.testing.assert_allclose(added.get(), expected.added, rtol=1e-14)
    good = expected.info == 0
    repaired = (a + added.get()[:, None, None] * np.eye(70))[good]
    assert ratios(repaired, b[good], x.get()[good]).max() <= ratio_bound(70, "ieee")


def test_tiles_and_several_columns_in_place(cuda: Backend, spd: Spd) -> None:
    a = np.concatenate([batch_of(spd, 30, "float32", scale=1e5)] * 3)
    b, multiple = columns(42, 30, 3), 1e-3
    mine = on_device(b)
    # The kernel that repairs them itself: the default is of threads that share rows, which do not.
    schedule = ThreadSchedule(8, unroll="tiles", staged=True, rhs=1, threads=32, pdl=True)
    spec = KernelSpec(Problem(30, op="posv"), "canonical", "row", schedule, "cuda")
    given = {"spec": spec, "jitter": multiple, "out": mine}
    info, added = (cuda.host(each) for each in solve_ex(on_device(a), mine, **given)[1:])
    expected = solve_ex(a, b, jitter=multiple)
    assert info.tolist() == expected.info.tolist()
    np.testing.assert_allclose(added, expected.added, rtol=1e-6)
    good, x = info == 0, cuda.host(mine)
    repaired = a.astype(np.float64) + added[:, None, None] * np.eye(30)
    # The diagonal was rounded once more.
    assert ratios(repaired[good], b[good], x[good]).max() <= ratio_bound(30, "ieee") + 1
    np.testing.assert_array_equal(x[~good], b[~good])


def test_without_a_compiler_the_kernel_behind_repairs(
    fake_gpu: FakeGpu, spd: Spd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Archives have support kernels, and none that repair themselves."""
    build = functions.build

    def carried(source: Any, arch: str) -> Any:
        if source.entry.endswith("_repairs"):
            raise CompilerNotFound("there is none")
        return build(source, arch)

    monkeypatch.setattr(functions, "build", carried)
    a, b = batch_of(spd), columns(14, N, dtype="float64")
    info = solve_ex(on_device(a), on_device(b), jitter="auto").info
    assert [launch[0].split("_")[0] for launch in fake_gpu.launches] == ["posv", "repair"]
    assert np.flatnonzero(info.get()).tolist() == [12]
