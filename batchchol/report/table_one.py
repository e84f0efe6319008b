"""Table I of the 2017 study by its own measure, beside its numbers (Gates et al., doi:10.1109/IPDPSW.2017.18).

%IncMSE, as R's package randomForest computes it (Breiman, Random Forests, 2001): of each tree, by how much the mean
squared error of the points that it was not fitted on increases when the values of a parameter are shuffled among
them; the mean over the trees by its standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.parallel import available_threads
from batchchol.report.importance import LEAST_POINTS

STUDY: Mapping[str, float] = MappingProxyType(
    {
        "chunking": 157.4,
        "nb": 103.9,
        "looking": 99.9,
        "unrolling": 85.7,
        "n": 43.1,
        "chunk size": 25.9,
        "cache": -18.6,
    }
)
"""The study's, of a P100."""

TREES = 500
# R's defaults of a regression: a third of the parameters at each split, leaves of five points.
_SHARE, _LEAF, _SEED = 1 / 3, 5, 2017
_LOOKING = ("right", "left", "top")
_COLUMNS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "chunking": lambda rows: rows["layout"] == "chunked",
        "nb": lambda rows: rows["nb"],
        "looking": lambda rows: rows["looking"].map(_LOOKING.index),
        "unrolling": lambda rows: rows["unroll"] == "full",
        "n": lambda rows: rows["n"],
        "chunk size": lambda rows: rows["chunk"].fillna(0),
        "cache": lambda rows: rows["cache"] == "shared",
    }
)

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """A parameter's %IncMSE in the study and here, and its rank among those that were measured, from 1."""

    parameter: str
    study: float
    here: float
    study_rank: int
    rank: int


def table(rows: Any, trees: int = TREES) -> tuple[Line, ...]:
    """The parameters in the study's order, without those that the points have one value of; none of few points.

    Parameters
    ----------
    rows : pandas.DataFrame
        Points of the thread family, of one accuracy class, with their `gflops`.
    trees : int
        Of the forest.
    """
    if len(rows) < LEAST_POINTS:
        return ()
    encoded = {name: np.asarray(column(rows), dtype=np.float64) for name, column in _COLUMNS.items()}
    varied = [name for name, values in encoded.items() if np.ptp(values) > 0]
    if not varied:
        return ()
    numbers = np.column_stack([encoded[name] for name in varied])
    found = increases(numbers, rows["gflops"].to_numpy(dtype=np.float64), trees)
    here = dict(zip(varied, map(float, found), strict=True))
    ranks, study_ranks = _ranks(here), _ranks({name: STUDY[name] for name in varied})
    return tuple(Line(name, STUDY[name], here[name], study_ranks[name], ranks[name]) for name in varied)


def increases(numbers: Numbers, target: Numbers, trees: int) -> Numbers:
    """%IncMSE of each column of `numbers`."""
    from sklearn.ensemble import BaggingRegressor
    from sklearn.tree import DecisionTreeRegressor

    tree = DecisionTreeRegressor(max_features=_SHARE, min_samples_leaf=_LEAF)
    forest = BaggingRegressor(tree, trees, n_jobs=available_threads(), random_state=_SEED).fit(numbers, target)
    random = np.random.default_rng(_SEED)
    rises = np.array(
        [
            _rises(each, np.setdiff1d(np.arange(len(target)), seen), numbers, target, random)
            for each, seen in zip(forest.estimators_, forest.estimators_samples_, strict=True)
        ]
    )
    deviation = rises.std(axis=0, ddof=1) / np.sqrt(trees)
    increased: Numbers = np.divide(rises.mean(axis=0), deviation, out=np.zeros(rises.shape[1]), where=deviation > 0)
    return increased


def _rises(tree: Any, unseen: Any, numbers: Numbers, target: Numbers, random: np.random.Generator) -> list[float]:
    """By how much a tree's squared error rises, a column shuffled at a time."""
    points, observed = numbers[unseen], target[unseen]

    def error(of: Numbers) -> float:
        return float(np.mean((tree.predict(of) - observed) ** 2))

    before, found = error(points), []
    for column in range(points.shape[1]):
        shuffled = points.copy()
        shuffled[:, column] = random.permutation(shuffled[:, column])
        found.append(error(shuffled) - before)
    return found


def _ranks(values: Mapping[str, float]) -> dict[str, int]:
    return {name: place for place, name in enumerate(sorted(values, key=lambda name: -values[name]), start=1)}
