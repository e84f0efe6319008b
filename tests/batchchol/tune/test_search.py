"""Guided search: strategies ask each point once, learn and are repeatable; searches resume, fail and end in order."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchchol.errors import BatchcholError
from batchchol.measure.dataset import DataSet, key_of_row, read_rows
from batchchol.measure.point import Point
from batchchol.measure.row import Row, Value
from batchchol.progress import Progress
from batchchol.tune.choosing.winners import grouped
from batchchol.tune.compile import Built
from batchchol.tune.search import guided
from batchchol.tune.search.cases import CODE, Budget, budget, case_of, code_of, lessons
from batchchol.tune.search.features import encoded
from batchchol.tune.search.strategies import STRATEGIES, Strategy, make
from batchchol.tune.search.taught import LEAST_LESSONS
from batchchol.tune.sweep import Summary, sweep

from ...synthetic_sweep import points as synthetic
from ...synthetic_sweep import row, seconds

pytest.importorskip("pandas")
pytest.importorskip("sklearn")
pytest.importorskip("optuna")


@pytest.fixture(scope="module")
def case() -> list[Point]:
    """A case of the space `paper`: 378 points."""
    return synthetic(n=[48], math=["fast"])


@pytest.fixture(scope="module")
def small(case: list[Point]) -> list[Point]:
    return random.Random(3).sample(case, 40)


def answer(point: Point) -> float | None:
    """What the synthetic data set says; a point in seven fails, and never the best ones."""
    return None if point.spec.schedule.nb == 9 else seconds(point)


def asked(name: str, points: Sequence[Point], seed: int, count: int) -> list[Point]:
    """The first `count` points that a strategy asks for, each told before the next."""
    strategy = make(name, [points], seed)[0]
    found = []
    for _ in range(count):
        point = strategy.ask()
        assert point is not None
        strategy.tell(point, answer(point))
        found.append(point)
    return found


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_asks_every_point_once_and_repeats_itself(name: str, small: list[Point]) -> None:
    found = asked(name, small, 5, len(small))
    assert sorted(point.key for point in found) == sorted(point.key for point in small)
    assert asked(name, small, 5, 12) == found[:12]
    if name != "exhaustive":
        assert asked(name, small, 6, 12) != found[:12]
    strategy = make(name, [small], 5)[0]
    # Known before, and asked for in numbers before anything is told: nothing comes twice either way.
    for point in small[::2]:
        strategy.tell(point, answer(point))
    several = [strategy.ask() for _ in range(5)]
    for point in several:
        assert point is not None
        strategy.tell(point, answer(point))
    rest = []
    while (point := strategy.ask()) is not None:
        rest.append(point)
    assert sorted(point.key for point in [*several, *rest] if point) == sorted(point.key for point in small[1::2])
    assert strategy.ask() is None
    with pytest.raises(ValueError, match="none of the 40 of this case"):
        strategy.tell(replace(small[0], batch=1), 1.0)


def test_strategies_that_learn_need_fewer_measurements(case: list[Point]) -> None:
    totals = {
        name: sum(needed(make(name, [case], seed), [case])[0] for seed in range(4))
        for name in ("random", "tpe", "forest")
    }
    assert totals["forest"] < 0.5 * totals["random"]
    assert totals["tpe"] < 0.8 * totals["random"]


def needed(strategies: Sequence[Strategy], cases: Sequence[Sequence[Point]]) -> list[int]:
    """Measurements of each case until within 1% of its best; in every round all cases ask before one is told."""
    best = [min(found for point in case if (found := answer(point)) is not None) for case in cases]
    counts, close = [0] * len(cases), [False] * len(cases)
    while not all(close):
        asked = [strategy.ask() for strategy in strategies]
        for number, point in enumerate(asked):
            assert point is not None
            took = answer(point)
            strategies[number].tell(point, took)
            counts[number] += not close[number]
            close[number] |= took is not None and took <= 1.01 * best[number]
    return counts


def test_cases_learn_from_each_other_and_from_other_data() -> None:
    cases = list(grouped(synthetic(n=[36, 40, 48, 56], math=["fast"]), case_of).values())
    seeds = (2, 3)
    alone, together = (
        sum(sum(needed(make(name, cases, seed), cases)) for seed in seeds) for name in ("forest", "transfer")
    )
    assert together < 0.7 * alone
    # Lessons of a device that is three times as slow, where one point in seven failed.
    rows = []
    for point in synthetic(300, n=[24, 64], math=["fast"]):
        took = answer(point)
        values = row(point).values()
        rows.append(values | {"median_seconds": took and 3 * took, "status": "correct" if took else "wrong"})
    known = {key_of_row(each) for each in rows[:100]}
    taught = lessons(rows, gpu=True, without=known)
    assert len(taught) == len(rows) - 100
    assert min(lesson.log for lesson in taught) == 0
    assert not lessons(rows, gpu=False)
    assert lessons([rows[0] | {"definition": rows[0]["definition"].replace('"nb":', '"nb":10')}], gpu=True) == []
    one = cases[-1:]
    told = sum(sum(needed(make("transfer", one, seed, taught), one)) for seed in range(4, 7))
    assert told < 0.6 * sum(sum(needed(make("forest", one, seed), one)) for seed in range(4, 7))


def test_what_is_known_of_other_orders_and_their_code_leads_to_the_best_at_once(case: list[Point]) -> None:
    rows = [row(point).values() | {"code_bytes": len(point.key)} for point in synthetic(n=[40, 56], math=["fast"])]
    taught, codes = lessons(rows, gpu=True), {point.key: code_of({"code_bytes": len(point.key)}) for point in case}
    assert len(taught) >= LEAST_LESSONS
    assert {len(lesson.code) for lesson in taught} == {len(CODE)}
    for seed in (1, 2):
        (count,) = needed(make("transfer", [case], seed, taught, codes), [case])
        assert count <= 0.03 * len(case)
    strategy, found = make("transfer", [case], 1, taught)[0], []
    while (point := strategy.ask()) is not None:
        found.append(point.key)
        # Some are asked for before those ahead of them are told.
        if len(found) % 3:
            strategy.tell(point, answer(point))
    assert sorted(found) == sorted(point.key for point in case)


def test_only_failures_are_no_reason_to_stop(small: list[Point]) -> None:
    for name in STRATEGIES:
        strategy = make(name, [small[:15]], 1)[0]
        for _ in range(15):
            point = strategy.ask()
            assert point is not None
            strategy.tell(point, None)
        assert strategy.ask() is None


def test_points_that_do_not_differ_in_a_parameter_are_searched_too(small: list[Point]) -> None:
    alike = [small[0], replace(small[0], any_block=not small[0].any_block)]
    assert not encoded(tuple(alike)).parameters
    for name in STRATEGIES:
        strategy = make(name, [alike])[0]
        found = [strategy.ask(), strategy.ask()]
        assert set(found) == set(alike)
        for point in alike:
            strategy.tell(point, 1.0)


def test_cases_have_what_somebody_wants_to_run() -> None:
    points = synthetic(n=[8, 16])
    cases = grouped(points, case_of)
    assert {(case.n, case.math) for case in cases} == {(8, "ieee"), (8, "fast"), (16, "ieee"), (16, "fast")}
    assert sum(map(len, cases.values())) == len(points)
    assert str(case_of(points[0])).startswith(f"n = {points[0].spec.problem.n}, float32, ")
    some = grouped([points[0], replace(points[0], batch=7)], case_of)
    assert len(some) == 2


@pytest.mark.parametrize(("text", "points"), [("40", 40), ("5%", 20), ("0.1%", 1), ("100%", 400), ("9999", 400)])
def test_budgets(text: str, points: int) -> None:
    assert budget(text).of(400) == points


@pytest.mark.parametrize("text", ["0", "-1", "0%", "101%", "5 %", "many", "1e3", ""])
def test_budgets_that_mean_nothing(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a number of points such as 40, or a share"):
        budget(text)


@pytest.mark.parametrize(("name", "package"), [("tpe", "optuna"), ("forest", "sklearn.tree"), ("forest", "pandas")])
def test_a_package_that_is_missing_is_named(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BatchcholError, match=r"pip install -e '\.\[search\]'"):
        make(name, [synthetic(7, n=[4])])
    with pytest.raises(ValueError, match="strategy: got 'luck', expected one of exhaustive, random, tpe, forest, "):
        make("luck", [])


class Bench:
    """Measures by the formula, in this process; `stop` is the measurement at which somebody interrupts."""

    def __init__(self, stop: int = 0) -> None:
        self.measured: list[Point] = []
        self._stop = stop

    def about(self, dtype: str, threads: int) -> dict[str, Value]:
        return {"device": "made up"}

    def submit(self, point: Point) -> None:
        if self._stop and len(self.measured) == self._stop:
            raise KeyboardInterrupt
        self.measured.append(point)

    def result(self) -> Row:
        point = self.measured[-1]
        return row(point, "correct" if answer(point) is not None else "wrong")


def built(points: Sequence[Point]) -> Built:
    """Tiles of 8 do not compile; large blocks get their own code."""
    there = [
        point.own if (point.spec.schedule.threads or 0) > 256 else point
        for point in points
        if point.spec.schedule.nb != 8
    ]
    failed = [Row(point, "compile", "nothing") for point in points if point.spec.schedule.nb == 8]
    return Built(there, failed)


@pytest.fixture
def search(tmp_path: Path) -> Callable[..., tuple[list[guided.Search], Summary, Bench]]:
    """search(points, ...): a guided search in the folder `data`, with what is there told first."""

    def run(
        points: Sequence[Point], size: Budget, *, name: str = "transfer", stop: int = 0, ahead: int = 1
    ) -> tuple[list[guided.Search], Summary, Bench]:
        bench = Bench(stop)
        with DataSet(tmp_path / "data", "made up") as data:
            searches = guided.prepare(points, name, size, data.done)

            def measure(asked: Sequence[Point], data: DataSet, **options: Any) -> Summary:
                return sweep(asked, bench, data, **options)

            done = guided.guided(searches, built, measure, data, ahead=ahead, space="paper", show=shown.append)
        return searches, done, bench

    shown: list[Progress] = []
    return run


def test_a_search_is_kept_interrupted_and_resumed(
    search: Callable[..., tuple[list[guided.Search], Summary, Bench]], tmp_path: Path
) -> None:
    points = synthetic(n=[20, 48], math=["fast"])
    with pytest.raises(KeyboardInterrupt):
        search(points, Budget(points=20), stop=13)
    kept = read_rows(tmp_path / "data")
    measured = [each for each in kept if each["status"] != "compile"]
    assert len(measured) == 13, "an interrupt costs the point that was about to begin"
    assert {each["space"] for each in kept} == {"paper"}
    searches, done, bench = search(points, Budget(points=20))
    rows = read_rows(tmp_path / "data")
    assert len(rows) == 40
    assert done.statuses.total() == 40 - len(kept)
    assert done.left == 0
    assert len({(each["spec"], each["chunk"]) for each in rows}) == 40
    assert all(point.any_block == ((point.spec.schedule.threads or 0) <= 256) for point in bench.measured)
    for each in searches:
        assert len(each.told) == 20
        point, took = each.best or pytest.fail("nothing was found")
        assert took == min(found for _, found in each.told.values() if found is not None)
        assert took == pytest.approx(seconds(point), rel=0.02)
    assert search(points, Budget(points=20))[1].statuses.total() == 0, "nothing is left of the budget"
    assert search(points, Budget(points=25), ahead=64)[1].statuses.total() == 10


def test_a_search_may_cover_a_whole_space(
    search: Callable[..., tuple[list[guided.Search], Summary, Bench]], tmp_path: Path
) -> None:
    points = synthetic(n=[4])
    searches, done, _ = search(points, Budget(share=1.0), name="random", ahead=64)
    assert done.left == 0
    assert len(read_rows(tmp_path / "data")) == len(points) == sum(len(each.told) for each in searches)


def test_points_are_asked_for_ahead_of_their_measurement(case: list[Point]) -> None:
    searches = guided.prepare(case, "random", Budget(points=6), {})
    assert [len(points) for points in guided._ask(searches, 16).values()] == [guided.MOST_AHEAD]
    assert len(guided._ask(searches, 1)[0]) == 1
