"""Kernels of GPUs that compute logarithms of determinants, emulated, against NumPy in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from batchchol.operations.logdet import RATIO_BOUND, ratios
from kernelgen import KernelSpec

from ....covering import Choice, covering_design
from ....emulation.checks import spec_of
from ....kernel_runs import Array, make_spec, run_logdet
from ....matrices import DATA, conditioned, dominant, lapack_factor, with_bad_pivots
from ....matrix_kinds import make
from .test_solves import HARD

FACTORS: Mapping[str, Sequence[Any]] = {
    # Several matrices to a warp's read, one, and parts of one.
    "n": (2, 8, 13),
    "layout": ("canonical", "interleaved", 3, 64),
    "constant_chunk": (False, True),
    "order": ("row", "col"),
    "uplo": ("lower", "upper"),
    "dtype": ("float32", "float64"),
    "math": ("ieee", "fast"),
    "threads": (32, 64),
    "pdl": (None, True),
    # Fewer than a warp, whole warps, and some more.
    "batch": (1, 37, 64, 75),
}


def cost_of(choice: Choice) -> float:
    """Infinite for a layout that has no chunk to be constant."""
    return float("inf") if choice["constant_chunk"] and not isinstance(choice["layout"], int) else 1.0


def kernel_spec(choice: Choice) -> tuple[KernelSpec, int | None]:
    return spec_of({"op": "logdet", "nb": 1, "unroll": "full"} | choice)


def gpu_spec(n: int, **choices: Any) -> KernelSpec:
    return make_spec(n, 1, op="logdet", target="cuda", unroll="full", **choices)


@pytest.mark.parametrize(
    "choice",
    covering_design(FACTORS, ("layout", "constant_chunk"), cost_of),
    ids=lambda choice: f"{kernel_spec(choice)[0].name}-{choice['batch']}",
)
def test_every_pair_of_values(choice: Choice) -> None:
    spec, chunk = kernel_spec(choice)
    for data in DATA.values():
        a = data(choice["batch"], choice["n"]).astype(choice["dtype"])
        logdet, info = run_logdet(spec, a, chunk)
        assert not info.any()
        assert ratios(a, logdet).max() <= RATIO_BOUND[spec.problem.math]


@pytest.mark.parametrize(("dtype", "math"), [("float32", "ieee"), ("float32", "fast"), ("float64", "ieee")])
def test_hard_matrices_and_determinants_beyond_the_range_of_the_type(dtype: str, math: str) -> None:
    n = 17
    spec = gpu_spec(n, dtype=dtype, math=math, layout="interleaved")
    hard = [make(kind, np.random.default_rng(7), 100, n, dtype) for kind in HARD]
    hard.append(conditioned(33, n, 1e6 if dtype == "float32" else 1e14).astype(dtype))
    hard += [np.ldexp(dominant(33, n), e).astype(dtype) for e in ((-90, 90) if dtype == "float32" else (-900, 900))]
    for a in hard:
        good = a[lapack_factor(a)[1] == 0]
        assert ratios(good, run_logdet(spec, good)[0]).max() <= RATIO_BOUND[math]


@pytest.mark.parametrize("layout", ["canonical", "chunked"])
def test_logarithm_is_nan_where_there_is_an_info_and_neighbours_are_as_before(layout: str) -> None:
    n, batch = 9, 41
    spec = gpu_spec(n, layout=layout)
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
def test_logarithms_of_pivots_are_as_good_as_those_of_the_type(dtype: str) -> None:
    """Of order 1 there is no rounding but that of the logarithm: denormal pivots, large ones, and those near 1."""
    tiny, near = np.finfo(dtype).smallest_subnormal, 1 + np.linspace(-0.4, 0.9, 1001)
    a: Array = np.concatenate([near, tiny * 2.0 ** np.arange(40), np.finfo(dtype).max / 2.0 ** np.arange(9)])
    logdet, info = run_logdet(gpu_spec(1, dtype=dtype), a.astype(dtype)[:, None, None])
    exact = np.log(a.astype(dtype).astype(np.longdouble))
    assert not info.any()
    assert (np.abs(logdet - exact) <= 1.5 * np.finfo(dtype).eps * np.abs(exact)).all()
