"""Kernels that compute logarithms of determinants, of every SIMD target here, against NumPy in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np
import pytest

from batchchol.artifacts.c_library import supported_targets
from batchchol.operations.logdet import RATIO_BOUND, ratios
from kernelgen import KernelSpec, SpecError

from ....covering import Choice, covering_design
from ....kernel_runs import Array, make_spec, run_logdet
from ....matrices import DATA, conditioned, dominant, lapack_factor, with_bad_pivots
from ....matrix_kinds import make
from .test_solves import HARD

FACTORS: Mapping[str, Sequence[Any]] = {
    "n": (1, 2, 7, 19),
    "nb": (1, 4),
    "looking": ("right", "left", "top"),
    "layout": ("canonical", "interleaved", "chunked"),
    "order": ("row", "col"),
    "uplo": ("lower", "upper"),
    "dtype": ("float32", "float64"),
    "math": ("ieee", "fast"),
    "target": supported_targets(),
    "batch": (3, 37),
}


def logdet_spec(n: int, nb: int, **choices: Any) -> KernelSpec:
    return make_spec(n, nb, op="logdet", **choices)


def cost_of(choice: Choice) -> float:
    """Nothing but infinite for tiles that do not fit."""
    return inf if choice["nb"] > choice["n"] else 1.0


def check(spec: KernelSpec, a: Array) -> None:
    logdet, info = run_logdet(spec, a)
    assert not info.any()
    assert ratios(a, logdet).max() <= RATIO_BOUND[spec.problem.math]


@pytest.mark.parametrize(
    "choice",
    covering_design(FACTORS, ("n", "nb"), cost_of),
    ids=lambda choice: f"{'-'.join(map(str, choice.values()))}",
)
def test_every_pair_of_values(choice: Choice) -> None:
    spec = logdet_spec(**{name: value for name, value in choice.items() if name != "batch"})
    for data in DATA.values():
        check(spec, data(choice["batch"], choice["n"]).astype(choice["dtype"]))


@pytest.mark.parametrize(("dtype", "math"), [("float32", "ieee"), ("float32", "fast"), ("float64", "ieee")])
def test_hard_matrices_and_determinants_beyond_the_range_of_the_type(dtype: str, math: str) -> None:
    n = 17
    spec = logdet_spec(n, 4, dtype=dtype, math=math, layout="interleaved")
    for kind in HARD:
        a = make(kind, np.random.default_rng(7), 100, n, dtype)
        check(spec, a[lapack_factor(a)[1] == 0])
    check(spec, conditioned(33, n, 1e6 if dtype == "float32" else 1e14).astype(dtype))
    for exponent in (-90, 90) if dtype == "float32" else (-900, 900):
        check(spec, np.ldexp(dominant(33, n), exponent).astype(dtype))


@pytest.mark.parametrize("layout", ["canonical", "chunked"])
def test_logarithm_is_nan_where_there_is_an_info_and_neighbours_are_as_before(layout: str) -> None:
    n, batch = 9, 41
    spec = logdet_spec(n, 4, layout=layout)
    a = dominant(batch, n).astype(np.float32)
    alone, _ = run_logdet(spec, a)
    minors = np.where(np.arange(batch) % 3, np.arange(batch) % n + 1, 0)
    for value in (-1.0, 0.0, np.nan):
        beside, info = run_logdet(spec, with_bad_pivots(a, minors, value))
        assert np.array_equal(info, minors)
        assert np.isnan(beside[minors > 0]).all()
        assert beside[minors == 0].tobytes() == alone[minors == 0].tobytes()
    infinite, info = run_logdet(spec, with_bad_pivots(a, minors, np.inf))
    assert not info.any()
    assert (infinite[minors > 0] == np.inf).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logarithms_near_zero_keep_their_digits(dtype: str) -> None:
    """Of order 1 there is one rounding each in the root, the product and the logarithm: all is relative to A - 1."""
    near = 1 + np.linspace(-0.4, 0.9, 1001)
    a = near.astype(dtype)[:, None, None]
    logdet, _ = run_logdet(logdet_spec(1, 1, dtype=dtype), a)
    expected = np.log(a[:, 0, 0].astype(np.longdouble))
    # A root that is off by half a unit is so of the logarithm, twice.
    assert np.abs(logdet - expected).max() <= 1.5 * np.finfo(dtype).eps


def test_what_has_no_kernel_is_refused() -> None:
    with pytest.raises(SpecError, match="logdet has straight-line code alone on a GPU, use 'full'"):
        logdet_spec(4, 2, target="cuda")
    with pytest.raises(SpecError, match="logdet has its result in another place, use False"):
        logdet_spec(4, 2, in_place=True)
