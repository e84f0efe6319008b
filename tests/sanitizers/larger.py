"""Larger matrices under compute-sanitizer: on chip, in one launch by several blocks, and tiles and rows below them.

On a machine with a GPU, from the root of the repository:

    compute-sanitizer --tool racecheck python -m tests.sanitizers.larger [--part 1/4]

racecheck sees shared memory alone: what blocks tell each other by words of global memory is for the results to show.
`python -m tests.sanitizers` runs them among all others.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from batchchol import get_backend
from batchchol.algorithms.device_calls import DeviceCalls
from batchchol.algorithms.large import factor_device
from batchchol.algorithms.level3 import Block
from batchchol.algorithms.on_chip import OnChip
from batchchol.algorithms.plans import Plan
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.device import device
from batchchol.operations.residual import RATIO_BOUND, ratios
from kernelgen.emit.panels.fused_panel import FusedPanel
from kernelgen.emit.panels.panel import Panel


@dataclass(frozen=True)
class Larger:
    """A batch, and the plan that factors it; the last of several matrices fails in its last column."""

    how: Plan
    n: int
    batch: int

    @property
    def name(self) -> str:
        """It in a few words."""
        panel = self.how.panel
        return f"{panel.dtype}, {panel.order}, n = {self.n}, batch {self.batch}: {self.how.name}"


def larger() -> Iterator[Larger]:
    """Every kernel in both types and orders; last tiles that are full, and that have a row."""
    for dtype, order, n, warps in (
        ("float32", "row", 129, 4),
        ("float32", "col", 150, 3),
        ("float32", "row", 160, 8),
        ("float64", "row", 129, 5),
        ("float64", "row", 131, 6),
        ("float64", "col", 136, 16),
    ):
        yield Larger(Plan(OnChip(dtype, order, warps, 1), None), n, 3)
    for dtype, order, n, axes, blocks in (
        ("float32", "row", 130, (64, 16, 16, 256, 2, "tensor", 4), 3),
        ("float32", "col", 97, (32, 8, 16, 64, 4, "tensor", 4), 2),
        ("float32", "row", 100, (32, 16, 8, 64, 1, "fma", 4), 1),
        ("float32", "row", 129, (64, 8, 8, 128, 4, "tensor", 4), 2),
        ("float32", "row", 200, (128, 16, 16, 256, 1, "tensor", 4), 2),
        ("float64", "row", 129, (64, 16, 32, 256, 1, "tensor", 16), 3),
        ("float64", "col", 96, (32, 16, 16, 128, 1, "tensor", 4), 2),
        ("float64", "row", 130, (64, 8, 16, 128, 2, "tensor", 8), 2),
        ("float64", "row", 131, (32, 8, 16, 128, 4, "tensor", 8), 3),
    ):
        yield Larger(Plan(FusedPanel(dtype, order, *axes), None, blocks), n, 2)
    for dtype, order, n, axes in (
        ("float32", "row", 129, (64, 8, 8, 128, 4, "tensor", 4)),
        ("float32", "col", 99, (32, 8, 16, 64, 4, "tensor", 4)),
        ("float64", "row", 200, (48, 8, 8, 96, 4, "tensor", 8)),
        ("float32", "row", 136, (64, 16, 16, 128, 4, "tensor", 4)),
        ("float64", "row", 145, (48, 8, 8, 96, 4, "tensor", 8)),
    ):
        yield Larger(Plan(FusedPanel(dtype, order, *axes), None, 2, border=True), n, 2)
    for dtype, order, n in (("float32", "row", 150), ("float64", "col", 113)):
        yield Larger(Plan(Panel(dtype, order, 160, threads=512), None), n, 2)


def solves_below() -> Iterator[Panel]:
    """Tiles with rows below them."""
    yield Panel("float32", "row", 64, rows=64, threads=128)
    yield Panel("float64", "col", 32, ib=8, rows=16, threads=64, row_threads=64)


def check_larger(case: Larger) -> None:
    """Factor a batch, and check its factors and info."""
    how, n = case.how, case.n
    upper = how.panel.order == "col"
    a = spd(case.batch, n, how.panel.dtype)
    given = a.copy()
    given[1:, n - 1, n - 1] = -1
    there = memory.to_device(given, "matrices")
    l, info = factor_device(memory.view(there), upper, how)
    found, status = memory.to_host(l), memory.to_host(info)
    assert status.tolist() == [0] + [n] * (case.batch - 1), f"{case.name}: info {status}"
    lower = np.ascontiguousarray(found.swapaxes(1, 2) if upper else found)
    assert ratios(a[:1], lower[:1]).max() <= RATIO_BOUND["ieee"], f"{case.name}: the factor is wrong"
    assert not np.triu(lower, 1).any(), f"{case.name}: the other triangle is not zero"


def check_solve_below(panel: Panel) -> None:
    """Factor tiles, solve for the rows below them, and check the products."""
    nb, batch = panel.nb, 2
    n = nb + panel.rows + 5
    a = spd(batch, n, panel.dtype)
    there = memory.to_device(a, "matrices")
    info = memory.to_device(np.full(batch, -1, np.int32), "the info")
    calls = DeviceCalls(device(), panel, int(there.gpudata), int(info.gpudata), n, batch)
    calls.potrf(Block.diagonal(0, nb))
    calls.trsm(Block.diagonal(0, nb), Block(nb, 0, n - nb, nb))
    found = memory.to_host(there).astype(np.float64)
    assert not memory.to_host(info).any(), f"{panel}: info"
    lower = found.swapaxes(1, 2) if panel.order == "col" else found
    l, x = np.tril(lower[:, :nb, :nb]), lower[:, nb:, :nb]
    scale = (n + 1) * np.finfo(panel.dtype).eps * (abs(x) @ abs(l).swapaxes(1, 2))
    assert (abs(x @ l.swapaxes(1, 2) - a[:, nb:, :nb]) <= scale).all(), f"{panel}: the rows below are wrong"


def spd(batch: int, n: int, dtype: str) -> np.ndarray:
    """Wishart matrices."""
    normal = np.random.default_rng((batch, n)).standard_normal((batch, n, 2 * n))
    made: np.ndarray = (normal @ normal.swapaxes(1, 2) / (2 * n)).astype(dtype)
    return made


def run_larger(part: int = 1, parts: int = 1) -> int:
    """Every `parts`-th check from number `part` on; how many these are."""
    checks = [*(partial(check_larger, case) for case in larger())]
    checks += [*(partial(check_solve_below, panel) for panel in solves_below())]
    chosen = checks[part - 1 :: parts]
    for check in chosen:
        print(*check.args, flush=True)
        check()
    return len(chosen)


def by_parts(run: Callable[[int, int], int], about: str | None, arguments: Sequence[str] | None = None) -> None:
    """A program that runs checks, all of them or a part, and says how many these were."""
    from .__main__ import allocate_exactly, part

    parser = argparse.ArgumentParser(description=(about or "").split("\n")[0])
    parser.add_argument("--part", type=part, default=(1, 1), help="2/3: the second of three parts")
    options = parser.parse_args(arguments)
    get_backend("cuda")
    allocate_exactly()
    print(f"{run(*options.part)} kernels")


if __name__ == "__main__":
    by_parts(run_larger, __doc__)
