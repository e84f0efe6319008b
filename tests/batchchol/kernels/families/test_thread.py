"""Every parameter value of the thread family on GPUs, emulated, against the residual bound and LAPACK in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import inf
from typing import Any

import numpy as np
import pytest

from batchchol.operations.residual import RATIO_BOUND, ratios
from kernelgen import Layout, SpecError, generate

from ....covering import Choice, covering_design
from ....emulation.checks import (
    CompiledTogether,
    case_id,
    check_kernel,
    check_last_matrices_past_32_bits,
    check_small_batches,
    spec_of,
)
from ....emulation.kernels import EmulatedKernel
from ....emulation.programs import compile_program
from ....kernel_runs import make_spec, run_kernel
from ....matrices import conditioned, lapack_factor, wishart

FACTORS: Mapping[str, Sequence[Any]] = {
    "n": (1, 2, 5, 17, 33, 64, 127),
    "nb": (1, 2, 3, 4, 5, 7, 8, 16),
    "looking": ("right", "left", "top"),
    "unroll": ("tiles", "full"),
    # An integer is the chunk of the chunked layout.
    "layout": ("canonical", "interleaved", 2, 3, 32, 33, 512),
    "in_place": (False, True),
    "math": ("ieee", "fast"),
    "order": ("row", "col"),
    "uplo": ("lower", "upper"),
    "dtype": ("float32", "float64"),
    # Fewer than a warp, whole warps, and some that no batch is a multiple of.
    "threads": (1, 31, 32, 96, 256, 512),
    "cache": ("l1", "shared"),
    # Whether the chunk is a constant of the code, where there is a chunk.
    "constant_chunk": (False, True),
    "batch": (1, 31, 33, 1000),
}
CONSTRAINED = ("n", "nb", "unroll", "layout", "batch")
# Lines of generated code that a case may have, and what else it costs.
LINE_BUDGET = 3_000
CASE_COST = 500
# Elements of a batch: what one case may take, enough for 1000 matrices of order 33 or 512 of order 48.
ROOM_BUDGET = 1_200_000


def compile_cost(choice: Choice) -> float:
    """What a choice costs, in lines of code; infinite for what is refused or over the budget of one case."""
    lines, chunk = lines_of(choice["n"], choice["nb"], choice["unroll"]), choice["layout"]
    room = max(choice["batch"], chunk if isinstance(chunk, int) else 1) * choice["n"] ** 2
    return inf if lines > LINE_BUDGET or room > ROOM_BUDGET else lines + CASE_COST


@cache
def lines_of(n: int, nb: int, unroll: str) -> float:
    try:
        return generate(make_spec(n, nb, unroll=unroll, target="cuda")).text.count("\n")
    except SpecError:
        return inf


# Choices of equal flags follow one another, and so do their tests: what is compiled together is used together.
DESIGN = sorted(
    covering_design(FACTORS, CONSTRAINED, compile_cost), key=lambda choice: (choice["math"], choice["dtype"])
)


emulated = CompiledTogether(spec_of(choice)[0] for choice in DESIGN)


@pytest.mark.parametrize("choice", DESIGN, ids=case_id)
def test_every_pair_of_values(choice: Choice) -> None:
    spec, chunk = spec_of(choice)
    check_kernel(spec, choice["batch"], chunk, emulated(spec))


# Other tile sizes, with a corner and in straight-line code, which has no microkernels that no tile needs.
@pytest.mark.parametrize(
    ("n", "nb", "looking"),
    [
        (8, 6, "right"),
        (20, 9, "left"),
        (13, 10, "top"),
        (13, 12, "right"),
        (16, 15, "right"),
    ],
)
def test_other_tile_sizes(n: int, nb: int, looking: str) -> None:
    check_kernel(make_spec(n, nb, looking=looking, unroll="full", target="cuda"), 33)


def test_largest_matrices_by_largest_tiles() -> None:
    spec = make_spec(128, 16, looking="left", layout="interleaved", target="cuda", math="fast")
    source = generate(spec)
    # Unoptimized, so long a code compiles in half the time.
    check_kernel(spec, 5, kernel=EmulatedKernel(spec, source, compile_program((source,), ("-O0",))))


def test_longest_straight_line_code() -> None:
    check_kernel(make_spec(33, 5, unroll="full", target="cuda"), 33)


# Small matrices leave the least room for the errors of an approximate root.
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("math", ["ieee", "fast"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_roots_of_pivots_all_over_their_range(dtype: str, math: str, n: int) -> None:
    pivots = np.linspace(1, 4, 20_000) * np.exp2(np.resize([-20, 0, 40], 20_000))
    factors = np.tril(np.random.default_rng(5).random((len(pivots), n, n)) + 0.5)
    a = (factors @ factors.swapaxes(1, 2) * pivots[:, None, None]).astype(dtype)
    run = run_kernel(make_spec(n, 1, target="cuda", dtype=dtype, math=math, layout="interleaved"), a)
    assert not run.info.any()
    assert ratios(a, run.l).max() <= RATIO_BOUND[math]


def test_same_bits_for_every_chunk() -> None:
    spec = make_spec(17, 4, target="cuda")
    a = wishart(97, 17).astype(np.float32)
    expected = run_kernel(spec, a).l
    for chunk in (2, 3, 5, 8, 33, 97, 104, 512):
        assert run_kernel(spec, a, chunk).l.tobytes() == expected.tobytes(), chunk


@pytest.mark.parametrize("layout", ["canonical", "interleaved", "chunked"])
def test_every_small_batch(layout: str) -> None:
    check_small_batches(make_spec(5, 2, layout=layout, target="cuda"))


# Condition numbers a little short of where rounding alone makes a matrix indefinite.
@pytest.mark.parametrize(("dtype", "condition"), [("float32", 1e6), ("float64", 1e14)])
@pytest.mark.parametrize("math", ["ieee", "fast"])
def test_ill_conditioned(math: str, dtype: str, condition: float) -> None:
    spec = make_spec(17, 4, math=math, dtype=dtype, target="cuda")
    a = conditioned(33, 17, condition).astype(dtype)
    assert not lapack_factor(a)[1].any(), "LAPACK factors these"
    run = run_kernel(spec, a)
    assert not run.info.any()
    assert ratios(a, run.l).max() <= RATIO_BOUND[math]


@pytest.mark.parametrize(
    "layout", [Layout.canonical(), Layout.interleaved(), *map(Layout.chunked, (32, 33))], ids=str
)
def test_last_matrices_of_a_batch_past_32_bits(layout: Layout) -> None:
    spec = make_spec(2, 1, layout=layout.kind, order=layout.order, in_place=True, target="cuda")
    check_last_matrices_past_32_bits(spec, layout)
