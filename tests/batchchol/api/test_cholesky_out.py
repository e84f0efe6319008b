"""Where cholesky writes: out, of the host and on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import Layout, cholesky, cholesky_ex, default_spec
from batchchol.backends import Backend

from ..backends.cuda.test_batches import on_device

Array = NDArray[Any]
Spd = Callable[..., Array]
N, BATCH = 6, 37


def test_any_strides_and_byte_order(spd: Spd) -> None:
    a = spd(BATCH, N)
    expected, room = cholesky(a), np.zeros((2 * BATCH, N, 2 * N), np.float32)
    for out in (
        np.full((BATCH, N, N), np.nan, np.float32),
        room[::2, :, ::2],
        np.zeros((BATCH, N, N), np.float32).swapaxes(1, 2),
        np.zeros(a.shape, ">f4"),
        np.frombuffer(bytearray(a.nbytes + 1), np.float32, offset=1).reshape(a.shape),
    ):
        assert cholesky(a, out=out) is out
        np.testing.assert_array_equal(out, expected)
    assert not room[1::2].any()
    assert not room[..., 1::2].any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(BATCH, N), (2, 130), (0, N)], ids=str)
@pytest.mark.parametrize("upper", [False, True])
def test_it_may_be_the_matrices(spd: Spd, shape: tuple[int, ...], dtype: str, upper: bool) -> None:
    a = spd(*shape, dtype=dtype)
    expected, info = cholesky_ex(a, upper=upper)
    mine = a.copy()
    found = cholesky_ex(mine, upper=upper, out=mine)
    assert found.L is mine
    np.testing.assert_array_equal(found.info, info)
    np.testing.assert_array_equal(mine, expected)


def test_it_may_share_memory_otherwise(spd: Spd) -> None:
    a = spd(BATCH, N)
    expected = cholesky(a)
    for first, step in ((1, 1), (0, -1)):
        memory = np.concatenate([a, a])
        out = memory[first : first + BATCH][::step]
        assert cholesky(memory[:BATCH], out=out) is out
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("same", [False, True])
def test_what_is_repaired_is_there_too(spd: Spd, same: bool) -> None:
    a = spd(BATCH, N)
    a[5] = 1
    expected = cholesky_ex(a, jitter=0.5)
    mine = a.copy()
    found = cholesky_ex(mine, jitter=0.5, out=mine if same else np.empty_like(a))
    assert expected.added[5] > 0  # type: ignore[union-attr]
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert (found.L is mine) == same


def test_failures_name_the_matrix_though_it_is_overwritten(spd: Spd) -> None:
    a = spd(BATCH, N)
    a[5, 2, 2] = -1
    with pytest.raises(np.linalg.LinAlgError, match=r"matrix 5 .* order 3"):
        cholesky(a, out=a)


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        ([1.0], TypeError, "out: got list, expected an array of the host"),
        (np.empty((BATCH, N, N)), TypeError, "out: got dtype float64, expected float32, that of the factors"),
        (np.empty((N, N), np.float32), ValueError, r"out: got shape \(6, 6\), expected \(37, 6, 6\)"),
        (np.broadcast_to(np.float32(0), (BATCH, N, N)), ValueError, "out: got a read-only array"),
    ],
)
def test_what_cannot_hold_factors_is_refused(spd: Spd, out: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        cholesky(spd(BATCH, N), out=out)


@pytest.mark.parametrize("layout", [Layout.canonical(), Layout.chunked(32)], ids=str)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("same", [False, True])
def test_on_a_gpu(cuda: Backend, spd: Spd, arrays_in: Any, layout: Layout, upper: bool, same: bool) -> None:
    arrays_in(layout)
    a = spd(2, BATCH, N)
    a[1, 4, 3, 3] = -1
    there = on_device(a)
    expected = cholesky_ex(there, upper=upper)
    out = there if same else on_device(np.full_like(a, np.nan))
    found = cholesky_ex(there, upper=upper, out=out)
    assert found.L is out
    np.testing.assert_array_equal(cuda.host(found.info), cuda.host(expected.info))
    assert cuda.host(found.info)[1, 4] == 4
    right = cuda.host(found.info) == 0
    np.testing.assert_array_equal(cuda.host(out)[right], cuda.host(expected.L)[right])
    if not same:
        np.testing.assert_array_equal(cuda.host(there), a)


def test_repairs_on_a_gpu_are_there_too(cuda: Backend, spd: Spd) -> None:
    a = spd(BATCH, N)
    a[5] = 1
    there, out = on_device(a), on_device(np.zeros_like(a))
    expected, found = cholesky_ex(there, jitter=0.5), cholesky_ex(there, jitter=0.5, out=out)
    assert found.L is out
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(cuda.host(got), cuda.host(wanted))


def test_what_cannot_hold_factors_on_a_gpu_is_refused(cuda: Backend, spd: Spd) -> None:
    a = spd(BATCH, N)
    there = on_device(a)
    spec = default_spec(N, target="cuda", layout="canonical", order="row")
    for given, error, message in (
        ({"out": a}, TypeError, "out: got ndarray, expected an array on the GPU, where the factors are made"),
        ({"out": on_device(a[1:])}, ValueError, r"out: got shape \(36, 6, 6\), expected \(37, 6, 6\)"),
        (
            {"out": there, "jitter": "auto"},
            ValueError,
            "out: shares memory with an input, .* memory of its own$",
        ),
        ({"out": there, "spec": spec}, ValueError, "out: shares memory with an input, .* memory of its own$"),
    ):
        with pytest.raises(error, match=message):
            cholesky(there, **given)  # type: ignore[call-overload]
    part, overlapping = there[:20], there[1:21]
    with pytest.raises(ValueError, match="out: shares memory with an input, expected memory of its own, or a itself"):
        cholesky(part, out=overlapping)
    with pytest.raises(TypeError, match=r"out: got .*, expected an array of the host"):
        cholesky(a, out=there)
