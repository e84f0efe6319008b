"""A random forest that predicts GFLOP/s from the parameters, and what that says about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.parallel import available_threads
from batchchol.tune.search import features
from batchchol.tune.search.features import Parameter

TREES = 500
GOOD = 0.9
"""The R² from which on a forest counts as one that predicts."""

LEAST_POINTS = 60
"""Fewer say nothing about parameters."""

_HELD_OUT = 0.2
# The share of the parameters that a split may choose from, and what is still split: the defaults of R for a
# regression. Where orders are held out, a split among all of them predicted worse.
_SHARE, _SPLIT = 1 / 3, 6
# With this few orders all are at the edge; a smaller rise of R² does not count.
_FEW, _MORE = 4, 0.02
_FOLDS, _REPEATS, _SEED = 5, 5, 2017
# Shuffling is repeated for every parameter: this many of the held-out points are enough.
_SHUFFLED = 2_000

# Known before anything runs.
_COMPILED = {
    "registers": "registers",
    "spill_bytes": "spilled bytes",
    "code_bytes": "bytes of code",
    "occupancy": "occupancy",
}
# This many trees score within half a percent of the variance of what 500 do.
_ENOUGH = 100
# Of extremely randomized trees, whose splits are drawn: the share of the inputs that a split may choose from. At
# orders that they have not seen they predict better than trees with the best splits, told the same.
_SHARE_DRAWN = 1 / 2

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Prediction:
    """Observed and predicted GFLOP/s of points that the forest had not seen."""

    observed: Numbers
    predicted: Numbers
    orders: NDArray[np.int64]

    @property
    def r2(self) -> float:
        """1 - squared error / variance; NaN where nothing varies."""
        variation = float(np.sum((self.observed - self.observed.mean()) ** 2))
        return 1 - float(np.sum(self._errors**2)) / variation if variation > 0 else float("nan")

    @property
    def rmse(self) -> float:
        """Root of the mean squared error, GFLOP/s."""
        return float(np.sqrt(np.mean(self._errors**2)))

    @property
    def median_error(self) -> float:
        """The median of |predicted - observed| / observed."""
        return float(np.median(np.abs(self._errors) / self.observed))

    def shares(self) -> dict[int, float]:
        """The share of the squared error that each order has, largest first."""
        errors, total = self._errors**2, float(np.sum(self._errors**2)) or 1.0
        found = {int(n): float(errors[self.orders == n].sum()) / total for n in np.unique(self.orders)}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def without(self, orders: Sequence[int]) -> Prediction:
        """The prediction of the other orders."""
        kept = ~np.isin(self.orders, orders)
        return Prediction(self.observed[kept], self.predicted[kept], self.orders[kept])

    @property
    def _errors(self) -> Numbers:
        return self.predicted - self.observed


@dataclass(frozen=True)
class Told:
    """A prediction by extremely randomized trees that were told more than the parameters, and what, in words."""

    prediction: Prediction
    names: tuple[str, ...]


@dataclass(frozen=True)
class Importance:
    """How much worse a forest predicts when a parameter's values are shuffled among the points.

    Attributes
    ----------
    parameter : Parameter
    increase, spread : float
        Of the mean squared error, (GFLOP/s)², mean and standard deviation over the shuffles.
    share : float
        The increase over the variance of what was observed.
    """

    parameter: Parameter
    increase: float
    spread: float
    share: float


@dataclass(frozen=True)
class Forest:
    """A fitted forest's account of itself.

    Attributes
    ----------
    trees, points, fitted : int
        Trees; points; points that it was fitted on before it was asked about the held-out ones.
    depth : float
        The mean of its trees'.
    points_held_out : Prediction
        A random fifth of the points: neighbours of what it has seen.
    orders_held_out : Prediction or None
        All points, each by a forest that has seen no point of its order; None where there is one order only.
    compiled : Told or None
        That by forests which were also told what the compiler says of each kernel; None where the parameters do by
        themselves, or it says nothing.
    importances : tuple of Importance
        The largest first.
    """

    trees: int
    points: int
    fitted: int
    depth: float
    points_held_out: Prediction
    orders_held_out: Prediction | None
    compiled: Told | None
    importances: tuple[Importance, ...]


def grow(rows: Any, trees: int = TREES) -> Forest | str:
    """Fit a forest to points, see `Forest`; or say why there is none.

    The same rows give the same forest, up to rounding. The points of one order are together in the
    cross-validation, because a point is predicted well when its neighbours of the same order are known, and that
    says little of an order that is not.
    """
    chosen = features.parameters(rows)
    if len(rows) < LEAST_POINTS or not chosen:
        there = f"{len(rows):,} with {len(chosen)} parameters that differ"
        return f"There is no forest: it takes {LEAST_POINTS} points that differ in something, and there are {there}."
    from sklearn.model_selection import train_test_split

    numbers, gflops = features.encode(rows, chosen), rows["gflops"].to_numpy(dtype=np.float64)
    orders = rows["n"].to_numpy(dtype=np.int64)
    seen, unseen = train_test_split(np.arange(len(rows)), test_size=_HELD_OUT, random_state=_SEED)
    model = _model(chosen, trees).fit(numbers[seen], gflops[seen])
    held_out = Prediction(gflops[unseen], model.predict(numbers[unseen]), orders[unseen])
    by_order = _by_order(_model(chosen, trees), numbers, gflops, orders)
    compiled = None
    if by_order is not None and not by_order.r2 >= GOOD:
        compiled = _told(rows, min(trees, _ENOUGH), chosen, numbers, gflops, orders)
    return Forest(
        trees,
        len(rows),
        len(seen),
        float(np.mean([tree.get_depth() for tree in model[-1].estimators_])),
        held_out,
        by_order,
        compiled,
        _importances(model, numbers[unseen[:_SHUFFLED]], gflops[unseen[:_SHUFFLED]], chosen),
    )


def why_not(prediction: Prediction, compiled: Told | None = None) -> str:
    """Where a forest that predicts badly for unseen orders goes wrong, in a few sentences.

    `compiled` is of forests that also knew what the compiler said.
    """
    shares = prediction.shares()
    named = ", ".join(f"n = {n} ({share:.0%})" for n, share in list(shares.items())[:3])
    text = f"R² is {prediction.r2:.2f}, less than {GOOD}. Most of the squared error is at {named}."
    if len(shares) > _FEW:
        edges = [min(shares), max(shares)]
        inner = prediction.without(edges).r2
        text += (
            " At the smallest and the largest order a forest has to extrapolate, and answers as for the nearest one "
            f"it knows. Without n = {edges[0]} and {edges[1]} R² is {inner:.2f}: that is "
            f"{_explained(inner, prediction.r2, 'the reason', 'a part of it', 'not the reason')}."
        )
        if inner >= GOOD:
            return text
    text += (
        " An order that it has not seen it knows only by its neighbours, while what decides the speed, such as "
        "whether a tile divides n or a triangle still fits the registers, may change from one order to the next."
    )
    if compiled is not None:
        reached, lacks = compiled.prediction.r2, "what it lacks"
        answer = _explained(
            reached, prediction.r2, "what the parameters do not tell", f"a part of {lacks}", f"not {lacks}"
        )
        text += (
            f" Extremely randomized trees, told also what the compiler says of each kernel, which is known before "
            f"anything runs ({', '.join(compiled.names)}), reach R² = {reached:.2f} at unseen orders: that is "
            f"{answer}."
        )
    return text


def _explained(reached: float, before: float, whole: str, part: str, nothing: str) -> str:
    """What is said of an explanation that raises R² from one value to another."""
    return whole if reached >= GOOD else part if reached > before + _MORE else nothing


def _model(chosen: tuple[Parameter, ...], trees: int, *, drawn: bool = False) -> Any:
    from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    kind, share = (ExtraTreesRegressor, _SHARE_DRAWN) if drawn else (RandomForestRegressor, _SHARE)
    forest = kind(trees, max_features=share, min_samples_split=_SPLIT, n_jobs=available_threads(), random_state=_SEED)
    return make_pipeline(FunctionTransformer(features.expand, kw_args={"chosen": chosen}), forest)


def _by_order(model: Any, numbers: Numbers, gflops: Numbers, orders: NDArray[np.int64]) -> Prediction | None:
    from sklearn.model_selection import GroupKFold, cross_val_predict

    folds = min(_FOLDS, len(np.unique(orders)))
    if folds < 2:
        return None
    return Prediction(gflops, cross_val_predict(model, numbers, gflops, groups=orders, cv=GroupKFold(folds)), orders)


def _told(
    rows: Any,
    trees: int,
    chosen: tuple[Parameter, ...],
    numbers: Numbers,
    gflops: Numbers,
    orders: NDArray[np.int64],
) -> Told | None:
    """How well trees predict unseen orders that know what the compiler says; None where it says nothing."""
    there = [name for name in _COMPILED if rows[name].nunique() > 1]
    if not there:
        return None
    more = np.asarray(rows[there].astype("float64").fillna(-1), dtype=np.float64)
    told = np.column_stack([numbers, more])
    prediction = _by_order(_model(chosen, trees, drawn=True), told, gflops, orders)
    return None if prediction is None else Told(prediction, tuple(_COMPILED[name] for name in there))


def _importances(
    model: Any, numbers: Numbers, gflops: Numbers, chosen: tuple[Parameter, ...]
) -> tuple[Importance, ...]:
    from sklearn.inspection import permutation_importance

    found = permutation_importance(
        model, numbers, gflops, scoring="neg_mean_squared_error", n_repeats=_REPEATS, random_state=_SEED
    )
    variance = float(np.var(gflops)) or 1.0
    each = zip(chosen, found.importances_mean, found.importances_std, strict=True)
    table = [
        Importance(parameter, float(mean), float(spread), float(mean) / variance) for parameter, mean, spread in each
    ]
    return tuple(sorted(table, key=lambda line: -line.increase))
