"""The rule for general matrices: lanes that have whole columns, and what takes their place."""

from __future__ import annotations

import pytest

from batchchol.defaults.lookup import default_choice, default_layout
from batchchol.defaults.request import Request
from batchchol.defaults.rules.general import general, of_many_columns
from kernelgen import KernelSpec, Layout, Problem, ThreadSchedule
from kernelgen.schedules.stages.lanes import LaneStage
from kernelgen.schedules.stages.panels import PanelStage

ROWS, PACKED = Layout.canonical("row"), Layout.chunked(32)


def chosen(op: str, n: int, layout: Layout = ROWS, m: int | None = None, dtype: str = "float32") -> KernelSpec:
    return default_choice(Request(Problem(n, dtype, op=op, m=m), "cuda", arch="sm_90").on(layout)).spec


def stage_of(spec: KernelSpec) -> object:
    assert isinstance(spec.schedule, ThreadSchedule)
    return spec.schedule.general_stage(spec.problem, spec.layout, spec.order)


@pytest.mark.parametrize("layout", [ROWS, PACKED], ids=str)
def test_rectangles_of_every_shape_have_a_kernel(layout: Layout) -> None:
    for m in (3, 17, 40, 64, 128):
        for n in (1, 4, 8, 16, 33, 128):
            for op in ("geqrf", "orgqr", "ormqr", "gels")[: 4 if m >= n else 1]:
                assert chosen(op, n, layout, m).problem.rows == m


def test_many_right_hand_sides_are_not_for_lanes() -> None:
    spec = chosen("gels", 16)
    assert isinstance(stage_of(spec), LaneStage)
    many = of_many_columns(spec, "sm_90")
    assert many.problem == spec.problem
    assert not isinstance(stage_of(many), LaneStage)
    for other in (chosen("gels", 8), chosen("gels", 100), many):
        assert of_many_columns(other, "sm_90") is other


@pytest.mark.parametrize("op", ["getrf", "getrs", "gesv"])
def test_kernels_of_lu_are_launched_early_where_that_can_be(op: str) -> None:
    for n in (4, 12, 24, 64, 128):
        for layout in (ROWS, PACKED, Layout.canonical("col")):
            assert chosen(op, n, layout).schedule.pdl
            plain = KernelSpec(Problem(n, op=op), layout.kind, layout.order, chosen(op, n, layout).schedule, "cuda")
            assert not general(plain, layout.chunk, "sm_86").schedule.pdl


def test_large_matrices_have_panels_of_reflectors_where_there_is_room() -> None:
    assert {type(stage_of(chosen(op, 96, layout))) for op in ("geqrf", "gels") for layout in (ROWS, PACKED)} == {
        PanelStage
    }
    assert not isinstance(stage_of(chosen("orgqr", 96)), PanelStage)
    tall = [Request(Problem(n, m=128, op="geqrf"), "cuda", arch="sm_90").on(ROWS) for n in (31, 32, 64, 65)]
    found = [isinstance(stage_of(default_choice(each).spec), PanelStage) for each in tall]
    assert found == [False, True, True, False]
    double = Request(Problem(128, "float64", op="geqrf"), "cuda", arch="sm_86").on(ROWS)
    assert not isinstance(stage_of(default_choice(double).spec), PanelStage)


def test_an_entry_serves_orders_near_its_own_in_its_own_place() -> None:
    def evidence(n: int, layout: Layout = ROWS, dtype: str = "float32") -> bool:
        request = Request(Problem(n, dtype, op="gesv"), "cuda", arch="sm_90")
        return bool(default_choice(request.on(layout)).evidence)

    assert all([evidence(15), evidence(16), evidence(16, PACKED)])
    # Nothing was measured from 41 to 63 of packed ones, nor in columns or packed float64.
    assert not any([evidence(45, PACKED), evidence(16, Layout.canonical("col")), evidence(16, PACKED, "float64")])
    # Offsets are those of the chunk that is asked for.
    assert chosen("gesv", 64, Layout.chunked(16)).schedule.stride == 16


@pytest.mark.parametrize(
    ("n", "dtype", "chunk"),
    [(16, "float32", 8), (32, "float32", 4), (32, "float64", 2), (40, "float32", 2), (64, "float32", 2)],
)
def test_a_chunk_of_packed_matrices_is_what_a_warp_shares(n: int, dtype: str, chunk: int) -> None:
    for op in ("getrf", "gesv"):
        layout = default_layout(n, target="cuda", dtype=dtype, arch="sm_90", op=op)
        assert layout == Layout.chunked(chunk, "row")
        schedule = chosen(op, n, layout, dtype=dtype).schedule
        assert isinstance(schedule, ThreadSchedule)
        assert schedule.stride == chunk


def test_matrices_of_a_thread_each_are_packed_as_for_cholesky() -> None:
    # At n = 12 four threads solve faster, and factor no faster.
    assert default_layout(12, target="cuda", arch="sm_90", op="gesv") == Layout.chunked(8, "row")
    assert chosen("gesv", 12, Layout.chunked(8, "row")).schedule.split == 4
    for n, op in ((8, "gesv"), (12, "getrf"), (32, "geqrf")):
        usual = default_layout(n, target="cuda", arch="sm_90")
        assert default_layout(n, target="cuda", arch="sm_90", op=op) == usual
