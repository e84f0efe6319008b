"""Tuning larger matrices: into the user's table, what calls and `explain` make of it, and reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchchol import BatchcholError, cli
from batchchol.algorithms.plan_tables import chosen
from batchchol.algorithms.plans import Plan, plan, plan_of, values_of, ways
from batchchol.algorithms.shipped_plans import PATH, Entry, PlanTable, parse, shipped
from batchchol.backends.cuda.device import device
from batchchol.cli.laboratory.tune import larger as command
from batchchol.defaults import lookup, user
from batchchol.measure import plan_rows
from batchchol.measure.plan_rows import PlanRow
from batchchol.measure.timing import Sample
from batchchol.tune.larger import Wanted, sources, table_of, tune_larger
from kernelgen.emit.panels.fused_panel import FusedPanel

N, BATCH = 300, 8
FAST = Plan(FusedPanel("float32", "row", 64, ib=8, lb=16, threads=256, resident=2, update="tensor"), None)


@pytest.fixture(autouse=True)
def own_tables(tmp_path: Path, fake_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whose tables count, on a GPU whose times are made up; nothing is compiled."""
    monkeypatch.setenv("BATCHCHOL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(user.VARIABLE, "user")
    monkeypatch.setattr(command, "PlanBench", FakeBench)
    monkeypatch.setattr(command, "build_all", lambda *_, **__: [])
    monkeypatch.setattr(command, "get_backend", lambda _: None)
    monkeypatch.setattr(command, "about", lambda _: {"gpu": "Fake GPU", "driver": "580", "commit": "abc"})
    lookup.forget()


class FakeBench:
    """`FAST` takes a third of all others; those with 128 threads fail."""

    protocol = "queued"

    def __init__(self, n: int, batch: int, dtype: str) -> None:
        assert (batch, dtype) == (BATCH, "float32")

    def sample(self, how: Plan, samples: int) -> Sample:
        if getattr(how.panel, "threads", None) == 128 and how != plan(N, BATCH, "float32", upper=False):
            raise BatchcholError("no room")
        return Sample((1e-3 if how == FAST else 3e-3,) * samples, 0.2)


def test_from_the_command_line_to_the_next_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["tune", "--backend", "cuda", "--n", str(N), "--batch", str(BATCH), "--seconds", "60"]
    out = tmp_path / "plans.csv"
    assert cli.main([*asked, "--out", str(out)]) == 0
    assert "the next call uses it" in (said := capsys.readouterr().out)
    assert "used now" in said
    found = chosen(device(), N, BATCH, "float32", upper=True)
    assert found.plan == replace(FAST, panel=replace(FAST.panel, order="col"))
    assert chosen(device(), N - 20, BATCH + 3, "float32", upper=False).plan == FAST
    for n, batch, dtype in (
        (N + 1, BATCH, "float32"),
        (200, BATCH, "float32"),
        (N, 1, "float32"),
        (N, BATCH, "float64"),
    ):
        assert chosen(device(), n, batch, dtype, upper=False) == (plan(n, batch, dtype, upper=False), None)

    assert cli.main(["explain", "--backend", "cuda", "--n", str(N), "--batch", str(BATCH)]) == 0
    said = capsys.readouterr().out
    assert FAST.name in said
    assert f"tuned at n={N}, batch={BATCH}" in said
    assert "took 375 \N{MICRO SIGN}s" in said
    assert "expected   1 ms for 8 matrices" in said
    assert "runner-up  375 \N{MICRO SIGN}s (+200.0%): kind=" in said

    # Once more: what is used now stays, as the user's own.
    assert cli.main(asked) == 0
    assert chosen(device(), N, BATCH, "float32", upper=False).plan == FAST
    rows = plan_rows.read(out)
    assert len(rows) == len(dict.fromkeys((plan(N, BATCH, "float32", False), *ways(N, BATCH, "float32"))))
    assert {row.message for row in rows} == {"", "no room"}
    assert cli.main(["report", str(out), "--plot", str(tmp_path / "plot")]) == 0
    said = capsys.readouterr().out
    assert f"| {N} | {BATCH} | float32 | 72 | 0.20 | +200.0% | kind=fused, nb=64, ib=8, lb=16, threads=256" in said
    assert "ib           8 100% (1), 16 33% (1)" in said
    assert (tmp_path / "plot.svg").exists()


def test_the_table_that_ships_is_made_of_files(tmp_path: Path) -> None:
    """The nearest order serves, and the nearest batch; a wrong result does not count."""
    slow, wrong = plan(N, BATCH, "float32", upper=False), FusedPanel("float32", "row", 128, update="tensor")
    files = tmp_path / "one.csv", tmp_path / "two.csv"
    for file, n, batch in zip(files, (N, 2 * N), (1, BATCH), strict=True):
        plans = {FAST: (1e-3, 0.2), slow: (3e-3, 0.2), Plan(wrong, None): (1e-4, 2.0)}
        rows = [
            PlanRow("float32", n, batch, values_of(how), seconds, 0.1, 3, ratio, "single", about={"gpu": "Fake GPU"})
            for how, (seconds, ratio) in plans.items()
        ]
        plan_rows.append(file, [*rows, replace(rows[0], batch=64), PlanRow("float32", n, batch, {}, message="no")])
    table = tmp_path / "plans.json"
    assert cli.main(["tune", "--from", *map(str, files), "--table", str(table)]) == 0
    made = parse(table.read_text())
    assert made.about["gpu"] == "Fake GPU"
    assert [(each.n, each.batch) for each in made.entries] == [(N, 1), (N, 64), (2 * N, BATCH), (2 * N, 64)]
    entry = made.entry(N - 1, 3, "float32")
    assert (entry.n, entry.batch, plan_of(entry.plan, "float32", "row")) == (N, 1, FAST)
    assert (entry.ns, entry.runner_up, entry.runner_up_ns) == (1e6, values_of(slow), 3e6)
    assert [made.entry(n, 40, "float32").n for n in (N // 2, N + 1, 2 * N - 1, 9 * N)] == [N, N, 2 * N, 2 * N]


def test_orders_without_a_batch_near_do_not_count() -> None:
    """Unless there are no others."""
    entries = [Entry("float32", n, batch, {}, 1.0) for n, batch in ((320, 8), (320, 64), (449, 1024))]
    table = PlanTable(tuple(entries))
    assert [table.entry(449, batch, "float32").n for batch in (1, 127, 128, 9000)] == [320, 320, 449, 449]
    assert [table.entry(449, batch, "float32").batch for batch in (9, 64, 513)] == [8, 64, 1024]


def test_the_table_that_ships_is_that_of_its_data() -> None:
    data = Path(__file__).parents[3] / "datasets" / "larger" / "larger_plans_h200.csv"
    assert plan_rows.is_of_plans(data)
    assert table_of(plan_rows.correct(plan_rows.read(data))).text() == PATH.read_text()
    for each in shipped().entries:
        assert plan_of(each.plan, each.dtype, "row").panel.dtype == each.dtype


def test_evidence_leaves_the_shipped_plan(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeBench, "sample", lambda self, how, samples: Sample((1e-3,) * samples, 0.2))
    asked = ["--backend", "cuda", "--n", str(N), "--batch", str(BATCH)]
    assert cli.main(["tune", *asked]) == 0
    assert cli.main(["explain", *asked]) == 0
    assert "it comes with the library; tuned at n=300, batch=8" in capsys.readouterr().out
    assert chosen(device(), N, BATCH, "float32", upper=False).plan == plan(N, BATCH, "float32", upper=False)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--n", "128,129"], "--n: got orders to 128 and larger ones"),
        (["--n", "300", "--family", "warp"], "--family: got it for orders above 128"),
        (["--n", "300", "--backend", "cpu"], "--backend: got 'cpu', expected 'cuda' for orders above 128"),
    ],
)
def test_refusals(more: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", "--backend", "cuda", *more]) != 0
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "spoil", [lambda plan: plan.pop("ib"), lambda plan: plan.update(nb=33), lambda plan: plan.update(kind="other")]
)
def test_a_plan_that_makes_no_sense_is_not_used(spoil: Callable[[dict[str, Any]], Any]) -> None:
    wanted = Wanted(N, BATCH, "float32", chosen(device(), N, BATCH, "float32", upper=False))
    plans = [wanted.current.plan, FAST]
    entry, _ = tune_larger(FakeBench(N, BATCH, "float32").sample, wanted, plans, {}, seconds=9)
    path = lookup.learn(device().model, "cuda", device().architecture, (), plans=[entry])
    content = json.loads(path.read_text())
    spoil(content["plans"][0]["plan"])
    path.write_text(json.dumps(content))
    lookup.forget()
    with pytest.warns(user.TableWarning, match="the plan of n=300 is not used: .* tune again"):
        assert chosen(device(), N, BATCH, "float32", upper=False).plan == plan(N, BATCH, "float32", upper=False)
    # A table of a version that knew no plans is one all the same.
    del content["plans"]
    path.write_text(json.dumps(content))
    lookup.forget()
    assert chosen(device(), N, BATCH, "float32", upper=False).entry is None


def test_plans_are_their_choices() -> None:
    for n, batch in ((150, 8), (300, 8), (1000, 1), (5000, 1)):
        for how in ways(n, batch, "float64"):
            assert plan_of(values_of(how), "float64", "row") == how
    assert len(sources(ways(1000, 1, "float64"), 1000)) > 40
    assert any("whole" in source.entry for source in sources(ways(150, 8, "float64"), 150))
