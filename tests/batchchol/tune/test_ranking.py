"""Candidates for a case, the most promising first, and their variations: what is the same kernel is measured once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from batchchol.defaults.tables import Case, Entry, Placement, Table
from batchchol.measure.point import Point
from batchchol.tune.choosing.contest import Site
from batchchol.tune.ranking import apart, candidates, current_layouts, variations
from kernelgen import FAMILIES, BlockSchedule, KernelSpec, Layout, Problem, ThreadSchedule, WarpSchedule

N = 20
SITE = Site("a fake", "cuda", "sm_90", "queued", 1, 1e15)
WANTED, ALL = SITE.request(Problem(N), 1000), tuple(FAMILIES)


def candidate(chunk: int, **choices: Any) -> Point:
    spec = KernelSpec(Problem(N), "chunked", "col", BlockSchedule(5, 8, **choices), "cuda")
    return SITE.point(spec, chunk, WANTED.size)


LATE, EARLY, OTHER = candidate(8), candidate(8, pdl=True), candidate(32)


def test_the_likely_ones_come_first(tables: Callable[..., None]) -> None:
    case = Case("float32", "ieee", "chunked", 32)
    of_chunks = {
        case: (
            Entry(N, 1000, ThreadSchedule(5)),
            Entry(N, 10**6, BlockSchedule(5, 8)),
            Entry(64, None, WarpSchedule()),
        ),
        replace(case, chunk=16): (Entry(N, None, ThreadSchedule(4, stride=16)),),
        replace(case, math="fast"): (Entry(40, None, ThreadSchedule(3)),),
    }
    tables(Table("sm_90", "cuda", of_chunks, (Placement("float32", N, None, Layout.chunked(32)),)))
    found = candidates(WANTED, ("chunked",), ALL, SITE)
    assert len(found) == len(set(found)) > 100
    nearest = [(each.chunk, each.spec.family, getattr(each.spec.schedule, "nb", None)) for each in found[:5]]
    assert nearest == [(32, "thread", 5), (16, "thread", 4), (32, "thread", 3), (32, "warp", None), (32, "block", 5)]
    assert {each.spec.family for each in found[5:13]} == set(FAMILIES) - {"strip", "whole"}, "strips have no ieee"
    assert {(each.spec.problem.n, each.spec.layout) for each in found} == {(N, "chunked")}
    assert all(each.spec.schedule.stride in (None, each.chunk) for each in found)
    only = candidates(WANTED, ("canonical", "chunked"), ("warp",), SITE)
    assert {each.spec.family for each in only} == {"warp"}
    assert [each.spec.layout for each in only[:4]] == ["canonical", "chunked"] * 2


def test_of_a_kernel_and_the_same_launched_early_the_faster_counts() -> None:
    assert apart([EARLY, OTHER, LATE]) == [EARLY, OTHER]
    assert apart([LATE, EARLY]) == [LATE]


def test_variations_are_launched_early_where_that_is_another_kernel() -> None:
    for arch, early in (("sm_90", True), ("sm_86", False)):
        varied = variations([LATE, EARLY, OTHER], replace(SITE, arch=arch))
        assert len(varied) == len(set(varied)) == 2 * len(variations([LATE], SITE))
        assert {bool(each.spec.schedule.pdl) for each in varied} == {early}
        assert (LATE in varied) != early


def test_the_current_layouts_are_those_of_the_math_too(tables: Callable[..., None]) -> None:
    placed = [
        Placement("float32", N, None, Layout.chunked(32)),
        Placement("float32", N, None, Layout.chunked(4), "fast"),
    ]
    arrays = (
        Placement("float32", N, None, Layout.canonical()),
        Placement("float32", N, None, Layout.chunked(2), "fast"),
    )
    of_chunks = {Case("float32", "ieee", "chunked"): (Entry(N, None, ThreadSchedule(5)),)}
    tables(Table("sm_90", "cuda", of_chunks, tuple(placed), arrays))
    requests = {math: SITE.request(Problem(N, math=math), 1000) for math in ("ieee", "fast")}
    found = {math: current_layouts(wanted, ("chunked",)) for math, wanted in requests.items()}
    assert {math: [layout.chunk for layout in layouts] for math, layouts in found.items()} == {
        "ieee": [32],
        "fast": [32, 4, 2],
    }
