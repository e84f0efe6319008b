"""The suite itself: its grid and profiles, its own benchmark type, and what it refuses to store."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import batchchol

WHY = "the suite's extra is not installed: there is no asv"
pytest.importorskip("asv", reason=WHY)
discovery = pytest.importorskip("asv_runner.discovery", reason=WHY)
importer = pytest.importorskip("asv_runner._aux", reason=WHY)

ROOT = Path(__file__).resolve().parents[2]
SUITE = ROOT / "benchmarks"
LIBRARY = Path(batchchol.__file__).resolve().parents[1]
MOST_QUICK_POINTS = 60


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The package `benchmarks`, imported as asv does: without its parent folder on the import path."""
    monkeypatch.setattr(sys, "meta_path", [importer.SpecificImporter("benchmarks", str(ROOT)), *sys.meta_path])
    monkeypatch.delenv("BATCHCHOL_PROFILE", raising=False)
    yield importlib.import_module("benchmarks")
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]


def part(name: str) -> Any:
    return importlib.import_module(f"benchmarks.{name}")


def benchmark_at(name: str, **values: Any) -> Any:
    """The benchmark `name`, set to the one point of its grid that has these parameters."""
    benchmark = discovery.get_benchmark_from_name(str(SUITE), name)
    points = list(part("grid").kept_points("full", "", benchmark.param_names, benchmark._params))
    (index,) = (index for index, point in enumerate(points) if values.items() <= point.items())
    benchmark.set_param_idx(index)
    return benchmark


def counts(profile: str) -> dict[str, int]:
    grid = part("grid")
    return {
        benchmark.name: sum(
            1
            for _ in grid.kept_points(profile, benchmark.name.split(".")[1], benchmark.param_names, benchmark._params)
        )
        for benchmark in discovery.disc_benchmarks(str(SUITE))
    }


def test_asv_check_passes() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "asv", "check", "-E", "existing"],
        cwd=ROOT,
        env={**os.environ, "ASV_PYTHONPATH": str(LIBRARY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout
    assert "No problems found" in checked.stdout


@pytest.mark.usefixtures("suite")
def test_the_quick_profile_is_small_and_every_profile_a_part_of_the_next() -> None:
    quick, ci, full = (sum(counts(profile).values()) for profile in ("quick", "ci", "full"))
    assert 0 < quick <= MOST_QUICK_POINTS
    assert quick < ci < full


@pytest.mark.usefixtures("suite")
def test_every_box_of_a_profile_names_values_of_the_grid() -> None:
    grid = part("grid")
    questions = {benchmark.name.split(".")[1]: benchmark for benchmark in discovery.disc_benchmarks(str(SUITE))}
    for profile, selection in grid.PROFILES.items():
        for question, boxes in (selection or {}).items():
            benchmark = questions[question]
            for box in boxes:
                for parameter, kept in box.items():
                    if parameter in benchmark.param_names:
                        axis = benchmark._params[benchmark.param_names.index(parameter)]
                        assert set(kept) <= set(axis), (profile, question, parameter)


@pytest.mark.usefixtures("suite")
def test_an_unknown_profile_names_the_ones_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHCHOL_PROFILE", "quikc")
    with pytest.raises(ValueError, match="'quikc' is no profile: use one of quick, ci, full"):
        part("grid").profile()


@pytest.mark.usefixtures("suite")
def test_a_point_is_measured_and_its_samples_are_seconds_per_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHCHOL_PROFILE", "full")
    benchmark = benchmark_at("layouts.Layouts.device_factor", n=4, batch=1_000, layout="chunked", chunk="simd")
    assert not benchmark.do_setup()
    result = benchmark.do_run()
    assert (len(result["samples"]), result["number"]) == (part("cases").SAMPLES, 1)
    # Between a picosecond and a millisecond for 21 multiply-adds: per call, it would be a thousand times more.
    assert all(1e-12 < sample < 1e-3 for sample in result["samples"])
    assert (benchmark.type, benchmark.unit) == ("time", "seconds")


@pytest.mark.usefixtures("suite")
@pytest.mark.parametrize(
    ("name", "values", "profile", "reason"),
    [
        ("tiles.Tiles.device_factor", {"n": 8, "nb": 16, "looking": "left"}, "full", "nb=16 cannot be built"),
        ("tiles.Tiles.device_factor", {"n": 17, "nb": 3, "looking": "left"}, "quick", "not in profile 'quick'"),
        ("unrolling.Unrolling.device_factor", {"n": 128, "unroll": "full"}, "full", "over the budget"),
        (
            "layouts.Layouts.device_factor",
            {"n": 8, "batch": 1_000, "layout": "canonical", "chunk": "simd"},
            "full",
            "has no chunk",
        ),
        ("scaling.Threads.device_factor", {"n": 8, "threads": 32}, "full", "threads=32"),
    ],
)
def test_a_skipped_point_says_why(
    name: str,
    values: dict[str, Any],
    profile: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("BATCHCHOL_PROFILE", profile)
    monkeypatch.setenv("BATCHCHOL_THREADS", "2")
    assert benchmark_at(name, **values).do_setup()
    assert reason in capsys.readouterr().out


@pytest.mark.usefixtures("suite")
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("prefetching.Prefetching.device_factor", {"n": 4, "prefetch": True}),
        ("whole_call.WholeCall.time_cholesky", {"n": 4, "batch": 1_000, "dtype": "float32"}),
    ],
)
def test_a_wrong_result_fails_the_benchmark(
    name: str, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHCHOL_PROFILE", "full")
    benchmark = benchmark_at(name, **values)
    library = part("library")
    monkeypatch.setattr("batchchol.residual.RATIO_BOUND", {"ieee": 0.0, "fast": 0.0})
    monkeypatch.setattr(library, "RATIO_BOUND", {"ieee": 0.0, "fast": 0.0})
    with pytest.raises(library.ResidualError):
        benchmark.do_setup()


@pytest.mark.usefixtures("suite")
@pytest.mark.parametrize("samples", [[], [0.0], [1e-9, math.nan], [-1e-9]])
def test_no_time_that_cannot_be_is_stored(samples: list[float]) -> None:
    class Broken:
        def device_factor(self) -> list[float]:
            return samples

    instance = Broken()
    benchmark = part("device").DeviceBenchmark("broken", instance.device_factor, [instance])
    with pytest.raises(ValueError, match="positive, finite seconds"):
        benchmark.run()


def test_an_older_commit_is_discovered_and_its_points_skipped_with_the_reason(tmp_path: Path) -> None:
    for package in ("batchchol", "kernelgen"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    result = tmp_path / "result.json"
    command = "from asv_runner.run import _run; import sys; _run(sys.argv[1:])"
    point = ["tiles.Tiles.device_factor-0", "{}", "None", str(result)]
    run = subprocess.run(
        [sys.executable, "-P", "-c", command, str(SUITE), *point],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "BATCHCHOL_PROFILE": "full"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "this commit of batchchol lacks part of what is measured: No module named 'batchchol.api'" in run.stdout
    assert math.isnan(json.loads(result.read_text()))
