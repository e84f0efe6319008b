"""`explain`: which kernel is used, why, and what the next best costs; of a user's own entries: test_tune_case.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from batchchol import cli
from batchchol.algorithms.plans import plan
from batchchol.defaults.lookup import default_layout
from batchchol.defaults.shipped import shipped_tables
from batchchol.defaults.tables import Case, Entry, Evidence, Placement, Table
from batchchol.tune.choosing import explain as explaining
from batchchol.tune.choosing.explain import differences
from kernelgen import TARGETS, BlockSchedule, Layout, Problem, ThreadSchedule
from tests.asked import choice_of, request_of

ASKED = request_of(32, batch=400_000, target="cuda", arch="sm_90")
CHUNKS, ROWS = Case("float32", "ieee", "chunked", 16), Case("float32", "ieee", "canonical", order="row")
SMALL, LARGE = Evidence(16_384, 4.0, ThreadSchedule(2), 5.0), Evidence(524_288, 3.0, BlockSchedule(8, 4), 3.03)
TABLE = Table(
    "sm_90",
    "cuda",
    {
        CHUNKS: (Entry(32, None, ThreadSchedule(4), evidence=(SMALL, LARGE)),),
        ROWS: (
            Entry(32, 16_384, ThreadSchedule(5), evidence=(Evidence(16_384, 8.0),)),
            Entry(
                32,
                524_288,
                ThreadSchedule(6),
                evidence=(Evidence(524_288, 6.0, ThreadSchedule(5).settled(TARGETS["cuda"], Problem(32)), 7.5),),
            ),
        ),
    },
    layouts=(Placement("float32", 32, None, Layout.chunked(16)),),
    arrays=(Placement("float32", 32, None, Layout.canonical("row")),),
    measured={"float32": "a GPU, yesterday"},
)


def explain(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert cli.main(["explain", *options]) == 0
    return capsys.readouterr().out


def test_kernels_are_explained_for_a_gpu_that_is_not_here(
    tables: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    tables(TABLE)
    said = explain(capsys, "--n", "32", "--batch", "300000", "--arch", "sm_90")
    first, arrays, batches = said.split("\n\n")
    assert first == "n=32, batch=300,000, float32, ieee, on any GPU of sm_90: tables of users do not count"
    at = {"batch": 300_000, "target": "cuda", "arch": "sm_90"}
    assert arrays.splitlines()[1:] == [
        "  because    table sm_90; arrays up to order 32",
        f"  kernel     {choice_of(32, **at, layout='canonical', order='row').spec.name}",
        "  because    table sm_90; float32, ieee, canonical in row order, up to order 32, near batch 524,288",
        "  measured   6 ns a matrix, 1,820 GFLOP/s (n=32, batch=524,288) on a GPU, yesterday",
        "  expected   1.8 ms for 300,000 matrices there",
        "  runner-up  7.5 ns (+25.0%): nb=5",
    ]
    *lines, runner_up = batches.splitlines()[1:]
    assert lines == [
        "  because    table sm_90; layouts up to order 32",
        f"  kernel     {choice_of(32, **at, chunk=16).spec.name}",
        "  because    table sm_90; float32, ieee, chunks of 16, up to order 32",
        "  measured   3 ns a matrix, 3,641 GFLOP/s (n=32, batch=524,288) on a GPU, yesterday",
        "  expected   900 \N{MICRO SIGN}s for 300,000 matrices there",
    ]
    assert runner_up.startswith("  runner-up  3.03 ns (+1.0%): family block, nb=8, ")


def test_the_shipped_table_says_what_its_kernels_took(capsys: pytest.CaptureFixture[str]) -> None:
    said = explain(capsys, "--n", "32", "--batch", "300000", "--arch", "sm_90")
    assert said.count("\n  measured ") == said.count(f" on {shipped_tables()['sm_90'].measured['float32']}\n") == 2


def test_what_is_served_by_something_else_says_so(
    tables: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    tables(TABLE)
    said = explain(capsys, "--n", "31", "--batch", "3000", "--arch", "sm_100", "--layout", "interleaved")
    assert "factor(batch): interleaved\n  because    it was asked for" in said
    assert (
        "table sm_90, the nearest to sm_100 of those that were measured: predicted; float32, ieee, chunks of 16, up"
        in said
    )
    assert "(n=32, batch=16,384; chunked) on a GPU" in said
    assert "expected" not in said, "for that layout nobody knows"
    double = explain(capsys, "--n", "32", "--batch", "16384", "--arch", "sm_90", "--dtype", "float64")
    assert "(n=32, batch=16,384; float32) on" in double
    assert "expected" not in double


def test_what_was_not_measured_says_how_to(tables: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    cases = TABLE.cases.items()
    tables(replace(TABLE, cases={c: tuple(replace(e, evidence=()) for e in entries) for c, entries in cases}))
    said = explain(capsys, "--n", "32", "--batch", "300000", "--arch", "sm_90", "--layout", "chunked")
    assert "measured   not known: `python -m batchchol tune` with these --n and --batch measures it here" in said


def test_on_a_cpu_arrays_stay_and_chunks_are_registers(capsys: pytest.CaptureFixture[str]) -> None:
    said = explain(capsys, "--n", "8", "--batch", "1000", "--backend", "cpu")
    assert "cholesky(a), a of shape (1000, 8, 8): as they are, in row order\n  because    kernels of a CPU" in said
    assert "chunks of as many matrices as a register holds" in said


def test_the_layouts_of_a_kind_are_the_usual_ones() -> None:
    kinds = ("canonical", "interleaved", "chunked")
    found = [explaining.usual_layout(ASKED, kind) for kind in kinds]
    usual = default_layout(32, target="cuda", arch="sm_90")
    assert found == [Layout.canonical("row"), Layout.interleaved(), usual]


def test_schedules_differ_in_words() -> None:
    assert differences(ThreadSchedule(4), ThreadSchedule(8, stride=32)) == "nb=8, stride=32"
    assert differences(ThreadSchedule(4), BlockSchedule(8, 4)).startswith("family block, nb=8, ")
    assert differences(ThreadSchedule(4, stride=32), ThreadSchedule(4)) == "stride=None"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--n", "8", "--batch", "10", "--backend", "tpu"], "backend='tpu' is unknown: use one of 'cpu', 'cuda'"),
    ],
)
def test_what_cannot_be_explained_is_said(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", *options]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch", "10", "--arch", "gfx90"], "--arch: got 'gfx90', expected the name of a GPU architecture"),
        (["--batch", "2TiB"], "--batch: got '2TiB', expected matrices or an amount of memory such as 2GiB"),
    ],
)
def test_misspelt_options(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["explain", "--n", "8", *options])
    assert message in capsys.readouterr().err


def test_a_batch_may_be_an_amount_of_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert "n=32, batch=524,288, " in explain(capsys, "--n", "32", "--batch", "2GiB", "--arch", "sm_90")


@pytest.mark.parametrize(
    ("ns", "words"),
    [
        (2.95, "2.95 ns (-1.7%; faster, but within the 3% for which the table keeps one kernel): "),
        (2.5, "2.5 ns (-16.7%): "),
        (3.0, "3 ns (+0.0%): "),
    ],
)
def test_a_runner_up_that_is_faster_says_why_it_is_none(
    ns: float, words: str, tables: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """What is faster by more than the margin was measured after the table was made: there is no reason to give."""
    entry = Entry(32, None, ThreadSchedule(4), evidence=(replace(LARGE, runner_up_ns=ns),))
    tables(replace(TABLE, cases={CHUNKS: (entry,)}))
    said = explain(capsys, "--n", "32", "--batch", "300000", "--arch", "sm_90", "--layout", "chunked")
    assert f"  runner-up  {words}" in said


def test_a_math_may_have_layouts_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    said = explain(capsys, "--n", "66", "--batch", "40000", "--arch", "sm_90", "--math", "fast")
    *_, batches, own = said.split("\n\n")
    assert "chunks of 16" in batches
    assert own.startswith("factor(batch), of one in default_layout(n, batch=..., math='fast'): in chunks of 8")
    assert "_block_" in own
    assert (
        len(explain(capsys, "--n", "128", "--batch", "40000", "--arch", "sm_90", "--math", "fast").split("\n\n")) == 3
    )


def test_larger_orders_are_explained_by_their_plan(capsys: pytest.CaptureFixture[str]) -> None:
    said = explain(capsys, "--n", "2000", "--batch", "1", "--arch", "sm_90", "--dtype", "float64")
    assert f"way        {plan(2000, 1, 'float64', upper=False).name}\n" in said
    assert "because    it was the fastest of those measured at n=2048, batch=1 on NVIDIA H200, 2026-11-24\n" in said
    assert "runner-up  " in said
    said = explain(capsys, "--n", "300", "--batch", "7", "--backend", "cpu")
    assert "a of shape (7, 300, 300)\n  way        LAPACK" in said
    assert cli.main(["explain", "--n", "300", "--batch", "1", "--arch", "sm_90", "--layout", "chunked"]) == 2
    assert "--layout: got 'chunked', expected 'canonical' above n = 128" in capsys.readouterr().err


@pytest.mark.parametrize("op", ["gesv", "geqrf", "potrs"])
def test_another_operation_is_explained_on_arrays_and_on_batches(op: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "--n", "40", "--batch", "9000", "--op", op, "--arch", "sm_90"]) == 0
    said = capsys.readouterr().out
    assert f"{op} of arrays: as they are" in said
    assert f"{op} of a batch: in chunks of" in said
    assert said.count(f"  kernel     {op}_f32_n40") == 2


def test_an_operation_that_can_be_tuned_says_how_to(capsys: pytest.CaptureFixture[str]) -> None:
    tune = "measured   not known: `python -m batchchol tune` with these --op, --n and --batch measures it here"
    assert tune in explain(capsys, "--n", "5", "--batch", "9000", "--op", "gesv", "--backend", "cpu")
    said = explain(capsys, "--n", "5", "--batch", "9000", "--op", "potri", "--backend", "cpu")
    assert "measured   not known\n" in said


def test_of_larger_matrices_one_operation_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "--n", "400", "--batch", "2", "--op", "gesv", "--arch", "sm_90"]) != 0
    assert "--op: got 'gesv', expected 'potrf' above n = 128" in capsys.readouterr().err
