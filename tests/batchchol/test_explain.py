"""`explain`: which kernel is used, why, and what the next best costs; of a user's own entries: test_tune_case.py."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from batchchol import cli, defaults, explaining
from batchchol.defaults import array_layout, default_choice, default_layout, shipped_tables
from batchchol.explaining import Asked, differences
from kernelgen import BlockSchedule, Layout, ThreadSchedule

ASKED = Asked(32, 400_000, "float32", "ieee", "cuda", "sm_90")


def explain(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert cli.main(["explain", *options]) == 0
    return capsys.readouterr().out


def test_kernels_are_explained_for_a_gpu_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    said = explain(capsys, "--n", "32", "--batch", "300000", "--arch", "sm_90")
    assert said.startswith("n=32, batch=300,000, float32, ieee, on any GPU of sm_90: tables of users do not count\n")
    at = {"target": "cuda", "arch": "sm_90"}
    layouts = [array_layout(32, 300_000, **at), default_layout(32, **at)]
    assert said.count("\n  kernel ") == said.count("\n  runner-up ") == 2
    for layout, part in zip(layouts, said.split("\n\n")[1:], strict=True):
        where = {"layout": layout.kind, "chunk": layout.chunk, "order": layout.order}
        choice = default_choice(32, batch=300_000, **at, **where)
        (found,) = (each for each in choice.evidence if each.batch == choice.batch)
        assert found.runner_up_ns is not None
        assert f"  kernel     {choice.spec.name}\n  because    table sm_90; {choice.case}, up to order 32" in part
        assert f"  measured   {found.ns:.4g} ns a matrix" in part
        assert f"batch={choice.batch:,}) on NVIDIA H200, CUDA 13.0.88, 2026-11-21 to 2026-11-22\n" in part
        change = found.runner_up_ns / found.ns - 1
        assert f"  runner-up  {found.runner_up_ns:.4g} ns ({change:+.1%}): " in part
        microseconds = float(re.search(r"expected   (\S+) µs for 300,000 matrices there", part)[1])  # type: ignore[index]
        assert microseconds == pytest.approx(found.ns * 300, rel=1e-2)


def test_what_is_served_by_something_else_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    said = explain(capsys, "--n", "31", "--batch", "3000", "--arch", "sm_100", "--layout", "interleaved")
    assert "factor(batch): interleaved\n  because    it was asked for" in said
    assert "table sm_90, the nearest to sm_100 of those that were measured; float32, ieee, chunked" in said
    assert re.search(r"\(n=\d+, batch=[\d,]+; chunked", said)
    assert "expected" not in said, "for that layout nobody knows"
    double = explain(capsys, "--n", "64", "--batch", "16384", "--arch", "sm_90", "--dtype", "float64")
    assert re.search(r"measured .*; (chunked, )?float32", double)


def test_what_was_not_measured_says_how_to(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = {
        name: replace(table, cases={c: tuple(replace(e, evidence=()) for e in es) for c, es in table.cases.items()})
        for name, table in shipped_tables().items()
    }
    monkeypatch.setattr(defaults, "shipped_tables", lambda: bare)
    try:
        defaults._source.cache_clear()
        defaults.forget()
        said = explain(capsys, "--n", "32", "--batch", "300000", "--arch", "sm_90", "--layout", "chunked")
    finally:
        monkeypatch.undo()
        defaults._source.cache_clear()
        defaults.forget()
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
        (["--n", "129", "--batch", "10"], "n=129 cannot be built: use an integer from 1 to 128"),
        (["--n", "8", "--batch", "10", "--arch", "gfx90"], "arch='gfx90' cannot be built: use the name of a GPU"),
        (["--n", "8", "--batch", "10", "--backend", "tpu"], "backend='tpu' is unknown: use one of 'cpu', 'cuda'"),
    ],
)
def test_what_cannot_be_explained_is_said(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", *options]) == 2
    assert message in capsys.readouterr().err
