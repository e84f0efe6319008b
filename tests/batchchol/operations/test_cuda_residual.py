"""The GPU's residuals of every matrix, emulated, against the CPU's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import Layout
from batchchol.backends.cuda import support
from batchchol.batches.batch import Batch
from batchchol.operations import residual

from ...matrices import lapack_factor, wishart
from ...support_devices import Device

DTYPES = ("float32", "float64")


def factored(n: int, batch: int, dtype: str) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    a = wishart(batch, n).astype(dtype)
    l, info = lapack_factor(a)
    assert not info.any()
    return a, l


def ratios_of(
    device: Device, a: NDArray[np.floating], l: NDArray[np.floating], layout: Layout, uplo: str = "lower"
) -> NDArray[np.float64]:
    batch, n = a.shape[:2]
    ratios = np.full(batch, -1.0)
    given_, factor = Batch.from_dense(a, layout), Batch.from_dense(l, layout)
    addresses = [device.address(array) for array in (given_.data, factor.data, ratios)]
    support.residual_ratios(device, *addresses, n, batch, layout, a.dtype.name, uplo=uplo)
    return ratios


def check_ratios(found: NDArray[np.float64], expected: NDArray[np.float64], dtype: str = "float32") -> None:
    """Sums in another order differ by float64's roundings, of which a float64 factor's own ratio consists."""
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol={"float32": 1e-7, "float64": 1.0}[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 16, 17, 33, 64])
def test_ratios_are_those_of_the_host(device: Device, n: int, dtype: str) -> None:
    a, l = factored(n, 37, dtype)
    expected = residual.ratios(a, l)
    found = ratios_of(device, a, l, Layout.chunked(32))
    check_ratios(found, expected, dtype)
    assert (found < 1.0).all()


@pytest.mark.parametrize("uplo", ["lower", "upper"])
@pytest.mark.parametrize(
    "layout",
    [
        *(make(order) for make in (Layout.canonical, Layout.interleaved) for order in ("row", "col")),
        Layout.chunked(3, "row"),
        Layout.chunked(5),
        Layout.chunked(48),
    ],
    ids=str,
)
def test_ratios_of_every_layout_read_one_triangle(device: Device, layout: Layout, uplo: str) -> None:
    a, l = factored(11, 35, "float32")
    expected = residual.ratios(a, l)
    rubbish = np.triu(np.full((11, 11), np.nan, np.float32), 1)
    a, l = a + rubbish, l + rubbish
    if uplo == "upper":
        a, l = a.swapaxes(1, 2), l.swapaxes(1, 2)
    check_ratios(ratios_of(device, a, l, layout, uplo), expected)


def spoil_product(a: NDArray[np.floating], l: NDArray[np.floating]) -> None:
    l[..., -1, 0] *= 1.01


def spoil_sign(a: NDArray[np.floating], l: NDArray[np.floating]) -> None:
    l[..., :, 1] *= -1


def spoil_factor(a: NDArray[np.floating], l: NDArray[np.floating]) -> None:
    l[..., -1, 2] = np.inf


def spoil_input(a: NDArray[np.floating], l: NDArray[np.floating]) -> None:
    a[..., -1, 2] = np.nan


def spoil_nothing(a: NDArray[np.floating], l: NDArray[np.floating]) -> None:
    """No error off the diagonal, where none is allowed either."""
    a[...] = l[...] = 0
    l[..., range(a.shape[-1]), range(a.shape[-1])] = 1


@pytest.mark.parametrize("spoil", [spoil_product, spoil_sign, spoil_factor, spoil_input, spoil_nothing])
@pytest.mark.parametrize("n", [5, 20])
def test_wrong_factors_have_the_ratios_of_the_host(
    device: Device, spoil: Callable[[NDArray[np.floating], NDArray[np.floating]], None], n: int
) -> None:
    a, l = factored(n, 3, "float32")
    fine = residual.ratios(a, l)
    spoil(a[1:2], l[1:2])
    expected = residual.ratios(a, l)
    assert expected[1] > 100 * fine[1]
    check_ratios(ratios_of(device, a, l, Layout.chunked(32)), expected)
