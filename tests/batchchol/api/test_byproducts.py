"""Logarithms of determinants as by-products: kernels of CPUs and, emulated, of GPUs, and the calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import (
    Batch,
    Layout,
    SolutionLogDeterminant,
    cho_inverse_ex,
    cholesky_ex,
    default_spec,
    factor,
    inv_ex,
    slogdet_ex,
    solve_ex,
)
from batchchol.api.factors import device_factorizations, factor_determinants
from batchchol.api.inverses import inversions
from batchchol.api.solves import solve_determinants
from batchchol.backends import Backend
from batchchol.backends.cuda.batches.batch import DeviceBatch
from batchchol.operations import poinv, potri, residual
from batchchol.operations.logdet import RATIO_BOUND, ratios, ratios_by_factors
from kernelgen import KernelSpec, SpecError, WarpSchedule

from ...fakes.pycuda import FakeGpu
from ...kernel_runs import GuardedMemory, kernel_of, layout_of, make_spec, run_posv
from ..backends.cuda.test_batches import on_device
from .test_cho_solve import columns
from .test_repairs import batch_of

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


BESIDES = (
    ("potrfdet", {"n": 7, "layout": "canonical", "order": "row", "uplo": "upper"}),
    ("potrfdet", {"n": 5, "layout": "chunked", "staged": False}),
    ("potrfdet", {"n": 5, "layout": "canonical", "order": "row", "staged": True, **CUDA}),
    ("potrfdet", {"n": 9, "layout": "chunked", "math": "fast", **CUDA, "nb": 4, "unroll": "tiles"}),
    ("poinvdet", {"n": 7, "layout": "interleaved", "dtype": "float64"}),
    ("poinvdet", {"n": 5, "layout": "canonical", "order": "row", "uplo": "upper", **CUDA}),
    ("potridet", {"n": 5, "layout": "canonical", "order": "row"}),
    ("potridet", {"n": 9, "layout": "chunked", **CUDA, "nb": 4, "unroll": "tiles"}),
)


@pytest.mark.parametrize(
    ("op", "choices"), BESIDES, ids=lambda each: each if isinstance(each, str) else str(each["n"])
)
def test_factors_and_inverses_with_logarithms(spd: Spd, op: str, choices: dict[str, Any]) -> None:
    spec = spec_of(op, **choices)
    (n, dtype, math), upper = (spec.problem.n, spec.problem.dtype, spec.problem.math), spec.problem.uplo == "upper"
    a, bad = spd(40, n, dtype=dtype), np.arange(40) == 8
    a[8, 2, 2] = -1
    a[5] *= 1e10
    if op == "potridet":
        # Columns of factors may have either sign.
        a[~bad] = np.linalg.cholesky(a[~bad]) * np.where(np.arange(n) % 2, -1, 1).astype(dtype)
        a[8, 2, 2] = np.nan
    triangles = np.where(np.tri(n, dtype=bool), a, np.nan).astype(dtype)
    batch = Batch.from_dense(np.ascontiguousarray(triangles.swapaxes(1, 2)) if upper else triangles, layout_of(spec))
    logs, info = GuardedMemory((40,), dtype), GuardedMemory((40,), np.int32)
    given = batch.like(spec.problem.uplo) if op == "potrfdet" else GuardedMemory((40, n, n), dtype).array
    kernel_of(spec)(batch, given, logs.array, info.array, threads=2)
    logs.check()
    info.check()
    assert info.array.tolist() == (3 * bad).tolist()
    assert np.isnan(logs.array[8])
    good, result = a[~bad], given.to_dense() if isinstance(given, Batch) else given
    if op == "potrfdet":
        lower = np.ascontiguousarray(result.swapaxes(1, 2) if upper else result)[~bad]
        assert residual.ratios(good, lower).max() <= residual.RATIO_BOUND[math]
    else:
        check = poinv if op == "poinvdet" else potri
        assert check.ratios(good, result[~bad]).max() <= potri.RATIO_BOUND[math]
    of = ratios_by_factors if op == "potridet" else ratios
    assert of(good, logs.array[~bad]).max() <= RATIO_BOUND[math]


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


def test_kernels_that_are_given_take_right_hand_sides_as_they_lie(spd: Spd) -> None:
    a, b = spd(5, 6), columns(5, 6)
    spec = spec_of("posvdet", n=6, layout="canonical", order="row")
    check_call(solve_ex(a, b, logdet=True, spec=spec), a, b, np.asarray)
    others: tuple[dict[str, Any], ...] = ({"b": b, "out": np.empty_like(b)}, {"b": columns(6)})
    for given in others:
        with pytest.raises(ValueError, match="spec: got a kernel of posvdet, expected None where solutions"):
            solve_ex(a, logdet=True, spec=spec, **given)


def same(found: Any, expected: Any, host: Callable[[Any], Array] = np.asarray) -> None:
    """Fail unless results with logarithms are those of the host, of matrices that some of are repaired in."""
    assert type(found)._fields == type(expected)._fields
    info = np.asarray(expected.info)
    good = info == 0
    for name, mine, its in zip(type(found)._fields, found, expected, strict=True):
        array = host(mine)
        assert (array.shape, array.dtype) == (its.shape, its.dtype), name
        np.testing.assert_allclose(array[good], its[good], rtol=2e-3, atol=1e-6, err_msg=name)
    assert host(found.info).tolist() == info.tolist()
    assert np.isnan(host(found.logabsdet)[~good]).all()


CALLS: dict[str, Callable[..., Any]] = {
    "factors": lambda a, b, **how: cholesky_ex(a, logdet=True, **how),
    "inverses": lambda a, b, **how: inv_ex(a, logdet=True, **how),
    "solutions": lambda a, b, **how: solve_ex(a, b, logdet=True, **how),
}


@pytest.mark.parametrize("n", [6, 130])
@pytest.mark.parametrize("call", CALLS)
def test_those_that_are_repaired_have_the_logarithm_of_what_they_are(spd: Spd, call: str, n: int) -> None:
    a, b = batch_of(spd, n), columns(14, n, 2, dtype="float64")
    for upper in (False, True):
        found = CALLS[call](a.reshape(2, 7, n, n), b.reshape(2, 7, n, 2), jitter="auto", upper=upper)
        added, info, logs = (each.ravel() for each in (found.added, found.info, found.logabsdet))
        assert (added > 0).sum() == 4
        assert np.flatnonzero(info).tolist() == [12]
        good, more = info == 0, a + added[:, None, None] * np.eye(n)
        np.testing.assert_allclose(logs[good], np.linalg.slogdet(more[good]).logabsdet, rtol=1e-6)
        assert np.isnan(logs[12])
    plain = CALLS[call](a, b)
    assert np.flatnonzero(plain.info).tolist() == np.flatnonzero(np.isnan(plain.logabsdet)).tolist() == [3, 8, 11, 12]


@pytest.mark.parametrize("call", CALLS)
def test_of_batches_and_right_hand_sides_elsewhere(spd: Spd, call: str) -> None:
    a, b = batch_of(spd), columns(14, 6, 2, dtype="float64")
    expected = CALLS[call](a, b, jitter="auto")
    if call == "factors":
        found: Any = factor(Batch.from_dense(a, Layout.chunked(16)), logdet=True)
        plain = CALLS[call](a, b)
        same(found._replace(L=found.L.to_dense()), plain._replace(L=np.asarray(plain.L)))
        return
    same(CALLS[call](Batch.from_dense(a, Layout.chunked(16)), b, jitter="auto"), expected)
    out = np.empty_like(expected[0])
    found = CALLS[call](a, b, jitter="auto", out=out)
    assert found[0] is out
    same(found, expected)


@pytest.mark.parametrize("jitter", [None, "auto"])
@pytest.mark.parametrize("call", CALLS)
def test_what_a_gpu_runs(fake_gpu: FakeGpu, spd: Spd, call: str, jitter: str | None) -> None:
    a, b = batch_of(spd), columns(14, 6, 2, dtype="float64")
    found = CALLS[call](on_device(a), on_device(b), jitter=jitter)
    ran = {
        ("factors", None): ["potrfdet"], ("factors", "auto"): ["potrfdet"], ("inverses", None): ["poinvdet"],
        ("inverses", "auto"): ["poinvdet", "repair"], ("solutions", None): ["posvdet"],
        ("solutions", "auto"): ["posvdet"],
    }  # fmt: skip
    assert [launch[0].split("_")[0] for launch in fake_gpu.launches] == ran[call, jitter]
    same(found, CALLS[call](a, b, jitter=jitter), lambda array: array.get())


@pytest.fixture
def without_kernels(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A GPU that has kernels of factorizations and of solves by factors alone, as of larger matrices."""

    def none(*_: Any, **__: Any) -> None:
        raise SpecError("there is none")

    monkeypatch.setattr(inversions, "chosen_kernel", none)
    monkeypatch.setattr(solve_determinants, "chosen_kernel", none)
    for module in (device_factorizations, factor_determinants):
        monkeypatch.setattr(module, "determining", lambda _: None)
    return fake_gpu


def test_where_no_kernel_of_a_gpu_finds_them(without_kernels: FakeGpu, spd: Spd) -> None:
    a, b = batch_of(spd), columns(14, 6, 2, dtype="float64")
    on_gpu = {name: call(on_device(a), on_device(b), jitter="auto") for name, call in CALLS.items()}
    packed: Any = factor(DeviceBatch.from_dense(a, Layout.chunked(32)), logdet=True)
    names = {launch[0].split("_")[0] for launch in without_kernels.launches}
    assert names.isdisjoint({"posvdet", "poinvdet", "potrfdet"})
    expected: Any = solve_ex(a, b, jitter="auto")
    logs = slogdet_ex(a + expected.added[:, None, None] * np.eye(6)).logabsdet
    for found in on_gpu.values():
        assert found.info.get().tolist() == expected.info.tolist()
        np.testing.assert_allclose(found.logabsdet.get(), logs, rtol=1e-6)
    good = cholesky_ex(a).info == 0
    np.testing.assert_allclose(packed.logabsdet.get()[good], logs[good], rtol=1e-6)
    np.testing.assert_allclose(on_gpu["solutions"].x.get()[good], expected.x[good], rtol=1e-6)


def test_by_factors(spd: Spd) -> None:
    l = np.linalg.cholesky(spd(5, 6, dtype="float64"))
    exact = np.linalg.inv(l @ l.swapaxes(1, 2))
    l[3, 1, 1], l[4, 2, 2] = 0, np.nan
    for factors in (l, Batch.from_dense(l, Layout.chunked(16))):
        check_by_factors(cho_inverse_ex(factors), l, exact)


def test_by_factors_of_a_gpu(fake_gpu: FakeGpu, spd: Spd, request: pytest.FixtureRequest) -> None:
    l = np.linalg.cholesky(spd(5, 6, dtype="float64"))
    exact = np.linalg.inv(l @ l.swapaxes(1, 2))
    l[3, 1, 1], l[4, 2, 2] = 0, np.nan
    check_by_factors(cho_inverse_ex(on_device(l)), l, exact)
    request.getfixturevalue("without_kernels")
    check_by_factors(cho_inverse_ex(on_device(l)), l, exact)
    names = [launch[0].split("_")[0] for launch in fake_gpu.launches]
    assert (names[0], names[-1]) == ("potridet", "potrs")


def check_by_factors(found: Any, l: Array, exact: Array) -> None:
    inverse, info, logs = (each.get() if hasattr(each, "get") else each for each in found)
    assert info.tolist() == [0, 0, 0, 2, 3]
    np.testing.assert_allclose(inverse[:3], exact[:3], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(logs[:3], 2 * np.log(np.diagonal(l[:3], 0, 1, 2)).sum(1))
    assert np.isnan(logs[3:]).all()


def test_defaults_are_those_of_factorizations() -> None:
    where: dict[str, Any] = {
        "target": "cuda",
        "layout": "canonical",
        "order": "row",
        "arch": "sm_90",
        "batch": 16_384,
    }
    both, plain = (default_spec(8, op=op, **where) for op in ("potrfdet", "potrf"))
    assert both.schedule == plain.schedule
    assert isinstance(default_spec(64, **where).schedule, WarpSchedule)
    with pytest.raises(SpecError, match="op='potrfdet' cannot be built: the factorization is no thread's"):
        default_spec(64, op="potrfdet", **where)


def test_what_has_no_logarithm(spd: Spd, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = spd(5, 6), columns(5, 6)
    with pytest.raises(ValueError, match="logdet: got True, expected logdet of assume_a='pos' alone"):
        solve_ex(a, b, logdet=True, assume_a="gen")
    with pytest.raises(TypeError, match="logdet: got 'yes'"):
        solve_ex(a, b, logdet="yes")  # type: ignore[arg-type]
    monkeypatch.setattr(solve_determinants, "by_one_kernel", lambda *_: pytest.fail("called"))
    assert len(solve_ex(a, b)) == 2


@pytest.mark.parametrize("jitter", [None, 1.0])
@pytest.mark.parametrize("where", ["host", "batch", "gpu"])
def test_factors_besides_solutions(cuda: Backend, spd: Spd, where: str, jitter: float | None) -> None:
    """Those of `cholesky_ex`, of matrices whose upper triangle alone has a meaning."""
    a, b = spd(5, 6, dtype="float64"), columns(5, 6, dtype="float64")
    a[3, 2, 2] = -1
    given = {"host": a, "batch": Batch.from_dense(a, Layout.chunked(16)).marked("upper"), "gpu": on_device(a)}[where]
    right = on_device(b) if where == "gpu" else b
    found: Any = solve_ex(given, right, upper=where != "batch", factor=True, jitter=jitter)
    host = cuda.host if where == "gpu" else np.asarray
    l, *beside = cholesky_ex(a, upper=True, jitter=jitter)
    good = np.arange(5) != 3
    np.testing.assert_allclose(host(found.L)[good], l[good], rtol=1e-12)
    np.testing.assert_allclose(host(found.x)[good], solve_ex(a, b, upper=True).x[good], rtol=1e-9)
    assert [host(each).tolist() for each in found[1:-1]] == [each.tolist() for each in beside]


def test_factors_are_those_of_symmetric_matrices_by_kernels_of_their_own(spd: Spd) -> None:
    a, b = spd(5, 6), columns(5, 6)
    refused: tuple[dict[str, Any], ...] = ({"logdet": True}, {"assume_a": "gen"}, {"spec": spec_of("posv", n=6)})
    for more, name in zip(refused, ("logdet", "factor", "spec"), strict=True):
        with pytest.raises(ValueError, match=f"^{name}: got .*, expected"):
            solve_ex(a, b, factor=True, **more)
