"""What a report says of the study's statements: verdicts are those of the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from batchchol.compare.rows import write_csv
from batchchol.measure.row import Row
from batchchol.report import figure_list, speedups, study_2017, wording
from batchchol.report.statements import Finding

from .made_rows import BATCH, a_row, compared, loaded

for package in ("pandas", "sklearn", "matplotlib", "pyarrow"):
    pytest.importorskip(package, reason="reports need pip install -e '.[report]'")


def verdicts(rows: Any, compared: Any = None) -> dict[str, Finding]:
    found = study_2017.findings(rows, "fast", "no forest", compared)
    return {finding.topic.split(" (")[0]: finding for finding in found}


def times(ns: Sequence[int], choice: str, seconds: dict[Any, Sequence[float]]) -> list[Row]:
    """Of each value of a parameter a time for each order."""
    return [a_row(time, n, **{"threads": 32, choice: value}) for value, each in seconds.items()
            for n, time in zip(ns, each, strict=True)]  # fmt: skip


@pytest.mark.parametrize(("gflops", "words"), [(7.106, "7.11"), (42.0, "42"), (99.96, "100"), (30826.4, "30,826")])
def test_a_rate_of_a_core_has_three_digits(gflops: float, words: str) -> None:
    assert wording.rate(gflops) == words


@pytest.mark.parametrize(
    ("topic", "ns", "choice", "fixed", "varied"),
    [
        ("Looking", (24, 28, 32, 36, 40), "looking", {"left": 1.2, "right": 1.3}, "top"),
        ("Small looking", (4, 8, 12, 16, 20), "looking", {"left": 1.0, "right": 1.02}, "top"),
        ("Chunk size", (4, 8, 12, 16, 20), "chunk", {64: 1.02, 256: 1.2}, 32),
        ("Large chunks", (4, 8, 12, 16, 20), "chunk", {32: 1.0, 128: 1.1, 512: 2.0}, 256),
        ("Small tiles", (4, 8, 12, 16, 18), "nb", {2: 1.0, 3: 1.03}, 4),
        ("Tile size", (32, 36, 40, 48, 64), "nb", {3: 1.2, 4: 1.1}, 8),
        ("Unrolling", (4, 8, 12, 16, 20), "unroll", {"tiles": 1.1}, "full"),
    ],
)
def test_a_verdict_follows_the_numbers(
    tmp_path: Path, topic: str, ns: Sequence[int], choice: str, fixed: dict[Any, float], varied: Any
) -> None:
    def verdict(orders: int) -> Finding:
        """The statement holds at this many orders of five."""
        seconds = {value: [time] * 5 for value, time in fixed.items()}
        rows = times(ns, choice, {**seconds, varied: [1.0] * orders + [4.0] * (5 - orders)})
        return verdicts(loaded(tmp_path, rows).correct)[topic]

    assert verdict(4).verdict == "agrees"
    assert verdict(3).verdict == "partly"
    assert verdict(2).verdict == "differs"


@pytest.mark.parametrize(("seconds", "verdict"), [(1.33, "agrees"), (1.1, "partly"), (1.0, "differs")])
def test_what_fast_math_gains_at_best_is_judged(tmp_path: Path, seconds: float, verdict: str) -> None:
    rows = times((8, 40), "math", {"fast": [1.0, 1.0], "ieee": [1.0, seconds]})
    found = verdicts(loaded(tmp_path, rows).correct)["Math"]
    assert found.verdict == verdict
    assert f"{seconds - 1:.1%} more" in found.here


@pytest.mark.parametrize(("slow", "verdict"), [(9.0, "agrees"), (0.5, "differs")])
def test_unrolled_code_without_chunks_is_the_worst_where_it_is(tmp_path: Path, slow: float, verdict: str) -> None:
    rows = [a_row(slow if (chunk, unroll) == (None, "full") else 1.0, n, chunk=chunk, unroll=unroll)
            for n in (8, 16) for chunk in (None, 32) for unroll in ("full", "tiles")]  # fmt: skip
    assert verdicts(loaded(tmp_path, rows).correct)["Chunking"].verdict == verdict


@pytest.mark.parametrize(
    ("slower", "copy", "verdict"), [(90.0, 1.0, "agrees"), (90.0, 1e30, "partly"), (1.0, 1.0, "differs")]
)
def test_tiles_of_one_are_bound_by_memory_where_they_move_much(
    tmp_path: Path, slower: float, copy: float, verdict: str
) -> None:
    rows = times((32, 48, 64), "nb", {1: [1.0, slower, slower], 8: [1.0, 1.0, 1.0]})
    correct = loaded(tmp_path, rows).correct.assign(copy_bytes_per_second=copy)
    assert verdicts(correct)["Tiles of 1"].verdict == verdict


def test_the_best_value_everywhere_is_named(tmp_path: Path) -> None:
    rows = times((8, 16), "looking", {"top": [1.0, 1.0], "right": [2.0, 1.1]})
    found = verdicts(loaded(tmp_path, rows).correct)["Every n"]
    assert (found.verdict, "looking = top, of 1" in found.here) == ("differs", True)
    rows = times((8, 16), "looking", {"top": [1.0, 1.2], "right": [2.0, 1.1]})
    assert verdicts(loaded(tmp_path, rows).correct)["Every n"].verdict == "agrees"


def test_straight_lines_that_win_for_large_matrices_differ(tmp_path: Path) -> None:
    rows = [a_row(1.0 + (unroll == "tiles"), n, unroll=unroll) for n in (24, 28, 32) for unroll in ("full", "tiles")]
    finding = verdicts(loaded(tmp_path, rows).correct)["Unrolling"]
    assert finding.verdict == "differs"
    assert "gains more than 2% at n = 24 to 32 (at most 100%, n = 24)" in finding.here


def test_large_tiles_and_memory_preference(tmp_path: Path) -> None:
    rows = [
        a_row(1.0 / nb, n, nb=nb, cache=cache) for n in (8, 32, 40) for nb in (2, 5, 8) for cache in ("l1", "shared")
    ]
    found = verdicts(loaded(tmp_path, rows).correct)
    assert found["Tile size"].verdict == "agrees"
    assert "the smallest nb within 5% of the best is 8 at 2." in found["Tile size"].here
    assert found["On-chip memory"].verdict == "agrees"
    assert "3 of 3" in found["On-chip memory"].here


def test_of_one_order_findings_speak_of_that_order(tmp_path: Path) -> None:
    rows = [a_row(1.0 + (looking == "right"), 40, looking=looking, chunk=64, nb=nb, threads=32)
            for looking in ("right", "left", "top") for nb in (5, 8)]  # fmt: skip
    rows += [a_row(4.0, 40, chunk=256, threads=32), a_row(1.1, 40, chunk=32, threads=32)]
    found = verdicts(loaded(tmp_path, rows).correct)
    assert found["Looking"].here.startswith("In this order at n")
    assert found["Looking"].short == "Past n = 20 top looking is the best, or within 2% of it, at n = 40."
    assert found["Chunk size"].short == "Chunks of 64 are the best at n = 40."
    assert found["Tile size"].short.startswith("From n = 32 on the best nb is ")


def test_what_was_not_measured_is_said_to_be_so(tmp_path: Path) -> None:
    found = verdicts(loaded(tmp_path, [a_row(1.0, 8), a_row(1.0, 16)]).correct)
    assert {finding.verdict for finding in found.values()} == {"not measured"}
    assert all(finding.here for finding in found.values())


def test_peers_are_judged_by_the_fastest_of_them(tmp_path: Path) -> None:
    path = tmp_path / "compare.csv"
    rows = [compared("thread", n, 1.0) for n in (4, 8, 64)]
    rows += [compared("torch", n, seconds) for n, seconds in ((4, 50.0), (8, 3.0), (64, 0.5))]
    rows += [compared("magma", n, 5.0) for n in (4, 8)]
    write_csv(path, rows)
    correct = loaded(tmp_path, [a_row(1.0, 8)]).correct
    finding = verdicts(correct, speedups.read(path, "float32", BATCH))["Peers"]
    assert finding.verdict == "agrees"
    assert "5.0 at n = 4 and 0.5 at n = 64 times" in finding.here
    assert "slower at n = 64" in finding.here


def test_peers_may_overtake_one_thread_to_a_matrix(tmp_path: Path) -> None:
    path = tmp_path / "compare.csv"
    rows = [compared("thread ieee", n, 1.0) for n in (8, 32, 64)] + [compared("block", 64, 0.1)]
    peer = [compared("cusolverdx", n, seconds) for n, seconds in ((8, 5.0), (32, 2.0), (64, 0.5))]
    write_csv(path, rows + peer)
    correct = loaded(tmp_path, [a_row(1.0, 8)]).correct
    found = verdicts(correct, speedups.read(path, "float32", BATCH))["Large matrices"]
    assert found.verdict == "agrees"
    assert "at n = 64; at n = 64 it is 2.0 times as fast" in found.here
    write_csv(path, [*rows, *peer[:2]])
    assert verdicts(correct, speedups.read(path, "float32", BATCH))["Large matrices"].verdict == "differs"


def test_figure_20_has_twelve_kernels_for_each_nb(tmp_path: Path) -> None:
    """Of those that differ in memory preference alone the faster, of chunks of 64 and without chunks."""
    rows = [a_row(time, 24, nb=nb, looking=looking, chunk=chunk, unroll=unroll, cache=cache)
            for nb in (2, 4) for looking in ("right", "left", "top") for chunk in (None, 32, 64)
            for unroll in ("full", "tiles") for cache, time in (("l1", 1.0), ("shared", 2.0))]  # fmt: skip
    kernels = figure_list._study_kernels(loaded(tmp_path, rows).correct)
    assert kernels.groupby("nb").size().to_dict() == {2: 12, 4: 12}
    assert set(kernels["chunk"].dropna()) == {64}
    assert set(kernels["cache"]) == {"l1"}
