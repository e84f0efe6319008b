"""Samples of one factorization, by the rules of the house: warm code, cold data, checked results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from batchchol import residual
from batchchol.backends import Backend
from batchchol.backends.base import check_runnable
from batchchol.backends.cpu import last_level_cache_bytes
from batchchol.batch import Batch, info_array
from kernelgen import KernelSpec

WARM_UP_SAMPLES = 3


@dataclass(frozen=True)
class Sample:
    """Seconds of each call and the largest residual ratio seen in the result that was timed."""

    seconds: tuple[float, ...]
    ratio: float

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def spread(self) -> float:
        """The interquartile range over the median."""
        low, high = np.percentile(self.seconds, [25, 75])
        return float((high - low) / self.median)


def sample_factor(
    backend: Backend,
    spec: KernelSpec,
    batch: Batch,
    *,
    samples: int = 20,
    threads: int | None = None,
    cold: bool = True,
) -> Sample:
    """Time `samples` factorizations of an SPD batch, out of place, and check the result.

    Cold (the default) rotates over copies that together exceed four times the last-level cache, so that no call
    finds its data there; hot repeats one call.

    Raises
    ------
    ValueError
        If the spec is not of this batch's problem and layout, or works in place.
    ResidualError
        If a result is wrong; no number is returned then.
    """
    check_runnable(backend, spec, batch)
    if samples < 1:
        raise ValueError(f"samples: got {samples}, expected at least 1")
    if spec.in_place or not batch.batch:
        raise ValueError(
            f"spec, batch: got in_place={spec.in_place} and {batch.batch} matrices, expected an out-of-place kernel "
            "(a factored matrix is not an input) and at least one matrix"
        )
    kernel = backend.kernel(spec)
    count = threads or backend.threads
    pairs = _buffers(batch, cold)
    info = info_array(batch, spec.lanes)
    seconds = []
    for index in range(-WARM_UP_SAMPLES, samples):
        a, out = pairs[index % len(pairs)]
        elapsed = backend.sample(kernel, a, out, info, count)
        if index >= 0:
            seconds.append(elapsed)
    ratio = residual.check(batch, pairs[(samples - 1) % len(pairs)][1], info, spec.schedule.math)
    return Sample(tuple(seconds), ratio)


def _buffers(batch: Batch, cold: bool) -> Sequence[tuple[Batch, Batch]]:
    copies = -(-4 * last_level_cache_bytes() // (2 * batch.nbytes)) if cold else 1
    pairs = [(batch, _like(batch))]
    for _ in range(copies - 1):
        copy = _like(batch)
        copy.data[...] = batch.data
        pairs.append((copy, _like(batch)))
    return pairs


def _like(batch: Batch) -> Batch:
    """A batch of the same shape whose pages have been touched: a first touch is not part of a factorization."""
    like = Batch.empty(batch.n, batch.batch, batch.layout, batch.dtype)
    like.data[...] = 0
    return like
