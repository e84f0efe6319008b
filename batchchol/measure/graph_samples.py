"""Samples of factorizations that a graph launches: as in `batchchol.measure.timing`, but through graphs."""

from __future__ import annotations

from dataclasses import dataclass

from batchchol.api import Factor, factor
from batchchol.backends import Backend
from batchchol.backends.base import check_runnable
from batchchol.backends.cuda.graphs import BRANCHES, Graph, record
from batchchol.batches.batch import Batch
from batchchol.batches.checks import check_range
from batchchol.measure.timing import Buffers, Sample, rotating_buffers, timed
from kernelgen import KernelSpec

# Calls in a graph: enough that launching it costs each of them little.
CALLS = 64


@dataclass(frozen=True)
class Recorded:
    """Graphs of equally many calls by one spec, all on copies of one batch, together on cold data."""

    backend: Backend
    spec: KernelSpec
    batch: Batch
    graphs: tuple[Graph, ...]
    results: tuple[tuple[Factor, ...], ...]

    def sample(self, samples: int = 20) -> Sample:
        """Time the calls by the device's clock, graph after graph queued, and check all results of the last one.

        Returns
        -------
        Sample
            `seconds` are per call.

        Raises
        ------
        ResidualError
            If a result is wrong.
        """
        seconds, conditions = timed(self.backend, [graph.launch for graph in self.graphs], samples, "queued")
        last = self.results[(samples - 1) % len(self.results)]
        math = self.spec.problem.math
        ratio = max(self.backend.check(self.batch, result.L, result.info, math) for result in last)
        calls = len(self.graphs[0])
        taken = tuple(each / calls for each in seconds)
        return Sample(taken, ratio, "queued", self.backend.floor("queued"), conditions)


def record_calls(
    backend: Backend,
    spec: KernelSpec,
    batch: Batch,
    *,
    calls: int = CALLS,
    branches: int | None = BRANCHES,
    buffers: Buffers | None = None,
) -> Recorded:
    """Record graphs of several calls each, over buffers that together exceed four times the last-level cache.

    Raises
    ------
    ValueError
        If the spec is not of this batch's problem and layout, or there are no calls.
    OutOfMemory
        If the buffers would not fit.
    """
    check_runnable(backend, spec, batch)
    check_range("calls", calls, 1)
    pairs = list(buffers or rotating_buffers(backend, batch))
    pairs += [(batch.copy(), batch.copy()) for _ in range(-len(pairs) % calls)]
    graphs, results = [], []
    for first in range(0, len(pairs), calls):
        with record(branches=branches) as graph:
            results.append(tuple(factor(a, spec, out=out) for a, out in pairs[first : first + calls]))
        graphs.append(graph)
    return Recorded(backend, spec, batch, tuple(graphs), tuple(results))
