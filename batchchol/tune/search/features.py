"""Points in numbers, as forests and strategies want them: the parameters that differ in a data set, or in a case."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.errors import optional
from batchchol.measure.point import Point
from batchchol.measure.row import Row, choice_columns, column_of
from batchchol.tune.search.cases import Numbers
from kernelgen import FAMILIES
from kernelgen.problem import MATHS
from kernelgen.schedules.axes import axes_of

COLUMNS = ("n", "batch", "layout", "order", "in_place", "chunk", "threads", *choice_columns())
"""Those that may be parameters; the rest is the same everywhere in a report, or is measured."""

_AXES = {
    column_of(name): axis for family in reversed(list(FAMILIES.values())) for name, axis in axes_of(family).items()
}
# Where a parameter has an order, numbers follow it: from eager to lazy, from loops to straight lines.
_ORDERS = {name: axis.words for name, axis in _AXES.items() if axis.words} | {
    "math": MATHS,
    "layout": ("canonical", "interleaved", "chunked"),
}
_EXPLANATIONS = {name: axis.help for name, axis in _AXES.items()} | {
    "n": "order of each matrix",
    "batch": "matrices of a call",
    "layout": "whether matrices lie in chunks, interleaved as a whole, or one after another",
    "chunk": "matrices of a chunk",
    "order": "order of the elements of a matrix",
    "in_place": "whether the input is overwritten",
    "math": "correctly rounded square roots and reciprocals, or approximate ones",
    "threads": "threads of the host",
}
_TIED = "chunk and threads of a block, which are equal where there are chunks"


@dataclass(frozen=True)
class Parameter:
    """A column that differs between points.

    Attributes
    ----------
    name : str
        Of the column.
    kind : str
        "integer", or its values in the order in which they are numbered.
    explanation : str
        What it decides.
    """

    name: str
    kind: str
    explanation: str


def parameters(rows: Any) -> tuple[Parameter, ...]:
    """The parameters that have more than one value in these rows; of two that say the same, one."""
    names = [name for name in COLUMNS if rows[name].nunique(dropna=False) > 1]
    explanations = dict(_EXPLANATIONS)
    if {"chunk", "block"} <= set(names) and tied(rows):
        names.remove("chunk")
        explanations["block"] = _TIED
    return tuple(
        Parameter(
            name,
            "integer" if _is_number(rows[name]) else ", ".join(map(str, _levels(rows[name], name))),
            explanations.get(name, "see its schedule"),
        )
        for name in names
    )


def encode(rows: Any, chosen: tuple[Parameter, ...]) -> Numbers:
    """A column of numbers a parameter, (points, parameters); where a point has no value it is -1."""
    columns = [_numbers(rows[parameter.name], parameter.name) for parameter in chosen]
    return np.column_stack(columns) if columns else np.empty((len(rows), 0))


def expand(numbers: Numbers, chosen: tuple[Parameter, ...]) -> Numbers:
    """Add what follows from the parameters, so that a forest can use it for orders that it has not seen.

    These are the tiles of a row, the size of the last one, and the elements of the batch.
    """
    at = {parameter.name: place for place, parameter in enumerate(chosen)}
    more = []
    if "n" in at and "nb" in at:
        n, nb = numbers[:, at["n"]], np.maximum(numbers[:, at["nb"]], 1)
        more += [np.ceil(n / nb), n % nb]
    if "n" in at and "batch" in at:
        more.append(numbers[:, at["n"]] ** 2 * numbers[:, at["batch"]])
    return np.column_stack([numbers, *more])


def tied(rows: Any) -> bool:
    """Whether chunks and blocks of threads have the same size wherever there are chunks."""
    chunked = rows[rows["chunk"].notna()]
    return len(chunked) > 0 and bool((chunked["chunk"] == chunked["block"]).all())


def _is_number(column: Any) -> bool:
    return bool(column.dtype.kind in "iuf")


def _levels(column: Any, name: str) -> list[Any]:
    there = list(column.dropna().unique())
    known = [value for value in _ORDERS.get(name, ()) if value in there]
    return known + sorted((value for value in there if value not in known), key=str)


def _numbers(column: Any, name: str) -> Numbers:
    if not _is_number(column):
        column = column.map({value: place for place, value in enumerate(_levels(column, name))})
    return np.asarray(column.astype("float64").fillna(-1), dtype=np.float64)


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
        The parameters' numbers, and what follows from them: see `expand`.
    """

    parameters: tuple[Parameter, ...]
    levels: tuple[Numbers, ...]
    places: NDArray[np.int64]
    features: Numbers

    def distances(self, places: NDArray[np.int64], *, span: float = 1.0) -> Numbers:
        """How far each point is from these places: of a number its share of the range, `span`, of a word 0 or 1."""
        steps = np.abs(self.places - places)
        ranges = [max(len(levels) - 1, 1) for levels in self.levels]
        numbers = [parameter.kind == "integer" for parameter in self.parameters]
        return np.asarray(np.where(numbers, span * steps / ranges, steps > 0).sum(axis=1))


# About the number of cases in a space.
@lru_cache(maxsize=64)
def encoded(points: tuple[Point, ...]) -> Encoding:
    """The encoding of points; a case that is searched again and again is encoded once.

    Raises
    ------
    BatchcholError
        If pandas is not installed; names the extra.
    """
    pandas = package("pandas")
    values = [Row(point, "correct").values() for point in points]
    rows = pandas.DataFrame({name: [value[name] for value in values] for name in COLUMNS})
    found = parameters(rows)
    numbers = encode(rows, found)
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
        expand(encode(rows, chosen), chosen),
    )


def package(name: str) -> Any:
    """A package that some strategies need; a BatchcholError says how to get it."""
    return optional(name, "this strategy", "search", ", or use --strategy random")
