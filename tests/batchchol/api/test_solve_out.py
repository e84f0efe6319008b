"""Where solve writes: out, overwrite_a and overwrite_b."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import Batch, cho_inverse, cho_solve, slogdet_ex, solve
from batchchol.backends.cuda.batches.batch import DeviceBatch

from ...fakes.pycuda import FakeGpu
from ..backends.cuda.test_batches import on_device
from .test_cho_solve import columns
from .test_solve import NRHS, N

Spd = Callable[..., NDArray[Any]]


def test_out_of_any_strides_and_byte_order(spd: Spd) -> None:
    a, b = spd(20, N), columns(20, N, NRHS)
    expected = solve(a, b)
    room = np.zeros((40, N, 2 * NRHS), np.float32)
    for out in (
        room[::2, :, ::2],
        np.zeros((40, N, NRHS), np.float32)[:20],
        np.zeros((20, NRHS, N), np.float32).swapaxes(1, 2),
        np.zeros(b.shape, ">f4"),
        np.frombuffer(bytearray(b.nbytes + 1), np.float32, offset=1).reshape(b.shape),
    ):
        assert solve(a, b, out=out) is out
        np.testing.assert_array_equal(out, expected)
    assert not room[1::2].any()
    assert not room[..., 1::2].any()


def test_out_may_share_memory_with_the_inputs(spd: Spd) -> None:
    a, b = spd(20, N), columns(20, N, N)
    expected = solve(a, b)
    for overlapping in ("a", "b", "part", "reversed"):
        matrices, panels = a.copy(), b.copy()
        memory = np.concatenate([panels, panels])
        panels = memory[:20] if overlapping in ("part", "reversed") else panels
        out = {"a": matrices, "b": panels, "part": memory[1:21], "reversed": memory[:20][::-1]}[overlapping]
        assert solve(matrices, panels, out=out) is out
        np.testing.assert_array_equal(out, expected, err_msg=overlapping)


def test_what_may_be_overwritten(spd: Spd) -> None:
    a, b = spd(20, N), columns(20, N)
    expected = solve(a, b)
    mine, matrices = b.copy(), a.copy()
    x = solve(matrices, mine, overwrite_a=True, overwrite_b=True)
    assert np.may_share_memory(x, mine)
    np.testing.assert_array_equal(x, expected)
    batch, mine = Batch.from_dense(a), b.copy()
    assert np.may_share_memory(solve(batch, mine, overwrite_b=True), mine)
    read_only = np.frombuffer(b.tobytes(), np.float32).reshape(b.shape)
    swapped, halves = b.astype(">f4"), np.repeat(b, 2, axis=1)[:, ::2]
    for other in (read_only, swapped, halves):
        np.testing.assert_array_equal(solve(a, other, overwrite_b=True), expected)
    # The matrices are read while solutions are written.
    square = spd(20, N)
    np.testing.assert_array_equal(solve(square, square, overwrite_b=True), solve(a, a.copy()))


@pytest.mark.parametrize(
    ("out", "error", "words"),
    [
        ([0.0], TypeError, "got list, expected an array of the host"),
        (np.zeros((4, N, 1), "f4"), ValueError, r"got shape \(4, 6, 1\), expected \(4, 6\), that of the solutions"),
        (np.zeros((4, N)), TypeError, "got dtype float64, expected float32"),
        (np.broadcast_to(np.float32(0), (4, N)), ValueError, "got a read-only array"),
        (np.ma.array(np.zeros((4, N), "f4"), mask=np.eye(4, N)), ValueError, "got an array of which elements are"),
    ],
    ids=["list", "shape", "dtype", "read-only", "masked"],
)
def test_places_for_solutions_that_are_refused(spd: Spd, out: Any, error: type[Exception], words: str) -> None:
    for a in (spd(4, N), Batch.from_dense(spd(4, N))):
        with pytest.raises(error, match=f"^out: {words}"):
            solve(a, columns(4, N), out=out)


def test_by_factors_into_given_memory(spd: Spd) -> None:
    a = spd(4, N)
    l, b = np.linalg.cholesky(a), columns(4, N)
    expected, mine = cho_solve(l, b), b.copy()
    out = np.empty_like(b)
    assert cho_solve(l, b, out=out) is out
    np.testing.assert_array_equal(out, expected)
    assert np.shares_memory(cho_solve(l, mine, overwrite_b=True), mine)
    np.testing.assert_array_equal(mine, expected)
    for matrices in (a, spd(4, 130)):
        factors, inverse = np.linalg.cholesky(matrices), np.full_like(matrices, np.nan)
        assert cho_inverse(factors, out=inverse) is inverse
        np.testing.assert_array_equal(inverse, cho_inverse(factors))
    with pytest.raises(ValueError, match=r"out: got shape \(4, 6\), expected \(4, 6, 6\), that of the"):
        cho_inverse(l, out=b)


@pytest.mark.parametrize("n", [N, 40])
def test_factors_and_determinants_of_a_gpu_on_a_stream(fake_gpu: FakeGpu, spd: Spd, n: int) -> None:
    a = spd(4, n)
    l, inverse = on_device(np.linalg.cholesky(a)), on_device(np.empty_like(a))
    assert cho_inverse(l, out=inverse) is inverse
    np.testing.assert_allclose(inverse.get(), np.linalg.inv(a), rtol=1e-3, atol=1e-5)
    fake_gpu.launches.clear()
    for given in (on_device(a), DeviceBatch.from_dense(a)):
        fake_gpu.launches.clear()
        found = slogdet_ex(given, stream=0x77)
        assert fake_gpu.launches[-1][2] == 0x77
        np.testing.assert_allclose(found.logabsdet.get(), np.linalg.slogdet(a).logabsdet, rtol=1e-5)
    with pytest.raises(ValueError, match="stream: got 119, expected None"):
        slogdet_ex(a, stream=0x77)
    np.testing.assert_array_equal(slogdet_ex(a, threads=1).logabsdet, slogdet_ex(a).logabsdet)
