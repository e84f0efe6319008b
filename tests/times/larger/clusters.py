"""Many matrices by clusters of blocks that have each on chip, beside what the library chooses, in turns.

    python -m tests.times.larger.clusters

from the root of the repository writes datasets/larger/larger_clusters_h200.csv (--out FILE for another): kernels of
`cluster.cu`, beside this file, by the blocks of a cluster (`cluster`; 1 is one block to a matrix), their threads and
how many a multiprocessor is to hold, and the plan (`cluster` 0). Times are as `tests.times.larger.orders` has them.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from batchchol import get_backend
from batchchol.algorithms.large import factor_at
from batchchol.algorithms.plans import plan
from batchchol.backends.cuda.device import device
from batchchol.measure.provenance import about
from kernelgen.emit.source import SCALARS, KernelSource, Launch
from kernelgen.gpu import MAX_SHARED_BYTES, WARP
from kernelgen.targets import ELEMENT_BYTES

from .orders import in_turns, right, statistics
from .ways import ABOUT, DATASETS, DTYPES, matrices

COLUMNS = (
    *("dtype", "n", "batch", "cluster", "threads", "resident", "how"),
    *("samples", "seconds", "spread", "gflops", "ratio", *ABOUT),
)
ORDERS = (192, 208, 256, 320, 384, 448, 512)
CLUSTERS = (1, 2, 4, 8)
TEXT = Path(__file__).with_name("cluster.cu")
# Rows of a row block, and elements between rows beside those.
_SIDE, _PAD = 16, 4
# What a multiprocessor has for blocks, each of which takes some more than it asks for; and threads.
_OF_MULTIPROCESSOR, _MORE, _MOST_THREADS = 228 * 1024, 1024, 1024
_ROUNDS = 10


@dataclass(frozen=True)
class Cluster:
    """`blocks` blocks of `threads` threads to a matrix of order n, a multiple of 16."""

    dtype: str
    n: int
    blocks: int
    threads: int

    @property
    def shared_bytes(self) -> int:
        """Of a block: its row blocks, the next one of the matrix, the tile that is solved by, and reciprocals."""
        own = -(-self.n // (_SIDE * self.blocks))
        rows = _SIDE * (_SIDE * (self.blocks * own * (own - 1) // 2 + own * self.blocks) + _PAD * own)
        beside = _SIDE * (self.n + _PAD) + _SIDE * (_SIDE + _PAD) + _SIDE
        return (rows + beside) * ELEMENT_BYTES[self.dtype]

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor has room for, with 64 registers a thread."""
        room = _OF_MULTIPROCESSOR // (self.shared_bytes + _MORE)
        return max(1, min(room, _MOST_THREADS // self.threads))

    def source(self) -> KernelSource:
        """The kernel; an item is a block."""
        entry = f"{self.dtype}_cluster_n{self.n}_c{self.blocks}_t{self.threads}"
        defined = {
            "SCALAR": SCALARS[self.dtype],
            "SINGLE": int(self.dtype == "float32"),
            "N": self.n,
            "CLUSTER": self.blocks,
            "THREADS": self.threads,
            "RESIDENT": self.resident,
            "ENTRY": entry,
        }
        text = "".join(f"#define {name} {value}\n" for name, value in defined.items()) + TEXT.read_text("utf-8")
        return KernelSource(text, entry, 1, (), Launch(self.threads, 1, self.shared_bytes, cache="shared"))


def clusters(n: int, dtype: str) -> list[Cluster]:
    """Those that fit: with a warp to each row block and two more, and with half of them."""
    found = []
    for blocks in CLUSTERS:
        own = -(-n // (_SIDE * blocks))
        for warps in dict.fromkeys((own + 2, own // 2 + 2)):
            each = Cluster(dtype, n, blocks, WARP * warps)
            if each.shared_bytes <= MAX_SHARED_BYTES and own > 1:
                found.append(each)
    return found


def batches(n: int) -> tuple[int, ...]:
    """Those of the issue of small and of larger orders, and both at 256."""
    return (16_384,) if n < 256 else (16_384, 1024) if n == 256 else (1024,)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.times.larger.clusters", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--out", type=Path, default=DATASETS / "larger" / "larger_clusters_h200.csv", help="default: %(default)s"
    )
    parser.add_argument("--n", type=int, nargs="+", choices=ORDERS, default=ORDERS, help="default: all")
    arguments = parser.parse_args()
    origin = about(get_backend("cuda"))
    pool = import_module("cupy").get_default_memory_pool()
    with open(arguments.out, "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for n, dtype in product(arguments.n, DTYPES):
            for batch in batches(n):
                for row in case(n, batch, dtype):
                    writer.writerow({**{name: origin.get(name, "") for name in ABOUT}, **row})
                    print(*row.values(), flush=True)
                stream.flush()
                pool.free_all_blocks()


def case(n: int, batch: int, dtype: str) -> Iterator[dict[str, Any]]:
    """The plan, and all clusters."""
    cupy = import_module("cupy")

    a, gpu, how = matrices(n, batch, dtype), device(), plan(n, batch, dtype, upper=False)
    work, info = cupy.empty_like(a), cupy.empty(batch, np.int32)
    own = partial(factor_at, gpu, how, work.data.ptr, work.data.ptr, info.data.ptr, n, batch)
    calls: dict[Cluster | None, Any] = {None: own}
    for each in clusters(n, dtype):
        words = work.data.ptr, info.data.ptr
        calls[each] = partial(gpu.launch, each.source(), batch * each.blocks, words)

    def restore() -> None:
        cupy.copyto(work, a)

    for key, seconds in in_turns(calls, restore, {}, _ROUNDS).items():
        axes = (key.blocks, key.threads, key.resident) if key else (0, "", "")
        named = dict(zip(("cluster", "threads", "resident"), axes, strict=True))
        ratio = f"{right(a, work, info, calls[key], restore):.3g}"
        of = {"dtype": dtype, "n": n, "batch": batch, **named, "how": "" if key else how.name}
        yield {**of, **statistics(seconds, n, batch), "ratio": ratio}


if __name__ == "__main__":
    main()
