"""The common part of all generators: the source of a kernel, its microkernels and the templates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from kernelgen.programs.tiles import Fill, Gemm, Load, Potrf, Store, Syrk, TileOp, Trsm
from kernelgen.spec import KernelSpec

# Part of every cache key: raise it when the templates change what a kernel does.
GENERATOR_VERSION = 2

# The names of dtypes in C.
SCALARS = {"float32": "float", "float64": "double"}


@dataclass(frozen=True)
class Launch:
    """The launch geometry of a GPU kernel: blocks of `threads` threads, each block working on `items` items.

    An item is a matrix unless the kernel says otherwise. `shared_bytes` is dynamic shared memory, `cache` which of
    the two the hardware's split of its on-chip memory favours, "l1" or "shared". A kernel whose blocks go on to
    further items, as many at a time, has `resident` blocks to a multiprocessor; others have a block for all items.
    With `pdl` it may be launched before what is ahead of it on its stream has ended: it waits for that itself.
    """

    threads: int
    items: int
    shared_bytes: int = 0
    cache: str = "l1"
    resident: int | None = None
    pdl: bool = False

    def blocks(self, items: int) -> int:
        """Blocks that cover a number of items."""
        return -(-items // self.items)

    def grid(self, items: int, multiprocessors: int) -> int:
        """Blocks of a launch for a number of items: those that cover them, or that a GPU holds if those are fewer."""
        blocks = self.blocks(items)
        return blocks if self.resident is None else min(blocks, self.resident * multiprocessors)


@dataclass(frozen=True)
class KernelSource:
    """A kernel's source text and how to build and call it.

    `entry` is the exported function, `lanes` the number of matrices in one group (the unit in which work is handed
    out), `flags` the compiler options the text relies on, `launch` how a GPU kernel is launched, `streaming` a CPU's
    function that writes past the caches. The texts of GPU kernels with the same flags may follow each other in one
    translation unit.
    """

    text: str
    entry: str
    lanes: int
    flags: tuple[str, ...]
    launch: Launch | None = None
    streaming: str | None = None


def render(template: str, **variables: object) -> str:
    """The text of a template with these variables; a missing one is an error."""
    return _environment().get_template(template).render(**variables)


def element_strides(spec: KernelSpec, leading: int) -> tuple[int, int]:
    """Distance between rows and between columns of the triangle that is worked on, in elements of one matrix.

    The upper triangle of a matrix is the lower triangle of its transpose.
    """
    row_major = (spec.order == "row") == (spec.problem.uplo == "lower")
    return (leading, 1) if row_major else (1, leading)


@dataclass(frozen=True)
class Microkernel:
    """One tile operation at one size, as the templates name it."""

    op: str
    rows: int
    cols: int
    inner: int = 0


def microkernels_of(operations: Iterable[TileOp]) -> tuple[Microkernel, ...]:
    """The microkernels that operations call, each once, in the order of first use."""
    return tuple(dict.fromkeys(microkernel for op in operations if (microkernel := microkernel_of(op))))


def microkernel_of(op: TileOp) -> Microkernel | None:
    """The microkernel that carries out an operation; loads of operands only name a place, and need none."""
    match op:
        case Load(tile="C"):
            return Microkernel(("reload_" if op.source in ("l", "y") else "load_") + _shape(op), op.rows, op.cols)
        case Fill():
            return Microkernel("unit" if op.unit else "zero", op.rows, op.cols)
        case Store():
            return Microkernel("store_" + _shape(op), op.rows, op.cols)
        case Potrf():
            return Microkernel("potrf", op.size, op.size)
        case Trsm():
            return Microkernel("trsm" if op.transposed else "trsm_n", op.rows, op.cols)
        case Syrk():
            return Microkernel("syrk_add" if op.add else "syrk", op.size, op.size, op.inner)
        case Gemm():
            name = "gemm" if op.transposed else "gemm_n"
            return Microkernel(name + "_add" * op.add, op.rows, op.cols, op.inner)
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
