"""Strips in whatever order their warps run: the graph of what happens before what, if barriers do what they should.

A barrier is even or odd. So where groups that are `TURNS` apart have the same one, a warp must find the earlier one's
phase ended, and the later one's not yet. Whoever breaks that first does so in an order that this graph allows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from kernelgen.schedules.strip import TILE, TURNS, StripShape

GROUPS = 11


class Event(NamedTuple):
    """What a warp does to a barrier or a place of a group: it waits or arrives, reads or writes."""

    does: str
    what: tuple[object, ...]
    group: int


def tile_events(shape: StripShape, strip: int, row: int, group: int) -> Iterator[Event]:
    """What the warp that has a tile does, as in the templates strip.cu.jinja and strip_finish.cu.jinja."""
    for k in range(strip):
        for part in range(1 if shape.halved and k == 0 else 0, shape.parts):
            for other in (strip, row):
                yield Event("waits", ("tile", k, other, part), group)
            for other in (strip, row):
                yield Event("reads", (k, other), group)
        yield Event("arrives", ("empty", k), group)
    yield Event("waits", ("empty", strip), group - places(shape, strip))
    if row == strip:
        yield from diagonal_events(shape, strip, group)
        return
    for number, half in enumerate(("first", "second")):
        if half == "first" and shape.halved and strip == 0:
            continue
        yield Event("writes", (strip, row), group)
        yield Event("waits", (half, strip), group)
        yield Event("reads", (strip, strip), group)
        yield Event("writes", (strip, row), group)
        if number >= 2 - shape.parts:
            yield Event("arrives", ("tile", strip, row, number + shape.parts - 2), group)


def diagonal_events(shape: StripShape, strip: int, group: int) -> Iterator[Event]:
    for half in ("first", "second"):
        yield Event("writes", (strip, strip), group)
        if (strip < shape.side - 1 or (shape.solvers and half == "second")) and not (
            half == "first" and shape.halved and strip == 0
        ):
            yield Event("arrives", (half, strip), group)
    yield Event("reads", (strip, strip), group)
    yield Event("arrives", ("empty", strip), group)


def solver_events(shape: StripShape, group: int) -> Iterator[Event]:
    """What a warp that solves does with a group, as in the template strip_solve.cu.jinja."""
    for strip in range(shape.side):
        yield Event("waits", ("second", strip), group)
        yield Event("reads", (strip, strip), group)
        for row in range(strip + 1, shape.side):
            for part in range(1 if shape.halved and strip == 0 else 0, shape.parts):
                yield Event("waits", ("tile", strip, row, part), group)
            yield Event("reads", (strip, row), group)
    for strip in reversed(range(shape.side)):
        for row in range(strip, shape.side):
            yield Event("reads", (strip, row), group)
        yield Event("arrives", ("empty", strip), group)


def places(shape: StripShape, strip: int) -> int:
    return 1 + (strip < shape.ahead) + (strip < shape.third)


def warps_of(shape: StripShape) -> list[list[Event]]:
    """What each warp of a block does, one thing after the other."""
    warps = []
    for strip, own in enumerate(shape.strip_warps):
        tiles = shape.side - strip
        for warp in range(own):
            turns = [divmod(turn, tiles) for turn in range(warp, GROUPS * tiles, own)]
            events = (tile_events(shape, strip, strip + row, group) for group, row in turns)
            warps.append([event for each in events for event in each if event.group >= 0])
    for solver in range(shape.solvers):
        groups = range(solver, GROUPS, shape.solvers)
        warps.append([event for group in groups for event in solver_events(shape, group)])
    return warps


def happened_before(warps: list[list[Event]]) -> tuple[list[Event], list[int]]:
    """Each event and, as bits, those that have happened by then in every order."""
    events = [event for warp in warps for event in warp]
    numbers: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, event in enumerate(events):
        if event.does == "arrives":
            numbers[event[1:]].append(number)
    before: list[int | None] = [None] * len(events)
    starts = [sum(map(len, warps[:w])) for w in range(len(warps))]
    done = [0] * len(warps)
    while sum(done) < len(events):
        gone_on = sum(done)
        for w, warp in enumerate(warps):
            while done[w] < len(warp):
                number = starts[w] + done[w]
                known = 0 if done[w] == 0 else (before[number - 1] or 0) | 1 << number - 1
                awaited = numbers[events[number][1:]] if events[number].does == "waits" else []
                if any(before[arrival] is None for arrival in awaited):
                    break
                for arrival in awaited:
                    known |= (before[arrival] or 0) | 1 << arrival
                before[number] = known
                done[w] += 1
        assert sum(done) > gone_on, "all wait for each other"
    return events, [known or 0 for known in before]


def hazards(shape: StripShape, turns: int) -> set[str]:
    """What may go wrong with barriers for that many groups, or in shared memory."""
    warps = warps_of(shape)
    events, before = happened_before(warps)
    at: dict[tuple[str, tuple[object, ...], int], list[int]] = defaultdict(list)
    for number, event in enumerate(events):
        at[event].append(number)
    firsts = {sum(map(len, warps[:w])) for w in range(len(warps))}
    found = set()
    for number, (does, what, group) in enumerate(events):
        # What a wait adds to what its warp knew is what it waits for.
        knew = before[number] if does != "waits" or number in firsts else before[number - 1] | 1 << number - 1
        earlier, later = at["arrives", what, group - turns], at["arrives", what, group + turns]
        if does in ("waits", "arrives") and any(not knew >> arrival & 1 for arrival in earlier):
            found.add(f"{does} in the phase before")
        if does == "waits" and later and not any(before[arrival] >> number & 1 for arrival in later):
            found.add("waits when the phase after has ended")
        if does == "writes":
            used = group - places(shape, int(str(what[0])))
            users = [user for how in ("reads", "writes") for user in at[how, what, used]]
            if any(not before[number] >> user & 1 for user in users):
                found.add("writes what is needed")
    return found


SMALL = [
    StripShape(TILE * side - left_out, warps, ahead)
    for side in (1, 2, 3)
    for left_out in (0, TILE // 2)
    for warps in range(side, side * (side + 1) + 1)
    for ahead in range(side)
]
LARGE = [StripShape(n, warps, ahead) for n in (64, 88, 112, 128) for warps in (16, 20, 32) for ahead in (0, 1, 2, 3)]


SOLVING = [
    *(
        StripShape(n, warps, 2, solvers, third)
        for n in (40, 48)
        for warps in (3, 5, 12)
        for solvers in (1, 2, 4)
        for third in (0, 1, 2)
    ),
    *(StripShape(96, 24, 4, 2, third) for third in (0, 1, 2)),
]


def test_no_order_of_warps_breaks_strips_that_solve() -> None:
    assert {shape: found for shape in SOLVING if (found := hazards(shape, shape.turns))} == {}


def test_no_order_of_warps_breaks_a_small_strip() -> None:
    assert {shape: found for shape in SMALL if (found := hazards(shape, TURNS))} == {}


def test_no_order_of_warps_breaks_a_large_strip() -> None:
    assert {shape: found for shape in LARGE if (found := hazards(shape, TURNS))} == {}


@pytest.mark.parametrize("turns", [1, 2, 3, 5])
def test_other_numbers_of_barriers_would_not_do(turns: int) -> None:
    assert any(hazards(shape, turns) for shape in SMALL)
