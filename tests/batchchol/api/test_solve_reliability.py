"""Solves, inverses and determinants where something gives out: memory, a fork, a thread that is not the only one."""

from __future__ import annotations

import multiprocessing
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import (
    Batch,
    Layout,
    cho_inverse,
    cho_solve,
    cholesky,
    cholesky_ex,
    get_backend,
    inv,
    inv_ex,
    slogdet,
    solve,
    solve_ex,
)
from batchchol.backends import Backend
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.batches.batch import DeviceBatch
from batchchol.backends.cuda.device import device
from batchchol.backends.cuda.pool import Pool
from batchchol.batches import host_memory
from batchchol.defaults.lookup import default_choice
from batchchol.defaults.request import Request
from batchchol.defaults.rules.fused import of_several
from batchchol.errors import OutOfMemory
from batchchol.operations.posv import ratio_bound, ratios
from kernelgen import Problem

from ...fakes import pycuda as fake_pycuda
from ...fakes.arrays import forget
from ..backends.cuda.test_batches import on_device
from .test_cho_solve import columns
from .test_solve import N

Array = NDArray[Any]
Spd = Callable[..., Array]
Call = Callable[[], Any]


def calls(a: Any, packed: Any, l: Any, b: Any, folded: Any) -> Mapping[str, Call]:
    """Calls of each kind, on arrays and on a batch; `folded` are right-hand sides that matrices are broadcast for."""
    return {
        "solve": lambda: solve(a, b),
        "solve with jitter": lambda: solve(packed, b, jitter="auto"),
        "solve for many": lambda: solve(a, folded),
        "cho_solve": lambda: cho_solve(l, folded),
        "inv": lambda: inv(packed),
        "slogdet": lambda: slogdet(a).logabsdet,
        "cholesky with both": lambda: cholesky_ex(a, jitter="auto", logdet=True).logabsdet,
        "solve with both": lambda: solve_ex(packed, b, jitter="auto", logdet=True).logabsdet,
        "inv with both": lambda: inv_ex(packed, jitter="auto", logdet=True).logabsdet,
        "cho_inverse": lambda: cho_inverse(l),
    }


COMMON = ("solve", "solve with jitter", "solve for many", "cho_solve", "inv", "solve with both", "inv with both")


def given(spd: Spd, count: int = 40, n: int = N) -> tuple[Array, Array, Array, Array]:
    """Matrices, their factors, right-hand sides for each and some for all."""
    a = spd(count, n)
    return a, np.asarray(np.linalg.cholesky(a)), columns(count, n), columns(3, 1, n, 2)


class Scarce:
    """Memory that is asked for again and again, of which one of these times there is none."""

    def __init__(self) -> None:
        self._until = -1

    def refuses(self) -> bool:
        """Whether there is none this time."""
        self._until -= 1
        return self._until == 0

    def check(self, call: Call, unchanged: Callable[[], None]) -> None:
        """Have a call meet that at each of its requests; it must say so, and leave all as it was."""
        for turn in range(1, 100):
            self._until = turn
            try:
                call()
                break
            except OutOfMemory as error:
                said = str(error)
            assert " needs " in said
            unchanged()
        self._until = -1
        assert turn > 1, "it asked for nothing"


@pytest.mark.parametrize("name", COMMON)
def test_memory_of_the_host_gives_out_anywhere(spd: Spd, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    a, l, b, folded = given(spd)
    call = calls(a, Batch.from_dense(a), l, b, folded)[name]
    before, expected, free = [each.copy() for each in (a, l, b, folded)], call(), host_memory.free_bytes
    scarce = Scarce()

    def unchanged() -> None:
        for array, kept in zip((a, l, b, folded), before, strict=True):
            np.testing.assert_array_equal(array, kept)

    monkeypatch.setattr(host_memory, "_CHECKED_BYTES", 0)
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 0 if scarce.refuses() else free())
    scarce.check(call, unchanged)
    np.testing.assert_array_equal(call(), expected)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Arrays of the fake GPU are known as PyCUDA's: calls on them are planned, anew in this test as on a real one."""
    monkeypatch.setattr(fake_pycuda.GPUArray, "__module__", "pycuda.gpuarray")
    forget()
    yield
    forget()


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize("name", [*COMMON, "slogdet", "cholesky with both", "cho_inverse"])
def test_memory_of_a_gpu_gives_out_anywhere(
    cuda: Backend, spd: Spd, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    a, l, b, folded = given(spd)
    there = [on_device(each) for each in (a, l, b, folded)]
    call = calls(there[0], DeviceBatch.from_dense(a, Layout.chunked(32)), *there[1:])[name]
    allocate, scarce = Pool.allocate, Scarce()

    def allocated(pool: Pool, nbytes: int, purpose: str) -> Any:
        if scarce.refuses():
            raise OutOfMemory(f"{purpose}, on the GPU,", nbytes, 0)
        return allocate(pool, nbytes, purpose)

    def unchanged() -> None:
        for array, kept in zip(there, (a, l, b, folded), strict=True):
            np.testing.assert_array_equal(cuda.host(array), kept)

    # Before the first call, whose plan keeps what allocates.
    monkeypatch.setattr(Pool, "allocate", allocated)
    expected = cuda.host(call())
    scarce.check(call, unchanged)
    np.testing.assert_array_equal(cuda.host(call()), expected)


def all_at_once(spd: Spd) -> tuple[Mapping[str, Call], Mapping[str, Array]]:
    """Calls that two threads share, and what they return."""
    a, l, b, folded = given(spd, 3000)
    every = calls(a, Batch.from_dense(a), l, b, folded)
    return every, {name: call() for name, call in every.items()}


def are_right(every: Mapping[str, Call], expected: Mapping[str, Array]) -> bool:
    return all(np.array_equal(call(), expected[name]) for name, call in every.items())


def test_threads_at_once_and_a_fork_after_use(spd: Spd) -> None:
    every, expected = all_at_once(spd)
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda _: are_right(every, expected), range(8)))
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = multiprocessing.get_context("fork").Process(target=lambda: os._exit(not are_right(every, expected)))
        child.start()
    child.join(60)
    assert child.exitcode == 0
    assert are_right(every, expected)


# ---- A GPU alone ----


@pytest.mark.gpu
def test_threads_at_once_on_a_gpu(spd: Spd) -> None:
    a, l, b, folded = given(spd, 3000, 12)
    host, there = get_backend("cuda").host, [on_device(each) for each in (a, l, b, folded)]
    every = calls(there[0], DeviceBatch.from_dense(a), *there[1:])
    expected = {name: host(call()) for name, call in every.items()}
    on_host = {name: (lambda call=call: host(call())) for name, call in every.items()}
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: are_right(on_host, expected), range(16)))


def refused(call: Call, left: int) -> str:
    """What a call says when there is no more on the GPU than `left` bytes.

    Other processes may take and give back memory there meanwhile: then there was, and it is tried again.
    """
    cuda = device().pycuda
    for _ in range(20):
        memory.release()
        taken = None
        try:
            with device().current():
                taken = cuda.mem_alloc(max(cuda.mem_get_info()[0] - left, 1))
            call()
        except OutOfMemory as error:
            return str(error)
        except cuda.MemoryError:
            assert taken is None
        finally:
            if taken is not None:
                with device().current():
                    taken.free()
    raise AssertionError("there was always enough memory")


@pytest.mark.gpu
def test_memory_that_others_have_on_a_gpu(spd: Spd) -> None:
    """What is left suffices for less than the call takes; once it is given back the call is right."""
    host = get_backend("cuda").host
    a, b = on_device(spd(100_000, 24)), on_device(columns(100_000, 24, 24))
    for call in (lambda: inv(a), lambda: solve(a, b, jitter="auto")):
        said = refused(call, 96 << 20)
        assert re.search(r", on the GPU, needs [\d,]+ bytes and [\d,]+ bytes are free", said)
    assert ratios(host(a)[-9:], host(b)[-9:], host(solve(a, b))[-9:]).max() <= ratio_bound(24, "ieee")


@pytest.mark.gpu
@pytest.mark.parametrize("layout", [Layout.canonical(), Layout.chunked(32)], ids=str)
def test_more_elements_than_an_int_counts(layout: Layout) -> None:
    n, batch, last = 32, 2_200_000, 5
    assert batch * n * n > 2**31
    backend, ends = get_backend("cuda"), (slice(0, last), slice(batch - last, batch))
    a = DeviceBatch.empty(n, batch, layout)
    backend.fill(a, "diagonally_dominant")
    ones = np.ones((batch, n, 1), np.float32)
    b = backend.place(ones)
    x, info = solve_ex(a, b)
    signs, logabsdet = slogdet(a)
    l = cholesky(a.data) if layout.kind == "canonical" else None
    y = None if l is None else cho_solve(l, b)
    del l
    inverse = inv(a) if layout.kind == "canonical" else None
    assert not backend.host(info).any()
    assert (backend.host(signs) == 1).all()
    for end in ends:
        matrices = backend.host(a.get(end.start, end.stop))
        for solved in (x, y):
            if solved is not None:
                assert ratios(matrices, ones[end], backend.host(solved)[end]).max() <= ratio_bound(n, "ieee")
        np.testing.assert_allclose(
            backend.host(logabsdet)[end], np.linalg.slogdet(matrices.astype(float)).logabsdet, rtol=1e-5
        )
        if inverse is not None:
            product = backend.host(inverse[end.start : end.stop]) @ matrices
            np.testing.assert_allclose(product, np.broadcast_to(np.eye(n), product.shape), atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("family", "n", "dtype", "layout", "nrhs"),
    [
        ("thread", 16, "float32", Layout.chunked(32), 128),
        ("warp", 32, "float32", Layout.canonical(), 8),
        ("thread", 32, "float32", Layout.chunked(32), 1),
        ("warp", 64, "float32", Layout.canonical(), 1),
        ("whole", 64, "float32", Layout.canonical(), 8),
        ("whole", 64, "float64", Layout.canonical(), 1),
        ("block", 64, "float32", Layout.chunked(32), 1),
        ("strip", 96, "float32", Layout.chunked(4), 1),
    ],
    ids=str,
)
def test_solves_of_more_elements_than_an_int_counts(
    family: str, n: int, dtype: str, layout: Layout, nrhs: int
) -> None:
    """Of matrices or right-hand sides; right are the first, the last, and those where an int ends."""
    backend, most = get_backend("cuda"), 2**31 // (n * max(n, nrhs))
    batch = most + 7
    asked = Request(Problem(n, dtype, op="posv"), "cuda", batch=batch, arch=backend.architecture).on(layout)
    if backend.architecture == "sm_90":
        assert (of_several(asked, nrhs) or default_choice(asked).spec).family == family
    a = DeviceBatch.empty(n, batch, layout, dtype)
    backend.fill(a, "diagonally_dominant")
    b = memory.empty((batch, n, nrhs), dtype, "right-hand sides")
    # Ones; in float64 0.0078 or so.
    with device().current():
        device().pycuda.memset_d32(b.gpudata, 0x3F800000, b.nbytes // 4)
    x, info = solve_ex(a, b)
    assert not backend.host(info).any()
    for first in (0, most - 3, batch - 5):
        some = slice(first, first + 5)
        matrices, given, found = (backend.host(each) for each in (a.get(some.start, some.stop), b[some], x[some]))
        assert ratios(matrices, given, found).max() <= ratio_bound(n, "ieee")
