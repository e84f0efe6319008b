"""Kernels of the strip family that factor and solve at once, emulated, against float64."""

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

strip_posv = partial(make_spec, op="posv", target="cuda", family="strip", stride=4)
arrays = partial(strip_posv, layout="canonical", order="row", stride=None)

# Orders with and without padding, and with half of the first strip padding; one strip and several; one warp that
# solves and more; strips with one place to three; arrays.
CASES: Mapping[str, KernelSpec] = {
    "one strip": strip_posv(13, warps=1, math="fast"),
    "two warps that solve": strip_posv(48, warps=8, ahead=2, rhs=2, pdl=True, math="fast"),
    "half of a strip": strip_posv(39, warps=5, ahead=1, rhs=3),
    "three places": strip_posv(60, warps=9, ahead=3, third=2, rhs=2, math="fast"),
    "arrays": arrays(64, warps=8, ahead=3, rhs=2, math="fast"),
    "arrays, padded": arrays(37, warps=5),
    "arrays in columns": arrays(34, warps=5, order="col"),
    "upper": strip_posv(34, warps=3, uplo="upper", order="row"),
}
every_case = pytest.mark.parametrize("case", CASES)
emulated = CompiledTogether(sorted(CASES.values(), key=lambda spec: spec.problem.math))
BATCH, NRHS = 45, 3


@cache
def system(n: int) -> tuple[Array, Array]:
    """Matrices, of more groups than blocks have turns, and right-hand sides."""
    b = np.random.default_rng(n).standard_normal((BATCH, n, NRHS)).astype(np.float32)
    return DATA["wishart"](BATCH, n).astype(np.float32), b


@every_case
def test_solutions_and_info(case: str) -> None:
    """Of several right-hand sides, and of one in place, with matrices that fail."""
    spec = CASES[case]
    n, chunk = spec.problem.n, spec.schedule.stride
    a, b = system(n)
    solved = run_posv(spec, a, b, chunk, solver=emulated(spec))
    assert not solved.info.any()
    assert ratios(a, b, solved.x).max() <= ratio_bound(n, spec.problem.math)
    minors = np.zeros(BATCH, np.int32)
    minors[1:4] = n, 1, n // 2
    bad = run_posv(spec, with_bad_pivots(a, minors, -1.0), b[..., :1], chunk, solver=emulated(spec), in_place=True)
    assert np.array_equal(bad.info, minors)
    assert bad.x[minors == 0].tobytes() == solved.x[minors == 0, :, :1].tobytes()


MUTANTS: Mapping[str, tuple[str, str, str]] = {
    "a product left out of the forward solve": ("arrays", r"sum \+= l\[p\] \* y\[p\];", r"if (p) \g<0>"),
    "a product left out of the backward solve": ("arrays", r"x\[0\]\[p\] -= l\[p\] \* x\[1\]\[i\];", r"if (i) \g<0>"),
    "sums of half of the lanes": ("arrays", r"apart = HALF / 2;", "apart = HALF / 4;"),
    "tiles that are not waited for": (
        "arrays",
        r"wait_for\(barriers_of\(round\) \+ part_of\(tile, half\)",
        "(void)(0",
    ),
    "padding that nobody has written": ("half of a strip", r"return strip == 0;", "return 0;"),
    "the same group's right-hand sides once more": (
        "two warps that solve",
        r"next = last \? first_matrix\(round \+ SOLVERS\)",
        "next = last ? first",
    ),
}


@pytest.mark.parametrize("change", MUTANTS)
def test_the_source_with_one_line_changed_fails(change: str) -> None:
    case, pattern, replacement = MUTANTS[change]
    spec = CASES[case]
    chunk, source = spec.schedule.stride, generate(spec)
    text, count = re.subn(pattern, replacement, source.text)
    assert count, f"there is no {pattern}"
    a, b = system(spec.problem.n)
    right = run_posv(spec, a, b, chunk, solver=emulated(spec)).x
    try:
        x = run_posv(spec, a, b, chunk, solver=EmulatedKernel.of(spec, replace(source, text=text))).x
        assert x.tobytes() != right.tobytes()
    except EmulationError:
        pass


@pytest.mark.parametrize(
    ("n", "choices", "named"),
    [
        (112, {"warps": 31, "rhs": 2}, "warps"),
        (128, {"ahead": 2, "rhs": 2}, "ahead"),
        (32, {"op": "potrf", "rhs": 1}, "rhs"),
    ],
)
def test_refused(n: int, choices: Mapping[str, Any], named: str) -> None:
    with pytest.raises(SpecError, match=f"^{named}="):
        strip_posv(n, **{"warps": 24} | choices)
