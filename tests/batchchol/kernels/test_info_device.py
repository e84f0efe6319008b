"""Info on a GPU is LAPACK's: every family, math, dtype and layout, for what is not finite and what fails."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol.backends import Backend
from kernelgen import KernelSpec, SpecError

from ...kernel_runs import make_spec
from ...matrix_kinds import FLUSHED_KINDS, KINDS, Array, certain, lapack_info, make
from .families.test_block_device import built_on_a_gpu, factored

# The last tile of every family is smaller than the others.
N = 37
BATCH = 3_400
FAMILIES: dict[str, dict[str, Any]] = {
    "thread": {"family": "thread", "nb": 4},
    "shared": {"family": "shared", "nb": 8, "looking": "left", "matrices": 2},
    "block": {"family": "block", "nb": 8, "lanes": 8},
    "pipeline": {"family": "block", "nb": 8, "lanes": 8, "pipeline": 1, "early": 1},
    "tensor": {"family": "warp", "matrices": 2, "update": "tensor"},
    "fma": {"family": "warp", "matrices": 2, "update": "fma"},
    "strip": {"family": "strip", "warps": 6, "ahead": 1, "stride": 4},
}


def specs() -> list[KernelSpec]:
    """What there is of every combination."""
    made = []
    for family in FAMILIES.values():
        for math in ("ieee", "fast"):
            for dtype in ("float32", "float64"):
                for layout, order in (("canonical", "row"), ("interleaved", "col"), ("chunked", "col")):
                    choices = {"math": math, "dtype": dtype, "layout": layout, "order": order, "target": "cuda"}
                    try:
                        made.append(make_spec(N, **family, **choices))
                    except SpecError:
                        continue
    # Straight-line code of small matrices: those of all registers of a thread.
    return made + [
        make_spec(6, 3, unroll="full", math=math, dtype=dtype, target="cuda")
        for math in ("ieee", "fast")
        for dtype in ("float32", "float64")
    ]


SPECS = specs()


@cache
def mixed(n: int, dtype: str) -> tuple[NDArray[np.str_], Array, NDArray[np.int32], NDArray[np.bool_]]:
    """The kinds of matrices in turn, the matrices, their info by LAPACK, and where that is certain."""
    random = np.random.default_rng(19)
    kinds = np.array(sorted(KINDS))[np.arange(BATCH) % len(KINDS)]
    a = np.empty((BATCH, n, n), dtype)
    for kind in KINDS:
        a[kinds == kind] = make(kind, random, int((kinds == kind).sum()), n, dtype)
    return kinds, a, lapack_info(a), certain(kinds, a)


@pytest.fixture(scope="module")
def built() -> Backend:
    return built_on_a_gpu(SPECS)


def test_there_is_a_spec_of_each_family_and_of_each_math_and_dtype() -> None:
    families = {(spec.family, spec.problem.math, spec.problem.dtype) for spec in SPECS}
    assert len(families) == 3 * 4 + 2 + 2


@pytest.mark.gpu
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_info_of_every_kind_in_one_batch(built: Backend, spec: KernelSpec) -> None:
    n, dtype = spec.problem.n, spec.problem.dtype
    kinds, a, lapack, sure = mixed(n, dtype)
    l, info = factored(built, spec, np.where(np.tri(n, dtype=bool), a, np.nan).astype(dtype))
    if (spec.problem.math, dtype) == ("fast", "float32"):
        sure = sure & ~np.isin(kinds, list(FLUSHED_KINDS))
    differs = np.flatnonzero(sure & (info != lapack))
    assert not len(differs), {(kinds[m], info[m], lapack[m]) for m in differs[:20]}
    assert not np.isnan(l[sure & (lapack == 0)]).any()
    good = kinds == "dominant"
    alone, _ = factored(built, spec, np.where(good[:, None, None], a, np.eye(n)).astype(dtype))
    assert np.array_equal(alone[good], l[good])
