"""Which plan larger matrices are factored by where nothing else is asked for."""

from __future__ import annotations

import pytest

from batchchol.algorithms.blocked import Blocking
from batchchol.algorithms.on_chip import OnChip
from batchchol.algorithms.plans import Plan, plan, plan_of, tiled, values_of
from kernelgen import MAX_N, MAX_ON_CHIP
from kernelgen.emit.panels.fused_panel import FusedPanel
from kernelgen.emit.panels.panel import Panel, largest_tile


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_plans(dtype: str) -> None:
    """On chip as far as they fit, then one launch, but for float64 matrices that are large, or very many.

    Many that have a row more than whole tiles have a border.
    """
    most = {"float32": 232, "float64": MAX_ON_CHIP["float64"]}[dtype]
    for n in (MAX_N + 1, most):
        found = plan(n, 5, dtype, True)
        assert isinstance(found.panel, OnChip)
        assert (found.panel.order, found.blocking) == ("col", None)
        assert found.panel.spec(n).problem.uplo == "upper"
    for n in (most + 1, 257, 512, 1024, 3000):
        for batch in (1, 9, 1000):
            found = plan(n, batch, dtype, True)
            if dtype == "float64" and (n, batch) == (1024, 1000):
                assert isinstance(found.panel, Panel)
                assert found.blocking == Blocking(64, 256)
                continue
            assert isinstance(found.panel, FusedPanel)
            assert found.border_rows(n) == ((n, batch) == (257, 1000))
            assert (found.panel.order, found.blocking) == ("col", None)
    for n in range(MAX_N + 1, 1025):
        for batch in (1, 64, 1024):
            found = plan(n, batch, dtype, False)
            assert not isinstance(found.panel, OnChip) or found.panel.spec(n).problem.n == n
    large = plan(16_384, 1, dtype, False)
    cut = None if dtype == "float32" else Blocking(512, 2048, "left", fused=True)
    assert (large.blocking, large.blocks) == (cut, None)
    # One after the other is as one alone.
    assert plan(3000, 9, dtype, False) == plan(3000, 1, dtype, False)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_plans_of_tiles(dtype: str) -> None:
    """Tiles of one size of many to order 1,024, and panels of several for larger ones."""
    for n in range(largest_tile(dtype) + 1, 1025):
        panel, cut = tiled(n, 5, dtype)
        assert cut is not None
        assert cut.tile == panel.nb <= 64
    cuts = [tiled(n, batch, dtype)[1] for n, batch in ((257, 9), (512, 9), (512, 1), (8192, 9))]
    assert cuts == [Blocking(64, 128), Blocking(64, 256), Blocking(128, 128), Blocking(128, 256, ahead=True)]


def test_borders() -> None:
    """A few rows behind whole tiles, of orders to 1,024 and a few more."""
    panel = FusedPanel("float32", "row", 64)
    how = Plan(panel, None, border=True)
    assert [how.border_rows(n) for n in (1, 64, 65, 136, 137, 191, 1024, 1032, 1089)] == [0, 0, 1, 8, 0, 0, 0, 8, 0]
    assert plan_of(values_of(how), "float32", "row") == how
    assert how.name.endswith(", a border of the last rows")
    for without in (Plan(panel, None), Plan(Panel("float32", "row", 64), None, border=True)):
        assert not without.border_rows(65)
