"""One matrix of an order up to 1,024 on one block of threads, timed beside cuSOLVER: the shared family's other forms.

The library itself does not use it: a block is one multiprocessor of many. It is there to be measured against.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.backends import get_backend
from batchchol.backends.base import check_protocol
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.device import Device, device
from batchchol.measure.stopwatch import Stopwatch
from batchchol.measure.timing import CACHES, Sample
from batchchol.operations import residual
from kernelgen import KernelSource
from kernelgen.emit.families.shared import SINGLE_NB, generate_single
from kernelgen.emit.families.single import generate_single_panel

CUSOLVER = "cusolver"
PANEL = "panel"
WAYS = ("shared", PANEL, CUSOLVER)
# Enough to be cold from order 128 on; smaller matrices are only checked.
_MOST_SETS = 4096


def sample_single(
    n: int,
    way: str = "shared",
    *,
    dtype: str = "float32",
    math: str = "ieee",
    looking: str = "left",
    nb: int = SINGLE_NB,
    protocol: str | None = None,
    samples: int = 20,
) -> Sample:
    """Time the factorization of one SPD matrix on the GPU, by its clock, on cold data, and check a result.

    Parameters
    ----------
    n : int
        Order of the matrix, 1 to 1,024.
    way : {"shared", "panel", "cusolver"}
        By `generate_single` or `generate_single_panel` of `kernelgen.emit.families`, out of place, or by
        `cusolverDnSpotrf` (float64: `Dpotrf`) through CuPy, in place.
    dtype : {"float32", "float64"}
        Of its elements.
    math : {"ieee", "fast"}
        Accuracy class: the kernel's, and the bound of both.
    looking, nb : str, int
        The kernel's order of evaluation and tile size.
    protocol : {"queued", "single"}, optional
        By default the first.
    samples : int
        How many to take, or fewer, at least 5, where that takes long.

    Returns
    -------
    Sample
        `seconds` are per factorization.

    Raises
    ------
    ValueError, SpecError
        If an argument is out of range.
    BackendUnavailable, ImportError
        If there is no GPU; if there is no CuPy.
    ResidualError
        If the result is wrong.
    """
    if way not in WAYS:
        raise ValueError(f"way: got {way!r}, expected one of {', '.join(map(repr, WAYS))}")
    # Refuses what cannot be built before anything is allocated.
    source = (generate_single_panel if way == PANEL else generate_single)(n, dtype, math, looking, nb)
    backend = get_backend("cuda")
    chosen = check_protocol(backend, protocol)
    gpu, a = device(), matrix(n, dtype)
    size = a.nbytes
    sets = min(-(-CACHES * backend.last_level_cache_bytes() // size), _MOST_SETS)
    room = memory.to_device(np.broadcast_to(a, (2 * sets, n, n)), f"{2 * sets:,} matrices of order {n}")
    info = memory.info_array(1)
    outputs = [int(room.gpudata) + size * index for index in range(sets, 2 * sets)]
    if way == CUSOLVER:
        from batchchol.compare.peers.cusolver import potrf

        calls = potrf(outputs, n, dtype, [int(info.gpudata)] * sets)
    else:
        calls = _launches(gpu, source, outputs, size * sets, int(info.gpudata))

    def restore() -> None:
        memory.copy_on_device(room[:sets], room[sets:])

    before = backend.conditions()
    timing = Stopwatch(gpu).measure(calls, samples, chosen, restore=restore)
    conditions = {"before": before, "after": backend.conditions()}
    columns = memory.to_host(room[sets + timing.last : sets + timing.last + 1])
    seen = residual.ratios(a[np.newaxis], columns.swapaxes(1, 2))
    ratio = residual.judge(memory.to_host(info), seen, range(1), math)
    return Sample(timing.seconds, ratio, chosen, backend.floor(chosen), conditions)


def _launches(
    gpu: Device, source: KernelSource, outputs: Sequence[int], apart: int, info: int
) -> list[Callable[[], None]]:
    """Calls from matrices that lie `apart` bytes before their factors."""
    kernel = gpu.load(source)
    return [partial(gpu.run, kernel, 1, (address - apart, address, info, 1, 1)) for address in outputs]


def matrix(n: int, dtype: str) -> NDArray[Any]:
    """A strictly diagonally dominant matrix, (n, n)."""
    r = np.random.default_rng(0).random((n, n))
    return np.asarray((r + r.T) / 2 + n * np.eye(n), dtype)
