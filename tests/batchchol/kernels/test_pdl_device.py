"""Kernels that are launched before their predecessors have ended: each works on what the one before it writes."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import cycle

import numpy as np
import pytest

from batchchol.backends import Backend
from batchchol.backends.cuda.device import device
from kernelgen import (
    BlockSchedule,
    KernelSpec,
    Layout,
    Problem,
    Schedule,
    SharedSchedule,
    StripSchedule,
    ThreadSchedule,
    WarpSchedule,
)

# An even number, so that the last result is where the first matrices were.
CALLS = 8

SPECS = [
    KernelSpec(Problem(n, math=math), layout, "row" if layout == "canonical" else "col", schedule, "cuda", in_place)
    for in_place, (n, math, layout, schedule) in zip(
        cycle((False, True)),
        (
            (4, "fast", "chunked", ThreadSchedule(2, unroll="full", pdl=True)),
            (5, "ieee", "canonical", ThreadSchedule(5, unroll="full", staged=True, pdl=True)),
            (7, "ieee", "interleaved", SharedSchedule(3, pdl=True)),
            (9, "ieee", "canonical", BlockSchedule(5, 3, pdl=True)),
            (20, "ieee", "chunked", BlockSchedule(8, 8, pipeline=1, early=2, spare=1, pdl=True)),
            (16, "ieee", "chunked", WarpSchedule(1, teams=8, stride=2, pdl=True)),
            (12, "fast", "canonical", WarpSchedule(2, pdl=True)),
            (20, "fast", "chunked", StripSchedule(2, ahead=1, stride=4, pdl=True)),
        ),
        strict=False,
    )
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_each_call_sees_what_the_one_before_has_written(
    cuda: Backend, spec: KernelSpec, request: pytest.FixtureRequest
) -> None:
    """Of diagonal matrices: the factor of one is diagonal too, so that its factor is known.

    Neighbouring matrices share sectors of memory, and blocks that begin early share multiprocessors with others that
    still write.
    """
    per_multiprocessor = 300 if request.node.callspec.params["cuda"] == "real" else 30
    n, count = spec.problem.n, per_multiprocessor * int(cuda.device()["multiprocessors"]) + 1
    layout = Layout(spec.layout, _chunk(spec.schedule) if spec.layout == "chunked" else None, spec.order)
    pivots = np.random.default_rng(7).uniform(1, 4, (count, n))
    dense = np.zeros((count, n, n), np.float32)
    dense[:, np.arange(n), np.arange(n)] = pivots
    first = cuda.from_dense(dense, layout)
    second = first if spec.in_place else first.copy()
    info, kernel = cuda.info(first, spec), cuda.kernel(spec)
    # The driver launches the half of them early, PyCUDA the others plainly: these wait for nothing, and early ones
    # for them.
    for call in range(CALLS):
        a, l = (first, second) if call % 2 == 0 else (second, first)
        with device().queueing() if call in range(2, 6) else nullcontext():
            kernel(a, l, info, threads=1)
    found = np.asarray(cuda.host(first.get(0, count)))[:, np.arange(n), np.arange(n)]
    np.testing.assert_allclose(found, pivots.astype(np.float32) ** (0.5**CALLS), rtol=1e-5)


def _chunk(schedule: Schedule) -> int:
    return schedule.stride or 32
