"""The points of a case in numbers, as strategies want them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from batchchol.errors import BatchcholError, install
from batchchol.measure.point import Point
from batchchol.measure.row import Row
from batchchol.tune.search import features
from batchchol.tune.search.cases import Numbers
from batchchol.tune.search.features import Parameter


@dataclass(frozen=True)
class Encoding:
    """What differs between points.

    Attributes
    ----------
    parameters : tuple of Parameter
        Those with more than one value.
    levels : tuple of ndarray
        The numbers of each parameter's values, ascending; -1 where a point has none.
    places : ndarray of int, shape (points, parameters)
        Which of its levels each point has.
    features : ndarray, shape (points, features)
        The parameters' numbers, and what follows from them: see `features.expand`.
    """

    parameters: tuple[Parameter, ...]
    levels: tuple[Numbers, ...]
    places: NDArray[np.int64]
    features: Numbers

    def distances(self, places: NDArray[np.int64]) -> Numbers:
        """How far each point is from these places: of a number its share of the range, of a word 0 or 1."""
        steps = np.abs(self.places - places)
        ranges = [max(len(levels) - 1, 1) for levels in self.levels]
        numbers = [parameter.kind == "integer" for parameter in self.parameters]
        return np.asarray(np.where(numbers, steps / ranges, steps > 0).sum(axis=1))


# As many as a space has cases.
@lru_cache(maxsize=64)
def encoded(points: tuple[Point, ...]) -> Encoding:
    """The encoding of points; a case that is searched again and again is encoded once.

    Raises
    ------
    BatchcholError
        If pandas is not installed; names the extra.
    """
    try:
        import pandas
    except ImportError as error:
        raise missing("pandas", error) from error
    values = [Row(point, "correct").values() for point in points]
    rows = pandas.DataFrame({name: [value[name] for value in values] for name in features.COLUMNS})
    found = features.parameters(rows)
    numbers = features.encode(rows, found)
    # With n, which is the same everywhere in a case, how tiles fit a matrix follows from nb.
    known = any(parameter.name == "n" for parameter in found)
    chosen = found if known else (*found, Parameter("n", "integer", ""))
    levels = tuple(np.unique(column) for column in numbers.T)
    places = [np.searchsorted(each, column) for each, column in zip(levels, numbers.T, strict=True)]
    shape = len(points), len(found)
    return Encoding(
        found,
        levels,
        np.array(places, dtype=np.int64).T.reshape(shape),
        features.expand(features.encode(rows, chosen), chosen),
    )


def missing(package: str, error: ImportError) -> BatchcholError:
    """What to raise where a strategy's package cannot be loaded."""
    return BatchcholError(
        f"this strategy needs {package}, which cannot be loaded ({error}): {install('search')}, or use "
        "--strategy random"
    )
