"""The tile program of an inverse, carried out by NumPy: it inverts, and every one of its updates counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol.operations.potri import RATIO_BOUND, oracle, ratios
from kernelgen.programs.potri import inverse_program
from kernelgen.programs.tiles import Fill, Gemm, Load, Loop, Store, Syrk, TileOp, Trsm, expand

from ..matrices import lapack_factor, wishart

Array = NDArray[np.floating]
# Tile sizes that divide n, that leave a corner of every size, and one tile only.
SIZES = [(1, 1), (2, 1), (2, 2), (3, 2), (5, 5), (6, 3), (7, 2), (7, 3), (7, 4), (9, 4), (13, 4)]


def carried_out(operations: Iterable[TileOp], l: Array, nb: int) -> Array:
    """What a program makes of a lower factor in a square whose upper triangle is free: the inverse, both triangles.

    What was never written reads as NaN.
    """
    n = len(l)
    room = np.full((n + nb, n + nb), np.nan)
    room[:n, :n] = np.where(np.tri(n, dtype=bool), l, np.nan)
    pivots = 1 / np.diagonal(l)
    places = {"y": np.full((nb, nb), np.nan), "c": np.full((nb, nb), np.nan)}
    operands: dict[str, Array] = {}

    def tile(place: str, i: int, j: int) -> Array:
        return places["y"] if place == "y" else room[i * nb : (i + 1) * nb, j * nb : (j + 1) * nb]

    c = places["c"]
    for op in operations:
        match op:
            case Fill():
                c[: op.rows, : op.cols] = np.eye(op.rows, op.cols) if op.unit else 0
            case Load(tile="C"):
                c[: op.rows, : op.cols] = tile(op.source, op.i, op.j)[: op.rows, : op.cols]  # type: ignore[arg-type]
            case Load():
                operands[op.tile] = tile(op.source, op.i, op.j)  # type: ignore[arg-type]
            case Store():
                kept = np.tri(op.rows, op.cols, dtype=bool) if op.lower else np.ones((op.rows, op.cols), bool)
                to = tile(op.place, op.i, op.j)[: op.rows, : op.cols]  # type: ignore[arg-type]
                to[kept] = c[: op.rows, : op.cols][kept]
            case Trsm():
                k = op.k * nb  # type: ignore[operator]
                for p in range(op.cols):
                    c[: op.rows, p] *= pivots[k + p]
                    for j in range(p + 1, op.cols):
                        c[: op.rows, j] -= c[: op.rows, p] * operands["D"][j, p]
            case Syrk():
                a = operands["A"][: op.size, : op.inner]
                c[: op.size, : op.size] += (1 if op.add else -1) * (a @ a.T)
            case Gemm():
                a, b = operands["A"][: op.rows, : op.inner], operands["B"][: op.cols, : op.inner]
                c[: op.rows, : op.cols] += (1 if op.add else -1) * (a @ b.T)
            case _:
                raise AssertionError(f"{op} is no operation of an inversion")
    x = room[:n, :n]
    tiles = np.arange(n) // nb
    # Of a diagonal tile the lower triangle was made, of all else the tiles above it.
    upper = np.where(tiles[:, None] == tiles, np.tril(x, -1).T + np.diag(np.diagonal(x)), x)
    return np.asarray(np.triu(upper) + np.triu(upper, 1).T)


def factor(n: int) -> Array:
    return lapack_factor(wishart(1, n))[0][0]


@pytest.mark.parametrize(("n", "nb"), SIZES)
def test_inverse_is_lapacks(n: int, nb: int) -> None:
    l = factor(n)
    x = carried_out(expand(inverse_program(n, nb)), l, nb)
    assert ratios(l[None], x[None])[0] <= RATIO_BOUND["ieee"]
    np.testing.assert_allclose(x, oracle(l[None])[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("n", "nb"), SIZES)
def test_loops_expand_to_straight_line_code(n: int, nb: int) -> None:
    straight = tuple(expand(inverse_program(n, nb)))
    assert not any(isinstance(node, Loop) for node in straight)
    assert sum(isinstance(op, Store) and op.lower for op in straight) == -(-n // nb)


def without_one(operations: tuple[TileOp, ...]) -> Iterator[tuple[TileOp, ...]]:
    """The program without one of its updates or solves, each in turn."""
    for place, op in enumerate(operations):
        if isinstance(op, Syrk | Gemm | Trsm):
            yield operations[:place] + operations[place + 1 :]


def test_each_update_counts() -> None:
    n, nb = 7, 3
    l = factor(n)
    mutants = list(without_one(tuple(expand(inverse_program(n, nb)))))
    assert len(mutants) > 10
    seen = [float(ratios(l[None], carried_out(mutant, l, nb)[None])[0]) for mutant in mutants]
    assert min(seen) > 1e6


def test_multiply_adds_are_a_third_of_the_cube() -> None:
    """As many as LAPACK's, but for the zeros of diagonal tiles."""
    n, nb = 24, 1
    work = sum(
        op.rows * op.cols * op.inner if isinstance(op, Gemm) else op.size * (op.size + 1) // 2 * op.inner
        for op in expand(inverse_program(n, nb))
        if isinstance(op, Gemm | Syrk)
    )
    assert abs(work - n**3 / 3) < n**2


def test_products_of_grids_are_all_there() -> None:
    """Each tile of the upper triangle is stored as Y and as X."""
    n, nb = 13, 4
    rows = -(-n // nb)
    stored = [(op.i, op.j) for op in expand(inverse_program(n, nb)) if isinstance(op, Store) and op.place == "l"]
    assert sorted(stored) == sorted(2 * [(i, j) for i, j in product(range(rows), repeat=2) if j >= i])
