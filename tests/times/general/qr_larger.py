"""What QR factorizations of matrices larger than 128 take on a GPU, step by step, beside cuBLAS's batched one.

    python -m tests.times.general.qr_larger [--seconds 60] [--out FILE]

from the root of the repository writes datasets/general/qr_larger_h200.csv, the steps of figure 1 of Haidar, Dong,
Luszczek, Tomov and Dongarra (2015): reflectors one by one, panels of 4 to 32 columns whose reflectors are multiplied
by together, the widest panels alone, `geqrfBatched`, and LAPACK on all cores of the CPU, of some of the matrices;
medians of seconds without the copy that each begins with, and GFLOP/s of 4/3 n^3.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from batchchol import get_backend
from batchchol.algorithms.reflections import QrCalls, Rectangles, factor
from batchchol.backends import lapack_qr
from batchchol.backends.cuda import memory, support
from batchchol.backends.cuda.device import device
from batchchol.measure.provenance import about
from batchchol.operations.qr import OWN
from kernelgen.emit.panels import lu_panel

from .qr import DATASETS, _cublas

CASES = (
    *((256, 1_000), (512, 300), (1_024, 64), (160, 2_000), (384, 500), (192, 1_500), (768, 128), (2_048, 16)),
    *((320, 700), (640, 200)),
)
COLUMNS = (
    *("n", "batch", "dtype", "way", "seconds", "spread", "gflops", "ratio"),
    *("gpu", "driver", "toolkit", "version", "commit", "date"),
)
SAMPLES = 5
# Matrices that LAPACK factors, a few for each core.
ON_CPU = 64
ONE_BY_ONE, NARROWEST = "reflectors one by one", 4


class OneByOne(QrCalls):
    """Each reflector is applied to all that is right of it, by products of vectors among zeros."""

    def panels(self) -> Iterator[tuple[int, int]]:
        """Columns."""
        return ((at, 1) for at in range(self.reflectors))


class Arrays:
    """Matrices, room for factors and tau, and what factors them there."""

    def __init__(self, n: int, batch: int, dtype: str) -> None:
        self.n, self.batch, self.dtype = n, batch, dtype
        distinct = np.random.default_rng(n).standard_normal((min(batch, 32), n, n)).astype(dtype)
        self.a = np.resize(distinct, (batch, n, n))
        self.given, self.factors = (memory.to_device(self.a, "matrices") for _ in range(2))
        self.tau = memory.to_device(np.zeros((batch, n), dtype), "scalars of reflectors")
        self.kept: list[Any] = []

    def copy(self) -> None:
        """The matrices once more, to be factored."""
        given, factors = int(self.given.gpudata), int(self.factors.gpudata)
        support.copy(device(), given, factors, self.a.nbytes)

    def calls(self, nb: int, kind: type[QrCalls] = QrCalls) -> QrCalls:
        """Panels of nb columns, with a workspace."""
        where = Rectangles(int(self.factors.gpudata), self.n, self.n)
        given = device(), self.dtype, where, self.batch, int(self.tau.gpudata), self.n
        scalars = self.batch * QrCalls(*given, nb=nb).scalars
        self.kept.append(memory.empty((scalars,), np.dtype(self.dtype), "a workspace"))
        return kind(*given, int(self.kept[-1].gpudata), nb=nb)

    def ways(self) -> dict[str, Callable[[], None]]:
        """Each factors from a copy, but "copy", which is one."""
        widest = lu_panel.widest(self.dtype, self.n)
        found = {ONE_BY_ONE: partial(self._by_panels, self.calls(NARROWEST, OneByOne))}
        for nb in (4, 8, 16, 32):
            if nb <= widest:
                found[f"panels of {nb}"] = partial(self._by_panels, self.calls(nb))
        found["panels alone"] = partial(self._panels_alone, self.calls(widest))
        return found | {"geqrfBatched": self._by_cublas(), "copy": self.copy}

    def _by_panels(self, calls: QrCalls) -> None:
        self.copy()
        factor(calls)

    def _panels_alone(self, calls: QrCalls) -> None:
        self.copy()
        for at, width in calls.panels():
            calls.panel(at, width)

    def _by_cublas(self) -> Callable[[], None]:
        library, handle, info = _cublas(), ctypes.c_void_p(), ctypes.c_int()
        library.cublasCreate_v2(ctypes.byref(handle))
        routine = getattr(library, f"cublas{'S' if self.dtype == 'float32' else 'D'}geqrfBatched")
        tables = []
        for array in (self.factors, self.tau):
            places = int(array.gpudata) + array.nbytes // self.batch * np.arange(self.batch, dtype=np.int64)
            tables.append(memory.to_device(places, "addresses"))
        self.kept += tables
        matrices, scalars = (ctypes.c_void_p(int(each.gpudata)) for each in tables)

        def call() -> None:
            self.copy()
            status = routine(handle, self.n, self.n, matrices, self.n, scalars, ctypes.byref(info), self.batch)
            assert not status, status

        return call

    def on_cpu(self, threads: int) -> float:
        """Seconds of LAPACK's geqrf of as many matrices, by those of some, the best of two."""
        some = self.a[: min(self.batch, ON_CPU)]
        made, tau = np.empty_like(some), np.empty(some.shape[:2], self.dtype)
        parts = np.array_split(np.arange(len(some)), min(threads, len(some)))
        slices = [slice(part[0], part[-1] + 1) for part in parts]
        best = inf
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(2):
                start = time.perf_counter()
                list(pool.map(lambda part: lapack_qr.geqrf(some[part], made[part], tau[part]), slices))
                best = min(best, time.perf_counter() - start)
        return best * self.batch / len(some)

    def ratio(self) -> float:
        """The largest of some of the factors, as `factor_ratios` has it, with Q by LAPACK."""
        chosen = np.linspace(0, self.batch - 1, 3 if self.n <= 512 else 1).astype(int)
        made, tau = (memory.to_host(each)[chosen].astype(float) for each in (self.factors, self.tau))
        a, q = self.a[chosen].astype(float), np.empty_like(made)
        lapack_qr.orgqr(made, tau, q)
        allowed = (2 * self.n + OWN) * float(np.finfo(self.dtype).eps) / 2 * np.linalg.norm(a, axis=-2)
        return float((np.linalg.norm(a - q @ np.triu(made), axis=-2) / allowed).max())


def rows(backend: Any, dtype: str, deadline: float) -> Iterator[dict[str, Any]]:
    """A row for each case and way."""
    for n, batch in CASES:
        if time.monotonic() > deadline:
            return
        arrays = Arrays(n, batch, dtype)
        ways = arrays.ways()
        turns = [backend.in_turn([[call] for call in ways.values()]) for _ in range(1 + SAMPLES)]
        taken = dict(zip(ways, zip(*turns[1:], strict=True), strict=True))
        copying = median(taken.pop("copy"))
        for way, seconds in taken.items():
            ways[way]()
            middle = median(seconds) - copying
            checked = way.startswith("panels of") or way == ONE_BY_ONE
            yield _row(arrays, way, middle) | {
                "spread": f"{(max(seconds) - min(seconds)) / middle:.3f}",
                "ratio": f"{arrays.ratio():.3f}" if checked else "",
            }
        yield _row(arrays, "LAPACK", arrays.on_cpu(get_backend("cpu").threads))


def _row(arrays: Arrays, way: str, seconds: float) -> dict[str, Any]:
    n, batch = arrays.n, arrays.batch
    rate = 4 / 3 * n**3 * batch / seconds / 1e9
    named = {"n": n, "batch": batch, "dtype": arrays.dtype, "way": way}
    return named | {"seconds": f"{seconds:.4g}", "gflops": f"{rate:.1f}"}


def main() -> None:
    """Write the file, and print its rows."""
    parser = argparse.ArgumentParser(prog="python -m tests.times.general.qr_larger")
    parser.add_argument("--seconds", type=float, default=60, help="begin no case after this time")
    parser.add_argument("--out", type=Path, default=DATASETS / "general" / "qr_larger_h200.csv")
    given, start, backend = parser.parse_args(), time.monotonic(), get_backend("cuda")
    said = {name: value for name, value in about(backend).items() if name in COLUMNS}
    with given.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for share, dtype in ((0.6, "float32"), (1, "float64")):
            for row in rows(backend, dtype, start + share * given.seconds):
                writer.writerow(said | row)
                stream.flush()
                print(row["dtype"], row["n"], row["way"], row["gflops"], row.get("ratio", ""), flush=True)


if __name__ == "__main__":
    main()
