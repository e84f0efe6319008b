"""`tune --space` from end to end: a tiny space on this CPU, interrupted, resumed, exported."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchchol import cli
from batchchol.artifacts.cuda_modules import Outcome
from batchchol.defaults import tables
from batchchol.measure import process
from batchchol.measure.dataset import DataSet, merge, read
from batchchol.measure.process import Measurer
from batchchol.measure.row import Row
from batchchol.tune import compile
from batchchol.tune.expand import Machine, expand
from batchchol.tune.space import load_space
from batchchol.tune.sweep import sweep

from ...fakes.nvcc import write_fake_nvcc

pytest.importorskip("pyarrow")

TESTS = Path(__file__).parents[2]
TINY = """
about = "as small as it can be"
[[kernels]]
n = [1, 2]
nb = [1, 2]
batch = 500
"""


@pytest.fixture
def space(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """planted(bench): measurers have this bench of tests/sweep_benches.py; for one that does not measure nothing is
    compiled."""

    def plant(bench: str) -> None:
        if bench != "SmallCache":
            built = Outcome("a kernel", "built")
            monkeypatch.setattr(compile, "_outcomes", lambda points, *_: dict.fromkeys(points, built))
        monkeypatch.setattr(process, "BENCH", f"sweep_benches:{bench}")
        monkeypatch.setenv("PYTHONPATH", str(TESTS))

    return plant


def tune(*options: Any) -> int:
    return cli.main(["tune", *map(str, options)])


def test_a_space_is_measured_and_kept(
    space: Path, tmp_path: Path, planted: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Real kernels, in a real worker process."""
    planted("SmallCache")
    data, t4 = tmp_path / "data", tmp_path / "t4.json"
    assert tune("--space", space, "--data", data, "--samples", 3, "--n", 2) == 0
    said = capsys.readouterr()
    assert "space tiny: 2 points of 2 kernels" in said.err
    assert "measured: 2 correct; 0 points left" in said.out
    assert tune("--space", space, "--data", data, "--samples", 3, "--t4", t4) == 0
    said = capsys.readouterr()
    assert "1 combinations are unsupported\n  1: nb: a tile fits the matrix" in said.err
    assert "2 points are there, 1 are to do" in said.err
    assert "measured: 1 correct; 0 points left" in said.out
    rows = read(tmp_path / "data.parquet").to_pylist()
    assert [(row["n"], row["nb"], row["status"], row["samples"], row["batch"]) for row in rows] == [
        (1, 1, "correct", 3, 500),
        (2, 1, "correct", 3, 500),
        (2, 2, "correct", 3, 500),
    ]
    for row in rows:
        assert 0 < row["median_seconds"] < 1
        assert 0 <= row["ratio"] <= 1.5
        assert row["copy_bytes_per_second"] > 1e8
        assert row["space"] == "tiny"
        assert all(row[name] for name in ("source", "flags", "cpu", "compiler", "python", "numpy", "date", "recipe"))
    assert len(json.loads(t4.read_text())["results"]) == 3
    again = tmp_path / "again.json"
    assert tune("--data", data, "--t4", again) == 0
    assert json.loads(again.read_text()) == json.loads(t4.read_text())


def test_a_data_set_makes_a_table_of_defaults(space: Path, tmp_path: Path, planted: Callable[[str], None]) -> None:
    planted("FakeGpu")
    space.write_text("[[kernels]]\nn = [16, 20]\nnb = ['2-6']\n")
    data, table = tmp_path / "data", tmp_path / "table.json"
    with DataSet(data, "a fake") as kept, Measurer() as measurer:
        machine = Machine.of(measurer.facts())
        sweep(expand(load_space(space), machine).points, measurer, kept)
        shared = replace(expand(load_space(space), machine).points[0], any_block=True)
        kept.append(Row.timed(shared, (1e-12,)))
    for source in (data, tmp_path / "one.parquet"):
        merge(data, tmp_path / "one.parquet")
        assert tune("--from", source, "--table", table, "--arch", "sm_90") == 0
        (made,) = tables.parse(table.read_text()).values()
        chosen = {entry.schedule.nb for entries in made.cases.values() for entry in entries}
        assert chosen == {6}, "the fastest, and not the one that ran other code"


def test_a_sweep_that_may_take_so_long_says_what_is_left(
    space: Path, tmp_path: Path, planted: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    planted("Slow")
    space.write_text(TINY.replace("[1, 2]\nnb = [1, 2]", '["20-60"]\nnb = 4'))
    assert tune("--space", space, "--data", tmp_path / "data", "--for", 0.3) == 3
    said = capsys.readouterr().out
    assert ", 0 points left" not in said
    assert "points left" in said


@pytest.mark.usefixtures("time_is_over_when_a_point_hangs")
def test_lost_points_are_counted(
    space: Path, tmp_path: Path, planted: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    planted("Planted")
    space.write_text(TINY.replace("[1, 2]\nnb = [1, 2]", "20\nnb = [1, 2, 3, 4, 7, 10]"))
    assert tune("--space", space, "--data", tmp_path / "data", "--time-limit", 0.5) == 0
    assert "measured: 2 correct, 2 runtime, 1 timeout, 1 wrong; 0 points left" in capsys.readouterr().out


def test_the_best_of_each_case_are_measured_again_with_their_own_code(
    space: Path, tmp_path: Path, planted: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted("FakeGpu")
    built: list[int] = []

    def build(points: Any, arch: str | None, **_: Any) -> compile.Built:
        assert arch == "sm_90"
        built.append(len(points))
        return compile.Built(list(points), [])

    monkeypatch.setattr(compile, "build", build)
    space.write_text(
        TINY.replace("[1, 2]\nnb = [1, 2]", "20\nnb = ['1-9']\nany_block = true\nmath = ['ieee', 'fast']")
    )
    assert tune("--space", space, "--data", tmp_path / "data", "--finalists", 2) == 0
    rows = read(tmp_path / "data.parquet").to_pylist()
    assert built == [18, 4]
    again = {(row["math"], row["nb"]) for row in rows if not row["any_block"]}
    # That bench is the faster, the larger the tiles are.
    assert again == {(math, nb) for math in ("ieee", "fast") for nb in (8, 9)}
    assert len(rows) == 22
    assert tune("--space", space, "--data", tmp_path / "data", "--finalists", 2) == 0
    assert built[2:] == [0, 0]


def test_without_pyarrow_the_rows_are_kept_for_later(
    space: Path, tmp_path: Path, planted: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as on a machine that has the GPU and little else."""
    planted("FakeGpu")
    data = tmp_path / "data"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pyarrow", None)
        patch.setattr(compile, "build", lambda points, arch, **_: compile.Built(list(points), []))
        space.write_text("[[kernels]]\nn = 20\nnb = ['2-6']\nany_block = true\n")
        assert tune("--space", space, "--data", data) == 0
        said = capsys.readouterr().out
        assert "measured: 8 correct; 0 points left" in said
        assert "its rows are in the journal there, since pyarrow is missing" in said
        assert tune("--space", space, "--data", data) == 0
        assert "measured: nothing" in capsys.readouterr().out
    assert not list(tmp_path.glob("**/*.parquet"))
    assert tune("--data", data) == 0
    assert f"{tmp_path / 'data.parquet'}: 8 rows" in capsys.readouterr().out
    assert len(read(tmp_path / "data.parquet")) == 8
    with DataSet(data, "a fake") as kept:
        assert len(kept.done) == 8
    assert len(list(data.glob("points-*.parquet"))) == 1


def test_a_damaged_file_is_named_and_measured_anew(
    space: Path, tmp_path: Path, planted: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    planted("Quick")
    data = tmp_path / "data"
    assert tune("--space", space, "--data", data) == 0
    (data / "points-000001.parquet").write_bytes(b"damaged")
    capsys.readouterr()
    assert tune("--space", space, "--data", data) == 0
    said = capsys.readouterr()
    assert "batchchol: warning: " in said.err
    assert "points-000001.parquet: reading: damaged" in said.err
    assert "measured: 3 correct; 0 points left" in said.out
    assert len(read(data)) == 3


def test_kernels_are_compiled_without_a_gpu(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATCHCHOL_NVCC", str(write_fake_nvcc(tmp_path / "nvcc")))
    monkeypatch.setenv("BATCHCHOL_CACHE", str(tmp_path / "cache"))
    space.write_text(TINY.replace("nb = [1, 2]", "nb = 1\nthreads = [32, 64]\nany_block = true"))
    assert tune("--space", space, "--compile-only", "--arch", "sm_90") == 0
    said = capsys.readouterr()
    assert "space tiny: 4 points of 2 kernels" in said.err
    assert "4 points have their kernels, 0 have none" in said.out
    compiled = (tmp_path / "nvcc.log").read_text()
    assert compiled.count("_any") == 2
    assert tune("--space", space, "--compile-only", "--arch", "sm_90") == 0
    assert (tmp_path / "nvcc.log").read_text() == compiled, "what is in the cache is not compiled again"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--space", "papers"],
            "space: got 'papers', expected one of paper, study2, course, full, quick, general, or a file *.toml",
        ),
        (["--space", "quick", "--compile-only"], "--compile-only: got no --arch"),
        (["--space", "quick", "--batch", "2GiB"], "--batch: got 2GiB, expected numbers of matrices of the space"),
        (["--space", "quick", "--n", "33"], "space 'quick' has no points on backend 'cpu', n of 33"),
        (["--t4", "x.json"], "--t4: got no --data"),
        (["--cluster", "local"], "--cluster: got no --space"),
        (["--space", "quick", "--workers", "2"], "--workers: got no --cluster"),
        (["--space", "quick", "--backend", "cuda", "--n", "4"], "backend 'cuda' cannot be used"),
    ],
)
def test_what_cannot_be_done_is_said(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert tune(*options) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_architecture_is_checked_before_anything_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        tune("--space", "quick", "--backend", "cuda", "--compile-only", "--arch", "sm_9x")
    assert "argument --arch: got 'sm_9x', expected the name of a GPU architecture" in capsys.readouterr().err


def test_the_backend_is_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATCHCHOL_BACKEND", "abacus")
    for options in (["--space", "quick"], ["--n", "4"], ["--n", "4", "--out", "points.csv"]):
        assert tune(*options) == 2
        assert "BATCHCHOL_BACKEND='abacus' is unknown" in capsys.readouterr().err


def test_a_file_of_another_device_is_refused(
    space: Path, tmp_path: Path, planted: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    planted("Quick")
    data = tmp_path / "data"
    data.mkdir()
    (data / "_sweep.json").write_text('{"schema": 1, "device": "another"}')
    assert tune("--space", space, "--data", data) == 2
    assert "its rows are of 'another', not of 'a fake'" in capsys.readouterr().err
