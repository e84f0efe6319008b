"""What the logarithm of a determinant takes on a GPU: as a by-product, and by a kernel of its own behind another.

In half a minute, from the root of the repository, on a machine with a GPU:

    python -m tests.times.solves.byproducts

writes datasets/solves/byproducts_h200.csv (--out FILE for another). Medians of seconds a call, cold, of bursts that
take turns in one process; `more` is what the logarithm takes beside the same operation without (`none`), `bytes` what
its compulsory bytes are beside that operation's.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np

from batchchol import default_spec, get_backend
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.backend import CudaBackend
from batchchol.measure.provenance import about
from kernelgen import KernelSpec, Layout
from kernelgen.operations import OPERATIONS
from kernelgen.targets import ELEMENT_BYTES

from .repairs import Call, both, kept, matrices, medians

OUT = Path(__file__).parents[3] / "datasets" / "solves" / "byproducts_h200.csv"
OPS = ("posv", "potrf", "poinv")
ORDERS, DTYPES, BATCH = (8, 16, 24), ("float32", "float64"), 131_072
LAYOUTS = (Layout.chunked(32), Layout.canonical())
COLUMNS = (
    *("op", "n", "dtype", "batch", "layout", "way", "seconds", "more", "bytes"),
    *("gpu", "driver", "toolkit", "version", "commit", "date"),
)


def spec_of(op: str, n: int, dtype: str, layout: Layout) -> KernelSpec:
    """The kernel for most matrices, and no other, whatever has been measured."""
    where = {"layout": layout.kind, "order": layout.order, "chunk": layout.chunk, "arch": "sm_90", "batch": BATCH}
    return default_spec(n, target="cuda", op=op, dtype=dtype, **cast(Any, where))


def calls(backend: CudaBackend, op: str, batches: Sequence[Any]) -> Mapping[str, list[Call]]:
    """By way, calls of an operation, solves for one right-hand side."""
    n, layout, dtype = batches[0].n, batches[0].layout, batches[0].dtype
    kernels = {each: cast(Any, backend.kernel(spec_of(each, n, dtype.name, layout))) for each in names(op)}
    b, logs = np.ones((BATCH, n, 1), dtype), np.empty(BATCH, dtype)
    square = np.empty((BATCH, n, n), dtype) if op != "posv" else b
    made: dict[str, list[Call]] = {"none": [], "by-product": [], "apart": []}
    for a in batches:
        arrays = (*(backend.place(each) for each in (b, square, logs)), memory.info_array(BATCH))
        right, result, logdet, info = (int(each.gpudata) for each in arrays)
        results = (right, result) if op == "posv" else (result,)

        def run(op: str, *places: int, a: Any = a, arrays: object = arrays) -> Call:
            return partial(kept, (a, arrays), partial(kernels[op].launch, (a.address, *places), 1, BATCH, layout))

        plain = run(op, *results, info)
        made["none"].append(plain)
        made["by-product"].append(run(f"{op}det", *results, logdet, info))
        made["apart"].append(partial(both, plain, run("logdet", logdet, info)))
    return made


def names(op: str) -> tuple[str, str, str]:
    """The operations that are timed beside each other."""
    return op, f"{op}det", "logdet"


def build(backend: CudaBackend) -> None:
    """Compile what is timed, many kernels at a time."""
    backend.build([spec_of(each, *case) for op, *case in cases() for each in names(op)])


def cases() -> Iterator[tuple[str, int, str, Layout]]:
    """Operations, orders, types and layouts whose kernels have a thread to a matrix."""
    for op, n, dtype, layout in product(OPS, ORDERS, DTYPES, LAYOUTS):
        # At n = 24 the factors of float64 are a block's, and inverses of float32 in shared memory.
        if n < 24 or (dtype == "float32" and op != "poinv"):
            yield op, n, dtype, layout


def share_of_bytes(op: str, n: int) -> float:
    """The compulsory bytes of the logarithms, beside those of the operation."""
    without = sum(each.elements(n, 1) for each in OPERATIONS[op].arguments) * ELEMENT_BYTES["float32"] + 4
    return ELEMENT_BYTES["float32"] / without


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.times.solves.byproducts", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    backend = cast(CudaBackend, get_backend("cuda"))
    build(backend)
    said = {name: value for name, value in about(cast(Any, backend)).items() if name in COLUMNS}
    with given.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for op, n, dtype, layout in cases():
            found = medians(backend, calls(backend, op, matrices(backend, n, dtype, BATCH, layout, 0)), given.rounds)
            for way, seconds in found.items():
                row: dict[str, Any] = {
                    "op": op,
                    "n": n,
                    "dtype": dtype,
                    "batch": BATCH,
                    "layout": str(layout),
                    "way": way,
                }
                row |= {"seconds": f"{seconds:.4g}", "more": f"{seconds / found['none'] - 1:.4f}"}
                row["bytes"] = f"{share_of_bytes(op, n):.4f}"
                print(*row.values(), flush=True)
                writer.writerow(said | row)


if __name__ == "__main__":
    main()
