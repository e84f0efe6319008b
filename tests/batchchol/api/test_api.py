"""cholesky and cholesky_ex: NumPy's manners for every array, LAPACK's info for every number."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from batchchol import cholesky, cholesky_ex, default_spec, get_backend
from batchchol.api.factors import host_factorizations
from batchchol.artifacts.c_library import supported_targets
from batchchol.errors import BackendUnavailable, UnknownBackend

Array = NDArray[np.floating]
Spd = Callable[..., Array]

N = 5


def assert_factors(l: Array, a: Array) -> None:
    reference = np.linalg.cholesky(a.astype(np.float64))
    rounding = 4 * a.shape[-1] * np.finfo(a.dtype).eps * np.abs(reference).max()
    np.testing.assert_allclose(l, reference, rtol=0, atol=rounding)


@pytest.fixture(scope="module")
def pool(spd: Spd) -> tuple[Array, Array]:
    """A thousand matrices and their factors."""
    matrices = spd(1000, N, seed=1)
    factors = cholesky(matrices)
    assert_factors(factors, matrices)
    return matrices, factors


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("batch", [(), (1,), (7,), (1000,), (2, 3), (2, 1, 3, 4)], ids=str)
def test_any_stack_of_matrices(spd: Spd, batch: tuple[int, ...], dtype: str) -> None:
    a = spd(*batch, N, dtype=dtype)
    l, info = cholesky_ex(a)
    assert (l.shape, l.dtype, info.shape, info.dtype) == (a.shape, a.dtype, batch, np.int32)
    assert l.flags.c_contiguous
    assert l.flags.writeable
    assert not info.any()
    assert_factors(l, a)
    np.testing.assert_array_equal(cholesky(a), l)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9, 17, 128])
def test_orders_give_strictly_triangular_factors(spd: Spd, n: int) -> None:
    a = spd(19, n)
    l = cholesky(a)
    assert_factors(l, a)
    np.testing.assert_array_equal(l, np.tril(l))
    a[:, *np.triu_indices(n, 1)] = np.nan
    np.testing.assert_array_equal(cholesky(a), l, err_msg="only the lower triangle is read")


@pytest.mark.parametrize("n", [2, N, 17])
def test_upper_reads_and_returns_the_upper_triangle(spd: Spd, n: int) -> None:
    a = spd(19, n)
    u = cholesky(a, upper=True)
    assert_factors(u.swapaxes(-1, -2), a)
    np.testing.assert_array_equal(u, np.triu(u))
    a[:, *np.tril_indices(n, -1)] = np.nan
    np.testing.assert_array_equal(cholesky(a, upper=True), u, err_msg="only the upper triangle is read")


@given(chosen=st.lists(st.integers(0, 999), min_size=1, max_size=100))
def test_factor_of_a_matrix_does_not_depend_on_its_company(pool: tuple[Array, Array], chosen: list[int]) -> None:
    matrices, factors = pool
    np.testing.assert_array_equal(cholesky(matrices[chosen]), factors[chosen])


def test_more_matrices_than_a_16_bit_grid_has(spd: Spd) -> None:
    a = spd(70_001, 2)
    assert_factors(cholesky(a), a)


def structured(a: Array) -> Array:
    records = np.zeros(a.shape, dtype=[("other", "i1"), ("value", a.dtype)])
    records["value"] = a
    return records["value"]


VIEWS: dict[str, Callable[[Array], Array]] = {
    "Fortran order": np.asfortranarray,
    "batch axes exchanged": lambda a: np.ascontiguousarray(a.swapaxes(0, 1)).swapaxes(0, 1),
    "negative strides": lambda a: np.ascontiguousarray(a[::-1, ::-1, ::-1])[::-1, ::-1, ::-1],
    "every other matrix": lambda a: np.repeat(a, 2, axis=0)[::2],
    "corner of larger matrices": lambda a: np.pad(a, ((0, 0), (1, 2), (3, 0)))[:, 1:-2, 3:],
    "field of records": structured,
    "unaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), a.dtype, offset=1).reshape(a.shape),
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "little-endian": lambda a: a.astype(a.dtype.newbyteorder("<")),
    "same matrix again and again": lambda a: np.broadcast_to(a[0], a.shape),
    "subclass": lambda a: a.view(np.recarray),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_any_memory_order(spd: Spd, view: Callable[[Array], Array]) -> None:
    a = view(spd(19, N))
    before = np.array(a)
    l = cholesky(a)
    assert_factors(l, before.astype(np.float32))
    assert l.dtype == np.float32
    assert l.dtype.isnative
    np.testing.assert_array_equal(a, before, err_msg="the input is left as it was")


def test_memory_mapped_file(spd: Spd, tmp_path: Path) -> None:
    a = spd(19, N)
    np.save(tmp_path / "a.npy", a)
    np.testing.assert_array_equal(cholesky(np.load(tmp_path / "a.npy", mmap_mode="r")), cholesky(a))


def test_nested_lists() -> None:
    l = cholesky([[4.0, 2.0], [2.0, 5.0]])
    np.testing.assert_array_equal(l, [[2.0, 0.0], [1.0, 2.0]])
    assert l.dtype == np.float64


def test_input_is_untouched_and_shares_nothing_with_the_result(spd: Spd) -> None:
    a = spd(19, N)
    before = a.copy()
    l = cholesky(a)
    np.testing.assert_array_equal(a, before)
    assert not np.may_share_memory(a, l)
    a.flags.writeable = False
    np.testing.assert_array_equal(cholesky(a), l)


@pytest.mark.parametrize("shape", [(0, 5, 5), (3, 0, 5, 5), (0, 0), (4, 0, 0), (2, 3, 0, 0)], ids=str)
def test_empty_arrays_need_no_backend(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    monkeypatch.setattr(host_factorizations, "get_backend", lambda _: pytest.fail("nothing is to be computed"))
    l, info = cholesky_ex(np.empty(shape, dtype=np.float32))
    assert (l.shape, l.dtype, info.shape, info.dtype) == (shape, np.float32, shape[:-2], np.int32)
    assert not info.any()
    assert cholesky(np.empty(shape)).shape == shape


def test_empty_arrays_are_refused_what_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = np.empty((0, N, N), dtype=np.float32)
    spec = default_spec(N, target="generic")
    assert cholesky(nothing, backend="cuda", spec=spec).shape == (0, N, N), "no GPU is needed for nothing"
    with pytest.raises(ValueError, match="backend='junk' is unknown"):
        cholesky(nothing, backend="junk")
    with pytest.raises(TypeError, match="spec: got str, expected a KernelSpec"):
        cholesky(nothing, spec="junk")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"spec: got .* float32 matrices of order 5, expected float64 and 5"):
        cholesky_ex(nothing.astype("float64"), spec=spec)
    monkeypatch.setenv("BATCHCHOL_BACKEND", "abacus")
    with pytest.raises(UnknownBackend, match=r"^BATCHCHOL_BACKEND='abacus' is unknown"):
        cholesky(nothing)


@pytest.mark.parametrize("function", [cholesky, cholesky_ex])
@pytest.mark.parametrize("shape", [(), (5,), (5, 4), (3, 4, 5), (0, 1)], ids=str)
def test_what_is_not_square_is_refused(function: Callable[[Array], object], shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="square") as caught:
        function(np.ones(shape, dtype=np.float32))
    assert f"a: got shape {shape}" in str(caught.value)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "float16", "longdouble", "complex64", "object", "U1"])
def test_other_dtypes_are_refused(dtype: str) -> None:
    with pytest.raises(TypeError, match="expected float32 or float64") as caught:
        cholesky(np.ones((3, 3), dtype=dtype))
    assert f"a: got dtype {np.dtype(dtype)}" in str(caught.value)


def test_lists_of_integers_are_refused_with_a_way_to_make_them_arrays() -> None:
    with pytest.raises(TypeError, match=r"a: got dtype int64, .* pass np\.asarray\(a, dtype=float\)"):
        cholesky([[4, 2], [2, 5]])
    with pytest.raises(TypeError, match=r"a: got dtype int64, .* convert with \.astype first"):
        cholesky(np.array([[4, 2], [2, 5]], dtype="int64").view(np.recarray))


def test_masked_elements_are_refused(spd: Spd) -> None:
    a = np.ma.array(spd(7, N))
    np.testing.assert_array_equal(cholesky(a), cholesky(a.data))
    a[3, 2, 2] = np.ma.masked
    with pytest.raises(ValueError, match=r"^a: got .* masked.*\.filled\(\)"):
        cholesky(a)


def damaged(a: Array, orders: dict[int, int]) -> Array:
    """The matrices with leading minors of given orders, and none before, negative in the members named."""
    a = a.copy()
    for member, order in orders.items():
        a[member, order - 1, order - 1] = -1
    return a


FAILURES = {0: 1, 7: 5, 8: 2, 13: 4, 18: 3}


@pytest.mark.parametrize("upper", [False, True])
def test_failing_members_have_info_and_harm_no_neighbour(spd: Spd, upper: bool) -> None:
    a = spd(19, N)
    good = cholesky(a, upper=upper)
    l, info = cholesky_ex(damaged(a, FAILURES), upper=upper)
    np.testing.assert_array_equal(info, [FAILURES.get(member, 0) for member in range(19)])
    for member in range(19):
        valid = FAILURES.get(member, N + 1) - 1
        kept = np.s_[:valid, :] if upper else np.s_[:, :valid]
        np.testing.assert_array_equal(l[member][kept], good[member][kept])


def test_exception_names_the_first_failure_and_counts_them(spd: Spd) -> None:
    a = damaged(spd(24, N), {9: 4, 17: 1})
    with pytest.raises(np.linalg.LinAlgError, match=r"matrix 9 .* order 4 .*2 of 24"):
        cholesky(a)
    with pytest.raises(np.linalg.LinAlgError, match=r"matrix \(1, 0, 1\) .* order 4 .*2 of 24"):
        cholesky(a.reshape(3, 2, 4, N, N))
    with pytest.raises(np.linalg.LinAlgError, match=r"^the matrix .* order 4 .*1 of 1"):
        cholesky(a[9])


def first_bad_minor(matrix: list[list[int]]) -> tuple[int, bool]:
    """The order of the first leading minor that is not positive, or 0, and whether it is 0: in exact arithmetic."""
    rows = [[Fraction(x) for x in row] for row in matrix]
    for k, row in enumerate(rows):
        if row[k] <= 0:
            return k + 1, row[k] == 0
        for other in range(k + 1, len(rows)):
            scale = rows[other][k] / row[k]
            rows[other] = [x - scale * y for x, y in zip(rows[other], row, strict=True)]
    return 0, False


@given(lower=st.lists(st.integers(-4, 9), min_size=10, max_size=10), dtype=st.sampled_from(["float32", "float64"]))
def test_info_is_the_order_of_the_first_minor_that_is_not_positive(lower: list[int], dtype: str) -> None:
    a = np.zeros((4, 4), dtype=int)
    a[np.tril_indices(4)] = lower
    expected, singular = first_bad_minor((a + np.tril(a, -1).T).tolist())
    # A pivot that is exactly 0 may be rounded to either side of it.
    assume(not singular)
    assert cholesky_ex(a.astype(dtype)).info == expected


@pytest.mark.parametrize("bad", [0.0, -0.0, -1.0, -1e-40, -np.inf, np.nan])
def test_pivot_that_is_not_greater_than_zero(bad: float) -> None:
    a = np.broadcast_to(np.eye(4, dtype=np.float32), (4, 4, 4)).copy()
    for member in range(4):
        a[member, member, member] = bad
    np.testing.assert_array_equal(cholesky_ex(a).info, [1, 2, 3, 4])


def test_singular_matrix_fails_where_its_rank_ends() -> None:
    assert cholesky_ex(np.ones((4, 4), dtype=np.float32)).info == 2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("row", "column"), [(i, j) for i in range(4) for j in range(i)])
def test_element_that_is_not_finite_fails_at_its_row(spd: Spd, row: int, column: int, bad: float) -> None:
    a = spd(3, 4)
    a[1, row, column] = bad
    np.testing.assert_array_equal(cholesky_ex(a).info, [0, row + 1, 0])


def test_all_nan_fails_at_once_and_raises_nothing_else() -> None:
    a = np.full((3, 4, 4), np.nan, dtype=np.float32)
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(cholesky_ex(a).info, [1, 1, 1])
    with pytest.raises(np.linalg.LinAlgError, match="3 of 3"):
        cholesky(a)


@pytest.mark.parametrize("upper", [False, True])
def test_exception_says_whether_there_is_a_nan(spd: Spd, upper: bool) -> None:
    a = damaged(spd(9, N), {5: 2})
    a[3, 2, 1] = a[3, 1, 2] = np.nan
    # That of a matrix that failed before it came to its NaN is of no matter.
    a[5, 4, 4] = np.nan
    with pytest.raises(np.linalg.LinAlgError, match=r"matrix 3 .* minor of order 3 has a NaN \(2 of 9 matrices"):
        cholesky(a, upper=upper)
    with pytest.raises(np.linalg.LinAlgError, match=r"matrix 1 .* minor of order 2 is not \(1 of 5 matrices"):
        cholesky(a[4:], upper=upper)


@pytest.mark.parametrize(
    ("layout", "order", "upper"),
    [(layout, order, False) for layout in ("canonical", "interleaved", "chunked") for order in ("row", "col")]
    + [("canonical", "col", True), ("chunked", "col", True)],
)
def test_spec_of_every_layout_gives_the_same_answer(spd: Spd, layout: str, order: str, upper: bool) -> None:
    uplo = "upper" if upper else "lower"
    spec = default_spec(N, target=get_backend().target, layout=layout, order=order, uplo=uplo)
    a = spd(37, N)
    before = a.copy()
    l = cholesky(a, spec=spec, upper=upper)
    assert_factors(l.swapaxes(-1, -2) if upper else l, a)
    np.testing.assert_array_equal(l, np.triu(l) if upper else np.tril(l))
    np.testing.assert_array_equal(a, before)
    info = cholesky_ex(damaged(a, {36: 2}), spec=spec, upper=upper).info
    np.testing.assert_array_equal(info, [0] * 36 + [2])


@pytest.mark.parametrize("target", supported_targets())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_spec_of_every_target_gives_the_same_answer(spd: Spd, target: str, dtype: str) -> None:
    a = spd(37, N, dtype=dtype)
    l = cholesky(a, spec=default_spec(N, target=target, dtype=dtype, layout="canonical", order="row"))
    assert_factors(l, a)
    np.testing.assert_array_equal(l, np.tril(l))


def test_spec_of_another_problem_is_refused(spd: Spd) -> None:
    spec = default_spec(N, target=get_backend().target)
    a = spd(3, N)
    with pytest.raises(ValueError, match=r"spec: got .*float32 matrices of order 5, expected float32 and 4"):
        cholesky(spd(3, 4), spec=spec)
    with pytest.raises(ValueError, match=r"spec: got .*float32 .*expected float64"):
        cholesky(a.astype("float64"), spec=spec)
    with pytest.raises(ValueError, match=r"spec: got the lower triangle, expected .*upper=True"):
        cholesky(a, spec=spec, upper=True)
    with pytest.raises(TypeError, match="spec: got str, expected a KernelSpec"):
        cholesky(a, spec="fast")
    with pytest.raises(ValueError, match="spec: got in_place=True"):
        cholesky(a, spec=default_spec(N, target=spec.target, layout="canonical", order="row", in_place=True))


@pytest.mark.skipif("avx512" in supported_targets(), reason="this machine runs every target")
def test_spec_for_another_machine_is_refused(spd: Spd) -> None:
    with pytest.raises(ValueError, match=r"avx512.*is not among this CPU's"):
        cholesky(spd(3, N), spec=default_spec(N, target="avx512"))


def test_backend_by_argument_and_by_environment(spd: Spd, monkeypatch: pytest.MonkeyPatch) -> None:
    a = spd(3, N)
    expected = cholesky(a, backend="cpu")
    monkeypatch.setenv("BATCHCHOL_BACKEND", "abacus")
    with pytest.raises(BackendUnavailable, match=r"'abacus' is unknown.*'cpu'"):
        cholesky(a)
    np.testing.assert_array_equal(cholesky(a, backend="cpu"), expected, err_msg="the argument comes first")
    monkeypatch.setenv("BATCHCHOL_BACKEND", "")
    np.testing.assert_array_equal(cholesky(a), expected, err_msg="an empty variable is no choice")
    for other in ("other", "", 3):
        with pytest.raises(UnknownBackend, match=rf"^backend={other!r} is unknown: use one of 'cpu'") as caught:
            cholesky(a, backend=other)  # type: ignore[call-overload]
        assert isinstance(caught.value, BackendUnavailable)
        assert isinstance(caught.value, ValueError)


def test_any_number_of_threads_gives_the_same_bits(spd: Spd, monkeypatch: pytest.MonkeyPatch) -> None:
    a = spd(50_000, N)
    results = []
    for threads in ("1", "2", "3", "8"):
        monkeypatch.setenv("BATCHCHOL_THREADS", threads)
        results.append(cholesky_ex(damaged(a, {49_999: 3})))
    for other in results[1:]:
        np.testing.assert_array_equal(other.info, results[0].info)
        np.testing.assert_array_equal(other.L[:-1], results[0].L[:-1])
