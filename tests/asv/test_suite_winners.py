"""The winners of sweeps in the suite: data that say where they are from, and points that are measured or skipped."""

from __future__ import annotations

import copy
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from batchchol.backends import get_backend
from batchchol.tune.choosing import suite_winners as written
from kernelgen import KernelSpec

WHY = "the suite's extra is not installed: there is no asv"
pytest.importorskip("asv", reason=WHY)
skip_error = pytest.importorskip("asv_runner.benchmarks.mark", reason=WHY).SkipNotImplemented

pytestmark = pytest.mark.usefixtures("suite")
Part = Callable[[str], Any]
ROOT = Path(__file__).resolve().parents[2]


def test_winners_are_those_of_the_data_sets_that_they_name(part: Part) -> None:
    winners = part("winners")
    assert winners._SCHEMA == written.SCHEMA
    assert {backend for backend in ("cpu", "cuda") if winners.of(backend, winners.SETS)} == {"cpu", "cuda"}
    for each in winners.SETS:
        data = ROOT / "datasets" / "sweeps" / each["data"]
        assert sha256(data.read_bytes()).hexdigest() == each["sha256"], f"choose the winners of {data.name} again"
        assert len({(entry["n"], entry["math"], entry["layout"]) for entry in each["winners"]}) == len(
            each["winners"]
        )
        for entry in each["winners"]:
            spec = KernelSpec.from_dict(entry["spec"])
            assert (spec.problem.n, spec.problem.dtype, spec.target) == (entry["n"], each["dtype"], each["target"])
            assert (spec.problem.math, spec.layout) == (entry["math"], entry["layout"])
            assert (entry["chunk"] is None) == (entry["layout"] != "chunked")


def test_the_version_is_that_of_what_is_measured(part: Part) -> None:
    winners = part("winners")
    sets = winners.of("cuda", winners.SETS)
    assert winners.GpuWinners.version == winners.versioned(sets) != winners.CpuWinners.version
    again = copy.deepcopy(sets)
    again[0].update(date="2099-01-01", sha256="")
    again[0]["winners"][0]["ns"] = 0.0
    assert winners.versioned(again) == winners.GpuWinners.version, "measured anew, and the same won"
    again[0]["winners"][0]["spec"]["schedule"]["nb"] += 1
    assert winners.versioned(again) != winners.GpuWinners.version


def test_another_schema_is_refused(part: Part, tmp_path: Path) -> None:
    path = tmp_path / "winners.json"
    path.write_text('{"schema": 9, "sets": []}')
    with pytest.raises(ValueError, match="schema 9, expected 1"):
        part("winners").read(path)


def test_a_winner_is_what_is_measured_on_a_gpu(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHCHOL_PROFILE", "full")
    monkeypatch.setenv("BATCHCHOL_BACKEND", "cuda")
    blueprint = part("harness.precompile").blueprint()
    monkeypatch.setattr(part("harness.cases"), "backend_of", lambda point: blueprint)
    # How a plan is measured is every question's.
    monkeypatch.setattr(part("harness.cases"), "checked", lambda plan: plan)
    winners = part("winners")
    (first,) = winners.of("cuda", winners.SETS)
    for entry in first["winners"][:4]:
        point = {**first, **entry, "backend": "cuda", "protocol": None}
        asked = winners.GpuWinners()
        asked.setup(*(point[name] for name in asked.param_names))
        assert asked.case.spec == KernelSpec.from_dict(entry["spec"])
        assert asked.case.layout.chunk == entry["chunk"]
        assert asked.case.point.batch == first["batch"]


def test_winners_are_compiled_ahead_for_machines_without_a_compiler(part: Part) -> None:
    ahead = set(part("harness.precompile").measured_specs("quick"))
    for each in part("winners").of("cuda", part("winners").SETS):
        chosen = [entry for entry in each["winners"] if entry["n"] == 32]
        specs = {KernelSpec.from_dict(entry["spec"]): (entry["math"], entry["layout"]) for entry in chosen}
        assert [choice for spec, choice in specs.items() if spec in ahead] == [("fast", "chunked")]


def test_winners_of_a_gpu_are_skipped_where_there_is_none(
    benchmark_at: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATCHCHOL_PROFILE", "full")
    benchmark = benchmark_at("winners.GpuWinners.device_factor", backend="cuda", n=4, math="fast", layout="chunked")
    assert benchmark.do_setup()
    assert "this run measures backend cpu" in capsys.readouterr().out


def test_a_winner_is_measured_on_a_cpu_of_its_target(
    part: Part, benchmark_at: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATCHCHOL_PROFILE", "full")
    winners, target = part("winners"), get_backend("cpu").target
    (first,) = (each for each in winners.SETS if each["target"] != "cuda")
    where = {"n": 4, "math": "ieee", "layout": "chunked", "threads": 1}
    benchmark = benchmark_at("winners.CpuWinners.device_factor", **where)
    (entry,) = (entry for entry in first["winners"] if where.items() <= entry.items())
    here = {**entry, "chunk": 64, "spec": {**entry["spec"], "target": target}}
    monkeypatch.setattr(winners, "SETS", [{**first, "target": target, "winners": [here]}])
    assert not benchmark.do_setup()
    assert benchmark.func.__self__.case.plan.spec.target == target
    assert benchmark.do_run()["number"] == 1
    none_of_it = [{**first, "target": target, "winners": []}]
    for sets, reason in (([{**first, "target": "none"}], "no sweep of target"), (none_of_it, "no winner of n=4")):
        monkeypatch.setattr(winners, "SETS", sets)
        with pytest.raises(skip_error, match=reason):
            winners._entry(part("harness.grid").Point(n=4), target)
