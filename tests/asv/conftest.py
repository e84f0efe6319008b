"""The suite, imported as asv does."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import batchchol

ROOT = Path(__file__).resolve().parents[2]
WHY = "the suite's extra is not installed: there is no asv"


@pytest.fixture
def library_folder() -> Path:
    """Where the library under test is imported from: the checkout, or an installed wheel."""
    return Path(batchchol.__file__).resolve().parents[1]


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The package `benchmarks`, imported without its parent folder on the import path; it measures the CPU."""
    importer = pytest.importorskip("asv_runner._aux", reason=WHY)
    monkeypatch.setattr(sys, "meta_path", [importer.SpecificImporter("benchmarks", str(ROOT)), *sys.meta_path])
    for variable in ("BATCHCHOL_PROFILE", "BATCHCHOL_ASV_SAMPLES"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("BATCHCHOL_BACKEND", "cpu")
    yield importlib.import_module("benchmarks")
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]


@pytest.fixture
def part(suite: Any) -> Callable[[str], Any]:
    """A module of the suite by its name."""
    return lambda name: importlib.import_module(f"benchmarks.{name}")


@pytest.fixture
def benchmark_at(part: Callable[[str], Any]) -> Callable[..., Any]:
    """The benchmark of that name, set to the one point of its grid that has these parameters."""
    discovery = pytest.importorskip("asv_runner.discovery", reason=WHY)

    def find(name: str, **values: Any) -> Any:
        benchmark = discovery.get_benchmark_from_name(str(ROOT / "benchmarks"), name)
        points = list(part("harness.profiles").kept_points("full", "", benchmark.param_names, benchmark._params))
        wanted = {"backend": "cpu", **values} if "backend" in benchmark.param_names else values
        (index,) = (index for index, point in enumerate(points) if wanted.items() <= point.items())
        benchmark.set_param_idx(index)
        return benchmark

    return find
