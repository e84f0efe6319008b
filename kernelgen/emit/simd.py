"""C sources for SIMD targets: the thread family, one lane to a matrix, and what the library needs beside it."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from kernelgen.emit.source import SCALARS, KernelSource, element_strides, microkernels_of, render
from kernelgen.problem import MAX_CHUNK, MAX_N
from kernelgen.programs.potrf import tile_program
from kernelgen.programs.tiles import expand, operations
from kernelgen.refusals import SpecError
from kernelgen.schedules import ThreadSchedule
from kernelgen.spec import KernelSpec
from kernelgen.targets import ELEMENT_BYTES, SIMD_TARGETS, Target

# The first-level data cache that all of the targets' machines have at least.
CACHE_WAYS, CACHE_WAY_BYTES = 8, 4096
# Of a matrix of these bytes the two cache lines at its ends are a small part.
LARGE_BYTES = 1 << 12


def generate_thread(spec: KernelSpec, schedule: ThreadSchedule) -> KernelSource:
    """The C source of one factorization kernel, which may find determinants besides."""
    # A staged group is read from the array and factored elsewhere, in place or not; a canonical one has been
    # transposed before, and is factored where it is.
    in_place = spec.layout == "canonical" or (spec.in_place and not schedule.staged)
    variables = factorization_variables(spec, schedule, in_place=in_place, apart=bool(schedule.staged))
    text = render("simd/thread.c.jinja", **variables)
    streaming = f"{spec.name}_stream" if streams(spec) else None
    return KernelSource(text, spec.name, spec.lanes, SIMD_TARGETS[spec.target].flags, streaming=streaming)


def streams(spec: KernelSpec) -> bool:
    """Whether a kernel's source has a second function, which writes factors past the caches.

    Few vectors fill a cache line then, and matrices are moved by more than an element.
    """
    transposed = spec.layout == "canonical" and spec.problem.n**2 >= spec.lanes
    return transposed and spec.problem.op == "potrf" and spec.machine.vector_bytes >= 32


def factorization_variables(
    spec: KernelSpec, schedule: ThreadSchedule, *, in_place: bool, apart: bool
) -> dict[str, object]:
    """The variables of a factorization's templates, by a spec; `apart` is whether it is in a chunk of its own."""
    problem = spec.problem
    program = tile_program(problem.n, schedule.nb, schedule.looking, in_place=in_place)
    if schedule.unroll == "full":
        program = tuple(expand(program))
    leading = leading_dimension(spec, staged=apart)
    return {
        "spec": spec,
        "schedule": schedule,
        "math": problem.math,
        "n": problem.n,
        "program": program,
        "microkernels": microkernels_of(operations(program)),
        "array_strides": element_strides(spec, problem.n),
        "work_strides": element_strides(spec, leading),
        "leading": leading,
        "in_place": in_place,
        "streams": streams(spec),
        # Where matrices are whole cache lines those are written as they are transposed, else by groups: small ones
        # too, if they begin in the midst of a line.
        "whole_lines": streams(spec) and problem.n % 4 == 0,
        # Stores that cross lines take a quarter longer, one more vector of a few lines longer than that.
        "several_lines": problem.n**2 * ELEMENT_BYTES[problem.dtype] >= 256,
        "by_groups": streams(spec)
        and (problem.n % 4 > 0 or problem.n**2 * ELEMENT_BYTES[problem.dtype] < LARGE_BYTES),
        **target_variables(spec.machine, problem.dtype),
    }


def leading_dimension(spec: KernelSpec, *, staged: bool) -> int:
    """Elements from one line of a matrix to the next where it is factored.

    In the array that is n. A chunk apart is padded where the lines of a tile row would meet in a few sets of the
    first-level cache (measured on AVX2: 1.3 times faster at n = 64, 1.6 at n = 128).
    """
    n = leading = spec.problem.n
    if spec.layout != "canonical" and not staged:
        return n
    vector_bytes = spec.machine.vector_bytes
    while n > CACHE_WAYS * CACHE_WAY_BYTES // gcd(leading * vector_bytes, CACHE_WAY_BYTES):
        leading += 1
    return leading


def generate_layout_kernels(dtype: str, target: str) -> KernelSource:
    """The C source of `pack` and `unpack`: copies between layouts, for matrices of any order."""
    return _support_kernel("support/layouts.c.jinja", "pack", dtype, target)


def generate_peak_kernel(dtype: str, target: str) -> KernelSource:
    """The C source of `multiply_add`: independent chains of fused multiply-adds, to measure the arithmetic peak."""
    return _support_kernel("support/peak.c.jinja", "multiply_add", dtype, target)


def _support_kernel(template: str, entry: str, dtype: str, target: str) -> KernelSource:
    if target not in SIMD_TARGETS or dtype not in ELEMENT_BYTES:
        raise SpecError(f"dtype={dtype!r}, target={target!r} cannot be built: use one of {list(SIMD_TARGETS)}")
    machine = SIMD_TARGETS[target]
    text = render(template, **target_variables(machine, dtype))
    return KernelSource(text, entry, machine.lanes(dtype), machine.flags)


def target_variables(target: Target, dtype: str) -> dict[str, object]:
    """The variables of a SIMD target's templates."""
    lanes, word = target.lanes(dtype), 16 // ELEMENT_BYTES[dtype]
    shuffles = transposition(lanes, word)
    return {
        "target": target,
        "dtype": dtype,
        "scalar": SCALARS[dtype],
        "integer": {"float32": "int32_t", "float64": "int64_t"}[dtype],
        "lanes": lanes,
        "word": word,
        "element_bytes": ELEMENT_BYTES[dtype],
        "max_n": MAX_N,
        "max_chunk": MAX_CHUNK,
        "transposition": shuffles,
        # Words one below another are transposed as the first ones of a block are, before they change places.
        "word_transposition": tuple(shuffle for shuffle in shuffles if shuffle.second < word),
    }


@dataclass(frozen=True)
class Shuffle:
    """One instruction of the transposition: vector `to` = elements `mask` of the pair (`first`, `second`)."""

    to: int
    first: int
    second: int
    mask: tuple[int, ...]


def transposition(lanes: int, per_word: int) -> tuple[Shuffle, ...]:
    """The shuffles that transpose a lanes x lanes block held in `lanes` vectors, in order.

    Within words of 16 bytes (`per_word` elements) elements are unpacked low and high, across words whole words
    change places: each shuffle is then one x86 instruction.
    """
    distances = [per_word >> bit for bit in range(1, per_word.bit_length())]
    across = per_word
    while across < lanes:
        distances.append(across)
        across *= 2
    return tuple(
        Shuffle(low + upper * distance, low, low + distance, mask)
        for distance in distances
        for low in range(lanes)
        if not low & distance
        for upper, mask in enumerate(_masks(lanes, distance, per_word))
    )


def _masks(lanes: int, distance: int, per_word: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The two masks of one pair of vectors; indices from `lanes` on mean the second vector."""
    elements = range(lanes)
    if distance < per_word:
        half = per_word // 2
        low = tuple(e % 2 * lanes + e // per_word * per_word + e % per_word // 2 for e in elements)
        return low, tuple(index + half for index in low)
    low = tuple(lanes + e - distance if e & distance else e for e in elements)
    return low, tuple(index + distance for index in low)
