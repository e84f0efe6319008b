"""Kernels of the warp family that factor and solve at once, emulated, against float64."""

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

warp_posv = partial(make_spec, op="posv", target="cuda", family="warp")
canonical = partial(warp_posv, layout="canonical", order="row")

# Orders with and without rows past their ends, an even and an odd number of tiles, one tile and half of a block; each
# way of reading, of sharing a warp and of updating. A chunk of its own for each packed one.
CASES: Mapping[str, tuple[KernelSpec, int | None]] = {
    "one tile": (canonical(7, math="fast"), None),
    "arrays": (canonical(33, math="fast", teams=4, pdl=True), None),
    "arrays in columns": (warp_posv(24, layout="canonical", order="col", uplo="upper", math="fast"), None),
    "arrays, two to a warp": (canonical(40, matrices=2, teams=8, math="fast"), None),
    "arrays, four to a warp": (canonical(18, matrices=4, math="ieee"), None),
    "arrays, two warps": (canonical(97, warps=2, math="fast"), None),
    "upper": (canonical(16, uplo="upper", unroll="full", math="ieee"), None),
    "chunks": (warp_posv(41, teams=4, math="fast"), 4),
    "chunks, two to a warp": (warp_posv(25, matrices=2, stride=2, math="ieee"), 2),
    "chunks, two warps": (warp_posv(64, warps=2, math="ieee"), 8),
    "chunks by lines": (warp_posv(63, stride=2, math="fast"), 2),
    "several at a time": (canonical(33, matrices=2, rhs=2, math="ieee"), None),
    "several, chunks": (warp_posv(25, matrices=4, teams=1, stride=4, rhs=8, math="fast"), 4),
    "several, by lines": (warp_posv(62, stride=2, rhs=8, math="ieee"), 2),
    "few": (canonical(33, math="ieee", teams=4, pdl=True, few=True), None),
    "few, two to a warp": (canonical(26, matrices=2, math="fast", update="fma", unroll="full", few=True), None),
    "few, four to a warp": (canonical(16, matrices=4, math="fast", few=True), None),
    "few, two warps": (warp_posv(70, warps=2, math="ieee", few=True), 4),
    "few, several at a time": (canonical(17, matrices=2, rhs=2, math="fast", few=True), None),
    "interleaved": (warp_posv(15, layout="interleaved", order="row", matrices=2, math="fast"), None),
}
every_case = pytest.mark.parametrize("case", CASES)
emulated = CompiledTogether(sorted((spec for spec, _ in CASES.values()), key=lambda spec: spec.problem.math))
BATCH, NRHS = 5, 3


def run(case: str, a: Array, b: Array, **how: Any) -> tuple[Array, Array]:
    spec, chunk = CASES[case]
    solved = run_posv(spec, a, b, chunk, solver=emulated(spec), **how)
    return solved.x, solved.info


@cache
def system(n: int) -> tuple[Array, Array]:
    """Matrices and right-hand sides."""
    b = np.random.default_rng(n).standard_normal((BATCH, n, NRHS)).astype(np.float32)
    return DATA["wishart"](BATCH, n).astype(np.float32), b


@every_case
def test_solutions_and_info(case: str) -> None:
    """Of several right-hand sides, and of one in place, where arrays begin elsewhere, with matrices that fail."""
    spec = CASES[case][0]
    n = spec.problem.n
    a, b = system(n)
    x, info = run(case, a, b)
    assert not info.any()
    assert ratios(a, b, x).max() <= ratio_bound(n, spec.problem.math)
    minors = np.array([0, n, 0, 1, n // 2])
    bad, info = run(case, with_bad_pivots(a, minors, -1.0), b[..., :1], in_place=True, offset=4)
    assert np.array_equal(info, minors)
    assert np.allclose(bad[::2][:2, :, 0], x[::2][:2, :, 0], rtol=1e-3, atol=1e-5)
    assert ratios(a[::2][:2], b[::2][:2, :, :1], bad[::2][:2]).max() <= ratio_bound(n, spec.problem.math)


@pytest.mark.parametrize("case", ["arrays, two to a warp", "chunks by lines"])
def test_a_solution_depends_on_nothing_but_its_own_matrix(case: str) -> None:
    a, b = system(CASES[case][0].problem.n)
    x, _ = run(case, a, b[..., :1].copy())
    for few in (1, 4):
        assert run(case, a[-few:], b[-few:, :, :1].copy())[0].tobytes() == x[-few:].tobytes()


@pytest.mark.parametrize("case", ["few", "few, two to a warp"])
@pytest.mark.parametrize("scale", [2.0**-90, 2.0**90])
def test_determinants_of_two_columns_that_no_float_holds(case: str, scale: float) -> None:
    spec = CASES[case][0]
    n = spec.problem.n
    a, b = system(n)
    scaled = (a * scale).astype(np.float32)
    x, info = run(case, scaled, b[..., :1].copy())
    assert not info.any()
    assert ratios(scaled, b[..., :1], x).max() <= ratio_bound(n, spec.problem.math)


MUTANTS: Mapping[str, tuple[str, str, str]] = {
    "a product left out of the forward solve": ("arrays", r"sum -= x\[slot\]\[p\] \* y\[p\];", r"if (p) \g<0>"),
    "a product left out of the backward solve": ("arrays", r"sum -= l\[slot\]\[i\] \* x\[i\];", r"if (i) \g<0>"),
    "another panel's reciprocals": ("arrays", r"RECIPROCALS \+ 8 \* k, tile", "RECIPROCALS, tile"),
    "one that reads columns of another panel": ("arrays", r"panel_start\(column / 8\)", "panel_start(0)"),
    "no wait between the steps of the backward solve": (
        "arrays",
        r"__syncwarp\(\);\n        read_row\(x, own \+ SOLUTION",
        "read_row(x, own + SOLUTION",
    ),
    "rows of another panel handed round": ("few", r"own_rows\[turn\], 8 \* k", "own_rows[turn], 8 * (k ^ 1)"),
    "a second column without the first one's part": ("few", r"x\[p \+ 1\] - x\[p\] \* \S+ \+ 1\]\[p\]", "x[p + 1]"),
    "rows past the end that are no numbers": (
        "arrays",
        r"own\[COLUMN \+ i\] = 0",
        "own[COLUMN + i] = __uint_as_float(~0u)",
    ),
    "no wait before tensor cores read": (
        "several at a time",
        r"__syncwarp\(\);\n(?=#pragma unroll\n        for \(int m = 0; m < MATRICES; \+\+m\) \{\n            Beside)",
        "",
    ),
    "panels where others still read": (
        "arrays, two warps",
        r"(what has been read\. \*/\n)    __syncthreads\(\);",
        r"\1",
    ),
}


@pytest.mark.parametrize("change", MUTANTS)
def test_the_source_with_one_line_changed_fails(change: str) -> None:
    case, pattern, replacement = MUTANTS[change]
    spec, chunk = CASES[case]
    source = generate(spec)
    text, count = re.subn(pattern, replacement, source.text, count=1)
    assert count == 1, f"there is no {pattern}"
    a, b = system(spec.problem.n)
    try:
        kernel = EmulatedKernel.of(spec, replace(source, text=text))
        x = run_posv(spec, a, b, chunk, solver=kernel).x
        assert x.tobytes() != run(case, a, b)[0].tobytes()
    except EmulationError:
        pass


@pytest.mark.parametrize(
    ("n", "choices", "named"),
    [
        (96, {"teams": 16}, "teams"),
        (120, {"warps": 1}, "warps"),
        (33, {"dtype": "float64"}, "op"),
        (33, {"op": "potrs"}, "op"),
        (40, {"matrices": 4, "teams": 8}, "teams"),
        (97, {"warps": 2, "rhs": 2}, "rhs"),
    ],
)
def test_refused(n: int, choices: Mapping[str, Any], named: str) -> None:
    with pytest.raises(SpecError, match=f"^{named}="):
        warp_posv(n, **choices)
