"""The kernels that keep a factor on the chip and are no solves, where none was measured: a rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from batchchol.defaults.rules.fused import fused
from batchchol.defaults.runnable import has_pdl
from kernelgen import MAX_CHUNK, TARGETS, KernelSpec, ThreadSchedule
from kernelgen.refusals import require

# Orders up to which all that a thread of a GPU needs is in its registers, of packed matrices and of arrays (compiled
# for sm_90).
IN_REGISTERS: Mapping[tuple[str, str], tuple[int, int]] = MappingProxyType(
    {
        ("logdet", "float32"): (28, 27),
        ("logdet", "float64"): (19, 19),
        ("potri", "float32"): (21, 21),
        ("potri", "float64"): (14, 14),
        ("potridet", "float32"): (20, 20),
        ("potridet", "float64"): (14, 14),
        **dict.fromkeys(((op, "float32") for op in ("poinv", "poinvdet", "pptri", "ppinv")), (21, 21)),
        **dict.fromkeys(((op, "float64") for op in ("poinv", "poinvdet", "pptri", "ppinv")), (14, 14)),
    }
)
# Of inverses: orders up to which a multiprocessor has room for the triangles of two warps. Beyond, one kernel factors
# and another goes on.
IN_MEMORY: Mapping[str, int] = MappingProxyType({"float32": 41, "float64": 28})
# Of CPUs: the largest order of straight-line code that inverts. Tiles, of GPUs too.
STRAIGHT_LINE_ON_CPUS, NB = 8, 4


def on_chip(plain: KernelSpec, chunk: int | None, arch: str | None) -> KernelSpec:
    """The kernel of `plain`'s problem, for this chunk alone.

    Raises
    ------
    SpecError
        If a thread of a GPU has no room for its triangle.
    """
    if TARGETS[plain.target].gpu:
        return replace(plain, schedule=_on_a_gpu(plain, chunk, arch))
    return replace(plain, schedule=_on_a_cpu(plain)) if plain.problem.operation.inverts else fused(plain, chunk, arch)


def _on_a_gpu(plain: KernelSpec, chunk: int | None, arch: str | None) -> ThreadSchedule:
    """Straight-line code in registers, or loops over tiles in shared memory."""
    problem = plain.problem
    straight = problem.n <= IN_REGISTERS[problem.op, problem.dtype][plain.layout == "canonical"]
    most = IN_MEMORY[problem.dtype] if problem.operation.inverts else 0
    works = f"no thread has room for it: {problem.op} of so large matrices is done after they are factored"
    require(straight or problem.n <= most, "n", problem.n, works)
    stride = chunk if plain.layout == "chunked" and chunk in range(2, MAX_CHUNK + 1) else None
    nb, unroll = (1, "full") if straight else (NB, "tiles")
    return ThreadSchedule(nb, unroll=unroll, stride=stride, pdl=has_pdl(arch) or None)


def _on_a_cpu(plain: KernelSpec) -> ThreadSchedule:
    """As large tiles as the registers have room for; other orders of updates and tiles took as long (measured)."""
    n = plain.problem.n
    if n <= STRAIGHT_LINE_ON_CPUS:
        return ThreadSchedule(min(NB, n), unroll="full")
    return ThreadSchedule(NB - 1 if TARGETS[plain.target].registers <= NB * NB else NB)
