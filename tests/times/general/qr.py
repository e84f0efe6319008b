"""What QR factorizations take: this library's kernels or calls, beside other libraries' batched ones.

    python -m tests.times.general.qr
    python -m tests.times.general.qr --backend cuda [--others]

from the root of the repository write datasets/general/qr_xeon.csv and datasets/general/qr_h200.csv (--out FILE for
another). On a GPU all kernels of a case and cuBLAS's are called in turn, on cold data; seconds a call, medians;
results are checked. `copy` is the share of the time that the compulsory bytes would take at the rate of the machine's
best copy. PyTorch and JAX (--others) are called by themselves, and waited for. On a CPU the public calls on arrays
and NumPy's take turns, `solve` of general matrices too, with two threads and one: medians.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from batchchol import get_backend, qr, solve
from batchchol.backends.cuda import memory
from batchchol.defaults.lookup import default_choice
from batchchol.defaults.request import Request
from batchchol.measure.provenance import about
from batchchol.operations import qr as checks
from batchchol.operations.roofline import compulsory_bytes
from kernelgen import Layout, Problem

COLUMNS = (
    *("op", "n", "batch", "layout", "dtype", "math", "library", "threads", "seconds", "spread", "copy"),
    *("ratio", "gpu", "driver", "toolkit", "cpu", "compiler", "version", "commit", "date"),
)
CASES = (
    *(("geqrf", 3, 270_000), ("geqrf", 8, 1_048_576), ("geqrf", 4, 1_048_576), ("geqrf", 6, 1_048_576)),
    *(("geqrf", 32, 32_768), ("geqrf", 16, 65_536), ("geqrf", 64, 8_192), ("geqrf", 128, 2_048)),
    *(
        ("geqrf", 12, 262_144),
        ("geqrf", 14, 262_144),
        ("geqrf", 24, 32_768),
        ("geqrf", 48, 16_384),
        ("geqrf", 96, 4_096),
    ),
    *(("gels", 3, 270_000), ("gels", 8, 131_072), ("gels", 16, 65_536), ("gels", 32, 32_768), ("gels", 64, 8_192)),
    *(("orgqr", 3, 270_000), ("orgqr", 8, 1_048_576), ("orgqr", 32, 32_768), ("orgqr", 64, 8_192)),
    ("orgqr", 16, 65_536),
    *(("geqrf", 10, 262_144), ("gels", 4, 131_072), ("gels", 12, 131_072)),
)
LAYOUTS = (Layout.chunked(32), Layout.canonical())
# Above, arrays alone, and up to here many calls at a time.
PACKED_N, TINY_N = 32, 15
SAMPLES, WARM_UP = 15, 2
HOST_BATCH, HOST_THREADS, HOST_SAMPLES = 16_384, 2, 41
HOST_ORDERS = (3, 4, 6, 8, 10, 12, 14, 16)
DATASETS = Path(__file__).parents[3] / "datasets"
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
        spec = default_of(op, n, layout, dtype, math)
        row = {"math": math, "library": "batchchol", "threads": spec.schedule.threads}
        call = partial(_call, backend.kernel(spec), buffers)
        yield Timed(row, call, partial(_checked, backend, op, buffers))


def default_of(op: str, n: int, layout: Layout, dtype: str, math: str) -> Any:
    """The kernel that the library chooses."""
    problem = Problem(n, dtype, op=op, math=math)
    return default_choice(Request(problem, "cuda", arch="sm_90").on(layout)).spec


def cases() -> Iterator[tuple[str, int, int, Layout]]:
    """Operations, orders, batches and layouts."""
    for op, n, batch in CASES:
        for layout in LAYOUTS if n <= PACKED_N else LAYOUTS[1:]:
            yield op, n, batch, layout


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
    """cuBLAS's geqrfBatched, in place, on copies and arrays of pointers made ahead: factors are factored again."""
    if layout.kind != "canonical" or dtype != "float32":
        return
    library = _cublas()
    handle = ctypes.c_void_p()
    library.cublasCreate_v2(ctypes.byref(handle))
    info, each = ctypes.c_int(), n * n * 4
    tables, copies = [], [a.copy() for a, *_ in buffers.sets]
    for a, (_, _, tau) in zip(copies, buffers.sets, strict=True):
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


def others(a: Any) -> Iterator[dict[str, Any]]:
    """torch's and JAX's factorizations of arrays by the wall clock: R and Q; torch's geqrf."""
    ways: tuple[tuple[str, Callable[[Any], float], Any], ...] = (
        ("torch.linalg.qr", partial(_torch, "linalg.qr"), a),
        ("torch.geqrf", partial(_torch, "geqrf"), a),
        ("jax.numpy.linalg.qr", _jax, a),
    )
    for name, measure, given in ways:
        try:
            seconds = measure(given)
        except Exception as error:
            print(name, len(given), repr(error)[:200], flush=True)
            continue
        yield {"batch": len(given), "math": "ieee", "library": name, "seconds": f"{seconds:.4g}"}


def _torch(name: str, a: Any) -> float:
    import torch

    given, function = torch.from_numpy(a).cuda(), attrgetter(name)(torch)
    function(given[:64])
    return _walled(lambda: function(given), torch.cuda.synchronize)


def _jax(a: Any) -> float:
    import jax

    given, call = jax.device_put(a), jax.jit(jax.numpy.linalg.qr)
    jax.block_until_ready(call(given))
    return _walled(lambda: jax.block_until_ready(call(given)), lambda: None)


def _walled(call: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """The least of the seconds of some calls; of one alone if it takes long."""
    taken: list[float] = []
    wait()
    while len(taken) < 5 and sum(taken) < 1:
        start = time.perf_counter()
        call()
        wait()
        taken.append(time.perf_counter() - start)
    return min(taken)


def host_ways(n: int) -> Iterator[tuple[str, dict[str, Callable[[], Any]]]]:
    """Operations, and the public calls and NumPy's that do them, on arrays of the host."""
    random = np.random.default_rng(n)
    a, b = (random.standard_normal((HOST_BATCH, n, each)).astype("float32") for each in (n, 1))
    for mode in ("raw", "reduced"):
        ours, numpys = partial(qr, a, mode, threads=HOST_THREADS), partial(np.linalg.qr, a, mode)
        yield "geqrf", {f"batchchol.qr, {mode}": ours, f"numpy.linalg.qr, {mode}": numpys}
    ours = partial(solve, a, b, assume_a="gen", threads=HOST_THREADS)
    yield "gesv", {"batchchol.solve": ours, "numpy.linalg.solve": partial(np.linalg.solve, a, b)}


def calls_of_host() -> Iterator[dict[str, Any]]:
    """Of the public calls and NumPy's in turn."""
    for n in HOST_ORDERS:
        for op, ways in host_ways(n):
            taken: dict[str, list[float]] = {name: [] for name in ways}
            for turn in range(WARM_UP + HOST_SAMPLES):
                for name, call in ways.items():
                    start = time.perf_counter()
                    call()
                    if turn >= WARM_UP:
                        taken[name].append(time.perf_counter() - start)
            for name, seconds in taken.items():
                middle = median(seconds)
                yield {
                    "op": op, "n": n, "batch": HOST_BATCH, "layout": "canonical-row", "dtype": "float32",
                    "math": "ieee", "library": name, "threads": HOST_THREADS if "batchchol" in name else 1,
                    "seconds": f"{middle:.4g}", "spread": f"{(max(seconds) - min(seconds)) / middle:.3f}",
                }  # fmt: skip


def rows(backend: Any, dtype: str, deadline: float) -> Iterator[dict[str, Any]]:
    """A row for each case and way."""
    ceilings = backend.ceilings(dtype)
    for op, n, batch, layout in cases():
        if time.monotonic() > deadline:
            return
        buffers = Buffers(backend, op, n, batch, layout, dtype)
        ways = list(kernels(backend, op, n, layout, dtype, buffers))
        least = batch * compulsory_bytes(n, layout, dtype, 1, op) / ceilings.copy_bytes_per_second
        if op == "geqrf":
            ways += cublas(n, batch, layout, dtype, buffers)
        for way, seconds in zip(ways, in_turn(backend, ways, 10 if n <= TINY_N else 3), strict=True):
            middle = median(seconds)
            spread = (max(seconds) - min(seconds)) / middle
            way.call(0)
            yield {
                "op": op, "n": n, "batch": batch, "layout": str(layout), "dtype": dtype, **way.row,
                "seconds": f"{middle:.4g}", "spread": f"{spread:.3f}",
                "copy": "" if op == "orgqr" else f"{least / middle:.3f}",
                "ratio": f"{way.check():.3f}",
            }  # fmt: skip


def in_turn(backend: Any, ways: list[Timed], calls: int) -> list[tuple[float, ...]]:
    """Seconds of calls, those of each way in turn."""
    taken = []
    for turn in range(WARM_UP + SAMPLES):
        first = [(turn * len(ways) + place) * calls for place in range(len(ways))]
        bursts = [
            [partial(way.call, start + number) for number in range(calls)]
            for way, start in zip(ways, first, strict=True)
        ]
        taken.append(backend.in_turn(bursts))
    return list(zip(*taken[WARM_UP:], strict=True))


def specs(dtype: str) -> list[Any]:
    """The kernels that are timed on a GPU."""
    return [default_of(op, n, layout, dtype, math) for op, n, _, layout in cases() for math in ("ieee", "fast")]


def of_others(dtype: str) -> Iterator[dict[str, Any]]:
    """Rows of PyTorch and JAX; of the smallest matrices alone, which take seconds."""
    for op, n, batch in CASES[:1]:
        a = np.random.default_rng(n).standard_normal((batch, n, n)).astype(dtype)
        for found in others(a):
            yield {"op": op, "n": n, "layout": "canonical-row", "dtype": dtype, **found}


def main() -> None:
    """Write the file, and print its rows."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.times.general.qr", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--dtype", default="float32", help="of a GPU's")
    parser.add_argument("--seconds", type=float, default=3600, help="begin no case after this time")
    parser.add_argument("--compile", action="store_true", help="compile a GPU's kernels, and measure nothing")
    parser.add_argument("--others", action="store_true", help="PyTorch and JAX alone")
    given = parser.parse_args()
    backend, deadline = get_backend(given.backend), time.monotonic() + given.seconds
    if given.backend == "cuda" and not given.others:
        backend.build(list(specs(given.dtype)))
    if given.compile:
        return
    found = calls_of_host() if given.backend == "cpu" else rows(backend, given.dtype, deadline)
    found = of_others(given.dtype) if given.others else found
    said = {name: value for name, value in about(backend).items() if name in COLUMNS}
    out = given.out or DATASETS / "general" / {"cpu": "qr_xeon.csv", "cuda": "qr_h200.csv"}[given.backend]
    with out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in found:
            writer.writerow(said | row)
            stream.flush()
            micro = 1e6 * float(row["seconds"])
            print(
                *(row[name] for name in ("op", "n", "batch", "layout", "math", "library")), f"{micro:.2f} us", end=" "
            )
            print(row.get("copy", ""), row.get("ratio", ""), flush=True)


if __name__ == "__main__":
    main()
