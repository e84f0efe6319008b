"""The recipes by name: what catalogue.toml says about each, and the parameters a caller may give."""

from __future__ import annotations

import numbers
import tomllib
from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from batchchol.batches.sizes import integer, number, shown

Value = int | float | str | tuple[int, ...]


@dataclass(frozen=True)
class Parameter:
    """One parameter of a recipe; the type of `default` is the type expected."""

    name: str
    default: Value
    about: str


@dataclass(frozen=True)
class Recipe:
    """A data set by name.

    `stream` is the recipe's part of the Philox key; `spd` says whether every member is positive definite;
    `requires` names the packages it needs beyond the core dependencies.
    """

    name: str
    stream: int
    description: str
    spd: bool
    source: str
    requires: tuple[str, ...] = ()
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


def catalogue() -> dict[str, Recipe]:
    """Return every recipe by name, in the order of catalogue.toml."""
    text = resources.files("batchchol.datasets").joinpath("catalogue.toml").read_text(encoding="utf-8")
    return {name: _recipe(name, table) for name, table in tomllib.loads(text).items()}


def find(name: str) -> Recipe:
    """Return the recipe called `name`; ValueError lists the names that exist."""
    recipes = catalogue()
    if name not in recipes:
        raise ValueError(f"name: got {name!r}, expected one of {', '.join(recipes)}")
    return recipes[name]


def settle(recipe: Recipe, given: Mapping[str, object]) -> dict[str, Value]:
    """Return every parameter of `recipe`: the given value, checked for its type, or the default.

    Raises
    ------
    ValueError
        A parameter the recipe does not have, or a value of another type than the default's.
    """
    for name in given:
        _parameter(recipe, name)
    return {
        name: _conform(recipe.name, parameter, given[name]) if name in given else parameter.default
        for name, parameter in recipe.parameters.items()
    }


def parse(recipe: Recipe, name: str, text: str) -> Value:
    """Read a parameter from the text that a command line gives; integers of a list are split by commas."""
    default = _parameter(recipe, name).default
    try:
        if isinstance(default, tuple):
            return tuple(integer(item.strip()) for item in text.split(",") if item.strip())
        if isinstance(default, str):
            return text
        return integer(text) if isinstance(default, int) else number(text)
    except ArgumentTypeError as error:
        raise ValueError(f"{recipe.name}: {name}: got {shown(text)}, expected {_expected(default)}") from error


def _recipe(name: str, table: dict[str, Any]) -> Recipe:
    parameters = {
        key: Parameter(key, _frozen(entry["default"]), entry["about"])
        for key, entry in table.get("parameters", {}).items()
    }
    fields = {key: _frozen(value) for key, value in table.items() if key != "parameters"}
    return Recipe(name=name, parameters=parameters, **fields)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _parameter(recipe: Recipe, name: str) -> Parameter:
    if name not in recipe.parameters:
        known = ", ".join(recipe.parameters) or "none"
        raise ValueError(f"{recipe.name}: got a parameter {name!r}, expected: {known}")
    return recipe.parameters[name]


def _conform(recipe: str, parameter: Parameter, value: object) -> Value:
    default = parameter.default
    if isinstance(default, tuple) and not isinstance(value, str):
        items = _integers(value)
        if items is not None:
            return items
    elif isinstance(default, str) and isinstance(value, str):
        return value
    elif isinstance(value, bool):
        pass
    elif isinstance(default, int) and isinstance(value, numbers.Integral):
        return int(value)
    elif isinstance(default, float) and isinstance(value, numbers.Real):
        return float(value)
    raise ValueError(f"{recipe}: {parameter.name}: got {value!r}, expected {_expected(default)}")


def _integers(value: object) -> tuple[int, ...] | None:
    try:
        items = list(value)  # type: ignore[call-overload]  # anything that cannot be listed is refused below
    except TypeError:
        return None
    if not all(isinstance(item, numbers.Integral) and not isinstance(item, bool) for item in items):
        return None
    return tuple(int(item) for item in items)


def _expected(default: Value) -> str:
    if isinstance(default, tuple):
        return "a list of integers"
    return {int: "an integer", float: "a number", str: "a word"}[type(default)]
