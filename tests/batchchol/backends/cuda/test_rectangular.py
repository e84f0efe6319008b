"""Packed batches of rectangles on a GPU: the same as on the host, emulated and on a real GPU."""

from __future__ import annotations

import numpy as np
import pytest

from batchchol import Layout, RectangularBatch
from batchchol.backends import Backend
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.batches.rectangular import DeviceRectangularBatch

LAYOUTS = (
    Layout.chunked(32),
    Layout.chunked(5, "row"),
    Layout.interleaved(),
    Layout.canonical(),
    Layout.canonical("col"),
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_rectangles_lie_as_on_the_host(cuda: Backend, layout: Layout) -> None:
    a = np.arange(37 * 6 * 4, dtype=np.float32).reshape(37, 6, 4)
    for given in (a, memory.to_device(a, "matrices")):
        there, here = cuda.from_rectangles(given, layout), RectangularBatch.from_dense(a, layout)
        np.testing.assert_array_equal(cuda.host(there.data), here.data)
        np.testing.assert_array_equal(cuda.host(there.to_dense()), a)
        np.testing.assert_array_equal(here.to_dense(), a)
        np.testing.assert_array_equal(cuda.host(there.squares().to_dense()), np.triu(a[:, :4]))
        np.testing.assert_array_equal(there.squares().to_host().data, here.squares().data)
    assert cuda.from_rectangles(a[:0], layout).to_dense().shape == (0, 6, 4)
    with pytest.raises(TypeError, match=r"^data: got ndarray, expected a pycuda"):
        DeviceRectangularBatch(a, 6, 4, 37, Layout.canonical("row"))
