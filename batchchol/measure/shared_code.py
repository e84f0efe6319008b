"""The code of a point: the spec's own, or code that many specs share, so that points need fewer compiles.

On a GPU what the on-chip memory favours is decided at launch, and so is the size of a block for code of the thread
family that was compiled for blocks of any size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from batchchol.artifacts.stats import CompileStats
from batchchol.backends import Backend, Kernel
from batchchol.defaults.registers import MULTIPROCESSOR_REGISTERS, REGISTER_STEP
from batchchol.measure.point import Point
from batchchol.measure.provenance import source_hash
from batchchol.measure.row import Value
from kernelgen import TARGETS, KernelSource, KernelSpec, Launch, ThreadSchedule, generate
from kernelgen.emit.thread import generate_any_block, launch_of


@dataclass(frozen=True)
class Code:
    """A source, the hash of its text, and how the point launches it; None on a CPU."""

    source: KernelSource
    hash: str
    launch: Launch | None = None


def identity(point: Point) -> tuple[KernelSpec, bool]:
    """What decides the text of the code: a spec without its choices of launch, and whether any block runs it."""
    spec = point.spec
    if not TARGETS[spec.target].gpu:
        return spec, False
    schedule = spec.schedule
    if point.any_block and isinstance(schedule, ThreadSchedule):
        return replace(spec, schedule=replace(schedule, threads=None, cache=None)), True
    # A family need not have the choice.
    plain = replace(schedule, cache=None) if hasattr(schedule, "cache") else schedule
    return replace(spec, schedule=plain), False


def code_of(point: Point) -> Code:
    """The code that a point runs, with the launch of its spec."""
    shared = _code(*identity(point))
    launch, schedule = shared.source.launch, point.spec.schedule
    if launch is None:
        return shared
    if point.any_block and isinstance(schedule, ThreadSchedule):
        launch = launch_of(point.spec.problem, schedule)
    return replace(shared, launch=replace(launch, cache=getattr(schedule, "cache", None) or launch.cache))


def too_large(stats: CompileStats, threads: int) -> bool:
    """Whether a block of this many threads needs more registers than a multiprocessor has."""
    each = -(-(stats.registers or 0) // REGISTER_STEP) * REGISTER_STEP
    return each * threads > MULTIPROCESSOR_REGISTERS


def load(backend: Backend, point: Point) -> tuple[Kernel, Code]:
    """The kernel of a point, ready for its launches, and its code."""
    code = code_of(point)
    loader = getattr(backend, "kernel_of", None)
    return (backend.kernel(point.spec) if loader is None else loader(point.spec, code.source, code.launch)), code


def numbers(backend: Backend, kernel: Kernel) -> dict[str, Value]:
    """The columns that describe compiled code."""
    stats = kernel.stats
    values: dict[str, Value] = {
        "compile_seconds": stats.compile_seconds,
        "code_bytes": stats.code_bytes,
        "registers": stats.registers,
        "spill_bytes": stats.spill_bytes,
        "shared_bytes": stats.shared_bytes,
        "stack_bytes": stats.stack_bytes,
    }
    occupancy = getattr(backend, "occupancy", None)
    return values if occupancy is None else values | {"occupancy": occupancy(kernel)}


# About the number of one order: consecutive points share them.
@lru_cache(maxsize=512)
def _code(spec: KernelSpec, any_block: bool) -> Code:
    if any_block:
        assert isinstance(spec.schedule, ThreadSchedule)
        source = generate_any_block(spec, spec.schedule)
    else:
        source = generate(spec)
    return Code(source, source_hash(source.text))
