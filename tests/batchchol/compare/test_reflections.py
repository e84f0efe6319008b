"""Comparisons of QR factorizations and least squares: who takes part, on a CPU and, against stand-ins, on a GPU."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from batchchol import lstsq_ex, qr
from batchchol.backends import Backend, get_backend
from batchchol.compare import comparison
from batchchol.compare.contenders import SINGLE, BaseArena
from batchchol.compare.peers import PEERS, cublas
from batchchol.compare.reflections import LeastSquaresArena, QrArena
from batchchol.errors import BatchcholError, ResidualError
from batchchol.operations.qr import BOUND

from .test_cpu import BATCH, N, silent, small_machine
from .test_factors import all_right
from .test_general import put_cublas_in_place
from .test_gpu import emulated, quick
from .test_gpu_peers import DTYPES, Tensor, backend, fake_cupy, fake_jax, fake_torch, floats
from .test_peers import found

__all__ = ["backend", "emulated", "fake_cupy", "fake_jax", "fake_torch", "quick", "small_machine"]

ARENAS = (QrArena, LeastSquaresArena)


def arena_of(
    kind: type[BaseArena], on: Backend, n: int = 5, batch: int = 13, dtype: str = "float32", **more: Any
) -> Any:
    return kind(on, "wishart", n, batch, dtype, **more)


def test_who_takes_part() -> None:
    for op in ("geqrf", "gels"):
        names = {place: [name for name, peer in PEERS[place].items() if op in peer.ways] for place in ("cpu", "cuda")}
        assert names == {
            "cpu": ["numpy", "scipy", "torch"],
            "cuda": ["cublas", "torch", "jax", "cusolverdx", "cusolverdx_pdl"],
        }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["numpy", "scipy", "torch"])
@pytest.mark.parametrize("kind", ARENAS)
def test_every_way_of_a_peer_is_right(kind: type[BaseArena], name: str, dtype: str) -> None:
    found(name)
    arena = arena_of(kind, get_backend("cpu"), 9, 33, dtype, cold=False)
    before = arena.input(0).copy()
    for way in PEERS["cpu"][name].contenders(arena):
        arena.restore()
        way.calls[0]()
        assert 0 < arena.verify(way, 0) <= BOUND["ieee"]
    assert (arena.input(0) == before).all()


def test_wrong_factors_are_refused() -> None:
    arena = arena_of(QrArena, get_backend("cpu"), cold=False)
    made, (factors, tau) = qr(arena.input(0)), qr(arena.input(0), "raw")
    for wrong in (
        arena.multiplied(0, made.Q, made.R * np.float32(1.01)),
        arena.multiplied(0, made.Q * np.float32(1.01), made.R / np.float32(1.01)),
        arena.reflected(0, factors, tau * np.float32(1.01)),
    ):
        with pytest.raises(ResidualError):
            wrong.ratio(arena.backend, "ieee")


@pytest.mark.parametrize("op", ["geqrf", "gels"])
def test_a_case_has_a_checked_row_for_everyone(op: str, small_machine: None) -> None:
    settings: dict[str, Any] = {"ns": (N,), "sizes": (str(BATCH),), "threads": (1,), "samples": 3, "report": silent}
    rows = comparison.compare(get_backend("cpu"), [PEERS["cpu"]["numpy"]], op=op, **settings).rows
    calls = {"geqrf": ["qr raw", "qr reduced"], "gels": ["lstsq_ex"]}[op]
    assert [row.contender for row in rows] == [
        *(f"batchchol {name}" for name in ("packed", "canonical", *calls)),
        "numpy",
    ]
    for row in rows:
        assert (row.op, row.n, row.batch, row.samples) == (op, N, BATCH, 3)
        assert 0 < row.ratio <= BOUND["ieee"]
    assert all(row.spec.startswith(f"{op}_f32_n3_") for row in rows[:3])


def put_native(patch: pytest.MonkeyPatch, dtype: str) -> None:
    """cuBLAS's functions, of column-major matrices at the addresses of an array."""

    def of(pointers: ctypes.c_void_p, batch: int, count: int) -> list[Any]:
        addresses = (ctypes.c_uint64 * batch).from_address(pointers.value or 0)
        return [floats(address, count, np.dtype(dtype).str) for address in addresses]

    def geqrf(handle: Any, m: int, n: int, a: Any, lda: int, tau: Any, status: Any, batch: int) -> int:
        for matrix, scalars in zip(of(a, batch, n * n), of(tau, batch, n), strict=True):
            factors, scalars[...] = qr(matrix.reshape(n, n).T[None], "raw")
            matrix[...] = factors[0].T.ravel()
        return 0

    def gels(handle: Any, trans: int, m: int, n: int, nrhs: int, a: Any, lda: int, b: Any, *rest: Any) -> int:
        for matrix, column in zip(of(a, rest[-1], n * n), of(b, rest[-1], n), strict=True):
            column[...] = lstsq_ex(matrix.reshape(n, n).T, column).x
        floats(rest[2].value, rest[-1], "<i4")[...] = 0
        return 0

    letter = {"float32": "S", "float64": "D"}[dtype]
    functions = {f"cublas{letter}geqrfBatched": geqrf, f"cublas{letter}gelsBatched": gels}
    patch.setattr(cublas, "_native", lambda: SimpleNamespace(**functions))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ARENAS)
def test_cublas(kind: type[BaseArena], dtype: str, backend: Backend, fake_cupy: object, monkeypatch: Any) -> None:
    put_cublas_in_place(monkeypatch)
    put_native(monkeypatch, dtype)
    arena = arena_of(kind, backend, dtype=dtype)
    (way,) = PEERS["cuda"]["cublas"].contenders(arena)
    letter = {"float32": "S", "float64": "D"}[dtype]
    assert way.spec == f"cublas{letter}{arena.op}Batched, in place"
    all_right(arena, way)
    if kind is LeastSquaresArena:
        with pytest.raises(BatchcholError, match="nrhs = 1 alone"):
            PEERS["cuda"]["cublas"].contenders(arena_of(kind, backend, nrhs=2))


def test_torch_and_jax(backend: Backend, fake_torch: Any, fake_jax: Any) -> None:
    def tensors(made: Any) -> tuple[Tensor, ...]:
        return tuple(map(Tensor, made))

    def lstsq(a: Tensor, b: Tensor, driver: str = "gels") -> Any:
        return SimpleNamespace(solution=Tensor(lstsq_ex(a.array, b.array).x))

    fake_torch.geqrf = lambda a: tensors(qr(a.array, "raw"))
    fake_torch.linalg = SimpleNamespace(qr=lambda a: tensors(qr(a.array)), lstsq=lstsq)
    fake_jax.numpy.linalg = SimpleNamespace(
        qr=lambda a: tensors(qr(a.array)), lstsq=lambda a, b: [lstsq(a, b).solution]
    )
    fake_jax.vmap, fake_jax.block_until_ready = (lambda function: function), lambda made: made
    for name in ("torch", "jax"):
        for kind in ARENAS:
            arena = arena_of(kind, backend)
            for way in PEERS["cuda"][name].contenders(arena):
                all_right(arena, way)
                assert name == "torch" or way.protocols == SINGLE
