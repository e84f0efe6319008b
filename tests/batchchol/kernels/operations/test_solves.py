"""Kernels that solve by given factors, of every SIMD target here and emulated of GPUs, against LAPACK in float64."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, prod
from typing import Any

import numpy as np
import pytest

from batchchol.artifacts.c_library import supported_targets
from batchchol.backends import Kernel
from batchchol.backends.cpu import CpuKernel
from batchchol.batches.layouts import array_shape, stride
from batchchol.operations.potrs import oracle, ratio_bound, ratios
from kernelgen import KernelSource, KernelSpec, Layout, generate

from ....covering import Choice, covering_design
from ....emulation.checks import CompiledTogether
from ....emulation.kernels import EmulatedKernel
from ....emulation.programs import FUSED, EmulationError, compile_program
from ....fenced_memory import sparse_zeros
from ....kernel_runs import Array, build_kernel, kernel_of, make_spec, run_solver
from ....matrices import DATA, UNIT_ROUNDOFF, conditioned, lapack_factor
from ....matrix_kinds import make
from ....offsets import element_offset
from ....solve_interpreter import interpret_solve
from ..test_interpreted import rounding
from ..test_mutated import function_body

COMMON: Mapping[str, Sequence[Any]] = {
    "n": (1, 2, 3, 7, 33),
    "nb": (1, 3, 5, 8),
    "rhs": (1, 2, 4, 7),
    "unroll": ("tiles", "full"),
    "order": ("row", "col"),
    "uplo": ("lower", "upper"),
    "dtype": ("float32", "float64"),
    "math": ("ieee", "fast"),
    "in_place": (False, True),
    "batch": (1, 15, 16, 37),
}
FACTORS: Mapping[str, Sequence[Any]] = {
    **COMMON,
    # An integer is the chunk of the chunked layout.
    "layout": ("canonical", "interleaved", 16, 48),
    "staged": (False, True),
    "target": supported_targets(),
}
CUDA_FACTORS: Mapping[str, Sequence[Any]] = {
    **COMMON,
    "layout": ("canonical", "interleaved", 3, 32, 512),
    "threads": (1, 31, 64),
    "cache": ("l1", "shared"),
}
CONSTRAINED = ("n", "nb", "rhs", "unroll", "layout")
# Multiply-adds of straight-line code, and what starting the compiler costs.
LINE_BUDGET, CASE_COST = 1_500, 500
# Fewer right-hand sides than a vector has lanes, panels of them, and what is left of one.
NRHS = (1, 2, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40)
# The distance from LAPACK in float64 that rounding explains, in units of (3 n + 1) u times the condition number.
FORWARD_BOUND = 1.0


def cost_of(choice: Choice) -> float:
    """What compiling a choice costs; infinite for what is refused or over the budget of one case."""
    n, nb, rhs = choice["n"], choice["nb"], choice["rhs"]
    lines = (rhs + 1) * (n**2 if choice["unroll"] == "full" else 3 * min(n, nb) ** 2)
    refused = nb > n or (choice["layout"] == "canonical" and not choice.get("staged", True))
    return inf if refused or lines > LINE_BUDGET else lines + CASE_COST


def spec_of(choice: Choice) -> tuple[KernelSpec, int | None]:
    """The spec of a choice, and its chunk."""
    fields = {name: value for name, value in choice.items() if name not in ("batch", "in_place")}
    chunk = fields["layout"] if isinstance(fields["layout"], int) else None
    fields |= {"layout": fields["layout"] if chunk is None else "chunked", "op": "potrs"}
    return make_spec(**({"target": "cuda"} | fields)), chunk


def case_id(choice: Choice) -> str:
    return f"{spec_of(choice)[0].name}-{choice['batch']}"


def system(n: int, batch: int, nrhs: int, dtype: str, data: str = "wishart") -> tuple[Array, Array]:
    """Lower factors and right-hand sides, rounded to a dtype."""
    l, info = lapack_factor(DATA[data](batch, n).astype(dtype))
    assert not info.any()
    return l, np.random.default_rng((n, batch)).standard_normal((batch, n, nrhs)).astype(dtype)


def check_solver(
    spec: KernelSpec, batch: int, chunk: int | None, every_nrhs: Sequence[int], solver: Kernel, *, in_place: bool
) -> None:
    """The backward error for each number of right-hand sides; for the last one the distance from LAPACK too."""
    n, dtype = spec.problem.n, spec.problem.dtype
    for place, nrhs in enumerate(every_nrhs):
        l, b = system(n, batch, nrhs, dtype, list(DATA)[place % 2])
        x = run_solver(spec, l, b, chunk, solver=solver, in_place=in_place)
        assert ratios(l, b, x).max() <= ratio_bound(n, spec.problem.math), nrhs
    expected = oracle(l, b)
    away = np.linalg.norm(x - expected, axis=(1, 2)) / np.linalg.norm(expected, axis=(1, 2))
    condition = np.linalg.cond(l.astype(float)) ** 2
    assert (away / ((3 * n + 1) * UNIT_ROUNDOFF[dtype] * condition)).max() <= FORWARD_BOUND


# ---- Every pair of values ----


@pytest.mark.parametrize("choice", covering_design(FACTORS, (*CONSTRAINED, "staged"), cost_of), ids=case_id)
def test_every_pair_of_values(choice: Choice) -> None:
    spec, chunk = spec_of(choice)
    every_nrhs = (*NRHS, choice["rhs"], choice["rhs"] + 1)
    check_solver(spec, choice["batch"], chunk, every_nrhs, kernel_of(spec), in_place=choice["in_place"])


# What is compiled together is used together.
CUDA_DESIGN = sorted(
    covering_design(CUDA_FACTORS, CONSTRAINED, cost_of), key=lambda choice: (choice["math"], choice["dtype"])
)
emulated = CompiledTogether(spec_of(choice)[0] for choice in CUDA_DESIGN)


@pytest.mark.parametrize("choice", CUDA_DESIGN, ids=case_id)
def test_every_pair_of_values_on_a_gpu(choice: Choice) -> None:
    spec, chunk = spec_of(choice)
    every_nrhs = (1, choice["rhs"], choice["rhs"] + 1, 2 * choice["rhs"] + 1)
    check_solver(spec, choice["batch"], chunk, every_nrhs, emulated(spec), in_place=choice["in_place"])


def solve_spec(n: int, nb: int, **choices: Any) -> KernelSpec:
    return make_spec(n, nb, op="potrs", **choices)


@pytest.mark.parametrize("target", [supported_targets()[0], "cuda"])
def test_largest_orders(target: str) -> None:
    spec = solve_spec(128, 5, layout="interleaved", target=target)
    check_solver(spec, 19, None, (5,), kernel_of(spec), in_place=False)


# ---- The same bits ----


@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.parametrize("layout", ["canonical", "interleaved", "chunked"])
def test_a_solution_depends_on_nothing_but_its_own_matrix_and_right_hand_side(n: int, layout: str) -> None:
    """Not on how many others there are, where it stands among them, nor on where the arrays begin."""
    spec = solve_spec(n, min(n, 2), layout=layout, rhs=3)
    solver = kernel_of(spec)
    batch, nrhs = 2 * spec.lanes + 1, 2 * spec.lanes + 9
    l, b = system(n, batch, nrhs, "float32")
    whole = run_solver(spec, l, b, solver=solver)
    assert ratios(l, b, whole).max() <= ratio_bound(n, "ieee")
    for few in range(1, nrhs + 1):
        some = 1 + 7 * few % batch
        x = run_solver(spec, l[:some], b[:some, :, :few], solver=solver, offset=4 * (few % 3))
        assert x.tobytes() == whole[:some, :, :few].tobytes(), (some, few)
    for some in range(1, batch + 1):
        x = run_solver(spec, l[-some:], b[-some:, :, :1], solver=solver, in_place=some % 2 == 0)
        assert x.tobytes() == whole[-some:, :, :1].tobytes(), some


@pytest.mark.parametrize("layout", ["canonical", "interleaved", "chunked"])
def test_same_bits_for_every_number_of_threads(layout: str) -> None:
    spec = solve_spec(17, 4, layout=layout)
    l, b = system(17, 700, 5, "float32")
    expected = run_solver(spec, l, b, threads=1)
    assert ratios(l, b, expected).max() <= ratio_bound(17, "ieee")
    for threads in (2, 5):
        assert run_solver(spec, l, b, threads=threads).tobytes() == expected.tobytes()


@pytest.mark.parametrize("target", supported_targets())
@pytest.mark.parametrize(("n", "nb", "rhs", "unroll"), [(17, 4, 4, "tiles"), (12, 5, 3, "full")])
def test_float32_is_the_interpreters_to_the_last_bit(target: str, n: int, nb: int, rhs: int, unroll: str) -> None:
    spec = solve_spec(n, nb, rhs=rhs, unroll=unroll, layout="interleaved", target=target)
    l, b = system(n, 19, 2 * rhs + 1, "float32")
    expected = interpret_solve(l, b, nb, multiply_subtract=rounding(target)).x
    assert np.array_equal(run_solver(spec, l, b), expected)


def test_on_a_gpu_too() -> None:
    spec = solve_spec(17, 4, rhs=4, layout="interleaved", target="cuda")
    source = generate(spec)
    kernel = EmulatedKernel(spec, source, compile_program((source,), FUSED))
    l, b = system(17, 19, 9, "float32")
    expected = interpret_solve(l, b, 4, multiply_subtract=rounding("cuda")).x
    assert np.array_equal(run_solver(spec, l, b, solver=kernel), expected)


def test_float64_is_the_interpreters_to_the_last_bit() -> None:
    if rounding("generic") is rounding("avx2"):
        pytest.skip("NumPy has no fused multiply-add in float64")
    l, b = system(15, 9, 5, "float64")
    spec = solve_spec(15, 4, dtype="float64", target="generic")
    assert np.array_equal(run_solver(spec, l, b), interpret_solve(l, b, 4).x)


# ---- Batches of more than 2**32 ----


@pytest.mark.parametrize("target", [supported_targets()[0], "cuda"])
@pytest.mark.parametrize("layout", [Layout.canonical(), Layout.interleaved(), Layout.chunked(32)], ids=str)
def test_last_matrices_of_a_batch_past_32_bits(layout: Layout, target: str) -> None:
    check_past_32_bits(solve_spec(2, 1, rhs=2, layout=layout.kind, order=layout.order, target=target), layout)


def check_past_32_bits(spec: KernelSpec, layout: Layout) -> None:
    """The last matrices of a batch whose numbers and offsets need 64 bits, in memory that is mostly not there."""
    n, nrhs, batch, last = spec.problem.n, 3, 2**32 + 77, 40
    l, b = system(n, last, nrhs, "float32")
    try:
        data = sparse_zeros(prod(array_shape(n, batch, layout)), np.float32)
        given, x = (sparse_zeros(batch * n * nrhs, np.float32) for _ in range(2))
    except OSError as error:
        pytest.skip(f"needs 275 GB of addresses, not of memory: {error}")
    for m, i, j in np.ndindex(last, n, n):
        data[element_offset(n, batch, layout, batch - last + m, i, j)] = l[m, i, j]
    given[-b.size :] = b.ravel()
    addresses, numbers = (data.ctypes.data, given.ctypes.data, x.ctypes.data), (nrhs, stride(batch, layout), batch)
    solver = kernel_of(spec)
    if isinstance(solver, EmulatedKernel):
        assert solver.source.launch is not None
        items = solver.source.launch.items
        blocks = ((batch - last) // items, -(-batch // items))
        solver.program.launch_unfenced(solver.source, batch, *addresses, *numbers, blocks=blocks)
    else:
        assert isinstance(solver, CpuKernel)
        assert solver.function(*addresses, *numbers, (batch - last) // spec.lanes, -(-batch // spec.lanes)) == 0
    assert ratios(l, b, x[-b.size :].reshape(b.shape)).max() <= ratio_bound(n, "ieee")


# ---- Hard factors, and factors of no use ----

HARD = ("dominant", "wishart", "condition 1e6", "graded", "badly scaled")


# The texts of a CPU do not differ in math.
@pytest.mark.parametrize(("target", "math"), [(supported_targets()[0], "ieee"), ("cuda", "fast")])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hard_factors(dtype: str, math: str, target: str) -> None:
    for n in (1, 2, 16):
        spec = solve_spec(n, min(n, 4), dtype=dtype, math=math, layout="interleaved", target=target)
        solver = kernel_of(spec)
        for kind in HARD:
            a = make(kind, np.random.default_rng(7), 100, n, dtype)
            l, info = lapack_factor(a)
            good = l[info == 0]
            b = np.random.default_rng(8).standard_normal((len(good), n, 5)).astype(dtype)
            assert ratios(good, b, run_solver(spec, good, b, solver=solver)).max() <= ratio_bound(n, math), kind


@pytest.mark.parametrize(("dtype", "condition"), [("float32", 1e6), ("float64", 1e14)])
def test_ill_conditioned(dtype: str, condition: float) -> None:
    l, info = lapack_factor(conditioned(33, 17, condition).astype(dtype))
    assert not info.any()
    b = np.random.default_rng(9).standard_normal((33, 17, 3)).astype(dtype)
    x = run_solver(solve_spec(17, 4, dtype=dtype), l, b)
    assert ratios(l, b, x).max() <= ratio_bound(17, "ieee")


@pytest.mark.parametrize("layout", ["canonical", "interleaved", "chunked"])
@pytest.mark.parametrize("target", [supported_targets()[0], "cuda"])
@pytest.mark.parametrize("place", ["diagonal", "below it", "right-hand side"])
@pytest.mark.parametrize("value", [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45])
def test_factors_of_no_use_harm_no_neighbour(place: str, value: float, layout: str, target: str) -> None:
    spec = solve_spec(7, 3, layout=layout, target=target)
    l, b = system(7, 37, 6, "float32")
    solver = kernel_of(spec)
    expected = run_solver(spec, l, b, solver=solver)
    bad = np.arange(37) % 3 == 1
    if place == "right-hand side":
        b[bad, 2, 4] = value
    else:
        l[bad, 4, 4 if place == "diagonal" else 1] = value
    x = run_solver(spec, l, b, solver=solver)
    assert x[~bad].tobytes() == expected[~bad].tobytes()
    if place == "right-hand side":
        others = [0, 1, 2, 3, 5]
        assert x[bad][:, :, others].tobytes() == expected[bad][:, :, others].tobytes()
    if np.isnan(value):
        assert np.isnan(x[bad]).any(axis=(1, 2)).all()


# ---- One line changed ----

SPECS = {
    "cpu": solve_spec(11, 3, rhs=2, layout="interleaved", target=supported_targets()[-1]),
    "canonical": solve_spec(11, 3, rhs=2, layout="canonical", target=supported_targets()[-1]),
    "cuda": solve_spec(11, 3, rhs=2, layout="interleaved", target="cuda"),
}
# What a line is: the function that it stands in, the line, and what takes its place.
LINES: dict[str, tuple[str, str, str]] = {
    "an update of the forward solve dropped": ("gemm_2x3x3", r"C\(1, 2\) -= a1 \* b2;", ""),
    "an update of the backward solve dropped": ("gemm_n_2x3x3", r"C\(1, 2\) -= a1 \* b2;", ""),
    "one of the corner dropped": ("gemm_n_2x3x2", r"C\(0, 1\) -= a0 \* b1;", ""),
    "an update the other way round": ("gemm_n_2x3x3", r"B\(0, 1\)", "B(1, 0)"),
    "a multiply-add of a triangle dropped": ("trsm_2x3", r"C\(0, 2\) -= C\(0, 1\) \* t;", ""),
    "one of the other triangle dropped": ("trsm_n_2x3", r"C\(0, 0\) -= C\(0, 1\) \* t;", ""),
    "a scaling dropped": ("trsm_2x2", r"C\(1, 1\) \*= RECIPROCAL\(1\);", ""),
    "a scaling by another pivot": ("trsm_n_2x3", r"C\(1, 2\) \*= RECIPROCAL\(2\);", "C(1, 2) *= RECIPROCAL(1);"),
    "a sign changed": ("gemm_1x3x3", r"C\(0, 0\) -= ", "C(0, 0) += "),
    "a right-hand side taken for another": ("load_full_2x3", r"IN\(1, 2\)", "IN(0, 2)"),
    "a solution not stored": ("store_full_2x3", r"OUT\(1, 2, C\(1, 2\)\);", ""),
    "a call dropped": ("solve_2", r"gemm_n_2x3x3\(.*\);", ""),
    "a tile of another column": ("solve_2", r"A = TILE_X\(x, p\);", "A = TILE_X(x, p + 1);"),
    "the first pass of a loop left out": ("solve_2", r"int p = 0;", "int p = 1;"),
    "the last pass of a loop left out": ("solve_2", r"k >= 0;", "k >= 1;"),
}


def mutated(source: KernelSource, function: str, pattern: str, replacement: str) -> KernelSource:
    begin, end = function_body(source.text, function)
    body, count = re.subn(pattern, replacement, source.text[begin:end], count=1)
    assert count == 1, f"{function} does not have {pattern}"
    return replace(source, text=source.text[:begin] + body + source.text[end:])


def worst_ratio(spec: KernelSpec, solver: Kernel) -> float:
    """The largest ratio of an odd number of right-hand sides: both programs, for two and for one, are run."""
    l, b = system(11, 32, 5, "float32")
    try:
        return float(ratios(l, b, run_solver(spec, l, b, solver=solver)).max())
    except EmulationError:
        return inf


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_the_source_as_it_is_passes(spec: KernelSpec) -> None:
    assert worst_ratio(spec, kernel_of(spec)) <= 0.5


# Both targets have the same microkernels and the same program.
@pytest.mark.parametrize(
    ("backend", "line"), [*(("cpu", line) for line in LINES), *(("cuda", line) for line in list(LINES)[::5])]
)
def test_the_source_with_one_line_changed_fails(backend: str, line: str) -> None:
    spec = SPECS[backend]
    solver = build_kernel(spec, mutated(generate(spec), *LINES[line]))
    assert worst_ratio(spec, solver) > ratio_bound(11, "fast")


STAGES: dict[str, tuple[str, str, str]] = {
    "a block of right-hand sides left out": ("stage_columns", r"next < size;", "next < size - LANES;"),
    "a block of solutions left out": ("unstage_columns", r"next < size;", "next < size - LANES;"),
    "the last columns left out": ("solve_group", r"for \(; c < width; \+\+c\)", "for (; c < width - 1; ++c)"),
    "factors of another group": ("stage_in", r"next < end;", "next < end - 1;"),
}


@pytest.mark.parametrize("change", STAGES)
def test_stages_with_one_line_changed_fail(change: str) -> None:
    spec = SPECS["canonical"]
    assert worst_ratio(spec, build_kernel(spec, mutated(generate(spec), *STAGES[change]))) > ratio_bound(11, "fast")
