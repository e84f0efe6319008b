"""Kernels of GPUs that factor and solve at once, several threads to a matrix, emulated, against LAPACK in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchchol.operations.posv import ratio_bound, ratios
from kernelgen import KernelSpec, SpecError
from kernelgen.emit.operations.repair import generate_repairing

from ....emulation.checks import CompiledTogether
from ....kernel_runs import make_spec, run_posv
from ....matrices import DATA, with_bad_pivots


def spec_of(n: int, split: int, **choices: Any) -> KernelSpec:
    packed = {"stride": 32, "threads": 32 * split}
    where = {"blocks": 2} | (packed if choices.get("layout") != "canonical" else {"threads": 32}) | choices
    return make_spec(n, 1, op="posv", target="cuda", unroll="full", staged=True, rhs=1, split=split, **where)


# Whole rows of threads and not, triangles and orders of elements, chunks of a block's matrices and of more; arrays of
# rows that begin at fourth places, anywhere and at even ones, and of columns.
SPECS = (
    spec_of(8, 2, math="fast", pdl=True),
    spec_of(9, 4, uplo="upper", stride=64),
    spec_of(16, 8, order="row", dtype="float64", stride=16, threads=128),
    spec_of(13, 2, order="row", dtype="float64"),
    spec_of(11, 8, math="fast", order="row", uplo="upper", dtype="float64"),
    spec_of(12, 4, layout="canonical", order="row", pdl=True),
    spec_of(9, 2, layout="canonical", order="row", math="fast"),
    spec_of(14, 8, layout="canonical", uplo="upper", dtype="float64"),
    spec_of(7, 4, layout="canonical", order="row", uplo="upper"),
    spec_of(16, 16, layout="canonical", order="row", math="fast", pdl=True),
    spec_of(11, 16, layout="canonical", order="row"),
    spec_of(10, 16, layout="canonical", order="row", dtype="float64"),
    spec_of(9, 16, layout="canonical", uplo="lower", math="fast"),
)
emulated = CompiledTogether(SPECS)
every_spec = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)


@every_spec
def test_solutions_of_any_number_of_right_hand_sides(spec: KernelSpec) -> None:
    n, dtype, chunk = spec.problem.n, spec.problem.dtype, spec.schedule.stride
    for nrhs, batch, in_place, offset in ((1, 70, False, 0), (3, 37, True, 8), (2, 1, False, 0)):
        b = np.random.default_rng((n, batch)).standard_normal((batch, n, nrhs)).astype(dtype)
        a = DATA["wishart"](batch, n).astype(dtype)
        solved = run_posv(spec, a, b, chunk, solver=emulated(spec), in_place=in_place, offset=offset)
        assert not solved.info.any()
        assert ratios(a, b, solved.x).max() <= ratio_bound(n, spec.problem.math)


@every_spec
def test_the_first_bad_pivot_is_told_and_harms_no_neighbour(spec: KernelSpec) -> None:
    n, dtype, chunk = spec.problem.n, spec.problem.dtype, spec.schedule.stride
    a = DATA["dominant"](70, n).astype(dtype)
    b = np.ones((70, n, 1), dtype)
    whole = run_posv(spec, a, b, chunk, solver=emulated(spec)).x
    for value in (-1.0, 0.0, np.nan):
        minors = np.arange(70) % 3 % 2 * (np.arange(70) // 3 % n + 1)
        solved = run_posv(spec, with_bad_pivots(a, minors, value), b, chunk, solver=emulated(spec))
        assert solved.info.tolist() == minors.tolist()
        assert solved.x[minors == 0].tobytes() == whole[minors == 0].tobytes()


def test_repair_is_a_kernel_of_its_own() -> None:
    assert generate_repairing(SPECS[0]) is None


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"split": 6}, "split=6"),
        ({"split": 16}, "a grid of threads has arrays"),
        ({"threads": 16}, "use threads=64"),
        ({"threads": 64, "layout": "canonical"}, "a block is one warp"),
        ({"layout": "interleaved", "stride": None}, "split=2"),
        ({"stride": 16}, "stride=16"),
        ({"blocks": None}, "blocks=None"),
        ({"n": 32, "dtype": "float64"}, "use a larger split"),
    ],
)
def test_what_is_refused(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        spec_of(**{"n": 8, "split": 2} | choices)
