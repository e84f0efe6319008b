"""Kernels that invert, by factors and factoring first: of every SIMD target here, and emulated ones of GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np
import pytest

from batchchol.artifacts.c_library import supported_targets
from batchchol.operations import poinv, potri
from kernelgen import TARGETS, KernelSpec, SpecError

from ....covering import Choice, covering_design
from ....kernel_runs import Array, make_spec, run_inverse
from ....matrices import DATA, conditioned, dominant, lapack_factor, with_bad_pivots
from ....matrix_kinds import make
from .test_solves import HARD

COMMON: Mapping[str, Sequence[Any]] = {
    "op": ("potri", "poinv"),
    "layout": ("canonical", "interleaved", "chunked"),
    "order": ("row", "col"),
    "uplo": ("lower", "upper"),
    "dtype": ("float32", "float64"),
    "math": ("ieee", "fast"),
    "batch": (3, 37),
}
# Tiles that divide n, that leave a corner, one only; matrices of fewer elements than a vector, and of more.
SIMD = {"n": (1, 3, 7, 13), "nb": (1, 4), "target": supported_targets(), **COMMON}
GPU = {"n": (1, 5, 10), "nb": (1,), "target": ("cuda",), "unroll": ("full",), "pdl": (None, True), **COMMON}
GPU_TILES = {"n": (8, 10), "nb": (2, 4), "target": ("cuda",), "threads": (32, 64), "pdl": (None, True), **COMMON}
CHECKS = {"potri": potri, "poinv": poinv}


def cost_of(choice: Choice) -> float:
    """Nothing but infinite for tiles that do not fit."""
    return inf if choice["nb"] > choice["n"] else 1.0


def spec_of(choice: Choice) -> KernelSpec:
    return make_spec(**{name: value for name, value in choice.items() if name != "batch"})


def given_to(spec: KernelSpec, a: Array) -> Array:
    """The matrices, or their factors, in the dtype of the spec."""
    return (a if spec.problem.operation.factors else lapack_factor(a)[0]).astype(spec.problem.dtype)


def check(spec: KernelSpec, a: Array) -> None:
    given = given_to(spec, a)
    x, info = run_inverse(spec, given)
    assert not info.any()
    assert (x == x.swapaxes(1, 2)).all()
    assert CHECKS[spec.problem.op].ratios(given, x).max() <= potri.RATIO_BOUND[spec.problem.math]


@pytest.mark.parametrize(
    "choice",
    [each for factors in (SIMD, GPU, GPU_TILES) for each in covering_design(factors, ("n", "nb"), cost_of)],
    ids=lambda choice: f"{spec_of(choice).name}-{choice['batch']}",
)
def test_every_pair_of_values(choice: Choice) -> None:
    for data in DATA.values():
        check(spec_of(choice), data(choice["batch"], choice["n"]).astype(choice["dtype"]))


@pytest.mark.parametrize("target", [supported_targets()[0], "cuda"])
@pytest.mark.parametrize("op", ["potri", "poinv"])
def test_hard_matrices(op: str, target: str) -> None:
    n = 9
    own = {"nb": 1, "unroll": "full"} if TARGETS[target].gpu else {"nb": 4}
    spec = make_spec(n, op=op, target=target, layout="canonical", order="row", **own)
    for kind in HARD:
        a = make(kind, np.random.default_rng(7), 100, n, "float32")
        check(spec, a[lapack_factor(a)[1] == 0])
    check(spec, conditioned(33, n, 1e6).astype("f4"))


@pytest.mark.parametrize("target", [supported_targets()[0], "cuda"])
def test_info_is_that_of_the_first_bad_pivot_and_neighbours_are_as_before(target: str) -> None:
    n, batch = 7, 41
    own = {"nb": 1, "unroll": "full"} if TARGETS[target].gpu else {"nb": 3}
    a = dominant(batch, n).astype(np.float32)
    minors = np.where(np.arange(batch) % 3, np.arange(batch) % n + 1, 0)
    for op in ("potri", "poinv"):
        spec = make_spec(n, op=op, target=target, layout="interleaved", **own)
        given = given_to(spec, a)
        alone, _ = run_inverse(spec, given)
        for value in (0.0, np.nan, -1.0) if op == "poinv" else (0.0, np.nan):
            marred = with_bad_pivots(a, minors, value) if op == "poinv" else given.copy()
            if op == "potri":
                # The element and the last one: the first of them counts.
                failing = np.flatnonzero(minors)
                marred[failing, minors[failing] - 1, minors[failing] - 1] = value
                marred[failing, n - 1, n - 1] = 0
            beside, info = run_inverse(spec, marred)
            assert np.array_equal(info, minors)
            assert beside[minors == 0].tobytes() == alone[minors == 0].tobytes()


def test_what_has_no_kernel_is_refused() -> None:
    with pytest.raises(SpecError, match=r"n=90 is .* bytes of shared memory, over the"):
        make_spec(90, 4, op="poinv", target="cuda")
    with pytest.raises(SpecError, match="poinv has its result in another place, use False"):
        make_spec(4, 2, op="poinv", in_place=True)
    with pytest.raises(SpecError, match="looking='top' cannot be built: potri has no such choice, use 'left'"):
        make_spec(4, 2, op="potri", looking="top")
