"""The tree-structured Parzen estimator of Optuna (Bergstra et al., 2011), asked and told."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from batchchol.measure.point import Point
from batchchol.tune.search.features import Encoding, encoded, package
from batchchol.tune.search.strategies import Strategy

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

# Random points before the first estimate: Optuna's default, ten, is a quarter of what may be measured here.
_BEGIN = 6


class Tpe(Strategy):
    """Optuna proposes values of the parameters; the nearest free point of the case is asked for.

    A parameter that is a number is an ordinal distribution of its values there, a word a categorical one. What Optuna
    proposes need be no point of the case, or one that is known: neither costs a measurement.
    """

    def __init__(self, points: Sequence[Point], seed: int = 0) -> None:
        optuna = self._optuna = package("optuna")
        # A study would announce itself on standard error.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        super().__init__(points)
        self._encoding = encoded(self.points)
        self._distributions = _distributions(self._encoding)
        self._random = np.random.default_rng(seed)
        self._asked: dict[int, Trial] = {}
        with warnings.catch_warnings():
            # Some versions call these experimental, and some do not.
            warnings.simplefilter("ignore")
            sampler = optuna.samplers.TPESampler(
                n_startup_trials=_BEGIN, multivariate=True, constant_liar=True, seed=seed
            )
        self._study = optuna.create_study(sampler=sampler)

    def ask(self) -> Point | None:
        if not self.free:
            return None
        trial = self._study.ask(self._distributions)
        number = self._nearest(trial)
        if self._values(number) != trial.params:
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            self._study.enqueue_trial(self._values(number))
            trial = self._study.ask(self._distributions)
        self._asked[number] = trial
        return self.take(number)

    def tell(self, point: Point, seconds: float | None) -> None:
        number = self.told(point)
        # The worst value: Optuna would forget a trial reported as failed, and propose it again.
        value = math.inf if seconds is None else seconds
        trial = self._asked.pop(number, None)
        if trial is not None:
            self._study.tell(trial, value)
            return
        made = self._optuna.trial.create_trial(
            params=self._values(number), distributions=self._distributions, value=value
        )
        self._study.add_trial(made)

    def _values(self, number: int) -> dict[str, int]:
        names = [parameter.name for parameter in self._encoding.parameters]
        return dict(zip(names, map(int, self._encoding.places[number]), strict=True))

    def _nearest(self, trial: Trial) -> int:
        wanted = np.array([trial.params[parameter.name] for parameter in self._encoding.parameters], dtype=np.int64)
        free = np.fromiter(self.free, dtype=np.int64)
        distances = self._encoding.distances(wanted)[free]
        return int(self._random.choice(free[distances <= distances.min() + 1e-9]))


def _distributions(encoding: Encoding) -> dict[str, BaseDistribution]:
    """Of each parameter the places of its values."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    return {
        parameter.name: IntDistribution(0, len(levels) - 1)
        if parameter.kind == "integer"
        else CategoricalDistribution(range(len(levels)))
        for parameter, levels in zip(encoding.parameters, encoding.levels, strict=True)
    }
