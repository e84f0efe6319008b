"""The warp family in float64, emulated: layouts, teams, wide accesses, failing members, what barriers are for."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from batchchol.operations.residual import RATIO_BOUND, ratios
from kernelgen import KernelSpec, SpecError, generate

from ....emulation.checks import CompiledTogether, check_arrays_that_begin_anywhere, check_kernel, mutated
from ....emulation.programs import EmulationError
from ....kernel_runs import make_spec, run_kernel
from ....matrices import dominant

double = partial(make_spec, family="warp", target="cuda", dtype="float64")
arrays = partial(double, layout="canonical", order="row")

# Each with its chunk, if any: one tile and several, with and without padding; teams and their shares.
CASES = {
    arrays(7, matrices=4): None,
    arrays(24, matrices=2, unroll="full", in_place=True): None,
    arrays(33, teams=8): None,
    arrays(42, uplo="upper", math="fast"): None,
    arrays(66, warps=2): None,
    arrays(97, warps=8): None,
    double(20, layout="canonical", order="col", in_place=True): None,
    double(16, matrices=2, stride=2, teams=4): 2,
    double(14, matrices=4, teams=1, stride=4): 4,
    double(31, order="row", math="fast"): 3,
    double(60, warps=4, stride=2, unroll="full"): 2,
    double(9, matrices=2, layout="interleaved"): None,
}
emulated = CompiledTogether(CASES)


@pytest.mark.parametrize("spec", CASES, ids=lambda spec: spec.name)
def test_factors_of_every_layout_and_team(spec: KernelSpec) -> None:
    check_kernel(spec, 5, CASES[spec], emulated(spec))


@pytest.mark.parametrize("spec", [arrays(7, matrices=4), arrays(33, teams=8)], ids=lambda spec: spec.name)
def test_failing_members_harm_no_neighbour(spec: KernelSpec) -> None:
    a, n = dominant(9, spec.problem.n), spec.problem.n
    good = run_kernel(spec, a, kernel=emulated(spec)).l
    a[::3, 2, 2], a[1::3, n - 1, n - 1], a[2, 0, 0] = np.nan, -1, 0
    run = run_kernel(spec, a, kernel=emulated(spec))
    assert run.info.tolist() == [3, n, 1, 3, n, 0, 3, n, 0]
    assert np.array_equal(np.tril(run.l[5::3]), np.tril(good[5::3]))


def test_pivots_that_are_infinite_or_tiny() -> None:
    """Infinite ones are good, as in LAPACK; of tiny ones only the exponents of the factor change."""
    spec = arrays(33, teams=8)
    a = dominant(4, 33)
    good = run_kernel(spec, a, kernel=emulated(spec)).l
    assert np.array_equal(good[:, 0, 0], np.sqrt(a[:, 0, 0]))
    a[1::2, 2, 2] = np.inf
    run = run_kernel(spec, a, kernel=emulated(spec))
    assert not run.info.any()
    assert np.isposinf(run.l[1::2, 2, 2]).all()
    assert (run.l[1::2, 3:, 2] == 0).all()
    assert np.array_equal(np.tril(run.l[::2]), np.tril(good[::2])), "neighbours are changed"
    tiny = run_kernel(spec, np.ldexp(dominant(4, 33), -940), kernel=emulated(spec)).l
    assert np.array_equal(np.tril(tiny), np.ldexp(np.tril(good), -470))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("n", [8, 9])
def test_arrays_that_begin_anywhere(n: int, in_place: bool) -> None:
    spec = arrays(n, matrices=2, in_place=in_place)
    assert ("struct Pairs" in generate(spec).text) == (n % 2 == 0)
    check_arrays_that_begin_anywhere(spec)


def test_chunks_that_begin_anywhere() -> None:
    check_arrays_that_begin_anywhere(double(16, matrices=2, stride=2, teams=4))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"update": "fma"}, "^update='fma' .*use 'tensor'"),
        ({"op": "posv", "layout": "chunked", "order": "col"}, "^op='posv' .*use another family"),
        ({"n": 56}, r"^warps=1 .*n=56 is 152 registers of each thread, over 128; use more"),
        ({"n": 128, "warps": 4, "teams": 1}, r"^warps=4 .*n=128 is 144 registers .*use more"),
        ({"n": 16, "dtype": "float32", "warps": 4, "teams": 1}, "^warps=4 .*float32 has up to 2 warps"),
    ],
    ids=str,
)
def test_refusals(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        arrays(**{"n": 40, **changes})  # type: ignore[arg-type]


# ---- One line changed ----

ONE, SEVERAL = arrays(27, teams=1), arrays(27, warps=2)
CHANGED = {
    "no products of even columns": (ONE, r"multiply_add\(c\[\d+\], a\[\d\]\[0\], even\);", "", 0),
    "no products of odd columns": (ONE, r"multiply_add\(c\[\d+\], a\[\d\]\[1\], odd\);", "", 0),
    "one product less": (ONE, r"multiply_add\(c\[\d+\] \+ 2, a\[1\]\[3\], odd\);", "", 1),
    "a column that nothing is taken from": (ONE, r"case 2:", "case 20:", 1),
    "a multiply-add of a factorization": (ONE, r"next\[i\] -= l\[i\]\[q\] \* l\[p \+ 1\]\[q\];", ";", 1),
    "a multiply-add of a solution": (ONE, r"x\[slot\]\[p\] -= x\[slot\]\[q\] \* l\[p\]\[q\];", ";", 1),
    "a row handed to the tiles": (ONE, r"write_row\(rows, x\[slot\], places\[slot\]\);", "{}", 1),
    "a tile handed to the rows": (ONE, r"write_blocks\(next .*\n", "", 1),
    "a pair of the other matrix half": (SEVERAL, r"read_pair\(f, row \+ 64\);", "read_pair(f, row);", 1),
}


@pytest.mark.parametrize("change", CHANGED)
def test_the_source_with_a_line_changed_fails(change: str) -> None:
    spec, pattern, replacement, count = CHANGED[change]
    kernel, a = mutated(spec, pattern, replacement, count), dominant(3, spec.problem.n)
    try:
        run = run_kernel(spec, a, kernel=kernel)
    except EmulationError:
        return
    assert run.info.any() or ratios(a, run.l).max() > RATIO_BOUND["fast"]


@pytest.mark.parametrize("place", range(generate(SEVERAL).text.count("__syncthreads();")))
def test_every_barrier_is_needed(place: int) -> None:
    kernel = mutated(SEVERAL, r"__syncthreads\(\);", "", place=place)
    with pytest.raises(EmulationError, match=r"depends on the order|not all threads reach|missing from"):
        run_kernel(SEVERAL, dominant(3, 27), kernel=kernel)
