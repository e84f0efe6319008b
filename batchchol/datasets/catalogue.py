"""The recipes by name: what catalogue.toml says about each, and the parameters a caller may give."""

from __future__ import annotations

import numbers
import tomllib
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from contextlib import suppress
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
    kind = _KINDS[type(_parameter(recipe, name).default)]
    try:
        return kind.parse(text)
    except ArgumentTypeError as error:
        raise ValueError(f"{recipe.name}: {name}: got {shown(text)}, expected {kind.words}") from error


@dataclass(frozen=True)
class _Kind:
    """What values of a type are called, what they or their items are instances of, and how text is read as one."""

    words: str
    items: type
    parse: Callable[[str], Value]


def _integers(text: str) -> tuple[int, ...]:
    return tuple(integer(item.strip()) for item in text.split(",") if item.strip())


_KINDS: Mapping[type[Value], _Kind] = {
    int: _Kind("an integer", numbers.Integral, integer),
    float: _Kind("a number", numbers.Real, number),
    str: _Kind("a word", str, str),
    tuple: _Kind("a list of integers", numbers.Integral, _integers),
}
"""By the type of a parameter's default."""


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


def _conform(recipe: str, parameter: Parameter, value: Any) -> Value:
    wanted = type(parameter.default)
    kind = _KINDS[wanted]
    # A value that cannot be listed is not a list.
    with suppress(TypeError):
        items = list(value) if wanted is tuple and not isinstance(value, str) else [value]
        if all(isinstance(item, kind.items) and not isinstance(item, bool) for item in items):
            return tuple(map(int, items)) if wanted is tuple else wanted(value)
    raise ValueError(f"{recipe}: {parameter.name}: got {value!r}, expected {kind.words}")
