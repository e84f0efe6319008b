"""Several GPUs in one process: work goes where its data live, or to those that `gpus` names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import cholesky, factor, solve
from batchchol.backends.cuda import gpus, memory
from batchchol.backends.cuda.batches.batch import DeviceBatch
from batchchol.backends.cuda.device import device_of
from batchchol.errors import BackendUnavailable

from .foreign import Foreign, on_device

Spd = Callable[..., NDArray[np.floating]]
N = 5


def test_arrays_of_another_gpu_are_refused(fake_gpu: Any, spd: Spd) -> None:
    given = on_device(spd(10, N))
    cholesky(Foreign(given))
    fake_gpu.other_gpus[int(given.gpudata)] = 1
    with pytest.raises(ValueError, match=r"a: got an array of GPU 1, expected one of GPU 0.*batchchol.gpus\(1\)"):
        cholesky(Foreign(given))


def test_batches_are_worked_on_where_they_live(fake_gpu: Any, spd: Spd) -> None:
    fake_gpu.gpus, a = 2, spd(64, N)
    with gpus.gpus(1):
        batch, sides = DeviceBatch.from_dense(a), on_device(np.ones((64, N), np.float32))
    assert (batch.gpu, gpus.first()) == (1, 0)
    l, info = factor(batch)
    x = solve(batch, sides)
    batch.put(0, batch.get(0, 64))
    np.testing.assert_allclose(memory.to_host(l.to_dense()), np.linalg.cholesky(a), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(l.to_host().to_dense(), memory.to_host(l.to_dense()))
    assert {memory.gpu_of(each) for each in (l.data, info, x, batch.copy().data, batch.like().data)} == {1}
    assert set(fake_gpu.ran_on) == {1}


def test_arrays_of_the_host_are_shared_out(fake_gpu: Any, spd: Spd, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpu.gpus, a = 2, spd(3000, N)
    for numbers in ((0, 1), (1,), (1, 0)):
        fake_gpu.ran_on.clear()
        with gpus.gpus(*numbers):
            found = cholesky(a, backend="cuda")
        np.testing.assert_allclose(found, np.linalg.cholesky(a), rtol=1e-5, atol=1e-6)
        assert set(fake_gpu.ran_on) == set(numbers)
    assert not fake_gpu.used - memory.kept_bytes() - memory._pool_of(device_of(1)).kept


def test_the_context_that_others_made_current_stays_so(fake_gpu: Any, spd: Spd) -> None:
    fake_gpu.gpus, a = 2, spd(10, N)
    cholesky(a, backend="cuda")
    with gpus.gpus(1):
        cholesky(a, backend="cuda")
    other = device_of(1).driver.current_context() + 1
    device_of(1).driver.make_current(other)
    for number in (0, 1):
        with gpus.gpus(number):
            cholesky(a, backend="cuda")
        assert device_of(1).driver.current_context() == other


def test_numbers_of_gpus(fake_gpu: Any, spd: Spd) -> None:
    for wrong in ((), (-1,), (0, 0)):
        with pytest.raises(ValueError, match=r"^numbers: got"), gpus.gpus(*wrong):
            pass
    with pytest.raises(TypeError, match=r"^numbers: got 'cuda', expected an integer"), gpus.gpus("cuda"):  # type: ignore
        pass
    with gpus.gpus(1), pytest.raises(BackendUnavailable, match="there is no GPU 1: the NVIDIA driver finds 1"):
        cholesky(spd(2, N), backend="cuda")
    assert gpus.chosen() == (0,)
