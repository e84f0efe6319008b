"""The suite itself: its grid and profiles, its own benchmark type, and what it refuses to store."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

WHY = "the suite's extra is not installed: there is no asv"
pytest.importorskip("asv", reason=WHY)
discovery = pytest.importorskip("asv_runner.discovery", reason=WHY)

ROOT = Path(__file__).resolve().parents[2]
SUITE = ROOT / "benchmarks"
KEYS = Path(__file__).with_name("benchmark_keys.json")
MOST_QUICK_POINTS = 60
MOST_POINTS = 5_000

Part = Callable[[str], Any]
At = Callable[..., Any]


def counts(part: Part, profile: str, backend: str) -> int:
    """How many points the profile has on the backend; questions that fix no backend count for each."""
    kept_points = part("harness.profiles").kept_points
    return sum(
        point.get("backend", backend) == backend
        for benchmark in discovery.disc_benchmarks(str(SUITE))
        for point in kept_points(profile, benchmark.name.split(".")[1], benchmark.param_names, benchmark._params)
    )


def test_asv_check_passes(library_folder: Path) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "asv", "check", "-E", "existing"],
        cwd=ROOT,
        env={**os.environ, "ASV_PYTHONPATH": str(library_folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout
    assert "No problems found" in checked.stdout


def test_names_and_parameters_are_those_of_stored_results() -> None:
    """Stored results are found by them: KEYS says what asv found when the first of each were stored."""
    found = {
        each.name: sha256(repr((each.param_names, each.params)).encode()).hexdigest()[:16]
        for each in discovery.disc_benchmarks(str(SUITE))
        if not each.name.startswith("winners.")
    }
    assert found == json.loads(KEYS.read_text())


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_the_quick_profile_is_small_and_every_profile_a_part_of_the_next(backend: str, part: Part) -> None:
    quick, ci, full = (counts(part, profile, backend) for profile in ("quick", "ci", "full"))
    assert 0 < quick <= MOST_QUICK_POINTS
    assert quick < ci < full


def test_skipping_most_of_the_grid_stays_affordable(part: Part) -> None:
    # A point that is skipped costs some milliseconds, in every round of every commit.
    assert counts(part, "full", "cpu") + counts(part, "full", "cuda") < MOST_POINTS


def test_every_box_of_a_profile_names_values_of_the_grid(part: Part) -> None:
    profiles = part("harness.profiles")
    questions = {benchmark.name.split(".")[1]: benchmark for benchmark in discovery.disc_benchmarks(str(SUITE))}
    for profile, selection in profiles.PROFILES.items():
        for question, boxes in (selection or {}).items():
            benchmark = questions[question]
            for box in boxes:
                for parameter, kept in box.items():
                    if parameter in benchmark.param_names:
                        axis = benchmark._params[benchmark.param_names.index(parameter)]
                        assert set(kept) <= set(axis), (profile, question, parameter)


def test_an_unknown_profile_names_the_ones_there_are(monkeypatch: pytest.MonkeyPatch, part: Part) -> None:
    monkeypatch.setenv("BATCHCHOL_PROFILE", "quikc")
    with pytest.raises(ValueError, match="'quikc' is no profile: use one of quick, ci, full"):
        part("harness.profiles").profile()


def test_a_point_is_measured_and_its_samples_are_seconds_per_matrix(
    monkeypatch: pytest.MonkeyPatch, part: Part, benchmark_at: At
) -> None:
    monkeypatch.setenv("BATCHCHOL_PROFILE", "full")
    benchmark = benchmark_at("layouts.Layouts.device_factor", n=4, batch=1_000, layout="chunked")
    assert not benchmark.do_setup()
    result = benchmark.do_run()
    assert (len(result["samples"]), result["number"]) == (part("harness.device").SAMPLES, 1)
    # Between a picosecond and a millisecond for 21 multiply-adds: per call, it would be a thousand times more.
    assert all(1e-12 < sample < 1e-3 for sample in result["samples"])
    assert (benchmark.type, benchmark.unit) == ("time", "seconds")


@pytest.mark.parametrize(
    ("name", "values", "profile", "reason"),
    [
        ("tiles.Tiles.device_factor", {"n": 8, "nb": 16, "looking": "left"}, "full", "nb=16 cannot be built"),
        ("tiles.Tiles.device_factor", {"n": 17, "nb": 3, "looking": "left"}, "quick", "not in profile 'quick'"),
        ("unrolling.Unrolling.device_factor", {"n": 128, "unroll": "full"}, "full", "over the budget"),
        ("layouts.Layouts.device_factor", {"n": 128, "batch": 1_048_576, "layout": "canonical"}, "full", "at most"),
        ("chunks.Chunks.device_factor", {"n": 8, "chunk": 32, "backend": "cuda"}, "full", "measures backend cpu"),
        ("scaling.Threads.device_factor", {"n": 8, "threads": 32}, "full", "threads=32"),
    ],
)
def test_a_skipped_point_says_why(
    name: str,
    values: dict[str, Any],
    profile: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    benchmark_at: At,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("BATCHCHOL_PROFILE", profile)
    monkeypatch.setenv("BATCHCHOL_THREADS", "2")
    assert benchmark_at(name, **values).do_setup()
    assert reason in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("prefetching.Prefetching.device_factor", {"n": 4, "prefetch": True}),
        ("whole_call.WholeCall.time_cholesky", {"n": 4, "batch": 1_000, "dtype": "float32"}),
    ],
)
def test_a_wrong_result_fails_the_benchmark(
    name: str, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch, part: Part, benchmark_at: At
) -> None:
    monkeypatch.setenv("BATCHCHOL_PROFILE", "full")
    benchmark = benchmark_at(name, **values)
    library = part("harness.library")
    monkeypatch.setattr("batchchol.operations.residual.RATIO_BOUND", {"ieee": 0.0, "fast": 0.0})
    monkeypatch.setattr(library, "RATIO_BOUND", {"ieee": 0.0, "fast": 0.0})
    with pytest.raises(library.ResidualError):
        benchmark.do_setup()


@pytest.mark.parametrize("samples", [[], [0.0], [1e-9, math.nan], [-1e-9]])
def test_no_time_that_cannot_be_is_stored(samples: list[float], part: Part) -> None:
    class Broken:
        def device_factor(self) -> Any:
            return device.Taken(samples)

    device, instance = part("harness.device"), Broken()
    benchmark = device.DeviceBenchmark("broken", instance.device_factor, [instance])
    with pytest.raises(ValueError, match="positive, finite seconds"):
        benchmark.run()


def test_an_older_commit_is_discovered_and_its_points_skipped_with_the_reason(tmp_path: Path) -> None:
    for package in ("batchchol", "kernelgen"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    program = (
        "import sys; from asv_runner.discovery import disc_benchmarks; print(len(list(disc_benchmarks(sys.argv[1]))))"
    )
    found = subprocess.run(
        [sys.executable, "-P", "-c", program, str(SUITE)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) > 20
    result = tmp_path / "result.json"
    command = "from asv_runner.run import _run; import sys; _run(sys.argv[1:])"
    point = ["tiles.Tiles.device_factor-0", "{}", "None", str(result)]
    run = subprocess.run(
        [sys.executable, "-P", "-c", command, str(SUITE), *point],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "BATCHCHOL_PROFILE": "full", "BATCHCHOL_BACKEND": "cpu"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "this commit of batchchol lacks part of what is measured: No module named 'batchchol.api'" in run.stdout
    assert math.isnan(json.loads(result.read_text()))


@pytest.mark.parametrize("profile", ["quick", "ci", "full"])
def test_the_documented_numbers_of_points_are_right(profile: str, part: Part) -> None:
    (row,) = (line for line in (ROOT / "docs" / "benchmarks.md").read_text().splitlines() if f"| `{profile}`" in line)
    cpu, cuda = (int(cell.replace(",", "")) for cell in row.split("|")[2:4])
    assert (cpu, cuda) == (counts(part, profile, "cpu"), counts(part, profile, "cuda"))
