"""Kernels that factor and solve at once, of every SIMD target here, against LAPACK in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np
import pytest

from batchchol.artifacts.c_library import supported_targets
from batchchol.backends import Kernel
from batchchol.operations.posv import oracle, ratio_bound, ratios
from kernelgen import KernelSource, KernelSpec, generate

from ....covering import Choice, covering_design
from ....interpreter import interpret
from ....kernel_runs import Array, build_kernel, kernel_of, make_spec, run_posv
from ....matrices import DATA, UNIT_ROUNDOFF, conditioned, dominant, lapack_factor
from ....matrix_kinds import make
from ....solve_interpreter import interpret_solve
from ..families.test_simd import inlined_lines
from ..test_failing import FAILURES, flushes
from ..test_interpreted import rounding
from .test_solves import FORWARD_BOUND, HARD, mutated

WIDEST = supported_targets()[0]
FACTORS: Mapping[str, Sequence[Any]] = {
    "n": (1, 2, 7, 19),
    "nb": (1, 3, 6),
    "looking": ("right", "left", "top"),
    "rhs": (1, 3),
    "unroll": ("tiles", "full"),
    # An integer is the chunk of the chunked layout.
    "layout": ("canonical", "interleaved", 16, 48),
    "prefetch": (False, True),
    "order": ("row", "col"),
    "uplo": ("lower", "upper"),
    "dtype": ("float32", "float64"),
    "math": ("ieee", "fast"),
    "target": supported_targets(),
    "in_place": (False, True),
    "batch": (3, 37),
}
CONSTRAINED = ("n", "nb", "rhs", "unroll")
# Fewer right-hand sides than a vector has lanes, panels of them, and what is left of one.
NRHS = (1, 2, 4, 7, 15, 16, 17, 31, 32, 33, 40)
LINE_BUDGET, CASE_COST = 900, 500


def cost_of(choice: Choice) -> float:
    """What compiling a choice costs, in lines; infinite for what is refused or over the budget of one case."""
    n, nb, rhs = choice["n"], choice["nb"], choice["rhs"]
    solves = (rhs + 1) * (n**2 if choice["unroll"] == "full" else 3 * min(n, nb) ** 2)
    lines = solves + inlined_lines({**choice, "staged": True, "layout": "interleaved"})
    return inf if nb > n or lines > LINE_BUDGET else lines + CASE_COST


def spec_of(choice: Choice) -> tuple[KernelSpec, int | None]:
    """The spec of a choice, and its chunk."""
    fields = {name: value for name, value in choice.items() if name not in ("batch", "in_place")}
    chunk = fields["layout"] if isinstance(fields["layout"], int) else None
    return posv_spec(**fields | {"layout": fields["layout"] if chunk is None else "chunked"}), chunk


def posv_spec(n: int, nb: int, **choices: Any) -> KernelSpec:
    return make_spec(n, nb, op="posv", **choices)


def case_id(choice: Choice) -> str:
    return f"{spec_of(choice)[0].name}-{choice['batch']}"


def system(n: int, batch: int, nrhs: int, dtype: str, data: str = "wishart") -> tuple[Array, Array]:
    """Matrices and right-hand sides, rounded to a dtype."""
    b = np.random.default_rng((n, batch)).standard_normal((batch, n, nrhs))
    return DATA[data](batch, n).astype(dtype), b.astype(dtype)


def solutions(spec: KernelSpec, a: Array, b: Array, chunk: int | None = None, **how: Any) -> Array:
    """The solutions by positive definite matrices, checked: every info is 0, the backward errors are small."""
    solved = run_posv(spec, a, b, chunk, **how)
    assert not solved.info.any()
    assert ratios(a, b, solved.x).max() <= ratio_bound(spec.problem.n, spec.problem.math)
    return solved.x


def check_solver(
    spec: KernelSpec, batch: int, chunk: int | None, every_nrhs: Sequence[int], *, in_place: bool
) -> None:
    """The backward error for each number of right-hand sides; for the last one the distance from LAPACK too."""
    n, dtype, solver = spec.problem.n, spec.problem.dtype, kernel_of(spec)
    for place, nrhs in enumerate(every_nrhs):
        a, b = system(n, batch, nrhs, dtype, list(DATA)[place % 2])
        x = solutions(spec, a, b, chunk, solver=solver, in_place=in_place)
    expected = oracle(a, b)
    away = np.linalg.norm(x - expected, axis=(1, 2)) / np.linalg.norm(expected, axis=(1, 2))
    assert (away / ((3 * n + 1) * UNIT_ROUNDOFF[dtype] * np.linalg.cond(a.astype(float)))).max() <= FORWARD_BOUND


@pytest.mark.parametrize("choice", covering_design(FACTORS, CONSTRAINED, cost_of), ids=case_id)
def test_every_pair_of_values(choice: Choice) -> None:
    spec, chunk = spec_of(choice)
    every_nrhs = (*NRHS, choice["rhs"] + 1)
    check_solver(spec, choice["batch"], chunk, every_nrhs, in_place=choice["in_place"])


def test_largest_order() -> None:
    check_solver(posv_spec(128, 4, layout="interleaved"), 19, None, (1, 5), in_place=False)


# ---- The same bits ----


@pytest.mark.parametrize(
    ("n", "layout"), [(1, "canonical"), (3, "canonical"), (5, "canonical"), (3, "interleaved"), (5, "chunked")]
)
def test_a_solution_depends_on_nothing_but_its_own_matrix_and_right_hand_side(n: int, layout: str) -> None:
    """Not on how many others there are, where it stands among them, nor on where the arrays begin."""
    spec = posv_spec(n, min(n, 2), layout=layout, rhs=3)
    solver = kernel_of(spec)
    batch, nrhs = 2 * spec.lanes + 1, 2 * spec.lanes + 9
    a, b = system(n, batch, nrhs, "float32")
    whole = solutions(spec, a, b, solver=solver)
    for few in range(1, nrhs + 1):
        some = 1 + 7 * few % batch
        x = run_posv(spec, a[:some], b[:some, :, :few], solver=solver, offset=4 * (few % 3)).x
        assert x.tobytes() == whole[:some, :, :few].tobytes(), (some, few)
    for some in range(1, batch + 1):
        x = run_posv(spec, a[-some:], b[-some:, :, :1], solver=solver, in_place=some % 2 == 0).x
        assert x.tobytes() == whole[-some:, :, :1].tobytes(), some


def test_same_bits_for_every_number_of_threads() -> None:
    spec = posv_spec(17, 4, layout="canonical")
    a, b = system(17, 700, 5, "float32")
    expected = solutions(spec, a, b, threads=1)
    for threads in (2, 5):
        assert run_posv(spec, a, b, threads=threads).x.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("target", "n", "nb", "looking", "unroll"),
    [
        (WIDEST, 17, 4, "left", "tiles"),
        (supported_targets()[-1], 12, 5, "top", "full"),
    ],
)
def test_float32_is_the_interpreters_to_the_last_bit(target: str, n: int, nb: int, looking: str, unroll: str) -> None:
    spec = posv_spec(n, nb, looking=looking, rhs=2, unroll=unroll, layout="interleaved", target=target)
    a, b = system(n, 19, 5, "float32")
    arithmetic = {"multiply_subtract": rounding(target)}
    l = interpret(a, nb, looking, **arithmetic).l
    assert np.array_equal(solutions(spec, a, b), interpret_solve(l, b, nb, **arithmetic).x)


# ---- Hard matrices, and matrices of no use ----


@pytest.mark.parametrize(
    ("n", "dtype", "math"),
    [
        (1, "float32", "fast"),
        (2, "float64", "fast"),
        (17, "float32", "ieee"),
        (17, "float64", "ieee"),
        (17, "float32", "fast"),
    ],
)
def test_hard_matrices(n: int, dtype: str, math: str) -> None:
    spec = posv_spec(n, min(n, 4), dtype=dtype, math=math, layout="interleaved")
    for kind in HARD:
        a = make(kind, np.random.default_rng(7), 100, n, dtype)
        check_hard(spec, a[lapack_factor(a)[1] == 0])
    check_hard(spec, conditioned(33, n, 1e6 if dtype == "float32" else 1e14).astype(dtype))


def check_hard(spec: KernelSpec, a: Array) -> None:
    assert len(a) > 30, "LAPACK factors these"
    solutions(spec, a, np.random.default_rng(8).standard_normal((*a.shape[:2], 3)).astype(a.dtype))


N, BATCH = 9, 41
FAILING = [
    posv_spec(N, 4, looking="right", layout="chunked"),
    posv_spec(N, 2, looking="left", layout="canonical", order="row", math="fast"),
    posv_spec(N, 5, looking="top", layout="interleaved", dtype="float64", target=supported_targets()[-1]),
]
every_failing = pytest.mark.parametrize("spec", FAILING, ids=lambda spec: spec.name)


@every_failing
def test_info_is_the_order_of_the_first_bad_minor_and_no_bit_of_a_neighbour_is_changed(spec: KernelSpec) -> None:
    """Two of three matrices fail, in turn at each of their minors."""
    dtype, solver = spec.problem.dtype, kernel_of(spec)
    b = np.random.default_rng(3).standard_normal((BATCH, N, 2)).astype(dtype)
    alone = solutions(spec, dominant(BATCH, N).astype(dtype), b, solver=solver)
    for turn, spoil in enumerate(FAILURES):
        a, expected = dominant(BATCH, N), np.zeros(BATCH, np.int32)
        for member in (member for member in range(BATCH) if member % 3):
            expected[member] = (member + turn) % N + 1
            spoil(a[member], int(expected[member]))
        beside, well = run_posv(spec, a.astype(dtype), b, solver=solver), expected == 0
        assert np.array_equal(beside.info, expected), spoil.__name__
        assert beside.x[well].tobytes() == alone[well].tobytes(), spoil.__name__


@every_failing
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e-45])
def test_right_hand_sides_of_no_use_harm_no_other(spec: KernelSpec, value: float) -> None:
    a, b = system(N, BATCH, 6, spec.problem.dtype)
    expected = solutions(spec, a, b)
    bad = np.arange(BATCH) % 3 == 1
    b[bad, 2, 4] = value
    solved = run_posv(spec, a, b)
    assert not solved.info.any()
    assert solved.x[~bad].tobytes() == expected[~bad].tobytes()
    others = [0, 1, 2, 3, 5]
    assert solved.x[bad][:, :, others].tobytes() == expected[bad][:, :, others].tobytes()
    assert np.isnan(solved.x[bad, :, 4]).any(axis=1).all() == (not np.isfinite(value))


@every_failing
def test_fast_leaves_the_callers_denormals_alone(spec: KernelSpec) -> None:
    tiny = 2.0**-140 if spec.problem.dtype == "float32" else 2.0**-1060
    a = (np.eye(N) * tiny)[np.newaxis].repeat(BATCH, 0).astype(spec.problem.dtype)
    solved = run_posv(spec, a, np.zeros((BATCH, N, 1), a.dtype), threads=1)
    assert (solved.info == (1 if flushes(spec) else 0)).all()
    assert (a[0, 0, 0] * np.ones(1, a.dtype))[0] == tiny, "this thread flushes denormals now"


# ---- One line changed: what is neither a factorization's nor a solve's ----


def worst_ratio(spec: KernelSpec, source: KernelSource | None = None) -> float:
    a, b = system(11, 37, 5, "float32")
    solver: Kernel = kernel_of(spec) if source is None else build_kernel(spec, source)
    try:
        solved = run_posv(spec, a, b, solver=solver)
    except AssertionError:
        return inf
    return inf if solved.info.any() else float(ratios(a, b, solved.x).max())


@pytest.mark.parametrize(
    ("pattern", "replacement"),
    [
        (r"group \* LANES", "(group ^ 1) * LANES"),
        (r"lane < count", "lane < LANES"),
        (r"factor_group\(a \+ offset_a", "factor_group(a"),
    ],
)
def test_the_source_with_one_line_changed_fails(pattern: str, replacement: str) -> None:
    spec = posv_spec(11, 3, rhs=2, layout="interleaved", target=supported_targets()[-1])
    assert worst_ratio(spec, mutated(generate(spec), spec.name, pattern, replacement)) > ratio_bound(11, "fast")


def test_the_source_as_it_is_passes() -> None:
    assert worst_ratio(posv_spec(11, 3, rhs=2, layout="interleaved", target=supported_targets()[-1])) <= 0.5
