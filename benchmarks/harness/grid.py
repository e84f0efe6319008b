"""The one grid of the suite, whatever the machine has, and its points. Which of them are measured: profiles.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

BACKEND = ("cpu", "cuda")
CPU, CUDA = ("cpu",), ("cuda",)
N = (4, 8, 12, 16, 17, 20, 24, 32, 33, 40, 48, 64, 80, 100, 128)
BATCH = (1_000, 16_384, 100_000, 1_048_576)
# Of the ladder of batches, the rung that is as large as a machine's memory allows. Its steps below end where no
# machine's does: 2 TiB are not enough for two batches of the smallest matrices.
LIMIT = "limit"
LADDER_STEPS = tuple(1 << power for power in range(10, 33))
LADDER = (*LADDER_STEPS, LIMIT)
DTYPE = ("float32", "float64")
ELEMENT_BYTES = {"float32": 4, "float64": 8}
LAYOUT = ("canonical", "interleaved", "chunked")
CHUNK = (None, 8, 16, 32, 64, 128, 256, 512)
NB = (1, 2, 3, 4, 5, 6, 8, 12, 16)
LOOKING = ("right", "left", "top")
UNROLL = ("tiles", "full")
MATH = ("ieee", "fast")
PREFETCH = (False, True)
STAGED = (False, True)
BLOCK = (32, 64, 128, 256, 512)
BLOCKS = (None, 1)
CACHE = ("l1", "shared")
STRIDE = (None, 32)
THREADS = (1, 2, 4, 8, 16, 32)
PROTOCOL = ("single", "queued")
PDL = (False, True)
FAMILY = ("thread", "block", "shared", "warp", "strip", "whole")
# Of the published variant that has its tiles in shared memory.
SHARED_NB = (4, 8, 16, 32)
SMALL_N = (8, 16, 32, 64)
# Of general matrices GPUs have kernels for these.
GENERAL_N = (4, 8, 14)
# The same, one for each way in which threads share a matrix, from none on.
LU_N = (8, 16, 32, 64, 128)
SMALL_BATCH = (128, 1_024)
LAUNCHED_BATCH = (*SMALL_BATCH, 16_384)
# How calls reach the GPU: by a protocol; or in graphs, one at a time, side by side, or all of them side by side.
WAY = ("single", "queued", "chain", "graph", "free")
# Right-hand sides of a solve.
NRHS = (1, 8)
RECIPE = ("diagonally_dominant", "wishart")
# Past this, a question measures large batches of small matrices only.
MATRIX_BYTES = 8 << 30


@dataclass(frozen=True)
class Point:
    """One point of the grid; every benchmark of a kernel has these parameters, most of them with a single value.

    The defaults are what a question holds fixed: one thread of the host, being the least noisy, and the batch that
    speeds are stated for. None is the backend's own choice: `chunk` as many matrices as one of its SIMD registers or
    warps holds, if the layout has chunks; `protocol` the first of its protocols; and of `prefetch` and `staged`
    (varied on a CPU alone), `block` (threads of a block), `blocks` (for which a multiprocessor has room),
    `cache` and `stride` (a GPU's alone) its default, or nothing where there is no choice. Without `nb` the schedule
    is the one that the library's table of defaults has for the layout: the best of `family`, or the best of all if
    that is None; with `pdl` None launched as it says.
    """

    backend: str = "cpu"
    n: int = 32
    batch: int = 16_384
    dtype: str = "float32"
    layout: str = "chunked"
    chunk: int | None = None
    nb: int | None = 4
    looking: str = "left"
    unroll: str = "tiles"
    math: str = "ieee"
    prefetch: bool | None = None
    staged: bool | None = None
    block: int | None = None
    cache: str | None = None
    stride: int | None = None
    threads: int = 1
    protocol: str | None = None
    family: str | None = None
    pdl: bool | None = None
    blocks: int | None = None

    @property
    def matrix_bytes(self) -> int:
        """Bytes of the batch, without padding."""
        return self.batch * self.n**2 * ELEMENT_BYTES[self.dtype]


_EVERY = tuple(field.name for field in fields(Point))
# Of the thread family, launched as its schedule says, which nothing names: results from before there were others keep
# their place.
AXES = tuple(name for name in _EVERY if name not in ("family", "pdl", "blocks"))
# What is left of them where the library chooses layout and schedule.
_CHOICES = ("layout", "chunk", "nb", "looking", "unroll", "prefetch", "staged", "block", "cache", "stride")
WITHOUT_CHOICES = tuple(name for name in AXES if name not in _CHOICES)
# What is left where the table of defaults chooses the schedule, and the layout is a parameter.
_LAYOUT = ("layout", "chunk", "nb")
WITH_LAYOUT = (*WITHOUT_CHOICES, *_LAYOUT)


def point_of(named: Mapping[str, Any]) -> Point:
    """The point that parameters name, at the limit that of the last step; some questions have others besides."""
    known = {name: value for name, value in named.items() if name in _EVERY}
    return Point(**known | ({"batch": LADDER_STEPS[-1]} if known.get("batch") == LIMIT else {}))


def axes(names: Sequence[str] = AXES, **varied: Sequence[Any]) -> tuple[tuple[Any, ...], ...]:
    """asv's `params` for the parameters `names`: the values given, or the single default."""
    default = Point()
    return tuple(tuple(varied.get(name, (getattr(default, name, None),))) for name in names)
