"""Candidates for a case, the most promising first, and their variations: what is the same kernel is measured once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from batchchol import defaults
from batchchol.sweep.contests import Site
from batchchol.sweep.promising import Candidate, Wanted, apart, candidates, variations
from kernelgen import FAMILIES, BlockSchedule, KernelSpec, Problem

N = 20
SITE = Site("a fake", "cuda", "sm_90", "queued", 1, 1e15)
WANTED, ALL = Wanted(N, 1000, "float32", "ieee"), tuple(FAMILIES)


def candidate(chunk: int, **choices: Any) -> Candidate:
    return Candidate(KernelSpec(Problem(N), "chunked", "col", BlockSchedule(5, 8, **choices), "cuda"), chunk)


LATE, EARLY, OTHER = candidate(8), candidate(8, pdl=True), candidate(32)


def test_the_likely_ones_come_first() -> None:
    found = candidates(WANTED, ("chunked",), ALL, SITE)
    assert len(found) == len(set(found)) > 100
    assert {each.spec.family for each in found[24:32]} == set(FAMILIES)
    assert {(each.spec.problem.n, each.spec.layout) for each in found} == {(N, "chunked")}
    assert all(each.spec.schedule.stride in (None, each.chunk) for each in found)
    shipped = {choice.spec for choice in defaults.choices(N, target="cuda", arch="sm_90", chunk=32)}
    assert shipped & {each.spec for each in found[:6]}
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
