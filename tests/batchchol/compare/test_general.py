"""Comparisons of solves by general matrices: who takes part, on a CPU and, against stand-ins, on a GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from batchchol.backends import Backend, get_backend
from batchchol.compare import comparison
from batchchol.compare.contenders import SINGLE
from batchchol.compare.peers import PEERS, cublas
from batchchol.compare.solves import GeneralArena
from batchchol.errors import BatchcholError, ResidualError
from batchchol.operations.lu import SOLVE_BOUND, oracle

from .test_cpu import BATCH, N, silent, small_machine
from .test_gpu import emulated, quick
from .test_gpu_peers import DTYPES, Tensor, backend, fake_cupy, fake_jax, fake_torch, floats, put_in_place
from .test_peers import found
from .test_solves_gpu import all_right

__all__ = ["backend", "emulated", "fake_cupy", "fake_jax", "fake_torch", "quick", "small_machine"]

NRHS = 3
GENERAL = {place: [name for name, peer in PEERS[place].items() if "gesv" in peer.ways] for place in ("cpu", "cuda")}


def arena_of(
    on: Backend, n: int = 5, batch: int = 13, dtype: str = "float32", nrhs: int = 1, **more: Any
) -> GeneralArena:
    return GeneralArena(on, "wishart", n, batch, dtype, nrhs=nrhs, **more)


def test_who_solves_by_general_matrices() -> None:
    assert GENERAL == {
        "cpu": ["numpy", "scipy", "torch"],
        "cuda": ["cublas", "torch", "jax", "cusolverdx", "cusolverdx_pdl"],
    }


@pytest.mark.parametrize("nrhs", [1, NRHS])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GENERAL["cpu"])
def test_every_way_of_a_peer_solves_a_ragged_batch(name: str, dtype: str, nrhs: int) -> None:
    found(name)
    arena = arena_of(get_backend("cpu"), 17, 101, dtype, nrhs, cold=False)
    before = arena.input(0).copy(), arena.column(0).copy()
    for way in PEERS["cpu"][name].contenders(arena):
        arena.restore()
        way.calls[0]()
        assert 0 < arena.verify(way, 0) <= SOLVE_BOUND["ieee"]
    assert all((now == then).all() for now, then in zip((arena.input(0), arena.column(0)), before, strict=True))
    with pytest.raises(ResidualError):
        arena.solved(0, arena.output(0) * np.asarray(1.01, dtype)).ratio(arena.backend, "ieee")


def test_a_case_has_a_checked_row_for_everyone(small_machine: None, tmp_path: Path) -> None:
    peers = [PEERS["cpu"][name] for name in ("numpy", "scipy")]
    settings: dict[str, Any] = {"ns": (N,), "sizes": (str(BATCH),), "threads": (1,), "samples": 3, "report": silent}
    rows = comparison.compare(get_backend("cpu"), peers, op="gesv", nrhs=NRHS, **settings).rows
    own = ["batchchol packed", "batchchol canonical", "batchchol solve"]
    assert [row.contender for row in rows] == [*own, "numpy", "scipy"]
    for row in rows:
        assert (row.op, row.n, row.nrhs, row.batch, row.samples) == ("gesv", N, NRHS, BATCH, 3)
        assert 0 < row.ratio <= SOLVE_BOUND["ieee"]
        assert row.gflops == pytest.approx((2 * N**3 / 3 + 2 * N**2 * NRHS) * BATCH / row.seconds / 1e9)
    assert all(row.spec.startswith("gesv_f32_n3_") for row in rows[:3])


# ---- On a GPU ----


def put_cublas_in_place(patch: pytest.MonkeyPatch) -> Any:
    name = "cupy_backends.cuda.libs.cublas"
    cublas._library.cache_clear()
    return put_in_place(patch, name, create=lambda: 78, setStream=lambda *_: None)


def getrf_batched(dtype: str) -> Any:
    """cuBLAS's: matrices in columns, in place, and pivots counted from 1."""
    import scipy.linalg

    def call(handle: int, n: int, pointers: int, lda: int, rows: int, info: int, batch: int) -> None:
        assert (handle, lda) == (78, n)
        for m, at in enumerate(floats(pointers, batch, "uint64")):
            matrix = floats(int(at), n * n, dtype).reshape(n, n).T
            lu, found = scipy.linalg.lu_factor(matrix)
            matrix[...] = lu
            floats(rows, batch * n, "int32")[m * n : (m + 1) * n] = found + 1
        floats(info, batch, "int32")[:] = 0

    return call


def test_cublas_factors_the_transposes_of_rows(backend: Backend, fake_cupy: object, monkeypatch: Any) -> None:
    import scipy.linalg

    def getrs(dtype: str) -> Any:
        def call(
            handle: int,
            mode: int,
            n: int,
            nrhs: int,
            a: int,
            lda: int,
            rows: int,
            x: int,
            ldb: int,
            info: int,
            batch: int,
        ) -> None:
            assert (handle, mode, nrhs, lda, ldb) == (78, 1, 1, n, n)
            places = (floats(each, batch, "uint64") for each in (a, x))
            for m, (factors, columns) in enumerate(zip(*places, strict=True)):
                found = floats(rows, batch * n, "int32")[m * n :][:n] - 1
                lu = floats(int(factors), n * n, dtype).reshape(n, n).T, found
                column = floats(int(columns), n, dtype)
                column[...] = scipy.linalg.lu_solve(lu, column, trans=1)

        return call

    library: Any = put_cublas_in_place(monkeypatch)
    for letter, dtype in (("s", "float32"), ("d", "float64")):
        library.__dict__.update(
            {f"{letter}getrfBatched": getrf_batched(dtype), f"{letter}getrsBatched": getrs(dtype)}
        )
        arena = arena_of(backend, dtype=dtype)
        (way,) = PEERS["cuda"]["cublas"].contenders(arena)
        assert way.spec == f"cublas{letter.upper()}getrfBatched and {letter}getrsBatched, in place"
        all_right(arena, way)
    with pytest.raises(BatchcholError, match=r"takes right-hand sides in columns, .* got 3"):
        PEERS["cuda"]["cublas"].contenders(arena_of(backend, nrhs=NRHS))


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch(dtype: str, backend: Backend, fake_torch: Any) -> None:
    def solved(a: Any, b: Any) -> Any:
        return Tensor(oracle(a, b).astype(b.dtype).swapaxes(1, 2).copy()).mT

    def info(a: Tensor) -> Tensor:
        return Tensor(np.zeros(len(a.array), np.int32))

    fake_torch.linalg = SimpleNamespace(
        solve_ex=lambda a, b: (solved(a.array, b.array), info(b)),
        lu_factor_ex=lambda a: (a, "pivots", info(a)),
        lu_solve=lambda lu, pivots, b: solved(lu.array, b.array),
    )
    arena = arena_of(backend, dtype=dtype, nrhs=NRHS)
    for way in PEERS["cuda"]["torch"].contenders(arena):
        all_right(arena, way)


def test_jax_is_waited_for(backend: Backend, fake_jax: Any) -> None:
    fake_jax.vmap = lambda function: function
    fake_jax.numpy.linalg = SimpleNamespace(solve=lambda a, b: Tensor(oracle(a.array, b.array).astype(b.array.dtype)))
    arena = arena_of(backend, nrhs=NRHS)
    (way,) = PEERS["cuda"]["jax"].contenders(arena)
    all_right(arena, way)
    assert way.protocols == SINGLE


def test_the_library_takes_part(cuda: Backend) -> None:
    outcome = comparison.compare(cuda, (), op="gesv", ns=(N,), sizes=("40",), samples=3, report=silent)
    names = ["packed", "canonical", "solve_ex"]
    assert [row.contender for row in outcome.rows if row.protocol == "queued"] == names
    assert all(0 < row.ratio <= SOLVE_BOUND["fast"] and row.n == N for row in outcome.rows)
    assert not outcome.absent
