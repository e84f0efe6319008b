"""Commits from before there were rooms: their modules are found by the paths that the suite imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = """
from benchmarks.harness import former
former.install()
from importlib.resources import files
from batchchol.batches.batch import Batch
from batchchol.backends.cuda.device import device
from batchchol.datasets.generation import generate
import batchchol
assert (files("batchchol") / "catalogue.toml").read_text() == "data"
print(Batch.__module__, device.__module__, generate.__module__, batchchol.__spec__.name)
try:
    import batchchol.measure.graph_samples
except ModuleNotFoundError as error:
    print(error)
"""


def test_an_older_commit_keeps_its_modules_and_its_data(tmp_path: Path) -> None:
    package = tmp_path / "batchchol"
    (package / "cuda").mkdir(parents=True)
    (package / "backends").mkdir()
    former = Path("benchmarks", "harness", "former.py")
    (tmp_path / former).parent.mkdir(parents=True)
    (tmp_path / former).write_text((ROOT / former).read_text())
    (package / "catalogue.toml").write_text("data")
    for path, text in {
        "__init__.py": "",
        # Of its own, lest an installed suite be found in its place.
        "../benchmarks/__init__.py": "",
        "../benchmarks/harness/__init__.py": "",
        "batch.py": "class Batch: pass",
        "datasets.py": "def generate(): pass",
        "backends/__init__.py": "",
        "backends/cuda.py": "",
        "cuda/__init__.py": "",
        "cuda/device.py": "def device(): pass",
    }.items():
        (package / path).write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "batchchol.batch batchchol.cuda.device batchchol.datasets batchchol",
        "No module named 'batchchol.cuda.graph_samples'",
    ], done.stderr
