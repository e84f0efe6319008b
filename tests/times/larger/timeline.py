"""When each call of a blocked factorization of one large matrix ran, on which stream: with look-ahead and without.

    python -m tests.times.larger.timeline

from the root of the repository writes datasets/larger/larger_timeline_h200.csv (--out FILE for another): of a
right-looking factorization, the same with look-ahead, and a left-looking one, by the panels that the library chooses
for that matrix, a line a call: its stream, what it does, and when it began and ended by events around it, in
microseconds. The second of two runs counts.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from batchchol import get_backend
from batchchol.algorithms import blocked
from batchchol.algorithms.blocked import Blocking
from batchchol.algorithms.device_calls import DeviceCalls
from batchchol.algorithms.large import blocks_to_a_matrix
from batchchol.algorithms.level3 import Block
from batchchol.algorithms.plans import Plan, plan
from batchchol.backends.cuda.device import device, stream_address
from batchchol.measure.provenance import about

from .ways import ABOUT, DATASETS, matrices

COLUMNS = ("variant", "dtype", "n", "nb", "stream", "what", "column", "columns", "begin_us", "end_us", *ABOUT)
N, DTYPE = 8192, "float64"
# 64-bit words that the panels of a factorization count in.
_WORDS = 1 << 20


@dataclass
class Noted:
    """What was called, in order: the stream's name, what it did, its block, and the events around it."""

    calls: list[tuple[str, str, Block, Any, Any]] = field(default_factory=list)
    words: Any = None
    used: int = 0


@dataclass(frozen=True)
class NotedCalls(DeviceCalls):
    """`DeviceCalls` with events around each."""

    noted: Noted = field(default_factory=Noted)

    def panel_from(self, source: int, p: Block, *, zeros: bool = False) -> None:
        counts = (self._fused.counts(p.rows) + 1) // 2
        first, self.noted.used = self.noted.used, self.noted.used + counts
        calls = replace(self, work=self.noted.words[first:].data.ptr)
        self._note("panel", p, partial(DeviceCalls.panel_from, calls, source, p, zeros=zeros))

    def syrk(self, c: Block, a: Block) -> None:
        self._note("syrk", c, partial(self._plain.syrk, c, a))

    def gemm(self, c: Block, a: Block, b: Block) -> None:
        self._note("gemm", c, partial(self._plain.gemm, c, a, b))

    def _note(self, what: str, block: Block, call: Callable[[], None]) -> None:
        cupy = import_module("cupy")
        address = 0 if self.stream is None else stream_address(self.stream)
        stream = cupy.cuda.ExternalStream(address) if address else cupy.cuda.Stream.null
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record(stream)
        call()
        end.record(stream)
        self.noted.calls.append(("beside" if self.side else "first", what, block, begin, end))

    @property
    def _plain(self) -> DeviceCalls:
        return DeviceCalls(self.gpu, self.how, self.matrices, self.info, self.n, self.batch, self.stream, self.side)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(prog="python -m tests.times.larger.timeline")
    parser.add_argument(
        "--out", type=Path, default=DATASETS / "larger" / "larger_timeline_h200.csv", help="default: %(default)s"
    )
    arguments = parser.parse_args()
    origin = about(get_backend("cuda"))
    chosen = plan(N, 1, DTYPE, upper=False)
    assert chosen.blocking is not None, "it is cut into panels"
    with open(arguments.out, "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for variant, changes in (
            ("right looking", {"looking": "right", "ahead": False}),
            ("right looking, look-ahead", {"looking": "right", "ahead": True}),
            ("left looking", {"looking": "left", "ahead": False}),
        ):
            for row in timeline(chosen, replace(chosen.blocking, **changes)):
                known = {"variant": variant, "dtype": DTYPE, "n": N, "nb": chosen.blocking.nb}
                writer.writerow(known | row | {name: origin.get(name, "") for name in ABOUT})


def timeline(how: Plan, blocking: Blocking) -> Iterator[dict[str, Any]]:
    """The calls of a factorization and when they ran."""
    cupy = import_module("cupy")
    gpu, a, info = device(), matrices(N, 1, DTYPE), cupy.empty(1, np.int32)
    for _ in range(2):
        work, noted = a.copy(), Noted(words=cupy.zeros(_WORDS, np.uint64))
        blocks = blocks_to_a_matrix(gpu, how, N, 1)
        cupy.cuda.Device().synchronize()
        start = cupy.cuda.Event()
        start.record(cupy.cuda.Stream.null)
        calls = NotedCalls(gpu, how.panel, work.data.ptr, info.data.ptr, N, 1, blocks=blocks, noted=noted)
        with gpu.queueing():
            blocked.factor(calls, N, blocking)
        cupy.cuda.Device().synchronize()
        assert not int(info[0]), "it is positive definite"
    for stream, what, block, begin, end in noted.calls:
        first, last = (f"{1e3 * cupy.cuda.get_elapsed_time(start, each):.1f}" for each in (begin, end))
        place = {"stream": stream, "what": what, "column": block.column, "columns": block.columns}
        yield place | {"begin_us": first, "end_us": last}


if __name__ == "__main__":
    main()
