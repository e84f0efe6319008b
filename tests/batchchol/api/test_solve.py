"""solve and solve_ex: solutions by arrays and batches of the host, broadcasting, out, failures, what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import (
    Batch,
    KernelSpec,
    Layout,
    Problem,
    Solution,
    ThreadSchedule,
    cho_solve,
    cholesky,
    default_spec,
    factor,
    get_backend,
    solve,
    solve_ex,
)
from batchchol.api import columns as fitting
from batchchol.backends import lapack
from batchchol.operations.posv import ratio_bound, ratios

from .test_arguments_refused import ODD
from .test_cho_solve import FORMS, LANES, LAYOUTS, columns

Array = NDArray[Any]
Spd = Callable[..., Array]

N, NRHS = 6, 3
FUSED = KernelSpec(Problem(N, op="posv"), "canonical", "row", ThreadSchedule(2), get_backend("cpu").target)


def assert_solves(a: Array, b: Array, x: Array, *, upper: bool = False) -> None:
    """Of matrices (..., n, n), of which one triangle counts, and right-hand sides that belong to them."""
    n = a.shape[-1]
    panels = b[..., None] if b.shape in ((n,), a.shape[:-1]) else b
    outer = np.broadcast_shapes(a.shape[:-2], panels.shape[:-2])
    assert type(x) is np.ndarray
    assert (x.shape, x.dtype) == ((*outer, n, panels.shape[-1])[: len(outer) + 1 + (panels is b)], a.dtype)
    lower = np.broadcast_to(a.swapaxes(-1, -2) if upper else a, (*outer, n, n)).reshape(-1, n, n)
    flat = np.broadcast_to(panels, (*outer, n, panels.shape[-1])).reshape(len(lower), n, -1)
    assert ratios(lower, flat, x.reshape(flat.shape)).max(initial=0) <= ratio_bound(n, "ieee")


# ---- Arrays of the host ----


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("outer", [(), (1,), (50,), (2, 3)], ids=str)
@pytest.mark.parametrize("n", [1, N, 130])
def test_arrays(spd: Spd, n: int, outer: tuple[int, ...], dtype: str, upper: bool) -> None:
    a = spd(*outer, n, dtype=dtype)
    a[..., *(np.tril_indices(n, -1) if upper else np.triu_indices(n, 1))] = np.nan
    for shape in ((*outer, n), (*outer, n, 1), (*outer, n, NRHS)):
        b = columns(*shape, dtype=dtype)
        before = a.copy(), b.copy()
        x, info = solve_ex(a, b, upper=upper)
        assert_solves(a, b, x, upper=upper)
        assert (info.shape, info.dtype, info.any()) == (outer, np.int32, False)
        np.testing.assert_array_equal(solve(a, b, upper=upper), x)
        for each, given in zip((a, b), before, strict=True):
            np.testing.assert_array_equal(each, given, err_msg="the input is left as it was")
        assert not np.may_share_memory(b, x)


def test_it_undoes_a_multiplication(spd: Spd) -> None:
    a, x = spd(40, N, dtype="float64"), columns(40, N, dtype="float64")
    b = (a @ x[..., None])[..., 0]
    np.testing.assert_allclose(solve(a, b), x, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(solve(Batch.from_dense(a), b), x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_what_is_an_array_of_floats(form: Callable[[Array], Any]) -> None:
    a, b = np.array([[4.0, 2.0], [2.0, 5.0]]), np.array([[8.0, 4.0], [12.0, 6.0]])
    for given in ((form(a), b), (a, form(b)), (form(a), form(b))):
        x = solve(*given)
        assert type(x) is np.ndarray
        np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=1e-15)


# ---- Broadcasting ----

BROADCAST = [
    ((5,), (N,)),
    ((2, 3), (N,)),
    ((5,), (N, NRHS)),
    ((2, 3), (3, N, NRHS)),
    ((2, 3), (2, 1, N, 2)),
    ((2, 3), (1, 1, N, NRHS)),
    ((), (4, N, 1)),
    ((), (4, 2, N, NRHS)),
    ((1,), (4, N, NRHS)),
    ((2, 1), (2, 3, N, 2)),
    ((2, 1), (3, N, 2)),
    ((2, 1, 3), (4, 1, N, 2)),
    ((3,), (4, 3, N, 1)),
    ((1, 3), (4, 1, N, 2)),
    # Vectors, not one matrix of them.
    ((N,), (N, N)),
    ((1, N), (1, N, N)),
    # Matrices: no vector for each.
    ((1,), (N, N)),
    ((2, 1), (1, N, N)),
]


@pytest.mark.parametrize(("outer", "shape"), BROADCAST, ids=str)
@pytest.mark.parametrize("n", [N, 130])
def test_right_hand_sides_are_broadcast(spd: Spd, outer: tuple[int, ...], shape: tuple[int, ...], n: int) -> None:
    sizes = [n if size == N else size for size in (*outer, *shape)]
    outer, shape = tuple(sizes[: len(outer)]), tuple(sizes[len(outer) :])
    if np.prod(outer, dtype=int) * n * n > 10**5:
        pytest.skip("more elements than the test needs: the small order has the same shapes")
    a, b = spd(*outer, n), columns(*shape)
    x, info = solve_ex(a, b)
    assert_solves(a, b, x)
    assert info.shape == outer
    factors = cholesky(a)
    assert cho_solve(factors, b).shape == x.shape
    np.testing.assert_allclose(cho_solve(factors, b), x, rtol=1e-3, atol=1e-4)
    out = np.empty(x.shape, np.float32)
    assert solve(a, b, out=out) is out
    np.testing.assert_array_equal(out, x)


def test_one_matrix_with_many_right_hand_sides_is_lapacks(spd: Spd, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    posv = lapack.posv
    monkeypatch.setattr(lapack, "posv", lambda a, b, *rest: seen.append(b.shape) or posv(a, b, *rest))
    for outer, n, nrhs in ((), 40, 100), ((1,), 40, 100), ((), 40, 2), ((), 6, 100), ((2,), 40, 100):
        a, b = spd(*outer, n), columns(n, nrhs)
        assert_solves(a, b, solve(a, b))
    assert seen == [(1, 40, 100)] * 2


def test_a_matrix_that_is_broadcast_is_factored_once(spd: Spd, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    monkeypatch.setattr(lapack, "posv", lambda a, b, *_: seen.append((*a.shape, *b.shape)) or np.zeros(len(a), "i4"))
    solve(spd(2, 1, 130), columns(3, 130, 4))
    solve(spd(130), columns(5, 7, 130, 1))
    assert seen == [(2, 130, 130, 2, 130, 12), (1, 130, 130, 1, 130, 35)]


def test_right_hand_sides_that_are_broadcast_take_the_room_of_the_solutions_alone(
    spd: Spd, monkeypatch: pytest.MonkeyPatch
) -> None:
    from batchchol.api.solves import host_solves

    made: list[tuple[int, ...]] = []
    room = host_solves.aligned_empty
    monkeypatch.setattr(host_solves, "aligned_empty", lambda shape, *rest: made.append(shape) or room(shape, *rest))
    a, b = spd(50, N), columns(N, NRHS)
    assert_solves(a, b, solve(a, b))
    assert made == [(50, N, NRHS)]


@pytest.mark.parametrize(
    ("outer", "shape", "words"),
    [
        ((), (), r"got shape \(\), expected \(6,\) or \(6, nrhs\), as the matrices are"),
        ((), (5,), r"got shape \(5,\), expected \(6,\) or \(6, nrhs\)"),
        ((3,), (3, 5), r"got shape \(3, 5\), expected \(3, 6\) or \(3, 6, nrhs\)"),
        ((3,), (2, N, 1), r"got shape \(2, 6, 1\), expected \(3, 6\)"),
        ((), (4, N), r"got shape \(4, 6\), .*: use b\[\.\.\., None\] for one right-hand side each"),
        ((2, 3), (3, N), r"got shape \(3, 6\), .*: use b\[\.\.\., None\] for one right-hand side each"),
    ],
    ids=str,
)
def test_what_does_not_belong_together(spd: Spd, outer: tuple[int, ...], shape: tuple[int, ...], words: str) -> None:
    for call in (solve, solve_ex):
        with pytest.raises(ValueError, match=f"^b: {words}"):
            call(spd(*outer, N), columns(*shape) if shape else np.float32(1))


def test_vectors_are_read_as_torch_reads_them() -> None:
    # "b.ndim == 1 or (A.ndim - 1 == b.ndim and b.shape == A.shape[:-1])" are vectors there.
    for outer, b, vector in (
        ((), (3,), True),
        ((), (3, 3), False),
        ((3,), (3, 3), True),
        ((3,), (1, 3, 3), False),
        ((1,), (3, 3), False),
        ((4, 3), (4, 3, 3), True),
        ((4, 3), (3, 3), False),
    ):
        assert (fitting.fit(outer, 3, b, "matrices").given != b) == vector


# ---- Nothing ----


@pytest.mark.parametrize(
    ("a_shape", "b_shape", "x_shape"),
    [
        ((0, 5, 5), (0, 5), (0, 5)),
        ((0, 5, 5), (5, 3), (0, 5, 3)),
        ((1, 5, 5), (0, 5, 3), (0, 5, 3)),
        ((2, 0, 5, 5), (2, 1, 5, 1), (2, 0, 5, 1)),
        ((0, 0), (0,), (0,)),
        ((0, 0), (0, 7), (0, 7)),
        ((3, 0, 0), (0, 7), (3, 0, 7)),
        ((4, 5, 5), (4, 5, 0), (4, 5, 0)),
        ((3, 200, 200), (200, 0), (3, 200, 0)),
    ],
    ids=str,
)
def test_empty_arrays(a_shape: tuple[int, ...], b_shape: tuple[int, ...], x_shape: tuple[int, ...]) -> None:
    a = np.broadcast_to(np.eye(a_shape[-1], dtype=np.float32), a_shape)
    x, info = solve_ex(a, np.empty(b_shape, np.float32))
    assert (x.shape, x.dtype, info.shape, info.any()) == (x_shape, np.float32, a_shape[:-2], False)


@pytest.mark.parametrize("n", [5, 130])
def test_matrices_are_factored_also_for_no_right_hand_side(n: int) -> None:
    a = np.stack([np.eye(n), -np.eye(n)])
    for given in (a, Batch.from_dense(a)) if n == 5 else (a,):
        assert solve_ex(given, np.empty((2, n, 0))).info.tolist() == [0, 1]
        with pytest.raises(np.linalg.LinAlgError, match="matrix 1 is not positive definite"):
            solve(given, np.empty((2, n, 0)))


# ---- Failures ----


@pytest.mark.parametrize("n", [N, 130])
def test_a_matrix_that_fails_harms_no_neighbour(spd: Spd, n: int) -> None:
    a, b = spd(9, n), columns(9, n, NRHS)
    expected = solve(a, b)
    a[2, 3, 3], a[7, 4, 1], a[8, 0, 5] = -1, np.nan, np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x, info = solve_ex(a, b)
    assert info.tolist() == [0, 0, 4, 0, 0, 0, 0, 5, 0]
    good = info == 0
    np.testing.assert_allclose(x[good], expected[good], rtol=1e-6)
    message = (
        r"matrix 2 is not positive definite: its leading minor of order 4 is not \(2 of 9 matrices failed; solve_ex"
    )
    with pytest.raises(np.linalg.LinAlgError, match=message):
        solve(a, b)
    with pytest.raises(np.linalg.LinAlgError, match=r"matrix \(1, 0\) .* of order 5 has a NaN \(1 of 2"):
        solve(a[6:8].reshape(2, 1, n, n), b[6:8].reshape(2, 1, n, NRHS))
    upper = solve_ex(a, b, upper=True).info
    assert upper.tolist() == [0, 0, 4, 0, 0, 0, 0, 0, 6]


def test_batches_that_fail(spd: Spd) -> None:
    a = spd(9, N)
    a[5, 2, 2] = 0
    for layout in LAYOUTS:
        batch = Batch.from_dense(a, layout)
        assert np.flatnonzero(solve_ex(batch, columns(9, N)).info).tolist() == [5]
        with pytest.raises(
            np.linalg.LinAlgError, match="matrix 5 is not positive definite: its leading minor of order 3"
        ):
            solve(batch, columns(9, N))


# ---- Batches of the host ----


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("batch", [1, LANES, 2 * LANES + 3])
def test_batches(spd: Spd, layout: Layout, batch: int) -> None:
    a = spd(batch, N)
    packed = Batch.from_dense(a, layout)
    before = packed.data.tobytes()
    for b in (columns(batch, N), columns(batch, N, NRHS), columns(N), columns(N, 2 * LANES + 1), columns(3, 1, N, 1)):
        x, info = solve_ex(packed, b)
        assert_solves(a, b, x)
        assert (info.shape, info.any()) == ((batch,), False)
    assert packed.data.tobytes() == before
    assert solve(packed, columns(batch, N, 0)).shape == (batch, N, 0)
    assert solve_ex(Batch.empty(N, 0, layout), columns(0, N)).info.shape == (0,)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_upper_triangles_of_batches(spd: Spd, layout: Layout) -> None:
    a, b = spd(33, N), columns(33, N, NRHS)
    a[..., *np.tril_indices(N, -1)] = np.nan
    packed = Batch.from_dense(a, layout)
    expected = solve(a, b, upper=True)
    assert_solves(a, b, expected, upper=True)
    assert_solves(a, b, solve(packed, b, upper=True), upper=True)
    for upper in (False, True):
        assert_solves(a, b, solve(packed.marked("upper"), b, upper=upper), upper=True)


def test_what_does_not_belong_to_a_batch_is_refused(spd: Spd) -> None:
    packed, b = Batch.from_dense(spd(9, N), Layout.canonical()), columns(9, N)
    calls: list[tuple[Batch, dict[str, Any], str]] = [
        (factor(packed).L, {"upper": True}, "upper: got True, expected False for matrices whose lower"),
        (packed, {"backend": "cuda"}, "backend: got 'cuda', expected 'cpu'"),
        (packed, {"stream": 0}, "stream: got 0, expected None: backend 'cpu' has none"),
        (packed, {"threads": 0}, "threads: got 0"),
        (packed, {"spec": default_spec(N, layout="canonical", order="row")}, "spec: got a kernel of potrf"),
        (packed.to_layout(Layout.interleaved()), {"spec": FUSED}, r"spec: got a kernel for \(n, dtype, layout"),
        (packed.marked("upper"), {"spec": FUSED}, r"a: got one whose upper triangle alone .* a\.marked\(None\)"),
        (packed, {"spec": FUSED, "upper": True}, "spec: got the lower triangle, expected the upper"),
    ]
    for batch, arguments, words in calls:
        with pytest.raises(ValueError, match=f"^{words}"):
            solve(batch, b, **arguments)


# ---- Arguments ----

A = np.array([[4.0, 2.0], [2.0, 5.0]])
B = np.array([[8.0, 4.0], [12.0, 6.0]])
WHATEVER = [(A, B), (A[None], B[None, :, :0]), (np.eye(130), np.eye(130)), (np.eye(130), np.empty((130, 0)))]


@pytest.mark.parametrize(("a", "b"), WHATEVER, ids=["some", "none", "large", "none of large"])
def test_what_is_wrong_with_a_call_does_not_depend_on_the_arrays(a: Array, b: Array) -> None:
    calls: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"assume_a": "sym"}, ValueError, "assume_a: got 'sym', expected 'pos' for symmetric positive definite"),
        ({"math": "exact"}, ValueError, "math: got 'exact', expected one of 'ieee', 'fast'"),
        ({"upper": 1}, TypeError, "upper: got 1, expected True or False"),
        ({"overwrite_a": "no"}, TypeError, "overwrite_a: got 'no', expected True or False"),
        ({"overwrite_b": 0}, TypeError, "overwrite_b: got 0, expected True or False"),
        ({"threads": 0}, ValueError, "threads: got 0, expected a positive integer"),
        ({"stream": 3}, ValueError, "stream: got 3, expected None"),
        ({"backend": "gpu"}, ValueError, "backend='gpu' is unknown"),
        ({"spec": "posv"}, TypeError, "spec: got str, expected a KernelSpec"),
        ({"spec": default_spec(2)}, ValueError, "spec: got a kernel of potrf, expected one of posv: the solution X"),
        ({"spec": FUSED}, ValueError, "spec: got a kernel for"),
        ({"spec": FUSED, "math": "fast"}, ValueError, "math: got 'fast' beside a spec of 'ieee'"),
    ]
    for arguments, error, words in calls:
        for call in (solve, solve_ex):
            with pytest.raises(error, match=f"^{words}"):
                call(a, b, **arguments)


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
def test_names_of_odd_types(odd: Any) -> None:
    flags = ("upper", "overwrite_a", "overwrite_b")
    for name, error in (
        ("assume_a", ValueError),
        ("math", ValueError),
        ("spec", TypeError),
        ("backend", ValueError),
        ("out", TypeError),
        *((flag, TypeError) for flag in flags),
    ):
        if (name in flags and odd is True) or (name == "out" and (odd is None or isinstance(odd, np.ndarray))):
            continue
        for a, b in ((A, B), (Batch.from_dense(A[None]), B[None])):
            with pytest.raises(error, match=f"^{name}"):
                solve(a, b, **{name: odd})


@pytest.mark.parametrize(
    ("a", "b", "error", "words"),
    [
        (A.astype(int), B, TypeError, r"a: got dtype int64, .*convert with \.astype first"),
        (A[:1], B, ValueError, r"a: got shape \(1, 2\), expected square"),
        (np.ma.array(A, mask=A > 4), B, ValueError, "a: got an array of which elements are masked"),
        (A, B.astype("f4"), TypeError, r"b: got dtype float32, expected float64, as the matrices are.*\.astype"),
        (A, np.ma.array(B, mask=B > 4), ValueError, "b: got an array of which elements are masked"),
        (A, Batch.from_dense(B[None]), TypeError, r"use to_dense\(\)"),
    ],
    ids=str,
)
def test_what_is_refused(a: Any, b: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        solve(a, b)


def test_a_solution_has_names(spd: Spd) -> None:
    solution = solve_ex(spd(2, N), columns(2, N))
    assert isinstance(solution, Solution)
    assert solution.x.shape == (2, N)
    assert solution.info.tolist() == [0, 0]
