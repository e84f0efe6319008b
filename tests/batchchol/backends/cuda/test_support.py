"""The GPU's support kernels, emulated: copies against NumPy's, data sets bit for bit."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from batchchol import Layout
from batchchol.backends.cuda import support
from batchchol.backends.cuda.batches import filling
from batchchol.batches.batch import Batch
from batchchol.batches.layouts import array_shape, dense_view, padded
from batchchol.datasets import generation, recipes
from batchchol.operations import residual

from ....fenced_memory import sparse_zeros
from ....matrices import lapack_factor
from ....support_devices import Device, EmulatedDevice

SENTINEL = 2.0**100
DTYPES = ("float32", "float64")

orders = st.sampled_from(["row", "col"])
chunks = st.sampled_from([2, 3, 4, 5, 8, 16, 24, 31, 32, 33, 48, 65, 68, 96, 100, 512])
layouts = st.one_of(
    st.builds(Layout.canonical, orders),
    st.builds(Layout.interleaved, orders),
    st.builds(Layout.chunked, chunks, orders),
)
sizes = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 18, 31, 32, 33])
dtypes = st.sampled_from(DTYPES)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[int, int, int]:
    """A batch, and matrices first, ..., last - 1 of it: often all of them, often whole groups."""
    batch = draw(st.one_of(st.integers(1, 150), st.sampled_from([32, 64, 96, 128])))
    bounds = st.one_of(st.integers(0, batch), st.sampled_from([0, batch, batch // 32 * 32]))
    first, last = sorted((draw(bounds), draw(bounds)))
    return batch, first, last


def numbers(count: int, n: int, dtype: str) -> NDArray[np.floating]:
    return np.random.default_rng((count, n)).random((count, n, n)).astype(dtype)


def packed_like(n: int, batch: int, layout: Layout, dtype: str) -> NDArray[np.floating]:
    return np.full(array_shape(n, batch, layout), SENTINEL, dtype=dtype)


def flat(packed: NDArray[np.floating], layout: Layout) -> NDArray[np.floating]:
    """The matrices of a packed array, padding included: a copy of shape (room, n, n)."""
    view = dense_view(packed, layout)
    return view.reshape(-1, *view.shape[2:])


def check_pack(device: Device, layout: Layout, dtype: str, n: int, batch: int, first: int, last: int) -> None:
    dense, packed = numbers(last - first, n, dtype), packed_like(n, batch, layout, dtype)
    support.pack(
        device, device.address(dense), device.address(packed), n, batch, layout, dtype, first=first, last=last
    )
    expected = np.full((padded(batch, layout), n, n), SENTINEL, dtype=dtype)
    expected[first:last] = dense
    if last == batch:
        expected[batch:] = np.eye(n)
    np.testing.assert_array_equal(flat(packed, layout), expected)


def check_unpack(
    device: Device, layout: Layout, dtype: str, n: int, batch: int, first: int, last: int, clear: str | None = None
) -> None:
    whole, packed = numbers(batch, n, dtype), packed_like(n, batch, layout, dtype)
    places = np.divmod(np.arange(batch), dense_view(packed, layout).shape[1])
    dense_view(packed, layout)[places] = whole
    packed.flags.writeable = False
    dense = np.full((last - first, n, n), SENTINEL, dtype=dtype)
    support.unpack(
        device, device.address(packed), device.address(dense), n, batch, layout, dtype,
        first=first, last=last, clear=clear,
    )  # fmt: skip
    triangle = {None: whole, "upper": np.tril(whole), "lower": np.triu(whole)}[clear]
    np.testing.assert_array_equal(dense, triangle[first:last])


@settings(max_examples=150)
@given(layout=layouts, dtype=dtypes, n=sizes, range_=ranges())
@example(Layout.chunked(2), "float32", 33, (5, 1, 4))
@example(Layout.chunked(48), "float64", 16, (100, 0, 100))
def test_pack_writes_its_matrices_and_the_padding(
    device: Device, layout: Layout, dtype: str, n: int, range_: tuple[int, int, int]
) -> None:
    check_pack(device, layout, dtype, n, *range_)


@settings(max_examples=150)
@given(layout=layouts, dtype=dtypes, n=sizes, range_=ranges(), clear=st.sampled_from([None, "upper", "lower"]))
@example(Layout.chunked(4), "float32", 33, (9, 0, 9), "upper")
def test_unpack_reads_its_matrices(
    device: Device, layout: Layout, dtype: str, n: int, range_: tuple[int, int, int], clear: str | None
) -> None:
    check_unpack(device, layout, dtype, n, *range_, clear)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "axes", "broadcast"),
    [
        ((1000,), (0,), ()),
        ((3, 4, 5), (2, 0, 1), ()),
        ((1, 7, 1, 2), (0, 1, 2, 3), (0, 2)),
        ((2, 1, 3, 1, 5, 1), (1, 3, 0, 4, 2, 5), (1, 3, 5)),
        ((40, 6, 2), (1, 0, 2), ()),
    ],
    ids=str,
)
def test_gather_copies_any_strides(
    device: Device, shape: tuple[int, ...], axes: tuple[int, ...], broadcast: tuple[int, ...], dtype: str
) -> None:
    source = np.random.default_rng(len(shape)).random(shape).astype(dtype)
    whole = tuple(4 if axis in broadcast else size for axis, size in enumerate(shape))
    expected = np.ascontiguousarray(np.broadcast_to(source, whole).transpose(axes))
    steps = tuple(step // source.itemsize for step in np.broadcast_to(source, whole).transpose(axes).strides)
    found = np.full(expected.shape, SENTINEL, dtype)
    source.flags.writeable = False
    support.gather(device, device.address(source), device.address(found), expected.shape, steps, dtype)
    np.testing.assert_array_equal(found, expected)


def test_gather_refuses_more_axes_than_it_has(device: Device) -> None:
    with pytest.raises(ValueError, match=r"^sizes: got .*, expected at most 6 axes apart"):
        support.gather(device, 0, 0, (2,) * 7, (1, 0) * 3 + (1,), "float32")


LARGE = (
    Layout.canonical("col"),
    Layout.interleaved(),
    *(Layout.chunked(chunk, order) for chunk, order in ((2, "col"), (3, "row"), (16, "col"), (33, "col"))),
)


# Every pair of a layout, an order and a dtype.
@pytest.mark.parametrize(
    ("layout", "n", "dtype"),
    [
        (layout, n, DTYPES[(row + column) % 2])
        for row, layout in enumerate(LARGE)
        for column, n in enumerate((64, 127, 128))
    ],
    ids=str,
)
def test_large_matrices_are_copied_in_pieces(device: Device, layout: Layout, n: int, dtype: str) -> None:
    check_pack(device, layout, dtype, n, 35, 0, 35)
    check_unpack(device, layout, dtype, n, 35, 1, 34, "upper")


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_may_begin_anywhere(dtype: str) -> None:
    n, batch, layout = 8, 40, Layout.chunked(32)
    dense, room = numbers(batch, n, dtype), padded(batch, layout) * n * n
    packed = np.zeros(room + 1, dtype)[1:]
    back = np.zeros(dense.size + 1, dtype)[1:]
    shifted = np.concatenate([np.zeros(1, dtype), dense.ravel()])[1:]
    assert all(array.ctypes.data % 16 for array in (packed, back, shifted))
    unfenced = EmulatedDevice(fenced=False)
    support.pack(unfenced, shifted.ctypes.data, packed.ctypes.data, n, batch, layout, dtype)
    support.unpack(unfenced, packed.ctypes.data, back.ctypes.data, n, batch, layout, dtype)
    np.testing.assert_array_equal(back.reshape(dense.shape), dense)


@pytest.mark.parametrize("layout", [Layout.interleaved(), Layout.chunked(32), Layout.canonical("col")], ids=str)
def test_offsets_beyond_32_bits(layout: Layout) -> None:
    """The last matrices of a batch of more than 2^31 elements, in memory of which only theirs is there."""
    n, batch, count = 128, 2**17 + 37, 3
    packed, factors = (sparse_zeros(prod(array_shape(n, batch, layout)), "float32") for _ in range(2))
    whole, last_block = EmulatedDevice(fenced=False), EmulatedDevice(fenced=False, last_block=True)
    filling.fill(last_block, packed.ctypes.data, n, batch, layout, "float32", "diagonally_dominant")
    made = generation.generate("diagonally_dominant", n=n, start=batch - count, stop=batch)
    dense = np.empty_like(made)
    part = {"first": batch - count, "last": batch}
    support.unpack(whole, packed.ctypes.data, dense.ctypes.data, n, batch, layout, "float32", **part)
    np.testing.assert_array_equal(dense, made)
    l, _ = lapack_factor(made)
    support.pack(whole, l.ctypes.data, factors.ctypes.data, n, batch, layout, "float32", **part)
    ratios = sparse_zeros(batch, "float64")
    addresses = (packed.ctypes.data, factors.ctypes.data, ratios.ctypes.data)
    support.residual_ratios(last_block, *addresses, n, batch, layout, "float32")
    np.testing.assert_allclose(ratios[-count:], residual.ratios(made, l), rtol=1e-6, atol=1e-7)


def test_identities_fill_the_room_beyond_the_batch(device: Device) -> None:
    n, batch, layout = 5, 40, Layout.chunked(32)
    packed = packed_like(n, batch, layout, "float32")
    support.identity_padding(device, device.address(packed), n, batch, layout, "float32")
    matrices = flat(packed, layout)
    assert (matrices[:batch] == np.float32(SENTINEL)).all()
    np.testing.assert_array_equal(matrices[batch:], np.broadcast_to(np.eye(n), (24, n, n)))


def test_nothing_is_launched_where_nothing_is_to_do() -> None:
    device = EmulatedDevice()
    for layout in (Layout.canonical(), Layout.interleaved(), Layout.chunked(8)):
        support.pack(device, 0, 0, 4, 0, layout, "float32")
        support.unpack(device, 0, 0, 4, 0, layout, "float32")
        support.unpack(device, 0, 0, 4, 32, layout, "float32", first=3, last=3)
        support.identity_padding(device, 0, 4, 64, layout, "float32")
        filling.fill(device, 0, 4, 0, layout, "float32", "wishart")
        support.residual_ratios(device, 0, 0, 0, 4, 0, layout, "float32")
    support.copy(device, 0, 0, 0)
    assert not device.launched


@pytest.mark.parametrize(("first", "last"), [(-1, 3), (2, 1), (0, 11)])
def test_matrices_outside_the_batch_are_refused(device: Device, first: int, last: int) -> None:
    for move in (support.pack, support.unpack):
        with pytest.raises(IndexError, match=f"matrices {first} to {last} are outside a batch of 10"):
            move(device, 0, 0, 4, 10, Layout.chunked(8), "float32", first=first, last=last)


FILLED: list[tuple[str, dict[str, Any]]] = [
    ("diagonally_dominant", {}),
    ("banded", {}),
    ("banded", {"bandwidth": 0}),
    ("graded", {}),
    ("graded", {"octaves": -7}),
    ("graded", {"octaves": 47}),
    ("wishart", {}),
    ("wishart", {"columns": 77}),
    ("failing", {}),
    ("failing", {"base": "wishart", "every": 3, "kind": "nan"}),
    ("failing", {"base": "graded", "every": 4, "minors": [1, 2, 1], "kind": "zero"}),
    ("failing", {"base": "banded", "members": [1009, 1003, 1003, 5]}),
]


def check_fill(
    device: Device, name: str, parameters: dict[str, Any], layout: Layout, dtype: str, n: int, batch: int, **part: int
) -> None:
    packed = packed_like(n, batch, layout, dtype)
    filling.fill(device, device.address(packed), n, batch, layout, dtype, name, **part, **parameters)
    expected = Batch.empty(n, batch, layout, dtype)
    generation.fill(expected, name, **part, **parameters)
    assert packed.tobytes() == expected.data.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 9])
@pytest.mark.parametrize(("name", "parameters"), FILLED, ids=str)
def test_data_sets_have_the_bits_of_the_host(
    device: Device, name: str, parameters: dict[str, Any], n: int, dtype: str
) -> None:
    check_fill(device, name, parameters, Layout.chunked(32), dtype, n, 45, start=1000, seed=3)


@pytest.mark.parametrize("name", ["diagonally_dominant", "wishart"])
@pytest.mark.parametrize("n", [1, 3, 7, 8, 15, 16, 17, 33, 40])
def test_every_order_is_filled(device: Device, name: str, n: int) -> None:
    check_fill(device, name, {}, Layout.interleaved(), "float32", n, 33)


@pytest.mark.parametrize(
    "layout", [Layout.canonical(), Layout.chunked(2), Layout.chunked(5, "row"), Layout.chunked(100)], ids=str
)
def test_every_layout_is_filled(device: Device, layout: Layout) -> None:
    for name in ("graded", "wishart"):
        check_fill(device, name, {}, layout, "float64", 6, 37, seed=2**64 - 1)


@pytest.mark.parametrize("name", ["diagonally_dominant", "wishart"])
@pytest.mark.parametrize("start", [0, 2**32 - 5, 2**60 + 3, 2**63 - 100])
def test_a_data_set_may_be_long(device: Device, name: str, start: int) -> None:
    """Counters of more than 64 bits, and a carry into the second word."""
    check_fill(device, name, {}, Layout.chunked(8), "float32", 13, 20, start=start, seed=2**63 + 1)


@pytest.mark.parametrize("name", ["diagonally_dominant", "wishart"])
def test_counters_carry_inside_a_batch(device: Device, name: str) -> None:
    n = 16
    blocks = recipes.plan(name, n, "float32", {}).blocks
    start = 2**64 // blocks - 7  # matrix 7 begins where the first word overflows
    check_fill(device, name, {}, Layout.chunked(8), "float32", n, 16, start=start)


def test_what_the_device_cannot_fill(device: Device) -> None:
    assert filling.can_fill("wishart", 8, "float32", {"columns": 33_025})
    assert not filling.can_fill("wishart", 8, "float32", {"columns": 33_026})
    assert not filling.can_fill("condition", 8, "float32", {})
    assert not filling.can_fill("failing", 8, "float32", {"base": "condition"})
    assert filling.can_fill("failing", 8, "float32", {"base": "graded"})
    with pytest.raises(ValueError, match="made on the host: ask can_fill"):
        filling.fill(device, 0, 8, 10, Layout.chunked(8), "float32", "condition")


@pytest.mark.parametrize(
    ("name", "part", "message"),
    [
        ("nothing", {}, "name: got 'nothing'"),
        ("banded", {"bandwidth": -1}, "bandwidth: got -1"),
        ("banded", {"width": 3}, "got a parameter 'width'"),
        ("banded", {"seed": -1}, "seed: got -1"),
        ("banded", {"start": 2**63 - 5}, "stop: got"),
    ],
)
def test_fill_refuses_what_the_host_refuses(device: Device, name: str, part: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        filling.fill(device, 0, 8, 10, Layout.chunked(8), "float32", name, **part)


@given(
    n=st.integers(1, 12),
    start=st.integers(0, 100),
    batch=st.integers(0, 100),
    every=st.integers(0, 30),
    members=st.lists(st.integers(0, 200), max_size=5),
    minors=st.lists(st.integers(1, 12), max_size=5),
)
def test_progressions_are_the_failing_members(
    n: int, start: int, batch: int, every: int, members: list[int], minors: list[int]
) -> None:
    chosen: dict[str, Any] = {"every": every, "members": members, "minors": [min(minor, n) for minor in minors]}
    info = np.zeros(batch, np.int32)
    settled = {name: tuple(value) if isinstance(value, list) else value for name, value in chosen.items()}
    for failures in filling._failures(n, start, batch, settled):
        at = failures.first + failures.step * np.arange(failures.count)
        assert not info[at].any()
        info[at] = failures.minor
    np.testing.assert_array_equal(info, recipes.failing_minors(n, start, start + batch, chosen))


@pytest.mark.parametrize("nbytes", [1, 15, 16, 16384, 16384 + 7, 70_000])
def test_copy_moves_so_many_bytes(device: Device, nbytes: int) -> None:
    source = np.random.default_rng(0).integers(0, 256, nbytes + 32).astype(np.uint8)
    destination = np.zeros_like(source)
    support.copy(device, device.address(source), device.address(destination), nbytes)
    np.testing.assert_array_equal(destination[:nbytes], source[:nbytes])
    assert not destination[nbytes:].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_multiply_add_converges_to_one(device: Device, dtype: str) -> None:
    result = np.zeros(300, dtype)
    support.multiply_add(device, device.address(result), 300, 100, dtype)
    np.testing.assert_array_equal(result, 8.0)
    assert support.multiply_add_flops(300, 100) == 2 * 8 * 300 * 100


def test_the_empty_kernel_runs(device: Device) -> None:
    support.empty(device)
    assert device.launched[-1] == ("empty_kernel", 1)
