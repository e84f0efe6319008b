"""What solves for a call of solve: one kernel or two, on some threads, or LAPACK where there is no compiler."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import Batch, Layout, NoCompilerWarning, solve, solve_ex
from batchchol.backends import lapack
from batchchol.errors import BackendUnavailable, CompilerNotFound
from batchchol.operations.posv import oracle
from kernelgen import SpecError

from ..artifacts.test_no_compiler import bare, warned
from .test_cho_solve import LAYOUTS, columns
from .test_solve import FUSED, NRHS, N, assert_solves

__all__ = ["bare", "warned"]

Spd = Callable[..., NDArray[Any]]

# ---- Which kernel, on how many threads ----


def test_maths_and_threads(spd: Spd) -> None:
    a, b = spd(3000, 16), columns(3000, 16, 4)
    expected = solve(a, b, threads=1)
    assert_solves(a, b, expected)
    assert_solves(a, b, solve(a, b, math="fast"))
    assert_solves(a[:40, :N, :N], b[:40, :N], solve(a[:40, :N, :N], b[:40, :N], spec=FUSED))
    with ThreadPoolExecutor(4) as pool:
        for x in pool.map(lambda threads: solve(a, b, threads=threads), (1, 2, np.int64(3), 4)):
            np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_where_there_is_no_kernel_for_both_there_are_two(
    spd: Spd, layout: Layout, upper: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from batchchol.api.solves import host_solves

    chosen = host_solves.chosen_kernel

    def without(op: str, *rest: Any, **named: Any) -> Any:
        if op == "posv":
            raise SpecError("no such kernel")
        return chosen(op, *rest, **named)

    monkeypatch.setattr(host_solves, "chosen_kernel", without)
    a, b = spd(40, N), columns(40, N, NRHS)
    a[7] *= -1
    for given in (a, Batch.from_dense(a, layout)):
        x, info = solve_ex(given, b, upper=upper)
        assert np.flatnonzero(info).tolist() == [7]
        good = info == 0
        assert_solves(a[good], b[good], x[good], upper=upper)
    with pytest.raises(SpecError):
        solve(a, b, spec=FUSED)


# ---- LAPACK ----


@pytest.mark.usefixtures("warned")
@pytest.mark.parametrize("layout", [*LAYOUTS, Layout.chunked(3)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("upper", [False, True])
def test_without_a_compiler(spd: Spd, layout: Layout, dtype: str, upper: bool) -> None:
    a = spd(40, N, dtype=dtype)
    batch = Batch.from_dense(a, layout)
    for b in (columns(40, N, dtype=dtype), columns(N, NRHS, dtype=dtype)):
        assert_solves(a, b, solve(a, b, upper=upper), upper=upper)
        assert_solves(a, b, solve(batch, b, upper=upper, threads=2), upper=upper)
    a[7, 1, 1] = np.nan
    assert np.flatnonzero(solve_ex(Batch.from_dense(a, layout), columns(40, N, 0, dtype=dtype)).info).tolist() == [7]


@pytest.mark.usefixtures("bare")
def test_without_a_compiler_it_is_said_where_it_was_called(spd: Spd) -> None:
    with pytest.raises((BackendUnavailable, CompilerNotFound), match="no usable C compiler"):
        solve(spd(3, N), columns(3, N), spec=FUSED)
    for call in (solve, solve_ex):
        with pytest.warns(NoCompilerWarning) as caught:
            call(spd(3, N), columns(3, N))
        assert [each.filename for each in caught] == [__file__]
        from batchchol.artifacts import no_compiler

        no_compiler._FIRST.release()


def test_lapack_solves_in_place_and_in_blocks(spd: Spd) -> None:
    a, b = spd(700, 33), columns(700, 33, 5)
    a[650] *= -1
    good = np.arange(700) != 650
    expected = oracle(a[good], b[good])
    for threads in (1, 2):
        x = b.copy()
        assert np.flatnonzero(lapack.posv(a, x, x, False, threads)).tolist() == [650]
        np.testing.assert_allclose(x[good], expected, rtol=1e-3, atol=1e-3)
        assert np.isnan(x[650]).all()
