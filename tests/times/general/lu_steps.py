"""What each step of an LU factorization past n = 128 is worth on a GPU: one after another, beside cuBLAS and a CPU.

    python -m tests.times.general.lu_steps

from the root of the repository writes datasets/general/lu_steps_h200.csv (--out FILE for another), the steps of
figure 1 of Haidar, Dong, Luszczek, Tomov and Dongarra (2015). `way` is "rows one by one" (panels of `nb` columns,
rows interchanged one after the other), "rows at once" (all interchanges of a panel together), "nested panels" (as the
library does it), "one kernel" (on one multiprocessor, to order 128), "cublas" (getrfBatched) and "lapack" (on all
cores of the CPU). Factored in place; seconds between events around single calls, medians; GFLOP/s of 2 n^3 / 3;
`ratio` is the largest of three matrices.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import batchchol
from batchchol import get_backend
from batchchol.algorithms import general
from batchchol.algorithms.general import LuCalls
from batchchol.backends import lapack_lu
from batchchol.backends.cuda.bindings import cublas
from batchchol.backends.cuda.device import device
from batchchol.operations.lu import factor_ratios
from kernelgen import MAX_N

from ..larger.ways import ABOUT, DATASETS, DTYPES, median, write_rows

COLUMNS = ("dtype", "n", "batch", "nb", "way", "seconds", "gflops", "ratio", *ABOUT)
CASES = (
    *((256, 1024), (512, 512), (1024, 128), (128, 2048), (384, 512), (192, 1024), (768, 128), (2048, 32)),
    *((96, 4096), (64, 8192)),
)
# Different matrices of many: the others are copies of them.
DISTINCT = 8


class OneByOne(LuCalls):
    """Rows are interchanged one after the other, a launch each."""

    def interchange(self, address: int, columns: int, at: int, width: int, kept: tuple[int, int] = (0, 0)) -> None:
        """As `LuCalls` has it."""
        for step in range(at, at + width):
            super().interchange(address, columns, step, 1, kept)


def flat(calls: LuCalls) -> None:
    """Factor panel by panel, each followed by the update of all that is right of it."""
    for at in range(0, calls.n, calls.nb):
        width = min(calls.nb, calls.n - at)
        right = at + width
        calls.panel(at, width)
        if right < calls.n:
            calls.solve(at, width, right, calls.n - right)
            calls.update(right, calls.n - right, right, calls.n - right, at, width)


def nested(calls: LuCalls) -> None:
    """Factor as the library does."""
    general.factor(calls, 0, calls.n)


WAYS: dict[str, tuple[type[LuCalls], Callable[[LuCalls], None]]] = {
    "rows one by one": (OneByOne, flat),
    "rows at once": (LuCalls, flat),
    "nested panels": (LuCalls, nested),
}


@dataclass(frozen=True)
class Room:
    """Matrices on the GPU, room for their factors, pivots and info."""

    a: Any
    work: Any
    pivots: Any
    info: Any

    @classmethod
    def of(cls, n: int, batch: int, dtype: str) -> Room:
        cupy = import_module("cupy")

        some = cupy.random.default_rng(0).standard_normal((min(batch, DISTINCT), n, n), dtype=np.dtype(dtype).type)
        a = cupy.ascontiguousarray(some[np.arange(batch) % len(some)])
        return cls(a, cupy.empty_like(a), cupy.zeros((batch, n), np.int32), cupy.zeros(batch, np.int32))

    def restore(self) -> None:
        """Copy the matrices to where they are factored."""
        import_module("cupy").copyto(self.work, self.a)

    def ratio(self) -> float:
        """The largest of three matrices."""
        chosen = sorted({0, len(self.a) // 2, len(self.a) - 1})
        return float(factor_ratios(*(each[chosen].get() for each in (self.a, self.work, self.pivots))).max())


def rows() -> Iterator[dict[str, Any]]:
    """All of them; what one case needs is given back before the next."""
    for dtype, (n, batch) in product(DTYPES, CASES):
        yield from case(dtype, n, batch)
        import_module("cupy").get_default_memory_pool().free_all_blocks()


def case(dtype: str, n: int, batch: int) -> Iterator[dict[str, Any]]:
    """Each way of it."""
    room = Room.of(n, batch, dtype)

    def row(way: str, seconds: float, **more: Any) -> dict[str, Any]:
        rate = 2 / 3 * n**3 * batch / seconds / 1e9
        named = {"dtype": dtype, "n": n, "batch": batch, "way": way}
        return {**named, "seconds": f"{seconds:.6g}", "gflops": f"{rate:.6g}", **more}

    for way, (made, factor) in WAYS.items():
        calls = made(device(), dtype, n, batch, room.work.data.ptr, room.pivots.data.ptr, room.info.data.ptr)
        seconds = median(partial(_queued, calls, factor), room.restore)
        yield row(way, seconds, nb=calls.nb, ratio=f"{room.ratio():.3g}")
    if n <= MAX_N:
        yield row("one kernel", median(partial(in_one_kernel, room), room.restore), ratio=f"{room.ratio():.3g}")
    yield row("cublas", median(vendor(room), room.restore))
    yield row("lapack", on_cpu(room))


def _queued(calls: LuCalls, factor: Callable[[LuCalls], None]) -> None:
    cublas.prepare()
    with calls.gpu.queueing():
        factor(calls)


def in_one_kernel(room: Room) -> None:
    """As the library factors matrices that fit a multiprocessor; the pivots are copied to their place."""
    import_module("cupy").copyto(room.pivots, batchchol.lu_factor_ex(room.work, overwrite_a=True).pivots)


def vendor(room: Room) -> Callable[[], object]:
    """cuBLAS's, of the transposes."""
    cupy, library = import_module("cupy"), import_module("cupy_backends.cuda.libs.cublas")
    batch, n, _ = room.work.shape
    handle, letter = library.create(), {"float32": "s", "float64": "d"}[room.work.dtype.name]
    pointers = cupy.asarray(room.work.data.ptr + np.arange(batch, dtype=np.uint64) * (room.work.nbytes // batch))
    routine = getattr(library, f"{letter}getrfBatched")
    return lambda: routine(handle, n, pointers.data.ptr, n, room.pivots.data.ptr, room.info.data.ptr, batch)


def on_cpu(room: Room) -> float:
    """Seconds of LAPACK's getrf on all cores, its best of three."""
    a = room.a.get()
    lu, pivots, threads = np.empty_like(a), np.zeros(a.shape[:2], np.int32), get_backend("cpu").threads
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        lapack_lu.getrf(a, lu, pivots, threads)
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.times.general.lu_steps", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--out", type=Path, default=DATASETS / "general" / "lu_steps_h200.csv", help="default: %(default)s"
    )
    arguments = parser.parse_args()
    write_rows(arguments.out, COLUMNS, rows())


if __name__ == "__main__":
    main()
