"""Kernels of GPUs that factor and solve at once, emulated, against LAPACK in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

import numpy as np
import pytest

from batchchol.operations.posv import oracle, ratio_bound, ratios
from kernelgen import KernelSpec, SpecError, generate

from ...covering import Choice, covering_design
from ...cuda_checks import CompiledTogether, spec_of
from ...cuda_kernels import EmulatedKernel
from ...cuda_programs import EmulationError
from ...kernel_runs import Array, Solved, make_spec, run_posv
from ...matrices import DATA, UNIT_ROUNDOFF, lapack_factor, with_bad_pivots
from ...matrix_kinds import make

posv_spec = partial(make_spec, op="posv", target="cuda")

FACTORS: Mapping[str, Sequence[Any]] = {
    # Several matrices to a warp's read, one, and parts of one; whole tiles and others; rows that go back.
    "n": (1, 2, 3, 5, 8, 17, 21),
    "nb": (1, 3, 4),
    "rhs": (1, 2, 3),
    "unroll": ("tiles", "full"),
    "staged": (None, True),
    # An integer is the chunk of the chunked layout.
    "layout": ("canonical", "interleaved", 3, 32, 64),
    "constant_chunk": (False, True),
    "order": ("row", "col"),
    "uplo": ("lower", "upper"),
    "dtype": ("float32", "float64"),
    "math": ("ieee", "fast"),
    "threads": (32, 64),
    "pdl": (None, True),
    "in_place": (False, True),
    # Fewer than a warp, whole warps, and some more.
    "batch": (1, 37, 64, 75),
}
CONSTRAINED = ("n", "nb", "rhs", "unroll", "staged", "layout", "constant_chunk")
FORWARD_BOUND = 1.0


def cost_of(choice: Choice) -> float:
    """What running a choice costs; infinite for what is refused."""
    try:
        spec_of({"op": "posv", "math": "fast"} | choice)
    except SpecError:
        return inf
    # A layout that is no integer has no chunk to be constant.
    odd = choice["constant_chunk"] and not isinstance(choice["layout"], int)
    return inf if odd else choice["n"] ** 2 * (choice["rhs"] + 1) + 100


def kernel_spec(choice: Choice) -> tuple[KernelSpec, int | None]:
    """The spec of a choice, and its chunk."""
    return spec_of({name: value for name, value in choice.items() if name != "in_place"} | {"op": "posv"})


def case_id(choice: Choice) -> str:
    return f"{kernel_spec(choice)[0].name}-{choice['batch']}"


def system(n: int, batch: int, nrhs: int, dtype: str, data: str = "wishart") -> tuple[Array, Array]:
    """Matrices and right-hand sides, rounded to a dtype."""
    b = np.random.default_rng((n, batch)).standard_normal((batch, n, nrhs))
    return DATA[data](batch, n).astype(dtype), b.astype(dtype)


DESIGN = sorted(covering_design(FACTORS, CONSTRAINED, cost_of), key=lambda each: (each["math"], each["dtype"]))
emulated = CompiledTogether(kernel_spec(choice)[0] for choice in DESIGN)


@pytest.mark.parametrize("choice", DESIGN, ids=case_id)
def test_every_pair_of_values(choice: Choice) -> None:
    (spec, chunk), batch = kernel_spec(choice), choice["batch"]
    n, dtype = spec.problem.n, spec.problem.dtype
    for place, nrhs in enumerate((1, choice["rhs"] + 1, 2 * choice["rhs"])):
        a, b = system(n, batch, nrhs, dtype, list(DATA)[place % 2])
        solved = run_posv(spec, a, b, chunk, solver=emulated(spec), in_place=choice["in_place"])
        assert not solved.info.any()
        assert ratios(a, b, solved.x).max() <= ratio_bound(n, spec.problem.math), nrhs
    expected = oracle(a, b)
    away = np.linalg.norm(solved.x - expected, axis=(1, 2)) / np.linalg.norm(expected, axis=(1, 2))
    assert (away / ((3 * n + 1) * UNIT_ROUNDOFF[dtype] * np.linalg.cond(a.astype(float)))).max() <= FORWARD_BOUND
