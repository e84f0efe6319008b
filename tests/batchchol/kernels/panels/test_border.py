"""The last rows of factors, emulated, behind leading parts that NumPy factors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol.operations.residual import ratios
from kernelgen import SpecError
from kernelgen.emit.panels.border import Border, border

from ....emulation.programs import compile_program
from .test_panel import stored

Array = NDArray[Any]
Spd = Callable[..., Array]


def run(last: Border, a: Array, info: Array) -> Array:
    """What becomes of matrices whose leading parts are factors, with NaN where nothing was written."""
    batch, n, _ = a.shape
    m = n - last.rows
    made = np.full_like(a, np.nan)
    made[:, :m, :m] = np.linalg.cholesky(a[:, :m, :m].astype(np.float64))
    given, memory = stored(a + np.triu(np.full((n, n), np.nan, a.dtype), 1), last.order), stored(made, last.order)
    source = border(last)
    compile_program((source,)).launch(source, batch, given, memory, info, m, n, n * n)
    return stored(memory, last.order)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize(("rows", "n"), [(1, 2), (1, 97), (3, 128)])
def test_any_order(dtype: str, order: str, rows: int, n: int, spd: Spd) -> None:
    a, info = spd(2, n, dtype=dtype), np.array([0, 7], np.int32)
    l = run(Border(dtype, order, rows), a, info)
    assert info.tolist() == [0, 7]
    np.testing.assert_array_equal(l, np.tril(l))
    assert ratios(a, l).max() <= 1.5


@pytest.mark.parametrize("bad", [-1.0, np.nan])
def test_failing(bad: float, spd: Spd) -> None:
    """From the column that fails on an identity's; an info that is there stays."""
    a, info = spd(2, 70), np.array([0, 5], np.int32)
    a[:, 68, 68] = bad
    l = run(Border("float32", "row", 3), a, info)
    assert info.tolist() == [69, 5]
    np.testing.assert_array_equal(l[:, 68:, 68:], [np.eye(2, dtype=np.float32)] * 2)


def test_what_cannot_be_is_refused() -> None:
    for rows in (0, 9):
        with pytest.raises(SpecError, match=f"rows={rows} cannot be built: use 1 to 8"):
            Border("float32", "row", rows)
