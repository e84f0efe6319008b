"""The blocked algorithms, by a stand-in for the level-3 calls: NumPy's, on arrays of the host."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol.algorithms.blocked import Blocking, factor, halved
from batchchol.algorithms.level3 import Block
from batchchol.operations.residual import ratios

Array = NDArray[Any]
Spd = Callable[..., Array]


class NumpyCalls:
    """`batchchol.algorithms.level3.Level3` on an array (batch, n, n); `made` are the names of the calls."""

    def __init__(self, a: Array, tile: int) -> None:
        self.a, self.tile = a, tile
        self.info = np.full(len(a), -1, np.int32)
        self.made: list[str] = []

    def of(self, block: Block) -> Array:
        n = self.a.shape[-1]
        assert min(block) >= 0
        assert block.rows
        assert block.columns
        assert block.row + block.rows <= n
        assert block.column + block.columns <= n
        return self.a[:, block.row : block.row + block.rows, block.column : block.column + block.columns]

    def potrf(self, c: Block) -> None:
        assert c.rows == c.columns <= self.tile
        assert c.row == c.column
        self.made.append("potrf")
        for member, tile in enumerate(self.of(c)):
            failed = potf2(tile)
            if c.row == 0 or (failed and self.info[member] == 0):
                self.info[member] = c.row + failed if failed else 0

    def trsm(self, l: Block, b: Block) -> None:
        assert l.rows == b.columns <= self.tile
        self.made.append("trsm")
        self.of(b)[...] = np.linalg.solve(self.of(l), self.of(b).swapaxes(1, 2)).swapaxes(1, 2)

    def panel(self, p: Block) -> None:
        assert p.columns <= self.tile
        top = p._replace(rows=p.columns)
        NumpyCalls.potrf(self, top)
        if p.rows > p.columns:
            NumpyCalls.trsm(self, top, p.part(p.columns, 0, p.rows - p.columns, p.columns))
        self.made.append("panel")

    def syrk(self, c: Block, a: Block) -> None:
        assert c.row == c.column
        assert c.rows == c.columns == a.rows
        self.made.append("syrk")
        part, corner = self.of(a), self.of(c)
        corner -= np.tril(part @ part.swapaxes(1, 2))
        for at in range(0, c.rows, self.tile):
            # As products of whole blocks leave it.
            above = corner[:, at : at + self.tile, at : at + self.tile]
            above[:, *np.triu_indices(above.shape[-1], 1)] = np.nan

    def beside(self) -> NumpyCalls:
        return self

    def wait_for(self, other: NumpyCalls) -> None:
        assert other is self

    def gemm(self, c: Block, a: Block, b: Block) -> None:
        assert (c.rows, c.columns, a.columns) == (a.rows, b.rows, b.columns)
        self.made.append("gemm")
        self.of(c)[...] -= self.of(a) @ self.of(b).swapaxes(1, 2)


class QueuedCalls(NumpyCalls):
    """Calls that are made later: `run` takes from two queues, from the second one first if it can and so is asked."""

    def __init__(self, a: Array, tile: int) -> None:
        super().__init__(a, tile)
        self.queue: list[Callable[[], Any]] = []
        self.side, self.begun = self, 0

    def beside(self) -> QueuedCalls:
        self.side = QueuedCalls(self.a, self.tile)
        self.side.info = self.info
        return self.side

    def wait_for(self, other: NumpyCalls) -> None:
        assert isinstance(other, QueuedCalls)
        self.queue.append(partial(other.has_made, len(other.queue)))

    def has_made(self, calls: int) -> bool:
        return self.begun >= calls

    def step(self) -> bool:
        """Make the next call, if there is one and what it waits for is done."""
        if self.begun == len(self.queue) or self.queue[self.begun]() is False:
            return False
        self.begun += 1
        return True

    def run(self, *, side_first: bool) -> None:
        both = [self.side, self] if side_first else [self, self.side]
        while both[0].step() or both[1].step():
            pass
        assert all(each.begun == len(each.queue) for each in both), "each waits for the other"


def _queued(name: str) -> Callable[..., None]:
    def call(self: QueuedCalls, *blocks: Block) -> None:
        self.queue.append(lambda: getattr(NumpyCalls, name)(self, *blocks))

    return call


for _name in ("panel", "potrf", "trsm", "syrk", "gemm"):
    setattr(QueuedCalls, _name, _queued(_name))


def potf2(a: Array) -> int:
    """The factor of a tile in place, and the first of its columns that fails, from 1 on: those from it on are I's."""
    n = len(a)
    for j in range(n):
        pivot = a[j, j]
        if not pivot > 0:
            a[:, j:] = np.eye(n)[:, j:]
            return j + 1
        a[:j, j] = 0
        a[j:, j] /= np.sqrt(pivot)
        a[j + 1 :, j + 1 :] -= np.outer(a[j + 1 :, j], a[j + 1 :, j])
    return 0


def factored(a: Array, blocking: Blocking) -> NumpyCalls:
    """Of the lower triangles: what is above is NaN, and where no tile has been it stays so."""
    n = a.shape[-1]
    calls = NumpyCalls(np.tril(a), blocking.tile)
    factor(calls, n, blocking)
    return calls


BLOCKINGS = [Blocking(64, 64, "left"), Blocking(64, 256, "left"), Blocking(64, 64), Blocking(64, 256)]
BLOCKINGS += [Blocking(64, 192, "left", fused=True), Blocking(64, 192, fused=True)]


@pytest.mark.parametrize("blocking", BLOCKINGS, ids=str)
@pytest.mark.parametrize("n", [63, 64, 129, 130, 160, 192, 255, 256, 257, 513])
def test_any_order(n: int, blocking: Blocking, spd: Spd) -> None:
    for dtype, batch in (("float32", 1), ("float64", 2)):
        a = spd(batch, n, dtype=dtype)
        calls = factored(a, blocking)
        assert not calls.info.any()
        np.testing.assert_array_equal(calls.a, np.tril(calls.a))
        assert ratios(a, calls.a).max() <= 1.5


@pytest.mark.parametrize(("n", "blocking"), [(1000, Blocking(128, 512)), (2049, Blocking(128, 384, "left"))])
def test_a_thousand_and_more(n: int, blocking: Blocking, spd: Spd) -> None:
    a = spd(1, n, dtype="float64")
    np.testing.assert_allclose(factored(a, blocking).a[0], np.linalg.cholesky(a[0]), atol=1e-12 * n)


@pytest.mark.parametrize("blocking", BLOCKINGS, ids=str)
def test_failing_in_every_panel(blocking: Blocking, spd: Spd) -> None:
    """The info is LAPACK's, and the columns before are those of the factor; a NaN counts where its row's turn is."""
    n = 300
    minors = [1, 64, 65, 128, 129, 200, 257, 300]
    a = spd(len(minors) + 2, n, dtype="float64")
    good = np.linalg.cholesky(a)
    for member, k in enumerate(minors):
        a[member, k - 1, k - 1] = (-1.0, 0.0, np.nan, -np.inf)[member % 4]
    a[-2, 280, 40] = np.nan
    calls = factored(a, blocking)
    assert calls.info.tolist() == [*minors, 281, 0]
    for member, k in enumerate([*minors, 281, n + 1]):
        rows = np.s_[: 280 if k == 281 else n]
        np.testing.assert_allclose(calls.a[member][rows, : k - 1], good[member][rows, : k - 1], atol=1e-9)


def test_looking_decides_what_is_called(spd: Spd) -> None:
    a = spd(1, 256)
    assert factored(a, Blocking(64, 64, "right")).made == ["potrf", "trsm", "syrk"] * 3 + ["potrf"]
    assert factored(a, Blocking(64, 64, "left")).made == [
        *("potrf", "trsm"),
        *("syrk", "gemm", "potrf", "trsm") * 2,
        *("syrk", "potrf"),
    ]
    # One panel of two tiles: factoring it is recursive, and so is solving by it.
    made = factored(a, Blocking(64, 128, "right")).made
    assert made == [
        "potrf",
        "trsm",
        "syrk",
        "potrf",
        "trsm",
        "gemm",
        "trsm",
        "syrk",
        "potrf",
        "trsm",
        "syrk",
        "potrf",
    ]


@pytest.mark.parametrize("side_first", [False, True])
@pytest.mark.parametrize("n", [64, 65, 128, 300, 448])
def test_look_ahead_in_any_order_that_its_waits_allow(n: int, side_first: bool, spd: Spd) -> None:
    a, blocking = spd(2, n, dtype="float64"), Blocking(32, 64, ahead=True, fused=n == 300)
    a[1, n - 3, n - 3] = np.nan
    calls = QueuedCalls(np.tril(a), 32)
    factor(calls, n, blocking)
    assert not any(calls.made)
    calls.run(side_first=side_first)
    assert calls.info.tolist() == [0, n - 2]
    np.testing.assert_array_equal(calls.a, np.tril(calls.a))
    assert ratios(a[:1], calls.a[:1]).max() <= 1.5
    # All panels but the first one are factored beside the rest.
    tiles = -(-n // 32)
    assert calls.side.made.count("potrf") == max(tiles - 2, 0)


@pytest.mark.parametrize(("size", "half"), [(65, 64), (128, 64), (129, 128), (192, 128), (256, 128), (513, 320)])
def test_halves_are_whole_tiles(size: int, half: int) -> None:
    assert halved(size, 64) == half


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="nb: got 100, expected a positive multiple of the tile, 64"):
        Blocking(64, 100)
    with pytest.raises(ValueError, match="looking: got 'top', expected one of 'left', 'right'"):
        Blocking(64, 128, "top")
    with pytest.raises(ValueError, match="looking: got 'left' with look-ahead, expected 'right'"):
        Blocking(64, 128, "left", ahead=True)
