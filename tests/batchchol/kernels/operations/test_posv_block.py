"""Kernels of the block family that factor and solve at once, emulated, against float64."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from batchchol.operations.posv import ratio_bound, ratios
from kernelgen import KernelSpec, SpecError, generate

from ....emulation.checks import CompiledTogether
from ....emulation.kernels import EmulatedKernel
from ....emulation.programs import EmulationError
from ....kernel_runs import Array, make_spec, run_posv
from ....matrices import DATA, with_bad_pivots

block_posv = partial(make_spec, op="posv", target="cuda", family="block", pipeline=1)
canonical = partial(block_posv, layout="canonical", order="row")

# Orders with and without padding, one tile and several; one, two and more lanes of the warp that solves to a matrix,
# and lanes without any; spare and folded warps, elements that are fetched early, remainders of pieces.
CASES: Mapping[str, tuple[KernelSpec, int | None]] = {
    "one tile": (block_posv(7, 7, lanes=2, math="fast"), 4),
    "chunks, two groups": (block_posv(16, 8, lanes=12, stride=12, pipeline=2, early=1, math="fast"), 12),
    "chunks, padded": (block_posv(27, 8, lanes=3, pipeline=2), 8),
    "spare warps": (block_posv(28, 7, lanes=8, stride=8, early=2, spare=1, pipeline=2), 8),
    "columns ahead": (block_posv(40, 8, lanes=8, stride=8, rhs=2, ahead=2, math="fast"), 8),
    "columns ahead, folded": (block_posv(32, 8, lanes=16, fold=1, ahead=2, math="fast"), 16),
    "columns ahead of two groups": (canonical(27, 8, lanes=4, pipeline=2, ahead=1), None),
    "folded": (block_posv(32, 8, lanes=16, fold=1, early=4, math="fast"), 16),
    "arrays": (canonical(24, 8, lanes=4, pipeline=2, pdl=True, math="fast"), None),
    "arrays, several columns at a time": (canonical(19, 7, lanes=16, pipeline=2, rhs=2, math="fast"), None),
    "arrays in columns": (block_posv(18, 6, lanes=32, layout="canonical", order="col", uplo="upper"), None),
    "float64": (block_posv(13, 5, lanes=5, dtype="float64", layout="interleaved", order="row"), None),
}
every_case = pytest.mark.parametrize("case", CASES)
emulated = CompiledTogether(sorted((spec for spec, _ in CASES.values()), key=lambda spec: spec.problem.math))
BATCH, NRHS = 45, 3


def run(case: str, a: Array, b: Array, **how: Any) -> tuple[Array, Array]:
    spec, chunk = CASES[case]
    solved = run_posv(spec, a, b, chunk, solver=emulated(spec), **how)
    return solved.x, solved.info


@cache
def system(n: int, dtype: str) -> tuple[Array, Array]:
    """Matrices, of more groups than blocks have turns, and right-hand sides."""
    b = np.random.default_rng(n).standard_normal((BATCH, n, NRHS)).astype(dtype)
    return DATA["wishart"](BATCH, n).astype(dtype), b


def system_of(case: str) -> tuple[Array, Array]:
    problem = CASES[case][0].problem
    return system(problem.n, problem.dtype)


@every_case
def test_solutions_and_info(case: str) -> None:
    """Of several right-hand sides, and of one in place, where arrays begin elsewhere, with matrices that fail."""
    spec = CASES[case][0]
    n = spec.problem.n
    a, b = system_of(case)
    x, info = run(case, a, b)
    assert not info.any()
    assert ratios(a, b, x).max() <= ratio_bound(n, spec.problem.math)
    minors = np.zeros(BATCH, np.int32)
    minors[1:4] = n, 1, n // 2
    offset = 4 if spec.problem.dtype == "float32" else 8
    bad, info = run(case, with_bad_pivots(a, minors, -1.0), b[..., :1], in_place=True, offset=offset)
    assert np.array_equal(info, minors)
    assert bad[minors == 0].tobytes() == x[minors == 0, :, :1].tobytes()


@pytest.mark.parametrize("case", ["spare warps", "arrays"])
def test_a_solution_depends_on_nothing_but_its_own_matrix(case: str) -> None:
    a, b = system_of(case)
    x, _ = run(case, a, b[..., :1].copy())
    for few in (1, 9):
        assert run(case, a[-few:], b[-few:, :, :1].copy())[0].tobytes() == x[-few:].tobytes()


MUTANTS: Mapping[str, tuple[str, str, str]] = {
    "a product left out of the forward solve": ("arrays", r"x\[i\] -= d\[i\] \* y\[p\];", r"if (p) \g<0>"),
    "a product left out of the backward solve": ("arrays", r"sums\[p\] \+= d\[i\] \* x\[i\];", r"if (i) \g<0>"),
    "a lane that leaves out its rows": ("arrays", r"share < SHARES \?", "share < 2 ?"),
    "sums of one lane alone": ("arrays", r"other < SHARES", "other < 1"),
    "the same group's panels once more": (
        "chunks, two groups",
        r"round % PIPELINE \* \(TILES",
        "0 * (TILES",
    ),
    "panels that are not waited for": ("arrays", r"wait_for\(barriers \+ k \* 3 \+ FULL, phase\);", ""),
    "panels given back before the last right-hand side": ("one tile", r"if \(last && lane == 0\)", "if (lane == 0)"),
    "a column written before it is read": ("arrays", r"wait_for_fetched\(\);\n            __syncwarp\(\);", ""),
}


@pytest.mark.parametrize("change", MUTANTS)
def test_the_source_with_one_line_changed_fails(change: str) -> None:
    case, pattern, replacement = MUTANTS[change]
    spec, chunk = CASES[case]
    source = generate(spec)
    text, count = re.subn(pattern, replacement, source.text)
    assert count, f"there is no {pattern}"
    a, b = system_of(case)
    try:
        kernel = EmulatedKernel.of(spec, replace(source, text=text))
        x = run_posv(spec, a, b, chunk, solver=kernel).x
        assert x.tobytes() != run(case, a, b)[0].tobytes()
    except EmulationError:
        pass


@pytest.mark.parametrize(
    ("n", "choices", "named"),
    [
        (32, {"pipeline": 0}, "pipeline"),
        (64, {"lanes": 12, "pipeline": 2}, "lanes"),
        (32, {"op": "potrs"}, "op"),
    ],
)
def test_refused(n: int, choices: Mapping[str, Any], named: str) -> None:
    with pytest.raises(SpecError, match=f"^{named}="):
        block_posv(n, 8, **{"lanes": 16} | choices)
