"""Batch: what is put in comes out, padding is identities, and what does not fit is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from batchchol import Batch, Layout, factor
from batchchol.artifacts.c_library import supported_targets
from batchchol.batches import host_memory
from batchchol.batches.batch import default_layout, info_array
from batchchol.batches.layouts import array_shape, dense_view
from batchchol.errors import OutOfMemory
from kernelgen import SIMD_TARGETS

from ...offsets import element_offset

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
    other = lower.to_layout(Layout.chunked(8))
    assert other.triangle == "lower"
    np.testing.assert_array_equal(other.to_dense(), np.tril(dense))
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
    single = np.array(3, dtype="float32")
    for dense in (numbers(4, 2), right[:, :, :2], right[0], right.astype("float64"), right.astype(int), single):
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
        with pytest.raises(TypeError, match=f"^a: got dtype {dtype}, expected float32 or float64"):
            Batch.from_dense(np.ones((2, 3, 3), dtype=dtype))
    with pytest.raises(ValueError, match="a: got matrices of order 0, expected 1 or more: cholesky takes"):
        Batch.from_dense(np.ones((2, 0, 0)))


def test_empty_of_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="n: got 0, expected 1 or more: cholesky takes"):
        Batch.empty(0, 10**6)
    with pytest.raises(ValueError, match="batch: got -1"):
        Batch.empty(3, -1)
    for n, count, argument in [(True, 4, "n"), ("6", 4, "n"), (6.0, 4, "n"), (6, True, "batch"), (6, None, "batch")]:
        with pytest.raises(TypeError, match=f"^{argument}: got .*, expected an integer"):
            Batch.empty(n, count)  # type: ignore[arg-type]
    for dtype in ("junk", "int32", 7, "f4,f4"):
        with pytest.raises(TypeError, match=f"^dtype: got {dtype!r}, expected 'float32' or 'float64'"):
            Batch.empty(3, 4, dtype=dtype)
        with pytest.raises(TypeError, match=f"^dtype: got {dtype!r}, expected 'float32' or 'float64'"):
            default_layout(dtype)
    with pytest.raises(TypeError, match="layout: got 'chunked', expected a Layout"):
        Batch.empty(3, 4, "chunked")  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", EVERY_KIND, ids=str)
def test_integers_of_numpy_are_integers(layout: Layout) -> None:
    dense = numbers(200, 6)
    batch = Batch.empty(np.int64(6), np.uint8(200), layout)  # type: ignore[arg-type]
    assert (type(batch.n), type(batch.batch)) == (int, int)
    batch.put(np.int8(0), dense[:120])  # type: ignore[arg-type]
    batch.put(np.int8(120), dense[120:])  # type: ignore[arg-type]
    np.testing.assert_array_equal(batch.get(np.int8(7), np.uint8(200)), dense[7:])  # type: ignore[arg-type]


def test_places_that_are_no_integers_are_refused() -> None:
    batch = Batch.from_dense(numbers(10, 3))
    for start in (0.5, "0", None, True):
        with pytest.raises(TypeError, match=r"start: got .*, expected an integer"):
            batch.put(start, numbers(3, 3))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"start: got .*, expected an integer"):
            batch.get(start, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"stop: got 3\.0, expected an integer"):
        batch.get(0, 3.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", EVERY_KIND, ids=str)
def test_read_only_batches_are_not_written(layout: Layout) -> None:
    batch = Batch.from_dense(numbers(10, 3), layout)
    batch.data.flags.writeable = False
    with pytest.raises(ValueError, match="data: the array of the batch is read-only"):
        batch.put(0, numbers(4, 3))


def masked(a: Array) -> Array:
    """The array with one element masked."""
    mask = np.zeros(a.shape, dtype=bool)
    mask[-1, 0, 0] = True
    return np.ma.array(a, mask=mask)


def test_masked_elements_are_refused_and_arrays_that_could_have_some_are_not() -> None:
    a = numbers(10, 3)
    batch = Batch.from_dense(a)
    calls: list[tuple[str, Callable[[], object]]] = [
        ("a", lambda: Batch.from_dense(masked(a))),
        ("dense", lambda: batch.put(0, masked(a))),
        ("data", lambda: Batch(masked(a), 3, 10, Layout.canonical())),
    ]
    for argument, call in calls:
        with pytest.raises(ValueError, match=rf"^{argument}: got .* masked.*\.filled\(\).*\.data"):
            call()
    np.testing.assert_array_equal(Batch.from_dense(np.ma.array(a)).to_dense(), a)


@pytest.mark.parametrize("layout", EVERY_KIND, ids=str)
def test_a_batch_says_in_a_line_what_it_is(layout: Layout) -> None:
    batch = Batch.empty(6, 37, layout)
    assert repr(batch) == f"Batch(37 × 6×6 float32, {layout})"
    assert repr(batch.marked("lower")) == f"Batch(37 × 6×6 float32, {layout}, triangle=lower)"
    assert len(batch) == 37


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


def test_batches_of_what_is_no_batch_are_refused() -> None:
    one, layout = np.ones((1, 1, 1), dtype=np.float32), Layout.canonical()
    with pytest.raises(TypeError, match=r"data: got list, expected a NumPy array.*Batch\.from_dense"):
        Batch([[1.0]], 1, 1, layout)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="n: got '1', expected an integer"):
        Batch(one, "1", 1, layout)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"batch: got 1\.0, expected an integer"):
        Batch(one, 1, 1.0, layout)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="triangle: got 'L', expected None, 'lower' or 'upper'"):
        Batch(one, 1, 1, layout, "L")
    with pytest.raises(ValueError, match="triangle: got 'L', expected None, 'lower' or 'upper'"):
        Batch(one, 1, 1, layout).marked("L")


def test_a_batch_is_no_array() -> None:
    with pytest.raises(TypeError, match=r"got a Batch, expected an array: use to_dense\(\)"):
        np.asarray(Batch.from_dense(numbers(10, 3)))


def test_batch_that_does_not_fit_says_what_is_needed_and_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 10**8)
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
