"""QR factorizations on a GPU, checked: kernels of every choice on a million matrices, and the public calls.

python -m tests.times.general.qr_gpu_checks [--seconds 90] [--processes 16]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from batchchol import get_backend, lstsq, lstsq_ex, ormqr, qr
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.batches.batch import DeviceBatch
from batchchol.defaults.lookup import default_choice
from batchchol.defaults.request import Request
from batchchol.operations.qr import BOUND, factor_ratios, orthogonal, orthogonality_ratios, solve_ratios
from kernelgen import KernelSpec, Layout, Problem

from ...qr_runs import KINDS, matrices

SHAPES = (
    (40, 3, 3),
    (2, 20, 6, 4),
    (33, 3, 5),
    (7, 9, 2),
    (9, 40, 17),
    (5, 20, 33),
    (3, 128, 100),
    (70, 100, 3),
    (3, 150, 140),
    (2, 90, 200),
)
LAYOUTS = (Layout.chunked(32), Layout.canonical())
OPS = ("geqrf", "orgqr", "ormqr", "gels")
CASES = (("float32", (3, 8, 14, 16, 24, 33, 48, 64, 100, 128)), ("float64", (5, 10, 14, 20, 33, 65, 128)))


def spec_of(op: str, n: int, dtype: str, math: str, layout: Layout) -> KernelSpec:
    """The default kernel of an operation, for the chunks of the layout alone."""
    request = Request(Problem(n, dtype, op=op, math=math), "cuda", layout.kind, layout.order, layout.chunk)
    return default_choice(request).spec


def check_kernels(
    backend: Any, n: int, dtype: str, math: str, layout: Layout, count: int, seed: int = 0
) -> dict[str, float]:
    """The largest ratios of `count` matrices of each kind."""
    names = ("factors", "orthogonality", "q", "products", "solutions")
    random, worst = np.random.default_rng((n, seed)), dict.fromkeys(names, 0.0)
    geqrf, orgqr, ormqr, gels = (backend.kernel(spec_of(op, n, dtype, math, layout)) for op in OPS)
    for kind in KINDS:
        a = matrices(kind, random, count, n, n).astype(dtype)
        batch = backend.from_dense(a, layout)
        factors, q = batch.like(), batch.like()
        tau = backend.place(np.full((count, n), np.nan, dtype))
        geqrf(batch, factors, tau, threads=1)
        orgqr(factors, tau, q, threads=1)
        made, scalars = backend.host(factors.to_dense()), backend.host(tau)
        exact = orthogonal(made, scalars)
        worst["factors"] = max(worst["factors"], factor_ratios(a, made, scalars).max())
        worst["orthogonality"] = max(worst["orthogonality"], orthogonality_ratios(exact, dtype).max())
        b = random.standard_normal((count, n, 2)).astype(dtype)
        x = backend.place(np.full((count, n, 2), np.nan, dtype))
        ormqr(factors, tau, backend.place(b), x, threads=1)
        error = np.linalg.norm(backend.host(x) - exact.swapaxes(-1, -2) @ b, axis=-2) / np.linalg.norm(b, axis=-2)
        worst["products"] = max(worst["products"], error.max() / ((2 * n + 4) * float(np.finfo(dtype).eps) / 2))
        worst["q"] = max(worst["q"], orthogonality_ratios(backend.host(q.to_dense()), dtype).max())
        if KINDS.index(kind) < 3:
            b = backend.place(random.standard_normal((count, n, 2)).astype(dtype))
            x, info = backend.place(np.full((count, n, 2), np.nan, dtype)), backend.info(batch, gels.spec)
            gels(batch, b, x, info, threads=1)
            # Rounding makes zeros of elements of R where rows are graded: LAPACK has as many.
            good = backend.host(info)[:count] == 0
            assert good.all() or kind == "graded rows"
            ratios = solve_ratios(a[good], backend.host(b)[good], backend.host(x)[good])
            worst["solutions"] = max(worst["solutions"], ratios.max())
    return {name: float(value) for name, value in worst.items()}


def check_calls(dtype: str, shapes: Sequence[tuple[int, ...]] = SHAPES, order: int = 6) -> None:
    """`qr` and `lstsq` of arrays and batches of the GPU, against NumPy's."""
    random, near = np.random.default_rng(5), 1e4 * float(np.finfo(dtype).eps)
    for shape in shapes:
        a = random.standard_normal(shape).astype(dtype)
        there = memory.to_device(a, "matrices")
        for mode in ("reduced", "complete"):
            for positive in (False, True):
                q, r = map(memory.to_host, qr(there, mode, positive=positive))
                expected = np.linalg.qr(a.astype(float), mode)
                assert (q.shape, r.shape) == (expected.Q.shape, expected.R.shape)
                assert np.abs(q @ r - a).max() < near
                diagonal = np.diagonal(r, axis1=-2, axis2=-1)
                signs = np.sign(np.diagonal(expected.R, axis1=-2, axis2=-1))
                assert (diagonal >= 0).all() if positive else (np.sign(diagonal) == signs).all()
                assert np.abs(np.tril(r, -1)).max() == 0
                assert np.abs(q.swapaxes(-1, -2) @ q - np.eye(q.shape[-1])).max() < near
        assert np.array_equal(memory.to_host(qr(there, "r")), memory.to_host(qr(there).R))
        assert np.array_equal(qr(a, "r", backend="cuda"), memory.to_host(qr(there, "r")))
        b = random.standard_normal((*shape[:-1], 3)).astype(dtype)
        products = np.linalg.qr(a.astype(float), "complete").Q.swapaxes(-1, -2) @ b
        factors = qr(there, "raw")
        assert np.abs(memory.to_host(ormqr(factors, memory.to_device(b, "b"))) - products).max() < near
        factors = tuple(map(memory.to_host, factors))
        assert np.abs(ormqr(factors, b[..., 0], backend="cuda") - products[..., 0]).max() < near
        if shape[-2] >= shape[-1]:
            b = random.standard_normal((*shape[:-1], 3)).astype(dtype)
            x = memory.to_host(lstsq(there, memory.to_device(b, "right-hand sides")))
            assert solve_ratios(*(each.reshape(-1, *each.shape[-2:]) for each in (a, b, x))).max() <= BOUND["ieee"]
            assert np.abs(lstsq(a, b[..., 0], backend="cuda") - x[..., 0]).max() < near
    a = random.standard_normal((50, order, order)).astype(dtype)
    for layout in LAYOUTS:
        q, r = qr(DeviceBatch.from_dense(a, layout))
        q, r = (memory.to_host(each.to_dense()) for each in (q, r))
        assert np.abs(q @ r - a).max() < near
        upper = qr(DeviceBatch.from_dense(a, layout), "r", positive=True)
        assert np.array_equal(memory.to_host(upper.to_dense()), qr(a, "r", positive=True, backend="cuda"))
        b = memory.to_device(a[..., :2].copy(), "b")
        x = memory.to_host(lstsq(DeviceBatch.from_dense(a, layout), b))
        assert np.abs(x - np.eye(order)[:, :2]).max() < 100 * near
    a[7, :, 2] = 0
    assert memory.to_host(lstsq_ex(memory.to_device(a, "a"), memory.to_device(a[..., 0].copy(), "b")).info)[7] == 3
    nothing = (memory.to_device(np.empty((4, 3, each), dtype), "nothing") for each in (0, 2))
    assert not memory.to_host(lstsq_ex(*nothing).info).any()


def chosen_cases() -> list[tuple[int, str, str, Layout]]:
    """Orders, types, promises and layouts."""
    return [
        (n, dtype, math, layout)
        for layout in LAYOUTS[::-1]
        for dtype, orders in CASES
        for n in orders
        for math in ("ieee", "fast")
        if (n <= 16 or layout.kind == "canonical") and (n <= 8 or (n % 4 > 0) == (math == "fast"))
    ]


def fuzz(backend: Any, seed: int, end: float) -> tuple[int, list[Any]]:
    """How many matrices were checked until the end, and what is over its bound: rounds of all cases."""
    rounds, total = chosen_cases(), 0
    failed: list[Any] = []
    turn = seed * len(rounds) // 16
    while time.monotonic() < end:
        n, dtype, math, layout = rounds[turn % len(rounds)]
        count = 8_000 if n <= 3 else 1_500 if n <= 14 else 500_000 // n**3 + 20
        found = check_kernels(backend, n, dtype, math, layout, count, seed=seed + 1000 * turn)
        total, turn = total + count * len(KINDS), turn + 1
        shown = {name: round(value, 2) for name, value in found.items()}
        print(f"{total:,}", n, dtype, math, layout, shown, flush=True)
        if max(found.values()) > BOUND[math]:
            failed.append((n, dtype, math, str(layout), found))
    return total, failed


def spread(processes: int, seconds: float) -> int:
    """Fuzz in processes with matrices of their own, for checks on the host take longest: 0 if all is right."""
    command = (sys.executable, "-m", "tests.times.general.qr_gpu_checks", "--seconds", str(seconds), "--seed")
    one = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    running = [
        subprocess.Popen((*command, str(seed)), env=one, stdout=subprocess.PIPE, text=True)
        for seed in range(1, processes + 1)
    ]
    said = [(each.communicate()[0], each.returncode) for each in running]
    totals = [int(text.splitlines()[-1].split()[0].replace(",", "")) for text, status in said if text and not status]
    wrong = [text.splitlines()[-1:] for text, status in said if status]
    print(f"{sum(totals):,} matrices by {len(totals)} of {processes} processes; failures: {wrong}")
    return int(bool(wrong))


def main() -> None:
    """Print the largest ratios, and fail where one is over its bound."""
    parser = argparse.ArgumentParser(prog="python -m tests.times.general.qr_gpu_checks")
    parser.add_argument("--seconds", type=float, default=90, help="of the checks of kernels")
    parser.add_argument("--seed", type=int, help="check kernels alone, on these matrices")
    parser.add_argument("--processes", type=int, default=1, help="that check kernels, and no public calls")
    parser.add_argument("--compile", action="store_true", help="compile, and check nothing")
    given = parser.parse_args()
    backend = get_backend("cuda")
    if given.seed is None:
        backend.build([spec_of(op, *case) for case in chosen_cases() for op in OPS])
    if given.compile:
        return
    if given.seed is None and given.processes == 1:
        for dtype in ("float32", "float64"):
            check_calls(dtype)
        print("calls are right", flush=True)
    if given.processes > 1:
        raise SystemExit(spread(given.processes, given.seconds))
    total, failed = fuzz(backend, given.seed or 0, time.monotonic() + given.seconds)
    print(f"{total:,} matrices; failures: {failed}")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
