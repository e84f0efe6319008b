"""The suite on machines with and without a GPU: what is measured where, what a point means there, and forking."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import make_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchchol.artifacts.stats import CompileStats
from batchchol.asv_plugin.samples import FILE_VARIABLE, load_samples

WHY = "the suite's extra is not installed: there is no asv"
pytest.importorskip("asv", reason=WHY)
skip_error = pytest.importorskip("asv_runner.benchmarks.mark", reason=WHY).SkipNotImplemented

ROOT = Path(__file__).resolve().parents[2]
DISCOVER = """
import sys
from asv_runner.discovery import disc_benchmarks
print(len(list(disc_benchmarks(sys.argv[1]))))
"""
# Whatever is asked of it, other than to be there, ends the process.
HANDS_OFF = """
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    raise SystemExit(f"pycuda was asked for {name} before the fork")
"""

pytestmark = pytest.mark.usefixtures("suite")
Part = Callable[[str], Any]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, part: Part) -> SimpleNamespace:
    """A stand-in of the cuda backend that says what it has and does nothing."""
    backend = SimpleNamespace(
        name="cuda",
        target="cuda",
        threads=1,
        protocols=("queued", "single"),
        lanes=lambda dtype: 32,
        unsupported=lambda spec, layout: None,
    )
    monkeypatch.setattr(part("harness.library"), "get_backend", lambda name: backend)
    monkeypatch.setenv("BATCHCHOL_BACKEND", "cuda")
    return backend


@pytest.mark.parametrize(
    ("variables", "present", "profile", "measured"),
    [
        ({}, True, "quick", ("cuda",)),
        ({}, False, "quick", ("cpu",)),
        ({}, False, "ci", ("cpu", "cuda")),
        ({"BATCHCHOL_BACKEND": "cpu"}, True, "quick", ("cpu",)),
        ({"BATCHCHOL_BACKEND": "cuda"}, True, "full", ("cuda",)),
    ],
)
def test_a_run_measures_the_backend_that_was_asked_for_or_the_best_there_is(
    variables: dict[str, str],
    present: bool,
    profile: str,
    measured: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    part: Part,
) -> None:
    profiles = part("harness.profiles")
    monkeypatch.delenv("BATCHCHOL_BACKEND", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(profiles, "gpu_present", lambda: present)
    assert profiles.backends(profile) == measured
    for backend in ("cpu", "cuda"):
        point = {"backend": backend, "n": 32, "unroll": "tiles", "math": "ieee"}
        assert bool(profiles.left_out(profile, "Compiling", point)) == (backend not in measured)


def test_no_gpu_is_seen_without_pycuda_or_without_a_driver(monkeypatch: pytest.MonkeyPatch, part: Part) -> None:
    profiles = part("harness.profiles")
    monkeypatch.setattr(profiles, "find_spec", lambda name: None)
    assert not profiles.gpu_present()
    monkeypatch.setattr(profiles, "find_spec", lambda name: name)
    monkeypatch.setattr(profiles, "Path", lambda path: SimpleNamespace(exists=lambda: False))
    assert not profiles.gpu_present()


@pytest.mark.usefixtures("gpu")
def test_choices_of_a_gpu_become_its_schedule(part: Part) -> None:
    point = part("harness.grid").Point(backend="cuda", n=24, block=64, blocks=1, cache="shared", chunk=64, stride=64)
    plan = part("harness.cases").plan(point)
    schedule = plan.spec.schedule
    assert (schedule.threads, schedule.blocks, schedule.cache, schedule.stride) == (64, 1, "shared", 64)
    assert (plan.spec.target, plan.layout.chunk) == ("cuda", 64)


@pytest.mark.usefixtures("gpu")
def test_what_is_not_chosen_is_the_backends_own(part: Part) -> None:
    plan = part("harness.cases").plan(part("harness.grid").Point(backend="cuda"))
    assert plan.layout.chunk == 32
    assert (plan.spec.schedule.threads, plan.spec.schedule.prefetch) == (32, None)


@pytest.mark.usefixtures("gpu")
def test_what_an_older_commit_has_no_choice_of_is_skipped(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    older = make_dataclass("ThreadSchedule", ["nb", "looking", "unroll", "math"])
    monkeypatch.setattr(part("harness.library"), "schedule_type", lambda family: older)
    with pytest.raises(skip_error, match="blocks=1 cannot be built: in this commit the family has"):
        part("harness.cases").plan(part("harness.grid").Point(backend="cuda", blocks=1))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"prefetch": True}, "prefetch=True cannot be built: target 'cuda' has no such choice"),
        ({"threads": 2}, "threads=2, and backend cuda has 1"),
        ({"protocol": "twice"}, "protocol='twice', and backend cuda has queued, single"),
        ({"n": 128, "batch": 1_048_576}, "the matrices take 68,719,476,736 bytes"),
    ],
)
def test_what_a_gpu_cannot_do_is_skipped_with_the_reason(values: dict[str, Any], reason: str, part: Part) -> None:
    with pytest.raises(skip_error, match=reason):
        part("harness.cases").plan(part("harness.grid").Point(backend="cuda", **values))


def test_what_a_cpu_cannot_do_is_skipped_with_the_reason(part: Part) -> None:
    for values, reason in (({"protocol": "queued"}, "protocol='queued'"), ({"block": 64}, "threads=64 cannot")):
        with pytest.raises(skip_error, match=reason):
            part("harness.cases").plan(part("harness.grid").Point(**values))


def test_the_first_point_of_a_question_compiles_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch, part: Part, benchmark_at: Callable[..., Any]
) -> None:
    built: list[list[Any]] = []
    monkeypatch.setattr(part("harness.library"), "build", lambda backend, specs: built.append(specs))
    monkeypatch.setattr(part("harness.cases"), "case", lambda point, planner: None)
    first = {"n": 4, "nb": 3, "looking": "right"}
    assert not benchmark_at("tiles.Tiles.device_factor", **first).do_setup()
    (specs,) = built
    # Two tile sizes of each order; the right-looking one of small orders alone.
    assert len(specs) == len(set(specs)) == 22
    assert not benchmark_at("tiles.Tiles.device_factor", **{**first, "looking": "left"}).do_setup()
    assert len(built) == 1


def test_samples_are_recorded_with_what_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, benchmark_at: Callable[..., Any]
) -> None:
    monkeypatch.setenv("BATCHCHOL_PROFILE", "full")
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "file"))
    benchmark = benchmark_at("unrolling.Unrolling.device_factor", n=8, unroll="tiles")
    assert not benchmark.do_setup()
    result = benchmark.do_run()
    (record,) = load_samples(tmp_path / "file")
    assert list(record.samples) == result["samples"]
    assert (record.benchmark, record.params["n"]) == ("unrolling.Unrolling.device_factor", 8)
    assert record.about["spec"].startswith("potrf_f32_n8_chunked")
    assert len(record.about["source_sha256"]) == 64
    assert record.about["protocol"] == "single"
    assert 0 < record.about["ratio"] <= 1.5
    assert {"cpu", "compiler"} <= record.about["device"].keys()
    assert record.about["conditions"] == {"before": {}, "after": {}}


def test_a_commit_from_before_the_gpu_is_measured_by_its_own_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: Part, benchmark_at: Callable[..., Any]
) -> None:
    library = part("harness.library")
    new = library.get_backend("cpu")
    kept = ("name", "target", "threads", "lanes", "unsupported", "kernel", "device")
    old = SimpleNamespace(**{attribute: getattr(new, attribute) for attribute in kept})

    def sample_factor(backend: Any, spec: Any, batch: Any, **options: Any) -> Any:
        assert options.keys() <= {"samples", "threads", "cold"}
        return SimpleNamespace(seconds=(1e-3, 2e-3), ratio=0.5)

    monkeypatch.setattr(library, "get_backend", lambda name: old)
    monkeypatch.setattr(library, "_sample_factor", sample_factor)
    monkeypatch.setenv("BATCHCHOL_PROFILE", "full")
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "file"))
    benchmark = benchmark_at("layouts.Layouts.device_factor", n=4, batch=1_000, layout="chunked")
    assert not benchmark.do_setup()
    assert benchmark.do_run()["samples"] == [1e-6, 2e-6]
    assert load_samples(tmp_path / "file")[0].about["ratio"] == 0.5
    # What it cannot do is skipped.
    assert benchmark_at("copies.Copies.device_pack", n=4, batch=100_000).do_setup()


@pytest.mark.parametrize("name", ["copies.Copies.device_pack", "copies.Copies.device_unpack"])
def test_copies_are_timed_per_matrix(
    name: str, monkeypatch: pytest.MonkeyPatch, benchmark_at: Callable[..., Any]
) -> None:
    monkeypatch.setenv("BATCHCHOL_PROFILE", "full")
    benchmark = benchmark_at(name, n=4, batch=100_000)
    assert not benchmark.do_setup()
    samples = benchmark.do_run()["samples"]
    # 128 bytes in and out, slower than a terabyte and faster than a megabyte per second.
    assert all(1e-10 < sample < 1e-4 for sample in samples)


def test_filling_is_timed_per_matrix(monkeypatch: pytest.MonkeyPatch, benchmark_at: Callable[..., Any]) -> None:
    monkeypatch.setenv("BATCHCHOL_PROFILE", "full")
    benchmark = benchmark_at("filling.Filling.device_fill", n=4, recipe="diagonally_dominant")
    assert not benchmark.do_setup()
    assert all(1e-10 < sample < 1e-3 for sample in benchmark.do_run()["samples"])


def test_a_machine_without_a_gpu_skips_its_points_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, benchmark_at: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATCHCHOL_BACKEND", "cuda")
    # No PyCUDA, wherever the tests run.
    monkeypatch.setitem(sys.modules, "pycuda", None)
    assert benchmark_at("floor.Floor.device_nothing", backend="cuda", protocol="queued").do_setup()
    assert "asv: skipped" in capsys.readouterr().out


@pytest.mark.parametrize("profile", ["quick", "ci"])
def test_the_kernels_that_a_gpu_will_measure_are_known_without_one(profile: str, part: Part) -> None:
    specs = set(part("harness.precompile").measured_specs(profile))
    grid, cases = part("harness.grid"), part("harness.cases")
    blueprint = part("harness.precompile").blueprint()
    tile = grid.Point(backend="cuda", n=32, nb=4, looking="top")
    library_choice = grid.Point(backend="cuda", n=64)
    for point, defaults in ((tile, False), (library_choice, True)):
        assert cases.planned(point, blueprint, defaults).spec in specs
    assert {spec.target for spec in specs} == {"cuda"}


def test_kernels_are_compiled_ahead_for_an_architecture(
    monkeypatch: pytest.MonkeyPatch, part: Part, capsys: pytest.CaptureFixture[str]
) -> None:
    built: list[Any] = []

    def build_all(sources: list[Any], arch: str, progress: Any) -> list[Any]:
        built.append((len(sources), arch))
        failed = SimpleNamespace(entry=sources[0].entry, status="compile", message="no register left")
        return [failed, *(SimpleNamespace(entry=source.entry, status="built") for source in sources[1:])]

    monkeypatch.setattr("batchchol.artifacts.cuda_modules.build_all", build_all)
    assert part("harness.precompile").main(["--arch", "sm_86"]) == 1
    ((count, arch),) = built
    assert (count > 20, arch) == (True, "sm_86")
    printed = capsys.readouterr()
    assert "no register left" in printed.err
    assert f"{count - 1} kernels of profile 'quick' are ready for sm_86" in printed.out


def discover(**variables: str) -> subprocess.CompletedProcess[str]:
    """Import the whole suite in a process of its own, as asv's server does before it forks."""
    return subprocess.run(
        [sys.executable, "-P", "-c", DISCOVER, str(ROOT / "benchmarks")],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_nobody_said_of_a_kernel_is_skipped(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    registers = part("compiling").Registers()
    monkeypatch.setattr(registers, "stats", lambda: CompileStats(1.0, 0, "nvcc", registers=40))
    assert registers.track_registers() == 40
    with pytest.raises(skip_error, match="from PTX"):
        registers.track_spills()


def test_importing_the_suite_asks_nothing_of_a_gpu(tmp_path: Path, library_folder: Path) -> None:
    package = tmp_path / "pycuda"
    package.mkdir()
    for module in ("__init__", "driver", "gpuarray"):
        (package / f"{module}.py").write_text(HANDS_OFF)
    found = discover(PYTHONPATH=os.pathsep.join((str(tmp_path), str(library_folder))))
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) > 20
    # The same check finds an initialisation, were there one.
    (package / "gpuarray.py").write_text("from pycuda import driver\ndriver.init()\n")
    assert "asked for init" in discover(PYTHONPATH=os.pathsep.join((str(tmp_path), str(library_folder)))).stderr


@pytest.mark.gpu
def test_the_driver_is_not_initialised_when_the_suite_has_been_imported(library_folder: Path) -> None:
    program = (
        DISCOVER
        + 'import ctypes\nprint(ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(ctypes.c_void_p())))\n'
    )
    asked = subprocess.run(
        [sys.executable, "-P", "-c", program, str(ROOT / "benchmarks")],
        env={**os.environ, "PYTHONPATH": str(library_folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    not_initialized = 3
    assert asked.stdout.split()[-1] == str(not_initialized), asked.stderr


@pytest.mark.gpu
def test_points_are_measured_on_the_gpu_by_processes_that_a_server_forked(
    tmp_path: Path, library_folder: Path
) -> None:
    configuration = {
        "version": 1,
        "project": "batchchol",
        "repo": str(ROOT),
        "benchmark_dir": str(ROOT / "benchmarks"),
        "environment_type": "virtualenv",
        "launch_method": "forkserver",
        "results_dir": "results",
    }
    (tmp_path / "asv.conf.json").write_text(json.dumps(configuration))
    machine = {"machine": "testbed", "os": "", "arch": "", "cpu": "", "num_cpu": "", "ram": ""}
    (tmp_path / ".asv-machine.json").write_text(json.dumps({"testbed": machine, "version": 1}))
    questions = [f"--bench={name}" for name in ("Floor", "Latency", "copies")]
    run = subprocess.run(
        [sys.executable, "-m", "asv", "run", "--python=same", "--dry-run", "--show-stderr", *questions],
        cwd=tmp_path,
        env={
            **os.environ,
            "HOME": str(tmp_path),
            "ASV_PYTHONPATH": str(library_folder),
            "BATCHCHOL_BACKEND": "cuda",
            "BATCHCHOL_PROFILE": "quick",
            FILE_VARIABLE: str(tmp_path / "samples"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert "failed" not in run.stdout
    records = load_samples(tmp_path / "samples")
    assert {record.benchmark.split(".")[0] for record in records} == {"floor", "latency", "copies"}
    assert {record.about["protocol"] for record in records if "floor" in record.benchmark} == {"queued", "single"}
    for record in records:
        assert record.about["conditions"]["before"]["gpu_clock_mhz"] > 0
        assert record.about["device"]["gpu"]
