"""asv across commits, offline: a scratch repository of stand-ins, the real plugin and the real asv."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batchchol.asv_plugin.results import load_results

WHY = "the suite's extra is not installed: there is no asv"
config = pytest.importorskip("asv.config", reason=WHY)
environment = pytest.importorskip("asv.environment", reason=WHY)
plugin = pytest.importorskip("batchchol.asv_plugin.checkout", reason=WHY)

CONFIGURATION = {
    "version": 1,
    "project": "scratch",
    "repo": ".",
    "branches": ["main"],
    "plugins": [".batchchol.asv_plugin.checkout"],
    "environment_type": "checkout",
    "launch_method": "forkserver",
    "env_dir": ".asv/env",
    "results_dir": ".asv/results",
}
# The stand-in has a clock of its own: what a busy machine does to a real one is not what is tested.
BENCHMARK = """
import batchchol
from batchchol.asv_plugin.samples import record


class Suite:
    timer = staticmethod(batchchol.now)

    def time_work(self):
        batchchol.work()

    def track_mark(self):
        record("suite.Suite.track_mark", {}, [1.0], {"mark": batchchol.MARK})
        return batchchol.MARK
"""
PACKAGE = """
MARK = {mark}

elapsed = 0.0


def now():
    return elapsed


def work():
    global elapsed
    elapsed += {loops} * 1e-7
"""
FOREIGN_MARK = 99
LOOPS = 100_000


@dataclass(frozen=True)
class Scratch:
    """A git repository of stand-ins; `foreign` holds other copies of the packages, outside of it."""

    root: Path
    foreign: Path
    home: Path

    def environment(self) -> dict[str, str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "ASV", "PYTHON"))}
        author = {f"GIT_{who}_{what}": "scratch" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        return {**clean, **author, "HOME": str(self.home)}

    def call(self, *command: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.root,
            env={**self.environment(), **extra},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )

    def asv(self, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return self.call(sys.executable, "-m", "asv", *arguments, **extra)

    def commit(self, mark: int, loops: int = LOOPS) -> str:
        (self.root / "batchchol" / "__init__.py").write_text(PACKAGE.format(mark=mark, loops=loops))
        for command in ("add -A", "commit -q --allow-empty -m change"):
            done = self.call("git", *command.split())
            assert done.returncode == 0, done.stdout
        return self.call("git", "rev-parse", "HEAD").stdout.strip()

    def marks(self) -> dict[str, Any]:
        """Commit -> what `track_mark` stored for it."""
        results = {}
        for path in (self.root / ".asv" / "results" / "testbed").glob("*-checkout-*.json"):
            stored = json.loads(path.read_text())
            results[stored["commit_hash"]] = stored["results"]["suite.Suite.track_mark"][0]
        return results


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    root, foreign, home = (tmp_path / name for name in ("repository", "foreign", "home"))
    for folder in (root / "batchchol", root / "kernelgen", root / "benchmarks", foreign, home):
        folder.mkdir(parents=True)
    library = Path(plugin.__file__).parent
    shutil.copytree(library, root / "batchchol" / "asv_plugin", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(library.with_name("errors.py"), root / "batchchol")
    (root / "kernelgen" / "__init__.py").write_text("")
    (root / "benchmarks" / "__init__.py").write_text("")
    (root / "benchmarks" / "suite.py").write_text(BENCHMARK)
    (root / "asv.conf.json").write_text(json.dumps(CONFIGURATION))
    (root / ".gitignore").write_text(".asv\n__pycache__\n")
    for name in plugin.PACKAGES:
        (foreign / name).mkdir()
        (foreign / name / "__init__.py").write_text(PACKAGE.format(mark=FOREIGN_MARK, loops=1))
    machine = {"machine": "testbed", "os": "", "arch": "", "cpu": "", "num_cpu": "", "ram": ""}
    (home / ".asv-machine.json").write_text(json.dumps({"testbed": machine, "version": 1}))
    made = Scratch(root, foreign, home)
    assert made.call("git", "init", "-q", "-b", "main").returncode == 0
    return made


def test_a_slowdown_by_two_is_flagged_and_equal_commits_are_not(scratch: Scratch) -> None:
    before = scratch.commit(mark=1)
    same = scratch.commit(mark=2)
    slower = scratch.commit(mark=3, loops=2 * LOOPS)
    options = ("--factor", "1.5", "--machine", "testbed", "--bench", "time_work", "--attribute", "rounds=1")

    equal = scratch.asv("continuous", *options, before, same)
    assert equal.returncode == 0, equal.stdout
    assert "BENCHMARKS NOT SIGNIFICANTLY CHANGED" in equal.stdout

    worse = scratch.asv("continuous", *options, same, slower)
    assert worse.returncode == 1, worse.stdout
    assert "PERFORMANCE DECREASED" in worse.stdout
    assert "suite.Suite.time_work" in worse.stdout

    compared = scratch.asv("compare", "--factor", "1.5", "--only-changed", same, slower)
    assert "suite.Suite.time_work" in compared.stdout


def test_a_range_measures_each_commit_from_its_own_checkout(scratch: Scratch) -> None:
    scratch.commit(mark=1)
    expected = {scratch.commit(mark=mark): mark for mark in (2, 3)}
    # What the shell has on its import paths must not matter, and an edit that is not committed neither.
    (scratch.root / "batchchol" / "__init__.py").write_text(PACKAGE.format(mark=FOREIGN_MARK, loops=1))
    run = scratch.asv(
        "run",
        "--bench",
        "track_mark",
        "HEAD~2..HEAD",
        PYTHONPATH=str(scratch.foreign),
        ASV_PYTHONPATH=str(scratch.foreign),
    )
    assert run.returncode == 0, run.stdout
    assert scratch.marks() == {commit: [mark] for commit, mark in expected.items()}


def test_samples_are_recorded_beside_the_results_that_they_became(scratch: Scratch) -> None:
    commits = [scratch.commit(mark=mark) for mark in (1, 2)]
    # Neither another machine's results nor a dry run must be in the way.
    other = scratch.root / ".asv" / "results" / "other"
    other.mkdir(parents=True)
    (other / "machine.json").write_text(json.dumps({"machine": "other", "version": 1}))
    for arguments in (("HEAD~1..HEAD",), ("HEAD^!",), ("HEAD^!", "--dry-run")):
        run = scratch.asv("run", "--bench", "track_mark", *arguments)
        assert run.returncode == 0, run.stdout
    rows = [row for row in load_results(scratch.root / ".asv" / "results") if row.commit == commits[1]]
    (row,) = rows
    (record,) = row.records
    assert (row.machine, row.median, record.about["mark"]) == ("testbed", 2.0, 2)
    folder = scratch.root / ".asv" / "results" / "testbed"
    lines = (folder / f"{commits[1][:8]}-{row.environment}.samples.jsonl").read_text().splitlines()
    assert len(lines) == 3
    assert len({json.loads(line)["run"] for line in lines}) == 3
    assert record.run == json.loads(lines[1])["run"]


def test_a_commit_whose_package_comes_from_elsewhere_is_refused(scratch: Scratch) -> None:
    good = scratch.commit(mark=1)
    shutil.rmtree(scratch.root / "kernelgen")
    bad = scratch.commit(mark=2)
    (scratch.root / "kernelgen").mkdir()
    (scratch.root / "kernelgen" / "__init__.py").write_text("")
    scratch.commit(mark=3)

    run = scratch.asv("run", "--bench", "track_mark", "HEAD~2..HEAD", ASV_PYTHONPATH=str(scratch.foreign))
    assert run.returncode == 2, run.stdout
    assert f"commit {bad[:8]} is not measured" in run.stdout
    assert f"kernelgen was imported from {scratch.foreign}" in run.stdout
    marks = scratch.marks()
    assert marks[bad] is None, "a number was stored for a refused commit"
    assert sorted(mark for mark in marks.values() if mark) == [[3]]
    assert good not in marks


def test_the_guard_refuses_a_package_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("")
    checked = subprocess.run(
        [sys.executable, "-P", str(plugin.GUARD), str(tmp_path), "here,surely_nowhere", "never_run.py"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 1
    assert "refused: surely_nowhere cannot be imported from the checkout" in checked.stderr
    assert "refused: here" not in checked.stderr


@pytest.mark.parametrize(
    ("python", "requirements", "named"),
    [("2.7", {}, "python='2.7'"), (plugin.THIS_VERSION, {"numpy": ""}, "numpy")],
)
def test_what_needs_an_installation_is_refused(python: str, requirements: dict[str, str], named: str) -> None:
    with pytest.raises(environment.EnvironmentUnavailable, match=named):
        plugin.Checkout(config.Config(), python, requirements, {})
