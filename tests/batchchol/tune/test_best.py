"""Search spaces of the best kernels of earlier measurements: which are taken, and what is changed in them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from batchchol.tune.expand import Expansion, Machine, expand
from batchchol.tune.space import SpaceError, load_space

GPU = Machine.cuda()
DATASETS = Path(__file__).parents[3] / "datasets"
EARLIER = {
    "n": 8, "dtype": "float32", "target": "cuda", "layout": "chunked", "order": "col", "chunk": 32,
    "family": "thread", "nb": 1, "looking": "left", "unroll": "tiles", "math": "ieee", "block": 32, "cache": "l1",
    "stride": "", "lanes": "", "batch": 1024, "threads": 1, "protocol": "queued", "status": "correct",
    "spread": 0.01, "ratio": 0.5, "samples": 5, "gpu": "one", "toolkit": "13.0", "date": "2026-11-21",
}  # fmt: skip
# Files of the first version do not say the chunk.
SIMD = {"target": "avx512", "chunk": "", "block": "", "cache": "", "protocol": "single", "nb": 8}
FASTEST = {"median_seconds": 1e-9}


def measured(path: Path, *rows: dict[str, Any]) -> Path:
    """A file of measurements, and beside it space.toml's folder."""
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, [*EARLIER, "median_seconds"])
        writer.writeheader()
        writer.writerows(EARLIER | row for row in rows)
    return path


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """Tile sizes, the larger the slower, one twice; the fastest of all are of no account."""
    rows = [{"n": n, "nb": nb, "median_seconds": nb * 1e-6} for n in (8, 9) for nb in (3, 2, 1, 1)]
    rows += [{"nb": 4, "stride": 32, "median_seconds": 9e-6}, {"nb": 5, "batch": 2048, "median_seconds": 9e-6}]
    rows += [{"nb": 6, "status": "wrong", "median_seconds": 1e-9}, {"nb": 7, "protocol": "single"} | FASTEST]
    return measured(tmp_path / "earlier.csv", *rows, SIMD | FASTEST)


def expanded(folder: Path, text: str, machine: Machine = GPU, **narrow: Any) -> Expansion:
    """What a space of one table is, in the folder of its data."""
    (folder / "space.toml").write_text(f'[[best]]\ndata = "earlier.csv"\n{text}')
    return expand(load_space(folder / "space.toml"), machine, **narrow)


def sizes(expansion: Expansion) -> Sequence[tuple[Any, ...]]:
    """Order, tile size, constant chunk and batch of each point."""
    specs = [(point.spec.problem.n, point.spec.schedule, point.batch) for point in expansion.points]
    return sorted((n, schedule.nb, schedule.stride or 0, batch) for n, schedule, batch in specs)


def test_the_fastest_of_each_case_order_and_batch(earlier: Path) -> None:
    alone = [(8, 1, 0, 1024), (8, 4, 32, 1024), (8, 5, 0, 2048), (9, 1, 0, 1024)]
    assert sizes(expanded(earlier.parent, "")) == alone
    assert sizes(expanded(earlier.parent, "count = 2")) == sorted([*alone, (8, 2, 0, 1024), (9, 2, 0, 1024)])
    point = expanded(earlier.parent, "").points[0]
    assert (point.chunk, point.protocol, point.threads, point.any_block) == (32, "queued", 1, False)


def test_what_was_measured_longer_comes_first(tmp_path: Path) -> None:
    rows = [
        {"nb": nb, "samples": samples, "median_seconds": nb} for nb, samples in ((1, 5), (2, 5), (3, 25), (4, 25))
    ]
    measured(tmp_path / "earlier.csv", *rows)
    assert [nb for _, nb, *_ in sizes(expanded(tmp_path, "count = 3"))] == [1, 3, 4]


def test_fields_are_changed(earlier: Path) -> None:
    expansion = expanded(earlier.parent, 'n = 9\ncache = ["shared", "default"]\nthreads = [32, "chunk", 64]\n')
    found = [(point.spec.schedule.cache, point.spec.schedule.threads) for point in expansion.points]
    assert sorted(found) == [("l1", 32), ("l1", 64), ("shared", 32), ("shared", 64)]
    assert sizes(expansion) == [(9, 1, 0, 1024)] * 4


def test_what_cannot_be_built_is_counted(earlier: Path) -> None:
    expansion = expanded(earlier.parent, "nb = [8, 9]")
    assert [point.spec.schedule.nb for point in expansion.points if point.spec.problem.n == 9] == [8, 9]
    assert list(expansion.unsupported.values()) == [3]
    assert next(iter(expansion.unsupported)).startswith("nb: a tile fits the matrix")


def test_points_of_a_machine_are_those_of_its_target(earlier: Path) -> None:
    cpu = Machine("cpu", "avx512", "single", {"float32": 16}, threads=2)
    (point,) = expanded(earlier.parent, "prefetch = false", cpu).points
    assert (point.spec.target, point.spec.schedule.nb, point.chunk, point.threads) == ("avx512", 8, 16, 2)
    assert point.spec.schedule.prefetch is False
    message = "space 'space' has no points on backend 'cpu': its points are for 'cuda', give --backend cuda"
    with pytest.raises(SpaceError, match=message):
        expanded(earlier.parent, "backend = 'cuda'", cpu)


def test_narrowed_by_the_file_and_by_the_caller(earlier: Path) -> None:
    assert sizes(expanded(earlier.parent, 'n = 8\nbatch = ["512KiB"]')) == [(8, 5, 0, 2048)]
    assert sizes(expanded(earlier.parent, 'batch = "2^10"\nmath = "ieee"\nlayout = "chunked"', n=[9])) == [
        (9, 1, 0, 1024)
    ]


def test_a_field_concerns_the_families_that_have_it(tmp_path: Path) -> None:
    block = {"family": "block", "nb": 4, "lanes": 8, "median_seconds": 2.0}
    path = measured(tmp_path / "earlier.csv", {"median_seconds": 1.0}, block | {"n": 9})
    found = {point.spec.family: point.spec.schedule for point in expanded(path.parent, "lanes = 4").points}
    assert set(found) == {"thread", "block"}
    assert found["block"].lanes == 4
    assert [point.spec.family for point in expanded(path.parent, 'family = "thread"').points] == ["thread"]


MALFORMED = {
    "colour = 3": r"space.toml: line 3: \[\[best\]\] colour: unknown, expected one of data, count, .*cache",
    "\nlanes = 2": r"line 4: \[\[best\]\] lanes: no kernel of the data has it, they are of thread",
    "prefetch = 3": r"line 3: \[\[best\]\] prefetch: got 3, expected true or false or \"default\"",
    "count = [1, 2]": r"line 3: \[\[best\]\] count: got 2 numbers, expected one",
    "count = 'chunk'": r"line 3: \[\[best\]\] count: got 'chunk', expected positive integers",
    "family = 'team'": r"line 3: \[\[best\]\] family: got 'team', expected some of thread",
    "n = 20": r"line 2: \[\[best\]\] data: has no correct measurement of that n",
}


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
def test_what_is_malformed_is_named_with_key_and_line(text: str, earlier: Path) -> None:
    with pytest.raises(SpaceError, match=MALFORMED[text]):
        expanded(earlier.parent, text)


@pytest.mark.parametrize("data", ["", "data = 3", "data = []", "data = 'absent.csv'", "data = 'absent.parquet'"])
def test_data_that_are_none_are_refused(data: str, tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text(f"[[best]]\n{data}\n")
    with pytest.raises(SpaceError, match=rf"space.toml: line {2 if data else 1}: \[\[best\]\] data: "):
        load_space(tmp_path / "space.toml")


def test_the_shipped_table_s_space_has_two_kernels_of_each_case() -> None:
    once = expand(load_space(DATASETS / "sweeps" / "defaults_sm_90.toml"), GPU, n=[40], family=["thread"])
    cases = {(point.data, point.spec.problem.math, point.spec.schedule.stride) for point in once.points}
    assert len(once.points) == 2 * len(cases) > 0
    assert all(point.spec.schedule.pdl for point in once.points)
