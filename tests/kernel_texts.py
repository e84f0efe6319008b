"""A manifest of generated kernel texts: what must not change unless a kernel is meant to.

    python -m tests.kernel_texts [--write]

generates the kernel of every definition that is stored in datasets/, and of every default, and compares the texts
with tests/kernel_texts.csv, in some five minutes; `--write` writes that file. A row is one order of one family in one
file: how many specs, and the sha256 of all their names and texts. The exit status is 1 if a row differs.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple

from batchchol import default_spec
from kernelgen import MAX_N, TARGETS, KernelSpec, generate
from kernelgen.schedules.budget import FULL_UNROLL_BUDGET, straight_line_operations

ROOT = Path(__file__).resolve().parents[1]
MANIFEST = Path(__file__).with_suffix(".csv")
DEFAULTS = "defaults"
LAYOUTS = ("canonical", "interleaved", "chunked")


class Group(NamedTuple):
    """The specs of one order and family in one file, or among the defaults."""

    stored_in: str
    family: str
    n: int


class Texts(NamedTuple):
    """How many specs a group has, and the hash of their texts."""

    specs: int
    sha256: str


def definitions(path: Path) -> set[str]:
    """The definitions in a data set, each as its JSON."""
    import pyarrow.parquet as pq

    return set(pq.read_table(path, columns=["definition"])["definition"].to_pylist())


def past_the_budget(definition: Mapping[str, Any]) -> bool:
    """Whether it is of straight-line code so long that it was generated once, for a study, and is refused since."""
    straight = definition["schedule"].get("unroll") == "full"
    return straight and straight_line_operations(definition["problem"]["n"]) > FULL_UNROLL_BUDGET


def default_specs(orders: Iterable[int]) -> Iterator[KernelSpec]:
    """Of every type, layout and math, for every target."""
    for n, target, dtype, layout, math in product(orders, TARGETS, ("float32", "float64"), LAYOUTS, ("ieee", "fast")):
        yield default_spec(n, target=target, dtype=dtype, layout=layout, math=math)


def groups(wanted: Callable[[int], bool] = lambda _: True) -> dict[Group, list[KernelSpec]]:
    """The stored and the default specs of the orders that are wanted, grouped."""
    found: dict[Group, list[KernelSpec]] = defaultdict(list)
    for path in sorted((ROOT / "datasets" / "sweeps").glob("*.parquet")):
        stored = (json.loads(definition) for definition in definitions(path))
        of_orders = (values for values in stored if wanted(values["problem"]["n"]) and not past_the_budget(values))
        for spec in map(KernelSpec.from_dict, of_orders):
            found[Group(path.name, spec.family, spec.problem.n)].append(spec)
    for spec in dict.fromkeys(default_specs(n for n in range(1, MAX_N + 1) if wanted(n))):
        found[Group(DEFAULTS, spec.family, spec.problem.n)].append(spec)
    return found


def texts(specs: Iterable[KernelSpec]) -> Texts:
    """Of a group's specs, whatever their order."""
    lines = sorted(f"{spec.name} {sha256(generate(spec).text.encode()).hexdigest()}\n" for spec in specs)
    return Texts(len(lines), sha256("".join(lines).encode()).hexdigest())


def read() -> dict[Group, Texts]:
    """The manifest."""
    with MANIFEST.open(newline="") as stream:
        rows = csv.DictReader(stream)
        return {
            Group(row["stored_in"], row["family"], int(row["n"])): Texts(int(row["specs"]), row["sha256"])
            for row in rows
        }


def write(found: dict[Group, Texts]) -> None:
    """Replace the manifest."""
    with MANIFEST.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow((*Group._fields, *Texts._fields))
        writer.writerows((*group, *found[group]) for group in sorted(found))


def main(argv: Sequence[str] | None = None) -> int:
    """Compare with the manifest, or write it."""
    parser = argparse.ArgumentParser(prog="python -m tests.kernel_texts", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the manifest")
    given = parser.parse_args(argv)
    found: dict[Group, Texts] = {}
    for stored_in, some in groupby(sorted(groups().items()), key=lambda item: item[0].stored_in):
        found |= {group: texts(specs) for group, specs in some}
        print(
            f"{stored_in}: {sum(one.specs for group, one in found.items() if group.stored_in == stored_in):,} specs"
        )
    if given.write:
        write(found)
        return 0
    stored = read()
    differing = sorted(group for group in stored.keys() | found.keys() if stored.get(group) != found.get(group))
    for group in differing:
        print(f"{' '.join(map(str, group))}: {stored.get(group)} in the manifest, {found.get(group)} now")
    print(f"{sum(one.specs for one in found.values()):,} specs, {len(differing)} of {len(found)} groups differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
