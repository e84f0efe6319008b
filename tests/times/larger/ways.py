"""What factoring matrices of orders above 128 takes on a GPU, one and many, beside cuSOLVER, PyTorch and gemm.

    python -m tests.times.larger.ways

from the root of the repository writes datasets/larger/larger_h200.csv (--out FILE for another). Matrices are factored
in place, on the default stream; seconds between events around single calls, medians, and the largest residual ratio
of three matrices. `how` is the plan, or cuSOLVER's fill mode; `chosen` marks the plan that the library uses. Orders
to 128 are those of its call, out of place. Of a bound, `n` is a matrix's order and `how` the columns of a panel, by
which cuBLAS updates all of the rest.

Part "launches" has what Haidar and others (2017) compare: all steps of `ib` columns in one launch, and launches for
each. Part "inverses" has rows below a tile of order `n` solved for by it, and multiplied by its inverse, which is
there: `rows` of them, in GFLOP/s of n^2 a row. Part "modes" has a product of matrices, `n` by 512 and 512 by `n`, in
cuBLAS's modes; `ratio` is the largest error over that of 512 rounded additions, 512 u |A| |B|.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np

from batchchol import get_backend
from batchchol.algorithms.blocked import Blocking
from batchchol.algorithms.device_calls import DeviceCalls
from batchchol.algorithms.graphs import FactorizationGraph
from batchchol.algorithms.large import factor_at
from batchchol.algorithms.level3 import Block
from batchchol.algorithms.plans import ALONE, Plan, hybrids, plan, tiled
from batchchol.backends.cuda.bindings.cublas import Cublas
from batchchol.backends.cuda.device import device
from batchchol.measure.provenance import about
from kernelgen.emit.panels.fused_panel import FusedPanel
from kernelgen.emit.panels.panel import Panel

DATASETS = Path(__file__).parents[3] / "datasets"
ABOUT = ("gpu", "driver", "toolkit", "version", "commit", "date")
COLUMNS = (*("part", "dtype", "n", "batch", "who", "how", "chosen", "seconds", "gflops", "ratio"), *ABOUT)
DTYPES = ("float32", "float64")
ONE = (512, 1024, 2048, 4096, 8192, 16_384)
MANY = [(n, 16_384) for n in (128, 129, 160, 192, 256)] + [
    (n, 1024) for n in (257, 289, 321, 384, 385, 449, 512, 513, 577, 641, 768, 1024)
]
BOUND, PANELS = 10_240, (256, 512, 1024)
PARTS = ("bound", "one", "many", "launches", "inverses", "modes")
STEPS = [(n, ib) for n in (64, 128, 512) for ib in (8, 16, 32)]
# As cublas_api.h has them.
MODES = {
    "float32": {"default": 0, "TF32": 3, "emulated by nine BF16": 4},
    "float64": {"default": 0, "emulated in fixed point": 8},
}
SIDE, INNER = 8192, 512
TILES, ROWS_BELOW, MATRICES_BELOW = (16, 32, 64), 448, 1024
# Different matrices of many: the others are copies of them.
DISTINCT = 8
CALLS, WARM_UP = 5, 1


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.times.larger.ways", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--out", type=Path, default=DATASETS / "larger" / "larger_h200.csv", help="default: %(default)s"
    )
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    arguments = parser.parse_args()
    write_rows(arguments.out, COLUMNS, rows(arguments.part))


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    """Write each row as it is measured, with where it comes from, and print it."""
    origin = about(get_backend("cuda"))
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({**{name: origin.get(name, "") for name in ABOUT}, **row})
            stream.flush()
            print(*row.values(), flush=True)


def rows(parts: Sequence[str] = PARTS) -> Iterator[dict[str, Any]]:
    """Those of some parts; what one case needs is given back before the next."""
    cupy = import_module("cupy")

    found = {
        "bound": [bound(dtype) for dtype in DTYPES],
        "one": [case("one", n, 1, dtype) for n, dtype in product(ONE, DTYPES)],
        "many": [case("many", n, batch, dtype) for (n, batch), dtype in product(MANY, DTYPES)],
        "launches": [launches(n, ib, dtype) for dtype, (n, ib) in product(DTYPES, STEPS)],
        "modes": [modes(dtype) for dtype in DTYPES],
        "inverses": [inverses(nb, dtype) for dtype, nb in product(DTYPES, TILES)],
    }
    for each in chain.from_iterable(found[part] for part in parts):
        yield from each
        cupy.get_default_memory_pool().free_all_blocks()


def case(part: str, n: int, batch: int, dtype: str) -> Iterator[dict[str, Any]]:
    """cuSOLVER in both fill modes, PyTorch, and the library in the ways that were near the best."""
    cupy = import_module("cupy")

    a = matrices(n, batch, dtype)
    work, info = cupy.empty_like(a), cupy.empty(batch, np.int32)

    def row(who: str, how: str, call: Callable[[], object], *, chosen: bool = False, checked: bool = False) -> Any:
        seconds = median(call, lambda: cupy.copyto(work, a))
        found = {"seconds": f"{seconds:.6g}", "gflops": f"{batch * n**3 / 3 / seconds / 1e9:.6g}"}
        ratio = ""
        if checked:
            ratio = f"{np.inf if int(abs(info).max()) else largest_ratio(a, work):.3g}"
        named = {"part": part, "dtype": dtype, "n": n, "batch": batch, "who": who, "how": how}
        return {**named, "chosen": chosen, **found, "ratio": ratio}

    for how, call in cusolver(work, info):
        yield row("cusolver", how, call)
    yield row("torch", "", torch_call(a))
    if n <= 128:
        yield row("batchchol", "cholesky_ex", library_call(a), chosen=True)
        return
    gpu, default = device(), plan(n, batch, dtype, upper=False)
    addresses = (work.data.ptr, work.data.ptr, info.data.ptr)
    for each in dict.fromkeys((default, *others(n, batch, dtype))):
        call = partial(factor_at, gpu, each, *addresses, n, batch)
        yield row("batchchol", each.name, call, chosen=each == default, checked=True)
    for each in ahead(n, batch, dtype):
        graph = FactorizationGraph(gpu, each, *addresses, n, batch)
        yield row("batchchol", f"{each.name}, as a graph", graph.launch, checked=True)


def others(n: int, batch: int, dtype: str) -> list[Plan]:
    """By tiles; and of larger ones in one launch, in panels, looking ahead, and with the host's help."""
    found = [Plan(*tiled(n, batch, dtype))]
    if batch == 1 and n > ALONE:
        panel = FusedPanel(dtype, "row", update="tensor")
        found += [Plan(panel, None), Plan(panel, Blocking(512, 2048, "left", fused=True))]
        found += [*ahead(n, batch, dtype), *hybrids(n, dtype)[-2:]]
    return found


def ahead(n: int, batch: int, dtype: str) -> list[Plan]:
    """Panels that are factored beside updates."""
    if batch > 1 or n <= ALONE:
        return []
    return [Plan(FusedPanel(dtype, "row", update="tensor"), Blocking(512, 1024, ahead=True, fused=True))]


def cusolver(work: Any, info: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """Its calls, by fill mode: of LAPACK's columns, so that "lower" writes the upper triangle of rows."""
    cupy = import_module("cupy")

    batch, n, _ = work.shape
    library = import_module("cupy_backends.cuda.libs.cusolver")
    letter, handle = {"float32": "s", "float64": "d"}[work.dtype.name], library.create()
    pointers = cupy.asarray(work.data.ptr + np.arange(batch, dtype=np.uint64) * (work.nbytes // batch))
    for mode, how in enumerate(("lower", "upper")):
        if batch > 1:
            call = partial(getattr(library, f"{letter}potrfBatched"), handle, mode, n, pointers.data.ptr, n)
            yield how, partial(_with, pointers, partial(call, info.data.ptr, batch))
        else:
            size = getattr(library, f"{letter}potrf_bufferSize")(handle, mode, n, work.data.ptr, n)
            room = cupy.empty(max(size, 1), work.dtype)
            call = partial(getattr(library, f"{letter}potrf"), handle, mode, n, work.data.ptr, n)
            yield how, partial(_with, room, partial(call, room.data.ptr, size, info.data.ptr))


def _with(_: Any, call: Callable[[], object]) -> None:
    """A call that needs an array of which it knows the address alone."""
    call()


def torch_call(given: Any) -> Callable[[], object]:
    """PyTorch's, which is out of place, into memory that is given."""
    torch = import_module("torch")

    a = torch.as_tensor(given, device="cuda")
    out = torch.empty_like(a).mT, torch.empty(len(a), dtype=torch.int32, device="cuda")
    return lambda: torch.linalg.cholesky_ex(a, out=out)


def library_call(a: Any) -> Callable[[], object]:
    """The library's, of orders that have kernels: out of place, into its own memory."""
    from batchchol import cholesky_ex

    return lambda: cholesky_ex(a)


def bound(dtype: str) -> Iterator[dict[str, Any]]:
    """What cuBLAS reaches where it updates a square by a panel."""
    a = matrices(BOUND, 1, dtype)
    blas, itemsize = Cublas(dtype, "row"), a.itemsize
    for nb in PANELS:
        side = BOUND - nb
        panel = a.data.ptr + nb * BOUND * itemsize
        sizes = panel + nb * itemsize, panel, panel, side, side, nb, BOUND
        seconds = median(partial(blas.gemm, *sizes), lambda: None)
        flops = 2 * side * side * nb
        named = {"part": "bound", "dtype": dtype, "n": BOUND, "batch": 1, "who": "gemm", "how": nb, "chosen": False}
        yield {**named, "seconds": f"{seconds:.6g}", "gflops": f"{flops / seconds / 1e9:.6g}", "ratio": ""}


def launches(n: int, ib: int, dtype: str) -> Iterator[dict[str, Any]]:
    """One matrix by one launch, of a tile or of tiles of 64, and by three for each step."""
    cupy = import_module("cupy")

    a = matrices(n, 1, dtype)
    work, info = cupy.empty_like(a), cupy.empty(1, np.int32)
    ways = {
        "one launch": in_one_launch(n, ib, dtype),
        "launches for each step": Plan(Panel(dtype, "row", ib, ib=ib, threads=64), Blocking(ib, ib, "left")),
    }
    for how, each in ways.items():
        call = partial(factor_at, device(), each, work.data.ptr, work.data.ptr, info.data.ptr, n, 1)
        seconds = median(call, lambda: cupy.copyto(work, a))
        named = {
            "part": "launches",
            "dtype": dtype,
            "n": n,
            "batch": 1,
            "who": "batchchol",
            "how": f"{how}, ib = {ib}",
        }
        found = {"seconds": f"{seconds:.6g}", "gflops": f"{n**3 / 3 / seconds / 1e9:.6g}"}
        yield {**named, "chosen": False, **found, "ratio": f"{largest_ratio(a, work):.3g}"}


def in_one_launch(n: int, ib: int, dtype: str) -> Plan:
    """Of a tile, or of tiles of 64."""
    if n <= 128:
        return Plan(Panel(dtype, "row", n, ib=ib, threads=512), None)
    return Plan(FusedPanel(dtype, "row", 64, ib=ib, update="tensor"), None)


def inverses(nb: int, dtype: str) -> Iterator[dict[str, Any]]:
    """Rows below tiles by substitution, and by products with inverses, as many bytes."""
    cupy = import_module("cupy")

    n = nb + ROWS_BELOW
    a = cupy.random.default_rng(0).random((MATRICES_BELOW, n, n), dtype=np.dtype(dtype).type)
    a[:, np.arange(nb), np.arange(nb)] += nb
    calls = DeviceCalls(device(), Panel(dtype, "row", nb, rows=64, threads=128), a.data.ptr, 0, n, MATRICES_BELOW)
    tile, below = Block.diagonal(0, nb), Block(nb, 0, ROWS_BELOW, nb)
    to, first = Block(nb, nb, ROWS_BELOW, nb), a.data.ptr
    addresses = [(first + (each.row * n + each.column) * a.itemsize, n, n * n) for each in (to, below, tile)]
    multiply = partial(calls.blas.product, *addresses, (ROWS_BELOW, nb, nb), batch=MATRICES_BELOW)
    for how, call in (("solved for", partial(calls.trsm, tile, below)), ("multiplied", multiply)):
        seconds = median(call, lambda: None)
        flops = float(MATRICES_BELOW * ROWS_BELOW * nb * nb)
        named = {"part": "inverses", "dtype": dtype, "n": nb, "batch": MATRICES_BELOW, "who": "batchchol"}
        found = {"seconds": f"{seconds:.6g}", "gflops": f"{flops / seconds / 1e9:.6g}"}
        yield {**named, "how": f"{how}, {ROWS_BELOW} rows", "chosen": False, **found, "ratio": ""}


def modes(dtype: str) -> Iterator[dict[str, Any]]:
    """A product by cuBLAS in its modes; those that a GPU does not have are refused, or as the default."""
    cupy = import_module("cupy")
    library = import_module("cupy_backends.cuda.libs.cublas")

    random, handle = cupy.random.default_rng(0), library.create()
    a, b = (random.standard_normal((SIDE, INNER)).astype(dtype) for _ in range(2))
    c, one, zero = cupy.empty((SIDE, SIDE), dtype), np.ones(1, dtype), np.zeros(1, dtype)
    gemm = getattr(library, {"float32": "sgemm", "float64": "dgemm"}[dtype])
    sizes, scalars = (1, 0, SIDE, SIDE, INNER), (one.ctypes.data, zero.ctypes.data)
    call = partial(
        gemm, handle, *sizes, scalars[0], b.data.ptr, INNER, a.data.ptr, INNER, scalars[1], c.data.ptr, SIDE
    )
    exact = a[:256].astype(np.float64) @ b.astype(np.float64).T
    unit = np.finfo(dtype).eps / 2
    for how, mode in MODES[dtype].items():
        named = {"part": "modes", "dtype": dtype, "n": SIDE, "batch": 1, "who": "cublas", "how": how, "chosen": False}
        try:
            library.setMathMode(handle, mode)
        except RuntimeError as error:
            yield {**named, "how": f"{how}: {error}", "seconds": "", "gflops": "", "ratio": ""}
            continue
        seconds = median(call, lambda: None)
        allowed = INNER * unit * (abs(a[:256]).astype(np.float64) @ abs(b).astype(np.float64).T)
        ratio = float((abs(c[:256] - exact) / allowed).max())
        flops = 2.0 * SIDE * SIDE * INNER
        yield {
            **named,
            "seconds": f"{seconds:.6g}",
            "gflops": f"{flops / seconds / 1e9:.6g}",
            "ratio": f"{ratio:.3g}",
        }


def matrices(n: int, batch: int, dtype: str) -> Any:
    """Diagonally dominant ones, (batch, n, n)."""
    cupy = import_module("cupy")

    r = cupy.random.default_rng(0).random((min(batch, DISTINCT), n, n), dtype=np.dtype(dtype).type)
    a, i = (r + r.swapaxes(1, 2)) / 2, np.arange(n)
    a[:, i, i] += n
    return cupy.ascontiguousarray(a[np.arange(batch) % len(a)])


def largest_ratio(a: Any, l: Any) -> float:
    """As `batchchol.operations.residual` has it, on the GPU."""
    cupy = import_module("cupy")

    unit, n = np.finfo(a.dtype).eps / 2, a.shape[-1]
    found = []
    for member in sorted({0, len(a) // 2, len(a) - 1}):
        factor = l[member].astype(np.float64)
        if float(abs(cupy.triu(factor, 1)).max()):
            return float("inf")
        error = cupy.tril(abs(a[member] - factor @ factor.T))
        found.append(float((error / ((n + 1) * unit * (abs(factor) @ abs(factor).T))).max()))
    return max(found)


def median(call: Callable[[], object], restore: Callable[[], object]) -> float:
    """Seconds between events around single calls."""
    return float(np.median(seconds_of(call, restore, CALLS, WARM_UP)))


def seconds_of(
    call: Callable[[], object], restore: Callable[[], object], calls: int, warm_up: int = 1
) -> list[float]:
    """Seconds of each of `calls` calls, between events, after some that do not count."""
    cupy = import_module("cupy")

    seconds = []
    for _ in range(warm_up + calls):
        restore()
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        call()
        end.record()
        end.synchronize()
        seconds.append(cupy.cuda.get_elapsed_time(begin, end) / 1e3)
    return seconds[warm_up:]


if __name__ == "__main__":
    main()
