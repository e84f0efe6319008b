"""Samples of one factorization, by the project's rules: warm code, cold data, checked results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from batchchol.backends import Backend
from batchchol.backends.base import check_protocol, check_runnable
from batchchol.batches.batch import Batch
from batchchol.batches.checks import check_range
from kernelgen import KernelSpec

WARM_UP_CALLS = 3
# How many times the last-level cache fits into the buffers of cold calls.
CACHES = 4
QUIET = 0.25
"""By how much two measurements of the same thing may differ on a quiet machine, as a share of the faster."""

Buffers = Sequence[tuple[Batch, Batch]]
Conditions = Mapping[str, str | int | float]


@dataclass(frozen=True)
class Sample:
    """Seconds of each call, and how they came about.

    Attributes
    ----------
    seconds : tuple of float
        Of each call, by the device's clock.
    ratio : float
        The largest residual ratio seen in the result that was timed.
    protocol : str
        How calls were timed: see `Backend.protocols`.
    floor : float
        Seconds that a call takes, by this protocol, which does nothing.
    conditions : mapping, of mappings
        The device's state (clocks, temperature, throttling) "before" and "after"; {} where nothing is known of it, as
        of a CPU.
    """

    seconds: tuple[float, ...]
    ratio: float
    protocol: str = "single"
    floor: float = 0.0
    conditions: Mapping[str, Conditions] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def spread(self) -> float:
        """The interquartile range over the median."""
        return spread(self.seconds)


def spread(seconds: Sequence[float]) -> float:
    """The interquartile range over the median."""
    low, middle, high = np.percentile(seconds, [25, 50, 75])
    return float((high - low) / middle)


def disagreement(first: float, second: float) -> float:
    """By how much two measurements of the same thing differ, as a share of the faster: 0.0 if they are equal.

    Raises
    ------
    ValueError
        If one of them is not a positive, finite number of seconds.
    """
    for seconds in (first, second):
        if not 0 < seconds < float("inf"):
            raise ValueError(f"seconds: got {seconds}, expected a positive, finite number")
    return max(first, second) / min(first, second) - 1


def drift(seconds: Sequence[float]) -> float:
    """By how much the medians of the two halves of a contender's calls differ; 0.0 for fewer than four calls."""
    if len(seconds) < 4:
        return 0.0
    middle = len(seconds) // 2
    return disagreement(float(np.median(seconds[:middle])), float(np.median(seconds[middle:])))


def busy_warning(disagreements: Iterable[float]) -> str | None:
    """What to print below a table whose measurements of the same thing disagree; None on a quiet machine."""
    worst = max(disagreements, default=0.0)
    if worst <= QUIET:
        return None
    return (
        f"this machine is busy: two measurements of the same kernel differ by {worst:.0%}; "
        "end other work on it and measure again"
    )


def sample_factor(
    backend: Backend,
    spec: KernelSpec,
    batch: Batch,
    *,
    samples: int = 20,
    threads: int | None = None,
    cold: bool = True,
    protocol: str | None = None,
    buffers: Buffers | None = None,
) -> Sample:
    """Time `samples` factorizations of an SPD batch, out of place, and check the result.

    Cold (the default) rotates over copies that together exceed four times the last-level cache, so that no call
    finds its data there; hot repeats one call. `protocol` is one of the backend's, by default its first. To
    time several kernels on one batch, make the `rotating_buffers` once.

    Raises
    ------
    ValueError
        If the spec is not of this batch's problem and layout, or works in place.
    OutOfMemory
        If the buffers would not fit.
    ResidualError
        If a result is wrong; no number is returned then.
    """
    check_runnable(backend, spec, batch)
    chosen = check_protocol(backend, protocol)
    check_range("samples", samples, 1)
    if spec.in_place or not batch.batch:
        raise ValueError(
            f"spec, batch: got in_place={spec.in_place} and {batch.batch} matrices, expected an out-of-place kernel "
            "(a factored matrix is not an input) and at least one matrix"
        )
    kernel, info = backend.kernel(spec), backend.info(batch, spec)
    count = threads or backend.threads
    pairs = buffers or (rotating_buffers(backend, batch) if cold else [(batch, batch.copy())])
    calls = [partial(kernel, a, out, info, threads=count) for a, out in pairs]
    seconds, conditions = timed(backend, calls, samples, chosen)
    result = pairs[(samples - 1) % len(pairs)][1].marked(spec.problem.uplo)
    ratio = backend.check(batch, result, info, spec.problem.math)
    return Sample(tuple(seconds), ratio, chosen, backend.floor(chosen), conditions)


def timed(
    backend: Backend, calls: Sequence[Callable[[], None]], samples: int, protocol: str
) -> tuple[list[float], Mapping[str, Conditions]]:
    """Seconds of each sample of warm calls, and the device's conditions before and after them."""
    before = backend.conditions()
    seconds = backend.seconds(calls, samples=samples, protocol=protocol, warm_up=WARM_UP_CALLS)
    return seconds, {"before": before, "after": backend.conditions()}


def rotating_buffers(backend: Backend, batch: Batch) -> Buffers:
    """Inputs and outputs for cold calls, all of whose pages have been touched: a first touch is no factorization.

    Their triangles, which is what calls touch at least, exceed four times the last-level cache together.

    Raises
    ------
    OutOfMemory
        If they would not fit.
    """
    touched = batch.nbytes * (batch.n + 1) // batch.n
    pairs = -(-CACHES * backend.last_level_cache_bytes() // touched)
    return [(batch if pair == 0 else batch.copy(), batch.copy()) for pair in range(pairs)]
