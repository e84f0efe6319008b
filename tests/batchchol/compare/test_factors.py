"""Comparisons of LU factorizations: who takes part, on a CPU and, against stand-ins, on a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from batchchol import lu_factor_ex
from batchchol.backends import Backend, get_backend
from batchchol.compare import comparison
from batchchol.compare.contenders import SINGLE
from batchchol.compare.factors import LuArena
from batchchol.compare.peers import PEERS
from batchchol.errors import ResidualError
from batchchol.operations.lu import FACTOR_BOUND

from .test_cpu import BATCH, N, silent, small_machine
from .test_general import getrf_batched, put_cublas_in_place
from .test_gpu import emulated, quick
from .test_gpu_peers import DTYPES, Tensor, backend, fake_cupy, fake_jax, fake_torch

__all__ = ["backend", "emulated", "fake_cupy", "fake_jax", "fake_torch", "quick", "small_machine"]


def arena_of(on: Backend, n: int = 5, batch: int = 13, dtype: str = "float32", **more: Any) -> LuArena:
    return LuArena(on, "wishart", n, batch, dtype, **more)


def all_right(arena: LuArena, way: Any) -> None:
    """Every call factors its own set, and all of them can be made again once the matrices are restored."""
    for _ in range(2):
        if way.restore is not None:
            way.restore()
        for index, call in enumerate(way.calls):
            call()
            assert 0 < arena.verify(way, index) <= FACTOR_BOUND["ieee"]
    assert len(way.calls) == arena.sets > 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_way_of_scipy_factors_a_ragged_batch(dtype: str) -> None:
    arena = arena_of(get_backend("cpu"), 9, 33, dtype, cold=False)
    before = arena.input(0).copy()
    for way in PEERS["cpu"]["scipy"].contenders(arena):
        arena.restore()
        way.calls[0]()
        assert 0 < arena.verify(way, 0) <= FACTOR_BOUND["ieee"]
    assert (arena.input(0) == before).all()
    with pytest.raises(ResidualError):
        arena.factored(0, arena.output(0) * np.asarray(1.01, dtype), arena.pivots() + 1).ratio(arena.backend, "ieee")


def test_a_case_has_a_checked_row_for_everyone(small_machine: None) -> None:
    settings: dict[str, Any] = {"ns": (N,), "sizes": (str(BATCH),), "threads": (1,), "samples": 3, "report": silent}
    rows = comparison.compare(get_backend("cpu"), [PEERS["cpu"]["scipy"]], op="getrf", **settings).rows
    own = ["batchchol packed", "batchchol canonical", "batchchol lu_factor_ex"]
    assert [row.contender for row in rows] == [*own, "scipy"]
    for row in rows:
        assert (row.op, row.n, row.batch, row.samples) == ("getrf", N, BATCH, 3)
        assert 0 < row.ratio <= FACTOR_BOUND["ieee"]
        assert row.gflops == pytest.approx(2 * N**3 / 3 * BATCH / row.seconds / 1e9)
    assert all(row.spec.startswith("getrf_f32_n3_") for row in rows[:3])


def test_cublas_factors_the_transposes_of_rows(backend: Backend, fake_cupy: object, monkeypatch: Any) -> None:
    library = put_cublas_in_place(monkeypatch)
    for letter, dtype in (("s", "float32"), ("d", "float64")):
        library.__dict__[f"{letter}getrfBatched"] = getrf_batched(dtype)
        arena = arena_of(backend, dtype=dtype)
        (way,) = PEERS["cuda"]["cublas"].contenders(arena)
        assert way.spec == f"cublas{letter.upper()}getrfBatched, in place"
        all_right(arena, way)


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch(dtype: str, backend: Backend, fake_torch: Any) -> None:
    fake_torch.linalg = SimpleNamespace(lu_factor_ex=lambda a: tuple(map(Tensor, lu_factor_ex(a.array))))
    arena = arena_of(backend, dtype=dtype)
    (way,) = PEERS["cuda"]["torch"].contenders(arena)
    all_right(arena, way)


def test_jax_is_waited_for(backend: Backend, fake_jax: Any) -> None:
    class Pivots(Tensor):
        def __add__(self, one: int) -> Tensor:
            return Tensor(self.array + np.int32(one))

    def lu(a: Tensor) -> tuple[Tensor, Tensor, None]:
        factors, pivots, _ = lu_factor_ex(a.array)
        return Tensor(factors), Pivots(pivots - 1), None

    fake_jax.lax.linalg.lu, fake_jax.block_until_ready = lu, lambda made: made
    arena = arena_of(backend)
    (way,) = PEERS["cuda"]["jax"].contenders(arena)
    all_right(arena, way)
    assert way.protocols == SINGLE


def test_the_library_takes_part(emulated: Backend) -> None:
    outcome = comparison.compare(emulated, (), op="getrf", ns=(N,), sizes=("40",), samples=3, report=silent)
    names = ["packed", "canonical", "lu_factor_ex"]
    assert [row.contender for row in outcome.rows if row.protocol == "queued"] == names
    assert all(0 < row.ratio <= FACTOR_BOUND["fast"] and row.n == N for row in outcome.rows)
    assert not outcome.absent
