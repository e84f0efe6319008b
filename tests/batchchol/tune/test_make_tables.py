"""The table of defaults that measured rows make: winners, what is kept within the margin, and what is left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batchchol import BatchcholError
from batchchol.defaults.tables import Case, Evidence, nearest, parse, render, values_of
from batchchol.measure.row import Row
from batchchol.tune.choosing.make_tables import table
from batchchol.tune.choosing.winners import FIRST_SAMPLES
from kernelgen import TARGETS, Layout, Problem, SharedSchedule, StripSchedule, ThreadSchedule

from .made_rows import ABOUT, LARGE, SMALL, a_row, thread


def chosen(rows: list[Row], case: Case | None = None) -> list[tuple[int, int | None, int]]:
    """(n, batch, nb) of each entry."""
    entries = table(rows, "sm_90").cases[case or Case("float32", "ieee", "chunked")]
    return [(entry.n, entry.batch, entry.schedule.nb) for entry in entries]


def test_a_winner_within_the_margin_keeps_the_schedule_of_the_order_before() -> None:
    far = [a_row(8, thread(4), 1.0), a_row(8, thread(8), 2.0)]
    near = [a_row(9, thread(4), 1.02), a_row(9, thread(8), 1.0)]
    past = [a_row(10, thread(4), 1.2), a_row(10, thread(8), 1.0)]
    assert chosen(far + near + past) == [(9, None, 4), (10, None, 8)], "and order 8 is served as order 9"


def test_an_order_of_general_matrices_out_of_the_next_ones_reach_has_an_entry_of_its_own() -> None:
    rows = [a_row(n, ThreadSchedule(1, "right", "full"), 1.0, op="getrf") for n in (10, 12, 14)]
    case = Case("float32", "ieee", "chunked", op="getrf")
    assert chosen(rows, case) == [(10, None, 1), (14, None, 1)]


def test_what_spills_wins_where_nothing_else_is_within_the_margin() -> None:
    fast = a_row(8, thread(4), 1.0, about=ABOUT | {"spill_bytes": 16})
    assert chosen([fast, a_row(8, thread(8), 1.02)]) == [(8, None, 8)]
    assert chosen([fast, a_row(8, thread(8), 1.2)]) == [(8, None, 4)]


def test_a_winner_within_the_margin_keeps_the_schedule_of_the_batch_before() -> None:
    small = [a_row(8, thread(4), 1.0), a_row(8, thread(8), 2.0)]
    large = [a_row(8, thread(4), 1.02, LARGE), a_row(8, thread(8), 1.0, LARGE)]
    assert chosen(small + large) == [(8, None, 4)]
    larger = [a_row(8, thread(4), 1.2, 4 * LARGE), a_row(8, thread(8), 1.0, 4 * LARGE)]
    assert chosen(small + large + larger) == [(8, SMALL, 4), (8, LARGE, 4), (8, 4 * LARGE, 8)]


def test_what_was_chosen_at_another_batch_is_no_neighbour_of_the_next_order() -> None:
    rows = [a_row(8, thread(4), 1.0), a_row(8, thread(8), 9.0)]
    rows += [a_row(8, thread(4), 9.0, LARGE), a_row(8, thread(8), 1.0, LARGE)]
    rows += [a_row(9, thread(4), 1.01, LARGE), a_row(9, thread(8), 1.02, LARGE), a_row(9, thread(2), 1.0, LARGE)]
    assert chosen(rows)[-1] == (9, None, 8)


def test_few_samples_do_not_beat_many_and_a_later_measurement_replaces_an_earlier_one() -> None:
    lucky = a_row(8, thread(2), 0.5, samples=FIRST_SAMPLES)
    assert chosen([lucky, a_row(8, thread(4), 1.0), a_row(8, thread(8), 2.0)]) == [(8, None, 4)]
    again = a_row(8, thread(8), 0.9)
    assert chosen([lucky, a_row(8, thread(4), 1.0), a_row(8, thread(8), 2.0), again]) == [(8, None, 8)]


@pytest.mark.parametrize("fault", [{"status": "wrong"}, {"protocol": "single"}])
def test_what_does_not_count(fault: dict[str, Any]) -> None:
    assert chosen([a_row(8, thread(2), 0.5, **fault), a_row(8, thread(4), 1.0)]) == [(8, None, 4)]
    with pytest.raises(BatchcholError, match="got correct ones of none, expected one target"):
        table([a_row(8, thread(2), 0.5, **fault)], "sm_90")


def test_a_cpu_times_single_calls() -> None:
    only = a_row(8, ThreadSchedule(4), 1.0, target="avx2", protocol="single", layout=Layout.chunked(8))
    assert table([only], "avx2").target == "avx2"
    with pytest.raises(BatchcholError, match="got correct ones of avx2, cuda, expected one target"):
        table([only, a_row(8, thread(4), 1.0)], "sm_90")


def test_kernels_of_every_family_compete() -> None:
    rows = [a_row(8, thread(4), 2.0), a_row(8, SharedSchedule(2), 1.0)]
    (entries,) = table(rows, "sm_90").cases.values()
    assert [entry.schedule.family for entry in entries] == ["shared"]


def test_a_chunk_whose_winners_are_its_own_has_a_case_of_its_own() -> None:
    rows = [a_row(8, thread(4), 2.0), a_row(8, thread(8, stride=32), 1.0)]
    rows += [a_row(16, thread(4), 1.0), a_row(16, thread(8, stride=32), 2.0)]
    cases = table(rows, "sm_90").cases
    assert list(cases) == [Case("float32", "ieee", "chunked"), Case("float32", "ieee", "chunked", 32)]
    own = cases[Case("float32", "ieee", "chunked", 32)]
    assert [(entry.n, entry.schedule.nb, entry.schedule.stride) for entry in own] == [(8, 8, 32), (16, 4, None)]


def test_a_chunk_that_was_not_measured_at_an_order_is_served_as_any_chunk() -> None:
    rows = [a_row(8, thread(2), 1.0), a_row(16, thread(4), 1.0), a_row(16, thread(8), 0.5, chunk=4)]
    assert chosen(rows, Case("float32", "ieee", "chunked", 4)) == [(8, None, 2), (16, None, 8)]


def test_kernels_for_any_chunk_are_chosen_on_the_largest() -> None:
    rows = [a_row(8, thread(2), 1.0, chunk=64), a_row(8, thread(4), 2.0, chunk=64)]
    rows += [a_row(8, thread(2), 2.0, chunk=4), a_row(8, thread(4), 1.0, chunk=4)]
    assert chosen(rows) == [(8, None, 2)]
    assert chosen(rows, Case("float32", "ieee", "chunked", 4)) == [(8, None, 4)]


def test_what_one_math_lacks_is_the_others() -> None:
    rows = [a_row(8, thread(4), 1.0), a_row(16, thread(8), 1.0, math="fast")]
    for math in ("ieee", "fast"):
        assert chosen(rows, Case("float32", math, "chunked")) == [(8, None, 4), (16, None, 8)]


def test_canonical_points_have_cases_of_their_own_by_the_order_of_the_lower_triangle() -> None:
    rows = [a_row(8, thread(4), 1.0), a_row(8, thread(2), 0.1, layout=Layout.canonical("row"))]
    rows += [a_row(8, thread(3), 0.1, layout=Layout.canonical("row"), uplo="upper")]
    assert chosen(rows) == [(8, None, 4)]
    assert chosen(rows, Case("float32", "ieee", "canonical", order="row")) == [(8, None, 2)]
    assert chosen(rows, Case("float32", "ieee", "canonical", order="col")) == [(8, None, 3)]


def test_the_layout_of_batches_is_the_best_chunk_at_the_largest_batch() -> None:
    rows = [a_row(8, thread(4), 1.0, LARGE), a_row(8, thread(4), 1.5, LARGE, chunk=4)]
    rows += [a_row(16, thread(4), 1.005, LARGE), a_row(16, thread(4), 1.0, LARGE, chunk=4)]
    rows += [a_row(32, thread(4), 1.2, LARGE), a_row(32, thread(4), 1.0, LARGE, chunk=4)]
    layouts = [(each.n, each.layout) for each in table(rows, "sm_90").layouts]
    assert layouts == [(16, Layout.chunked(32)), (32, Layout.chunked(4))]


def test_few_matrices_may_have_a_layout_of_their_own() -> None:
    """Where many were measured alone, all are like them."""
    few, some, many = 100, 10_000, LARGE
    rows = [a_row(8, thread(4), seconds, batch, 32) for batch, seconds in ((few, 2.0), (some, 1.0), (many, 1.0))]
    rows += [a_row(8, thread(4), seconds, batch, 4) for batch, seconds in ((few, 1.0), (some, 0.9), (many, 2.0))]
    rows += [a_row(4, thread(4), 0.1, many, 32)]
    rows += [a_row(16, thread(4), 3.0, batch, 8) for batch in (few, some, many)]
    rows += [a_row(32, thread(4), 5.0, many, 8)]
    layouts = [(each.n, each.batch, each.layout.chunk) for each in table(rows, "sm_90").layouts]
    assert layouts == [(4, None, 32), (8, few, 4), (8, 2 * few, 32), (32, None, 8)]


def test_the_layout_of_batches_suits_both_maths() -> None:
    rows = [a_row(8, thread(4), 1.0, LARGE, chunk, math=math) for math, chunk in (("fast", 4), ("ieee", 8))]
    rows += [a_row(8, thread(4), 1.3, LARGE, 4), a_row(8, thread(4), 1.5, LARGE, 8, math="fast")]
    alone = a_row(8, thread(4), 0.1, LARGE, 16, math="fast")

    def chunks(rows: list[Row]) -> dict[str | None, int | None]:
        return {each.math: each.layout.chunk for each in table(rows, "sm_90").layouts}

    assert chunks([*rows, alone]) == {None: 4, "ieee": 8, "fast": 16}
    assert chunks([a_row(8, thread(4), 2.0, LARGE, 8), alone]) == {None: 8, "fast": 16}, "each is said if it differs"


def test_an_order_that_was_measured_on_the_chunk_of_a_faster_one_has_its_own() -> None:
    faster, slower = [a_row(16, thread(4), 1.0, LARGE, chunk=4)], [a_row(15, thread(4), 1.5, LARGE, chunk=8)]
    assert [each.layout.chunk for each in table([*faster, *slower], "sm_90").layouts] == [4]
    slower += [a_row(15, thread(4), 1.7, LARGE, chunk=4)]
    layouts = [(each.n, each.layout.chunk) for each in table([*faster, *slower], "sm_90").layouts]
    assert layouts == [(15, 8), (16, 4)]


def test_an_order_that_was_measured_on_that_chunk_in_one_math_has_no_layout_for_both() -> None:
    faster = [a_row(16, thread(4), 1.0, LARGE, chunk=4, math=math) for math in ("ieee", "fast")]
    slower = [a_row(15, thread(4), 1.5, LARGE, chunk=8, math=math) for math in ("ieee", "fast")]
    slower += [a_row(15, thread(4), 1.2, LARGE, chunk=4, math="fast")]
    layouts = [(each.math, each.n, each.layout.chunk) for each in table([*faster, *slower], "sm_90").layouts]
    assert layouts == [(None, 16, 4)]


def test_arrays_may_have_another_layout_in_another_math() -> None:
    row = Layout.canonical("row")
    rows = [a_row(16, thread(4), 3.0), a_row(16, thread(4), 2.0, layout=row)]
    rows += [a_row(16, thread(4), 0.5, math="fast"), a_row(16, thread(4), 2.0, layout=row, math="fast")]
    copy = 4 * 16**2 * 4 * SMALL
    arrays = {each.math: each.layout for each in table(rows, "sm_90", copy_bytes_per_second=copy).arrays}
    assert arrays == {None: row, "fast": Layout.chunked(32)}


def test_arrays_are_packed_where_that_is_faster_with_both_copies() -> None:
    row = Layout.canonical("row")
    copy = 4 * 16**2 * 4 * SMALL  # bytes: whole matrices are read and written twice
    rows = [a_row(16, thread(4), 1.0), a_row(16, thread(4), 1.5, chunk=4), a_row(16, thread(4), 3.0, layout=row)]
    assert table(rows, "sm_90").arrays == (), "nobody knows what the copies take"

    def arrays(rate: float, floor: float = float("nan")) -> list[Layout]:
        timed = [replace(each, floor_seconds=floor) for each in rows]
        return [each.layout for each in table(timed, "sm_90", copy_bytes_per_second=rate).arrays]

    assert arrays(copy / 1.0) == [Layout.chunked(32)]
    assert arrays(copy / 2.5) == [row]
    assert arrays(copy / 1.0, floor=0.6) == [row], "and each copy is a launch"


def test_where_either_way_was_not_measured_nothing_is_said_of_arrays() -> None:
    assert table([a_row(16, thread(4), 1.0)], "sm_90", copy_bytes_per_second=1e9).arrays == ()


def test_tables_survive_their_file() -> None:
    rows = [a_row(16, thread(4, stride=32), 1.0), a_row(16, thread(4), 1.5, chunk=4), a_row(16, thread(2), 2.0)]
    rows += [a_row(16, thread(4), 3.0, layout=Layout.canonical("row")), a_row(16, SharedSchedule(2), 1.0, LARGE)]
    rows += [a_row(24, thread(4), 1.0, dtype="float64"), a_row(24, thread(4), 1.0, math="fast")]
    made = table(rows, "sm_90", measured={"float32": "here"}, copy_bytes_per_second=1e9)
    text = render([made])
    assert list(parse(text).values()) == [made]
    entries = sum(map(len, made.cases.values())) + len(made.layouts) + len(made.arrays)
    assert text.count("\n   {") + text.count("\n    {") == entries + len(made.cases), "a line an entry"


def test_zeros_that_are_the_default_are_left_out() -> None:
    assert values_of(StripSchedule(24, ahead=0)) == {"family": "strip", "warps": 24}
    assert values_of(StripSchedule(24, ahead=2, third=1))["third"] == 1


def test_an_update_replaces_what_was_measured_again_and_keeps_other_dtypes() -> None:
    old = table([a_row(8, thread(4), 1.0), a_row(8, thread(2), 1.0, dtype="float64")], "sm_90")
    new = table([a_row(8, thread(8), 1.0), a_row(8, thread(7), 1.0, math="fast")], "sm_90")
    both = old.updated(new)
    assert {case: entries[0].schedule.nb for case, entries in both.cases.items()} == {
        Case("float64", "ieee", "chunked"): 2,
        Case("float32", "ieee", "chunked"): 8,
        Case("float32", "fast", "chunked"): 7,
    }
    assert {each.dtype for each in both.layouts} == {"float32", "float64"}


def test_entries_of_another_operation_leave_those_of_cholesky_and_its_layouts() -> None:
    old = table([a_row(8, thread(4), 1.0)], "sm_90", measured={"float32": "here"})
    whole, each = ThreadSchedule(1, "right", "full"), SMALL * 1e-9
    rows = [a_row(8, replace(whole, stride=32), each, op="gesv"), a_row(8, whole, 2 * each, op="getrf")]
    new = table(rows, "sm_90", measured={"float32": "there"}, copy_bytes_per_second=1e9)
    both = old.updated(new)
    assert (both.layouts, both.measured) == (old.layouts, {"float32": "here"})
    gesv, getrf = Case("float32", "ieee", "chunked", 32, op="gesv"), Case("float32", "ieee", "chunked", op="getrf")
    assert set(both.cases) == {*old.cases, gesv, getrf}
    assert [entry.evidence[0].ns for case in (gesv, getrf) for entry in both.cases[case]] == [1, 2]


def test_cases_are_in_the_same_order_in_every_run() -> None:
    """Whatever the hashes of their names."""
    ops = ("potrf", "getrs", "gesv", "gels", "getrf", "geqrf")
    rows = [a_row(8, ThreadSchedule(1, "right", "full"), 1.0, op=op) for op in ops]
    assert [case.op for case in table(rows, "sm_90").cases] == sorted(ops)


def test_an_entry_says_what_it_took_and_what_the_next_best_would() -> None:
    rows = [a_row(8, thread(4), 1.024e-6), a_row(8, thread(8), 2.048e-6), a_row(8, thread(2), 1e-9, samples=5)]
    rows += [a_row(8, thread(4), 2.097152e-3, LARGE), a_row(8, SharedSchedule(2), 4.194304e-3, LARGE)]
    rows += [a_row(16, thread(2), 1.024e-6, chunk=64, math="fast")]
    made = table(rows, "sm_90")
    first, second = made.cases[Case("float32", "ieee", "chunked")]
    fitting = {family: schedule.settled(TARGETS["cuda"], Problem(16)) for family, schedule in
               {"thread": thread(8), "shared": SharedSchedule(2)}.items()}  # fmt: skip
    assert first.evidence == (
        Evidence(SMALL, 1.0, fitting["thread"], 2.0, chunk=32),
        Evidence(LARGE, 2.0, fitting["shared"], 4.0, chunk=32),
    )
    assert second.evidence == (Evidence(SMALL, 1.0, math="fast", chunk=64),)
    (written,) = parse(render([made])).values()
    for case, entries in made.cases.items():
        assert [(e.until, e.evidence) for e in written.cases[case]] == [(e.until, e.evidence) for e in entries]


def test_times_of_two_devices_are_not_compared() -> None:
    """Where the second one was measured, its slowest is chosen before the fastest of the first."""
    rows = [a_row(8, thread(4), 1.0), a_row(16, thread(4), 1.0)]
    rows.append(a_row(16, thread(8), 3.0, about={**ABOUT, "device": "another", "date": "2026-11-24T20:00:00"}))
    assert chosen(rows) == [(8, None, 4), (16, None, 8)]


def test_an_entry_serves_until_the_next_one_is_faster() -> None:
    """Both were measured at both batches: the second loses by 4 times at the small one and wins by 2 at the large."""
    rows = [a_row(8, thread(4), 1.0), a_row(8, thread(8), 4.0)]
    rows += [a_row(8, thread(4), 2.0, LARGE), a_row(8, thread(8), 1.0, LARGE)]
    row = table(rows, "sm_90").cases[Case("float32", "ieee", "chunked")]
    crossing = int(SMALL * (LARGE / SMALL) ** (2 / 3))
    assert [(entry.batch, entry.until) for entry in row] == [(SMALL, crossing), (LARGE, None)]
    sizes = [0, SMALL, crossing, crossing + 1, LARGE, 2 * LARGE]
    assert [nearest(row, batch).schedule.nb for batch in sizes] == [4, 4, 4, 8, 8, 8]
    alone = table([rows[0], rows[3]], "sm_90").cases[Case("float32", "ieee", "chunked")]
    assert [entry.until for entry in alone] == [None, None], "who knows"
    middle = int((SMALL * LARGE) ** 0.5)
    assert [nearest(alone, batch).schedule.nb for batch in (middle, middle + 1)] == [4, 8]
    # What was kept within the margin is slower everywhere; yet each entry serves its own batch.
    near = [a_row(8, thread(4), 1.02), a_row(8, thread(8), 1.0), a_row(7, thread(4), 1.0)]
    kept = table([*near, *rows[2:]], "sm_90").cases[Case("float32", "ieee", "chunked")]
    assert [(e.n, e.batch, e.until, e.schedule.nb) for e in kept[1:]] == [(8, SMALL, SMALL, 4), (8, LARGE, None, 8)]


def test_what_was_not_measured_at_a_large_batch_wins_there_if_it_took_less_for_each_matrix_of_few() -> None:
    def chosen(seconds: float) -> list[int | None]:
        few = [a_row(8, thread(2), 0.5), a_row(8, thread(4), 1.0)]
        found = table([*few, a_row(8, thread(4), seconds, LARGE)], "sm_90").cases[Case("float32", "ieee", "chunked")]
        return [entry.schedule.nb for entry in found]

    more = LARGE / SMALL
    assert chosen(0.51 * more) == [2]
    assert chosen(0.49 * more) == [2, 4]
