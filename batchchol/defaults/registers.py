"""Whether a GPU's threads have the registers that a kernel wants: without them it spills values to memory.

A rule, because defaults are chosen where there may be no compiler. Its numbers come from what CUDA's assembler
reports (datasets/accuracy/spills.csv, made by tests/cuda_spills.py). It errs on one side: it refuses some kernels
that do not spill.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from kernelgen import MAX_CHUNK, TARGETS, BlockSchedule, KernelSpec, ThreadSchedule
from kernelgen.gpu import SCHEDULERS, WARP
from kernelgen.schedules import DEFAULT_THREADS
from kernelgen.schedules.block import MAX_LANES, MIN_BLOCK_NB
from kernelgen.targets import CUDA, ELEMENT_BYTES

# Registers of a multiprocessor, of every GPU since compute capability 5.0: CUDA C++ Programming Guide, "Technical
# Specifications per Compute Capability". They are handed out to a warp in pieces of eight to a thread.
MULTIPROCESSOR_REGISTERS, REGISTER_STEP, REGISTER_BYTES = 65_536, 8, 4
# What a thread keeps beside the elements of its matrix: addresses, counters, roots. Less if they come from shared
# memory, more if the matrix is overwritten: what is needed later cannot be read again.
_BESIDE, _BESIDE_STAGED, _BESIDE_IN_PLACE = 80, 40, 104
# Orders up to which straight-line code of small tiles that is not in place fits into all registers that a thread can
# have although the elements of a matrix do not: what is not needed any more, or can be read again, is given up.
_STRAIGHT_LINE: Mapping[tuple[str, str], int] = MappingProxyType(
    {
        ("float32", "left"): 27,
        ("float32", "right"): 19,
        ("float32", "top"): 17,
        ("float64", "left"): 18,
        ("float64", "right"): 13,
        ("float64", "top"): 13,
    }
)
_STRAIGHT_LINE_TILE = 6
# Registers of the three tiles that loops over tiles hold: in any order of updates, and by those that read operands
# where a thread can have all registers that there are.
_LOOPED, _LOOPED_READING = 54, 96
# What family "block" takes for tiles of order nb. Odd tiles are held in pieces that are not full.
_BLOCK: Mapping[str, Mapping[int, int]] = MappingProxyType(
    {
        "float32": MappingProxyType({4: 64, 5: 64, 6: 80, 7: 104, 8: 96, 9: 128}),
        "float64": MappingProxyType({4: 96, 5: 120, 6: 144, 7: 168, 8: 208}),
    }
)
# Of a block that is chosen without a measurement: each thread can have 128 registers.
_BLOCK_THREADS = 512


def spills(spec: KernelSpec) -> bool:
    """Whether a GPU kernel may want more registers than its threads have.

    False for kernels of a CPU, and of families other than "thread" and "block", which the rule does not know.
    """
    match spec.schedule:
        case ThreadSchedule() as schedule if TARGETS[spec.target].gpu:
            return _thread_spills(spec, schedule)
        case BlockSchedule() as schedule:
            most = registers_of_a_thread(schedule.shape(spec.problem).threads, schedule.blocks or 1)
            return _BLOCK[spec.problem.dtype].get(schedule.nb, CUDA.registers + 1) > most
        case _:
            return False


def registers_of_a_thread(threads: int, blocks: int = 1) -> int:
    """How many registers each thread can have if a multiprocessor holds `blocks` blocks of `threads` threads.

    Each of its schedulers has as many warps of a block as any other.
    """
    warps = -(-threads // (WARP * SCHEDULERS)) * SCHEDULERS
    return min(share_of_registers(warps * blocks), CUDA.registers)


def share_of_registers(warps: int) -> int:
    """The registers of a multiprocessor for each thread of `warps` warps, which may be more than a thread can have.

    Its schedulers have equally many registers, and hand them out to whole warps.
    """
    of_scheduler = MULTIPROCESSOR_REGISTERS // SCHEDULERS
    return of_scheduler // (-(-warps // SCHEDULERS) * WARP) // REGISTER_STEP * REGISTER_STEP


@lru_cache(maxsize=1024)
def block_that_fits(plain: KernelSpec, chunk: int | None) -> KernelSpec | None:
    """The kernel of family "block" with the smallest tiles, and with as many matrices to a block as fit.

    For the problem, the layout and the math of `plain`, and for this chunk alone; None where matrices are smaller
    than a tile.
    """
    if plain.problem.n < MIN_BLOCK_NB:
        return None
    powers = [1 << power for power in reversed(range(MAX_LANES.bit_length()))]
    # A constant distance between elements takes no registers.
    stride = chunk if chunk in range(2, MAX_CHUNK + 1) else None
    schedules = [BlockSchedule(MIN_BLOCK_NB, lanes, stride=stride) for lanes in powers]
    small = [each for each in schedules if each.shape(plain.problem).threads <= _BLOCK_THREADS]
    return replace(plain, schedule=small[0] if small else schedules[-1])


def _thread_spills(spec: KernelSpec, schedule: ThreadSchedule) -> bool:
    n, words = spec.problem.n, _words(spec)
    most = registers_of_a_thread(schedule.threads or DEFAULT_THREADS, schedule.blocks or 1)
    if schedule.unroll != "full":
        wanted = 3 * words * schedule.nb**2
        reading = schedule.looking != "right" and not spec.in_place and most == CUDA.registers
        return wanted > (_LOOPED_READING if reading else _LOOPED) or wanted + _BESIDE_STAGED > most
    again = not (schedule.staged or spec.in_place) and most == CUDA.registers
    again = again and schedule.nb <= _STRAIGHT_LINE_TILE
    if again and n <= _STRAIGHT_LINE[spec.problem.dtype, schedule.looking]:
        return False
    beside = _BESIDE_STAGED if schedule.staged else _BESIDE_IN_PLACE if spec.in_place else _BESIDE
    return words * n * (n + 1) // 2 + beside > most


def _words(spec: KernelSpec) -> int:
    """Registers that an element takes."""
    return ELEMENT_BYTES[spec.problem.dtype] // REGISTER_BYTES
