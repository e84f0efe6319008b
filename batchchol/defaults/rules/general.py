"""The kernel of general matrices where none was measured: a rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from batchchol.defaults.runnable import has_pdl, runs_on
from kernelgen import MAX_CHUNK, MAX_N, TARGETS, KernelSpec, Layout, Problem, ThreadSchedule
from kernelgen.gpu import WARP
from kernelgen.schedules.budget import FULL_UNROLL_BUDGET, general_operations
from kernelgen.schedules.stages.general import SPLITS, SplitStage, least_split, registers_of_one
from kernelgen.schedules.stages.lanes import LANES as SHARES
from kernelgen.schedules.stages.lanes import MAX_REGISTERS, LaneStage, has_whole_columns
from kernelgen.schedules.stages.panels import OPERATIONS as PANELED
from kernelgen.schedules.stages.reflectors import SECTOR_BYTES
from kernelgen.targets import ELEMENT_BYTES

# Of CPUs, the largest order of straight-line code.
STRAIGHT_LINE = 16
# Orders of which a GPU's threads solve fastest with the matrix in shared memory, of arrays and of packed matrices.
STAGED: Mapping[tuple[str, bool], range] = MappingProxyType({("float64", False): range(11, 14)})
# From which order on four threads have the rows of an array, though one has registers for it. (131,072 on an H200:
# solves by float32 n = 10 39 µs, by a thread in shared memory 44, in registers 49, n = 14 65 and 109; of float64
# n = 8 38 and 47; factors 44 and 57: datasets/sweeps/lu_h200.csv.)
SHARED_ROWS = MappingProxyType({"float32": 10, "float64": 8})
# ... and of packed ones, in chunks of as many as a warp has then. (131,072 of n = 12 solved in 38 µs, by a thread 45,
# of 14 in 62 and 66; of 13 57 and 54, factors of 12 50 and 50, of 14 81 and 70: datasets/sweeps/lu_h200.csv.)
PACKED_ROWS: Mapping[tuple[str, str], tuple[int, ...]] = MappingProxyType({("gesv", "float32"): (12, 14)})
# Of a GPU's block, where matrices are split over threads: warps read neighbours in memory at about the same time.
SPLIT_THREADS = 128
# Blocks of a multiprocessor that has eight threads to a float32 array, by the registers of a thread's rows: the
# compiler takes more of them by itself. (131,072 of n = 32 464 µs so, else 480: datasets/general/lu_rows_h200.csv.)
SPLIT_BLOCKS = MappingProxyType({72: 4, 128: 3})
# Threads to a matrix in shared memory, panel by panel, up to each order, and from which order on; below, threads have
# its rows in registers: datasets/general/lu_kernels_h200.csv. (Arrays: 65,536 of n = 64 1.89 ms, by rows 3.49; 16,384
# of n = 128 3.47 ms, by warps with columns in registers 14.3; of float64 32,768 of n = 64 2.16 ms and 13.5.)
PANELS = MappingProxyType({"float32": {64: 32, 80: 64, MAX_N: 128}, "float64": {48: 32, 80: 64, MAX_N: 128}})
PANELS_FROM = MappingProxyType({"float32": 41, "float64": 33})
# Threads of a block that has as many matrices as they suffice for, and the GPU that the rule is for.
PANEL_THREADS, FITTED = 64, "sm_90"
# Lanes of a warp that share a matrix of QR factorizations, and have its whole columns, by orders: of packed ones and
# of arrays in rows. (On an H200 65,536 of n = 16, packed: 49 µs by four lanes, 121 by eight threads that show columns
# in shared memory; Q of them by two lanes 33, before 83. 16,384 arrays of n = 48: 197 and 328.)
LANES: Mapping[tuple[str, str, bool], Mapping[range, int]] = MappingProxyType(
    {
        ("geqrf", "float32", False): {range(15, 25): 4, range(25, 33): 8},
        ("geqrf", "float32", True): {range(24, 25): 4, range(15, 25): 8, range(25, 49): 16},
        ("orgqr", "float32", False): {range(15, 17): 2, range(17, 25): 4, range(25, 33): 8},
        ("orgqr", "float32", True): {range(16, 17): 4, range(15, 25): 8, range(41, 49): 16},
        ("geqrf", "float64", False): {range(11, 13): 2, range(13, 17): 4, range(17, 25): 8},
        ("geqrf", "float64", True): {range(16, 17): 4, range(11, 25): 8},
        ("orgqr", "float64", False): {range(13, 17): 4},
        ("orgqr", "float64", True): {range(13, 17): 8},
        ("gels", "float32", False): {range(15, 17): 2, range(17, 25): 8},
        ("gels", "float32", True): {range(15, 17): 4, range(17, 25): 8},
        ("gels", "float64", True): {range(11, 13): 4},
    }
)
# Threads, whole warps, that have a square matrix of QR factorizations in shared memory, and panels of reflectors in
# registers, by orders: of arrays in rows and of packed ones, of which a block has several. (On an H200 4,096 arrays
# of n = 96 take 431 µs, by columns that are shown 791; 4,096 packed ones of n = 48 115 and 201:
# datasets/general/qr_panels_h200.csv.)
REFLECTORS: Mapping[tuple[str, bool], Mapping[range, tuple[int, int]]] = MappingProxyType(
    {
        ("float32", True): {range(65, MAX_N + 1): (128, 128)},
        ("float32", False): {range(33, 65): (32, 256), range(65, 97): (64, 256), range(97, MAX_N + 1): (128, 128)},
        ("float64", True): {range(33, 65): (32, 32), range(65, MAX_N + 1): (128, 128)},
        ("float64", False): {range(33, 57): (32, 256), range(65, 113): (64, 128)},
    }
)
# ... and tall float32 arrays of this many elements, factored. (4,096 of 128 x 32 take 105 µs,
# by columns that are shown 155, of 128 x 64 290 and 708; 8,192 of 64 x 32 112 and 109.)
TALL_REFLECTORS: Mapping[range, tuple[int, int]] = MappingProxyType({range(49): (32, 32), range(49, 65): (64, 64)})
TALL_PANELED = 4096
# Elements of the tallest arrays that lanes have whole columns of, one or two each, and registers of those and of the
# column that is shown; of packed ones as few lanes as have registers for them, in least squares at most so many.
# (62,464 of 32 x 8: arrays 41 µs, before 56, packed 44 and 113; 7,168 of 64 x 32 106 and 101:
# datasets/general/qr_tall_h200.csv.)
TALL, TALL_REGISTERS, TALL_SOLVES = MappingProxyType({"geqrf": 1600, "orgqr": 768}), 200, 96
# Blocks of SPLIT_THREADS to a multiprocessor, by the most registers that a lane's columns may take.
LANE_BLOCKS = MappingProxyType({64: 4, 104: 3})
# ... of tall matrices, and where there are right-hand sides, with those of the column that is shown.
TALL_BLOCKS = MappingProxyType({84: 4, 126: 3})
# Registers of the largest matrices of QR factorizations whose blocks have as many threads: on an H200 270,000 of
# 3 x 3 take 7.9 µs so, and 11.5 by warps alone.
TINY = 36
# ... of which a multiprocessor has this many blocks.
ROOMY, RESIDENT = range(121, 145), 11


def general(plain: KernelSpec, chunk: int | None, arch: str | None, *, by_lanes: bool = True) -> KernelSpec:
    """The kernel of `plain`'s problem; of a GPU, for this chunk alone, whose offsets are constants then.

    It is launched early where the GPU can do that. Unless `by_lanes` none of lanes with
    whole columns is taken: such factor anew for every few right-hand sides.
    """
    gpu, problem, canonical = TARGETS[plain.target].gpu, plain.problem, plain.layout == "canonical"
    stride = chunk if gpu and plain.layout == "chunked" and chunk in range(2, MAX_CHUNK + 1) else None
    if gpu and (panels := _by_panels(plain, stride, arch)) is not None and runs_on(panels, arch, FITTED):
        return panels
    if gpu and (panels := _by_reflectors(plain, stride, arch)) is not None:
        return panels
    straight = problem.n <= STRAIGHT_LINE and general_operations(problem) <= FULL_UNROLL_BUDGET
    staged = gpu and problem.op == "gesv" and problem.n in STAGED.get((problem.dtype, canonical), ())
    lanes = _by_lanes(problem, plain.layout, plain.order) if gpu and by_lanes else None
    split = lanes or (_least_split(problem, None if canonical else stride or 0) if gpu and not staged else None)
    # Lanes have whole columns unless it is said that columns are shown in shared memory.
    staged = staged or (gpu and split is not None and lanes is None and has_whole_columns(problem, split))
    schedule = ThreadSchedule(
        1,
        str(problem.operation.fixed["looking"]),
        "full" if gpu or straight else "tiles",
        staged=staged or None,
        split=split,
        threads=_threads(problem, split, plain.layout) if gpu else None,
        blocks=(_lane_blocks(problem, lanes) if lanes else _blocks(problem, split, plain.layout)) if gpu else None,
        stride=stride,
        pdl=(gpu and has_pdl(arch)) or None,
    )
    return replace(plain, schedule=schedule)


def general_layout(problem: Problem) -> Layout | None:
    """The layout of packed matrices whose threads share them by LU; None where a thread of a GPU has one.

    A chunk is what a warp has at once, or a block of panels: what it reads and writes lies in one piece.
    """
    if problem.operation.rectangular or not problem.operation.general:
        return None
    if problem.n >= PANELS_FROM[problem.dtype]:
        members = PANEL_THREADS // _panel_threads(problem)
    elif split := _least_split(problem, WARP // SPLITS[0]):
        members = WARP // split
    else:
        return None
    return Layout.chunked(max(members, 2), "row")


def _least_split(problem: Problem, chunk: int | None) -> int | None:
    """The threads to a matrix, None for one: the fewest that have registers for it, of some arrays more.

    So do packed matrices in chunks of as many as a warp has then; `chunk` is None for arrays.
    """
    if chunk is None:
        shares = problem.op in ("getrf", "gesv") and problem.n >= SHARED_ROWS[problem.dtype]
    else:
        shares = chunk == WARP // SPLITS[0] and problem.n in PACKED_ROWS.get((problem.op, problem.dtype), ())
    return least_split(problem) or (SPLITS[0] if shares else None)


def of_many_columns(spec: KernelSpec, arch: str | None) -> KernelSpec:
    """The kernel of least squares for many right-hand sides in place of one of lanes that factors anew for them."""
    schedule = spec.schedule
    if not (isinstance(schedule, ThreadSchedule) and schedule.split and not schedule.staged):
        return spec
    if not has_whole_columns(spec.problem, schedule.split):
        return spec
    return general(spec, schedule.stride, arch, by_lanes=False)


def _by_panels(plain: KernelSpec, stride: int | None, arch: str | None) -> KernelSpec | None:
    """The kernel that has larger matrices in shared memory, None of others."""
    problem = plain.problem
    if problem.operation.rectangular or problem.n < PANELS_FROM[problem.dtype]:
        return None
    split = _panel_threads(problem)
    threads = max(split, PANEL_THREADS)
    looking, pdl = str(problem.operation.fixed["looking"]), has_pdl(arch) or None
    schedule = ThreadSchedule(1, looking, "full", staged=True, split=split, threads=threads, stride=stride, pdl=pdl)
    return replace(plain, schedule=schedule)


def _by_reflectors(plain: KernelSpec, stride: int | None, arch: str | None) -> KernelSpec | None:
    """The kernel of panels of reflectors, None of others, and where a GPU has no room for it."""
    problem, canonical = plain.problem, plain.layout == "canonical"
    if problem.op not in PANELED or (canonical and plain.order != "row"):
        return None
    shares = _shares_of_reflectors(problem, canonical=canonical)
    found = next((each for orders, each in shares.items() if problem.n in orders), None)
    if found is None:
        return None
    split, threads = found
    looking, pdl = str(problem.operation.fixed["looking"]), has_pdl(arch) or None
    schedule = ThreadSchedule(1, looking, "full", staged=True, split=split, threads=threads, stride=stride, pdl=pdl)
    spec = replace(plain, schedule=schedule)
    return spec if runs_on(spec, arch, FITTED) else None


def _shares_of_reflectors(problem: Problem, *, canonical: bool) -> Mapping[range, tuple[int, int]]:
    """Threads of a matrix and of a block, by orders, where panels of reflectors are the fastest."""
    if problem.rows == problem.n:
        return REFLECTORS.get((problem.dtype, canonical), {})
    tall = problem.rows > problem.n and problem.rows * problem.n >= TALL_PANELED
    return TALL_REFLECTORS if tall and canonical and problem.op == "geqrf" and problem.dtype == "float32" else {}


def _panel_threads(problem: Problem) -> int:
    return next(threads for order, threads in PANELS[problem.dtype].items() if problem.n <= order)


def _by_lanes(problem: Problem, layout: str, order: str) -> int | None:
    """The lanes that have whole columns of a matrix of QR factorizations, None where others are faster."""
    canonical = layout == "canonical"
    if canonical and order != "row":
        return None
    if problem.rows != problem.n:
        return _lanes_of_tall(problem, canonical=canonical)
    shares = LANES.get((problem.op, problem.dtype, canonical), {})
    return next((lanes for orders, lanes in shares.items() if problem.n in orders), None)


def _lanes_of_tall(problem: Problem, *, canonical: bool) -> int | None:
    """The same of matrices with more rows than columns, of which a thread has no registers for all."""
    if problem.rows < problem.n or least_split(problem) is None:
        return None
    fitting = [each for each in SHARES if LaneStage(problem, each).fits]
    if not canonical:
        most = TALL_SOLVES if problem.op == "gels" else MAX_REGISTERS
        return next((each for each in fitting if LaneStage(problem, each).registers <= most), None)
    if not fitting or problem.rows * problem.n > TALL.get(problem.op, 0):
        return None
    shown = problem.rows * ELEMENT_BYTES[problem.dtype] // 4
    return fitting[-1] if LaneStage(problem, fitting[-1]).registers + shown <= TALL_REGISTERS else None


def _lane_blocks(problem: Problem, lanes: int) -> int | None:
    """Blocks of a multiprocessor that leave lanes registers for their columns; float32's `fast` would take all."""
    if problem.dtype != "float32":
        return None
    registers = LaneStage(problem, lanes).registers
    if problem.rows != problem.n or problem.operation.has_columns:
        registers += problem.rows
        return next((blocks for most, blocks in TALL_BLOCKS.items() if registers <= most), None)
    return next((blocks for most, blocks in LANE_BLOCKS.items() if registers <= most), None)


def _blocks(problem: Problem, split: int | None, layout: str) -> int | None:
    """Those of a multiprocessor, None for any number: left to itself the compiler takes more registers.

    On an H200 262,144 arrays of n = 12 take 90 µs so, else 102.
    """
    if split == 8 and layout == "canonical" and problem.dtype == "float32" and problem.op in ("getrf", "gesv"):
        registers = SplitStage(problem, split, layout).registers
        return next(blocks for most, blocks in SPLIT_BLOCKS.items() if registers <= most)
    return RESIDENT if not split and problem.op == "geqrf" and registers_of_one(problem) in ROOMY else None


def _threads(problem: Problem, split: int | None, layout: str) -> int | None:
    """Those of a GPU's block, None for the least: few blocks for many tiny matrices.

    Of packed rectangles a block has as many as lie next to each other in a sector of memory.
    """
    if problem.operation.rectangular and split and split <= WARP and layout != "canonical":
        return max(SPLIT_THREADS, split * SECTOR_BYTES // ELEMENT_BYTES[problem.dtype])
    tiny = problem.operation.rectangular and registers_of_one(problem) <= TINY
    return SPLIT_THREADS if (split and split <= WARP) or tiny else None
