"""CUDA sources of the strip family: four matrices to a block, a warp to a tile, updates by tensor cores."""

from __future__ import annotations

from collections.abc import Sequence

from kernelgen.cuda import FAST_FLAGS, stride_expression, undefine_macros
from kernelgen.gpu import LINE_BYTES, PIECE_BYTES
from kernelgen.rendering import SCALARS, KernelSource, Launch, element_strides, render
from kernelgen.spec import KernelSpec
from kernelgen.strip_shape import GROUP, TILE_PIECES
from kernelgen.targets import ELEMENT_BYTES
from kernelgen.tensor_schedules import StripSchedule


def generate_strip(spec: KernelSpec, schedule: StripSchedule) -> KernelSource:
    """The CUDA source of one factorization kernel, called as those of the thread family are."""
    problem, shape = spec.problem, schedule.shape(spec.problem)
    text = render(
        "strip.cu.jinja",
        spec=spec,
        schedule=schedule,
        shape=shape,
        n=problem.n,
        dtype=problem.dtype,
        scalar=SCALARS[problem.dtype],
        strides=element_strides(spec, problem.n),
        stride=stride_expression(spec),
        restrict="" if spec.in_place else "__restrict__ ",
        piece_bytes=PIECE_BYTES,
        tile_pieces=TILE_PIECES,
        first_warps=_bytes(shape.first_warps[:-1]),
        strip_warps=_bytes(shape.strip_warps),
        line_scalars=LINE_BYTES // ELEMENT_BYTES[problem.dtype],
        tensor=True,
        staged=False,
    )
    cache, pdl = schedule.cache or "shared", bool(schedule.pdl)
    launch = Launch(shape.threads, GROUP, shape.shared_bytes, cache, schedule.blocks, pdl)
    return KernelSource(undefine_macros(text), spec.name, spec.lanes, FAST_FLAGS[problem.dtype], launch)


def _bytes(numbers: Sequence[int]) -> str:
    """Up to eight small numbers as the bytes of one, the first one last."""
    return f"{sum(number << 8 * place for place, number in enumerate(numbers)):#x}ull"
