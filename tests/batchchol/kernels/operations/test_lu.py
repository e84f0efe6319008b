"""Kernels of LU factorizations, of every SIMD target here and emulated of GPUs, against references and bounds."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from batchchol.artifacts.c_library import supported_targets
from batchchol.operations.lu import FACTOR_BOUND, SOLVE_BOUND, factor_ratios, permuted, solve_ratios
from kernelgen import KernelSource, KernelSpec, Problem, SpecError, generate
from kernelgen.schedules.stages.general import WarpsStage, most_general_order

from ....emulation.checks import CompiledTogether
from ....kernel_runs import Array, build_kernel, make_spec
from ....lu_runs import matrices, reference, run

KINDS = ("normal", "graded", "ties", "permutations", "singular")
OPS = ("getrf", "getrs", "gesv")
# What the largest element of a column exceeds the others by, where rounding does not decide which one it is.
CLEAR = 1e-3
COUNT = 13


def lu_spec(op: str, n: int, **choices: Any) -> KernelSpec:
    return make_spec(n, 1, op=op, looking="right", **choices)


# Every value of each choice, and all orders with few elements to a word.
_CASES: tuple[tuple[int, str, str, str, str, str], ...] = (
    (1, "full", "canonical", "row", "float32", "ieee"),
    (2, "tiles", "interleaved", "row", "float64", "fast"),
    (3, "full", "canonical", "col", "float64", "ieee"),
    (5, "tiles", "chunked", "col", "float32", "fast"),
    (9, "full", "chunked", "row", "float32", "ieee"),
    (17, "tiles", "canonical", "row", "float32", "ieee"),
)
ON_CPUS = [
    lu_spec(op, n, unroll=unroll, layout=layout, order=order, dtype=dtype, math=math, target=target)
    for place, (n, unroll, layout, order, dtype, math) in enumerate(_CASES)
    for op in OPS
    for target in (supported_targets()[place % len(supported_targets())],)
]
ON_GPUS = [
    lu_spec(op, n, unroll="full", layout=layout, order=order, dtype=dtype, math=math, target="cuda", threads=threads)
    for n, layout, order, dtype, math, threads in (
        (1, "chunked", "col", "float32", "fast", 32),
        (4, "canonical", "row", "float32", "ieee", 96),
        (6, "interleaved", "col", "float64", "ieee", 64),
    )
    for op in OPS
]
# By several threads to a matrix: rows that all of them have and not, or none, whole pieces and not.
BY_ROWS = [
    lu_spec(op, n, unroll="full", target="cuda", layout=layout, order=order, dtype=dtype, math=math, split=split)
    for n, layout, order, dtype, math, split in (
        (16, "canonical", "row", "float32", "fast", 4),
        (7, "canonical", "col", "float64", "ieee", 2),
        (18, "chunked", "col", "float32", "ieee", 8),
        (33, "interleaved", "row", "float32", "fast", 16),
        (16, "chunked", "row", "float32", "ieee", 4),
        (5, "canonical", "row", "float32", "ieee", 8),
    )
    for op in OPS
]
# By several warps to a matrix: rows of all lanes and not, columns of all warps and not.
BY_COLUMNS = [
    lu_spec(op, n, unroll="full", target="cuda", layout=layout, order=order, dtype=dtype, math=math, split=split)
    for n, layout, order, dtype, math, split in (
        (36, "canonical", "row", "float32", "ieee", 96),
        (11, "chunked", "col", "float64", "fast", 160),
        (32, "interleaved", "row", "float64", "ieee", 64),
    )
    for op in OPS
]
# By a thread to a matrix in shared memory: whole panels and not, whole pieces and not.
STAGED = [
    lu_spec(op, n, unroll="full", target="cuda", layout=layout, order=order, dtype=dtype, math=math, staged=True)
    for n, layout, order, dtype, math in (
        (12, "canonical", "row", "float32", "ieee"),
        (7, "canonical", "col", "float64", "fast"),
        (5, "chunked", "col", "float32", "fast"),
        (6, "interleaved", "row", "float64", "ieee"),
    )
    for op in ("getrf", "gesv")
]
# By warps to a matrix in shared memory: whole panels and not, whole pieces and not, several matrices of a block.
BY_PANELS = [
    lu_spec(op, n, unroll="full", target="cuda", layout=layout, order=order, dtype=dtype, math=math, **threads)
    for n, layout, order, dtype, math, threads in (
        (48, "canonical", "row", "float32", "ieee", {"split": 64}),
        (13, "canonical", "col", "float64", "fast", {"split": 32, "threads": 96}),
        (20, "chunked", "col", "float32", "fast", {"split": 32, "threads": 64}),
        (35, "interleaved", "row", "float64", "ieee", {"split": 96}),
    )
    for op in OPS
    for threads in ({"staged": True} | threads,)
]
emulated = CompiledTogether([*ON_GPUS, *BY_ROWS, *BY_COLUMNS, *STAGED, *BY_PANELS])


def kernel_for(spec: KernelSpec) -> Any:
    return emulated(spec) if spec.target == "cuda" else build_kernel(spec, generate(spec))


def systems(spec: KernelSpec, nrhs: int) -> tuple[Array, Array]:
    n, dtype, random = spec.problem.n, spec.problem.dtype, np.random.default_rng(spec.problem.n)
    a = np.concatenate([matrices(kind, random, COUNT, n) for kind in KINDS]).astype(dtype)
    return a, random.standard_normal((len(a), n, nrhs)).astype(dtype)


@pytest.mark.parametrize(
    "spec", [*ON_CPUS, *ON_GPUS, *BY_ROWS, *BY_COLUMNS, *STAGED, *BY_PANELS], ids=lambda spec: spec.name
)
def test_factors_and_solutions_are_within_their_bounds(spec: KernelSpec) -> None:
    a, b = systems(spec, 1)
    math, kernel = spec.problem.math, kernel_for(spec)
    expected, failed, clear = reference(a)
    # Of integers the exact determinant says whether a pivot is zero but for rounding.
    ties = np.repeat([kind == "ties" for kind in KINDS], COUNT)
    sure = ~ties | (np.abs(np.linalg.det(a.astype(float))) > 0.5)
    chunk = 48 if spec.layout == "chunked" else None
    if spec.problem.op == "getrf":
        lu, pivots, info = run(spec, a, chunk=chunk, kernel=kernel)
        assert factor_ratios(a, lu, pivots).max() <= FACTOR_BOUND[math]
        assert np.array_equal(info[sure], failed[sure])
        # Of elements of one size the first is chosen, and permutations and triangles make no rounding errors.
        assert np.array_equal(pivots[:, 0], expected[:, 0])
        unrounded = np.repeat([kind in ("permutations", "singular") for kind in KINDS], COUNT)
        chosen = (clear > CLEAR) | unrounded
        assert np.array_equal(pivots[chosen], expected[chosen])
        return
    good = sure & (failed == 0)
    factors = _factors(a)
    # Of many right-hand sides a third of each kind's matrices is enough: they take most of the time.
    for nrhs, every in ((1, 1), (3, 1), (40, 3)):
        some = np.s_[::every]
        _, b = systems(spec, nrhs)
        if spec.problem.op == "gesv":
            x, info = run(spec, a[some], b[some], chunk=chunk, kernel=kernel)
            assert np.array_equal(info[sure[some]], failed[some][sure[some]])
        else:
            x = run(spec, *(factor[some] for factor in factors), b[some], chunk=chunk, kernel=kernel)
        kept = good[some]
        assert solve_ratios(a[some][kept], b[some][kept], x[kept]).max() <= SOLVE_BOUND[math], nrhs


def _factors(a: Array) -> tuple[Array, Array]:
    """By LAPACK; the pivots count from 1."""
    import scipy.linalg

    with np.errstate(all="ignore"):
        found = [scipy.linalg.lapack.get_lapack_funcs("getrf", (matrix,))(matrix) for matrix in a]
    return np.array([lu for lu, _, _ in found]), np.array([rows + 1 for _, rows, _ in found], np.int32)


@pytest.mark.parametrize(
    "spec",
    [ON_CPUS[12], ON_CPUS[14], *ON_GPUS[3:6:2], *BY_ROWS[:6:5], *BY_COLUMNS[:6:5], *STAGED[:2], *BY_PANELS[::11]],
    ids=lambda spec: spec.name,
)
def test_numbers_that_are_not_finite_harm_no_neighbour(spec: KernelSpec) -> None:
    n, random, kernel = spec.problem.n, np.random.default_rng(3), kernel_for(spec)
    a = random.standard_normal((40, n, n)).astype(spec.problem.dtype)
    beside = () if spec.problem.op == "getrf" else (random.standard_normal((40, n, 2)).astype(spec.problem.dtype),)
    alone = run(spec, a, *beside, kernel=kernel)
    spoilt, bad = a.copy(), np.arange(40) % 3 == 0
    for place, value in ((0, np.nan), (n - 1, np.nan), (1, np.inf), (n - 1, -np.inf), (0, 0)):
        spoilt[bad, :, place] = value
        found = run(spec, spoilt, *beside, kernel=kernel)
        _, info, _ = reference(spoilt)
        assert np.array_equal(found[-1], info)
        for one, other in zip(found, alone, strict=True):
            assert one[~bad].tobytes() == other[~bad].tobytes()
        spoilt[bad] = a[bad]


def test_a_reference_is_lapack() -> None:
    a = np.concatenate([matrices(kind, np.random.default_rng(8), 20, 7) for kind in KINDS])
    lu, rows = _factors(a)
    pivots, info, clear = reference(a)
    assert (clear > CLEAR).sum() > 30
    assert np.array_equal(pivots[clear > CLEAR], rows[clear > CLEAR])
    assert (info > 0).sum() >= 20
    assert np.abs(permuted(a, rows) - (np.tril(lu, -1) + np.eye(7)) @ np.triu(lu)).max() < 1e-9


@pytest.mark.parametrize(
    "change",
    [
        ("other > most", "other < most"),
        ("column[i] = choose(here[i], top, own);", "column[i] = own;"),
        ("column[i] -= by[i] * top;", "column[i] += by[i] * top;"),
        ("every(k + 1), *info", "every(k), *info"),
    ],
    ids=lambda change: change[0],
)
def test_a_changed_line_is_noticed(change: tuple[str, str]) -> None:
    spec = ON_CPUS[9]
    text = generate(spec).text
    assert change[0] in text
    source: KernelSource = replace(generate(spec), text=text.replace(*change))
    a, _ = systems(spec, 1)
    lu, pivots, info = run(spec, a, chunk=48, kernel=build_kernel(spec, source))
    wrong = not factor_ratios(a, lu, pivots).max() <= FACTOR_BOUND["fast"]
    assert wrong or not np.array_equal(info, reference(a)[1]) or (np.abs(np.tril(lu, -1)) > 1).any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_cannot_be_built_says_what_can(dtype: str) -> None:
    n = most_general_order(dtype) + 1
    with pytest.raises(SpecError, match=f"n={n} cannot be built: .* use up to {n - 1}"):
        lu_spec("gesv", n, unroll="full", dtype=dtype, target="cuda")
    for choices, reason in (
        ({"uplo": "upper"}, "general matrices, which have no triangle"),
        ({"in_place": True}, "works in place and out of place"),
        ({"n": 60, "unroll": "full"}, "use unroll='tiles'"),
        ({"target": "cuda"}, "stay in registers, use 'full'"),
        ({"rhs": 2}, "has no such choice, use None"),
    ):
        with pytest.raises(SpecError, match=re.escape(reason)):
            lu_spec("getrf", **{"n": 5, "dtype": dtype} | choices)


@pytest.mark.parametrize(
    "spec", [ON_GPUS[0], BY_ROWS[0], BY_COLUMNS[0], STAGED[0], BY_PANELS[0]], ids=lambda each: each.name
)
def test_what_is_launched_early_waits_before_it_reads_or_writes(spec: KernelSpec) -> None:
    """What is ahead of it on the stream may still be writing its matrices, or reading what it overwrites."""
    early = generate(replace(spec, schedule=replace(spec.schedule, pdl=True)))
    body = early.text.split('extern "C"')[-1].split("{", 1)[1]
    before = body.split("wait_for_predecessors();")[0]
    assert early.launch is not None
    assert early.launch.pdl
    assert before != body
    assert not re.search(r"\b(a|b|x|lu|pivots|info)( \+|\[)", before)


def test_only_warps_that_have_columns_take_turns() -> None:
    stage = WarpsStage(Problem(100, "float32", op="gesv"), 256)
    assert (stage.warps, stage.turns) == (8, 7)
    assert (stage.turns - 1) * stage.width < 100 <= stage.turns * stage.width
