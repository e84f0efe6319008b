"""The rule that chooses kernels of GPUs for solves by given factors."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from batchchol import default_spec
from kernelgen import MAX_N, ThreadSchedule, generate


def schedule(n: int, **choices: Any) -> ThreadSchedule:
    chosen = default_spec(n, op="potrs", target="cuda", arch="sm_90", **choices).schedule
    assert isinstance(chosen, ThreadSchedule)
    return chosen


@pytest.mark.parametrize(
    ("layout", "chunk"), [("chunked", 4), ("chunked", 32), ("interleaved", None), ("canonical", None)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_order_has_a_kernel(dtype: str, layout: str, chunk: int | None) -> None:
    for n, batch in product(range(1, MAX_N + 1), (1_024, 131_072)):
        order = "row" if layout == "canonical" else "col"
        spec = default_spec(
            n, op="potrs", target="cuda", dtype=dtype, layout=layout, chunk=chunk, order=order, batch=batch
        )
        assert isinstance(spec.schedule, ThreadSchedule)
        if n <= 96:
            assert spec.schedule.staged
            # Of large batches a multiprocessor has room for three warps.
            launch = generate(spec).launch if n % 16 == 0 and batch > 1_024 else None
            assert launch is None or launch.shared_bytes <= 77 << 10


def test_threads_share_matrices_of_small_batches() -> None:
    for n in (32, 64, 96):
        few, many = (schedule(n, chunk=4, batch=batch).split or 1 for batch in (131_072, 1_024))
        assert many == 2 * few
    assert schedule(8, batch=1_024) == schedule(8, batch=131_072)


def test_wide_chunks_of_large_matrices_are_not_staged() -> None:
    """But for small batches: a warp would read pieces of sectors, or leave no room for others."""
    assert schedule(128, chunk=4).staged
    assert not schedule(128, chunk=32).staged
    assert schedule(128, chunk=32, batch=1_024).staged


def test_gpus_without_copies_in_the_background_read_factors_where_they_are() -> None:
    old = default_spec(32, op="potrs", target="cuda", arch="sm_75").schedule
    assert isinstance(old, ThreadSchedule)
    assert (old.staged, old.unroll, old.nb) == (None, "tiles", 8)
