"""The tile programs, by the interpreter: they factor, touch what they may, and loops say what straight lines do."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from kernelgen.programs.potrf import tile_program
from kernelgen.programs.tiles import (
    Gemm,
    Load,
    Loop,
    Node,
    Store,
    TileOp,
    Trsm,
    expand,
    operations,
    resident,
    resolve,
)

from ..interpreter import UNWRITTEN, Interpretation, ProgramError, State, interpret
from ..matrices import dominant, lapack_factor, wishart

LOOKINGS = ("right", "left", "top")
# Tile sizes that divide n, that leave a corner of every size, and one tile only.
SIZES = [
    (1, 1), (2, 1), (2, 2), (3, 2), (5, 5), (6, 3), (7, 2), (7, 3), (7, 4), (7, 6), (15, 4), (17, 16), (31, 5)
]  # fmt: skip
PROGRAMS = list(product(SIZES, LOOKINGS, (False, True)))


def run(size: tuple[int, int], looking: str, in_place: bool, count: int = 3) -> Interpretation:
    n, nb = size
    return interpret(dominant(count, n), nb, looking, in_place=in_place)


@pytest.mark.parametrize(("size", "looking", "in_place"), PROGRAMS)
def test_factor_is_lapacks(size: tuple[int, int], looking: str, in_place: bool) -> None:
    n, nb = size
    for a in (dominant(5, n), wishart(5, n)):
        result = interpret(a, nb, looking, in_place=in_place)
        expected, _ = lapack_factor(a)
        assert not result.info.any()
        np.testing.assert_allclose(np.tril(result.l), expected, rtol=0, atol=1e-13 * np.abs(expected).max())


@pytest.mark.parametrize(("size", "looking", "in_place"), PROGRAMS)
def test_lower_triangle_is_stored_once_as_final_and_nothing_above_it(
    size: tuple[int, int], looking: str, in_place: bool
) -> None:
    n = size[0]
    a = dominant(3, n)
    a[:, *np.triu_indices(n, 1)] = np.nan if not in_place else UNWRITTEN
    result = interpret(a, size[1], looking, in_place=in_place)
    assert np.array_equal(result.final_stores, np.tri(n))
    assert np.array_equal(result.states, np.tri(n) * State.FINAL)
    assert (result.l[:, *np.triu_indices(n, 1)] == UNWRITTEN).all()
    assert np.isfinite(result.l).all()


@pytest.mark.parametrize(("size", "looking", "in_place"), PROGRAMS)
def test_loops_expand_to_what_they_do(size: tuple[int, int], looking: str, in_place: bool) -> None:
    n, nb = size
    program = tile_program(n, nb, looking, in_place=in_place)
    straight = tuple(expand(program))
    assert run(size, looking, in_place).operations == straight
    unrolled = interpret(dominant(3, n), nb, looking, in_place=in_place, program=straight)
    assert unrolled.l.tobytes() == run(size, looking, in_place).l.tobytes()


@pytest.mark.parametrize(("size", "looking", "in_place"), PROGRAMS)
def test_first_marks_one_load_of_each_tile(size: tuple[int, int], looking: str, in_place: bool) -> None:
    result = run(size, looking, in_place)
    tiles = -(-size[0] // size[1])
    assert result.first_loads() == {(i, j): 1 for i in range(tiles) for j in range(i + 1)}
    if looking == "right" and in_place:
        return  # There the mark is on the load of a tile's own step, when its column is about to be final.
    touched = set()
    for load in result.loads():
        assert load.first == ((load.i, load.j) not in touched)
        touched.add((load.i, load.j))


@pytest.mark.parametrize(("size", "looking"), list(product(SIZES, LOOKINGS)))
def test_input_is_read_once_out_of_place(size: tuple[int, int], looking: str) -> None:
    loads = run(size, looking, in_place=False).loads()
    assert all((load.source == "a") == load.first for load in loads)


@pytest.mark.parametrize(("size", "looking", "in_place"), PROGRAMS)
def test_operations_are_those_of_a_factorization(size: tuple[int, int], looking: str, in_place: bool) -> None:
    """Whatever the order: as many multiply-adds in gemm, and as many right-hand sides in trsm."""
    n, nb = size
    edges = [min(nb, n - start) for start in range(0, n, nb)]
    done = run(size, looking, in_place).operations
    gemms = sum(op.rows * op.cols * op.inner for op in done if isinstance(op, Gemm))
    solves = sum(op.rows * op.cols for op in done if isinstance(op, Trsm))
    tiles = range(len(edges))
    assert gemms == sum(edges[i] * edges[j] * edges[k] for i in tiles for j in range(i) for k in range(j))
    assert solves == sum(edges[i] * edges[j] for i in tiles for j in range(i))


def test_operations_enter_each_loop_once() -> None:
    program = tile_program(12, 4, "left", in_place=False)
    assert len(list(operations(program))) < len(list(expand(program)))
    assert set(map(type, operations(program))) == set(map(type, expand(program)))


@pytest.mark.parametrize(("looking", "in_place"), list(product(LOOKINGS, (False, True))))
def test_columns_before_a_failing_pivot_are_valid_and_it_is_the_first_counted(looking: str, in_place: bool) -> None:
    n, nb = 11, 3
    good = dominant(n + 1, n)
    a = good.copy()
    for k in range(n):
        a[k + 1, k, k] = -1.0
    result = interpret(a, nb, looking, in_place=in_place)
    assert np.array_equal(result.info, np.arange(n + 1))
    whole = interpret(good, nb, looking, in_place=in_place)
    for k in range(1, n):
        assert np.array_equal(np.tril(result.l)[k + 1, :, :k], np.tril(whole.l)[k + 1, :, :k])


def without_the_store_of_a_solved_tile(program: list[TileOp]) -> list[TileOp]:
    place = next(i for i, op in enumerate(program) if isinstance(op, Store) and op.i != op.j)
    return program[:place] + program[place + 1 :]


def with_a_store_twice(program: list[TileOp]) -> list[TileOp]:
    place = next(i for i, op in enumerate(program) if isinstance(op, Store))
    return program[: place + 1] + program[place:]


def with_a_load_of_the_result_before_its_store(program: list[TileOp]) -> list[TileOp]:
    return [Load("C", 1, 1, 3, 3, "l", lower=True), *program]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without_the_store_of_a_solved_tile, "not final"),
        (with_a_store_twice, "overwrites"),
        (with_a_load_of_the_result_before_its_store, "never stored"),
    ],
)
def test_interpreter_refuses_wrong_programs(spoil: Callable[[list[TileOp]], list[TileOp]], message: str) -> None:
    program = spoil(list(expand(tile_program(9, 3, "left", in_place=False))))
    with pytest.raises(ProgramError, match=message):
        interpret(dominant(2, 9), 3, "left", program=program)


def runs(nodes: tuple[Node, ...], values: dict[str, int]) -> set[int]:
    """The loops, by identity, whose bodies run at least once."""
    found = set()
    for loop in (node for node in nodes if isinstance(node, Loop)):
        for value in range(resolve(loop.start, values), resolve(loop.stop, values)):
            found |= {id(loop)} | runs(loop.body, {**values, loop.var: value})
    return found


def loops(nodes: tuple[Node, ...]) -> set[int]:
    return {found for n in nodes if isinstance(n, Loop) for found in ({id(n)} | loops(n.body))}


@pytest.mark.parametrize(("size", "looking", "in_place"), PROGRAMS)
def test_no_loop_is_always_empty(size: tuple[int, int], looking: str, in_place: bool) -> None:
    program = tile_program(*size, looking, in_place=in_place)
    assert loops(program) == runs(program, {})


@pytest.mark.parametrize(("size", "looking", "in_place"), PROGRAMS)
def test_resident_tiles_are_loaded_before_use_and_stored_when_final(
    size: tuple[int, int], looking: str, in_place: bool
) -> None:
    placed = tuple(resident(tile_program(*size, looking, in_place=in_place)))
    tiles = -(-size[0] // size[1])
    everywhere = {(i, j) for i in range(tiles) for j in range(i + 1)}
    loaded, stored = set(), set()
    for op in placed:
        if isinstance(op.op, Load):
            place = (op.op.i, op.op.j)
            assert op.places[op.op.tile] == place
            assert place not in loaded
            loaded.add(place)
        elif isinstance(op.op, Store):
            assert op.places["C"] == (op.op.i, op.op.j)
            assert op.places["C"] not in stored
            stored.add(op.places["C"])
        else:
            operands = {"Potrf": "C", "Trsm": "CD", "Syrk": "CA", "Gemm": "CAB"}[type(op.op).__name__]
            assert {op.places[tile] for tile in operands} <= loaded
            assert op.places["C"] not in stored
    assert loaded == stored == everywhere
