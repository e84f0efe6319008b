"""Which kernels GPUs of an architecture can run: a table that was measured on another one may name others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import product
from types import MappingProxyType
from typing import Any

from kernelgen import BlockSchedule, KernelSpec, StripSchedule, ThreadSchedule, WarpSchedule, WholeSchedule, generate
from kernelgen.gpu import PDL_CAPABILITY

# KiB of shared memory that a block can have, by compute capability: CUDA C++ Programming Guide, "Technical
# Specifications per Compute Capability".
BLOCK_SHARED_KIB: Mapping[int, int] = MappingProxyType(
    {70: 96, 75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}
)
# From which on there are copies that bypass registers, barriers that need not be waited at, and TF32: PTX ISA,
# cp.async, mbarrier and mma.
ASYNCHRONOUS = 80


def runs_on(spec: KernelSpec, arch: str | None, measured_on: str) -> bool:
    """Whether GPUs of an architecture, such as "sm_86", have the instructions and the shared memory for a kernel.

    What was measured there has. An architecture that is not known is taken for the latest before it that is; None, of
    which nothing is known, for the one that the kernel was measured on.

    Raises
    ------
    ValueError
        If it is not an architecture's name.
    """
    from batchchol.artifacts.nvcc import parse_architecture

    if arch in (None, measured_on):
        return True
    number = parse_architecture(str(arch))[1]
    return number >= _least(spec) and _shared_bytes(spec) <= _most_shared_bytes(number)


def lightened(spec: KernelSpec, arch: str | None, measured_on: str) -> KernelSpec | None:
    """The spec, with as much ahead of its turn as GPUs of an architecture have the shared memory for.

    Less is fetched early, and if that does not suffice fewer strips have room for two groups. None if it cannot run
    so either.
    """
    return next((each for each in _lighter(spec) if runs_on(each, arch, measured_on)), None)


def _lighter(spec: KernelSpec) -> Iterator[KernelSpec]:
    """The spec itself, and with less and less ahead."""
    has = [name for name in ("ahead", "early") if hasattr(spec.schedule, name)]
    for less in product(*(range(getattr(spec.schedule, name), -1, -1) for name in has)):
        fewer: dict[str, Any] = dict(zip(has, less, strict=True))
        yield replace(spec, schedule=replace(spec.schedule, **fewer))


def has_pdl(arch: str | None) -> bool:
    """Whether GPUs of an architecture launch kernels before their predecessors have ended; of None, they may.

    Raises
    ------
    ValueError
        If it is not an architecture's name.
    """
    from batchchol.artifacts.nvcc import parse_architecture

    return arch is None or divmod(parse_architecture(arch)[1], 10) >= PDL_CAPABILITY


def _least(spec: KernelSpec) -> int:
    match spec.schedule:
        case WarpSchedule() | StripSchedule() | WholeSchedule():
            return ASYNCHRONOUS
        case BlockSchedule(pipeline=asynchronous) | ThreadSchedule(staged=asynchronous) if asynchronous:
            return ASYNCHRONOUS
        case _:
            return 0


def _most_shared_bytes(number: int) -> int:
    known = [each for each in BLOCK_SHARED_KIB if each <= number]
    return BLOCK_SHARED_KIB[max(known, default=min(BLOCK_SHARED_KIB))] << 10


@lru_cache(maxsize=1024)
def _shared_bytes(spec: KernelSpec) -> int:
    if isinstance(spec.schedule, BlockSchedule | StripSchedule | WholeSchedule):
        return spec.schedule.shape(spec.problem).shared_bytes
    launch = generate(spec).launch
    return launch.shared_bytes if launch else 0
