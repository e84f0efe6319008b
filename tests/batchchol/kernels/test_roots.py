"""Pivots of every size: their roots and reciprocals are the first columns of matrices of order 2."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol.backends import Backend

from ...kernel_runs import make_spec
from .families.test_block_device import factored

SCHEDULES: dict[str, dict[str, Any]] = {
    "thread": {"family": "thread", "nb": 1, "unroll": "full"},
    "loops": {"family": "thread", "nb": 1},
    "shared": {"family": "shared", "nb": 1, "matrices": 32},
    "block": {"family": "block", "nb": 4, "lanes": 32},
    "warp": {"family": "warp", "matrices": 4},
}
COUNT = {"emulated": 1 << 12, "real": 1 << 22}


def pivots(count: int) -> NDArray[np.float32]:
    """Positive finite numbers: each power of two and its neighbours, denormals too, and others of all sizes."""
    powers = np.exp2(np.arange(-149, 128, dtype=np.float64)).astype(np.float32).view(np.int32)
    near = powers[:, None] + np.array([-1, 0, 1], np.int32)
    other = np.random.default_rng(7).integers(1, 0x7F800000, count, np.int32)
    return np.concatenate([near[near > 0], other]).view(np.float32)


def columns(cuda: Backend, schedule: str, d: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[Any]]:
    """First columns of factors, and infos, of matrices with these numbers above left and ones elsewhere."""
    a = np.ones((len(d), 2, 2), np.float32)
    a[:, 0, 0] = d
    l, info = factored(cuda, make_spec(2, target="cuda", math="ieee", **SCHEDULES[schedule]), a)
    return l[:, :, 0], info


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_how_roots_and_reciprocals_are_rounded(cuda: Backend, schedule: str, request: pytest.FixtureRequest) -> None:
    kind = "real" if "real" in request.node.name else "emulated"
    d = pivots(COUNT[kind])
    found, _ = columns(cuda, schedule, d)
    root = np.sqrt(d)
    assert np.array_equal(found[:, 0], root)
    if schedule == "warp":
        # On a GPU they take it from an estimate of 1 / sqrt(d), emulated from the rounded root.
        exact = 1 / np.sqrt(d.astype(np.float64))
        ulps = np.abs(found[:, 1] - exact) / np.spacing(exact.astype(np.float32))
        assert ulps.max() <= {"real": 1, "emulated": 1.5}[kind]
    else:
        assert np.array_equal(found[:, 1], 1 / root)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_is_not_positive_is_no_pivot_and_an_infinite_one_is(cuda: Backend, schedule: str) -> None:
    found, info = columns(cuda, schedule, np.array([0, -0.0, -1, -np.inf, np.nan, np.inf], np.float32))
    assert info.tolist() == [1, 1, 1, 1, 1, 0]
    assert np.array_equal(found[5], [np.inf, 0])
