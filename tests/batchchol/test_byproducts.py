"""Logarithms of determinants as by-products of solves: kernels of CPUs and, emulated, of GPUs, and the calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import Batch, Layout, SolutionLogDeterminant, slogdet_ex, solve_ex
from batchchol.api import solve_determinants
from batchchol.backends import Backend
from batchchol.backends.cuda.batch import DeviceBatch
from batchchol.operations.logdet import RATIO_BOUND, ratios
from kernelgen import KernelSpec

from ..fake_pycuda import FakeGpu
from ..kernel_runs import GuardedMemory, kernel_of, layout_of, make_spec, run_posv
from .backends.cuda.test_batches import on_device
from .test_cho_solve import columns

Array = NDArray[Any]
Spd = Callable[..., Array]
CUDA = {"target": "cuda", "nb": 1, "unroll": "full"}
SPECS = (
    {"n": 1, "layout": "chunked"},
    {"n": 7, "layout": "canonical", "order": "row", "uplo": "upper"},
    {"n": 19, "nb": 4, "dtype": "float64", "layout": "interleaved", "math": "fast"},
    {"n": 5, "layout": "canonical", "order": "row", **CUDA},
    {"n": 6, "layout": "chunked", "staged": True, "uplo": "upper", "dtype": "float64", **CUDA},
    {"n": 9, "layout": "chunked", "math": "fast", **CUDA, "nb": 4, "unroll": "tiles"},
)

# The member whose first pivot is infinite.
INFINITE = 9


def failing(spd: Spd, n: int, dtype: str) -> Array:
    """Matrices of which one is not positive definite, one has a NaN, and some huge, tiny and infinite pivots."""
    a = spd(40, n, dtype=dtype)
    a[3, 0, 0], a[8, n - 1, n - 1] = np.nan, -1
    a[INFINITE, 0, 0] = np.inf
    a[5] *= 1e15
    a[6] *= 1e-15
    return a


def spec_of(op: str, **choices: Any) -> KernelSpec:
    return make_spec(
        choices["n"],
        choices.get("nb", min(choices["n"], 4)),
        op=op,
        **{k: v for k, v in choices.items() if k not in ("n", "nb")},
    )


@pytest.mark.parametrize("choices", SPECS, ids=lambda each: "-".join(map(str, each.values())))
def test_kernels_solve_as_without_and_find_the_logarithms(spd: Spd, choices: dict[str, Any]) -> None:
    spec, plain = (spec_of(op, **choices) for op in ("posvdet", "posv"))
    n, dtype = spec.problem.n, spec.problem.dtype
    a, b = failing(spd, n, dtype), columns(40, n, 3, dtype=dtype)
    expected = run_posv(plain, a, b)
    triangles = np.where(np.tri(n, dtype=bool), a, np.nan).astype(dtype)
    stored = triangles.swapaxes(1, 2) if spec.problem.uplo == "upper" else triangles
    batch = Batch.from_dense(np.ascontiguousarray(stored), layout_of(spec))
    x, logs, info = (
        GuardedMemory(shape, element) for shape, element in ((b.shape, dtype), ((40,), dtype), ((40,), np.int32))
    )
    kernel_of(spec)(batch, b, x.array, logs.array, info.array, threads=2)
    for each in (x, logs, info):
        each.check()
    assert info.array.tolist() == expected.info.tolist()
    good = info.array == 0
    assert good.sum() == 38
    np.testing.assert_array_equal(x.array[good], expected.x[good])
    assert np.isnan(logs.array[~good]).all()
    assert np.isposinf(logs.array[INFINITE])
    good[INFINITE] = False
    assert ratios(a[good], logs.array[good]).max() <= RATIO_BOUND[spec.problem.math]


CASES = {
    "one vector each": (None, (40, 6)),
    "several": (None, (40, 6, 3)),
    "one for all": (None, (6,)),
    "a batch": (Layout.chunked(32), (40, 6)),
    "none": (None, (40, 6, 0)),
}


def check_call(found: SolutionLogDeterminant, a: Array, b: Array, host: Callable[[Any], Array]) -> None:
    """Fail unless a call found what two calls do, of matrices of the host."""
    expected, determinants = solve_ex(a, b), slogdet_ex(a)
    x, info, logabsdet = (host(each) for each in found)
    bad, good = expected.info != 0, (expected.info == 0) & np.isfinite(a).all((1, 2))
    assert info.tolist() == expected.info.tolist()
    assert x.shape == expected.x.shape
    np.testing.assert_allclose(x[good], expected.x[good], rtol=2e-3)
    assert logabsdet.shape == info.shape
    assert np.isnan(logabsdet[bad]).all()
    np.testing.assert_allclose(logabsdet[good], determinants.logabsdet[good], rtol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_of_the_host(spd: Spd, case: str) -> None:
    layout, shape = CASES[case]
    a, b = failing(spd, 6, "float32"), columns(*shape)
    given = a if layout is None else Batch.from_dense(a, layout)
    check_call(solve_ex(given, b, logdet=True), a, b, np.asarray)
    check_call(solve_ex(given, b, logdet=True, out=np.empty(solve_ex(a, b).x.shape, b.dtype)), a, b, np.asarray)


@pytest.mark.parametrize("case", CASES)
def test_of_a_gpu(cuda: Backend, spd: Spd, case: str) -> None:
    layout, shape = CASES[case]
    a, b = failing(spd, 6, "float32"), columns(*shape)
    given = on_device(a) if layout is None else DeviceBatch.from_dense(a, layout)
    check_call(solve_ex(given, on_device(b), logdet=True), a, b, cuda.host)


def test_one_kernel_does_it_all(fake_gpu: FakeGpu, spd: Spd) -> None:
    a, b = spd(40, 6), columns(40, 6)
    mine = on_device(b)
    found = solve_ex(on_device(a), mine, logdet=True, out=mine, stream=0x77)
    assert found.x is mine
    assert [launch[0].split("_")[0] for launch in fake_gpu.launches] == ["posvdet"]
    assert [launch[2] for launch in fake_gpu.launches] == [0x77]
    check_call(found._replace(x=mine.get(), info=found.info.get(), logabsdet=found.logabsdet.get()), a, b, np.asarray)


def test_larger_ones_are_found_apart(fake_gpu: FakeGpu, spd: Spd) -> None:
    a, b = spd(5, 40), columns(5, 40)
    found = solve_ex(on_device(a), on_device(b), logdet=True, stream=0x77)
    assert not any(launch[0].startswith("posvdet") for launch in fake_gpu.launches)
    check_call(SolutionLogDeterminant(*(each.get() for each in found)), a, b, np.asarray)


def test_kernels_that_are_given_take_right_hand_sides_as_they_lie(spd: Spd) -> None:
    a, b = spd(5, 6), columns(5, 6)
    spec = spec_of("posvdet", n=6, layout="canonical", order="row")
    check_call(solve_ex(a, b, logdet=True, spec=spec), a, b, np.asarray)
    others: tuple[dict[str, Any], ...] = ({"b": b, "out": np.empty_like(b)}, {"b": columns(6)})
    for given in others:
        with pytest.raises(ValueError, match="spec: got a kernel of posvdet, expected None where solutions"):
            solve_ex(a, logdet=True, spec=spec, **given)


def test_what_has_no_logarithm(spd: Spd, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = spd(5, 6), columns(5, 6)
    with pytest.raises(ValueError, match="logdet: got True with jitter, expected one of them"):
        solve_ex(a, b, logdet=True, jitter="auto")
    with pytest.raises(ValueError, match="logdet: got True, expected logdet of assume_a='pos' alone"):
        solve_ex(a, b, logdet=True, assume_a="gen")
    with pytest.raises(TypeError, match="logdet: got 'yes'"):
        solve_ex(a, b, logdet="yes")  # type: ignore[arg-type]
    monkeypatch.setattr(solve_determinants, "by_one_kernel", lambda *_: pytest.fail("called"))
    assert len(solve_ex(a, b)) == 2
