"""jitter: those that fail are factored and solved by again, with something on their diagonal, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import (
    Batch,
    RepairedCholesky,
    RepairedSolution,
    cholesky,
    cholesky_ex,
    solve,
    solve_ex,
)
from batchchol.api import repairs
from batchchol.backends import Backend
from batchchol.operations.posv import ratio_bound, ratios

from .test_arguments_refused import ODD
from .test_cho_solve import LAYOUTS, columns

Array = NDArray[Any]
Spd = Callable[..., Array]
N = 6
# By how much of its mean diagonal the least eigenvalue of each is below zero: how many tries repair it in float64.
NEEDED = {3: (3e-9, 1), 8: (3e-8, 2), 11: (3e-7, 3), 12: (3e-6, None)}


def batch_of(spd: Spd, n: int = N, dtype: str = "float64", scale: float = 1) -> Array:
    """Some matrices; those of NEEDED have a negative eigenvalue of that share of their mean, times `scale`.

    Their largest eigenvalue is 1.
    """
    a = spd(14, n, dtype=dtype)
    for member, (below, _) in NEEDED.items():
        basis = np.linalg.qr(np.random.default_rng(member).random((n, n)))[0]
        values = np.linspace(0.1, 1, n)
        values[0] = 0
        values[0] = -below * scale * values.mean()
        a[member] = (basis * values) @ basis.T
    return a


def expected_added(a: Array, member: int, tries: int) -> float:
    return float(1e-8 * 10 ** (tries - 1) * np.diagonal(a[member]).mean())


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("n", [N, 130])
def test_those_that_fail_are_factored_again(spd: Spd, n: int, upper: bool) -> None:
    a = batch_of(spd, n)
    before, plain = a.copy(), cholesky_ex(a, upper=upper)
    assert np.flatnonzero(plain.info).tolist() == list(NEEDED)
    found = cholesky_ex(a.reshape(2, 7, n, n), upper=upper, jitter="auto")
    assert isinstance(found, RepairedCholesky)
    l, info, added = (each.reshape(14, *each.shape[2:]) for each in found)
    np.testing.assert_array_equal(a, before, err_msg="the input is left as it was")
    assert np.flatnonzero(info).tolist() == [12]
    assert added.dtype == a.dtype
    for member in range(14):
        _, tries = NEEDED.get(member, (0, 0))
        wanted = 0 if tries == 0 else expected_added(a, member, tries or repairs.TRIES)
        assert added[member] == pytest.approx(wanted)
        if tries == 0:
            np.testing.assert_array_equal(l[member], plain.L[member])
        elif tries:
            product = l[member].T @ l[member] if upper else l[member] @ l[member].T
            np.testing.assert_allclose(product, a[member] + wanted * np.eye(n), atol=1e-14)


@pytest.mark.parametrize("shape", [(14, N), (14, N, 2), (N,), (3, 14, N, 1)], ids=str)
def test_those_that_fail_are_solved_by_again(spd: Spd, shape: tuple[int, ...]) -> None:
    a, b = batch_of(spd), columns(*shape, dtype="float64")
    plain = solve_ex(a, b)
    for layout in (None, *LAYOUTS):
        given = a if layout is None else Batch.from_dense(a, layout)
        x, info, added = solve_ex(given, b, jitter=1e-8)
        assert (x.shape, info.shape, added.shape) == (plain.x.shape, (14,), (14,))
        assert np.flatnonzero(info).tolist() == [12]
        assert np.flatnonzero(added).tolist() == list(NEEDED)
        good = np.flatnonzero(info == 0)
        repaired = a + added[:, None, None] * np.eye(N)
        panels = b[..., None] if b.shape in ((N,), (14, N)) else b
        columns_of = np.broadcast_to(panels, (*np.broadcast_shapes(panels.shape[:-2], (14,)), *panels.shape[-2:]))
        solved = x.reshape(columns_of.shape)
        for each in (slice(None),) if columns_of.ndim == 3 else range(len(columns_of)):
            found = ratios(repaired[good], columns_of[each][good], solved[each][good])
            assert found.max() <= ratio_bound(N, "ieee")


def test_right_hand_sides_are_kept_until_then(spd: Spd) -> None:
    a, b = batch_of(spd), columns(14, N, dtype="float64")
    expected = solve_ex(a, b, jitter="auto")
    mine = b.copy()
    for arguments in ({"overwrite_b": True}, {"out": mine}):
        x = solve_ex(a, mine, jitter="auto", **arguments).x
        np.testing.assert_array_equal(x[:12], expected.x[:12])


def test_what_cannot_be_repaired_is_named(spd: Spd) -> None:
    a, b = batch_of(spd), columns(14, N, dtype="float64")
    for call in (lambda: cholesky(a, jitter="auto"), lambda: solve(a, b, jitter="auto")):
        with pytest.raises(np.linalg.LinAlgError, match=r"matrix 12 .* \(1 of 14 matrices failed; "):
            call()
    # More helps.
    assert cholesky(a, jitter=1e-4).shape == a.shape
    assert solve(a, b, jitter=np.float32(1e-4)).shape == b.shape


def test_matrices_without_hope_are_not_tried(spd: Spd, monkeypatch: pytest.MonkeyPatch) -> None:
    a = spd(5, N)
    a[1, 2, 2], a[2], a[4, 0, 0] = np.nan, -a[2], np.inf
    found = cholesky_ex(a, jitter="auto")
    assert found.info.tolist() == cholesky_ex(a).info.tolist()
    assert found.added.tolist() == [0] * 5


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 0), (0, 0)], ids=str)
def test_nothing_to_repair(shape: tuple[int, ...]) -> None:
    a = np.empty(shape, np.float32)
    assert cholesky_ex(a, jitter="auto").added.shape == shape[:-2]
    assert solve_ex(a, np.empty(shape[:-1], np.float32), jitter="auto").added.shape == shape[:-2]


def test_results_have_their_names(spd: Spd) -> None:
    a, b = spd(3, N), columns(3, N)
    assert cholesky_ex(a, jitter="auto")._fields == ("L", "info", "added")
    assert isinstance(solve_ex(a, b, jitter=1), RepairedSolution)
    assert cholesky_ex(a)._fields == ("L", "info")
    assert solve_ex(a, b)._fields == ("x", "info")
    assert cholesky_ex(a, jitter="auto").added.dtype == np.float32


@pytest.mark.parametrize("wrong", [0, -1e-6, np.nan, np.inf, True, "much", *ODD], ids=lambda odd: type(odd).__name__)
def test_what_is_no_multiple_is_refused(spd: Spd, wrong: Any) -> None:
    if wrong is None or (isinstance(wrong, int | float) and not isinstance(wrong, bool) and 0 < wrong < np.inf):
        return
    a = spd(2, N)
    for call in (
        lambda: cholesky(a, jitter=wrong),
        lambda: cholesky_ex(a[:0], jitter=wrong),
        lambda: solve(a, columns(2, N), jitter=wrong),
        lambda: solve_ex(Batch.from_dense(a), columns(2, N), jitter=wrong),
    ):
        with pytest.raises(ValueError, match=r"^jitter: got .*, expected a positive number, 'auto' or None"):
            call()


def test_arrays_of_the_host_by_a_gpu(cuda: Backend, spd: Spd) -> None:
    a, b = batch_of(spd), columns(14, N, dtype="float64")
    for found in (cholesky_ex(a, backend="cuda", jitter="auto"), solve_ex(a, b, backend="cuda", jitter="auto")):
        assert np.flatnonzero(found.info).tolist() == [12]
        assert np.flatnonzero(found.added).tolist() == list(NEEDED)
