"""What scripts make of times of many larger matrices, without a GPU."""

from __future__ import annotations

import pytest

from kernelgen.gpu import MAX_SHARED_BYTES

from .clusters import ORDERS, clusters
from .limit import RESERVE, largest_order
from .orders import CASES, statistics


def test_statistics() -> None:
    """The median, the distance of the quartiles over it, and the rate by n^3/3."""
    found = statistics([4e-3, 2e-3, 1e-3, 3e-3, 5e-3], 300, 10)
    assert found == {"samples": 5, "seconds": "0.003", "spread": "0.667", "gflops": "30"}


def test_orders_once() -> None:
    """No order is timed twice for one batch."""
    assert len(set(CASES)) == len(CASES)


@pytest.mark.parametrize("itemsize", [4, 8])
def test_largest_order(itemsize: int) -> None:
    """One more tile would take what is left for the check."""
    free = 150 << 30
    n = largest_order(free, itemsize)
    assert n % 128 == 0
    assert n * n * itemsize <= free - RESERVE < (n + 128) ** 2 * itemsize


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_clusters_fit(dtype: str) -> None:
    """Every order has some that fit, and those of more blocks need less room in each."""
    for n in ORDERS:
        found = clusters(n, dtype)
        rooms = [each.shared_bytes for each in found]
        assert rooms or (n, dtype) == (512, "float64")
        assert all(room <= MAX_SHARED_BYTES for room in rooms)
        assert rooms == sorted(rooms, reverse=True)
        assert all(each.resident * each.shared_bytes <= 228 * 1024 for each in found)
