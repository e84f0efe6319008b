"""What a report says of a data set: that its numbers are those of the data, and its verdicts those of the numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchchol.compare.rows import write_csv
from batchchol.defaults.lookup import default_spec
from batchchol.errors import BatchcholError, DataFileError
from batchchol.measure.point import Point
from batchchol.measure.row import Row
from batchchol.report import course_rule, importance, pivots, speedups, study_2017
from batchchol.report import data as points
from batchchol.report.data import Case
from batchchol.report.importance import Prediction, Told
from batchchol.tune.search import features
from kernelgen import KernelSpec, Problem, SharedSchedule

from ... import synthetic_sweep
from .made_rows import BATCH, a_point, a_row, compared, loaded

for package in ("pandas", "sklearn", "matplotlib", "pyarrow"):
    pytest.importorskip(package, reason="reports need pip install -e '.[report]'")


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Any:
    chosen = synthetic_sweep.points(700, n=[4, 8, 16, 24, 32])
    rows = [synthetic_sweep.row(point) for point in chosen]
    return loaded(tmp_path_factory.mktemp("paper"), rows).correct


def test_gflops_and_roofline_are_those_of_the_time(tmp_path: Path) -> None:
    row = loaded(tmp_path, [a_row(1e-3, 8)]).correct.iloc[0]
    assert row.gflops == pytest.approx(8**3 / 3 * BATCH / 1e-3 / 1e9)
    bytes_of_all = (4 * 8 * 9 + 4) * BATCH
    share = bytes_of_all / synthetic_sweep.COPY / 1e-3
    assert row.gflops / row.roofline_gflops == pytest.approx(share)


def test_the_ceiling_is_the_best_of_those_that_were_measured(tmp_path: Path) -> None:
    row = a_row(1e-3, 8)
    disturbed = replace(a_row(1e-3, 8, nb=4), about={**row.about, "copy_bytes_per_second": synthetic_sweep.COPY / 9})
    shares = loaded(tmp_path, [row, disturbed]).correct["roofline_gflops"]
    assert len(shares) == 2
    assert shares.nunique() == 1


def test_rows_without_a_number_are_counted_and_left_out(tmp_path: Path) -> None:
    failed = [Row(a_point(8, nb=nb), status, "why") for nb, status in enumerate(("wrong", "timeout", "timeout"), 3)]
    data = loaded(tmp_path, [a_row(1.0, 8), *failed])
    assert len(data.correct) == 1
    assert {status: count for status, count in data.statuses.items() if count} == {
        "correct": 1, "wrong": 1, "timeout": 2,
    }  # fmt: skip
    with pytest.raises(DataFileError, match="no point of a Cholesky factorization is correct: sweep again"):
        loaded(tmp_path, failed)


def test_other_operations_are_left_out_and_named(tmp_path: Path) -> None:
    solve = synthetic_sweep.row(Point(default_spec(16, target="cuda", op="gesv"), 1000, 32, 1, "queued"))
    said: list[str] = []
    rows = [solve, *map(synthetic_sweep.row, synthetic_sweep.points(3))]
    found = points.load(synthetic_sweep.write(tmp_path / "both.parquet", rows), said.append)
    assert (len(found.correct), found.statuses["correct"]) == (3, 3)
    assert "points of gesv are left out" in said[0]
    with pytest.raises(DataFileError, match="no point of a Cholesky factorization is correct: all are of gesv"):
        points.load(synthetic_sweep.write(tmp_path / "solves.parquet", [solve]))


def test_a_finalist_measured_again_is_no_point_of_comparisons(tmp_path: Path) -> None:
    rows = [a_row(2.0, 8, any_block=True), a_row(1.0, 8), a_row(3.0, 8, nb=4), a_row(3.0, 8, nb=3, any_block=True)]
    data = loaded(tmp_path, rows)
    compared = points.of_case(data.correct, points.choose(data.correct))
    assert sorted(compared["median_seconds"]) == [2.0, 3.0, 3.0]
    assert pivots.own_code(data.correct).to_dict("records") == [{"n": 8, "ratio": pytest.approx(2.0)}]
    assert data.correct["gflops"].max() == data.correct.loc[data.correct["again"], "gflops"].iloc[0]


def test_the_case_is_the_commonest_or_what_was_asked_for(tmp_path: Path) -> None:
    rows = [a_row(1.0, n, batch=1024) for n in (4, 8)] + [a_row(1.0, 8, nb=nb) for nb in (2, 3, 4)]
    correct = loaded(tmp_path, rows).correct
    assert points.choose(correct) == Case("float32", "queued", "thread", 1024)
    assert points.choose(correct, batch=BATCH).batch == BATCH
    with pytest.raises(BatchcholError, match=r"--batch: got 7, .* there are 1,024, 16,384"):
        points.choose(correct, batch=7)
    with pytest.raises(BatchcholError, match=r"--family: got 'block', .* there are thread"):
        points.choose(correct, family="block")


def test_the_best_of_each_value_and_who_wins(tmp_path: Path) -> None:
    times = {(8, 2): 4.0, (8, 4): 2.0, (16, 2): 1.0, (16, 4): 3.0}
    rows = [a_row(seconds * slow, n, nb=nb, cache=cache) for (n, nb), seconds in times.items()
            for slow, cache in ((1, "l1"), (5, "shared"))]  # fmt: skip
    table = pivots.by(loaded(tmp_path, rows).correct, "nb")
    assert pivots.of_best(table).to_numpy().tolist() == [[0.5, 1.0], [1.0, pytest.approx(1 / 3)]]
    assert pivots.winners(table).to_dict() == {8: 4, 16: 2}
    assert pivots.where(pivots.winners(table), "nb") == "nb = 2 at n = 16; nb = 4 at n = 8"
    assert pivots.orders([2, 4, 8, 32], [2, 4, 8, 16, 32]) == "n = 2 to 8, 32"


def test_values_are_compared_only_where_both_were_tried(tmp_path: Path) -> None:
    rows = [a_row(2.0, 8, cache="l1"), a_row(1.0, 8, cache="shared"), a_row(0.1, 8, nb=4, cache="l1")]
    correct = loaded(tmp_path, rows).correct
    assert sorted(pivots.paired(correct, "cache", features.COLUMNS)["median_seconds"]) == [1.0, 2.0]


def test_parameters_are_those_that_differ_and_chunk_and_block_count_once(paper: Any) -> None:
    chosen = features.parameters(paper)
    assert {each.name for each in chosen} == {"n", "layout", "nb", "looking", "unroll", "math", "cache", "block"}
    assert next(each for each in chosen if each.name == "looking").kind == "right, left, top"
    numbers = features.encode(paper, chosen)
    place = [each.name for each in chosen].index("looking")
    top = paper["looking"].eq("top").to_numpy()
    assert set(numbers[top, place]) == {2}
    more = features.expand(numbers, chosen)[:, len(chosen) :]
    assert (more[:, 0] == np.ceil(paper["n"] / paper["nb"])).all()
    assert (more[:, 1] == paper["n"] % paper["nb"]).all()


def test_a_forest_finds_what_matters_and_is_the_same_again(paper: Any) -> None:
    grown = importance.grow(paper, 40)
    assert isinstance(grown, importance.Forest)
    assert (grown.trees, grown.points, grown.fitted) == (40, 700, 560)
    names = [line.parameter.name for line in grown.importances]
    assert names[0] == "n"
    assert names.index("nb") < names.index("cache")
    assert grown.points_held_out.r2 > 0.8
    assert 1 < grown.depth < 40
    assert grown.orders_held_out is not None
    assert len(grown.orders_held_out.observed) == 700
    assert grown.orders_held_out.r2 < grown.points_held_out.r2
    finding = next(each for each in study_2017.findings(paper, "fast", grown, None) if "table I" in each.topic)
    assert finding.verdict == "shown"
    assert [finding.here.index(f"{name} (") for name in names] == sorted(finding.here.index(f"{n} (") for n in names)
    again = importance.grow(paper, 40)
    assert isinstance(again, importance.Forest)
    # The order in which threads add up the trees' answers is not always the same.
    assert [line.increase for line in again.importances] == pytest.approx([l.increase for l in grown.importances])


def test_orders_are_held_out_as_a_whole(monkeypatch: pytest.MonkeyPatch, paper: Any) -> None:
    """A model that has learnt the answers by heart knows none of those that it is asked for."""
    from sklearn.base import BaseEstimator, RegressorMixin

    class ByHeart(RegressorMixin, BaseEstimator):  # type: ignore[misc]
        def fit(self, numbers: Any, gflops: Any) -> ByHeart:
            self.known_ = set(numbers[:, 0])
            return self

        def predict(self, numbers: Any) -> Any:
            return np.array([1.0 if n in self.known_ else -1.0 for n in numbers[:, 0]])

    chosen = features.parameters(paper)
    numbers, orders = features.encode(paper, chosen), paper["n"].to_numpy()
    found = importance._by_order(ByHeart(), numbers, paper["gflops"].to_numpy(), orders)
    assert found is not None
    assert set(found.predicted) == {-1.0}


def test_without_enough_points_there_is_no_forest(paper: Any) -> None:
    assert "takes 60 points" in str(importance.grow(paper.head(59), 3))
    same = paper.head(1).loc[[paper.index[0]] * 80]
    assert "0 parameters that differ" in str(importance.grow(same, 3))
    one_order = importance.grow(paper[paper["n"] == 24], 3)
    assert isinstance(one_order, importance.Forest)
    assert one_order.orders_held_out is None


def a_prediction(errors: dict[int, float]) -> Prediction:
    orders = np.repeat(list(errors), 3)
    observed = np.arange(1.0, len(orders) + 1)
    return Prediction(observed, observed + np.repeat(list(errors.values()), 3), orders)


def test_scores_and_the_reason_for_a_bad_one() -> None:
    exact = a_prediction(dict.fromkeys((2, 4, 8, 16, 32), 0.0))
    assert (exact.r2, exact.rmse, exact.median_error) == (1.0, 0.0, 0.0)
    edge = a_prediction({2: 0.0, 4: 0.0, 8: 0.0, 16: 0.0, 32: 9.0})
    assert edge.r2 == pytest.approx(1 - 3 * 81 / float(np.sum((np.arange(15) - 7.0) ** 2)))
    assert edge.rmse == pytest.approx(np.sqrt(81 / 5))
    assert next(iter(edge.shares().items())) == (32, 1.0)
    assert "n = 32 (100%)" in importance.why_not(edge)
    assert importance.why_not(edge).endswith("R² is 1.00: that is the reason.")
    inside = a_prediction({2: 0.0, 4: 0.0, 8: 9.0, 16: 0.0, 32: 0.0})
    assert "that is not the reason. An order that it has not seen" in importance.why_not(inside)
    told = importance.why_not(inside, Told(exact, ("registers", "occupancy")))
    assert "(registers, occupancy), reach R² = 1.00 at unseen orders: that is what" in told
    assert importance.why_not(inside, Told(inside, ("registers",))).endswith("that is not what it lacks.")
    better = a_prediction({2: 0.0, 4: 0.0, 8: 6.0, 16: 0.0, 32: 0.0})
    assert inside.r2 < better.r2 < 0.9
    assert importance.why_not(inside, Told(better, ("registers",))).endswith("that is a part of what it lacks.")


def test_what_the_compiler_says_is_told_where_the_parameters_do_not_suffice(paper: Any) -> None:
    """Speed is made to follow the registers, and these no order."""
    registers = paper["n"].map({4: 40, 8: 200, 16: 60, 24: 220, 32: 50}) + paper["nb"]
    rows = paper.assign(registers=registers, gflops=registers * 1.0)
    grown = importance.grow(rows, 10)
    assert isinstance(grown, importance.Forest)
    assert grown.orders_held_out is not None
    assert grown.compiled is not None
    assert grown.orders_held_out.r2 < 0.5 < grown.compiled.prediction.r2
    assert grown.compiled.names == ("registers",)
    told = importance.grow(rows.assign(registers=32, spill_bytes=0, code_bytes=1, occupancy=1.0), 3)
    assert isinstance(told, importance.Forest)
    assert told.compiled is None


def shared_rows(seconds: dict[tuple[int, int, int], float]) -> list[Row]:
    """Of the shared family at n = 40: a time for each nb, chunk and matrices of a block."""
    rows = []
    for (nb, chunk, matrices), time in seconds.items():
        spec = KernelSpec(
            Problem(40, "float32", math="fast"), "chunked", "col", SharedSchedule(nb, "top", matrices), "cuda"
        )
        point = Point(spec, BATCH, chunk, 1, "queued", False)
        rows.append(Row.timed(point, (time,), calls=1, ratio=0.1, about=synthetic_sweep.ABOUT))
    return rows


def test_the_rule_is_about_chunks_and_not_about_the_matrices_of_a_block(tmp_path: Path) -> None:
    """Blocks of 64 matrices are twice as fast, and exist for chunks of 64 alone, which are no better for it."""
    alone = {(4, chunk, 32): 4.0 + (chunk > 64) for chunk in (32, 64, 128)}
    correct = loaded(tmp_path, shared_rows(alone | {(4, 64, 64): 2.0})).correct
    assert course_rule.rule_shares(correct).loc[4].tolist() == [1.0, 1.0, pytest.approx(0.8)]
    found = course_rule.BLOCK_RULE.against(correct)
    assert found.verdict == "agrees"
    assert "over the best outside, +150.0% (n = 40)" in found.here
    assert "differ in their chunk alone it gains +25.0%." in found.here
    assert "a whole chunk gain, over blocks of fewer matrices, +100.0%." in found.here


def test_the_rule_holds_in_part_if_it_does_not_lead_to_the_best_tiles(tmp_path: Path) -> None:
    """Tiles of 8, for which no chunk is small enough, are the best."""
    times = {(4, 32, 32): 4.0, (4, 128, 32): 5.0, (8, 32, 16): 1.0, (8, 128, 16): 1.0}
    found = course_rule.BLOCK_RULE.against(loaded(tmp_path, shared_rows(times)).correct)
    assert found.verdict == "partly"
    assert "−75.0% (n = 40)" in found.here
    slower = {**times, (4, 32, 32): 6.0}
    assert course_rule.BLOCK_RULE.against(loaded(tmp_path, shared_rows(slower)).correct).verdict == "differs"


def test_speedups_are_over_peers_of_the_same_protocol_and_class(tmp_path: Path) -> None:
    rows = [
        compared("thread", 8, 2.0),
        compared("block", 8, 1.0),
        compared("block", 8, 0.1, math="fast"),
        compared("block", 8, 4.0, protocol="single"),
        compared("block", 8, 0.01, batch=1024),
        compared("torch", 8, 30.0),
        compared("torch", 8, 99.0, protocol="single"),
        compared("jax", 8, 80.0, protocol="single"),
        compared("torch", 8, 0.5, batch=1024),
    ]
    path = tmp_path / "compare.csv"
    write_csv(path, rows)
    found = speedups.read(path, "float32", 20_000)
    assert found.table.to_dict() == {"torch": {8: 30.0}, "jax": {8: 20.0}}
    assert found.absent == ("cublas", "cusolver", "cusolverdx", "cusolverdx_pdl", "magma")
    assert found.tables["fast"].to_dict() == {"torch": {8: pytest.approx(300.0)}}
    assert "batch 16,384" in found.note
    assert speedups.read(path, "float32", 512).table.to_dict() == {"torch": {8: 50.0}}
    with pytest.raises(DataFileError, match="no peer was measured with float64"):
        speedups.read(path, "float64", BATCH)
    with pytest.raises(DataFileError, match="no such file"):
        speedups.read(tmp_path / "other.csv", "float32", BATCH)
