"""Compile default GPU kernels and add what CUDA's assembler says of their registers to datasets/accuracy/spills.csv.

    python -m tests.cuda_spills --arch sm_90 --dtype float64 --orders 1-128
    python -m tests.cuda_spills --arch sm_80,sm_86,sm_100,sm_120 --dtype float32,float64 --orders 8,16,32

Needs nvcc and no GPU. For each order: the kernels of the chunks that batches of it go into and of arrays in rows, in
both maths, and `--others` more cases drawn from all chunks, layouts, triangles, maths and in-place variants; `--all`
takes every case.
What the file has already of the same source text is not compiled again, so an interrupted run goes on where it was.
The exit status is 1 if a default spills.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

from batchchol.artifacts.cuda_modules import build_all
from batchchol.batches.sizes import integers
from batchchol.defaults.lookup import Choice, default_layout
from batchchol.defaults.shipped import source_of
from batchchol.measure.provenance import source_hash
from kernelgen import KernelSource, KernelSpec, generate
from tests.asked import choices_of

DATA = Path(__file__).parents[1] / "datasets" / "accuracy" / "spills.csv"
USAGE = ("registers", "spill_bytes", "stack_bytes", "code_bytes")
COLUMNS = ("spec", "arch", "measured", "status", *USAGE, "source", "compiler", "date")
CHUNKS = (2, 3, 4, 5, 6, 8, 16, 32, 64, 128, None)
TIME_LIMIT = 300.0
AT_ONCE = 32


def cases(n: int, dtype: str, arch: str, others: int | None) -> Iterator[dict[str, Any]]:
    """The cases of an order: the usual two in both maths, and some others; None: every case."""
    places: list[dict[str, Any]] = [{"layout": "chunked", "chunk": chunk} for chunk in CHUNKS]
    places += [{"layout": "canonical", "order": order} for order in ("row", "col")] + [{"layout": "interleaved"}]
    every = [
        place | {"math": math, "uplo": uplo, "in_place": in_place}
        for place, math, uplo, in_place in product(places, ("ieee", "fast"), ("lower", "upper"), (False, True))
    ]
    if others is None:
        yield from every
        return
    for math in ("ieee", "fast"):
        chunk = default_layout(n, target="cuda", dtype=dtype, math=math, arch=arch).chunk
        yield {"layout": "chunked", "chunk": chunk, "math": math}
        yield {"layout": "canonical", "order": "row", "math": math}
    yield from random.Random(f"{n} {dtype}").sample(every, others)


def defaults(arguments: argparse.Namespace, arch: str) -> dict[KernelSpec, bool]:
    """The default kernels that are asked for, and whether each is what was measured for its order and dtype."""
    found = dict[KernelSpec, bool]()
    for dtype, n in product(arguments.dtype.split(","), integers(arguments.orders)):
        for case in cases(n, dtype, arch, None if arguments.all else arguments.others):
            for choice in choices_of(n, target="cuda", dtype=dtype, arch=arch, **case):
                found[choice.spec] = found.get(choice.spec, False) or is_measured(choice, n, dtype, arch)
    return found


def is_measured(choice: Choice, n: int, dtype: str, arch: str) -> bool:
    """Whether a choice is the table's entry for this very order and dtype."""
    if choice.case is None or choice.case.dtype != dtype:
        return False
    entries = source_of("cuda", arch).table.cases[choice.case]
    serving = min((entry.n for entry in entries if entry.n >= n), default=None)
    return choice.n == serving


def main() -> int:
    """Compile what the data lack, and say what spills."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--orders", default="1-128")
    parser.add_argument("--others", type=int, default=2)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--jobs", type=int)
    arguments = parser.parse_args()
    spilled = 0
    for arch in arguments.arch.split(","):
        spilled += sweep(defaults(arguments, arch), arch, arguments.jobs)
    return 1 if spilled else 0


def sweep(specs: dict[KernelSpec, bool], arch: str, jobs: int | None) -> int:
    """Compile kernels for one architecture; how many of them spill."""
    known = read()
    sources = {spec: generate(spec) for spec in specs}
    missing = [spec for spec, source in sources.items() if (spec.name, arch, source_hash(source.text)) not in known]
    print(f"{arch}: {len(specs):,} kernels, {len(missing):,} of them to compile", flush=True)
    for first in range(0, len(missing), AT_ONCE):
        part = missing[first : first + AT_ONCE]
        outcomes = build_all([sources[spec] for spec in part], arch, jobs=jobs, time_limit=TIME_LIMIT)
        append(row(spec, arch, specs[spec], sources[spec], each) for spec, each in zip(part, outcomes, strict=True))
        print(f"{arch}: {first + len(part):,} of {len(missing):,}", flush=True)
    known = read()
    rows = [known[spec.name, arch, source_hash(source.text)] for spec, source in sources.items()]
    bad = [each for each in rows if spilled(each)]
    for each in bad:
        print(f"spills {each['spill_bytes']} bytes: {each['spec']} for {arch}")
    print(f"{arch}: {len(rows):,} kernels, {len(bad):,} spill")
    return len(bad)


def spilled(row: dict[str, str]) -> bool:
    """Whether a kernel spills, or was not compiled."""
    return row["status"] != "built" or int(row["spill_bytes"]) > 0


def row(spec: KernelSpec, arch: str, measured: bool, source: KernelSource, outcome: Any) -> dict[str, Any]:
    """A line of the data."""
    stats = outcome.stats
    usage = {name: getattr(stats, name, "") for name in USAGE}
    said = {"spec": spec.name, "arch": arch, "measured": "yes" if measured else "no", "status": outcome.status}
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    return (
        said | usage | {"source": source_hash(source.text), "compiler": getattr(stats, "compiler", ""), "date": date}
    )


def append(rows: Iterator[dict[str, Any]]) -> None:
    """Add lines to the data."""
    fresh = not DATA.exists()
    with DATA.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerows(rows)


def read() -> dict[tuple[str, str, str], dict[str, str]]:
    """The lines of the data by spec, architecture and source."""
    if not DATA.exists():
        return {}
    with DATA.open(newline="", encoding="utf-8") as file:
        return {(each["spec"], each["arch"], each["source"]): each for each in csv.DictReader(file)}


if __name__ == "__main__":
    sys.exit(main())
