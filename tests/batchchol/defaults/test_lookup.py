"""What is chosen when nobody says: something that can be built for every problem, and why that."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchchol import SpecError, default_spec, get_backend
from batchchol.artifacts.c_library import supported_targets
from batchchol.defaults.lookup import array_layout, default_layout
from batchchol.defaults.request import TYPICAL_BATCH
from batchchol.defaults.shipped import shipped_tables, source_of
from batchchol.defaults.tables import Case, Entry, Placement, Table, nearest
from batchchol.plan import array_choice, prepare
from kernelgen import MAX_N, SIMD_TARGETS, TARGETS, Layout, Problem, ThreadSchedule, generate
from tests.asked import choice_of, choices_of

BATCHES = (1, 1024, 16_384, 1 << 20)


@pytest.mark.parametrize("layout", ["canonical", "interleaved", "chunked"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("target", TARGETS)
def test_every_order_has_a_default_that_can_be_generated(target: str, dtype: str, layout: str) -> None:
    for n in range(1, MAX_N + 1):
        spec = default_spec(n, target=target, dtype=dtype, layout=layout)
        assert (spec.problem.n, spec.problem.dtype, spec.target, spec.layout) == (n, dtype, target, layout)
        # Of larger orders those beside whole tiles: the text of every default has its place in kernel_texts.csv.
        if n > 17 and n % 16 not in (0, 1, 15):
            continue
        source = generate(spec)
        assert spec.name in source.text
        assert (source.entry, source.lanes) == (spec.name, spec.machine.lanes(dtype))


def test_without_a_target_the_spec_is_for_this_machine() -> None:
    assert default_spec(7) == default_spec(7, target=supported_targets()[0])
    with pytest.raises(SpecError, match=r"arch='sm_90' cannot be built: target .* is no GPU's"):
        default_spec(7, arch="sm_90")


def test_what_is_asked_for_is_in_the_spec() -> None:
    spec = default_spec(7, target="generic", order="row", math="fast", uplo="upper", in_place=True)
    assert (spec.order, spec.problem.math, spec.problem.uplo, spec.in_place) == ("row", "fast", "upper", True)
    plain = default_spec(7, target="generic")
    assert (plain.order, plain.problem.math, plain.problem.uplo, plain.in_place) == ("col", "ieee", "lower", False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("target", "sse"),
        ("dtype", "half"),
        ("layout", "blocked"),
        ("order", "C"),
        ("math", "exact"),
        ("uplo", "L"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(field: str, value: str) -> None:
    with pytest.raises(SpecError, match=f"{value!r} cannot be built: use one of"):
        default_spec(7, **{"target": "generic", field: value})


@pytest.mark.parametrize("n", [0, 129, -1, 2.0, "7", True])
def test_orders_that_cannot_be_built_are_refused(n: int) -> None:
    with pytest.raises(SpecError, match=r"n=.* (use an integer from 1 to \d+|orders above 128 are of)"):
        default_spec(n, target="generic")


@pytest.mark.parametrize("chunk", [None, 8, 32])
def test_a_constant_stride_is_chosen_for_its_own_chunk_alone(chunk: int | None) -> None:
    for batch in BATCHES:
        specs = [default_spec(n, target="cuda", chunk=chunk, batch=batch) for n in range(1, MAX_N + 1)]
        assert {spec.schedule.stride for spec in specs} <= {chunk, None}
        kinds = [default_spec(n, target="cuda", layout="interleaved", chunk=32, batch=batch) for n in (4, 8, 64)]
        assert {spec.schedule.stride for spec in kinds} == {None}


@settings(max_examples=300, deadline=None)
@given(
    n=st.integers(1, MAX_N),
    target=st.sampled_from(list(TARGETS)),
    dtype=st.sampled_from(["float32", "float64"]),
    layout=st.sampled_from(["canonical", "interleaved", "chunked"]),
    chunk=st.none() | st.integers(2, 512),
    order=st.sampled_from(["row", "col"]),
    math=st.sampled_from(["ieee", "fast"]),
    uplo=st.sampled_from(["lower", "upper"]),
    in_place=st.booleans(),
    batch=st.none() | st.integers(0, 1 << 20),
    arch=st.sampled_from([None, "sm_75", "sm_86", "sm_90", "sm_90a", "sm_120"]),
)
def test_whatever_is_asked_for_can_be_built(n: int, target: str, chunk: int | None, **asked: Any) -> None:
    if target != "cuda":
        asked["arch"] = None
    spec = default_spec(n, target=target, chunk=chunk, **asked)
    assert (spec.problem.n, spec.problem.dtype, spec.problem.uplo) == (n, asked["dtype"], asked["uplo"])
    assert (spec.target, spec.layout, spec.order) == (target, asked["layout"], asked["order"])
    assert (spec.problem.math, spec.in_place) == (asked["math"], asked["in_place"])
    assert spec.schedule.stride in (None, chunk)


def test_integers_of_numpy_are_integers_and_truth_values_are_none() -> None:
    spec = default_spec(np.int64(6), target="generic", batch=np.int32(100))
    assert spec == default_spec(6, target="generic", batch=100)
    assert type(spec.problem.n) is int
    with pytest.raises(SpecError, match="n=True cannot be built: use an integer from 1 to 335"):
        default_spec(True, target="generic")
    with pytest.raises(SpecError, match="batch=True cannot be built: use an integer from 0 up"):
        default_spec(6, target="generic", batch=True)


def test_every_entry_that_was_measured_is_what_serves_its_own_case() -> None:
    for table in shipped_tables().values():
        arch = table.name if table.target == "cuda" else None
        for case, entries in table.cases.items():
            orders = {"row": "row", "col": "col", None: "col"}
            for entry in entries:
                spec = default_spec(
                    entry.n,
                    target=table.target,
                    dtype=case.dtype,
                    layout=case.layout,
                    chunk=case.chunk,
                    order=orders[case.order],
                    math=case.math,
                    batch=entry.batch,
                    arch=arch,
                    op=case.op,
                )
                assert spec.schedule == entry.schedule.settled(TARGETS[table.target], spec.problem)


def made(*rows: tuple[Case, int, int | None, ThreadSchedule], name: str = "sm_90", **sections: Any) -> Table:
    """A table of entries (case, n, batch, schedule)."""
    cases: dict[Case, tuple[Entry, ...]] = {}
    for case, n, batch, schedule in rows:
        cases[case] = (*cases.get(case, ()), Entry(n, batch, schedule))
    return Table(name, "cuda", cases, **sections)


IEEE, FAST = Case("float32", "ieee", "chunked"), Case("float32", "fast", "chunked")


def nb(n: int, **asked: Any) -> int:
    return default_spec(n, target="cuda", **asked).schedule.nb


def test_orders_round_up_and_batches_to_the_nearest_by_ratio(tables: Callable[..., None]) -> None:
    small, large = ThreadSchedule(2), ThreadSchedule(3)
    tables(made((IEEE, 8, 1000, small), (IEEE, 8, 100_000, large), (IEEE, 16, None, ThreadSchedule(5))))
    assert [nb(n, batch=1) for n in (7, 8, 9, 16, 17, 128)] == [2, 2, 5, 5, 5, 5]
    assert [nb(8, batch=batch) for batch in (0, 1000, 9_900, 10_100, 1 << 40)] == [2, 2, 2, 3, 3]
    assert nb(8) == nb(8, batch=TYPICAL_BATCH) == 3


def test_what_cannot_be_built_gives_way_to_the_next_best(tables: Callable[..., None]) -> None:
    full, tiles = ThreadSchedule(4, unroll="full"), ThreadSchedule(4)
    # Straight-line code of so large a matrix is refused: somebody's mistake, or another version's.
    tables(made((IEEE, 8, None, ThreadSchedule(8)), (IEEE, 64, 1000, full), (IEEE, 64, 10**6, tiles)))
    assert default_spec(64, target="cuda", batch=1000).schedule.unroll == "tiles"
    assert nb(3) == 3, "a tile is no larger than the matrix"
    tables(made((IEEE, 40, None, ThreadSchedule(2)), (IEEE, 64, None, full), (IEEE, 128, None, tiles)))
    assert [nb(n) for n in (39, 50, 64, 65)] == [2, 2, 2, 4], "that of the nearest order, by ratio"
    tables(made((IEEE, 64, None, full)))
    assert default_spec(64, target="cuda").family == "block", "something always works"
    assert "nothing of it can be built" in choice_of(64, target="cuda").origin


def test_what_is_missing_is_served_as_what_is_most_like_it(tables: Callable[..., None]) -> None:
    chunk = Case("float32", "ieee", "chunked", 8)
    row = Case("float32", "fast", "canonical", order="row")
    cases = ((IEEE, 2), (chunk, 3), (row, 4))
    tables(made(*((case, 128, None, ThreadSchedule(size)) for case, size in cases)))
    assert [nb(16, chunk=size) for size in (None, 4, 8, 32)] == [2, 2, 3, 2]
    assert [nb(16, chunk=8, math=math) for math in ("ieee", "fast")] == [3, 3]
    assert [nb(16, layout="interleaved", math=math) for math in ("ieee", "fast")] == [2, 2]
    canonical = {"layout": "canonical", "order": "row"}
    assert [nb(16, **canonical, uplo=uplo) for uplo in ("lower", "upper")] == [4, 4]
    assert default_spec(16, target="cuda", **canonical).problem.math == "ieee"
    assert nb(16, dtype="float64", chunk=8) == 3


def test_what_is_staged_is_so_for_canonical_arrays_alone(tables: Callable[..., None]) -> None:
    row = Case("float32", "fast", "canonical", order="row")
    staged = ThreadSchedule(1, unroll="full", staged=True, threads=64)
    tables(made((row, 24, None, staged), (row, 128, None, ThreadSchedule(2))))
    asked = {"target": "cuda", "math": "fast"}
    for order, n in (("row", 3), ("col", 24)):
        found = default_spec(n, **asked, layout="canonical", order=order)
        assert found.schedule == staged.settled(TARGETS["cuda"], found.problem)
    chunked = default_spec(8, **asked, chunk=32).schedule
    assert (chunked.staged, chunked.unroll) == (None, "full")
    assert default_spec(25, **asked, layout="canonical").schedule.nb == 2


def test_the_upper_triangle_in_columns_is_the_lower_one_in_rows(tables: Callable[..., None]) -> None:
    cases = {order: Case("float32", "ieee", "canonical", order=order) for order in ("row", "col")}
    rows = ((case, 128, None, ThreadSchedule({"row": 2, "col": 3}[order])) for order, case in cases.items())
    tables(made(*rows))
    asked = [("lower", "row"), ("upper", "col"), ("lower", "col"), ("upper", "row")]
    assert [nb(16, layout="canonical", uplo=uplo, order=order) for uplo, order in asked] == [2, 2, 3, 3]


def test_an_architecture_without_a_table_is_served_by_the_nearest(tables: Callable[..., None]) -> None:
    numbered = {"sm_90": 3, "sm_80": 2}
    tables(*(made((IEEE, 128, None, ThreadSchedule(size)), name=name) for name, size in numbered.items()))
    archs = ["sm_80", "sm_86", "sm_90a", "sm_85", "sm_100", "sm_70", None]
    assert [nb(16, arch=arch) for arch in archs] == [2, 2, 3, 2, 3, 2, 3]
    assert source_of("cuda", "sm_90").reason == "table sm_90"
    assert (
        source_of("cuda", "sm_100").reason
        == "table sm_90, the nearest to sm_100 of those that were measured: predicted"
    )
    assert source_of("cuda").reason == "table sm_90, the newest: the architecture is not known"
    choice = choice_of(16, target="cuda", arch="sm_70")
    assert choice.origin.endswith(
        "nearest to sm_70 of those that were measured: predicted; float32, ieee, chunked, up to order 128"
    )


@pytest.mark.parametrize("arch", ["gfx90", "sm_9", "90", ""])
def test_what_is_no_architecture_is_refused(arch: str) -> None:
    with pytest.raises(SpecError, match=f"arch={arch!r} cannot be built: use the name of a GPU architecture"):
        default_spec(8, target="cuda", arch=arch)
    with pytest.raises(SpecError, match="target 'avx2' is no GPU's, use None"):
        default_spec(8, target="avx2", arch="sm_90")


@pytest.mark.parametrize("batch", [-1, 1.5, "many"])
def test_what_is_no_number_of_matrices_is_refused(batch: Any) -> None:
    with pytest.raises(SpecError, match=f"batch={batch!r} cannot be built: use an integer from 0 up"):
        default_spec(8, target="cuda", batch=batch)


def test_a_batch_is_factored_by_the_schedule_of_its_size(
    tables: Callable[..., None], fake_gpu: object, spd: Callable[..., Any]
) -> None:
    tables(made((IEEE, 8, 10, ThreadSchedule(2)), (IEEE, 8, 1000, ThreadSchedule(3))))
    for batch, size in ((20, 2), (700, 3)):
        there = get_backend("cuda").from_dense(spd(batch, 5))
        assert prepare(there, None, None).choice.spec.schedule.nb == size
        for host in (True, False):
            spec, layout = array_choice(get_backend("cuda"), Problem(5), batch, None, host=host)
            assert (spec.schedule.nb, layout) == (size, Layout.chunked(32))


def test_layouts_are_chosen_by_order(tables: Callable[..., None]) -> None:
    placed = [Placement("float32", n, None, Layout.chunked(chunk)) for n, chunk in ((24, 32), (64, 4))]
    tables(made((IEEE, 128, None, ThreadSchedule(4)), layouts=tuple(placed)))
    chunks = [default_layout(n, target="cuda").chunk for n in (1, 24, 25, 64, 65, 128)]
    assert chunks == [32, 32, 4, 4, 4, 4]
    assert default_layout(40, target="cuda", dtype="float64").chunk == 4
    assert array_layout(40, 1000, target="cuda") == Layout.chunked(4), "where nothing else was measured"
    tables(made((IEEE, 128, None, ThreadSchedule(4))))
    assert default_layout(40, target="cuda") == Layout.chunked(32)


def test_few_matrices_go_into_chunks_of_their_own(tables: Callable[..., None]) -> None:
    placed = [Placement("float32", 64, batch, Layout.chunked(chunk)) for batch, chunk in ((1000, 2), (16_000, 16))]
    tables(made((IEEE, 128, None, ThreadSchedule(4)), layouts=tuple(placed)))
    chunks = [default_layout(40, target="cuda", batch=batch).chunk for batch in (1, 1000, 4000, 4001, 10**6, None)]
    assert chunks == [2, 2, 2, 16, 16, 16], "where nobody says how many, they are many"
    assert array_layout(40, 1000, target="cuda") == Layout.chunked(2)


def test_arrays_are_placed_by_order_and_batch(tables: Callable[..., None]) -> None:
    row = Layout.canonical("row")
    placed = (Placement("float32", 32, 1000, row), Placement("float32", 32, 10**6, Layout.chunked(8)))
    tables(made((IEEE, 128, None, ThreadSchedule(4)), arrays=placed))
    assert [array_layout(16, batch, target="cuda") for batch in (1, 10**4, 10**6)] == [row, row, Layout.chunked(8)]


def test_a_math_may_have_layouts_of_its_own(tables: Callable[..., None]) -> None:
    row, usual = Layout.canonical("row"), Placement("float32", 32, None, Layout.chunked(8))
    placed = (usual, Placement("float32", 32, None, Layout.chunked(4), "fast"))
    arrays = (Placement("float32", 32, None, row), Placement("float32", 32, None, Layout.chunked(4), "fast"))
    tables(made((IEEE, 128, None, ThreadSchedule(4)), layouts=placed, arrays=arrays))
    assert [default_layout(16, target="cuda", math=math).chunk for math in (None, "ieee", "fast")] == [8, 8, 4]
    assert [array_layout(16, 9, target="cuda", math=math).chunk for math in ("ieee", "fast")] == [None, 4]
    for function in (partial(default_layout, 16), partial(array_layout, 16, 9)):
        with pytest.raises(ValueError, match="math: got 'exact', expected one of 'ieee', 'fast'"):
            function(target="cuda", math="exact")


@pytest.mark.parametrize("math", ["ieee", "fast"])
def test_on_the_layout_for_both_maths_no_kernel_of_the_shipped_table_is_far_behind(math: str) -> None:
    """By what was measured of the entries: an order of which one math alone has that chunk would be."""
    at = {"target": "cuda", "arch": "sm_90"}

    def ns(n: int, layout: Layout) -> float:
        found = nearest(choices_of(n, chunk=layout.chunk, math=math, **at), 40_000)
        return min(each.ns for each in found.evidence) / found.n**3

    for n in range(64, 129):
        joint, own = (default_layout(n, batch=40_000, math=each, **at) for each in (None, math))
        assert ns(n, joint) <= 1.7 * ns(n, own), n


def test_batches_of_the_shipped_table_go_into_the_chunks_of_strips() -> None:
    for math in ("ieee", "fast"):
        assert default_layout(96, target="cuda", arch="sm_90", math=math).chunk == 4
        assert default_spec(96, target="cuda", arch="sm_90", chunk=4, math=math).family == "strip"


@pytest.mark.parametrize("target", SIMD_TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_on_a_cpu_chunks_are_registers_and_arrays_stay_as_they_are(target: str, dtype: str) -> None:
    assert default_layout(9, target=target, dtype=dtype) == Layout.chunked(TARGETS[target].lanes(dtype))
    assert array_layout(9, 100, target=target, dtype=dtype) == Layout.canonical("row")


def test_schedules_of_one_math_serve_that_alone() -> None:
    """Those of the shipped table: a packed batch may be factored in either."""
    ieee, fast = (default_spec(24, target="cuda", arch="sm_90", chunk=32, math=math) for math in ("ieee", "fast"))
    assert (ieee.problem.math, fast.problem.math) == ("ieee", "fast")
    assert ieee.schedule != fast.schedule


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_arrays_are_factored_in_the_math_that_is_asked_for(fake_gpu: object, backend: str) -> None:
    device = get_backend(backend)
    for host in (True, False):
        for math in ("ieee", "fast"):
            spec, layout = array_choice(device, Problem(21, math=math), 1024, None, host=host)
            assert (spec.problem.math, layout.kind) == (math, "canonical")


@pytest.mark.parametrize("target", ["generic", "cuda"])
def test_a_solve_that_was_not_measured_has_tiles_that_fit(target: str) -> None:
    for n in (1, 3, 8, 128):
        spec = default_spec(n, target=target, op="potrs")
        assert (spec.problem.op, spec.family) == ("potrs", "thread")
        assert 1 <= spec.schedule.nb <= n
        assert generate(spec).entry == spec.name
