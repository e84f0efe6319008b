"""Kernels of the whole family that solve, by matrices and by factors, emulated, against float64."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from batchchol.operations import potrs as by_factors
from batchchol.operations.posv import ratio_bound, ratios
from kernelgen import KernelSpec, SpecError, generate
from kernelgen.schedules.whole import WholeShape

from ....emulation.checks import CompiledTogether
from ....emulation.kernels import EmulatedKernel
from ....emulation.programs import EmulationError
from ....kernel_runs import Array, make_spec, run_posv, run_solver
from ....matrices import DATA, with_bad_pivots

whole_posv = partial(make_spec, op="posv", target="cuda", family="whole", layout="canonical", order="row")

# A last tile that is full, and one that has a row, beside which are right-hand sides too; a warp and more, idle ones;
# one right-hand side at a time, fewer than there are, and more.
CASES: Mapping[str, KernelSpec] = {
    "one element": whole_posv(1, warps=2, rhs=2),
    "a row in the last tile": whole_posv(33, warps=3, rhs=2, pdl=True),
    "one warp": whole_posv(40, warps=1, rhs=8, math="fast"),
    "columns": whole_posv(30, warps=1, order="col"),
    "float64": whole_posv(45, dtype="float64", uplo="upper", warps=2, rhs=3),
}
every_case = pytest.mark.parametrize("case", CASES)
emulated = CompiledTogether(sorted(CASES.values(), key=lambda spec: spec.problem.math))
BATCH, NRHS = 5, 3


@cache
def system(n: int, dtype: str) -> tuple[Array, Array]:
    """Matrices and right-hand sides."""
    b = np.random.default_rng(n).standard_normal((BATCH, n, NRHS)).astype(dtype)
    return DATA["wishart"](BATCH, n).astype(dtype), b


@every_case
def test_solutions_and_info(case: str) -> None:
    """Of several right-hand sides, and of one in place, where arrays begin elsewhere, with matrices that fail."""
    spec = CASES[case]
    n, math = spec.problem.n, spec.problem.math
    a, b = system(n, spec.problem.dtype)
    solved = run_posv(spec, a, b, None, solver=emulated(spec))
    assert not solved.info.any()
    assert ratios(a, b, solved.x).max() <= ratio_bound(n, math)
    minors = np.array([0, n, 0, 1, n // 2])
    bad = run_posv(
        spec, with_bad_pivots(a, minors, -1.0), b[..., :1], None, solver=emulated(spec), in_place=True, offset=4
    )
    assert np.array_equal(bad.info, minors)
    assert ratios(a[::2][:2], b[::2][:2, :, :1], bad.x[::2][:2]).max() <= ratio_bound(n, math)


@pytest.mark.parametrize("case", ["a row in the last tile", "float64"])
def test_right_hand_sides_are_apart(case: str) -> None:
    """One that is no number harms no other, nor info."""
    spec = CASES[case]
    a, b = system(spec.problem.n, spec.problem.dtype)
    good = run_posv(spec, a, b, None, solver=emulated(spec)).x
    b = b.copy()
    b[:, -1, 1] = np.nan
    solved = run_posv(spec, a, b, None, solver=emulated(spec))
    assert not solved.info.any()
    assert np.array_equal(solved.x[..., ::2], good[..., ::2])
    assert np.isnan(solved.x[..., 1]).all()


@pytest.mark.parametrize(
    "spec",
    [
        whole_posv(33, op="potrs", warps=2, rhs=8, uplo="upper"),
        whole_posv(20, op="potrs", dtype="float64", warps=1, rhs=2, order="col"),
    ],
    ids=lambda spec: spec.name,
)
def test_solves_by_given_factors(spec: KernelSpec) -> None:
    n, dtype = spec.problem.n, spec.problem.dtype
    a, b = system(n, dtype)
    l = np.linalg.cholesky(a.astype(float)).astype(dtype)
    b = np.concatenate([b] * 3, axis=2)
    assert by_factors.ratios(l, b, run_solver(spec, l, b)).max() <= by_factors.ratio_bound(n, "ieee")


def test_panels_have_room_for_right_hand_sides() -> None:
    """The last one comes first, and neighbours in a row are in different banks."""
    for n, rhs in ((1, 1), (33, 8), (64, 1), (100, 3), (128, 8)):
        shape = WholeShape(n, 4, "float32", rhs)
        starts = [
            shape.head + (shape.side - 1 - k) * (shape.pitch - 32 * (shape.side + k)) for k in range(shape.side)
        ]
        ends = [start + 8 * (n + rhs - 8 * k) for k, start in enumerate(starts)]
        assert starts[-1] == shape.head >= 64 + n
        assert all(end <= start for end, start in zip(ends[1:], starts, strict=False))
        assert 4 * (starts[0] + 64 * shape.tiles) == shape.shared_bytes
        assert len({(start - 64 * k) % 32 for k, start in enumerate(starts[:4])}) == min(shape.side, 4)


MUTANTS: Mapping[str, tuple[str, str, str]] = {
    "another panel's reciprocals": ("columns", r"own \+ 64 \+ 8 \* k;", "own + 64;"),
    "a product left out": ("float64", r"x\[q\] -= x\[p\] \* row\[q\];", r"if (q) \g<0>"),
    "a product left out of a later round": ("float64", r"x\[p\] -= x\[q\] \* row\[q\];", r"if (q) \g<0>"),
    "another tile of L": ("float64", r"tile\[row_place\(4 \+ t\) \^ g\]", "tile[row_place(t) ^ g]"),
    "no wait between panels": ("float64", r"(k \+ ahead \* NEXT, lane\);\n)        __syncthreads\(\);", r"\1"),
    "no wait before others come": ("float64", r"__syncthreads\(\);\n        fetch_sides", "fetch_sides"),
}


@pytest.mark.parametrize("change", MUTANTS)
def test_the_source_with_one_line_changed_fails(change: str) -> None:
    case, pattern, replacement = MUTANTS[change]
    spec = CASES[case]
    source = generate(spec)
    text, count = re.subn(pattern, replacement, source.text, count=1)
    assert count == 1, f"there is no {pattern}"
    a, b = system(spec.problem.n, spec.problem.dtype)
    b = np.concatenate([b, b[..., :2]], axis=2)
    try:
        kernel = EmulatedKernel.of(spec, replace(source, text=text))
        x = run_posv(spec, a, b, None, solver=kernel).x
    except EmulationError:
        return
    assert not ratios(a, b, x).max() <= ratio_bound(spec.problem.n, spec.problem.math)


@pytest.mark.parametrize(
    ("choices", "named"), [({"rhs": 9}, "rhs"), ({"op": "potrf", "rhs": 2}, "rhs"), ({"op": "posvdet"}, "op")]
)
def test_refused(choices: Mapping[str, Any], named: str) -> None:
    with pytest.raises(SpecError, match=f"^{named}="):
        whole_posv(33, **{"warps": 1, **choices})
