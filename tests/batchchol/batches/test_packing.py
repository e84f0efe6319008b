"""Packing: the generated copies against NumPy's on every alignment, and nothing but their slots written."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchchol import Layout
from batchchol.artifacts.c_library import supported_targets
from batchchol.batches import packing
from batchchol.batches.layouts import array_shape, dense_view, padded
from batchchol.batches.packing import Slots, pack, unpack
from kernelgen import SIMD_TARGETS

SENTINEL = 2.0**100
BATCH = 100

orders = st.sampled_from(["row", "col"])
chunks = st.sampled_from([2, 3, 4, 8, 16, 17, 24, 32, 48, 512])
layouts = st.one_of(st.builds(Layout.interleaved, orders), st.builds(Layout.chunked, chunks, orders))
dtypes = st.sampled_from(["float32", "float64"])
# Ranges at and off the borders of SIMD groups.
bounds = st.tuples(*[st.one_of(st.integers(0, BATCH), st.sampled_from([0, 8, 16, 32, 64, 96, BATCH]))] * 2)
ORDERS_TRIED = [1, 2, 3, 4, 5, 8, 11, 33]


def slots_of(layout: Layout, n: int, dtype: str, first: int, last: int) -> Slots:
    packed = np.full(array_shape(n, BATCH, layout), SENTINEL, dtype=dtype)
    return Slots(packed, n, BATCH, layout, first, last)


def numbers(count: int, n: int, dtype: str) -> np.ndarray:
    return np.random.default_rng(n).random((count, n, n)).astype(dtype)


@given(layout=layouts, dtype=dtypes, n=st.sampled_from(ORDERS_TRIED), range_=bounds.map(sorted))
def test_pack_writes_its_slots_and_nothing_else(layout: Layout, dtype: str, n: int, range_: list[int]) -> None:
    first, last = range_
    slots = slots_of(layout, n, dtype, first, last)
    dense = numbers(last - first, n, dtype)
    expected = slots_of(layout, n, dtype, first, last)
    reference = dense_view(expected.packed, layout)
    reference[slots.places()] = dense
    if last == BATCH and first < last and slots.target() is not None:
        # Writing the last matrix by whole groups makes identities of the room behind it.
        for m in range(BATCH, padded(BATCH, layout)):
            reference[m // reference.shape[1], m % reference.shape[1]] = np.eye(n)
    if first < last:
        pack(dense, slots)
    np.testing.assert_array_equal(slots.packed, expected.packed)


@given(
    layout=layouts,
    dtype=dtypes,
    n=st.sampled_from(ORDERS_TRIED),
    range_=bounds.map(sorted),
    clear=st.sampled_from([None, "upper", "lower"]),
)
def test_unpack_reads_its_slots(layout: Layout, dtype: str, n: int, range_: list[int], clear: str | None) -> None:
    first, last = range_
    whole = slots_of(layout, n, dtype, 0, BATCH)
    dense = numbers(BATCH, n, dtype)
    dense_view(whole.packed, layout)[whole.places()] = dense
    # A margin on either side, to see that no more than the slots is written.
    room = np.full((last - first + 2, n, n), SENTINEL, dtype=dtype)
    if first < last:
        unpack(Slots(whole.packed, n, BATCH, layout, first, last), room[1:-1], clear)
    triangle = {None: dense, "upper": np.tril(dense), "lower": np.triu(dense)}[clear]
    np.testing.assert_array_equal(room[1:-1], triangle[first:last])
    np.testing.assert_array_equal(room[[0, -1]], SENTINEL)


@pytest.mark.parametrize("target", supported_targets())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 3, 9, 16])
def test_every_simd_moves_the_same(monkeypatch: pytest.MonkeyPatch, target: str, dtype: str, n: int) -> None:
    monkeypatch.setattr(packing, "supported_targets", lambda: (target,))
    for layout in (Layout.chunked(16), Layout.chunked(32, "row"), Layout.interleaved()):
        slots = slots_of(layout, n, dtype, 0, BATCH)
        assert slots.target() == target
        dense = numbers(BATCH, n, dtype)
        pack(dense, slots)
        np.testing.assert_array_equal(dense_view(slots.packed, layout)[slots.places()], dense)
        back = np.empty_like(dense)
        unpack(slots, back)
        np.testing.assert_array_equal(back, dense)


def test_simd_is_the_widest_that_moves_whole_groups() -> None:
    widest = supported_targets()[0]
    lanes = SIMD_TARGETS[widest].lanes("float32")
    assert slots_of(Layout.chunked(lanes), 3, "float32", 0, BATCH).target() == widest
    assert slots_of(Layout.chunked(lanes), 3, "float32", lanes, 3 * lanes).target() == widest
    assert slots_of(Layout.chunked(12), 3, "float32", 0, BATCH).target() == "generic"
    assert slots_of(Layout.chunked(17), 3, "float32", 0, BATCH).target() is None
    assert slots_of(Layout.chunked(lanes), 3, "float32", 1, BATCH).target() is None
    assert slots_of(Layout.chunked(lanes), 3, "float32", 0, BATCH - 1).target() is None


@pytest.mark.parametrize("layout", [Layout.interleaved(), Layout.chunked(16), Layout.chunked(48, "row")], ids=str)
def test_threads_move_the_same(monkeypatch: pytest.MonkeyPatch, layout: Layout) -> None:
    n, count = 9, 20_011
    dense = numbers(count, n, "float32")
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("BATCHCHOL_THREADS", threads)
        slots = Slots(np.zeros(array_shape(n, count, layout), np.float32), n, count, layout, 0, count)
        pack(dense, slots)
        np.testing.assert_array_equal(dense_view(slots.packed, layout)[slots.places()], dense)
        back = np.empty_like(dense)
        unpack(slots, back, "upper")
        np.testing.assert_array_equal(back, np.tril(dense))


@pytest.mark.parametrize("layout", [Layout.chunked(16), Layout.chunked(17)], ids=str)
def test_read_only_arrays_are_not_written(layout: Layout) -> None:
    slots = slots_of(layout, 3, "float32", 0, BATCH)
    slots.packed.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        pack(numbers(BATCH, 3, "float32"), slots)
    assert (slots.packed == np.float32(SENTINEL)).all()
