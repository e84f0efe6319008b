"""The kernels of GPUs whose threads keep a triangle each, where none was measured: a rule."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from batchchol.defaults.runnable import has_pdl
from kernelgen import MAX_CHUNK, KernelSpec, ThreadSchedule
from kernelgen.refusals import require

# Orders up to which all that a thread needs is in its registers, of packed matrices and of arrays (compiled for
# sm_90); beyond, one kernel factors and another goes on.
LARGEST: Mapping[tuple[str, str], tuple[int, int]] = MappingProxyType(
    {("logdet", "float32"): (28, 27), ("logdet", "float64"): (19, 19)}
)


def on_triangles(plain: KernelSpec, chunk: int | None, arch: str | None) -> ThreadSchedule:
    """The schedule for `plain`'s problem, for this chunk alone.

    Raises
    ------
    SpecError
        If a thread has no room for its triangle.
    """
    problem, canonical = plain.problem, plain.layout == "canonical"
    most = LARGEST[problem.op, problem.dtype][canonical]
    works = f"a thread has registers for {problem.op} to order {most}: factor first"
    require(problem.n <= most, "n", problem.n, works)
    stride = chunk if plain.layout == "chunked" and chunk in range(2, MAX_CHUNK + 1) else None
    return ThreadSchedule(1, unroll="full", stride=stride, pdl=has_pdl(arch) or None)
