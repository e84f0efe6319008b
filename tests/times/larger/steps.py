"""What bounds the factorization of one large matrix on a GPU, step by step, and what goes on meanwhile.

    python -m tests.times.larger.steps

from the root of the repository writes datasets/larger/larger_steps_h200.csv (--out FILE for another). Of a
factorization by panels of `nb` columns, `part` update has how fast cuBLAS updates at the step that begins at column
`at`: left looking by gemm, right looking by syrk. `part` bound has what a factorization could reach whose panels were
as fast as that, `part` whole what ours and cuSOLVER's reach, and its share of the better bound. `part` phase has the
seconds of our kernels' blocks of threads by what they do, and, as phase "bare", those of the whole time, and its
share, in which no block updates: what is not hidden. Panels that are factored ahead are timed without the update
beside them: that hides as much of them as it lasts itself. As phase "chain" it has the seconds of n columns of a tile
that one block factors, with no wait for others and no update between tiles, and their share of the whole time. `part`
panels has one float64 matrix of 8,192 by panels of `nb` columns, in launches of `at` columns, whose steps `phase`
has: seconds of a call, and the share that no update hides.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from batchchol import get_backend
from batchchol.algorithms import blocked
from batchchol.algorithms.blocked import Blocking
from batchchol.algorithms.device_calls import DeviceCalls
from batchchol.algorithms.large import blocks_to_a_matrix, factor_at
from batchchol.algorithms.level3 import Block
from batchchol.algorithms.plans import Plan, plan
from batchchol.backends.cuda.device import device
from batchchol.measure.provenance import about
from kernelgen.emit.panels.fused_panel import FusedPanel
from kernelgen.emit.panels.panel import Panel

from .ways import ABOUT, DATASETS, DTYPES, cusolver, matrices, median, seconds_of

_OWN = ("part", "dtype", "n", "batch", "nb", "looking", "at", "who", "phase", "seconds", "gflops", "share")
COLUMNS = (*_OWN, *ABOUT)
# Those of Haidar, Abdelfattah, Tomov and Dongarra (2017).
N, NB = 20_480, 512
# Columns of a launch and of a panel, and the looking, with look-ahead if it is right.
CUTS = (
    *((width, columns, "right") for width, columns in ((1024, 2048), (2048, 2048), (1024, 1024), (512, 1024))),
    *((width, columns, "right") for width, columns in ((512, 512), (512, 2048), (2048, 4096), (1024, 3072))),
    *((width, columns, "left") for width, columns in ((1024, 2048), (512, 2048), (2048, 2048), (1024, 1024))),
)
# Columns of a tile that are factored, and by which tiles are updated, at a time.
STEPS = ((16, 32), (8, 32), (16, 16), (8, 16))
ONE = (512, 1024, 2048, 4096, 8192, 16_384)
PHASES = ("load", "wait", "update", "wait for the factor", "solve", "store and factor")
# 64-bit words of a tile's times, as the kernel has them.
_WORDS = 9
Done = tuple[NDArray[np.uint64] | float | None, bool]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.times.larger.steps", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--out", type=Path, default=DATASETS / "larger" / "larger_steps_h200.csv", help="default: %(default)s"
    )
    parser.add_argument("--only", choices=("phases", "panels"), help="only what our kernels do, or other panels")
    arguments = parser.parse_args()
    origin = about(get_backend("cuda"))
    with open(arguments.out, "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows(arguments.only):
            writer.writerow({"batch": 1, **{name: origin.get(name, "") for name in ABOUT}, **row})
            stream.flush()
            print(*row.values(), flush=True)


def rows(only: str | None = None) -> Iterator[dict[str, Any]]:
    """All of them; what one case needs is given back before the next."""
    pool = import_module("cupy").get_default_memory_pool()
    if only == "panels":
        yield from panels(8192, "float64")
        return
    for dtype in DTYPES:
        if only is None:
            yield from steps(dtype)
            pool.free_all_blocks()
            if dtype == "float64":
                yield from panels(8192, dtype)
        column = column_seconds(dtype)
        for n in ONE:
            yield from phases(n, dtype, column)
            pool.free_all_blocks()


def steps(dtype: str) -> Iterator[dict[str, Any]]:
    """The update of each step in both orders, the bounds that follow, and whole factorizations."""
    cupy = import_module("cupy")

    a = matrices(N, 1, dtype)
    work, info = a.copy(), cupy.empty(1, np.int32)
    calls = DeviceCalls(device(), Panel(dtype, "row", 128), work.data.ptr, info.data.ptr, N, 1)
    named = {"dtype": dtype, "n": N, "nb": NB, "who": "cublas"}
    bounds = dict.fromkeys(blocked.LOOKINGS, 0.0)
    for looking in bounds:
        for at in range(NB, N, NB):
            seconds, flops, whole = _step(calls, looking, at)
            found = {"seconds": f"{seconds:.6g}", "gflops": f"{flops / seconds / 1e9:.6g}"}
            yield {"part": "update", **named, "looking": looking, "at": at, **found}
            # The first step's panel has no update of its own left of it, the last one none right of it.
            bounds[looking] += seconds * (whole if at > NB else whole + _panel_flops(N)) / flops
        yield {"part": "bound", **named, "looking": looking, **_rate(bounds[looking])}
    addresses = work.data.ptr, work.data.ptr, info.data.ptr
    contenders: list[tuple[str, Callable[[], object]]] = [
        ("batchchol", partial(factor_at, device(), plan(N, 1, dtype, upper=False), *addresses, N, 1))
    ]
    contenders += [(f"cusolver, {how}", call) for how, call in cusolver(work, info)]
    for who, call in contenders:
        seconds = median(call, lambda: cupy.copyto(work, a))
        share = min(bounds.values()) / seconds
        yield {"part": "whole", **named, "who": who, **_rate(seconds), "share": f"{share:.4g}"}


def _rate(seconds: float) -> dict[str, str]:
    return {"seconds": f"{seconds:.6g}", "gflops": f"{N**3 / 3 / seconds / 1e9:.6g}"}


def _step(calls: DeviceCalls, looking: str, at: int) -> tuple[float, float, float]:
    """Seconds and flops of the update of a step, and the flops of all of it, its panel included."""
    rest = N - at
    if looking == "left":
        below, left, top = Block(at, at, rest, NB), Block(at, 0, rest, at), Block(at, 0, NB, at)
        seconds = median(partial(calls.gemm, below, left, top), lambda: None)
        return seconds, 2.0 * rest * NB * at, (2.0 * rest - NB) * NB * at + _panel_flops(rest)
    seconds = median(partial(calls.syrk, Block.diagonal(at, rest), Block(at, at - NB, rest, NB)), lambda: None)
    return seconds, float(rest * rest * NB), float(rest * rest * NB) + _panel_flops(rest)


def _panel_flops(rows: int) -> float:
    """Of the factor of the block on the diagonal, and the rows below it."""
    return NB**3 / 3 + float(max(rows - NB, 0)) * NB * NB


@dataclass(frozen=True)
class TimedCalls(DeviceCalls):
    """`DeviceCalls` that keep what was done: times of panels, seconds of updates, and None where streams wait.

    Each is with whether it goes on beside other work.
    """

    done: list[Done] = field(default_factory=list)

    def panel_from(self, source: int, p: Block, *, zeros: bool = False) -> None:
        """With room for the times of its own behind the words of zeros."""
        cupy = import_module("cupy")
        tiles = self._fused.tiles(p.rows)
        counts = (self._fused.counts(p.rows) + 1) // 2
        work = cupy.zeros(counts + tiles * (tiles + 1) // 2 * _WORDS, np.uint64)
        DeviceCalls.panel_from(replace(self, work=work.data.ptr), source, p, zeros=zeros)
        times = cupy.asnumpy(work)[counts:].reshape(-1, _WORDS)
        self.done.append((times[times[:, 0] > 0], self.side))

    def beside(self) -> Self:
        """These, marked: what goes on beside an update is timed behind it."""
        return replace(self, side=True)

    def wait_for(self, other: Self) -> None:
        self.done.append((None, self.side))

    def syrk(self, c: Block, a: Block) -> None:
        self.done.append((_seconds(partial(self._plain.syrk, c, a)), self.side))

    def gemm(self, c: Block, a: Block, b: Block) -> None:
        self.done.append((_seconds(partial(self._plain.gemm, c, a, b)), self.side))

    @property
    def _plain(self) -> DeviceCalls:
        return DeviceCalls(self.gpu, self.how, self.matrices, self.info, self.n, self.batch)


def _seconds(call: Any) -> float:
    cupy = import_module("cupy")
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(begin, end)) / 1e3


def column_seconds(dtype: str) -> float:
    """Those of one of the last 64 columns of a tile of order 128, which a block factors in shared memory."""
    cupy = import_module("cupy")

    how, seconds = Plan(Panel(dtype, "row", 128, threads=512), None), []
    for n in (64, 128):
        a, info = matrices(n, 1, dtype), cupy.empty(1, np.int32)
        l = cupy.empty_like(a)
        call = partial(factor_at, device(), how, a.data.ptr, l.data.ptr, info.data.ptr, n, 1)
        seconds.append(float(np.median(seconds_of(call, lambda: None, 50))))
    return (seconds[1] - seconds[0]) / 64


def phases(n: int, dtype: str, column: float) -> Iterator[dict[str, Any]]:
    """What the blocks of threads of the chosen plan do, and what of the time no update hides; the last of three."""
    cupy = import_module("cupy")

    chosen = plan(n, 1, dtype, upper=False)
    assert isinstance(chosen.panel, FusedPanel), "it is no tile"
    how = replace(chosen, panel=replace(chosen.panel, timed=True))
    a = matrices(n, 1, dtype)
    info = cupy.empty(1, np.int32)
    for _ in range(3):
        work = a.copy()
        calls = _timed(how, work, info, n)
    spent, bare, total = _spent(calls.done)
    looking = "" if how.blocking is None else how.blocking.looking
    named = {"dtype": dtype, "n": n, "who": "batchchol", "looking": looking}
    for name, seconds in zip(PHASES, spent, strict=True):
        share = f"{seconds / sum(spent):.4g}"
        yield {"part": "phase", **named, "phase": name, "seconds": f"{seconds:.6g}", "share": share}
    for name, seconds in (("bare", bare), ("chain", n * column)):
        share = f"{seconds / total:.4g}"
        yield {"part": "phase", **named, "phase": name, "seconds": f"{seconds:.6g}", "share": share}


def panels(n: int, dtype: str) -> Iterator[dict[str, Any]]:
    """One matrix by panels of other sizes, and what no update hides of each; medians of five and of three."""
    cupy = import_module("cupy")

    a = matrices(n, 1, dtype)
    work, info = a.copy(), cupy.empty(1, np.int32)
    for (ib, lb), (width, columns, looking) in product(STEPS, CUTS):
        panel = FusedPanel(dtype, "row", 64, ib, lb, 256, 1, "tensor", ib)
        how = Plan(panel, Blocking(width, columns, looking, looking == "right", fused=True))
        call = partial(factor_at, device(), how, work.data.ptr, work.data.ptr, info.data.ptr, n, 1)
        seconds = median(call, lambda: cupy.copyto(work, a))
        timed, shares = replace(how, panel=replace(panel, timed=True)), []
        for _ in range(3):
            _, bare, total = _spent(_timed(timed, a.copy(), info, n).done)
            shares.append(bare / total)
        named = {"part": "panels", "dtype": dtype, "n": n, "nb": columns, "looking": looking, "at": width}
        found = {"seconds": f"{seconds:.6g}", "gflops": f"{n**3 / 3 / seconds / 1e9:.6g}"}
        of = {"who": "batchchol", "phase": f"ib = {ib}, lb = {lb}"}
        yield {**named, **of, **found, "share": f"{np.median(shares):.4g}"}


def _timed(how: Plan, work: Any, info: Any, n: int) -> TimedCalls:
    gpu = device()
    blocks = blocks_to_a_matrix(gpu, how, n, 1)
    calls = TimedCalls(gpu, how.panel, work.data.ptr, info.data.ptr, n, 1, blocks=blocks)
    if how.blocking is None:
        calls.panel_from(work.data.ptr, Block.diagonal(0, n))
    else:
        blocked.factor(calls, n, how.blocking)
    assert not int(info[0]), "it is positive definite"
    return calls


def _spent(calls: Sequence[Done]) -> tuple[list[float], float, float]:
    """Seconds of blocks in each phase of panels, those of the whole time in which no update runs, and that time.

    Updates between panels keep all blocks busy. One that others go on beside hides as much of these as it lasts.
    """
    spent, bare, total, hiding = np.zeros(len(PHASES)), 0.0, 0.0, 0.0
    for done, side in calls:
        if done is None:
            hiding = 0.0
            continue
        if isinstance(done, float):
            of_blocks, uncovered, whole = np.zeros(len(PHASES)), 0.0, done
        else:
            of_blocks, uncovered, whole = _panel_times(done)
        hidden = min(hiding, whole) if side else 0.0
        hiding = hiding - hidden if side else whole
        spent += of_blocks
        bare += uncovered * (1 - hidden / whole)
        total += whole - hidden
    return spent.tolist(), bare, total


def _panel_times(times: NDArray[np.uint64]) -> tuple[NDArray[np.float64], float, float]:
    """Of a panel's tiles: seconds of blocks in each phase, those in which none updates, and those of all of it."""
    # The first tile on the diagonal, of which only begin and end are known, is there before all others.
    start, tiles = float(times[0, 0]), times[1:].astype(np.float64)
    begin, end, waited = tiles[:, 0], tiles[:, 1], tiles[:, 8]
    cycles = np.diff(tiles[:, 2:8], axis=1)
    nanoseconds = (end - begin).sum() / cycles.sum()
    load, update, factor, solve, store = (cycles * nanoseconds).T
    wait = waited * nanoseconds
    # Most of an update's waits are at its beginning.
    covered = _covered(begin + load + wait, begin + load + update)
    whole = end.max() - start
    phases = (load, wait, update - wait, factor, solve, store)
    return np.array([each.sum() for each in phases]) * 1e-9, (whole - covered) * 1e-9, whole * 1e-9


def _covered(begin: NDArray[np.float64], end: NDArray[np.float64]) -> float:
    """The length of the union of intervals."""
    covered, until = 0.0, -np.inf
    for first, last in sorted(zip(begin.tolist(), end.tolist(), strict=True)):
        covered += max(0.0, last - max(first, until))
        until = max(until, last)
    return covered


if __name__ == "__main__":
    main()
