"""What QR factorizations take on a GPU: kernels that a rule could choose, beside other libraries' batched ones.

    python -m tests.qr_times --out FILE

from the root of the repository. All kernels of a case are called in turn, on cold data; seconds a call, medians; the
results of the last call are checked. `roofline` is the share of the time that the compulsory bytes would take at the
rate of the machine's best copy.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from batchchol import get_backend
from batchchol.backends.cuda import memory
from batchchol.measure.provenance import about
from batchchol.operations import qr as checks
from batchchol.operations.roofline import compulsory_bytes
from kernelgen import KernelSpec, Layout, Problem, SpecError, ThreadSchedule

COLUMNS = (
    *("op", "n", "batch", "layout", "dtype", "math", "library", "threads", "blocks", "seconds", "spread", "roofline"),
    *("ratio", "gpu", "driver", "toolkit", "version", "commit", "date"),
)
CASES = (
    *(("geqrf", 3, 270_000), ("geqrf", 8, 1_048_576), ("geqrf", 4, 1_048_576), ("geqrf", 6, 1_048_576)),
    *(("geqrf", 10, 262_144), ("geqrf", 12, 262_144), ("geqrf", 14, 262_144)),
    *(("gels", 3, 270_000), ("gels", 4, 131_072), ("gels", 8, 131_072), ("gels", 12, 131_072)),
    *(("orgqr", 3, 270_000), ("orgqr", 8, 1_048_576), ("orgqr", 12, 262_144)),
)
LAYOUTS = (Layout.chunked(32), Layout.canonical())
THREADS, BLOCKS = (32, 128), (None,)
SAMPLES, WARM_UP, CALLS = 15, 2, 10
DISTINCT = 8_192
# Bytes between two uses of a buffer.
COLD_BYTES = 4 * 64 << 20


class Timed(NamedTuple):
    """A way to do an operation: what to call with the number of a set of buffers, and the check of the last one."""

    row: dict[str, Any]
    call: Callable[[int], None]
    check: Callable[[], float]


class Buffers:
    """Sets of arguments of an operation, cold in turn."""

    def __init__(self, backend: Any, op: str, n: int, batch: int, layout: Layout, dtype: str) -> None:
        distinct = np.random.default_rng(n).standard_normal((DISTINCT, n, n)).astype(dtype)
        self.a = np.resize(distinct, (batch, n, n))
        first = backend.from_dense(self.a, layout)
        shapes = {"geqrf": ((batch, n),), "orgqr": ((batch, n),), "gels": ((batch, n, 1), (batch, n, 1))}[op]
        nbytes = (1 if op == "gels" else 2) * first.nbytes + sum(4 * int(np.prod(shape)) for shape in shapes)
        count = max(2, -(-COLD_BYTES // nbytes))
        self.sets = [
            (first if not place else first.copy(), *self._others(backend, op, first, shapes))
            for place in range(min(count, 64))
        ]

    @staticmethod
    def _others(backend: Any, op: str, first: Any, shapes: Any) -> tuple[Any, ...]:
        random = np.random.default_rng(1)
        beside = [backend.place(random.random(shape, np.float32).astype(first.dtype)) for shape in shapes]
        if op == "geqrf":
            return first.like(), beside[0]
        if op == "orgqr":
            return beside[0], first.like()
        return beside[0], beside[1], backend.place(np.full(first.batch, -1, np.int32))


def kernels(backend: Any, op: str, n: int, layout: Layout, dtype: str, buffers: Buffers) -> Iterator[Timed]:
    """This library's."""
    for math in ("ieee", "fast"):
        for threads in THREADS:
            for blocks in BLOCKS:
                schedule = ThreadSchedule(1, "right", "full", threads=threads, blocks=blocks, stride=layout.chunk)
                with suppress(SpecError):
                    problem = Problem(n, dtype, op=op, math=math)
                    spec = KernelSpec(problem, layout.kind, layout.order, schedule, "cuda")
                    row = {"math": math, "library": "batchchol", "threads": threads, "blocks": blocks}
                    call = partial(_call, backend.kernel(spec), buffers)
                    yield Timed(row, call, partial(_checked, backend, op, buffers))


def _call(kernel: Any, buffers: Buffers, place: int) -> None:
    kernel(*buffers.sets[place % len(buffers.sets)], threads=1)


def _checked(backend: Any, op: str, buffers: Buffers) -> float:
    """The largest ratio of spread members of the first set."""
    given = buffers.sets[0]
    host = backend.host
    if op == "geqrf":
        qr, tau = given[1], host(given[2])
        ratios = []
        for m in np.linspace(0, len(tau) - 1, 24).astype(int):
            factors = host(qr.get(m, m + 1))
            ratios.append(checks.factor_ratios(buffers.a[m : m + 1], factors, tau[m : m + 1])[0])
        return float(max(ratios))
    if op == "gels":
        b, x = host(given[1]), host(given[2])
        return float(checks.solve_ratios(buffers.a[:64], b[:64], x[:64]).max())
    return 0.0


def cublas(n: int, batch: int, layout: Layout, dtype: str, buffers: Buffers) -> Iterator[Timed]:
    """cuBLAS's geqrfBatched, in place, on arrays of pointers made ahead; what is factored again is R of before."""
    if layout.kind != "canonical" or dtype != "float32":
        return
    library = _cublas()
    handle = ctypes.c_void_p()
    library.cublasCreate_v2(ctypes.byref(handle))
    info, each = ctypes.c_int(), n * n * 4
    tables = []
    for a, _, tau in buffers.sets:
        start, scalars = a.address, int(tau.gpudata)
        matrices = start + each * np.arange(batch, dtype=np.int64)
        rows = scalars + 4 * n * np.arange(batch, dtype=np.int64)
        tables.append(tuple(memory.to_device(table, "pointers") for table in (matrices, rows)))

    def call(place: int) -> None:
        matrices, rows = tables[place % len(tables)]
        arguments = (ctypes.c_void_p(int(matrices.gpudata)), n, ctypes.c_void_p(int(rows.gpudata)))
        status = library.cublasSgeqrfBatched(handle, n, n, *arguments, ctypes.byref(info), batch)
        assert not status, status

    yield Timed({"math": "ieee", "library": "cuBLAS geqrfBatched"}, call, lambda: 0.0)


def _cublas() -> Any:
    import glob
    import site

    with suppress(OSError):
        return ctypes.CDLL("libcublas.so")
    found = [
        path
        for root in site.getsitepackages()
        for path in glob.glob(f"{root}/nvidia/**/libcublas.so.*", recursive=True)
    ]
    return ctypes.CDLL(sorted(found)[0])


def others(op: str, n: int, batch: int, a: Any) -> Iterator[dict[str, Any]]:
    """torch's and JAX's QR of arrays, by the wall clock around many calls, which wait for nothing between."""
    if op != "geqrf":
        return
    for name, measure in (("torch.linalg.qr", _torch), ("torch.geqrf", _torch_raw), ("jax.lax.linalg.qr", _jax)):
        try:
            seconds = measure(a)
        except Exception as error:
            print(name, n, batch, repr(error)[:200], flush=True)
            continue
        yield {"math": "ieee", "library": name, "seconds": f"{seconds:.4g}"}


def _torch(a: Any) -> float:
    import torch

    given = torch.from_numpy(a).cuda()
    return _walled(lambda: torch.linalg.qr(given), torch.cuda.synchronize)


def _torch_raw(a: Any) -> float:
    import torch

    given = torch.from_numpy(a).cuda()
    return _walled(lambda: torch.geqrf(given), torch.cuda.synchronize)


def _jax(a: Any) -> float:
    import jax

    given, call = jax.device_put(a), jax.jit(jax.numpy.linalg.qr)
    return _walled(lambda: jax.block_until_ready(call(given)), lambda: None)


def _walled(call: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """The least of the seconds of some calls; one alone if it takes long."""
    call()
    wait()
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        call()
        wait()
        taken.append(time.perf_counter() - start)
        if taken[-1] > 1:
            break
    return min(taken)


def rows(backend: Any, dtype: str, deadline: float) -> Iterator[dict[str, Any]]:
    """A row for each case and way."""
    ceilings = backend.ceilings(dtype)
    for op, n, batch in CASES:
        for layout in LAYOUTS:
            if time.monotonic() > deadline:
                return
            buffers = Buffers(backend, op, n, batch, layout, dtype)
            ways = list(kernels(backend, op, n, layout, dtype, buffers))
            least = batch * compulsory_bytes(n, layout, dtype, 1, op) / ceilings.copy_bytes_per_second
            if op == "geqrf":
                ways += cublas(n, batch, layout, dtype, buffers)
            for way, seconds in zip(ways, in_turn(backend, ways), strict=True):
                middle = median(seconds)
                spread = (max(seconds) - min(seconds)) / middle
                way.call(0)
                yield {
                    "op": op, "n": n, "batch": batch, "layout": str(layout), "dtype": dtype, **way.row,
                    "seconds": f"{middle:.4g}", "spread": f"{spread:.3f}", "roofline": f"{least / middle:.3f}",
                    "ratio": f"{way.check():.3f}",
                }  # fmt: skip


def in_turn(backend: Any, ways: list[Timed]) -> list[tuple[float, ...]]:
    """Seconds of calls, all ways in turn."""
    taken = []
    for turn in range(WARM_UP + SAMPLES):
        first = [(turn * len(ways) + place) * CALLS for place in range(len(ways))]
        bursts = [
            [partial(way.call, start + number) for number in range(CALLS)]
            for way, start in zip(ways, first, strict=True)
        ]
        taken.append(backend.in_turn(bursts))
    return list(zip(*taken[WARM_UP:], strict=True))


def main() -> None:
    """Write the file, and print a line for the fastest of each case."""
    parser = argparse.ArgumentParser(prog="python -m tests.qr_times", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seconds", type=float, default=3600, help="after so many no case is begun")
    parser.add_argument("--compile", action="store_true", help="compile the kernels, and measure nothing")
    parser.add_argument("--others", action="store_true", help="torch and JAX alone")
    given = parser.parse_args()
    backend = get_backend("cuda")
    every = [
        KernelSpec(Problem(n, given.dtype, op=op, math=math), layout.kind, layout.order, schedule, "cuda")
        for op, n, _ in CASES
        for layout in LAYOUTS
        for math in ("ieee", "fast")
        for threads in THREADS
        for schedule in (ThreadSchedule(1, "right", "full", threads=threads, stride=layout.chunk),)
    ]
    start = time.perf_counter()
    outcomes = backend.build(every)
    print(f"{len(outcomes)} kernels compiled in {time.perf_counter() - start:.0f} s", flush=True)
    if given.compile:
        return
    said = {name: value for name, value in about(backend).items() if name in COLUMNS}
    with given.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        if given.others:
            for op, n, batch in CASES:
                a = np.random.default_rng(n).standard_normal((batch, n, n)).astype(given.dtype)
                for found in others(op, n, batch, a):
                    row = {"op": op, "n": n, "batch": batch, "layout": "canonical-row", "dtype": given.dtype, **found}
                    writer.writerow(said | row)
                    stream.flush()
                    print(row, flush=True)
            return
        best: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in rows(backend, given.dtype, time.monotonic() + given.seconds):
            writer.writerow(said | row)
            stream.flush()
            key = tuple(row[name] for name in ("op", "n", "batch", "layout", "math", "library"))
            if key not in best or float(row["seconds"]) < float(best[key]["seconds"]):
                best[key] = row
        for key, row in best.items():
            micro = 1e6 * float(row["seconds"])
            print(*key, f"{micro:.2f} us", f"threads {row.get('threads')}", row["roofline"], row["ratio"], flush=True)


if __name__ == "__main__":
    main()
