"""`tune --budget` and `replay` from end to end, with a bench that measures by a formula."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchchol import cli
from batchchol.cli.laboratory.tune.search import _said
from batchchol.defaults.lookup import default_spec
from batchchol.errors import DataFileError
from batchchol.measure import process
from batchchol.measure.dataset import read
from batchchol.measure.point import Point
from batchchol.operations.roofline import flops
from batchchol.tune import compile
from batchchol.tune.search import replay
from batchchol.tune.search import runs as searches
from batchchol.tune.search.cases import Budget
from batchchol.tune.search.guided import prepare
from batchchol.tune.search.replay import Run

from ...synthetic_sweep import points, row, write

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
pytest.importorskip("sklearn")
pytest.importorskip("optuna")
pytest.importorskip("matplotlib")

TESTS = Path(__file__).parents[2]
SPACE = """
[[kernels]]
n = [20, 24]
nb = ["1-8"]
looking = ["left", "top"]
math = ["ieee", "fast"]
chunk = [32, 64]
threads = "chunk"
any_block = true
"""


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """tune(option, ...) in a space of 128 points, four cases, on a GPU that is not there."""
    monkeypatch.setattr(compile, "build", lambda points, arch, **_: compile.Built(list(points), []))
    monkeypatch.setattr(process, "BENCH", "sweep_benches:FakeGpu")
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    space = tmp_path / "tiles.toml"
    space.write_text(SPACE)

    def run(*options: Any) -> int:
        said = ["--data", tmp_path / "data", "--space", space, "--no-table", "--finalists", 1, *options]
        return cli.main(["tune", *map(str, said)])

    return run


def test_a_space_is_searched_and_the_search_goes_on(
    tune: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune("--budget", "25%", "--n", 24, "--math", "fast") == 0
    said = capsys.readouterr()
    assert "transfer: 1 cases, 8 of 32 points to measure\n" in said.err
    assert "the best of 8 of 32 points: " in said.out
    assert "measured: 9 correct; 0 points left" in said.out, "with the finalist"
    assert tune("--budget", "9") == 0
    said = capsys.readouterr()
    assert "transfer: 4 cases, 28 of 128 points to measure\n" in said.err
    assert said.out.count("the best of 9 of 32 points: ") == 4
    # That bench is the faster, the larger the tiles are.
    assert said.out.count("_nb8_") >= 3
    rows = read(tmp_path / "data").to_pylist()
    assert sum(each["any_block"] for each in rows) == 36
    assert {each["space"] for each in rows} == {"tiles"}
    assert tune("--strategy", "tpe", "--budget", 10, "--learn", tmp_path / "data.parquet") == 2
    assert "--learn: strategy 'tpe' cannot learn, use transfer" in capsys.readouterr().err
    other = tmp_path / "other"
    assert tune("--data", other, "--budget", 1, "--n", 20, "--learn", tmp_path / "data.parquet") == 0
    said = capsys.readouterr()
    assert "40 points known of others" in said.err
    assert said.out.count("_nb8_") == 2, "at once"


def test_an_operation_counts_its_own_flops() -> None:
    point = Point(default_spec(16, target="cuda", op="gesv"), 1000, 32, 1, "queued")
    (search,) = prepare([point], "random", Budget(1), {point.key: 1e-3})
    assert f": {flops(16, op='gesv') * 1000 / 1e-3 / 1e9:,.1f} GFLOP/s" in _said(search)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--budget", "5%"], "--strategy, --budget: got them without --space"),
        (["--strategy", "tpe", "--space", "quick", "--compile-only", "--arch", "sm_90"], "or with --compile-only"),
        (["--learn", "x.parquet", "--space", "quick"], "--learn: got no --budget"),
    ],
)
def test_what_cannot_be_searched_is_said(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tune", *options]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three cases, of which one is too small; some points failed, and some were measured again as finalists."""
    chosen = [point for n in (4, 40) for point in points(110, n=[n], math=["fast"])]
    rows = [row(point, "correct" if point.spec.schedule.nb != 3 else "runtime") for point in chosen]
    rows += [row(point.own) for point in chosen[:5]] + [row(point) for point in points(30, n=[8])]
    return write(tmp_path_factory.mktemp("replay") / "measured.parquet", rows)


def test_a_replay_tells_what_strategies_need(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert cli.main(["replay", str(data), "--repeats", "2", "--jobs", "1", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "2 cases, 220 points" in said.err
    lines = [line.split() for line in said.out.splitlines()[2:] if not line.startswith(("-", str(out)))]
    assert [(line[0], line[2]) for line in lines] == [
        (name, close) for name in ("exhaustive", "random", "tpe", "forest", "transfer") for close in ("5%", "1%")
    ]
    assert {path.name for path in out.iterdir()} == {"replay.csv", "replay.png", "replay.svg", "runs.csv"}
    with (out / "replay.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2 * 5 * 2
    assert {(each["n"], each["points"]) for each in rows} == {("4", "110"), ("40", "110")}
    assert {(each["strategy"], each["runs"]) for each in rows if each["n"] == "4"} >= {
        ("exhaustive", "1"),
        ("tpe", "2"),
    }
    again = tmp_path / "again"
    assert cli.main(["replay", str(data), "--runs", str(out / "runs.csv"), "--out", str(again)]) == 0
    assert all((again / name).read_text() == (out / name).read_text() for name in ("replay.csv", "runs.csv"))
    surfaces = replay.load(data)
    found = replay.replay(surfaces, ["random", "forest"], 2)
    assert found == replay.replay(surfaces, ["random", "forest"], 2)
    for each in found:
        assert each.regret[-1] == 0 or each.strategy == "forest"
        assert all(later <= earlier for earlier, later in zip(each.regret, each.regret[1:], strict=False))


def test_what_runs_needed_is_counted(data: Path) -> None:
    surfaces = replay.load(data)
    runs = [Run(0, "random", 0, (0.5, 0.04, 0.005)), Run(0, "random", 1, (0.02,)), Run(0, "random", 2, (0.5,) * 20)]
    five, one = (replay.line(surfaces, runs, close) for close in (0.05, 0.01))
    assert (five.median, five.high, five.within) == (2, float("inf"), 2 / 3)
    assert (one.median, one.within) == (float("inf"), 1 / 3)
    assert five.median_share == 2 / 110
    assert runs[0].after(2) == 0.04
    assert runs[0].after(9) == 0.005


def test_searches_are_kept_as_their_improvements(data: Path, tmp_path: Path) -> None:
    surfaces, path = replay.load(data), tmp_path / "runs.csv"
    never, once, late = ((math.inf,) * 3, (0.25, 0.25, 0.0), (math.inf, 0.5, 0.5, 0.125))
    found = [Run(number % 2, "tpe", number, regret) for number, regret in enumerate((never, once, late))]
    path.write_text(searches.written(surfaces, found))
    assert searches.read(path, surfaces) == found
    with pytest.raises(DataFileError, match="no searches of these data"):
        searches.read(path, surfaces[:1])


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["replay", str(data), "--out", str(data)]) == 2
    assert "measured.parquet: folder: there is a file of the name" in capsys.readouterr().err


def test_the_extra_is_named_where_matplotlib_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main(["replay", "anything"]) == 2
    assert "pip install -e '.[search]'" in capsys.readouterr().err


def test_a_data_set_that_says_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "few.parquet", [row(point) for point in points(20, n=[4])])
    assert cli.main(["replay", str(path)]) == 2
    assert "no case has 100 points: replay a data set of a whole sweep" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["replay", str(path), "--strategies", "luck"])
    assert "got 'luck', expected some of exhaustive, random" in capsys.readouterr().err
