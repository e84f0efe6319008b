"""Measuring the schedules of every family; `batchchol.tune.choosing.make_tables` chooses from the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product

from batchchol.backends import Backend
from batchchol.errors import BatchcholError
from batchchol.measure.point import Point
from batchchol.measure.row import Row
from batchchol.tune.candidates import chunk_of, layout_of, variations
from batchchol.tune.choosing.winners import FINAL_SAMPLES, FIRST_SAMPLES, grouped, surest
from kernelgen import TARGETS, KernelSpec

# A GPU's finalists have more variations, and there are some for each stride.
SIMD_FINALISTS, GPU_FINALISTS = 5, 2


def measure(
    backend: Backend,
    candidates: Iterable[KernelSpec],
    batch: int,
    threads: int,
    measured: Callable[[Point, int], Row],
) -> Iterator[Row]:
    """Measure the candidates of one order, then the best with their variations, then the winner in every protocol.

    What does not compile is recorded as such. Candidates may have been built before. `measured(point, samples)`
    measures a point, such as `Measurer.measure`.
    """
    usual, *others = backend.protocols

    def taken(specs: Iterable[KernelSpec], samples: int, protocol: str = usual) -> Iterator[Row]:
        for spec in specs:
            yield measured(Point(spec, batch, layout_of(spec).chunk, threads, protocol), samples)

    first, final = [], []
    # One after another on each chunk: its batch is made once.
    for row in taken(sorted(candidates, key=chunk_of), FIRST_SAMPLES):
        first.append(row)
        yield row
    finalists = sorted((varied for spec in _finalists(first) for varied in variations(spec)), key=chunk_of)
    backend.build(finalists)
    for row in taken(finalists, FINAL_SAMPLES):
        final.append(row)
        yield row
    winners = [best(final).spec] if final else []
    for spec, protocol in product(winners, others):
        yield from taken([spec], FINAL_SAMPLES, protocol)


def _finalists(rows: Sequence[Row]) -> list[KernelSpec]:
    """The best kernels of each family for any chunk, and those for one chunk alone, pipelines apart."""
    ranked = sorted((row for row in rows if row.correct), key=lambda row: row.median_seconds)
    specs = []
    kinds = grouped(
        (row.spec for row in ranked),
        lambda spec: (spec.family, spec.schedule.stride, bool(getattr(spec.schedule, "pipeline", 0))),
    )
    for rivals in kinds.values():
        specs += rivals[: GPU_FINALISTS if TARGETS[rivals[0].target].gpu else SIMD_FINALISTS]
    return specs


def best(rows: Iterable[Row]) -> Row:
    """The fastest correct row among those with the most samples, in the protocol of the first row.

    Raises
    ------
    BatchcholError
        If there is none.
    """
    known = list(rows)
    correct = [row for row in known if row.correct and row.point.protocol == known[0].point.protocol]
    if not correct:
        raise BatchcholError("no candidate gave a correct result: their statuses say why")
    return surest(correct)
