"""Inversions in a comparison, by matrices and by factors: everyone's result is checked, and the file read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchchol.backends import get_backend
from batchchol.compare import comparison
from batchchol.compare.inversions import DeterminantArena, FactorInverseArena, InverseArena
from batchchol.compare.peers import PEERS
from batchchol.compare.rows import read_rows
from batchchol.errors import ResidualError

from .test_cpu import small_machine

__all__ = ["small_machine"]

N, BATCH = 5, 40


@pytest.mark.parametrize(
    ("op", "names"), [("poinv", ("numpy", "scipy")), ("potri", ("scipy",)), ("logdet", ("numpy",))]
)
@pytest.mark.usefixtures("small_machine")
def test_everyone_inverts_and_the_file_says_what(op: str, names: tuple[str, ...], tmp_path: Path) -> None:
    out, peers = tmp_path / "compare.csv", [PEERS["cpu"][name] for name in names]
    settings: dict[str, Any] = {"ns": (N,), "sizes": (str(BATCH),), "threads": (1,), "samples": 3}
    outcome = comparison.compare(
        get_backend("cpu"), peers, op=op, out=out, report=lambda _: None, maths=("ieee",), **settings
    )
    call = {"poinv": "inv_ex", "potri": "cho_inverse", "logdet": "slogdet_ex"}[op]
    ours = [f"batchchol {each}" for each in ("packed", "canonical", call)]
    assert [row.contender for row in outcome.rows] == [*ours, *names]
    assert all(0 < row.ratio <= 1.5 and row.op == op and row.seconds > 0 for row in outcome.rows)
    assert [row.case for row in read_rows(out)] == [row.case for row in outcome.rows]


@pytest.mark.parametrize("kind", [InverseArena, FactorInverseArena])
def test_a_wrong_inverse_is_refused(kind: type[InverseArena]) -> None:
    arena = kind(get_backend("cpu"), "wishart", N, BATCH, "float64", cold=False)
    given = np.tril(arena.input(0))
    a = given @ given.swapaxes(1, 2) if arena.triangle else arena.input(0)
    inverse = np.linalg.inv(a)
    assert arena.inverted(0, inverse).ratio(arena.backend, "ieee") <= 1.5
    inverse[-1, 2, 1] *= 1.001
    with pytest.raises(ResidualError):
        arena.inverted(0, inverse).ratio(arena.backend, "ieee")


def test_a_wrong_determinant_is_refused() -> None:
    arena = DeterminantArena(get_backend("cpu"), "wishart", N, BATCH, "float64", cold=False)
    logabsdet = np.linalg.slogdet(arena.input(0)).logabsdet
    assert arena.inverted(0, logabsdet).ratio(arena.backend, "ieee") <= 1
    logabsdet[-1] *= 1.001
    with pytest.raises(ResidualError):
        arena.inverted(0, logabsdet).ratio(arena.backend, "ieee")
