"""The shared family, emulated: every parameter value, what its published ancestors got wrong, single matrices."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from math import inf
from typing import Any

import numpy as np
import pytest

from batchchol.operations.residual import RATIO_BOUND, ratios
from kernelgen import CUDA, KernelSource, KernelSpec, Problem, SharedSchedule, SpecError, generate
from kernelgen.emit.families.shared import generate_single

from ....covering import Choice, covering_design
from ....emulation import checks as cuda_checks
from ....emulation.checks import FORWARD_BOUND, CompiledTogether, check_kernel
from ....emulation.kernels import EmulatedKernel
from ....emulation.programs import EmulationError, launch
from ....kernel_runs import UNTOUCHED, make_spec, run_kernel
from ....matrices import DATA, dominant, reference

FACTORS: Mapping[str, Sequence[Any]] = {
    "n": (1, 2, 5, 8, 17, 31, 33, 65, 128),
    "nb": (1, 2, 3, 4, 8, 11, 16, 32),
    # The default, and numbers that no batch of the design but 1 is a multiple of.
    "matrices": (None, 1, 2, 4, 7),
    # An integer is the chunk of the chunked layout.
    "layout": ("canonical", "interleaved", 2, 3, 32, 33),
    "looking": ("right", "left", "top"),
    "in_place": (False, True),
    "math": ("ieee", "fast"),
    "order": ("row", "col"),
    "uplo": ("lower", "upper"),
    "dtype": ("float32", "float64"),
    "cache": ("l1", "shared"),
    # Whether the chunk is a constant of the code, where there is a chunk.
    "constant_chunk": (False, True),
    "batch": (1, 5, 33),
}
CONSTRAINED = ("n", "nb", "matrices", "batch")
# Turns that threads take at barriers, each of which costs the emulation: those that a case may have, and what a case
# costs besides.
TURN_BUDGET = 300_000
CASE_COST = 50_000


def turns(choice: Choice) -> float:
    """What a choice costs; infinite for what is refused or over the budget of one case."""
    n, nb = choice["n"], choice["nb"]
    try:
        schedule = SharedSchedule(nb, matrices=choice["matrices"]).settled(CUDA, Problem(32))
        schedule.check(Problem(n), "interleaved")
    except SpecError:
        return inf
    matrices = schedule.matrices or 1
    cost = -(-choice["batch"] // matrices) * matrices * nb**2 * barriers(n, nb)
    return inf if cost > TURN_BUDGET else cost + CASE_COST


def barriers(n: int, nb: int) -> int:
    """Barriers of a factorization, whatever its order of evaluation: 2 a product, 1 a column, 1 more a solution."""
    tiles = -(-n // nb)
    pairs = tiles * (tiles - 1) // 2
    products = pairs + pairs * (tiles - 2) // 3
    return n + pairs * (1 + nb) + 2 * products


DESIGN = sorted(covering_design(FACTORS, CONSTRAINED, turns), key=lambda choice: (choice["math"], choice["dtype"]))


spec_of = partial(cuda_checks.spec_of, family="shared")
case_id = partial(cuda_checks.case_id, family="shared")


@pytest.mark.parametrize("choice", DESIGN, ids=case_id)
def test_every_pair_of_values(choice: Choice) -> None:
    spec, chunk = spec_of(choice)
    check_kernel(spec, choice["batch"], chunk, emulated(spec))


# Tiles that divide the order, that do not, and that leave a corner of 1, all of them one matrix to a block or two.
EVERY_ORDER = [
    make_spec(n, min(n, nb), family="shared", looking=looking, matrices=matrices, target="cuda")
    for n, nb, looking, matrices in zip(
        range(1, 34),
        cycle((4, 6, 3, 5, 8)),
        cycle(("left", "right", "left", "top")),
        cycle((1, 2, 1)),
        strict=False,
    )
]
emulated = CompiledTogether((spec_of(choice)[0] for choice in DESIGN), EVERY_ORDER)


@pytest.mark.parametrize("spec", EVERY_ORDER, ids=lambda spec: spec.name)
def test_every_small_order(spec: KernelSpec) -> None:
    check_kernel(spec, 5, 3, emulated(spec))


# Where a grid or a block of threads ended in published kernels.
@pytest.mark.parametrize("batch", [1023, 1024, 1025, 2051])
@pytest.mark.parametrize("matrices", [1, None])
def test_batches_past_1024(matrices: int | None, batch: int) -> None:
    spec = make_spec(5, 2, family="shared", matrices=matrices, layout="chunked", target="cuda")
    check_kernel(spec, batch, 32)


def test_the_widest_block_has_a_tile_of_32_and_one_matrix() -> None:
    spec = make_spec(33, 32, family="shared", target="cuda")
    assert isinstance(spec.schedule, SharedSchedule)
    assert spec.schedule.matrices == 1
    launched = generate(spec).launch
    assert launched is not None
    assert (launched.threads, launched.items) == (1024, 1)
    check_kernel(spec, 2)


@pytest.mark.parametrize("layout", ["canonical", "interleaved", "chunked"])
def test_ragged_batches_with_failing_members(layout: str) -> None:
    spec = make_spec(5, 2, family="shared", matrices=6, layout=layout, target="cuda")
    a = dominant(20, 5).astype(np.float32)
    a[::3, 2, 2] = np.nan
    a[1::6, 4, 4] = -1
    expected = np.where(np.arange(20) % 3 == 0, 3, np.where(np.arange(20) % 6 == 1, 5, 0))
    whole = run_kernel(spec, a).l
    for batch in range(1, 21):
        run = run_kernel(spec, a[:batch])
        assert np.array_equal(run.info, expected[:batch])
        good = run.info == 0
        assert np.array_equal(np.tril(run.l[good]), np.tril(whole[:batch][good]))


# Three rows of tiles and a corner: every operation is carried out, most of them in loops.
MUTATED = make_spec(11, 3, family="shared", matrices=2, layout="interleaved", target="cuda")
BARRIER, BARRIERS = "__syncthreads();", 5
CHANGES = {
    "a multiply-add of gemm": ("c -= AT(a, i, p) * AT(b, j, p);", ""),
    "the sign of gemm": ("c -= AT(a, i, p)", "c += AT(a, i, p)"),
    "a scaling of trsm": ("c *= AT(d, p, p)", "c"),
    "a multiply-add of trsm": ("c -= AT(x, i, p) * AT(d, j, p);", "{}"),
    "a scaling of potrf": ("root : c * inverse", "root : c"),
    "a multiply-add of potrf": ("c -= AT(x, i, p) * inverse * (AT(x, j, p) * inverse);", "{}"),
    "a call of gemm": ("self.gemm(c, A, B, 3);", ""),
    "a call of syrk": ("self.gemm(c, A, A, 3);", ""),
    "a call of trsm": ("self.trsm(c, D, X, 3);", ""),
    "a call of potrf": ("self.potrf(c, good, X, 2);", "good += 2;"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_source_with_one_line_changed_fails(change: str) -> None:
    source = generate(MUTATED)
    before, after = CHANGES[change]
    assert before in source.text
    kernel = EmulatedKernel.of(MUTATED, replace(source, text=source.text.replace(before, after, 1)))
    for name, make in DATA.items():
        a = make(5, 11).astype(np.float32)
        run = run_kernel(MUTATED, a, kernel=kernel)
        assert run.info.any() or ratios(a, run.l).max() > RATIO_BOUND["fast"], name


@pytest.mark.parametrize("place", range(BARRIERS))
def test_every_barrier_is_needed(place: int) -> None:
    source = generate(MUTATED)
    found = list(re.finditer(re.escape(BARRIER), source.text))
    assert len(found) == BARRIERS
    begin, end = found[place].span()
    kernel = EmulatedKernel.of(MUTATED, replace(source, text=source.text[:begin] + source.text[end:]))
    with pytest.raises(EmulationError, match="depends on the order in which threads run"):
        run_kernel(MUTATED, dominant(5, 11).astype(np.float32), kernel=kernel)


@pytest.mark.parametrize(
    ("n", "dtype", "math", "looking", "nb"),
    [
        (1, "float32", "ieee", "left", 32),
        (32, "float64", "fast", "left", 32),
        (33, "float32", "fast", "left", 32),
        (131, "float32", "ieee", "left", 32),
        (37, "float32", "ieee", "right", 8),
        (37, "float32", "ieee", "top", 16),
    ],
)
def test_single_matrices(n: int, dtype: str, math: str, looking: str, nb: int) -> None:
    expected = reference("wishart", 1, n, dtype)
    a = np.asfortranarray(np.where(np.tri(n, dtype=bool), expected.a[0], np.nan)).T.astype(dtype)
    source = generate_single(n, dtype, math, looking, nb)
    l, info = factor_single(source, a, nb=nb)
    assert info == 0
    assert ratios(expected.a, l[None]).max() <= RATIO_BOUND[math]
    assert expected.distance(l[None]).max() <= FORWARD_BOUND[math]
    assert not np.triu(l, 1).any()
    assert np.array_equal(factor_single(source, a, in_place=True, nb=nb)[0], l)


def test_a_large_single_matrix_that_fails_at_its_last_pivot() -> None:
    """Tridiagonal, so that the factor is known: ones on the diagonal and below it."""
    n = 385
    a = np.diag(np.full(n, 2)) + np.diag(np.ones(n - 1), 1) + np.diag(np.ones(n - 1), -1)
    a[0, 0] = a[-1, -1] = 1
    l, info = factor_single(generate_single(n), a.astype(np.float32))
    assert info == n
    assert np.array_equal(l[:, :-1], (np.eye(n) + np.diag(np.ones(n - 1), -1))[:, :-1])


def factor_single(
    source: KernelSource, a: np.ndarray, *, in_place: bool = False, nb: int = 32
) -> tuple[np.ndarray, int]:
    """The factor and info of the matrix whose columns are the rows of `a`."""
    assert source.launch is not None
    assert (source.launch.items, source.launch.threads) == (1, min(len(a), nb) ** 2)
    a = a.copy(order="C")
    l, info = a if in_place else np.full_like(a, UNTOUCHED), np.full(1, -7, np.int32)
    launch(source, 1, a, l, info, np.int64(1), np.int64(1))
    return l.T, int(info[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "n=0 .*from 1 to 1024"),
        ((1025,), "n=1025 .*from 1 to 1024"),
        ((4, "float16"), "dtype='float16' .*'float32', 'float64'"),
        ((4, "float32", "exact"), "math='exact' .*'ieee', 'fast'"),
        ((4, "float32", "ieee", "down"), "looking='down'"),
        ((40, "float32", "ieee", "top", 33), "nb=33"),
    ],
)
def test_refusals_of_single_matrices(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        generate_single(*arguments)
