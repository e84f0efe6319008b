"""The whole family, emulated, also of orders above those of all kernels."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol.operations.residual import RATIO_BOUND, ratios
from kernelgen import MAX_ON_CHIP, KernelSpec, generate
from kernelgen.schedules.whole import WholeShape

from ....emulation.checks import (
    CompiledTogether,
    check_arrays_that_begin_anywhere,
    check_kernel,
    mutated,
)
from ....emulation.kernels import EmulatedKernel
from ....emulation.programs import EmulationError
from ....kernel_runs import GuardedMemory, make_spec, run_kernel
from ....matrices import DATA, conditioned, dominant, lapack_factor, long_tails, longest_tails, wishart

whole_spec = partial(make_spec, family="whole", target="cuda", layout="canonical", order="row")
warp_spec = partial(
    make_spec, family="warp", target="cuda", layout="canonical", order="row", teams=1, update="tensor"
)

# Lines by pieces and by elements; a last tile that is full, one that has a row, and one with rows of the identity;
# more slots than one; idle warps.
SMALL = [
    whole_spec(n, dtype=dtype, warps=warps, math=math, uplo=uplo, order=order, in_place=in_place)
    for n, dtype, warps, math, uplo, order, in_place in (
        (1, "float32", 1, "ieee", "lower", "row", False),
        (7, "float64", 2, "ieee", "upper", "row", False),
        (8, "float32", 1, "ieee", "lower", "row", True),
        (9, "float64", 1, "ieee", "lower", "col", False),
        (33, "float32", 3, "ieee", "lower", "row", False),
        (40, "float32", 1, "ieee", "upper", "row", True),
        (46, "float64", 1, "ieee", "lower", "row", False),
        (35, "float64", 1, "ieee", "lower", "row", True),
        (39, "float32", 2, "ieee", "lower", "row", False),
        (52, "float32", 2, "ieee", "upper", "col", False),
        (72, "float64", 2, "ieee", "lower", "row", True),
        (20, "float64", 16, "fast", "lower", "row", False),
        (36, "float32", 1, "fast", "lower", "row", False),
        (49, "float32", 2, "fast", "upper", "row", True),
    )
]
# Orders above those of all kernels.
LARGER = [
    whole_spec(150, warps=4),
    whole_spec(129, dtype="float64", warps=4, uplo="upper", in_place=True),
]
emulated = CompiledTogether(SMALL, LARGER)


@pytest.mark.parametrize("spec", SMALL, ids=lambda spec: spec.name)
def test_orders_of_all_kernels(spec: KernelSpec) -> None:
    check_kernel(spec, 5, kernel=emulated(spec))


@pytest.mark.parametrize("spec", LARGER, ids=lambda spec: spec.name)
def test_larger_orders(spec: KernelSpec) -> None:
    """Nothing of the triangle that is not read counts; a member that fails in a late panel harms no other."""
    n, kernel = spec.problem.n, emulated(spec)
    a = wishart(3, n).astype(spec.problem.dtype)
    l, info = factored(kernel, a)
    assert not info.any()
    assert ratios(a, l).max() <= RATIO_BOUND["ieee"]
    failing = a.copy()
    failing[1, n - 2, n - 2] = np.nan
    beside, info = factored(kernel, failing)
    assert np.array_equal(info, [0, n - 1, 0])
    assert np.array_equal(beside[::2], l[::2])
    assert np.array_equal(beside[1, :, : n - 2], l[1, :, : n - 2])


def factored(kernel: EmulatedKernel, a: NDArray[np.floating]) -> tuple[NDArray[np.floating], NDArray[np.int32]]:
    """Lower factors and info of matrices, whose other triangle has NaN for the kernel."""
    spec, (batch, n, _) = kernel.spec, a.shape
    upper = (spec.problem.uplo == "upper") == (spec.order == "row")
    memory = [GuardedMemory(a.shape, a.dtype) for _ in range(2)]
    given = np.where(np.tri(n, dtype=bool), a, np.nan)
    memory[0].array[...] = given.swapaxes(1, 2) if upper else given
    out = memory[0] if spec.in_place else memory[1]
    info = np.full(batch, -1, np.int32)
    places = (memory[0].array.ctypes.data, out.array.ctypes.data, info.ctypes.data)
    kernel.program.launch_unfenced(kernel.source, batch, *places, 1, batch)
    for guarded in memory:
        guarded.check()
    l = out.array.swapaxes(1, 2) if upper else out.array
    assert not np.triu(np.nan_to_num(l, nan=0), 1).any()
    return l.copy(), info


@pytest.mark.parametrize(
    ("n", "dtype", "pieces"),
    [(12, "float32", True), (10, "float32", False), (12, "float64", True), (10, "float64", False)],
)
def test_arrays_that_begin_anywhere(n: int, dtype: str, pieces: bool) -> None:
    spec = whole_spec(n, dtype=dtype, warps=1)
    assert ("fetch_piece" in generate(spec).text) == pieces
    check_arrays_that_begin_anywhere(spec)


@pytest.mark.parametrize("spec", [whole_spec(20, dtype=dtype, warps=1) for dtype in ("float32", "float64")], ids=str)
def test_pivots_that_are_tiny_or_infinite(spec: KernelSpec) -> None:
    """Those that the short way to roots and reciprocals is not for."""
    a, tiny = dominant(3, 20).astype(spec.problem.dtype), -100 if spec.problem.dtype == "float32" else -980
    good = run_kernel(spec, a).l
    scaled = run_kernel(spec, np.ldexp(a, tiny)).l
    assert np.allclose(np.tril(scaled), np.ldexp(np.tril(good), tiny // 2), rtol=1e-6, atol=0)
    a[1, 2, 2] = np.inf
    run = run_kernel(spec, a)
    assert not run.info.any()
    assert (run.l[1, 3:, 2] == 0).all()
    assert np.isposinf(run.l[1, 2, 2])


@pytest.mark.parametrize("math", ["ieee", "fast"])
def test_hard_matrices(math: str) -> None:
    """Nearly indefinite ones; and those that tensor cores cut as short as they can."""
    spec = whole_spec(33, warps=2, math=math)
    for kind in (conditioned(13, 33, 1e6), long_tails(12, 33), longest_tails(12, 33)):
        a = kind.astype(np.float32)
        assert not lapack_factor(a)[1].any()
        run = run_kernel(spec, a)
        assert not run.info.any()
        assert ratios(a, run.l).max() <= RATIO_BOUND[math] * 0.7


def test_panels_are_apart() -> None:
    """All of them fit, the last one first, and neighbours in a row are in different banks."""
    for n in range(1, max(MAX_ON_CHIP.values()) + 1):
        shape = WholeShape(n, 4, "float32")
        starts = [72 + (shape.side - 1 - k) * (shape.pitch - 32 * (shape.side + k)) for k in range(shape.side)]
        ends = [start + 8 * (shape.rows - 8 * k) for k, start in enumerate(starts)]
        assert starts[-1] == 72
        assert all(end <= start for end, start in zip(ends[1:], starts, strict=False))
        assert 4 * (starts[0] + 64 * shape.side) == shape.shared_bytes
        banks = {(start - 64 * k) % 32 for k, start in enumerate(starts[:4])}
        assert len(banks) == min(shape.side, 4)


# ---- One line changed ----

SINGLE, DOUBLE = whole_spec(36, warps=2), whole_spec(36, dtype="float64", warps=2)
FAST = whole_spec(60, warps=2, math="fast")
CHANGED = {
    "no products of tails and heads": (FAST, r"= tail\(four\[e\]\);", "= 0;"),
    "no products of heads and tails": (FAST, r"\{ tail\(right\[0\]\), tail\(right\[1\]\) \}", "{}"),
    "a column of what others solve with": (SINGLE, r"factor_columns\(\) \+ 8 \* p, 0", "factor_columns(), 0"),
    "the odd panel": (SINGLE, r"if \(k % 2\)", "if (false)"),
    "a swapped half": (SINGLE, r"far = near \^ 4", "far = near"),
    "the second rows": (DOUBLE, r"left\[b\]\[1\] = left\[b\]\[0\] \+", "left[b][1] = left[b][0] + 0 *"),
    "a scaling of a solution": (DOUBLE, r"x\[p\] \*= scales\[p\];", ""),
    "a multiply-add of a factorization": (DOUBLE, r"d\[i\]\[j\] -= .*;", ";"),
    "the factor of a diagonal tile": (DOUBLE, r"factor_columns\(\)\[8 \* p \+ lane\] = x\[p\];", ";"),
}


@pytest.mark.parametrize("change", CHANGED)
def test_the_source_with_a_line_changed_fails(change: str) -> None:
    spec, pattern, replacement = CHANGED[change]
    kernel = mutated(spec, pattern, replacement, 0)
    for name, make in DATA.items():
        a = make(3, spec.problem.n).astype(spec.problem.dtype)
        try:
            run = run_kernel(spec, a, kernel=kernel)
        except EmulationError:
            continue
        assert run.info.any() or ratios(a, run.l).max() > RATIO_BOUND["fast"], name


@pytest.mark.parametrize("place", range(generate(SINGLE).text.count("__syncthreads();")))
def test_every_barrier_is_needed(place: int) -> None:
    kernel = mutated(SINGLE, r"__syncthreads\(\);", "", place=place)
    with pytest.raises(EmulationError, match=r"depends on the order|not all threads reach"):
        run_kernel(SINGLE, dominant(3, 36).astype(np.float32), kernel=kernel)


def test_copies_are_waited_for() -> None:
    kernel = mutated(SINGLE, r"\n    wait_for_fetched\(\);", "")
    with pytest.raises(EmulationError, match="while copies of its own were under way"):
        run_kernel(SINGLE, dominant(3, 36).astype(np.float32), kernel=kernel)
