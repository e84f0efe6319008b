"""Choose what takes the place of default kernels that spill registers for GPUs that were not measured.

    python -m tests.cuda_spills_elsewhere --arch sm_80,sm_86,sm_89,sm_100,sm_120 --orders 8,16,24,32

Needs nvcc and no GPU. Compiles the defaults as `tests.cuda_spills` does, and for each that spills variants of its
schedule: with fewer blocks to a multiprocessor, lanes or warps, so that a thread has more registers, then with loops
for straight-line code, then by multiply-adds. The first that spills nothing goes into
batchchol/defaults/elsewhere.json, the defaults of before into datasets/accuracy/spills.csv; run it again for those of
now.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import batchchol.defaults
from batchchol.artifacts.cuda_modules import build_all
from batchchol.batches.sizes import integers
from batchchol.defaults import elsewhere
from batchchol.defaults.lookup import default_layout
from batchchol.measure.provenance import source_hash
from batchchol.tune.choosing.winners import grouped
from kernelgen import KernelSpec, SpecError, generate
from tests import cuda_spills
from tests.asked import choices_of

# Variants of a kind that are compiled at a time.
AT_ONCE = 4
# What a schedule may have fewer of, and by what step: more registers are left to each thread.
FEWER = {"blocks": 1, "lanes": 4, "warps": 4}
FILE = Path(batchchol.defaults.__file__).with_name(elsewhere.FILE)


def asked(orders: Iterable[int], maths: Iterable[str], arch: str) -> dict[KernelSpec, bool]:
    """The usual defaults, of arrays and of batches, of each dtype and of these maths."""
    return {
        choice.spec: False
        for n, dtype, math in product(orders, ("float32", "float64"), maths)
        for place in (
            {"layout": "canonical", "order": "row"},
            {"layout": "chunked", "chunk": default_layout(n, target="cuda", dtype=dtype, arch=arch).chunk},
        )
        for choice in choices_of(n, target="cuda", dtype=dtype, math=math, arch=arch, **place)
    }


def variants(spec: KernelSpec) -> Iterator[dict[str, Any]]:
    """Changes of a schedule that take fewer registers, or leave more to a thread, the least first."""
    schedule = spec.schedule
    others: list[dict[str, Any]] = [{}]
    if getattr(schedule, "unroll", None) == "full":
        others.append({"unroll": "tiles"} | ({"nb": 4} if hasattr(schedule, "looking") else {}))
    if getattr(schedule, "update", None) == "tensor" and spec.problem.dtype == "float32":
        others += [each | {"update": "fma"} for each in others]
    fewer = [{name: count} for name, step in FEWER.items() for count in _below(getattr(schedule, name, None), step)]
    for other in others:
        yield from (other | more for more in ({}, *fewer) if other | more)


def _below(count: int | None, step: int) -> range:
    return range((count or 1) - step, 0, -step)


def changed(spec: KernelSpec, changes: dict[str, Any]) -> KernelSpec | None:
    """The spec with a changed schedule; None if there is no such kernel."""
    with suppress(SpecError):
        return replace(spec, schedule=replace(spec.schedule, **changes))
    return None


def spilled(specs: dict[KernelSpec, bool], arch: str, jobs: int | None) -> list[KernelSpec]:
    """Those that spill, of which what the data lack is compiled."""
    cuda_spills.sweep(specs, arch, jobs)
    known = cuda_spills.read()
    rows = {spec: known[spec.name, arch, source_hash(generate(spec).text)] for spec in specs}
    return [spec for spec, row in rows.items() if row["status"] != "built" or int(row["spill_bytes"]) > 0]


def rejected(specs: list[KernelSpec], arch: str, jobs: int | None) -> set[KernelSpec]:
    """The variants that spill or cannot be compiled."""
    outcomes = build_all([generate(spec) for spec in specs], arch, jobs=jobs, time_limit=cuda_spills.TIME_LIMIT)
    found = zip(specs, outcomes, strict=True)
    return {spec for spec, each in found if each.status != "built" or each.stats is None or each.stats.spill_bytes}


def mended(specs: list[KernelSpec], arch: str, jobs: int | None) -> dict[str, Any]:
    """For each kind of these kernels the first changes by which none of them spills; else None for each of them."""
    kinds = grouped(specs, elsewhere.kind_of)
    left = {kind: _possible(alike) for kind, alike in kinds.items()}
    found: dict[str, Any] = dict.fromkeys(kinds)
    while left:
        made = {
            (kind, turn): [changed(spec, changes) for spec in kinds[kind]]
            for kind, every in left.items()
            for turn, changes in enumerate(every[:AT_ONCE])
        }
        bad = rejected(list(dict.fromkeys(spec for each in made.values() for spec in each if spec)), arch, jobs)
        good = [at for at, each in made.items() if not bad.intersection(each)]
        for kind in {kind for kind, _ in good}:
            found[kind] = left[kind][min(turn for of, turn in good if of == kind)]
            print(f"{arch}: {kind}: {found[kind]}", flush=True)
        left = {kind: every[AT_ONCE:] for kind, every in left.items() if found[kind] is None and every[AT_ONCE:]}
    passed = [elsewhere.name_of(spec) for kind, alike in kinds.items() if found[kind] is None for spec in alike]
    return dict.fromkeys(passed) | {kind: changes for kind, changes in found.items() if changes is not None}


def _possible(alike: list[KernelSpec]) -> list[dict[str, Any]]:
    return [changes for changes in variants(alike[0]) if all(changed(spec, changes) for spec in alike)]


def main() -> None:
    """Compile, choose and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--arch", default="sm_80,sm_86,sm_89,sm_100,sm_120")
    parser.add_argument("--orders", default="8,16,24,32,40,48,56,64,72,80,88,96,104,112,120,128")
    parser.add_argument("--maths", default="ieee,fast")
    parser.add_argument("--jobs", type=int)
    arguments = parser.parse_args()
    for arch in arguments.arch.split(","):
        specs = asked(integers(arguments.orders), arguments.maths.split(","), arch)
        bad = spilled(specs, arch, arguments.jobs)
        chosen = json.loads(FILE.read_text())
        chosen[arch] = dict(sorted((chosen.get(arch, {}) | mended(bad, arch, arguments.jobs)).items()))
        FILE.write_text(json.dumps(chosen, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
