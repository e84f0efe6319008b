"""Device memory that nobody has any more: kept and used again, given back under pressure, lost never."""

from __future__ import annotations

import gc
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import Layout, cholesky_ex, factor
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.batches.batch import DeviceBatch
from batchchol.backends.cuda.device import device

from ....fakes.pycuda import FakeGpu

Spd = Callable[..., NDArray[np.floating]]
MIB = 1 << 20


def piece(mib: float) -> Any:
    return memory.empty((int(mib * MIB),), np.uint8, "a piece")


@pytest.fixture
def gpu(fake_gpu: FakeGpu) -> Iterator[FakeGpu]:
    """One of 80 MiB, which keeps 10 of them; in the end nobody has any, and all that is kept can be given back."""
    fake_gpu.total = 80 * MIB
    yield fake_gpu
    gc.collect()
    assert fake_gpu.used == memory.kept_bytes() <= 10 * MIB
    assert memory.release() + memory.kept_bytes() <= 10 * MIB
    assert (fake_gpu.used, fake_gpu.pieces) == (0, {})


def test_the_smallest_piece_that_serves_is_used_again(gpu: FakeGpu) -> None:
    small, large = piece(1), piece(1.1)
    addresses = int(small.gpudata), int(large.gpudata)
    del small, large
    assert int(piece(1).gpudata) == addresses[0]
    first, second = piece(1), piece(1)
    assert (int(first.gpudata), int(second.gpudata)) == addresses, "a little larger will do"
    assert memory.kept_bytes() == 0
    del first, second
    assert int(piece(0.8).gpudata) not in addresses, "too much of it would be left over"
    assert gpu.allocations == 3


def test_what_has_been_kept_longest_goes_first(gpu: FakeGpu) -> None:
    pieces = [piece(mib) for mib in (4, 1, 3, 4)]
    first, *others = (int(each.gpudata) for each in pieces)
    while pieces:
        del pieces[0]
    assert memory.kept_bytes() == gpu.used == 8 * MIB
    assert set(gpu.pieces) == set(others), "the 64 MiB that were kept before were never the right ones"
    del first
    piece(10.1)
    assert memory.kept_bytes() == gpu.used == 8 * MIB, "more than is kept of all is not kept"


def test_other_libraries_get_it_if_they_ask(gpu: FakeGpu) -> None:
    piece(3), piece(5)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(memory.release).result(30) == 8 * MIB
    assert (gpu.used, memory.kept_bytes(), memory.release()) == (0, 0, 0)


def test_arrays_are_dropped_whatever_the_pool_is_doing(gpu: FakeGpu) -> None:
    """As the garbage collector does it, in the middle of another array's making."""
    held = [piece(1)]
    address, pool = int(held[0].gpudata), memory._pool()
    with pool._lock:
        held.clear()
        assert memory.kept_bytes() == 0, "not put away yet, and nobody waits for anybody"
    assert int(piece(1).gpudata) == address


class Interrupted(BaseException):
    """What a signal's handler raises, as Ctrl-C does."""


def test_an_interrupt_leaves_the_pool_whole(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """At whatever moment, of an array's destructor as well: it is not left locked, and nothing is there twice."""
    piece(0.1)
    pool, choice, held = memory._pool(), random.Random(1), list[Any]()

    def interrupt(*_: object) -> None:
        raise Interrupted

    def work() -> None:
        try:
            signal.setitimer(signal.ITIMER_REAL, choice.uniform(1e-6, 2e-4))
            for _ in range(12):
                del held[2:]
                assert not pool._lock.locked()
                held.append(piece(choice.choice((0.01, 0.03, 0.4))))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    # Of a destructor Python says alone that it was interrupted.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(1000):
            with suppress(Interrupted):
                work()
            assert len({int(each.gpudata) for each in held}) == len(held)
    finally:
        signal.signal(signal.SIGALRM, before)
    held.clear()
    memory.release()
    assert (memory.kept_bytes(), pool._pieces, pool._sizes) == (0, {}, [])


def test_many_threads_never_have_the_same_piece(gpu: FakeGpu) -> None:
    together, held, twice = threading.Barrier(4), set(), []
    device()

    def work(seed: int) -> None:
        choice = random.Random(seed)
        mine: list[Any] = []
        together.wait(30)
        for _ in range(400):
            if len(mine) < 6 and choice.random() < 0.6:
                mine.append(piece(choice.choice((0.1, 0.105, 1, 1.1, 2))))
                address = int(mine[-1].gpudata)
                if address in held:
                    twice.append(address)
                held.add(address)
            elif mine:
                held.discard(int(mine[place := choice.randrange(len(mine))].gpudata))
                del mine[place]
        held.difference_update(int(each.gpudata) for each in mine)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert not twice
    assert gpu.allocations < 4 * 400 * 0.6 / 3, "used again more often than not"


@pytest.mark.parametrize("layout", [Layout.canonical("row"), Layout.chunked(32)], ids=str)
def test_a_warm_call_asks_the_driver_for_launches_alone(
    gpu: FakeGpu, spd: Spd, arrays_in: Callable[[Layout], None], layout: Layout
) -> None:
    arrays_in(layout)
    a = spd(2, 35, 5)
    array = memory.to_device(a, "a test's array")
    batch = DeviceBatch.from_dense(a[0], layout)
    kernels = 1 if layout.kind == "canonical" else 3

    def calls() -> None:
        l, info = cholesky_ex(array)
        assert (l.shape, info.shape) == (a.shape, (2, 35))
        factors, status = factor(batch)
        assert (factors.triangle, factors.layout, len(status)) == ("lower", layout, 35)

    calls()
    allocations, launches = gpu.allocations, len(gpu.launches)
    calls()
    assert gpu.allocations == allocations
    # The room beyond a batch is its own; that of a copy inside a call is nobody's.
    padding = layout.kind != "canonical"
    assert len(gpu.launches) - launches == kernels + 1 + padding
    assert not gpu.waits
