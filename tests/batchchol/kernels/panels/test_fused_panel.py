"""Panels in one launch, emulated: blocks of threads that take tasks in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol.operations.residual import ratios
from kernelgen import SpecError
from kernelgen.emit.panels.fused_panel import FusedPanel, fused_panel

from ....emulation.programs import compile_program
from .test_panel import stored

Array = NDArray[Any]
Spd = Callable[..., Array]

# Those with `leading` are for rows that begin anywhere: it becomes that of the matrices.
PANELS = [
    FusedPanel("float32", "row", 32, ib=16, lb=8, threads=64),
    FusedPanel("float32", "col", 32, ib=8, lb=16, threads=128),
    FusedPanel("float64", "row", 32, ib=32, lb=16, threads=64),
    FusedPanel("float32", "row", 48, ib=16, lb=16, threads=96, update="tensor"),
    FusedPanel("float64", "col", 32, ib=16, lb=8, threads=64, update="tensor"),
    FusedPanel("float64", "row", 32, ib=16, lb=16, threads=64, update="tensor", depth=16),
    FusedPanel("float32", "row", 32, ib=8, lb=8, threads=64, update="tensor", leading=1),
    FusedPanel("float64", "row", 48, ib=8, lb=16, threads=96, update="tensor", depth=8, leading=1),
    FusedPanel("float32", "row", 32, ib=16, lb=8, threads=128, leading=1),
]
NAMES = [f"{panel.dtype} {panel.order} {panel.update} {panel.depth}{' ragged' * panel.ragged}" for panel in PANELS]


def run(panel: FusedPanel, a: Array, *, columns: int | None = None, blocks: int = 3) -> tuple[Array, Array]:
    """What becomes of matrices, with NaN where there was nothing, and the info."""
    batch, n, _ = a.shape
    memory, made, info = stored(a, panel.order), np.full_like(a, np.nan), np.full(batch, -1, np.int32)
    if panel.leading:
        panel = replace(panel, leading=n, exact=n % panel.nb == 0)
    tiles = panel.tiles(n)
    # Behind an even number of counts, nine 64-bit times of each tile of a lower triangle.
    times = 1 + 9 * tiles * (tiles + 1) if panel.timed else 0
    work = np.zeros(batch * panel.counts(n) + times, np.int32)
    source = fused_panel(panel)
    sizes = n, columns or n, n, n * n, 0, tiles, blocks, 1
    compile_program((source,)).launch(source, batch * blocks, memory, made, info, work, *sizes)
    assert panel.timed or not work.any(), "the next launch counts there too"
    return stored(made, panel.order), info


@pytest.mark.parametrize("panel", PANELS, ids=NAMES)
@pytest.mark.parametrize("n", [1, 32, 45, 132])
def test_any_order(panel: FusedPanel, n: int, spd: Spd) -> None:
    """The upper triangle is not read, and becomes zeros."""
    a = spd(2, n, dtype=panel.dtype)
    l, info = run(panel, a + np.triu(np.full((n, n), np.nan, panel.dtype), 1))
    assert not info.any()
    np.testing.assert_array_equal(l, np.tril(l))
    assert ratios(a, l).max() <= 1.5


@pytest.mark.parametrize("panel", PANELS[:2], ids=lambda panel: panel.order)
def test_first_columns(panel: FusedPanel, spd: Spd) -> None:
    a = spd(1, 100, dtype=panel.dtype)
    l, info = run(panel, a, columns=64)
    assert not info.any()
    np.testing.assert_allclose(l[:, :, :64], np.linalg.cholesky(a.astype(np.float64))[:, :, :64], atol=2e-3)
    assert np.isnan(l[:, 64:, 64:]).all()
    assert not l[:, :64, 64:].any()


@pytest.mark.parametrize("panel", PANELS, ids=NAMES)
def test_failing(panel: FusedPanel, spd: Spd) -> None:
    n, minors = 75, [1, 9, 32, 33, 70, 75]
    a = spd(len(minors) + 1, n, dtype=panel.dtype)
    good = np.linalg.cholesky(a.astype(np.float64))
    for member, k in enumerate(minors):
        a[member, k - 1, k - 1] = (-1.0, 0.0, np.nan)[member % 3]
    l, info = run(panel, a, blocks=1)
    assert info.tolist() == [*minors, 0]
    for member, k in enumerate([*minors, n + 1]):
        np.testing.assert_allclose(l[member, :, : k - 1], good[member, :, : k - 1], rtol=1e-4, atol=1e-4)


def test_times_change_nothing(spd: Spd) -> None:
    a = spd(1, 100)
    for found, expected in zip(run(replace(PANELS[3], timed=True), a), run(PANELS[3], a), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_rows_that_begin_anywhere_are_moved_by_elements(spd: Spd) -> None:
    """As orders say; the factors are the same."""
    for dtype, ragged in (("float32", [False, True, True, True]), ("float64", [False, True, False, True])):
        panel = FusedPanel(dtype, "row", 32, lb=8, threads=64, update="tensor")
        assert [panel.at(n).ragged for n in range(256, 260)] == ragged
        assert not replace(panel, order="col").at(257).ragged
        assert [panel.at(257, rows).exact for rows in (256, 257)] == [True, False]
    for n in (97, 96):
        a = spd(1, n)
        for found, expected in zip(run(PANELS[6], a), run(replace(PANELS[6], leading=0), a), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(SpecError, match="leading=33: expected 0 for matrices in columns"):
        replace(PANELS[1], leading=33)
    for wrong in ({"ib": 12}, {"nb": 40}, {"lb": 4}, {"threads": 80}, {"dtype": "float16"}, {"order": "C"}):
        with pytest.raises(SpecError, match=f"{next(iter(wrong))}="):
            replace(PANELS[0], **wrong)
    for threads in (512, 96):
        with pytest.raises(SpecError, match=f"threads={threads}: tiles of order 32"):
            replace(PANELS[0], threads=threads)
    with pytest.raises(SpecError, match="threads=96: tiles of order 64 in steps of 8 columns cannot"):
        FusedPanel("float32", "row", 64, lb=8, threads=96, update="tensor")
    with pytest.raises(SpecError, match="nb=128: two float64 tiles of that order"):
        FusedPanel("float64", "row", 128)
