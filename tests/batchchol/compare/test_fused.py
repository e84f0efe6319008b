"""Comparisons of factoring and solving at once: who takes part, on a CPU and, against stand-ins, on a GPU."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from batchchol.backends import Backend, get_backend
from batchchol.compare import comparison, solves
from batchchol.compare.contenders import SINGLE, Contender
from batchchol.compare.peers import PEERS
from batchchol.compare.rows import read_rows
from batchchol.compare.solves import FusedArena, Solved
from batchchol.errors import ResidualError
from batchchol.operations.posv import oracle, ratio_bound
from batchchol.operations.roofline import compulsory_bytes
from kernelgen import Layout, SpecError

from .test_cpu import BATCH, N, silent, small_machine
from .test_gpu import emulated, quick
from .test_gpu_peers import DTYPES, Tensor, backend, fake_cupy, fake_jax, fake_torch, floats, put_in_place
from .test_peers import found
from .test_solves_gpu import all_right, potrs_batched

__all__ = ["backend", "emulated", "fake_cupy", "fake_jax", "fake_torch", "quick", "small_machine"]

NRHS = 3
FUSED = {place: [name for name, peer in PEERS[place].items() if "posv" in peer.ways] for place in ("cpu", "cuda")}


def arena_of(
    on: Backend, n: int = 5, batch: int = 13, dtype: str = "float32", nrhs: int = 1, **more: Any
) -> FusedArena:
    return FusedArena(on, "wishart", n, batch, dtype, nrhs=nrhs, **more)


def test_who_factors_and_solves() -> None:
    assert FUSED == {
        "cpu": ["numpy", "scipy", "torch"],
        "cuda": ["cusolver", "torch", "jax", "cusolverdx", "cusolverdx_pdl"],
    }


@pytest.mark.parametrize("nrhs", [1, NRHS])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 17])
@pytest.mark.parametrize("name", FUSED["cpu"])
def test_every_way_of_a_peer_solves_a_ragged_batch(name: str, n: int, dtype: str, nrhs: int) -> None:
    found(name)
    arena = arena_of(get_backend("cpu"), n, 101, dtype, nrhs, cold=False)
    before = arena.input(0).copy(), arena.column(0).copy()
    for way in PEERS["cpu"][name].contenders(arena):
        arena.restore()
        way.calls[0]()
        # LU factors are held to the bound of Cholesky ones: these matrices are far from singular.
        assert 0 <= arena.verify(way, 0) <= ratio_bound(n, "ieee")
    assert all((now == then).all() for now, then in zip((arena.input(0), arena.column(0)), before, strict=True))


def test_a_case_has_a_checked_row_for_everyone(small_machine: None, tmp_path: Path) -> None:
    out, peers = tmp_path / "rows.csv", [PEERS["cpu"][name] for name in ("numpy", "scipy")]
    settings: dict[str, Any] = {"ns": (N,), "sizes": (str(BATCH),), "threads": (1,), "samples": 3, "report": silent}
    rows = comparison.compare(get_backend("cpu"), peers, op="posv", nrhs=NRHS, out=out, **settings).rows
    own = ["batchchol packed", "batchchol canonical", "batchchol solve"]
    assert [row.contender for row in rows] == [*own, "numpy", "scipy"]
    for row in rows:
        assert (row.op, row.n, row.nrhs, row.batch, row.samples) == ("posv", N, NRHS, BATCH, 3)
        assert 0 < row.ratio <= 1
        assert row.gflops == pytest.approx((N**3 / 3 + 2 * N**2 * NRHS) * BATCH / row.seconds / 1e9)
    assert all(row.spec.startswith("posv_f32_n3_") for row in rows[:3])
    assert rows[3].times_numpy == 1
    assert [row.op for row in read_rows(out)] == ["posv"] * 5
    assert compulsory_bytes(N, Layout.canonical(), nrhs=NRHS, op="posv") > 2 * 4 * N * NRHS


def test_a_call_takes_part_where_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*of: Any) -> Any:
        raise SpecError("n=64 is 274,560 bytes of shared memory")

    monkeypatch.setattr("batchchol.compare.defaults.default_choice", none)
    cpu, absent = get_backend("cpu"), dict[str, str]()
    venue = comparison.CpuVenue(cpu)
    (call,) = solves.entrants(cpu, venue, "posv", N, BATCH, "float32", ("ieee",), (), absent)
    assert (call.name, call.specs) == ("batchchol solve", ())
    assert list(absent) == [f"batchchol packed at n = {N}", f"batchchol canonical at n = {N}"]
    arena = arena_of(cpu, N, 40, cold=False)
    (way,) = call.make(arena)
    way.calls[0]()
    assert way.spec == "a kernel that factors, and one that solves"
    assert 0 < arena.verify(way, 0) <= 1


def test_a_failure_is_no_result() -> None:
    arena = arena_of(get_backend("cpu"), cold=False)
    (way,) = PEERS["cpu"]["numpy"].contenders(arena)
    way.calls[0]()
    good = way.result(0)
    assert isinstance(good, Solved)
    info = np.zeros(arena.batch, np.int32)
    info[4] = 2
    for wrong in (replace(good, info=(info,)), replace(good, x=good.x * np.float32(1.01))):
        with pytest.raises(ResidualError, match=r"matrix 4 has info 2|solutions of the residual ratio"):
            wrong.ratio(arena.backend, "ieee")


# ---- On a GPU ----


def test_cusolver_factors_and_solves_by_both_fill_modes(backend: Backend, fake_cupy: object) -> None:
    def potrf(dtype: str) -> Any:
        def call(handle: int, uplo: int, n: int, pointers: int, lda: int, info: int, batch: int) -> None:
            assert (handle, lda) == (77, n)
            for at in floats(pointers, batch, "uint64"):
                matrix = floats(int(at), n * n, dtype).reshape(n, n).T
                factor, where = np.linalg.cholesky(matrix.astype("f8")), np.tril_indices(n)
                (matrix.T if uplo else matrix)[where] = factor[where]
            floats(info, batch, "int32")[:] = 0

        return call

    library = sys.modules["cupy_backends.cuda.libs.cusolver"]
    for letter, dtype in (("s", "float32"), ("d", "float64")):
        library.__dict__.update(
            {f"{letter}potrfBatched": potrf(dtype), f"{letter}potrsBatched": potrs_batched(dtype)}
        )
        arena = arena_of(backend, dtype=dtype)
        ways = PEERS["cuda"]["cusolver"].contenders(arena)
        assert [way.spec.rpartition(" and ")[2] for way in ways] == [
            f"{letter}potrsBatched, {mode}, in place" for mode in ("upper", "lower")
        ]
        for way in ways:
            all_right(arena, way)


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch(dtype: str, backend: Backend, fake_torch: Any) -> None:
    def solved(a: Any, b: Any) -> Any:
        return Tensor(oracle(a, b).astype(b.dtype).swapaxes(1, 2).copy()).mT

    kept: dict[int, Any] = {}

    def cholesky_ex(a: Tensor) -> tuple[Tensor, Tensor]:
        factors = Tensor(np.linalg.cholesky(a.array))
        kept[id(factors)] = a.array
        return factors, Tensor(np.zeros(len(a.array), np.int32))

    fake_torch.linalg = SimpleNamespace(
        cholesky_ex=cholesky_ex,
        solve_ex=lambda a, b: (solved(a.array, b.array), Tensor(np.zeros(len(b.array), np.int32))),
    )
    fake_torch.cholesky_solve = lambda b, l: solved(kept[id(l)], b.array)
    arena = arena_of(backend, dtype=dtype, nrhs=NRHS)
    ways = PEERS["cuda"]["torch"].contenders(arena)
    assert [way.spec for way in ways] == [
        "torch.linalg.cholesky_ex and torch.cholesky_solve",
        "torch.linalg.solve_ex",
    ]
    for way in ways:
        all_right(arena, way)


def test_jax_is_waited_for(backend: Backend, fake_jax: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def solve(a: Tensor, b: Tensor, *, lower: bool, assume_a: str) -> Tensor:
        assert (lower, assume_a) == (True, "pos")
        return Tensor(oracle(a.array, b.array).astype(b.array.dtype))

    fake_jax.vmap = lambda function: function
    put_in_place(
        monkeypatch,
        "jax.scipy.linalg",
        cho_factor=lambda a, lower: (a, lower),
        cho_solve=lambda factor, b: solve(factor[0], b, lower=factor[1], assume_a="pos"),
        solve=solve,
    )
    arena = arena_of(backend, nrhs=NRHS)
    ways = PEERS["cuda"]["jax"].contenders(arena)
    assert len(ways) == 2
    for way in ways:
        all_right(arena, way)
        assert way.protocols == SINGLE


def test_the_library_solves_by_packed_matrices_and_by_whole_arrays(cuda: Backend) -> None:
    outcome = comparison.compare(
        cuda, (), op="posv", nrhs=NRHS, ns=(N,), sizes=("40",), samples=3, report=silent, maths=("fast", "ieee")
    )
    names = [f"{name} {math}" for math in ("fast", "ieee") for name in ("packed", "canonical")]
    assert [(row.contender, row.protocol) for row in outcome.rows] == [
        (name, protocol) for name in [*names, "solve_ex"] for protocol in ("queued", "single")
    ]
    assert all(0 < row.ratio <= 1 and row.op == "posv" for row in outcome.rows)


def test_matrices_too_large_for_one_kernel_are_solved_by_two(cuda: Backend) -> None:
    n, batch, dtype = 41, 35, "float64"
    arena = arena_of(cuda, n, batch, dtype, cold=False)
    entrants = solves.entrants(
        cuda, comparison.GpuVenue(cuda), "posv", n, batch, dtype, ("ieee",), (), dict[str, str]()
    )
    # Arrays of them are whole on the chip.
    for entrant, ops in zip(entrants, (["potrf", "potrs"], ["posv"]), strict=False):
        assert [spec.problem.op for spec in entrant.specs] == ops
        (way,) = entrant.make(arena)
        assert way.spec == " + ".join(spec.name for spec in entrant.specs)
        way.calls[0]()
        assert 0 < arena.verify(way, 0) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("nrhs", [1, NRHS])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUSED["cuda"])
def test_every_peer_solves_a_ragged_batch_on_a_gpu(name: str, dtype: str, nrhs: int) -> None:
    available = PEERS["cuda"][name].survey("posv")
    if not available.found:
        pytest.skip(f"{available.detail}: {available.hint}")
    if name == "cusolver" and nrhs > 1:
        pytest.skip("it takes one right-hand side")
    arena = arena_of(get_backend("cuda"), 17, 333, dtype, nrhs, cold=False)
    ways: list[Contender] = [*PEERS["cuda"][name].contenders(arena)]
    for way in ways:
        (way.restore or arena.restore)()
        way.calls[0]()
        assert 0 < arena.verify(way, 0) <= ratio_bound(17, "ieee")
