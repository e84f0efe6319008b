"""Layouts: shapes, padding and the index map, against the definitions and NumPy's own index arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchchol import Layout, SpecError
from batchchol.batches.layouts import array_shape, dense_view, group_matrices, padded, stride

from ...offsets import element_offset

orders = st.sampled_from(["row", "col"])
layouts = st.one_of(
    st.builds(Layout.canonical, orders),
    st.builds(Layout.interleaved, orders),
    st.builds(Layout.chunked, st.integers(2, 512), orders),
)


def place(layout: Layout, m: int, i: int, j: int) -> tuple[int, ...]:
    """The index of an element into the array, as the layouts are defined."""
    element = (i, j) if layout.order == "row" else (j, i)
    match layout.kind:
        case "canonical":
            return (m, *element)
        case "interleaved":
            return (*element, m)
        case _:
            assert layout.chunk is not None
            return (m // layout.chunk, *element, m % layout.chunk)


@given(layout=layouts, n=st.integers(1, 7), batch=st.integers(1, 70))
def test_index_map_of_whole_batches(layout: Layout, n: int, batch: int) -> None:
    shape = array_shape(n, batch, layout)
    data = np.arange(np.prod(shape)).reshape(shape)
    view = dense_view(data, layout).reshape(-1, n, n)
    assert len(view) == padded(batch, layout)
    members = [(m, i, j) for m in range(batch) for i in range(n) for j in range(n)]
    offsets = [element_offset(n, batch, layout, *member) for member in members]
    assert offsets == [data[place(layout, *member)] for member in members]
    assert offsets == view[:batch].ravel().tolist()
    assert len(set(offsets)) == len(offsets), "no two elements share a place"


@given(data=st.data(), layout=layouts, n=st.integers(1, 128), batch=st.integers(1, 2**40))
def test_index_map_beyond_32_bits(data: st.DataObject, layout: Layout, n: int, batch: int) -> None:
    m = data.draw(st.integers(0, batch - 1))
    i, j = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, n - 1))
    shape = array_shape(n, batch, layout)
    assert element_offset(n, batch, layout, m, i, j) == np.ravel_multi_index(place(layout, m, i, j), shape)


def test_offsets_at_the_ends_of_large_batches() -> None:
    batch = 2**21
    last = batch - 1, 127, 127
    for layout in (Layout.canonical(), Layout.interleaved(), Layout.chunked(512)):
        assert element_offset(128, batch, layout, *last) == 2**35 - 1
    assert element_offset(128, batch, Layout.interleaved("row"), 5, 127, 0) == 127 * 2**28 + 5
    assert element_offset(128, batch, Layout.interleaved("col"), 5, 127, 0) == 127 * 2**21 + 5


@given(layout=layouts, batch=st.integers(0, 2**40))
def test_room_is_whole_groups_and_no_more(layout: Layout, batch: int) -> None:
    group = group_matrices(layout)
    assert padded(batch, layout) % group == 0
    assert batch <= padded(batch, layout) < batch + group


@pytest.mark.parametrize(
    ("layout", "shape", "apart"),
    [
        (Layout.canonical(), (33, 3, 3), 1),
        (Layout.interleaved(), (3, 3, 64), 64),
        (Layout.chunked(16), (3, 3, 3, 16), 16),
        (Layout.chunked(17, "row"), (2, 3, 3, 17), 17),
        (Layout.chunked(512), (1, 3, 3, 512), 512),
    ],
    ids=str,
)
def test_shapes_and_strides(layout: Layout, shape: tuple[int, ...], apart: int) -> None:
    assert array_shape(3, 33, layout) == shape
    assert stride(33, layout) == apart


@pytest.mark.parametrize("layout", [Layout.canonical(), Layout.interleaved(), Layout.chunked(16)], ids=str)
def test_places_outside_the_batch_are_refused(layout: Layout) -> None:
    for outside in [(33, 0, 0), (-1, 0, 0), (0, 3, 0), (0, 0, 3), (0, -1, 0), (0, 0, -1)]:
        with pytest.raises(IndexError, match="outside a batch of 33 matrices of order 3"):
            element_offset(3, 33, layout, *outside)
    with pytest.raises(ValueError, match="batch: got -1"):
        array_shape(3, -1, layout)
    with pytest.raises(TypeError, match=r"batch: got 2\.5, expected an integer"):
        array_shape(3, 2.5, layout)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="layout: got 'chunked', expected a Layout"):
        array_shape(3, 2, "chunked")  # type: ignore[arg-type]


def test_layouts_that_cannot_be_are_refused() -> None:
    for chunk in (1, 0, -8, 513, None, 8.0, True):
        with pytest.raises(SpecError, match=r"chunk=.* use an integer from 2 to 512"):
            Layout("chunked", chunk)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"chunk=8 .*has no chunk"):
        Layout("canonical", 8)
    with pytest.raises(SpecError, match="order='C'"):
        Layout.canonical("C")
    with pytest.raises(SpecError, match=r"layout='blocked'.*'canonical', 'interleaved', 'chunked'"):
        Layout("blocked")
