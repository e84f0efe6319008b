"""Choices of a schedule: the options that name them, each declared once, and a default with them in it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, replace
from typing import Any, NamedTuple

from batchchol.batches.sizes import integer, integers, names, positive
from kernelgen import FAMILIES, TARGETS, KernelSpec, SpecError, ThreadSchedule
from kernelgen.schedule_checks import CACHES, UNROLLS, check_gpu
from kernelgen.schedules import LOOKINGS
from kernelgen.tensor_schedules import UPDATES


class Choice(NamedTuple):
    """What argparse needs of an option: where it takes one value, and where it takes a list of them."""

    one: dict[str, Any]
    several: dict[str, Any]


def words(allowed: tuple[str, ...], what: str = "", default: str | None = None) -> Choice:
    """A choice among words; `default` is a list's where it is not given."""
    listed = f"some of {', '.join(allowed)}, or all{f' (default: {default})' if default else ''}"
    return Choice(
        {"choices": allowed, "help": what},
        {"type": names(allowed), "metavar": "LIST", "help": listed, "default": [default] if default else None},
    )


def _number(what: str, listed: str = "", type: Callable[[str], int] = positive) -> Choice:
    return Choice({"type": type, "help": what}, {"type": integers, "help": listed or what})


def _switch(what: str, **one: Any) -> Choice:
    return Choice({"default": None, **one}, {"action": "store_const", "const": [True], "help": what})


_EARLY_LAUNCH = "launched before its predecessors have ended"
SCHEDULE_OPTIONS: Mapping[str, Choice] = {
    "family": words(tuple(FAMILIES), "who works on a matrix; default: the default's"),
    "nb": _number("tile size, 1 to 16 (family shared: 32), no more than n", "tile sizes, such as 1-8", integer),
    "looking": words(LOOKINGS),
    "unroll": words(UNROLLS),
    "prefetch": _switch("", action=argparse.BooleanOptionalAction),
    "staged": _switch(
        "family thread: canonical arrays by way of shared memory, a warp's matrices together",
        action=argparse.BooleanOptionalAction,
    ),
    "threads": _number("threads of a GPU's block", "threads of a block"),
    "cache": words(CACHES, "which a GPU's on-chip memory favours"),
    "matrices": _number("of a block of family shared, of a team of family warp"),
    "warps": _number("of a team of family warp, of a block of family strip"),
    "teams": _number("of family warp, that make a block of threads"),
    "update": words(UPDATES, "of family warp: tensor cores, or multiply-adds"),
    "lanes": _number(
        "matrices that a block of family block factors side by side", "matrices of a block of family block"
    ),
    "blocks": _number("that a multiprocessor has room for (not family shared)"),
    "pipeline": _number(
        "of family block, groups of matrices that have panels at a time",
        "of family block, groups that have panels at a time",
        integer,
    ),
    "early": _number(
        "columns of tiles of a pipeline that fetch their next tiles early",
        "columns of tiles of a pipeline that fetch their next early",
        integer,
    ),
    "ahead": _number("of family strip, strips that have room for two groups' tiles", type=integer),
    "spare": _number("warps of a pipeline that take turns with its last ones", type=integer),
    "fold": _number("first warps of a pipeline that do the work of two", type=integer),
    "stride": _number(
        "the only chunk that a GPU kernel runs on (default: any)", "chunks that are constants of the code"
    ),
    "pdl": _switch(_EARLY_LAUNCH, action="store_true", help=_EARLY_LAUNCH),
}
"""The options of a schedule, by the name of what they choose: the axes of all families, and the family."""


def add_options(parser: argparse.ArgumentParser, options: Iterable[str] = SCHEDULE_OPTIONS, *, lists: bool) -> None:
    """Have a command take these options of a schedule, each with one value or with a list."""
    for name in options:
        parser.add_argument(f"--{name}", **SCHEDULE_OPTIONS[name][lists])


def chosen_options(arguments: argparse.Namespace, options: Iterable[str] = SCHEDULE_OPTIONS) -> dict[str, Any]:
    """Of these options those that were given."""
    given = {name: getattr(arguments, name) for name in options}
    return {name: value for name, value in given.items() if value is not None}


def with_choices(spec: KernelSpec, chosen: Mapping[str, Any]) -> KernelSpec:
    """The spec with these choices in its schedule; `family` may be one of them.

    Where only the thread family has all of them it is meant.

    Raises
    ------
    SpecError
        If the family has no such choice, or has no default for one that is not said.
    """
    choices = {name: value for name, value in chosen.items() if name != "family"}
    family = FAMILIES[chosen.get("family") or _family_of(choices, spec.family)]
    if family is not ThreadSchedule:
        # Before anything is asked of its choices.
        check_gpu(family.family, TARGETS[spec.target])
    has = {field.name: field.default for field in fields(family)}
    if foreign := [name for name in choices if name not in has]:
        name = foreign[0]
        raise SpecError(
            f"{name}={choices[name]!r} cannot be built: family {family.family!r} has no such choice, leave it out"
        )
    if isinstance(spec.schedule, family):
        return _changed(spec, choices)
    if missing := [name for name, default in has.items() if default is MISSING and name not in choices]:
        raise SpecError(
            f"{missing[0]}=None cannot be built: family {family.family!r} has no measured default of it, say which"
        )
    return replace(spec, schedule=family(**{"math": spec.schedule.math, **choices}))


def _changed(spec: KernelSpec, choices: Mapping[str, Any]) -> KernelSpec:
    """The spec with these choices; what a GPU's default stages is not where they exclude that."""
    staged = TARGETS[spec.target].gpu and getattr(spec.schedule, "staged", None)
    if staged and "staged" not in choices:
        with suppress(SpecError):
            return replace(spec, schedule=replace(spec.schedule, **choices))
        choices = {"staged": None, **choices}
    return replace(spec, schedule=replace(spec.schedule, **choices))


def _family_of(choices: Collection[str], default: str) -> str:
    """The default's family, or the thread family where only that has all of these choices."""
    has = {name: {field.name for field in fields(family)} for name, family in FAMILIES.items()}
    oldest = ThreadSchedule.family
    return oldest if not has[default] >= set(choices) <= has[oldest] else default
