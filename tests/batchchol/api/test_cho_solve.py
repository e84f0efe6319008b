"""cho_solve: solutions by arrays and batches of factors, of the host and of a GPU, and what it refuses."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import (
    Batch,
    KernelSpec,
    Layout,
    NoCompilerWarning,
    Problem,
    ThreadSchedule,
    cho_solve,
    cholesky,
    cholesky_ex,
    default_spec,
    factor,
    get_backend,
)
from batchchol.api.solves import host_solves
from batchchol.backends.base import Form
from batchchol.errors import BackendUnavailable, CompilerNotFound
from batchchol.operations.potrs import oracle, ratio_bound, ratios
from batchchol.plan import kernel_choice

from ..artifacts.test_no_compiler import bare, warned
from .test_arguments_refused import ODD, Arrayed, Odd

__all__ = ["bare", "warned"]

Array = NDArray[Any]
Spd = Callable[..., Array]

N, NRHS = 6, 3
LANES = get_backend("cpu").lanes("float32")
LAYOUTS = [
    Layout.canonical(),
    Layout.canonical("col"),
    Layout.interleaved(),
    Layout.chunked(LANES),
    Layout.chunked(4 * LANES, "row"),
]
SOLVE = KernelSpec(Problem(N, op="potrs"), "canonical", "row", ThreadSchedule(2), get_backend("cpu").target)
ON_GPU = KernelSpec(Problem(N, op="potrs"), "canonical", "row", ThreadSchedule(2), "cuda")


def columns(*shape: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(shape).standard_normal(shape).astype(dtype)


def assert_solves(l: Array, b: Array, x: Array, *, upper: bool = False) -> None:
    """Of lower factors (..., n, n), or upper ones, and right-hand sides of either kind."""
    assert type(x) is np.ndarray
    assert (x.shape, x.dtype) == (b.shape, l.dtype)
    n = l.shape[-1]
    lower = np.asarray(l).swapaxes(-1, -2) if upper else np.asarray(l)
    count = len(lower.reshape(-1, n, n))
    flat = [np.asarray(each).reshape(count, n, -1) for each in (b, x)]
    assert ratios(lower.reshape(-1, n, n), *flat).max() <= ratio_bound(n, "ieee")


# ---- Arrays of the host ----


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("outer", [(), (1,), (50,), (2, 3), (1, 1, 2)], ids=str)
@pytest.mark.parametrize("n", [1, N, 130])
def test_arrays(spd: Spd, n: int, outer: tuple[int, ...], dtype: str, upper: bool) -> None:
    l = np.asarray(np.linalg.cholesky(spd(*outer, n, dtype=dtype), upper=upper))
    l[..., *(np.tril_indices(n, -1) if upper else np.triu_indices(n, 1))] = np.nan
    for shape in ((*outer, n), (*outer, n, 1), (*outer, n, NRHS)):
        b = columns(*shape, dtype=dtype)
        given = b.copy()
        x = cho_solve(l, b, upper=upper)
        assert_solves(np.triu(l) if upper else np.tril(l), b, x, upper=upper)
        np.testing.assert_array_equal(b, given, err_msg="the input is left as it was")
        assert not np.may_share_memory(b, x)


def test_it_undoes_a_multiplication(spd: Spd) -> None:
    a, x = spd(40, N, dtype="float64"), columns(40, N, dtype="float64")
    b = (a @ x[..., None])[..., 0]
    np.testing.assert_allclose(cho_solve(cholesky(a), b), x, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(cho_solve(factor(Batch.from_dense(a)).L, b), x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("l_shape", "b_shape"),
    [
        ((0, 5, 5), (0, 5)),
        ((0, 5, 5), (0, 5, 3)),
        ((4, 5, 5), (4, 5, 0)),
        ((2, 0, 5, 5), (2, 0, 5, 1)),
        ((0, 0), (0,)),
        ((0, 0), (0, 7)),
        ((3, 0, 0), (3, 0, 7)),
        ((3, 200, 200), (3, 200, 0)),
    ],
    ids=str,
)
def test_empty_arrays_need_no_backend(
    monkeypatch: pytest.MonkeyPatch, l_shape: tuple[int, ...], b_shape: tuple[int, ...]
) -> None:
    monkeypatch.setattr(host_solves, "_by_batch", lambda *_, **__: pytest.fail("nothing is to be computed"))
    x = cho_solve(np.empty(l_shape, np.float32), np.empty(b_shape, np.float32))
    assert (x.shape, x.dtype) == (b_shape, np.float32)


L = np.array([[2.0, 0.0], [1.0, 2.0]])
B = np.array([[8.0, 4.0], [13.0, 7.0]])
X = np.array([[0.875, 0.375], [2.25, 1.25]])
FORMS: dict[str, Callable[[Array], Any]] = {
    "lists": lambda a: a.tolist(),
    "list of arrays": list,
    "object with __array__": lambda a: Arrayed(lambda: a),
    "subclass": lambda a: a.view(Odd),
    "other byte order": lambda a: a.astype(">f8"),
    "dtype with metadata": lambda a: a.astype(np.dtype("f8", metadata={"unit": "m"})),
    "columns": np.asfortranarray,
    "negative strides": lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
    "part of another": lambda a: np.repeat(np.repeat(a, 2, 0), 3, 1)[::2, ::3],
    "unaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), a.dtype, offset=1).reshape(a.shape),
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "nothing masked": np.ma.array,
    "memory": memoryview,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_what_is_an_array_of_floats(form: Callable[[Array], Any]) -> None:
    for l, b in ((form(L), B), (L, form(B)), (form(L), form(B))):
        x = cho_solve(l, b)
        assert type(x) is np.ndarray
        np.testing.assert_array_equal(x, X)
    batch = Batch.from_dense(L[None], Layout.interleaved())
    assert cho_solve(batch, np.asarray(form(B))[None]).shape == (1, 2, 2)


MASKED = np.ma.array(B, mask=[[True, False], [False, False]])
REFUSED: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "SciPy's pair": ((L, True), B, TypeError, "^L: got SciPy's pair"),
    "integers": (L.astype(int), B, TypeError, r"^L: got dtype int64, .*convert with \.astype first"),
    "list of integers": (
        [[2, 0], [1, 2]],
        B,
        TypeError,
        r"^L: got dtype int64, .*pass np\.asarray\(L, dtype=float\)",
    ),
    "complex": (L * 1j, B, TypeError, "^L: got dtype complex128"),
    "no square": (L[:1], B, ValueError, r"^L: got shape \(1, 2\), expected square"),
    "one number": (4.0, B, ValueError, r"^L: got shape \(\), expected square"),
    "masked factors": (MASKED, B, ValueError, "^L: got an array of which elements are masked"),
    "None": (None, B, TypeError, "^L: got dtype object"),
    "another dtype": (L, B.astype("f4"), TypeError, r"^b: got dtype float32, expected float64, .*\.astype"),
    "integers to solve for": (L, [8, 13], TypeError, "^b: got dtype int64, expected float64"),
    "masked": (L, MASKED, ValueError, "^b: got an array of which elements are masked"),
    "list of masked": (L, [MASKED[0], MASKED[1]], ValueError, "^b: got an array of which elements are masked"),
    "one number to solve for": (L, 4.0, ValueError, r"^b: got shape \(\), expected \(2,\) or \(2, nrhs\)"),
    "too short": (L, B[0, :1], ValueError, r"^b: got shape \(1,\), expected \(2,\) or \(2, nrhs\), as the"),
    "too long": (L, np.ones(3), ValueError, r"^b: got shape \(3,\)"),
    "vectors for one matrix": (L, np.ones((3, 2)), ValueError, r"^b: got shape \(3, 2\).* use b\[\.\.\., None\]"),
    "another batch": (np.stack([L, L]), np.stack([B, B, B]), ValueError, r"^b: got shape \(3, 2, 2\)"),
    "a batch for b": (L, Batch.from_dense(B[None]), TypeError, r"use to_dense\(\)"),
}


@pytest.mark.parametrize(("l", "b", "error", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused(l: Any, b: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        cho_solve(l, b)


WHATEVER = [(L, B), (L[None], B[None, :, :0]), (np.eye(130), np.eye(130)), (np.eye(130), np.empty((130, 0)))]


@pytest.mark.parametrize(("l", "b"), WHATEVER, ids=["some", "none", "large", "none of large"])
def test_what_is_wrong_with_a_call_does_not_depend_on_the_arrays(l: Array, b: Array) -> None:
    calls: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"math": "exact"}, ValueError, "^math: got 'exact', expected one of 'ieee', 'fast'"),
        ({"upper": 1}, TypeError, "^upper: got 1, expected True or False"),
        ({"threads": 0}, ValueError, "^threads: got 0, expected a positive integer"),
        ({"stream": 3}, ValueError, "^stream: got 3, expected None"),
        ({"backend": "gpu"}, ValueError, "^backend='gpu' is unknown"),
        ({"spec": "potrs"}, TypeError, "^spec: got str, expected a KernelSpec"),
        (
            {"spec": default_spec(2)},
            ValueError,
            "^spec: got a kernel of potrf, expected one of potrs: the solution X",
        ),
        ({"spec": SOLVE}, ValueError, "^spec: got a kernel for"),
        ({"spec": SOLVE, "math": "fast"}, ValueError, "^math: got 'fast' beside a spec of 'ieee'"),
    ]
    for arguments, error, words in calls:
        with pytest.raises(error, match=words):
            cho_solve(l, b, **arguments)


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
def test_names_of_odd_types(odd: Any) -> None:
    for name, error in (("math", ValueError), ("spec", TypeError), ("backend", ValueError), ("upper", TypeError)):
        if name == "upper" and odd is True:
            continue
        for l, b in ((L, B), (Batch.from_dense(L[None]), B[None])):
            with pytest.raises(error, match=f"^{name}"):
                cho_solve(l, b, **{name: odd})


# ---- Batches of the host ----


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("batch", [1, LANES, 2 * LANES + 3])
def test_batches(spd: Spd, layout: Layout, batch: int) -> None:
    l = np.asarray(np.linalg.cholesky(spd(batch, N)))
    packed = Batch.from_dense(l, layout).marked("lower")
    before = packed.data.tobytes()
    for b in (columns(batch, N), columns(batch, N, NRHS), columns(batch, N, 2 * LANES + 1)):
        x = cho_solve(packed, b)
        assert_solves(l, b, x)
        np.testing.assert_array_equal(x, cho_solve(l, b))
    assert packed.data.tobytes() == before
    assert cho_solve(packed, columns(batch, N, 0)).shape == (batch, N, 0)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_upper_factors_in_batches(spd: Spd, layout: Layout) -> None:
    u = np.asarray(np.linalg.cholesky(spd(33, N), upper=True))
    whole, b = Batch.from_dense(np.where(u == 0, np.nan, u).astype(np.float32), layout), columns(33, N, NRHS)
    expected = cho_solve(u, b, upper=True)
    assert_solves(u, b, expected, upper=True)
    np.testing.assert_array_equal(cho_solve(whole, b, upper=True), expected)
    for upper in (False, True):
        np.testing.assert_array_equal(cho_solve(whole.marked("upper"), b, upper=upper), expected)


def test_what_does_not_belong_to_a_batch_is_refused(spd: Spd) -> None:
    packed, b = factor(Batch.from_dense(spd(9, N), Layout.canonical())).L, columns(9, N)
    calls: list[tuple[Batch, dict[str, Any], str]] = [
        (packed, {"upper": True}, "upper: got True, expected False for factors whose lower"),
        (packed, {"backend": "cuda"}, "backend: got 'cuda', expected 'cpu'"),
        (packed, {"stream": 0}, "stream: got 0, expected None: backend 'cpu' has none"),
        (packed, {"threads": 0}, "threads: got 0"),
        (packed, {"spec": default_spec(N, layout="canonical", order="row")}, "spec: got a kernel of potrf"),
        (packed, {"spec": ON_GPU}, "spec: backend 'cpu' cannot run potrs"),
        (packed.to_layout(Layout.interleaved()), {"spec": SOLVE}, r"spec: got a kernel for \(n, dtype, layout"),
        (packed.marked("upper"), {"spec": SOLVE}, r"L: got one whose upper triangle alone .* L\.marked\(None\)"),
        (packed.marked(None), {"spec": SOLVE, "upper": True}, "spec: got the lower triangle, expected the upper"),
    ]
    if LANES > 1:
        odd = Batch.from_dense(packed.to_dense(), Layout.chunked(3))
        calls.append((odd, {}, "L: got chunk=3, expected a multiple"))
    for batch, arguments, words in calls:
        with pytest.raises(ValueError, match=f"^{words}"):
            cho_solve(batch, b, **arguments)


def test_specs_and_maths(spd: Spd) -> None:
    l, b = cholesky(spd(40, N)), columns(40, N, NRHS)
    x = cho_solve(l, b, spec=SOLVE)
    assert_solves(l, b, x)
    for given in (cho_solve(l, b, math="fast"), cho_solve(l, b, math="ieee", threads=np.int64(2))):
        assert_solves(l, b, given)
    batch = Batch.from_dense(l, Layout.chunked(2 * LANES))
    for upper, math in ((False, "ieee"), (True, "fast")):
        spec = kernel_choice("potrs", get_backend("cpu"), Form.of(batch), upper, None, math, argument="L")
        assert spec.problem == Problem(N, "float32", "upper" if upper else "lower", "potrs", math)


@pytest.mark.parametrize("value", [0, np.nan])
def test_factors_of_no_use_harm_no_neighbour(spd: Spd, value: float) -> None:
    a, b = spd(50, N), columns(50, N, NRHS)
    expected = cho_solve(cholesky(a), b)
    a[7, 3, 3] = value
    l, info = cholesky_ex(a)
    assert np.flatnonzero(info).tolist() == [7]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = cho_solve(l, b)
    others = info == 0
    np.testing.assert_array_equal(x[others], expected[others])


def test_many_threads_and_forked_processes(spd: Spd) -> None:
    l, b = np.asarray(np.linalg.cholesky(spd(3000, 16))), columns(3000, 16, 4)
    expected = cho_solve(l, b, threads=1)
    assert_solves(l, b, expected)
    with ThreadPoolExecutor(4) as pool:
        for x in pool.map(lambda threads: cho_solve(l, b, threads=threads), (1, 2, 3, 4)):
            np.testing.assert_array_equal(x, expected)
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = multiprocessing.get_context("fork").Process(target=_solve_again, args=(l, b, expected))
        child.start()
    child.join(60)
    assert child.exitcode == 0


def _solve_again(l: Array, b: Array, expected: Array) -> None:
    os._exit(not np.array_equal(cho_solve(l, b, threads=2), expected))


# ---- LAPACK ----


@pytest.mark.usefixtures("warned")
@pytest.mark.parametrize("layout", [*LAYOUTS, Layout.chunked(3)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("upper", [False, True])
def test_without_a_compiler(spd: Spd, layout: Layout, dtype: str, upper: bool) -> None:
    l = cholesky(spd(40, N, dtype=dtype), upper=upper)
    batch = Batch.from_dense(l, layout)
    for b in (columns(40, N, dtype=dtype), columns(40, N, NRHS, dtype=dtype)):
        assert_solves(l, b, cho_solve(l, b, upper=upper), upper=upper)
        assert_solves(l, b, cho_solve(batch, b, upper=upper, threads=2), upper=upper)
    assert cho_solve(batch, columns(40, N, 0, dtype=dtype)).size == 0


@pytest.mark.usefixtures("bare")
def test_without_a_compiler_it_is_said_where_it_was_called(spd: Spd) -> None:
    l = np.linalg.cholesky(spd(3, N))
    with pytest.raises((BackendUnavailable, CompilerNotFound), match="no usable C compiler"):
        cho_solve(l, columns(3, N), spec=SOLVE)
    with pytest.warns(NoCompilerWarning) as caught:
        cho_solve(l, columns(3, N))
    assert [each.filename for each in caught] == [__file__]


def test_lapack_solves_in_place_and_in_blocks(spd: Spd) -> None:
    from batchchol.backends import lapack

    l, b = cholesky(spd(700, 33)), columns(700, 33, 5)
    expected = oracle(l, b)
    for threads in (1, 2):
        x = b.copy()
        lapack.potrs(l, x, x, False, threads)
        assert ratios(l, b, x).max() <= ratio_bound(33, "ieee")
        np.testing.assert_allclose(x, expected, rtol=1e-3, atol=1e-3)
