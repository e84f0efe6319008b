"""Comparisons of solves on a GPU: the library's kernels, and the peers against stand-ins of their libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchchol.backends import Backend, get_backend
from batchchol.cli.laboratory import compare_gpu
from batchchol.compare import comparison
from batchchol.compare.contenders import QUEUED, SINGLE, Contender
from batchchol.compare.peers import PEERS
from batchchol.compare.rows import read_rows, table
from batchchol.compare.solves import SolveArena
from batchchol.errors import BatchcholError, ResidualError
from batchchol.operations.potrs import oracle, ratio_bound

from .test_gpu import emulated, quick
from .test_gpu_peers import (
    BATCH,
    DTYPES,
    N,
    Tensor,
    backend,
    fake_cupy,
    fake_jax,
    fake_torch,
    floats,
    put_in_place,
)

__all__ = ["backend", "emulated", "fake_cupy", "fake_jax", "fake_torch", "quick"]

NRHS = 3
GPU_PEERS = PEERS["cuda"]
SOLVING = [name for name, peer in GPU_PEERS.items() if SolveArena.op in peer.ways]


def arena_of(backend: Backend, dtype: str = "float32", nrhs: int = 1) -> SolveArena:
    return SolveArena(backend, "wishart", N, BATCH, dtype, nrhs=nrhs)


def all_right(arena: SolveArena, contender: Contender) -> None:
    """Every call solves by its own set, and all of them can be made again once the right-hand sides are restored."""
    for _ in range(2):
        if contender.restore is not None:
            contender.restore()
        for index, call in enumerate(contender.calls):
            call()
            assert 0 < arena.verify(contender, index) <= ratio_bound(N, "ieee")
    assert len(contender.calls) == arena.sets > 1


def solved(l: np.ndarray[Any, Any], b: np.ndarray[Any, Any], upper: bool = False) -> np.ndarray[Any, Any]:
    return oracle(l, b, upper).astype(b.dtype)


def potrs_batched(dtype: str) -> Callable[..., None]:
    """cuSOLVER's: column-major triangles of either kind, in place, and one info for the whole batch."""

    def call(
        handle: int, uplo: int, n: int, nrhs: int, a: int, lda: int, b: int, ldb: int, info: int, batch: int
    ) -> None:
        assert (handle, nrhs, lda, ldb) == (77, 1, n, n)
        for a_at, b_at in zip(floats(a, batch, "uint64"), floats(b, batch, "uint64"), strict=True):
            factor, x = floats(int(a_at), n * n, dtype).reshape(n, n).T, floats(int(b_at), n, dtype)
            # What the other triangle has is not looked at.
            x[...] = solved(np.triu(factor)[None] if uplo else np.tril(factor)[None], x[None, :, None], bool(uplo))[
                0, :, 0
            ]
        floats(info, 1, "int32")[0] = 0

    return call


def test_cusolver_solves_by_both_fill_modes(backend: Backend, fake_cupy: object) -> None:
    library = sys.modules["cupy_backends.cuda.libs.cusolver"]
    library.__dict__.update(spotrsBatched=potrs_batched("float32"), dpotrsBatched=potrs_batched("float64"))
    for dtype in DTYPES:
        arena = arena_of(backend, dtype)
        ways = GPU_PEERS["cusolver"].contenders(arena)
        name = f"cusolverDn{'S' if dtype == 'float32' else 'D'}potrsbatched"
        assert [way.spec for way in ways] == [f"{name}, upper, in place", f"{name}, lower, in place"]
        for way in ways:
            all_right(arena, way)
            assert way.restore is not None, "it overwrites the right-hand sides"


def test_cusolver_has_one_right_hand_side(backend: Backend, fake_cupy: object) -> None:
    with pytest.raises(BatchcholError, match="cusolverDnSpotrsbatched takes nrhs = 1 alone, got 3"):
        GPU_PEERS["cusolver"].contenders(arena_of(backend, nrhs=NRHS))


@pytest.mark.parametrize("nrhs", [1, NRHS])
@pytest.mark.parametrize("dtype", DTYPES)
def test_torch(dtype: str, nrhs: int, backend: Backend, fake_torch: Any) -> None:
    def cholesky_solve(b: Tensor, l: Tensor, upper: bool) -> Tensor:
        # Column by column, as PyTorch has it.
        return Tensor(solved(l.array, b.array, upper).swapaxes(1, 2).copy()).mT

    fake_torch.cholesky_solve = cholesky_solve
    arena = arena_of(backend, dtype, nrhs)
    ways = GPU_PEERS["torch"].contenders(arena)
    assert [way.spec for way in ways] == [f"torch.cholesky_solve, upper={upper}" for upper in (False, True)]
    for way in ways:
        all_right(arena, way)


@pytest.mark.parametrize("nrhs", [1, NRHS])
@pytest.mark.parametrize("dtype", DTYPES)
def test_jax_is_waited_for(
    dtype: str, nrhs: int, backend: Backend, fake_jax: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cho_solve(factor: tuple[Tensor, bool], b: Tensor) -> Tensor:
        return Tensor(solved(factor[0].array, b.array, not factor[1]))

    fake_jax.vmap = lambda function: function
    put_in_place(monkeypatch, "jax.scipy.linalg", cho_solve=cho_solve)
    arena = arena_of(backend, dtype, nrhs)
    (way,) = GPU_PEERS["jax"].contenders(arena)
    all_right(arena, way)
    assert way.protocols == SINGLE
    assert fake_jax.config.settings == ({"jax_enable_x64": True} if dtype == "float64" else {})


def test_others_are_left_out_in_a_sentence() -> None:
    assert SOLVING == ["cusolver", "torch", "jax"]
    for name in GPU_PEERS.keys() - SOLVING:
        assert (
            GPU_PEERS[name].survey("potrs").detail.startswith("it takes no part in potrs: compare calls no function")
        )


def test_solutions_that_are_not_there_are_none(backend: Backend) -> None:
    arena = arena_of(backend)
    with pytest.raises(ResidualError, match="has solutions of the residual ratio"):
        arena.verify(Contender("nothing", arena.calls(lambda index: None), arena.solved), 0)


@pytest.mark.parametrize("nrhs", [1, NRHS])
def test_the_library_solves_on_packed_factors_and_on_whole_arrays(cuda: Backend, nrhs: int, tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    outcome = comparison.compare(
        cuda, (), op="potrs", nrhs=nrhs, ns=(N,), sizes=("40",), samples=3, report=lambda line: None,
        maths=("fast", "ieee"), out=out,
    )  # fmt: skip
    names = [f"{name} {math}" for math in ("fast", "ieee") for name in ("packed", "canonical")]
    rows = outcome.rows
    assert [(row.contender, row.protocol) for row in rows] == [
        (name, protocol) for name in [*names, "cho_solve"] for protocol in ("queued", "single")
    ]
    for row in rows:
        assert (row.op, row.nrhs, row.timing, row.commit) == ("potrs", nrhs, QUEUED, "c0ffee")
        assert row.gflops == pytest.approx(2 * N**2 * nrhs * 40 / row.seconds / 1e9)
        assert 0 < row.ratio <= 1
    assert {row.layout for row in rows if row.contender == "canonical ieee"} == {"canonical-row"}
    assert [row.op for row in read_rows(out)] == ["potrs"] * len(rows)
    assert table(rows).startswith("| op    | nrhs |")
    assert "Reference figures" not in compare_gpu.footer(outcome)


@pytest.mark.gpu
@pytest.mark.parametrize("nrhs", [1, NRHS])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SOLVING)
def test_every_peer_solves_a_ragged_batch_on_a_gpu(name: str, dtype: str, nrhs: int) -> None:
    found = GPU_PEERS[name].survey("potrs")
    if not found.found:
        pytest.skip(f"{found.detail}: {found.hint}")
    if name == "cusolver" and nrhs > 1:
        pytest.skip("it takes one right-hand side")
    arena = SolveArena(get_backend("cuda"), "wishart", 17, 333, dtype, cold=False, nrhs=nrhs)
    for way in GPU_PEERS[name].contenders(arena):
        arena.restore()
        way.calls[0]()
        assert 0 < arena.verify(way, 0) <= ratio_bound(17, "ieee")
