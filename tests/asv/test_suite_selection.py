"""Only the points of a profile reach asv, and only what was measured is shown."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchchol.asv_plugin.suite import Subject, run_asv
from batchchol.errors import BatchcholError

WHY = "the suite's extra is not installed: there is no asv"
pytest.importorskip("asv", reason=WHY)
discovery = pytest.importorskip("asv_runner.discovery", reason=WHY)

ROOT = Path(__file__).resolve().parents[2]
SUITE = ROOT / "benchmarks"
SELECTION = """
import sys
print("\\n".join(["^a$", *sys.argv[1:]]) if "none" not in sys.argv[-1] else "", end="")
"""
ASV = """
import os, sys
print("·", " ".join(sys.argv[1:]))
print("[50.00%] ··· a.A.device_factor    ok")
print("[50.00%] ··· === =====")
print("               4    1ns")
print("               8    n/a")
print("             === =====")
sys.exit(int(os.environ["STATUS"]))
"""
Part = Callable[[str], Any]


def chosen(part: Part, *wanted: str) -> dict[str, list[int]]:
    """What asv selects by the expressions: the indices of points, by benchmark."""
    from asv.benchmarks import Benchmarks

    found = [{"name": each.name, "params": each.params} for each in discovery.disc_benchmarks(str(SUITE))]
    expressions = list(part("harness.selection").expressions(wanted))
    benchmarks = Benchmarks(SimpleNamespace(benchmark_dir=str(SUITE)), found, expressions)
    return {name: benchmarks.benchmark_selection[name] for name in benchmarks}


@pytest.mark.parametrize(("profile", "backend"), [("quick", "cpu"), ("quick", "cuda"), ("full", "cpu")])
def test_asv_selects_the_points_of_the_profile_and_no_others(
    profile: str, backend: str, part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHCHOL_PROFILE", profile)
    monkeypatch.setenv("BATCHCHOL_BACKEND", backend)
    profiles, expected = part("harness.profiles"), {}
    for benchmark in discovery.disc_benchmarks(str(SUITE)):
        question, names = benchmark.name.split(".")[1], benchmark.param_names
        points = profiles.kept_points("full", question, names, benchmark._params)
        kept = [index for index, point in enumerate(points) if not profiles.left_out(profile, question, point)]
        if kept:
            expected[benchmark.name] = kept
    assert chosen(part) == expected


def test_wanted_expressions_narrow_the_profile(part: Part) -> None:
    every, narrowed = chosen(part), chosen(part, r"Tiles.*\('cpu', 32,")
    assert list(narrowed) == ["tiles.Tiles.device_factor"]
    assert 0 < len(narrowed["tiles.Tiles.device_factor"]) < len(every["tiles.Tiles.device_factor"])
    assert chosen(part, "Tiles", r"whole_call\.Numpy").keys() == {
        "tiles.Tiles.device_factor",
        "whole_call.Numpy.time_cholesky",
    }


def test_kernels_of_known_text_are_left_out(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHCHOL_BACKEND", "cpu")
    selection, name = part("harness.selection"), "defaults.Defaults.device_factor"
    (benchmark,) = (each for each in discovery.disc_benchmarks(str(SUITE)) if each.name == name)
    points = [dict(zip(benchmark.param_names, values, strict=True)) for values in product(*benchmark._params)]
    kept = [points[index] for index in chosen(part)[name]]
    texts = {json.dumps(point, sort_keys=True): selection._text(benchmark, point) for point in kept}
    changed = next(iter(texts))
    assert all(len(text) == 64 for text in texts.values())
    known = {name: {**texts, changed: "another text"}}
    (left,) = (each for each in selection.expressions([name], known) if "Defaults" in each)
    assert left.count("defaults") == 1
    assert f"{json.loads(changed)['n']}," in left
    assert not list(selection.expressions([name], {name: texts}))


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    """A folder with stand-ins of the suite and of asv."""
    harness = tmp_path / "benchmarks" / "harness"
    harness.mkdir(parents=True)
    for folder in (harness, harness.parent):
        (folder / "__init__.py").touch()
    (harness / "selection.py").write_text(SELECTION)
    (tmp_path / "asv.py").write_text(ASV)
    return Subject(tmp_path, tmp_path / "asv.conf.json", "HEAD", "a stand-in")


@pytest.mark.parametrize("status", [0, 2])
def test_what_was_measured_is_shown_with_asvs_own_status(status: int, subject: Subject) -> None:
    shown: list[str] = []
    environment = {**os.environ, "STATUS": str(status)}
    got = run_asv(subject, ["HEAD~2..HEAD"], environment, lambda entry: shown.append(str(entry)), ["b"])
    assert got == status
    lines = "".join(shown).splitlines()
    assert lines[0].endswith("run --show-stderr --bench ^a$ --bench --bench=b HEAD~2..HEAD")
    assert any("1ns" in line for line in lines)
    assert not any("n/a" in line for line in lines)


def test_nothing_to_measure_is_an_error(subject: Subject) -> None:
    with pytest.raises(BatchcholError, match="the profile has no point that matches none"):
        run_asv(subject, [], os.environ, print, ["none"])
    (subject.folder / "benchmarks" / "harness" / "selection.py").write_text("raise ValueError('no profile')")
    with pytest.raises(BatchcholError, match=r"cannot say what it measures: (.|\n)*no profile"):
        run_asv(subject, [], os.environ, print)
