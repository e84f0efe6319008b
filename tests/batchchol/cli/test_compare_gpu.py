"""What a comparison on a GPU says: rows in their file, the table, and what stands below it."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchchol.cli.laboratory import compare_gpu
from batchchol.compare import contenders
from batchchol.compare.comparison import Outcome
from batchchol.compare.rows import Row, read_rows, table, write_csv


def a_row(**values: Any) -> Row:
    plain = Row(
        contender="thread",
        spec="a_spec",
        n=4,
        batch=1024,
        dtype="float32",
        protocol="queued",
        samples=20,
        seconds=2e-5,
        spread=0.125,
        floor_seconds=1e-6,
        roofline_seconds=5e-6,
        ratio=0.5,
        date="2026-11-21",
        machine="a machine",
        commit="c0ffee",
        version="1.0",
        size="1024",
        math="fast",
        layout="chunked32-col",
        calls=64,
        timing=contenders.QUEUED,
        copy_bytes_per_second=4e12,
        gpu="NVIDIA H200",
        driver="580",
        toolkit="CUDA 13.0",
        gpu_clock_mhz=1980.0,
        temperature_c=40.0,
        throttle="",
    )
    return replace(plain, **values)


def test_rows_survive_their_file_and_are_not_taken_for_those_of_a_cpu(tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    rows = [a_row(), a_row(contender="canonical in place", protocol="single", throttle="power_cap,idle")]
    write_csv(out, rows)
    # As text: what is not a number is not equal to itself.
    assert list(map(repr, read_rows(out))) == list(map(repr, rows))
    with out.open(newline="") as stream:
        assert float(next(csv.DictReader(stream))["gflops"]) == pytest.approx(rows[0].gflops, rel=1e-5)
    assert all(row.on_gpu for row in read_rows(out))


def test_the_table_says_by_which_protocol_and_of_how_many_calls() -> None:
    lines = table([a_row(), a_row(n=128, contender="torch", protocol="single", calls=1)]).splitlines()
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == [
        "4", "1,024", "thread", "queued", "20.00", "1.1", "25%", "12.5%", "20 × 64", "0.500", "a_spec",
    ]  # fmt: skip
    assert len({len(line) for line in lines}) == 1


def test_the_footer_names_how_each_was_timed_and_who_is_absent() -> None:
    rows = (a_row(), a_row(contender="jax", protocol="single", timing=contenders.WAITING, version="jax 1"))
    absent = {"torch": "no torch; get it", "shared at n = 4": "unknown", "shared at n = 8": "unknown"}
    said = compare_gpu.footer(Outcome(rows, absent))
    assert f"{contenders.WAITING}: jax\n" in said
    assert "absent: torch: no torch; get it\n" in said
    assert "absent: shared at n = 4; n = 8: unknown\n" in said
    assert "floor, queued: an empty call takes 1.00 us" in said
    assert "commit c0ffee" in said


def test_dated_figures_of_absent_peers_stand_apart_and_marked() -> None:
    said = compare_gpu.footer(Outcome((a_row(),), {}))
    shown = said.partition("Reference figures, measured earlier")[2]
    assert [cell.strip() for cell in shown.splitlines()[4].split("|")[1:-1]] == [
        "4", "1,024", "magma", "4", "MAGMA 2.10 (sm_90 build)", "2026-11-21",
    ]  # fmt: skip
    here = compare_gpu.footer(Outcome((a_row(), a_row(contender="magma"), a_row(contender="cusolverdx")), {}))
    assert "Reference" not in here
    elsewhere = compare_gpu.footer(Outcome((a_row(gpu="NVIDIA A100"),), {}))
    assert "Reference" not in elsewhere
