"""The kernels of a panel, emulated: diagonal tiles anywhere in matrices, rows below them, copies of triangles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernelgen import SpecError
from kernelgen.emit.panels.panel import Panel, largest_tile, potf2, triangle, trsm

from ....emulation.programs import compile_program

Array = NDArray[Any]
Spd = Callable[..., Array]

ORDERS = ("row", "col")
# Small ones, so that several of what is factored and solved for at a time are in a tile.
PANELS = [Panel("float32", order, 24, ib=8, rows=8, threads=64, row_threads=64) for order in ORDERS]
PANELS.append(Panel("float64", "row", 32, ib=16, rows=4, threads=64, row_threads=64))
TOLERANCE = {"float32": 2e-5, "float64": 1e-13}


def kernels(panel: Panel) -> Any:
    return compile_program((potf2(panel), trsm(panel), triangle(panel.dtype, panel.order)))


def stored(a: Array, order: str) -> Array:
    """Matrices as they lie in memory, which is in rows: itself or its transpose."""
    return a if order == "row" else np.ascontiguousarray(a.swapaxes(-1, -2))


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: f"{panel.dtype} {panel.order}")
@pytest.mark.parametrize("n", [1, 13, 24])
def test_tile_of_larger_matrices(panel: Panel, n: int, spd: Spd) -> None:
    """Its factors, with zeros above, and nothing else is touched; the upper triangle is not read."""
    leading, batch, at = 40, 3, 5
    a = spd(batch, leading, dtype=panel.dtype)
    tile = np.s_[:, at : at + n, at : at + n]
    expected = a.copy()
    expected[tile] = np.linalg.cholesky(a[tile].astype(np.float64))
    given = a.copy()
    given[:, at : at + n, at : at + n] += np.triu(np.full((n, n), np.nan, panel.dtype), 1)
    memory, info = stored(given, panel.order), np.full(batch, -1, np.int32)
    offset = at * (leading + 1)
    flat = memory.reshape(-1)[offset:]
    kernels(panel).launch(potf2(panel), batch, flat, flat, info, n, leading, leading**2, 0)
    np.testing.assert_allclose(stored(memory, panel.order), expected, rtol=0, atol=TOLERANCE[panel.dtype] * leading)
    assert not info.any()


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: f"{panel.dtype} {panel.order}")
@pytest.mark.parametrize("bad", [0.0, -np.inf, np.nan])
def test_tile_that_fails(panel: Panel, bad: float, spd: Spd) -> None:
    """Columns before are whole, the others are an identity's; the first info of a matrix stays."""
    n, first = 23, 100
    failing = [0, 3, 8, 17, n - 1]
    a = spd(len(failing) + 2, n, dtype=panel.dtype)
    good = np.linalg.cholesky(a.astype(np.float64))
    for member, column in enumerate(failing):
        a[member, column, column] = bad
    a[-1, 0, 0], info = -1, np.zeros(len(a), np.int32)
    info[-1] = 7
    memory = stored(a, panel.order)
    kernels(panel).launch(potf2(panel), len(a), memory, memory, info, n, n, n * n, first)
    assert info.tolist() == [*(first + column + 1 for column in failing), 0, 7]
    for member, column in enumerate(failing):
        l = stored(memory, panel.order)[member]
        np.testing.assert_allclose(l[:, :column], good[member, :, :column], atol=TOLERANCE[panel.dtype] * n)
        np.testing.assert_array_equal(l[:, column:], np.eye(n)[:, column:])


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: f"{panel.dtype} {panel.order}")
@pytest.mark.parametrize(("n", "count"), [(5, 1), (24, 13)])
def test_rows_below_a_tile(panel: Panel, n: int, count: int, spd: Spd) -> None:
    leading, batch = 40, 2
    rng = np.random.default_rng(count)
    a = rng.random((batch, leading, leading)).astype(panel.dtype)
    l = np.linalg.cholesky(spd(batch, n, dtype=np.float64))
    a[:, :n, :n] = l
    a[:, :n, :n] += np.triu(np.full((n, n), np.nan, panel.dtype), 1)
    expected = a.copy()
    below = np.s_[:, n : n + count, :n]
    expected[below] = np.linalg.solve(l, a[below].swapaxes(-1, -2)).swapaxes(-1, -2)
    memory = stored(a, panel.order)
    flat = memory.reshape(-1)
    pieces = -(-count // panel.rows)
    rows = flat[n * leading :] if panel.order == "row" else flat[n:]
    kernels(panel).launch(trsm(panel), batch * pieces, flat, rows, n, count, leading, leading**2, pieces)
    np.testing.assert_allclose(stored(memory, panel.order), expected, atol=TOLERANCE[panel.dtype])


@pytest.mark.parametrize("panel", PANELS[:2], ids=lambda panel: panel.order)
def test_triangles(panel: Panel) -> None:
    n, batch = 37, 2
    a = np.random.default_rng(0).random((batch, n, n)).astype(np.float32)
    memory, copy = stored(a, panel.order), np.full_like(a, 9)
    source = triangle(panel.dtype, panel.order)
    program = kernels(panel)
    program.launch(source, batch * n, memory, copy, n)
    program.launch(source, batch * n, memory, memory, n)
    for made in (memory, copy):
        np.testing.assert_array_equal(stored(made, panel.order), np.tril(a))


def test_what_cannot_be_is_refused() -> None:
    for wrong in (
        {"ib": 12},
        {"nb": 40},
        {"nb": 0},
        {"rows": 6},
        {"threads": 48},
        {"dtype": "float16"},
        {"order": "C"},
    ):
        with pytest.raises(SpecError, match=f"{next(iter(wrong))}="):
            replace(Panel("float32", "row", 32), **wrong)
    with pytest.raises(SpecError, match=r"nb=176: a float64 tile of that order takes .* use at most nb=160"):
        Panel("float64", "row", 176)
    with pytest.raises(SpecError, match="rows=64: beside a float64 tile of order 160"):
        trsm(Panel("float64", "row", 160, rows=64))
    assert (largest_tile("float32"), largest_tile("float64")) == (224, 160)
