"""Which kernel of each family takes part: measured ones before those of the tables, at the nearest batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from batchchol.compare.known_kernels import best_canonical, best_packed, read
from batchchol.compare.references import Reference, lines, references
from batchchol.defaults.lookup import default_choice
from batchchol.defaults.request import Request
from batchchol.measure.csv_file import append
from batchchol.measure.point import Point
from batchchol.measure.row import Row
from kernelgen import BlockSchedule, KernelSpec, Layout, Problem, SharedSchedule

WANTED = Request(Problem(16, math="fast"), "cuda", batch=16_384, arch="sm_90")
ABOUT = {"gpu": "a GPU", "toolkit": "CUDA", "date": "2026-11-21"}


def shared(nb: int, n: int = 16, math: str = "fast") -> KernelSpec:
    return KernelSpec(Problem(n, math=math), "chunked", "col", SharedSchedule(nb), "cuda")


def known(spec: KernelSpec, batch: int, seconds: float, chunk: int | None = 32) -> Row:
    return Row.timed(Point(spec, batch, chunk), [seconds * batch])


@pytest.mark.usefixtures("thread_table")
def test_the_tables_name_a_kernel_of_the_family_that_they_chose() -> None:
    found = best_packed([], "thread", WANTED)
    assert found is not None
    assert (found.spec.family, found.spec.problem.math, found.layout) == ("thread", "fast", Layout.chunked(32))
    assert best_packed([], "shared", WANTED) is None


def test_the_fastest_at_the_nearest_batch_counts() -> None:
    measured = [
        known(shared(2), 1_024, 1.0),
        known(shared(4), 16_384, 5.0),
        known(shared(8), 16_384, 4.0),
        known(shared(16), 1_000_000, 0.5),
    ]
    found = best_packed(measured, "shared", WANTED)
    assert found is not None
    assert found.spec == shared(8)
    largest = best_packed(measured, "shared", replace(WANTED, batch=2_000_000))
    assert largest is not None
    assert largest.spec == shared(16)


def test_who_was_measured_longer_counts_more_than_a_lucky_short_measurement() -> None:
    lucky, finalist = known(shared(2), 16_384, 1.0), replace(known(shared(4), 16_384, 2.0), samples=25)
    found = best_packed([lucky, finalist], "shared", WANTED)
    assert found is not None
    assert found.spec == shared(4)


@pytest.mark.usefixtures("thread_table")
@pytest.mark.parametrize("spec", [shared(4, n=17), shared(4, math="ieee")], ids=["n", "math"])
def test_what_was_measured_of_something_else_does_not_count(spec: KernelSpec) -> None:
    assert best_packed([known(spec, 16_384, 1.0)], "shared", WANTED) is None


def test_arrays_have_the_kernel_that_was_measured_on_arrays_or_that_of_the_tables() -> None:
    block = KernelSpec(Problem(16, math="fast"), "chunked", "col", BlockSchedule(4, 8, stride=8), "cuda")
    measured = KernelSpec(Problem(16, math="fast"), "canonical", "col", SharedSchedule(2), "cuda")
    chunks = [known(block, 16_384, 1.0, chunk=8)]
    assert best_canonical([*chunks, known(measured, 16_384, 2.0, chunk=None)], WANTED) == measured
    expected = default_choice(replace(WANTED, layout="canonical", order="row")).spec
    assert best_canonical(chunks, WANTED) == best_canonical([], WANTED) == expected


def test_a_tuning_run_is_read_with_its_chunks(tmp_path: Path) -> None:
    path = tmp_path / "tune.csv"
    points = [Point(shared(4), 1_000, 8, 1, protocol) for protocol in ("queued", "single")]
    append(path, [Row.timed(point, [2e-6] * 5, ratio=0.3) for point in points], ABOUT)
    (found,) = read(path)
    assert (found.spec, found.point.layout, found.point.batch) == (shared(4), Layout.chunked(8), 1_000)
    assert found.median_seconds == pytest.approx(2e-6)


def test_dated_figures_are_those_of_the_same_gpu_and_batch_of_who_was_not_measured() -> None:
    assert {each.library for each in references()} == {"magma", "cusolverdx"}
    chosen = lines("NVIDIA H200", "float32", ["magma"], [8, 9, 64], 16_384)
    assert [(each.library, each.n, each.batch) for each in chosen] == [
        ("cusolverdx", 8, 16_384),
        ("cusolverdx", 64, 16_384),
    ]
    assert lines("NVIDIA A100", "float32", [], [8], 16_384) == []
    assert lines("NVIDIA H200", "float64", [], [8], 16_384) == []
    assert lines("NVIDIA H200", "float32", [], [8], 100) == [], "too far from what was measured"
    largest = lines("NVIDIA H200", "float32", ["cusolverdx"], [4], 33_553_408)
    assert [each.batch for each in largest] == [1_048_576]


def test_a_dated_figure_says_so() -> None:
    first = references()[0]
    assert isinstance(first, Reference)
    assert first.label == f"{first.library}, {first.date}"
    assert all(each.gflops > 0 and each.protocol == "queued" and each.version for each in references())
