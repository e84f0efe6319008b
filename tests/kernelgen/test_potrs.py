"""The tile program of a solve, by the interpreter: it solves, and reads and stores each element when it may."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from batchchol.operations.potrs import oracle, ratio_bound, ratios
from kernelgen.operations import POTRS
from kernelgen.programs.potrs import solve_program
from kernelgen.programs.tiles import Gemm, Load, Loop, Node, Store, TileOp, Trsm, expand, operations

from ..interpreter import ProgramError
from ..matrices import lapack_factor, wishart
from ..solve_interpreter import SolveInterpretation, interpret_solve

Array = np.typing.NDArray[np.floating]

# Tile sizes that divide n, that leave a corner of every size, and one tile only.
SIZES = [
    (1, 1), (2, 1), (2, 2), (3, 2), (5, 5), (6, 3), (7, 2), (7, 3), (7, 4), (7, 6), (15, 4), (17, 16), (31, 5)
]  # fmt: skip
PROGRAMS = list(product(SIZES, (1, 3)))


def system(n: int, rhs: int, count: int = 3) -> tuple[Array, Array]:
    """Factors, and right-hand sides."""
    return lapack_factor(wishart(count, n))[0], np.random.default_rng(n).standard_normal((count, n, rhs))


def run(size: tuple[int, int], rhs: int, *, in_place: bool = False) -> SolveInterpretation:
    n, nb = size
    return interpret_solve(*system(n, rhs), nb, in_place=in_place)


# The interpreter sees to it that each element is read and stored when it may, and in the end solved for.
@pytest.mark.parametrize(("size", "rhs"), PROGRAMS)
def test_solution_is_lapacks(size: tuple[int, int], rhs: int) -> None:
    l, b = system(size[0], rhs)
    x = run(size, rhs).x
    assert ratios(l, b, x).max() <= ratio_bound(size[0], "ieee")
    np.testing.assert_allclose(x, oracle(l, b), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("size", "rhs"), PROGRAMS)
def test_in_place_is_as_out_of_place(size: tuple[int, int], rhs: int) -> None:
    assert run(size, rhs, in_place=True).x.tobytes() == run(size, rhs).x.tobytes()


@pytest.mark.parametrize(("size", "rhs"), PROGRAMS)
def test_loops_expand_to_what_they_do(size: tuple[int, int], rhs: int) -> None:
    straight = tuple(expand(solve_program(*size, rhs)))
    assert run(size, rhs).operations == straight
    assert not any(isinstance(node, Loop) for node in straight)


@pytest.mark.parametrize(("size", "rhs"), PROGRAMS)
def test_flops_are_the_textbooks(size: tuple[int, int], rhs: int) -> None:
    assert sum(map(flops, expand(solve_program(*size, rhs)))) == POTRS.flops(size[0], rhs)


def flops(op: TileOp) -> int:
    match op:
        case Gemm():
            return 2 * op.rows * op.cols * op.inner
        case Trsm():
            return op.rows * op.cols**2
        case _:
            return 0


@pytest.mark.parametrize("size", SIZES)
def test_no_loop_is_always_empty(size: tuple[int, int]) -> None:
    program = solve_program(*size, 2)
    ran = {type(op) for op in expand(program)}
    assert ran == {type(op) for op in operations(program)}
    assert loops(program) == runs(program, {})


def loops(nodes: tuple[Node, ...]) -> set[int]:
    return {found for n in nodes if isinstance(n, Loop) for found in ({id(n)} | loops(n.body))}


def runs(nodes: tuple[Node, ...], values: dict[str, int]) -> set[int]:
    """The loops, by identity, whose bodies run at least once."""
    found = set()
    for loop in (node for node in nodes if isinstance(node, Loop)):
        for value in loop.values(values):
            found |= {id(loop)} | runs(loop.body, {**values, loop.var: value})
    return found


def test_loops_go_either_way() -> None:
    body = (Store("C", 0, 0, 1, 1),)
    assert list(Loop("k", 2, 5, body).values({})) == [2, 3, 4]
    assert list(Loop("k", 2, 5, body, descending=True).values({})) == [4, 3, 2]
    assert not Loop("k", 2, 2, body, descending=True).values({})


# ---- One operation changed ----


def without(place: int, program: list[TileOp]) -> list[TileOp]:
    return program[:place] + program[place + 1 :]


def twice(place: int, program: list[TileOp]) -> list[TileOp]:
    return program[: place + 1] + program[place:]


def with_another_row(place: int, program: list[TileOp]) -> list[TileOp]:
    op = program[place]
    return [*program[:place], replace(op, i=op.i + 1), *program[place + 1 :]]  # type: ignore[call-arg, union-attr, operator]


def with_another_column(place: int, program: list[TileOp]) -> list[TileOp]:
    op = program[place]
    return [*program[:place], replace(op, j=op.j + 1), *program[place + 1 :]]  # type: ignore[call-arg, union-attr, operator]


def the_other_way_round(place: int, program: list[TileOp]) -> list[TileOp]:
    op = program[place]
    return [*program[:place], replace(op, transposed=not op.transposed), *program[place + 1 :]]  # type: ignore[call-arg, union-attr]


CHANGES: dict[str, tuple[type[TileOp], Callable[[int, list[TileOp]], list[TileOp]]]] = {
    "an update dropped": (Gemm, without),
    "an update doubled": (Gemm, twice),
    "an update the other way round": (Gemm, the_other_way_round),
    "a division dropped": (Trsm, without),
    "a division doubled": (Trsm, twice),
    "a division the other way round": (Trsm, the_other_way_round),
    "a store dropped": (Store, without),
    "a store elsewhere": (Store, with_another_column),
    "a load of another column": (Load, with_another_column),
}


def changed(change: str) -> Iterator[list[TileOp]]:
    """Every program of three rows of tiles and a corner with the change at one of its places."""
    kind, spoil = CHANGES[change]
    program = list(expand(solve_program(11, 3, 2)))
    for place, op in enumerate(program):
        if isinstance(op, kind):
            yield spoil(place, program)


@pytest.mark.parametrize("change", CHANGES)
def test_the_ratio_of_a_changed_program_is_over_the_bound(change: str) -> None:
    l, b = system(11, 2)
    for program in changed(change):
        x = interpret_solve(l, b, 3, program=program, strict=False).x
        assert ratios(l, b, x).max() > ratio_bound(11, "fast")


# A second update by the same operands, or a triangle taken the other way, is a wrong number, and no wrong access.
@pytest.mark.parametrize("change", [each for each in CHANGES if "update d" not in each and "division" not in each])
def test_the_interpreter_refuses_changed_programs(change: str) -> None:
    for program in changed(change):
        with pytest.raises(ProgramError):
            interpret_solve(*system(11, 2), 3, program=program)


def test_operands_of_the_factor_are_those_of_the_place() -> None:
    program = list(expand(solve_program(11, 3, 2)))
    places = [place for place, op in enumerate(program) if isinstance(op, Load) and op.tile == "B"]
    for place in places:
        with pytest.raises(ProgramError, match="multiplies by tile"):
            interpret_solve(*system(11, 2), 3, program=with_another_row(place, program))
