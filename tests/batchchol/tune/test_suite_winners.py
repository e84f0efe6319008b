"""Two sweeps beside each other, and the winners of one as data."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from batchchol import cli
from batchchol.errors import BatchcholError, DataFileError
from batchchol.measure.row import Row
from batchchol.report import data as points
from batchchol.report import stability
from batchchol.tune.choosing import suite_winners
from kernelgen import KernelSpec

from ... import synthetic_sweep
from ..report.made_rows import a_row

for package in ("pandas", "sklearn", "matplotlib", "pyarrow"):
    pytest.importorskip(package, reason="reports need pip install -e '.[report]'")


def rows_of(folder: Path, rows: Iterable[Row]) -> Any:
    return points.load(synthetic_sweep.write(folder / "data.parquet", list(rows))).correct


def sweep(folder: Path, times: dict[int, tuple[float, ...]], math: str = "fast") -> Any:
    """Points of nb 2, 3, ... at each order, with these times."""
    return rows_of(
        folder, [a_row(t, n, nb=nb, math=math) for n, each in times.items() for nb, t in enumerate(each, 2)]
    )


def test_winners_of_two_sweeps(tmp_path: Path) -> None:
    first = sweep(tmp_path, {4: (1.0, 1.5, 2.0), 8: (1.00, 1.01), 16: (1.0, 1.1, 1.2)})
    second = sweep(tmp_path, {4: (2.0, 3.1, 4.0), 8: (1.02, 1.00), 16: (1.1, 1.0, 1.2), 32: (1.0,)})
    found = stability.compare(first, second)
    table = found.table.set_index("n")
    assert table["same"].to_dict() == {4: True, 8: False, 16: False}
    assert table["agrees"].to_dict() == {4: True, 8: True, 16: False}
    assert table.loc[8, "first_in_second"] == pytest.approx(1 - 1.00 / 1.02)
    assert table.loc[8, "second_in_first"] == pytest.approx(1 - 1.00 / 1.01)
    assert found.worst == pytest.approx(1 - 1 / 1.1)
    assert found.share == pytest.approx(2 / 3)
    assert (found.same, found.alone) == (1, 1)
    assert list(found.apart["n"]) == [16]
    assert sorted(found.ratios)[-1] == pytest.approx(3.1 / 1.5)
    assert table.loc[16, "first"].endswith(", chunk 32")


def test_a_winner_that_the_other_sweep_lacks_agrees_with_none(tmp_path: Path) -> None:
    first, second = sweep(tmp_path, {8: (1.0, 2.0)}), sweep(tmp_path, {8: (1.0, 2.0, 0.9)})
    found = stability.compare(first, second)
    (line,) = found.table.to_dict("records")
    assert not line["agrees"]
    assert math.isnan(line["second_in_first"])
    assert stability.compare(second, first).share == 0.0


def test_sweeps_of_other_sizes_do_not_compare(tmp_path: Path) -> None:
    with pytest.raises(BatchcholError, match="no order and accuracy class in common"):
        stability.compare(sweep(tmp_path, {8: (1.0,)}), sweep(tmp_path, {8: (1.0,)}, math="ieee"))


def a_sweep(path: Path) -> Path:
    rows = [a_row(1.0, 8, nb=2, any_block=True), a_row(0.5, 8, nb=3, any_block=True), a_row(2.0, 8, nb=2)]
    rows += [a_row(3.0, 8, nb=4), a_row(4.0, 8, nb=2, chunk=None), a_row(5.0, 8, nb=2, math="ieee", chunk=64)]
    rows += [a_row(0.1, 8, nb=2, batch=1024)]
    return synthetic_sweep.write(path, rows)


def test_winners_are_the_fastest_of_those_whose_own_code_ran(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, file = a_sweep(tmp_path / "data.parquet"), tmp_path / "winners.json"
    assert cli.main(["report", str(data), "--winners", str(file)]) == 0
    assert "3 winners of made up" in capsys.readouterr().out
    content = json.loads(file.read_text())
    (only,) = content["sets"]
    assert content["schema"] == suite_winners.SCHEMA
    assert only["sha256"] == sha256(data.read_bytes()).hexdigest()
    assert (only["device"], only["target"], only["batch"]) == ("made up", "cuda", 16384)
    found = {(each["math"], each["layout"]): each for each in only["winners"]}
    assert set(found) == {("fast", "chunked"), ("fast", "interleaved"), ("ieee", "chunked")}
    assert found["fast", "chunked"]["ns"] == pytest.approx(2.0 / 16384 * 1e9, rel=1e-5)
    assert [found[key]["chunk"] for key in found] == [32, None, 64]
    for (accuracy, layout), each in found.items():
        spec = KernelSpec.from_dict(each["spec"])
        assert (spec.problem.n, spec.problem.math, spec.layout) == (8, accuracy, layout)
    assert not list(tmp_path.glob("*-report"))


def test_winners_of_a_csv_file_are_those_with_the_most_samples(tmp_path: Path) -> None:
    """The chunk that older files do not name is the instruction set's."""
    lines = ["n,dtype,target,layout,nb,looking,unroll,math,prefetch,staged,batch,threads,samples,status,"
             "median_seconds,spread,ratio,compile_seconds,code_bytes,cpu,compiler,date"]  # fmt: skip
    for nb, samples, seconds in ((2, 5, 1.0), (3, 25, 3.0), (4, 25, 2.0)):
        measured = f"{samples},correct,{seconds},0.1,0.1,1.0,100,a CPU,gcc,2026-01-01"
        lines.append(f"8,float32,avx512,chunked,{nb},top,tiles,ieee,True,False,8192,1,{measured}")
    path = tmp_path / "tune.csv"
    path.write_text("\n".join(lines) + "\n")
    (entry,) = suite_winners.choose(path)["winners"]
    assert (entry["spec"]["schedule"]["nb"], entry["chunk"]) == (4, 16)
    assert suite_winners.choose(path)["device"] == "a CPU"
    with pytest.raises(BatchcholError, match=r"--dtype: got 'float64', .*: float32"):
        suite_winners.choose(path, dtype="float64")


def test_winners_of_another_target_stay_and_those_of_the_same_are_replaced(tmp_path: Path) -> None:
    file, chosen = tmp_path / "winners.json", suite_winners.choose(a_sweep(tmp_path / "data.parquet"))
    other = {**chosen, "target": "avx2", "winners": chosen["winners"][:1]}
    assert suite_winners.write(file, chosen) == 3
    assert suite_winners.write(file, other) == 4
    assert suite_winners.write(file, {**chosen, "winners": chosen["winners"][:2]}) == 3
    assert [each["target"] for each in json.loads(file.read_text())["sets"]] == ["avx2", "cuda"]


def test_winners_say_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "winners.json"
    chosen = suite_winners.choose(a_sweep(tmp_path / "data.parquet"))
    for content, message in (("{", "not a file of winners"), ('{"schema": 9, "sets": []}', "version 9, expected 1")):
        file.write_text(content)
        with pytest.raises(DataFileError, match=message):
            suite_winners.write(file, chosen)
    with pytest.raises(DataFileError, match="writing"):
        suite_winners.write(tmp_path / "nowhere" / "winners.json", chosen)
    with pytest.raises(BatchcholError, match="is a folder that may grow"):
        suite_winners.choose(tmp_path)
    with pytest.raises(DataFileError, match="no correct measurement of a spec's own code"):
        suite_winners.choose(synthetic_sweep.write(tmp_path / "any.parquet", [a_row(1.0, 8, any_block=True)]))
