"""Choices of a schedule, from the command line, on top of a measured default."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, replace
from typing import Any

from kernelgen import FAMILIES, TARGETS, KernelSpec, SpecError, ThreadSchedule
from kernelgen.schedule_checks import check_gpu


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
