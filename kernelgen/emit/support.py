"""CUDA sources of the other work of a GPU: copies between layouts, data sets, residuals, ceilings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import gcd

from kernelgen.emit.source import SCALARS, KernelSource, Launch, render
from kernelgen.emit.thread import undefine_macros
from kernelgen.problem import MAX_N
from kernelgen.refusals import SpecError
from kernelgen.targets import ELEMENT_BYTES

# Bytes that a thread moves with one instruction where it can, and how many such instructions it has under way.
VECTOR_BYTES, LOADS = 16, 8
# Shared memory of a tile of pack and unpack, its padding included, and how many blocks of threads a multiprocessor is
# to hold at once, each with a tile: the memory suffices for 5 on an H200, and so must the registers.
TILE_BYTES, TILE_BLOCKS = 40960, 5
# Matrices of a warp: neighbours in a packed array, whose accesses then are of whole lines.
LANES = 32
# Elements of a thread that copies parts of matrices: each division serves as many.
PART = 8
# Axes of an array that `gather` copies.
GATHERED_AXES = 6
# Independent chains of multiply-adds in a thread: enough to hide the latency of one.
CHAINS = 8

# Threads that look at matrices, and work on those that failed. In shared memory are a triangle, and a right-hand side
# for each warp.
REPAIR_THREADS = 256
REPAIR_ELEMENTS = MAX_N * (MAX_N + 1) // 2 + REPAIR_THREADS // LANES * MAX_N

_UNIT_ROUNDOFFS = {"float32": "0x1p-24", "float64": "0x1p-53"}


@dataclass(frozen=True)
class _Support:
    """How a support kernel is launched; `variables` are what its template needs besides.

    `shared` are the elements that it has in dynamic shared memory.
    """

    launch: Launch
    variables: tuple[tuple[str, object], ...] = ()
    typed: bool = True
    shared: int = 0


_KERNELS = {
    # An item is a tile.
    "pack": _Support(Launch(256, 1, cache="shared"), (("blocks", TILE_BLOCKS),)),
    "unpack": _Support(Launch(256, 1, cache="shared"), (("blocks", TILE_BLOCKS),)),
    # A thread to each row of a tile, in each matrix.
    "fill_uniform": _Support(Launch(8 * LANES, LANES), (("tile", 8),)),
    "fill_wishart": _Support(Launch(8 * LANES, LANES), (("tile", 16),)),
    # An item is an element of a row.
    "spoil": _Support(Launch(128, 128)),
    "residual": _Support(Launch(8 * LANES, LANES), (("tile", 8),)),
    # An item is a matrix.
    "log_determinants": _Support(Launch(128, 128)),
    "lu_determinants": _Support(Launch(128, 128)),
    "repair": _Support(
        Launch(REPAIR_THREADS, REPAIR_THREADS, cache="shared", pdl=True), (("most", MAX_N),), shared=REPAIR_ELEMENTS
    ),
    "signs": _Support(Launch(128, 128)),
    # An item is a thread.
    "multiply_add": _Support(Launch(256, 256), (("chains", CHAINS),)),
    # An item is an element.
    "part": _Support(Launch(256, 256 * PART), (("each", PART),)),
    "gather": _Support(Launch(256, 256), (("axes", GATHERED_AXES),)),
    # An item is a byte.
    "copy": _Support(Launch(256, 256 * 4 * VECTOR_BYTES), typed=False),
    "empty": _Support(Launch(32, 32), typed=False),
}


@cache
def support_kernel(name: str, dtype: str = "float32") -> KernelSource:
    """The CUDA source of a support kernel, for matrices of any order.

    Parameters
    ----------
    name : str
        A key of `_KERNELS`. The source says at its beginning what it does, and its arguments.
    dtype : {"float32", "float64"}
        Of the elements; "copy" and "empty" do not depend on it.

    Raises
    ------
    SpecError
        If there is no such kernel.
    """
    if name not in _KERNELS or dtype not in ELEMENT_BYTES:
        raise SpecError(f"name={name!r}, dtype={dtype!r} cannot be built: use one of {list(_KERNELS)}")
    kernel = _KERNELS[name]
    launch = replace(kernel.launch, shared_bytes=kernel.shared * ELEMENT_BYTES[dtype])
    entry = f"{name}_{ {'float32': 'f32', 'float64': 'f64'}[dtype] }" if kernel.typed else f"{name}_kernel"
    text = render(
        f"support/cuda_{name}.cu.jinja",
        entry=entry,
        launch=launch,
        dtype=dtype,
        scalar=SCALARS[dtype],
        width=VECTOR_BYTES // ELEMENT_BYTES[dtype],
        loads=LOADS,
        tile_room=tile_room(dtype),
        unit_roundoff=_UNIT_ROUNDOFFS[dtype],
        **dict(kernel.variables),
    )
    return KernelSource(undefine_macros(text), entry, 1, (), launch)


def support_kernels() -> tuple[KernelSource, ...]:
    """Every support kernel, each once: what is compiled ahead."""
    return tuple(dict.fromkeys(support_kernel(name, dtype) for name in _KERNELS for dtype in ELEMENT_BYTES))


def tile_room(dtype: str) -> int:
    """Elements of shared memory that a tile may take, its padding included."""
    return TILE_BYTES // ELEMENT_BYTES[dtype]


@dataclass(frozen=True)
class Tiling:
    """How `pack` and `unpack` cut a batch into tiles, each moved by one block of threads.

    A unit is `chunks` whole chunks, where they fit into a tile, or one of `parts` parts of a chunk, of `part`
    matrices each, the last one smaller. A tile is `rows` rows, the last one fewer, of every matrix of a unit, which
    has `row_blocks` of them. In shared memory rows are `row_pitch` and matrices `pitch` elements apart, so that
    threads of a warp meet in few banks, whichever way they go.

    An array without chunks (interleaved) is one chunk as long as its stride; a canonical one has chunks of 1.
    """

    n: int
    stride: int
    chunks: int
    part: int
    parts: int
    rows: int
    row_blocks: int
    row_pitch: int
    pitch: int

    def unit(self, matrix: int) -> int:
        """The unit that a matrix is in."""
        chunk, place = divmod(matrix, self.stride)
        return chunk // self.chunks * self.parts + place // self.part

    def tiles(self, first: int, end: int) -> int:
        """Tiles that hold matrices first, ..., end - 1."""
        return (self.unit(end - 1) - self.unit(first) + 1) * self.row_blocks if end > first else 0


@lru_cache(maxsize=1024)
def tiling(n: int, stride: int, dtype: str) -> Tiling:
    """The tiles of a batch of matrices of order n, `stride` between neighbouring elements of one matrix.

    As many neighbouring matrices as possible, up to a warp of them, come first, for they are what a packed array has
    in one piece; then come whole rows, which a canonical one has.
    """
    room = tile_room(dtype)
    # Where a warp goes down columns, elements of even orders would meet in few banks; small ones lack the room.
    row_pitch = n + (n > 4 and n % 2 == 0)
    pitch = n * row_pitch | 1
    if stride * pitch <= room:
        chunks = _whole_lines(room // (stride * pitch), stride)
        return Tiling(n, stride, chunks, stride, 1, n, 1, row_pitch, pitch)
    part = _part(stride, room // pitch // LANES * LANES or room // MAX_N // LANES * LANES, dtype)
    rows = _even(n, ((room // part - 1) | 1) // row_pitch)
    return Tiling(n, stride, 1, part, -(-stride // part), rows, -(-n // rows), row_pitch, rows * row_pitch | 1)


def _whole_lines(chunks: int, stride: int) -> int:
    """At most `chunks` chunks, such that the next ones begin with a line of memory, or with a sector of one."""
    for matrices in (LANES, LANES // 4):
        step = matrices // gcd(matrices, stride)
        if chunks >= step:
            return chunks // step * step
    return chunks


def _part(stride: int, most: int, dtype: str) -> int:
    """Matrices of a chunk that share a tile: whole lines of the packed array if it has them, else whole vectors."""
    unit = next(unit for unit in (LANES, VECTOR_BYTES // ELEMENT_BYTES[dtype], 1) if stride % unit == 0)
    return -(-_even(stride, most) // unit) * unit


def _even(count: int, most: int) -> int:
    """The size of as few equal shares as possible of a count, none above `most`."""
    shares = -(-count // most)
    return -(-count // shares)
