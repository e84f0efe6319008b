"""Tables made of the committed data and of files by the command: the shipped one is what its data say."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from batchchol import BatchcholError, cli
from batchchol.defaults import tables
from batchchol.defaults.tables import Case, Table, render
from batchchol.measure.dataset import read_correct
from batchchol.measure.row import Row
from batchchol.tune.choosing.evidence import with_evidence
from batchchol.tune.choosing.make_tables import tables_of
from kernelgen import ThreadSchedule

from .made_rows import ABOUT, a_row, thread

H200 = Path(__file__).parents[3] / "datasets" / "sweeps" / "tune_h200.csv"


def test_the_shipped_table_of_the_h200_is_what_its_data_say() -> None:
    pytest.importorskip("pyarrow")
    tensor_cores = read_correct(H200.with_name("tensor_ieee_h100.csv"))
    single = of_the_h200() + read_correct(data("defaults_h200")) + tensor_cores
    single += read_correct(data("arrays_ieee_h200"))
    double = read_correct(data("defaults_f64_h200")) + read_correct(data("warp_f64_h200"))
    for name in (
        "arrays_large_h200",
        "whole_h200",
        "resident_h200",
        "arrays_staged_h200",
        "arrays_rows_h200",
        "packed_tensor_h200",
        "cut_ieee_h200",
    ):
        for row in read_correct(data(name)):
            (single if row.spec.problem.dtype == "float32" else double).append(row)
    # Each dtype by the copy rate of its own runs, LU and QR apart, as `tune --from` makes them one after the other.
    made = [
        each
        for rows in (single, double, *(read_correct(H200.with_name(f"{op}_h200.csv")) for op in ("lu", "qr")))
        for each in tables_of(rows, "sm_90")
    ]
    known = shipped()["sm_90"]
    assert {case: entries for each in made for case, entries in each.cases.items()} == known.cases
    assert (*made[0].layouts, *made[1].layouts) == known.layouts
    assert (*made[0].arrays, *made[1].arrays) == known.arrays
    for each in made:
        for case, entries in each.cases.items():
            assert [(e.until, e.evidence) for e in known.cases[case]] == [(e.until, e.evidence) for e in entries]
            shown = {(entry.n, entry.schedule) for entry in entries if entry.evidence}
            assert {(entry.n, entry.schedule) for entry in entries} == shown, "a schedule that nobody measured"


def test_evidence_is_put_into_a_table_whose_choices_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, known = tmp_path / "tables.json", dict(shipped())
    # Arrays were measured apart.
    chunked = {case: found for case, found in known["avx512"].cases.items() if case.layout == "chunked"}
    known["avx512"] = replace(known["avx512"], cases=chunked)
    bare = {case: tuple(replace(e, evidence=()) for e in found) for case, found in known["avx512"].cases.items()}
    path.write_text(render([replace(known["avx512"], cases=bare), known["generic"]]))
    data = str(H200.with_name("tune_avx512_xeon.csv"))
    assert cli.main(["tune", "--from", data, "--table", str(path), "--keep-choices"]) == 0
    assert "26 of 38 entries have measurements" in capsys.readouterr().out
    written = tables.parse(path.read_text())
    double = Case("float64", "ieee", "chunked")
    kept = with_evidence(written["avx512"], [a_row(8, ThreadSchedule(4), 1.0, target="avx512", protocol="single")])
    assert [e.evidence for e in kept.cases[double]] == [e.evidence for e in written["avx512"].cases[double]]
    assert written == {name: known[name] for name in ("avx512", "generic")}
    for case, entries in written["avx512"].cases.items():
        assert [entry.evidence for entry in entries] == [entry.evidence for entry in known["avx512"].cases[case]]


@cache
def of_the_h200() -> list[Row]:
    return read_correct(H200)


def data(name: str) -> Path:
    return H200.with_name(f"{name}.parquet")


def shipped() -> dict[str, Table]:
    from batchchol.defaults.shipped import shipped_tables

    return shipped_tables()


def test_points_of_a_file_say_what_was_measured() -> None:
    found = of_the_h200()
    first, *_ = found
    assert len(found) > 4400
    assert (first.about["device"], first.toolkit, first.day) == ("NVIDIA H200", "CUDA 13.0.88", "2026-11-21")
    assert first.spec.name == H200.read_text().splitlines()[1].split(",")[0]
    assert (first.point.batch, first.point.chunk, first.median_seconds) == (1024, 32, 6.8636e-06)
    assert first.about["copy_bytes_per_second"] == 4230700000000.0


def test_the_architecture_of_gpu_points_has_to_be_said() -> None:
    rows = [a_row(8, thread(4), 1.0)]
    with pytest.raises(BatchcholError, match="--arch: not given, say on which architecture"):
        tables_of(rows)
    later = a_row(8, thread(5), 2.0, about=ABOUT | {"date": "2026-11-23"})
    (made,) = tables_of([*rows, later], "sm_86")
    assert (made.name, made.measured) == ("sm_86", {"float32": "a GPU, CUDA, 2026-11-21 to 2026-11-23"})


def test_the_command_makes_a_table_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tables.json"
    path.write_text(render([shipped()["generic"], replace(shipped()["generic"], name="sm_90")]))
    assert cli.main(["tune", "--from", str(H200), "--arch", "sm_90", "--table", str(path)]) == 0
    written = tables.parse(path.read_text())
    assert written["generic"] == shipped()["generic"]
    assert written["sm_90"].measured["float32"].startswith("NVIDIA H200, CUDA 13.0.88")
    assert "for sm_90" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--table", "t.json", "--from", str(H200)], "--arch: not given"),
        (["--from", str(H200)], "--from: got no --table"),
        (["--from", "/no/such.csv", "--table", "t.json"], "/no/such.csv"),
    ],
)
def test_what_the_command_refuses(
    options: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["tune", *options]) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_file_of_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"tables": {"sm_90": {}}}')
    assert cli.main(["tune", "--from", str(H200), "--arch", "sm_90", "--table", str(path)]) == 2
    assert "not a file of tables" in capsys.readouterr().err
    assert path.read_text() == '{"tables": {"sm_90": {}}}'
