"""The covering design covers: checked by counting every pair in a way that shares nothing with its making."""

from __future__ import annotations

from itertools import product
from math import inf

from .covering import Choice, covering_design

FACTORS = {
    "n": (1, 2, 3, 4),
    "nb": (1, 2, 3),
    "unroll": (False, True),
    "math": ("ieee", "fast"),
    "chunk": (8, 16, 24),
}
CONSTRAINED = ("n", "nb", "unroll")


def cost(choice: Choice) -> float:
    return inf if choice["nb"] > choice["n"] or (choice["unroll"] and choice["n"] > 3) else choice["n"]


def pairs(choices: list[Choice]) -> set[frozenset[tuple[str, object]]]:
    return {frozenset((one, other)) for choice in choices for one, other in product(choice.items(), repeat=2)}


def test_design_holds_every_possible_pair_and_no_impossible_choice() -> None:
    whole = [dict(zip(FACTORS, values, strict=True)) for values in product(*FACTORS.values())]
    possible = [choice for choice in whole if cost(choice) < inf]
    design = covering_design(FACTORS, CONSTRAINED, cost)
    assert all(choice in possible for choice in design)
    assert pairs(design) == pairs(possible)
    assert len(design) < len(possible) / 3


def test_design_is_the_same_every_time() -> None:
    assert covering_design(FACTORS, CONSTRAINED, cost) == covering_design(FACTORS, CONSTRAINED, cost)
