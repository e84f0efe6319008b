"""Spec to source text, with what a caller needs to launch it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import gcd

from jinja2 import Environment, PackageLoader, StrictUndefined

from kernelgen.spec import MAX_CHUNK, MAX_N, KernelSpec, SpecError
from kernelgen.targets import ELEMENT_BYTES, TARGETS, Target
from kernelgen.tiles import (
    Gemm,
    Load,
    Node,
    Potrf,
    Store,
    Syrk,
    TileOp,
    Trsm,
    expand,
    operations,
    tile_program,
)

# The first-level data cache that all of the targets' machines have at least.
CACHE_WAYS, CACHE_WAY_BYTES = 8, 4096

# Part of every cache key: raise it when the templates change what a kernel does.
GENERATOR_VERSION = 1


@dataclass(frozen=True)
class KernelSource:
    """A kernel's source text and how to build and call it.

    `entry` is the exported function, `lanes` the number of matrices in one group (the unit in which work is handed
    out), `flags` the compiler options the text relies on.
    """

    text: str
    entry: str
    lanes: int
    flags: tuple[str, ...]


def generate(spec: KernelSpec) -> KernelSource:
    """The C source of one factorization kernel."""
    problem, schedule = spec.problem, spec.schedule
    # A staged group is read from the array and factored elsewhere, in place or not; a canonical one has been
    # transposed before, and is factored where it is.
    in_place = spec.layout == "canonical" or (spec.in_place and not schedule.staged)
    program = tile_program(problem.n, schedule.nb, schedule.looking, in_place=in_place)
    if schedule.unroll == "full":
        program = tuple(expand(program))
    text = (
        _environment()
        .get_template("thread.c.jinja")
        .render(
            spec=spec,
            schedule=schedule,
            n=problem.n,
            program=program,
            microkernels=_microkernels(program),
            array_strides=element_strides(spec, problem.n),
            work_strides=element_strides(spec, leading_dimension(spec)),
            leading=leading_dimension(spec),
            in_place=in_place,
            **_target_variables(TARGETS[spec.target], problem.dtype),
        )
    )
    return KernelSource(text, spec.name, spec.lanes, TARGETS[spec.target].flags)


def element_strides(spec: KernelSpec, leading: int) -> tuple[int, int]:
    """Distance between rows and between columns of the triangle that is worked on, in elements of one matrix.

    The upper triangle of a matrix is the lower triangle of its transpose.
    """
    row_major = (spec.order == "row") == (spec.problem.uplo == "lower")
    return (leading, 1) if row_major else (1, leading)


def leading_dimension(spec: KernelSpec) -> int:
    """Elements from one line of a matrix to the next where it is factored.

    In the array that is n. A chunk apart is padded where the lines of a tile row would meet in a few sets of the
    first-level cache (measured on AVX2: 1.3 times faster at n = 64, 1.6 at n = 128).
    """
    n = leading = spec.problem.n
    if spec.layout != "canonical" and not spec.schedule.staged:
        return n
    vector_bytes = TARGETS[spec.target].vector_bytes
    while n > CACHE_WAYS * CACHE_WAY_BYTES // gcd(leading * vector_bytes, CACHE_WAY_BYTES):
        leading += 1
    return leading


def generate_layout_kernels(dtype: str, target: str) -> KernelSource:
    """The C source of `pack` and `unpack`: copies between layouts, for matrices of any order."""
    return _support_kernel("layouts.c.jinja", "pack", dtype, target)


def generate_peak_kernel(dtype: str, target: str) -> KernelSource:
    """The C source of `multiply_add`: independent chains of fused multiply-adds, to measure the arithmetic peak."""
    return _support_kernel("peak.c.jinja", "multiply_add", dtype, target)


def _support_kernel(template: str, entry: str, dtype: str, target: str) -> KernelSource:
    if target not in TARGETS or dtype not in ELEMENT_BYTES:
        raise SpecError(f"dtype={dtype!r}, target={target!r} cannot be built: use one of {list(TARGETS)}")
    machine = TARGETS[target]
    text = _environment().get_template(template).render(**_target_variables(machine, dtype))
    return KernelSource(text, entry, machine.lanes(dtype), machine.flags)


def _target_variables(target: Target, dtype: str) -> dict[str, object]:
    return {
        "target": target,
        "dtype": dtype,
        "scalar": {"float32": "float", "float64": "double"}[dtype],
        "integer": {"float32": "int32_t", "float64": "int64_t"}[dtype],
        "lanes": target.lanes(dtype),
        "element_bytes": ELEMENT_BYTES[dtype],
        "max_n": MAX_N,
        "max_chunk": MAX_CHUNK,
        "transposition": transposition(target.lanes(dtype), 16 // ELEMENT_BYTES[dtype]),
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


@dataclass(frozen=True)
class Microkernel:
    """One tile operation at one size, as the templates name it."""

    op: str
    rows: int
    cols: int
    inner: int = 0


def _microkernels(program: tuple[Node, ...]) -> tuple[Microkernel, ...]:
    """The microkernels a program calls, each once, in the order of first use."""
    return tuple(dict.fromkeys(microkernel for op in operations(program) if (microkernel := microkernel_of(op))))


def microkernel_of(op: TileOp) -> Microkernel | None:
    """The microkernel that carries out an operation; loads of operands only name a place, and need none."""
    match op:
        case Load(tile="C"):
            return Microkernel(("load_" if op.source == "a" else "reload_") + _shape(op), op.rows, op.cols)
        case Store():
            return Microkernel("store_" + _shape(op), op.rows, op.cols)
        case Potrf():
            return Microkernel("potrf", op.size, op.size)
        case Trsm():
            return Microkernel("trsm", op.rows, op.cols)
        case Syrk():
            return Microkernel("syrk", op.size, op.size, op.inner)
        case Gemm():
            return Microkernel("gemm", op.rows, op.cols, op.inner)
        case _:
            return None


def _shape(op: Load | Store) -> str:
    return "lower" if op.lower else "full"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("kernelgen", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["microkernel"] = microkernel_of
    environment.filters["kind"] = lambda node: type(node).__name__
    return environment
