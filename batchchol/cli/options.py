"""Options as values: each command lists its own; those of several commands and those of schedules are here."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from batchchol.batches.sizes import integer, integers, names, positive
from kernelgen import FAMILIES, TARGETS, KernelSpec, SpecError, ThreadSchedule
from kernelgen.problem import MATHS
from kernelgen.schedules.axes import Axis, axes_of, check_gpu, required_axes
from kernelgen.targets import ELEMENT_BYTES


class Option(NamedTuple):
    """The names of an argument, and the keywords that `ArgumentParser.add_argument` gets for it."""

    names: tuple[str, ...]
    settings: dict[str, Any]


def option(*names: str, **settings: Any) -> Option:
    """An argument of a command line, as `ArgumentParser.add_argument` takes it."""
    return Option(names, settings)


def declare(parser: argparse.ArgumentParser | argparse._ArgumentGroup, *options: Option) -> None:
    """Add options to a parser or to a group of it, in their order."""
    for each in options:
        parser.add_argument(*each.names, **each.settings)


BACKEND = option("--backend", help="cpu or cuda (default: BATCHCHOL_BACKEND, else cpu)")
DTYPE = option("--dtype", choices=tuple(ELEMENT_BYTES), default="float32", help="default: %(default)s")
MATH = option("--math", choices=MATHS, default=MATHS[0], help="default: %(default)s")
JOBS = option("--jobs", type=positive, help="compilers at a time (default: the cores)")


def add_action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    *options: Option,
    help: str,
) -> None:
    """Add an action of a command, whose function is then the argument `action`."""
    parser = actions.add_parser(name, help=help)
    declare(parser, *options)
    parser.set_defaults(action=run)


CHOICES: Mapping[str, Mapping[str, Axis]] = {
    name: {family: axes_of(kind)[name] for family, kind in FAMILIES.items() if name in axes_of(kind)}
    for name in dict.fromkeys(name for kind in FAMILIES.values() for name in axes_of(kind))
}
"""What can be chosen of a schedule: for each name the axes of that name, by family."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """An option for the family and for each choice of a schedule; None if it is not given."""
    parser.add_argument("--family", choices=tuple(FAMILIES), help="family of kernels; default: the default kernel's")
    for name, axes in CHOICES.items():
        axis = next(iter(axes.values()))
        value: dict[str, Any] = {"choices": axis.words} if axis.words else {"type": integer}
        kind = {"action": argparse.BooleanOptionalAction} if axis.is_switch else value
        parser.add_argument(f"--{name}", help=_help(axes), **kind)


def add_list_options(parser: argparse.ArgumentParser) -> None:
    """The same, for GPUs, each a list; None if it is not given."""
    add_words(parser, "--family", tuple(FAMILIES))
    for name, axes in CHOICES.items():
        axis = next(iter(axes.values()))
        if axis.words:
            add_words(parser, f"--{name}", axis.words)
        elif not axis.is_switch:
            parser.add_argument(f"--{name}", type=integers, help=_help(axes))
        elif axis.only != "simd":
            parser.add_argument(f"--{name}", action="store_const", const=[True], help=_help(axes))


def add_words(
    parser: argparse.ArgumentParser, option: str, allowed: tuple[str, ...], default: list[str] | None = None
) -> None:
    """An option whose value is a list of words."""
    said = f" (default: {default[0]})" if default else ""
    words = f"some of {', '.join(allowed)}, or all{said}"
    parser.add_argument(option, type=names(allowed), default=default, metavar="LIST", help=words)


def chosen(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of a schedule that were given, by their names."""
    return {name: value for name in ("family", *CHOICES) if (value := getattr(arguments, name, None)) is not None}


def _help(axes: Mapping[str, Axis]) -> str:
    """What a choice decides, its range, and the families that have it unless all do."""
    said: dict[str, list[str]] = {}
    for family, axis in axes.items():
        words = axis.help + (f", {axis.least} to {axis.most}" if axis.most else "")
        said.setdefault(words, []).append(family)
    if len(said) == 1 and len(axes) == len(FAMILIES):
        return next(iter(said))
    return "; ".join(f"{words} (family {', '.join(families)})" for words, families in said.items())


def with_choices(spec: KernelSpec, chosen: Mapping[str, Any]) -> KernelSpec:
    """The spec with these choices in its schedule; `family` may be one of them.

    If only the thread family has all of them, it is the one.

    Raises
    ------
    SpecError
        If the family has no such choice, or no default for one that is not given.
    """
    choices = {name: value for name, value in chosen.items() if name != "family"}
    family = FAMILIES[chosen.get("family") or _family_of(choices, spec.family)]
    if family is not ThreadSchedule:
        # Before its choices are looked at.
        check_gpu(family.family, TARGETS[spec.target])
    has = axes_of(family)
    if foreign := [name for name in choices if name not in has]:
        name = foreign[0]
        raise SpecError(
            f"{name}={choices[name]!r} cannot be built: family {family.family!r} has no such choice, leave it out"
        )
    if isinstance(spec.schedule, family):
        return _changed(spec, choices)
    if missing := [name for name in required_axes(family) if name not in choices]:
        raise SpecError(
            f"{missing[0]}=None cannot be built: family {family.family!r} has no measured default of it, say which"
        )
    return replace(spec, schedule=family(**choices))


def _changed(spec: KernelSpec, choices: Mapping[str, Any]) -> KernelSpec:
    """The spec with these choices; a GPU's default is not staged where they exclude that."""
    staged = TARGETS[spec.target].gpu and getattr(spec.schedule, "staged", None)
    if staged and "staged" not in choices:
        with suppress(SpecError):
            return replace(spec, schedule=replace(spec.schedule, **choices))
        choices = {"staged": None, **choices}
    return replace(spec, schedule=replace(spec.schedule, **choices))


def _family_of(choices: Collection[str], default: str) -> str:
    """The default's family, or the thread family where only that has all of these choices."""
    has = {name: axes_of(family).keys() for name, family in FAMILIES.items()}
    oldest = ThreadSchedule.family
    return oldest if not has[default] >= set(choices) <= has[oldest] else default
