"""Covering designs: few choices of many factors' values that hold every pair of values that can occur."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from math import isfinite
from typing import Any

Choice = dict[str, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]

# Completions tried for each pair: more make the design smaller and its making slower.
_TRIES = 40


def covering_design(
    factors: Mapping[str, Sequence[Any]],
    constrained: Sequence[str],
    cost: Callable[[Choice], float],
    seed: int = 0,
) -> list[Choice]:
    """Choices that hold, together, every pair of values of two factors that some possible choice holds.

    `cost`, infinite for what is impossible, looks at the `constrained` factors alone; the others go with anything.
    Of the choices tried, the one that brings most pairs for its cost is taken. The same arguments give the same
    design.
    """
    source = random.Random(seed)
    cores = possible_cores(factors, constrained, cost)
    holding: dict[tuple[str, Any], list[Choice]] = {}
    for core in cores:
        for value in core.items():
            holding.setdefault(value, []).append(core)
    # A dictionary for its order: sets of strings have another one in every process.
    missing = dict.fromkeys(possible_pairs(factors, constrained, cores))
    design = []
    while missing:
        (one, other) = next(iter(missing))
        wanted = dict((one, other))
        candidates = [core for core in holding.get(one, cores) if _agrees(core, wanted)]
        tried = source.sample(candidates, min(_TRIES, len(candidates)))
        completed = [_complete(factors, {**core, **wanted}, missing, source) for core in tried]
        best = max(completed, key=lambda choice: _news(factors, choice, missing) / cost(choice))
        design.append({name: best[name] for name in factors})
        for pair in pairs_of(factors, best):
            missing.pop(pair, None)
    return design


def possible_cores(
    factors: Mapping[str, Sequence[Any]], constrained: Sequence[str], cost: Callable[[Choice], float]
) -> list[Choice]:
    """Every combination of values of the constrained factors whose cost is finite."""
    combined = product(*(factors[name] for name in constrained))
    return [core for values in combined if isfinite(cost(core := dict(zip(constrained, values, strict=True))))]


def possible_pairs(
    factors: Mapping[str, Sequence[Any]], constrained: Sequence[str], cores: list[Choice]
) -> list[Pair]:
    """Every pair of values of two factors that occurs in some possible choice, in the order of the factors."""
    held = {name: dict.fromkeys(core[name] for core in cores) for name in constrained}
    together = {pair for core in cores for pair in combinations(core.items(), 2)}
    pairs = []
    for one, other in combinations(factors, 2):
        both_constrained = one in held and other in held
        for values in product(held.get(one, factors[one]), held.get(other, factors[other])):
            pair = ((one, values[0]), (other, values[1]))
            if not both_constrained or pair in together or pair[::-1] in together:
                pairs.append(pair)
    return pairs


def pairs_of(factors: Mapping[str, Sequence[Any]], choice: Choice) -> list[Pair]:
    """The pairs of values that a choice holds, in the order of the factors."""
    return list(combinations(((name, choice[name]) for name in factors), 2))


def _news(factors: Mapping[str, Sequence[Any]], choice: Choice, missing: Mapping[Pair, None]) -> int:
    return sum(pair in missing for pair in pairs_of(factors, choice))


def _agrees(core: Choice, wanted: Choice) -> bool:
    return all(core.get(name, value) == value for name, value in wanted.items())


def _complete(
    factors: Mapping[str, Sequence[Any]], begun: Choice, missing: Mapping[Pair, None], source: random.Random
) -> Choice:
    """The choice with its other factors set, one after another, to the value that brings most missing pairs."""
    choice = dict(begun)
    places = {name: place for place, name in enumerate(factors)}
    for name in factors:
        if name in choice:
            continue
        values = source.sample(list(factors[name]), len(factors[name]))
        gains = {value: _gain(places, choice, (name, value), missing) for value in values}
        choice[name] = max(gains, key=gains.__getitem__)
    return choice


def _gain(places: Mapping[str, int], choice: Choice, new: tuple[str, Any], missing: Mapping[Pair, None]) -> int:
    """The missing pairs that a choice and one more value hold."""
    place = places[new[0]]
    return sum([((known, new) if places[known[0]] < place else (new, known)) in missing for known in choice.items()])
