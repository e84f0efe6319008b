"""Tuning: every schedule is a candidate, the best are measured again, and what fails is recorded, never believed."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchchol import BatchcholError, cli
from batchchol.batches import host_memory
from batchchol.defaults import tables
from batchchol.measure import process
from batchchol.measure.point import Point
from batchchol.measure.row import Row
from batchchol.operations.residual import RATIO_BOUND
from batchchol.tune import candidates, tuning
from batchchol.tune.choosing.winners import FINAL_SAMPLES, FIRST_SAMPLES
from batchchol.tune.tuning import GPU_FINALISTS
from kernelgen import BlockSchedule, KernelSpec, Problem, SharedSchedule, ThreadSchedule, WarpSchedule
from kernelgen.schedules import FAMILIES, LOOKINGS

DATASETS = Path(__file__).parents[3] / "datasets"


def spec_of(n: int, nb: int, looking: str = "left", target: str = "cuda", **choices: Any) -> KernelSpec:
    return KernelSpec(Problem(n), "chunked", "col", ThreadSchedule(nb, looking, **choices), target)


def row(spec: KernelSpec, seconds: float, samples: int = FINAL_SAMPLES, status: str = "correct") -> Row:
    return Row(Point(spec, 1000, 32, 1, "queued"), status, median_seconds=seconds, samples=samples)


class FakeBackend:
    """Larger tiles and blocks of 64 are faster, right looking kernels wrong, and tiles of 2 late."""

    protocols = ("queued", "single")

    def __init__(self) -> None:
        self.built: list[KernelSpec] = []
        self.asked: list[tuple[Point, int]] = []

    def build(self, specs: list[KernelSpec]) -> None:
        self.built += specs

    def measure(self, point: Point, samples: int) -> Row:
        self.asked.append((point, samples))
        schedule = point.spec.schedule
        if schedule.nb == 2:
            return Row(point, "timeout", "too slow")
        if getattr(schedule, "looking", None) == "right":
            return Row(point, "wrong")
        seconds = 1 / schedule.nb - 0.01 * (getattr(schedule, "threads", None) == 64)
        return Row.timed(point, [seconds] * samples)

    def rows(self, specs: list[KernelSpec]) -> list[Row]:
        """All that is measured of these candidates."""
        backend: Any = self
        return list(tuning.measure(backend, specs, 1000, 1, self.measure))


@pytest.fixture
def fake() -> FakeBackend:
    return FakeBackend()


@pytest.mark.parametrize("target", ["avx2", "cuda"])
@pytest.mark.parametrize("n", [1, 2, 6, 33, 34, 128])
def test_every_order_of_evaluation_is_a_candidate_and_all_can_be_built(n: int, target: str) -> None:
    specs = candidates.specs(n, "float32", "ieee", target)
    assert len(set(specs)) == len(specs)
    if n > 1 or target == "cuda":
        assert {spec.schedule.looking for spec in specs} == set(LOOKINGS)
    assert {spec.schedule.nb for spec in specs} <= set(range(1, n + 1))
    for spec in specs[:3]:
        assert set(candidates.variations(spec)) - {spec}


def test_on_a_gpu_kernels_for_any_chunk_and_for_the_default_one_compete() -> None:
    specs = candidates.specs(40, "float32", "fast", "cuda")
    assert {spec.schedule.stride for spec in specs} == {None, 32}
    assert {spec.schedule.unroll for spec in specs} == {"tiles"}
    assert {spec.schedule.unroll for spec in candidates.specs(24, "float32", "fast", "cuda")} == {"tiles", "full"}


@pytest.mark.parametrize(("dtype", "largest"), [("float32", 28), ("float64", 20)])
def test_canonical_arrays_are_staged_while_registers_hold_the_triangle(dtype: str, largest: int) -> None:
    for n in range(1, 34):
        found = candidates.specs(n, dtype, "fast", "cuda", layout="canonical")
        assert {bool(spec.schedule.staged) for spec in found} == {n <= largest}
    small, large = (
        KernelSpec(Problem(n), "canonical", "row", ThreadSchedule(1, unroll="full", staged=True), "cuda")
        for n in (8, 24)
    )
    assert [spec.schedule.threads for spec in candidates.variations(small)] == [32, 64, 128, 256]
    assert [spec.schedule.threads for spec in candidates.variations(large)] == [32, 64]
    assert not any(spec.schedule.staged for spec in candidates.specs(8, dtype, "fast", "cuda"))


def test_straight_line_code_is_given_all_registers_that_it_can_use() -> None:
    """On a chunk that it knows; what the compiler gives it is a variation, as the other is elsewhere."""
    for spec in candidates.specs(24, "float32", "fast", "cuda", ("thread",)):
        known = spec.schedule.unroll == "full" and spec.schedule.stride
        assert spec.schedule.blocks == (1 if known else None)
        assert {each.schedule.blocks for each in candidates.variations(spec)} == {1, None}


@pytest.mark.parametrize("n", [1, 3, 4, 13, 16, 17, 31, 33, 48, 64, 65, 100, 127, 128])
def test_every_order_has_candidates_of_the_block_family(n: int) -> None:
    specs = candidates.specs(n, "float32", "fast", "cuda", ("block",))
    assert 0 < len(specs) <= 60
    assert len(set(specs)) == len(specs)
    assert {candidates.chunk_of(spec) for spec in specs} >= {32}
    assert all(spec.schedule.stride in (None, 32, max(2, spec.schedule.lanes)) for spec in specs)
    padded = min(-(-n // nb) * nb for nb in candidates.BLOCK_TILE_SIZES if nb <= max(n, 4))
    assert any(-(-n // spec.schedule.nb) * spec.schedule.nb == padded for spec in specs)


def test_blocks_of_a_multiprocessor_are_as_many_as_have_registers() -> None:
    heavy = KernelSpec(Problem(128), "chunked", "col", BlockSchedule(8, 2), "cuda")
    assert {spec.schedule.blocks for spec in candidates.variations(heavy)} == {1, 2}
    light = KernelSpec(Problem(16), "chunked", "col", BlockSchedule(4, 4), "cuda")
    assert {spec.schedule.blocks for spec in candidates.variations(light)} == set(candidates.RESIDENT_BLOCKS)
    assert {spec.schedule.cache for spec in candidates.variations(heavy)} == {"l1", "shared"}


@pytest.mark.parametrize("layout", ["chunked", "canonical", "interleaved"])
@pytest.mark.parametrize("n", [1, 8, 16, 17, 32, 33, 40, 41, 64, 65, 96, 97, 128])
def test_every_order_has_candidates_of_the_warp_family(n: int, layout: str) -> None:
    specs = candidates.specs(n, "float32", "fast", "cuda", ("warp",), layout)
    assert 0 < len(specs) <= 32
    assert len(set(specs)) == len(specs)
    schedules = [spec.schedule for spec in specs]
    strides = {None, 32, *(max(2, schedule.matrices) for schedule in schedules)}
    assert {schedule.stride for schedule in schedules} == (strides if layout == "chunked" else {None})
    assert {schedule.warps for schedule in schedules} == ({1} if n <= 16 else {2} if n > 96 else {1, 2})
    assert {schedule.teams for schedule in schedules} == ({2, 4, 8} if n <= 16 else {1} if n > 96 else {1, 2, 4, 8})
    assert {schedule.unroll for schedule in schedules} == ({"tiles", "full"} if n <= 96 else {"tiles"})
    # A float64 matrix of a larger order does not fit the registers of two warps.
    assert bool(candidates.specs(n, "float64", "fast", "cuda", ("warp",), layout)) == (n < 96)


def test_teams_of_a_multiprocessor_are_as_many_as_have_registers() -> None:
    heavy = KernelSpec(Problem(128, math="fast"), "chunked", "col", WarpSchedule(1, 2, 1), "cuda")
    assert {spec.schedule.blocks for spec in candidates.variations(heavy)} == {1, 4}
    light = KernelSpec(Problem(16), "chunked", "col", WarpSchedule(1, 1, 2), "cuda")
    assert {spec.schedule.blocks for spec in candidates.variations(light)} == {1, 10, 18}
    assert {spec.schedule.cache for spec in candidates.variations(heavy)} == {"l1", "shared"}


def test_variations_for_a_gpu_are_launched_early() -> None:
    for family in FAMILIES:
        for spec in candidates.specs(40, "float32", "fast", "cuda", (family,)):
            assert not spec.schedule.pdl
            varied = candidates.variations(spec)
            assert {each.schedule.pdl for each in varied} == {True}
            late = [replace(each, schedule=replace(each.schedule, pdl=None)) for each in varied]
            assert late == candidates.variations(spec, pdl=False)
    (spec, *_) = candidates.specs(40, "float32", "fast", "avx2")
    assert {each.schedule.pdl for each in candidates.variations(spec)} == {None}


def test_a_target_has_candidates_of_its_own_families() -> None:
    specs = candidates.specs(64, "float32", "fast", "cuda", candidates.families_of("cuda"))
    assert {spec.family for spec in specs} == set(FAMILIES) - {"whole"}, "whole matrices are of arrays alone"
    assert candidates.families_of("avx2") == ("thread",)


def test_each_candidate_is_measured_on_its_own_chunk(fake: FakeBackend) -> None:
    specs = [
        KernelSpec(Problem(8), "chunked", "col", schedule, "cuda")
        for schedule in (BlockSchedule(8, 8, stride=8), BlockSchedule(4, 8), SharedSchedule(4), ThreadSchedule(3))
    ]
    rows = fake.rows(specs)
    assert {(each.spec.family, each.spec.schedule.stride, each.point.chunk) for each in rows} == {
        ("block", 8, 8),
        ("block", None, 32),
        ("shared", None, 32),
        ("thread", None, 32),
    }
    chunks = [chunk for chunk, _ in itertools.groupby(row.point.chunk for row in rows)]
    assert chunks == [8, 32, 8, 32, 8], "one chunk after another in each stage, the last of them the winner's"


def test_layouts_have_candidates_of_their_own(fake: FakeBackend) -> None:
    families = candidates.families_of("cuda")
    specs = candidates.specs(16, "float32", "ieee", "cuda", families, "canonical")
    assert {spec.family for spec in specs} == set(FAMILIES) - {"strip"}, "strips are for chunks alone"
    assert {(spec.order, spec.schedule.stride) for spec in specs} == {("row", None)}
    spread = candidates.specs(16, "float32", "ieee", "cuda", families, "interleaved")
    rows = fake.rows([specs[0], spread[0], spec_of(8, 4)])
    assert [str(row.point.layout) for row in rows[:3]] == ["canonical-row", "interleaved-col", "chunked32-col"]


def test_families_that_the_target_lacks_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", "--backend", "cpu", "--n", "2", "--batch", "100", "--family", "block"]) == 2
    assert "--family: got 'block', target" in capsys.readouterr().err


def test_the_best_are_measured_again_with_their_variations(fake: FakeBackend) -> None:
    specs = [spec_of(8, nb, looking) for nb in (2, 3, 4, 8) for looking in LOOKINGS]
    rows = fake.rows(specs)
    again = [p.spec for p, samples in fake.asked if samples == FINAL_SAMPLES and p.protocol == "queued"]
    assert len(again) == GPU_FINALISTS * len(candidates.variations(specs[0])) == len(fake.built)
    assert {each.status for each in rows if each.spec.schedule.nb == 2} == {"timeout"}
    right = [each for each in rows if each.spec.schedule.looking == "right" and each.spec.schedule.nb > 2]
    assert {each.status for each in right} == {"wrong"}
    best = tuning.best(rows)
    assert (best.spec.schedule.nb, best.spec.schedule.threads, best.samples) == (8, 64, FINAL_SAMPLES)
    assert best.spec.schedule.pdl
    assert [each.spec for each in rows[: len(specs)]] == specs


def test_the_winner_is_measured_in_every_protocol(fake: FakeBackend) -> None:
    rows = fake.rows([spec_of(8, nb) for nb in (3, 4, 8)])
    assert [each.point.protocol for each in rows if each.point.protocol != "queued"] == ["single"]
    assert rows[-1].spec == tuning.best(rows).spec


def test_each_stride_has_its_finalists(fake: FakeBackend) -> None:
    fake.rows([spec_of(8, nb, stride=stride) for nb in (3, 4, 5, 6, 7, 8) for stride in (None, 32)])
    again = {point.spec.schedule.stride for point, samples in fake.asked if samples == FINAL_SAMPLES}
    assert again == {None, 32}


def test_few_samples_do_not_beat_many() -> None:
    lucky, measured = row(spec_of(8, 4), 1.0, FIRST_SAMPLES), row(spec_of(8, 8), 2.0)
    assert tuning.best([lucky, measured]) == measured


def test_no_correct_result_is_no_winner() -> None:
    with pytest.raises(BatchcholError, match="no candidate gave a correct result"):
        tuning.best([row(spec_of(8, 4), 1.0, status="wrong")])


@pytest.fixture(scope="module")
def small_cache() -> Iterator[None]:
    """A cache that few buffers exceed, here and in the process that measures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_memory, "last_level_cache_bytes", lambda: 1 << 17)
        patch.setattr(process, "BENCH", "sweep_benches:SmallCache")
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        yield


@pytest.fixture(scope="module")
def tuned(small_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the points and the table of a run of `tune`."""
    folder = tmp_path_factory.mktemp("tuned")
    cases = ["--n", "1", "--batch", "20000,128KiB", "--math", "ieee,fast"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert cli.main(["tune", *cases, "--out", "points.csv", "--table", "table.json"]) == 0
    return folder


def test_the_command_keeps_every_point_and_writes_the_table(tuned: Path, tmp_path: Path) -> None:
    rows = list(csv.DictReader((tuned / "points.csv").read_text().splitlines()))
    assert {(row["n"], row["batch"]) for row in rows} == {("1", "20000"), ("1", "32768")}
    assert {row["status"] for row in rows} == {"correct"}
    assert all(float(row["median_seconds"]) > 0 for row in rows)
    assert all(float(row["ratio"]) < RATIO_BOUND[row["math"]] for row in rows)
    assert all(row["source"] and row["cpu"] and row["compiler"] and row["date"] for row in rows)
    (written,) = tables.parse((tuned / "table.json").read_text()).values()
    assert [entry.n for entries in written.cases.values() for entry in entries][:1] == [1]
    assert written.measured["float32"].endswith(rows[0]["date"])
    again = tmp_path / "again.json"
    assert cli.main(["tune", "--from", str(tuned / "points.csv"), "--table", str(again)]) == 0
    assert tables.parse(again.read_text())[written.name].cases.keys() == written.cases.keys()


def test_the_report_shows_the_best_of_each_case(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, plot = tuned / "points.csv", tmp_path / "plot"
    capsys.readouterr()
    pytest.importorskip("matplotlib")
    assert cli.main(["report", str(out), "--plot", str(plot)]) == 0
    lines = capsys.readouterr().out.splitlines()
    cases = [tuple(cell.strip() for cell in line.split("|")[1:5]) for line in lines if line.startswith("| ")][2:]
    wanted = [(n, batch, math) for math in ("fast", "ieee") for n in ("1",) for batch in ("20,000", "32,768")]
    assert cases == [(n, batch, math, "single") for n, batch, math in wanted]
    assert (tmp_path / "plot.png").stat().st_size > 1000
    rows = list(csv.DictReader(out.read_text().splitlines()))
    best = min(
        float(r["median_seconds"])
        for r in rows
        if (r["n"], r["batch"], r["math"], r["samples"]) == ("1", "32768", "ieee", "25")
    )
    row = next(line for line in lines if line.startswith("| 1 | 32,768 | ieee"))
    assert f"{1 / 3 * 32768 / best / 1e9:,.0f}" == row.split("|")[5].strip()


@pytest.mark.parametrize("name", ["tune_avx2_epyc", "tune_avx512_xeon"])
def test_the_report_of_a_file_without_a_roofline(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The first version's files say neither that, nor a floor, nor the names of the kernels."""
    assert cli.main(["report", str(DATASETS / "sweeps" / f"{name}.csv")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("| n | batch | math | protocol | GFLOP/s | spread | residual | spec |\n")
    assert "`potrf_f32_n100_chunked_col_" in said
    assert "roofline" not in said


@pytest.mark.usefixtures("small_cache")
def test_a_file_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.csv"
    path.write_text("n,status\n4,correct\n")
    assert cli.main(["report", str(path)]) == 2
    assert "line 1: not a file of `tune`, columns are missing (dtype, target, " in capsys.readouterr().err
    assert cli.main(["tune", "--n", "1", "--batch", "20000", "--out", str(path)]) == 2
    assert "columns of another version" in capsys.readouterr().err
    assert path.read_text() == "n,status\n4,correct\n"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--batch", "many", "--batch: got 'many'"),
        ("--batch", "0", "--batch: got '0'"),
        ("--n", "4,x", "--n: got 'x'"),
    ],
)
def test_bad_options_are_refused(option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = {"--n": "2", "--batch": "100", option: value}
    with pytest.raises(SystemExit, match="2"):
        cli.main(["tune", *(word for pair in arguments.items() for word in pair)])
    assert message in capsys.readouterr().err
