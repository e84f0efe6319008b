"""The history of each case: its numbers by commit, with intervals, where it changes, and what that means now."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from batchchol.asv_plugin.history.change_points import SMALLEST, ChangePoint, Controls, change_points, noise
from batchchol.asv_plugin.history.store import Measurement
from batchchol.tune.choosing.winners import grouped

LATELY = 5
"""Changes at a machine's last commits, this many, are news."""
FLAKY = 0.05
"""Equal code that differs by more, as a standard deviation, makes a case flaky."""

_CONFIDENCE = 0.95
# The standard error of a median of normal samples, times the root of their number, over their standard deviation.
_MEDIAN_ERROR = 1.2533


@dataclass(frozen=True)
class Commit:
    """A measured commit."""

    name: str
    date: str

    @property
    def short(self) -> str:
        """The name as people write it."""
        return self.name[:8]


@dataclass(frozen=True)
class Number:
    """A case at a commit: the median over its runs, and an interval that holds 95% of what more runs would give.

    NaN of a failure. The interval reaches over the medians of all runs, and the confidence interval of the median of
    their samples; it is the median itself where there is one run without samples.
    """

    commit: Commit
    median: float
    low: float
    high: float
    error: float
    runs: tuple[Measurement, ...]

    @property
    def failed(self) -> bool:
        return math.isnan(self.median)

    @property
    def about(self) -> Mapping[str, Any]:
        """What was recorded of the last run."""
        return self.runs[-1].about


@dataclass(frozen=True)
class Case:
    """A point of a benchmark on a machine, over the commits at which it was measured, the oldest first."""

    machine: str
    benchmark: str
    params: Mapping[str, Any]
    unit: str
    numbers: tuple[Number, ...]
    commits: tuple[Commit, ...]
    """All commits that were measured on the machine."""
    varied: tuple[str, ...] = ()
    """The parameters in which the benchmark's cases differ."""
    controls: Controls = field(default_factory=Controls)

    @cached_property
    def known(self) -> tuple[Number, ...]:
        """Without failures."""
        return tuple(number for number in self.numbers if not number.failed)

    @cached_property
    def changes(self) -> list[ChangePoint]:
        """Where it changed, by indices of `known`."""
        return change_points([number.median for number in self.known], self.noise)

    @property
    def label(self) -> str:
        """What it varies for people; None is a default."""
        return _said({name: self.params.get(name) for name in self.varied}) or "all"

    @property
    def fixed(self) -> str:
        """What all cases of the benchmark have in common, for people."""
        return _said({name: value for name, value in self.params.items() if name not in self.varied})

    @cached_property
    def noise(self) -> float:
        """What equal code differs by from one commit to the next, a relative standard deviation."""
        numbers = self.known
        return noise([each.median for each in numbers], [each.error for each in numbers], self.controls)

    @property
    def level(self) -> float:
        """The median of the numbers since the last change; NaN if there is none."""
        first = self.changes[-1].index if self.changes else 0
        return float(np.median([number.median for number in self.known[first:]] or [math.nan]))

    @cached_property
    def state(self) -> str:
        """One of "failed", "slower", "faster", "flaky", "undecided" and "steady", by the machine's last commits."""
        if self.numbers[-1].failed:
            return "failed"
        if self.news is not None:
            # With the same kernel the machine, its driver or the host's code has changed: measure again.
            return "undecided" if self.same_kernel(self.news.index) else "slower" if self.news.ratio > 1 else "faster"
        if self.noise > FLAKY:
            return "flaky"
        newest = self.known[-1]
        off = abs(math.log(newest.median / self.level))
        return "undecided" if off > max(math.log1p(SMALLEST), 2 * self.noise) else "steady"

    @property
    def news(self) -> ChangePoint | None:
        """The last change, if it is at one of the machine's last commits."""
        late = {commit.name for commit in self.commits[-LATELY:]}
        return next((each for each in reversed(self.changes) if self.known[each.index].commit.name in late), None)

    def same_kernel(self, index: int) -> bool:
        """Whether the kernel's text is known, and was the same at `known[index]` and before."""
        before, after = (self.known[each].about.get("source_sha256") for each in (index - 1, index))
        return bool(after) and before == after

    @cached_property
    def equal_code(self) -> tuple[float, ...]:
        """Logarithmic ratios of neighbouring medians of the same kernel text."""
        medians = [number.median for number in self.known]
        return tuple(
            math.log(medians[index] / medians[index - 1])
            for index in range(1, len(medians))
            if self.same_kernel(index)
        )

    def at(self, commit: Commit) -> Number | None:
        """The number of a commit, if it was measured there."""
        return next((number for number in self.numbers if number.commit == commit), None)


@dataclass(frozen=True)
class Machine:
    """All that was measured on a machine in an environment."""

    name: str
    commits: tuple[Commit, ...]
    cases: tuple[Case, ...]

    def of_benchmark(self) -> dict[str, list[Case]]:
        """The cases of each benchmark, in the order of their parameters."""
        return grouped(self.cases, lambda case: case.benchmark)


def machines(measurements: Iterable[Measurement]) -> list[Machine]:
    """The machines of some measurements, with the history of every case."""
    of_machine = grouped(measurements, lambda each: f"{each.machine}, {each.environment}")
    return [_machine(name, of_machine[name]) for name in sorted(of_machine)]


def _machine(name: str, measurements: Sequence[Measurement]) -> Machine:
    dates = {each.commit: each.date for each in measurements}
    commits = tuple(
        Commit(each, f"{dates[each]:%Y-%m-%d}") for each in sorted(dates, key=lambda key: (dates[key], key))
    )
    points = grouped(measurements, lambda each: (each.benchmark, *map(repr, each.params.items())))
    found = [_case(name, commits, each) for each in points.values()]
    cases = [case for of in grouped(found, lambda case: case.benchmark).values() for case in _told_apart(of)]
    cases.sort(key=lambda case: (case.benchmark, _order(case)))
    pooled = tuple(ratio for case in cases for ratio in case.equal_code)
    return Machine(name, commits, tuple(replace(case, controls=Controls(case.equal_code, pooled)) for case in cases))


def _told_apart(cases: Sequence[Case]) -> Iterator[Case]:
    """Cases of a benchmark that know what they differ in."""
    names = dict.fromkeys(name for case in cases for name in case.params)
    varied = tuple(name for name in names if len({repr(case.params.get(name)) for case in cases}) > 1)
    for case in cases:
        yield replace(case, varied=varied)


def _said(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in params.items() if value is not None)


def _order(case: Case) -> tuple[tuple[str, float, str], ...]:
    """Numbers by their size, in the order of the parameters' names."""
    return tuple((name, _size(value), str(value)) for name, value in sorted(case.params.items()))


def _size(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.inf


def _case(machine: str, commits: tuple[Commit, ...], found: Sequence[Measurement]) -> Case:
    runs = grouped(found, lambda each: each.commit)
    numbers = tuple(_number(commit, runs[commit.name]) for commit in commits if commit.name in runs)
    newest = found[-1]
    return Case(machine, newest.benchmark, newest.params, newest.unit, numbers, commits)


def _number(commit: Commit, runs: Sequence[Measurement]) -> Number:
    medians = [run.median for run in runs if run.status == "measured"]
    if not medians:
        return Number(commit, math.nan, math.nan, math.nan, math.nan, tuple(runs))
    samples = np.sort([sample for run in runs for sample in run.samples])
    bounds = _median_interval(samples) if len(samples) else (medians[0], medians[0])
    middle = float(np.median(medians))
    return Number(commit, middle, min(*medians, bounds[0]), max(*medians, bounds[1]), _error(samples), tuple(runs))


def _median_interval(samples: Any) -> tuple[float, float]:
    """Order statistics about the median of sorted samples: no assumption about their distribution."""
    from scipy import stats

    low, high = stats.binom.interval(_CONFIDENCE, len(samples), 0.5)
    return float(samples[int(low)]), float(samples[min(int(high), len(samples) - 1)])


def _error(samples: Any) -> float:
    """The relative standard error of the median of samples; 0 of fewer than two."""
    if len(samples) < 2:
        return 0.0
    quarters = np.quantile(samples, [0.25, 0.5, 0.75])
    deviation = (quarters[2] - quarters[0]) / 1.349
    return float(_MEDIAN_ERROR * deviation / math.sqrt(len(samples)) / quarters[1])
