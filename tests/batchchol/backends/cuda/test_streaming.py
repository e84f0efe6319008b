"""Arrays of the host through a GPU in slices: every matrix once, wherever slices end, from any memory to any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import cholesky, cholesky_ex
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.arrays import streaming
from batchchol.backends.cuda.device import device

pytestmark = pytest.mark.gpu

Spd = Callable[..., NDArray[np.floating]]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of some 1,024 matrices of order 8."""
    monkeypatch.setattr(streaming, "SLICE_BYTES", 1 << 18)


def close(l: NDArray[Any], a: NDArray[Any]) -> None:
    np.testing.assert_allclose(l, np.linalg.cholesky(a), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("batch", [1, 1024, 1025, 10_001])
@pytest.mark.parametrize(("n", "dtype"), [(8, "float32"), (5, "float64")])
def test_every_matrix_is_factored_once(batch: int, n: int, dtype: str, spd: Spd) -> None:
    a = spd(batch, n).astype(dtype)
    a[batch // 2] = -a[batch // 2]
    kept = a.copy()
    l, info = cholesky_ex(a, backend="cuda")
    assert np.flatnonzero(info).tolist() == [batch // 2]
    good = info == 0
    close(l[good], a[good])
    np.testing.assert_array_equal(a, kept)


def test_from_and_to_any_memory(spd: Spd, tmp_path: Path) -> None:
    a = spd(5000, 8)
    want = cholesky(a, backend="cuda")
    mapped = np.memmap(tmp_path / "a", np.float32, "w+", shape=a.shape)
    mapped[...] = a
    out = np.memmap(tmp_path / "l", np.float32, "w+", shape=a.shape)
    assert cholesky(mapped, backend="cuda", out=out) is out
    np.testing.assert_array_equal(out, want)
    with device().current():
        pinned = device().pycuda.pagelocked_empty(a.shape, np.float32)
        room = device().pycuda.pagelocked_empty(a.shape, np.float32)
    pinned[...] = a
    np.testing.assert_array_equal(cholesky(pinned, backend="cuda", out=room), want)
    np.testing.assert_array_equal(cholesky(a.transpose(0, 2, 1), backend="cuda"), want)
    assert cholesky(a, backend="cuda", out=a) is a
    np.testing.assert_array_equal(a, want)


@pytest.mark.parametrize("at", [1, 4])
def test_an_interruption_leaves_nothing_at_work(at: int, spd: Spd, monkeypatch: pytest.MonkeyPatch) -> None:
    a, calls = spd(10_000, 8), []

    def interrupted(source: NDArray[Any], target: NDArray[Any]) -> None:
        calls.append(None)
        if len(calls) == at:
            raise KeyboardInterrupt
        np.copyto(target, source)

    want = cholesky(a, backend="cuda")
    with monkeypatch.context() as patched:
        patched.setattr(streaming, "copy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cholesky(a, backend="cuda")
    memory.release()
    np.testing.assert_array_equal(cholesky(a, backend="cuda"), want)
