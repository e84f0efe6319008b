"""Contests of kernels: what replaces the current choice and what does not, and the words for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batchchol.cli.laboratory.tune import case
from batchchol.defaults.lookup import Choice
from batchchol.defaults.tables import Case
from batchchol.measure.row import Row
from batchchol.tune.choosing.contest import Contest, Site, spec_of
from kernelgen import KernelSpec, Layout, Problem, ThreadSchedule

N, BATCH = 20, 1000
SITE = Site("a fake", "cuda", "sm_90", "queued", 1, 1e15, {"driver": "580", "version": "0.1"})
ROWS = Case("float32", "ieee", "canonical", order="row")
ROWWISE = spec_of(ROWS, N, ThreadSchedule(1, unroll="full", staged=True, threads=64), "cuda")


def row(spec: KernelSpec, seconds: float, spread: float = 0.0) -> Row:
    point = SITE.point(spec, None, BATCH)
    return Row.timed(point, [seconds * (1 + spread * k) for k in (-1, -0.5, 0, 0.5, 1)])


CONTEST = Contest(SITE.request(Problem(N), BATCH).on(Layout.canonical()), Choice(ROWWISE, None, "a table"), (), 3, 5)
FAST, SLOW = (replace(ROWWISE, schedule=ThreadSchedule(nb)) for nb in (2, 3))


@pytest.mark.parametrize(
    ("own", "theirs", "replaced", "margin"),
    [
        ([1.0], [0.98], False, 0.03),
        ([1.0], [0.96], True, 0.03),
        ([1.0, 1.2, 1.0], [0.9, 0.9, 0.9], False, 0.2),
        ([1.0, 1.2, 1.0], [0.8, 0.8, 0.8], True, 0.2),
        ([1.0, 1.0, 1.0], [0.9, 0.9, 1.1], False, 0.2222),
        ([1.0], [1.5], False, 0.03),
    ],
)
def test_only_what_is_past_the_margin_replaces_the_current_choice(
    own: list[float], theirs: list[float], replaced: bool, margin: float
) -> None:
    rows = [*(row(ROWWISE, seconds) for seconds in own), *(row(FAST, seconds) for seconds in theirs)]
    entry = CONTEST.decided([*rows, row(SLOW, 9.0)], SITE)
    assert entry is not None
    assert (entry.schedule == FAST.schedule, entry.kept, entry.margin) == (replaced, not replaced, margin)
    assert entry.incumbent == ROWWISE.schedule
    assert entry.runner_up == (ROWWISE if replaced else FAST).schedule
    assert (entry.ns, entry.incumbent_ns) == ((theirs if replaced else own)[0] * 1e6, own[0] * 1e6)
    about = {name: entry.about[name] for name in ("driver", "version", "measured", "candidates", "samples")}
    assert about == {"driver": "580", "version": "0.1", "measured": 3, "candidates": 5, "samples": 5 * len(own)}
    assert str(entry.about["date"]).startswith("20")


@pytest.mark.parametrize(
    ("own", "theirs", "words"),
    [
        (1.0, 1.256, "25.6% slower"),
        (1.0, 1.0, "0.0% slower"),
        (1.02, 1.0, "2.0% faster, within the margin of 3.0%"),
        (1.2, 1.0, "20.0% faster, past the margin of 3.0%"),
        (None, 1.0, "the current one could not run"),
    ],
)
def test_the_verdict_says_which_one_is_the_faster(own: float | None, theirs: float, words: str) -> None:
    lost = Row(SITE.point(ROWWISE, None, BATCH), "runtime", "a fault")
    entry = CONTEST.decided([lost if own is None else row(ROWWISE, own), row(FAST, theirs)], SITE)
    assert entry is not None
    current, other = case.describe(entry, "cuda")
    assert other.endswith(f"  {words}")
    assert current.endswith("stays") == ("past" not in words and own is not None)


def test_of_a_single_round_the_samples_spread_is_the_noise() -> None:
    entry = CONTEST.decided([row(ROWWISE, 1.0, spread=0.2), row(FAST, 0.9)], SITE)
    assert entry is not None
    assert (entry.kept, entry.margin) == (True, 0.2)


def test_what_cannot_run_gives_way_and_nothing_comes_of_nothing() -> None:
    lost = Row(SITE.point(ROWWISE, None, BATCH), "runtime", "a fault")
    entry = CONTEST.decided([lost, row(FAST, 1.0)], SITE)
    assert entry is not None
    assert (entry.schedule, entry.incumbent_ns, entry.runner_up, entry.kept) == (FAST.schedule, None, None, False)
    assert CONTEST.decided([lost], SITE) is None
