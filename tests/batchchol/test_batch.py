"""Batch: what is put in comes out, padding is identities, and what does not fit is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from batchchol import Batch, Layout, factor, memory
from batchchol.batch import default_layout, info_array
from batchchol.errors import OutOfMemory
from batchchol.layouts import array_shape, dense_view, element_offset
from batchchol.native import supported_targets
from kernelgen import SIMD_TARGETS

Array = NDArray[np.floating]
Spd = Callable[..., Array]

CHUNKS = (2, 3, 8, 16, 17, 32, 48, 512)
orders = st.sampled_from(["row", "col"])
layouts = st.one_of(
    st.builds(Layout.canonical, orders),
    st.builds(Layout.interleaved, orders),
    st.builds(Layout.chunked, st.sampled_from(CHUNKS), orders),
)
dtypes = st.sampled_from(["float32", "float64"])
counts = st.one_of(st.integers(0, 70), st.sampled_from([511, 512, 513, 1000]))
EVERY_KIND = [Layout.canonical(), Layout.canonical("col"), Layout.interleaved(), Layout.chunked(16)]


def numbers(count: int, n: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(count).standard_normal((count, n, n)).astype(dtype)


@given(layout=layouts, dtype=dtypes, n=st.sampled_from([1, 2, 3, 5, 8, 17]), count=counts)
def test_round_trip(layout: Layout, dtype: str, n: int, count: int) -> None:
    dense = numbers(count, n, dtype)
    batch = Batch.from_dense(dense, layout)
    assert (batch.n, batch.batch, batch.layout, batch.dtype, batch.triangle) == (n, count, layout, dtype, None)
    assert batch.data.shape == array_shape(n, count, layout)
    assert batch.nbytes == batch.data.nbytes
    back = batch.to_dense()
    np.testing.assert_array_equal(back, dense)
    assert back.dtype == dense.dtype
    assert back.flags.c_contiguous
    assert not np.may_share_memory(back, batch.data)
    padding = dense_view(batch.data, layout).reshape(-1, n, n)[count:]
    np.testing.assert_array_equal(padding, np.broadcast_to(np.eye(n), padding.shape))


@pytest.mark.parametrize("n", [33, 100, 128])
@pytest.mark.parametrize("layout", EVERY_KIND, ids=str)
def test_round_trip_of_large_orders(layout: Layout, n: int) -> None:
    dense = numbers(37, n)
    np.testing.assert_array_equal(Batch.from_dense(dense, layout).to_dense(), dense)


@given(layout=layouts, count=st.integers(1, 70), n=st.integers(1, 6), where=st.data())
def test_elements_lie_where_the_index_map_says(layout: Layout, count: int, n: int, where: st.DataObject) -> None:
    dense = numbers(count, n)
    flat = Batch.from_dense(dense, layout).data.ravel()
    m = where.draw(st.integers(0, count - 1))
    i, j = where.draw(st.integers(0, n - 1)), where.draw(st.integers(0, n - 1))
    assert flat[element_offset(n, count, layout, m, i, j)] == dense[m, i, j]


@given(layout=layouts, dtype=dtypes, count=st.integers(1, 100), where=st.data())
def test_put_and_get_of_any_range(layout: Layout, dtype: str, count: int, where: st.DataObject) -> None:
    expected = numbers(count, 3, dtype)
    batch = Batch.from_dense(expected, layout)
    for seed in range(3):
        start = where.draw(st.integers(0, count))
        stop = where.draw(st.integers(start, count))
        piece = np.random.default_rng(seed).random((stop - start, 3, 3)).astype(dtype)
        batch.put(start, piece)
        expected[start:stop] = piece
        np.testing.assert_array_equal(batch.get(start, stop), piece)
    np.testing.assert_array_equal(batch.to_dense(), expected)
    padding = dense_view(batch.data, layout).reshape(-1, 3, 3)[count:]
    np.testing.assert_array_equal(padding, np.broadcast_to(np.eye(3), padding.shape))


@given(before=layouts, after=layouts, count=counts, dtype=dtypes)
def test_every_layout_converts_to_every_other(before: Layout, after: Layout, count: int, dtype: str) -> None:
    dense = numbers(count, 3, dtype)
    batch = Batch.from_dense(dense, before)
    converted = batch.to_layout(after)
    assert converted.layout == after
    np.testing.assert_array_equal(converted.to_dense(), dense)
    np.testing.assert_array_equal(batch.to_dense(), dense)
    assert not np.may_share_memory(converted.data, batch.data)


def test_conversion_in_several_slices() -> None:
    dense = numbers(1500, 32)
    converted = Batch.from_dense(dense, Layout.chunked(48)).to_layout(Layout.interleaved())
    np.testing.assert_array_equal(converted.to_dense(), dense)


@pytest.mark.parametrize(
    "view",
    [np.asfortranarray, lambda a: a.repeat(2, axis=0)[::2], lambda a: a.astype(">f4"), lambda a: a.swapaxes(1, 2)],
    ids=["Fortran order", "every other matrix", "big-endian", "axes exchanged"],
)
@pytest.mark.parametrize("layout", EVERY_KIND, ids=str)
def test_from_dense_takes_any_memory_order(layout: Layout, view: Callable[[Array], Array]) -> None:
    dense = view(numbers(19, 5))
    batch = Batch.from_dense(dense, layout)
    assert batch.dtype.isnative
    np.testing.assert_array_equal(batch.to_dense(), dense)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_default_layout_is_what_the_widest_simd_factors_at_once(dtype: str) -> None:
    layout = default_layout(dtype)
    assert layout == Layout.chunked(SIMD_TARGETS[supported_targets()[0]].lanes(dtype))
    assert Batch.from_dense(numbers(19, 5, dtype)).layout == Batch.empty(5, 19, dtype=dtype).layout == layout


@pytest.mark.parametrize("layout", EVERY_KIND, ids=str)
def test_arrays_are_aligned_and_zero_copy(layout: Layout) -> None:
    batch = Batch.empty(5, 19, layout)
    assert batch.data.ctypes.data % 64 == 0
    again = Batch(batch.data, 5, 19, layout)
    again.put(0, numbers(19, 5))
    np.testing.assert_array_equal(batch.to_dense(), numbers(19, 5))


@pytest.mark.parametrize("layout", EVERY_KIND, ids=str)
def test_triangle_that_has_no_meaning_reads_as_zero(spd: Spd, layout: Layout) -> None:
    dense = numbers(37, 5)
    data = Batch.from_dense(dense, layout).data
    lower, upper = Batch(data, 5, 37, layout, "lower"), Batch(data, 5, 37, layout, "upper")
    np.testing.assert_array_equal(lower.to_dense(), np.tril(dense))
    np.testing.assert_array_equal(upper.to_dense(), np.triu(dense))
    np.testing.assert_array_equal(lower.get(3, 21), np.tril(dense[3:21]))
    np.testing.assert_array_equal(lower.to_layout(Layout.chunked(8)).to_dense(), np.tril(dense))
    factored = factor(Batch.from_dense(spd(37, 5), layout)).L
    assert factored.triangle == "lower"
    np.testing.assert_array_equal(factored.to_dense(), np.tril(factored.to_dense()))


def test_ranges_outside_the_batch_are_refused() -> None:
    batch = Batch.from_dense(numbers(10, 3))
    for start, stop in [(-1, 3), (0, 11), (5, 4), (11, 11)]:
        with pytest.raises(IndexError, match=f"matrices {start} to {stop} are outside a batch of 10"):
            batch.get(start, stop)
    for start in (-1, 8, 10):
        with pytest.raises(IndexError, match="outside a batch of 10"):
            batch.put(start, numbers(3, 3))
    assert batch.get(10, 10).shape == (0, 3, 3)
    batch.put(10, numbers(0, 3))
    np.testing.assert_array_equal(batch.to_dense(), numbers(10, 3))


@pytest.mark.parametrize("layout", EVERY_KIND, ids=str)
def test_put_of_other_shapes_and_dtypes_is_refused(layout: Layout) -> None:
    batch = Batch.from_dense(numbers(10, 3), layout)
    right = numbers(4, 3)
    for dense in (numbers(4, 2), right[:, :, :2], right[0], right.astype("float64"), right.astype(int)):
        with pytest.raises(ValueError, match=r"dense: got .* expected float32 of shape \(count, 3, 3\)"):
            batch.put(0, dense)
    np.testing.assert_array_equal(batch.to_dense(), numbers(10, 3))


def test_from_dense_of_other_shapes_and_dtypes_is_refused() -> None:
    for shape in [(3, 3), (2, 3, 4), (2, 2, 3, 3), (9,)]:
        with pytest.raises(ValueError, match=r"a: got shape .* expected \(batch, n, n\)"):
            Batch.from_dense(np.ones(shape, dtype=np.float32))
    with pytest.raises(TypeError, match="a: got list, expected an array"):
        Batch.from_dense([[[1.0]]])
    with pytest.raises(TypeError, match="dense: got list, expected an array"):
        Batch.empty(1, 1).put(0, [[[1.0]]])  # type: ignore[arg-type]
    for dtype in ("int64", "float16", "complex64"):
        with pytest.raises(TypeError, match=f"got dtype {dtype}, expected float32 or float64"):
            Batch.from_dense(np.ones((2, 3, 3), dtype=dtype))
    for n in (0, 129):
        with pytest.raises(ValueError, match=f"n: got {n}, expected 1 to 128"):
            Batch.from_dense(np.ones((2, n, n), dtype=np.float32))
    with pytest.raises(ValueError, match="batch: got -1"):
        Batch.empty(3, -1)


def test_batches_are_compared_by_identity() -> None:
    batch = Batch.from_dense(numbers(10, 3))
    assert batch == batch  # noqa: PLR0124
    assert batch != Batch.from_dense(numbers(10, 3))
    assert len({batch, batch}) == 1


def test_array_of_another_shape_is_refused() -> None:
    room = np.zeros((2, 3, 3, 16), dtype=np.float32)
    assert Batch(room, 3, 17, Layout.chunked(16)).batch == 17
    for count, layout in [(33, Layout.chunked(16)), (16, Layout.chunked(16)), (17, Layout.interleaved())]:
        with pytest.raises(ValueError, match=r"data: got shape \(2, 3, 3, 16\).*Batch.empty or Batch.from_dense"):
            Batch(room, 3, count, layout)
    with pytest.raises(ValueError, match="C-contiguous False"):
        Batch(room.swapaxes(1, 2), 3, 17, Layout.chunked(16))
    with pytest.raises(TypeError, match="data: got dtype >f4, expected native byte order"):
        Batch(room.astype(">f4"), 3, 17, Layout.chunked(16))
    with pytest.raises(TypeError, match="data: got dtype int32"):
        Batch(room.astype("int32"), 3, 17, Layout.chunked(16))


def test_batch_that_does_not_fit_says_what_is_needed_and_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 10**8)
    with pytest.raises(OutOfMemory, match="needs 419,430,400 bytes and 100,000,000 bytes are free") as caught:
        Batch.empty(10, 2**20)
    assert (caught.value.needed, caught.value.free) == (419_430_400, 10**8)
    with pytest.raises(OutOfMemory):
        Batch.empty(128, 2**60)


@pytest.mark.parametrize("layout", EVERY_KIND, ids=str)
def test_info_has_room_for_whole_groups(layout: Layout) -> None:
    batch = Batch.empty(3, 37, layout)
    info = info_array(batch, 8)
    assert info.dtype == np.int32
    assert len(info) % 8 == 0
    assert len(info) >= 37
    assert (info == -1).all(), "what no kernel has written is no result"
