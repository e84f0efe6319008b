"""factor: batches in their own layouts, out of place and in place."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import Batch, Layout, cholesky, default_spec, factor, get_backend
from batchchol.batches.layouts import array_shape

Array = NDArray[np.floating]
Spd = Callable[..., Array]

N = 5
LAYOUTS = [
    Layout.canonical(),
    Layout.canonical("col"),
    Layout.interleaved(),
    Layout.interleaved("row"),
    Layout.chunked(8),
    Layout.chunked(16),
    Layout.chunked(48),
    Layout.chunked(512, "row"),
]


def spec_of(batch: Batch, **fields: Any) -> Any:
    given = {
        "target": get_backend().target,
        "dtype": batch.dtype.name,
        "layout": batch.layout.kind,
        "order": batch.layout.order,
    }
    return default_spec(batch.n, **{**given, **fields})


def assert_lower_factors(l: Batch, dense: Array) -> None:
    expected = cholesky(dense)
    np.testing.assert_allclose(l.to_dense(), expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("count", [1, 31, 33, 1000])
def test_ragged_batches_in_every_layout(spd: Spd, layout: Layout, count: int) -> None:
    dense = spd(count, N)
    dense[count // 2, 2, 2] = -1
    batch = Batch.from_dense(dense, layout)
    l, info = factor(batch)
    assert (l.n, l.batch, l.layout, l.dtype, l.triangle) == (N, count, layout, np.float32, "lower")
    assert (info.shape, info.dtype) == ((count,), np.int32)
    assert info[count // 2] == 3
    assert np.count_nonzero(info) == 1
    good = np.arange(count) != count // 2
    np.testing.assert_allclose(l.to_dense()[good], cholesky(dense[good]), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(batch.to_dense(), dense, err_msg="the batch is left as it was")


# On chunks narrower than the widest SIMD, a narrower target's kernel runs.
@pytest.mark.parametrize(("chunk", "dtype"), [(4, "float32"), (12, "float32"), (2, "float64"), (6, "float64")])
def test_chunks_of_the_narrowest_simd(spd: Spd, chunk: int, dtype: str) -> None:
    dense = spd(33, N, dtype=dtype)
    assert_lower_factors(factor(Batch.from_dense(dense, Layout.chunked(chunk))).L, dense)


@pytest.mark.parametrize("chunk", [2, 3, 17])
def test_chunks_that_no_simd_fits_are_refused(spd: Spd, chunk: int) -> None:
    with pytest.raises(ValueError, match=f"batch: got chunk={chunk}, expected a multiple of the SIMD lanes"):
        factor(Batch.from_dense(spd(3, N), Layout.chunked(chunk)))


def test_spec_wider_than_the_chunk_is_refused(spd: Spd) -> None:
    batch = Batch.from_dense(spd(33, N), Layout.chunked(12))
    with pytest.raises(ValueError, match=r"chunk=12 is not a multiple of the (8|16) lanes|avx2"):
        factor(batch, spec_of(batch, target="avx2"))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_in_place_gives_what_out_of_place_gives(spd: Spd, layout: Layout) -> None:
    dense = spd(37, N)
    batch = Batch.from_dense(dense, layout)
    expected = factor(batch).L.to_dense()
    l, info = factor(batch, out=batch)
    assert l.data is batch.data
    assert not info.any()
    np.testing.assert_allclose(l.to_dense(), expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(l.to_dense(), np.tril(l.to_dense()))


def test_nothing_is_overwritten_that_was_not_named_as_out(spd: Spd) -> None:
    dense = spd(37, N)
    batch = Batch.from_dense(dense)
    spec = spec_of(batch, in_place=True)
    with pytest.raises(ValueError, match="spec: got in_place=True without out: pass out=batch"):
        factor(batch, spec)
    np.testing.assert_array_equal(batch.to_dense(), dense)
    l, _ = factor(batch, spec, out=batch)
    assert l.data is batch.data
    assert_lower_factors(l, dense)


def test_the_triangle_that_has_no_meaning_is_not_read(spd: Spd) -> None:
    dense = spd(37, N)
    batch = Batch.from_dense(dense)
    factored, _ = factor(batch)
    upper = spec_of(batch, uplo="upper")
    for out in (None, batch.copy()):
        with pytest.raises(
            ValueError, match=r"batch: got one whose lower triangle.*uplo='lower', or .*marked\(None\)"
        ):
            factor(factored, upper, out=out)
    u, _ = factor(batch, upper, out=factored)
    assert u.triangle == "upper", "what a result held before is of no matter"
    with pytest.raises(ValueError, match="batch: got one whose upper triangle"):
        factor(u)
    u.put(0, dense)
    assert_lower_factors(factor(u.marked(None)).L, dense)


def test_what_is_remembered_of_an_input_does_not_serve_it_as_a_result(spd: Spd) -> None:
    batch, room = Batch.from_dense(spd(37, N)), Batch.from_dense(spd(37, N))
    upper = spec_of(batch, uplo="upper")
    factor(room, upper)
    l, _ = factor(batch, out=room)
    with pytest.raises(ValueError, match="batch: got one whose lower triangle"):
        factor(l, upper)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_factors_go_to_out_whatever_it_held(spd: Spd, layout: Layout) -> None:
    dense = spd(37, N)
    out = Batch(np.full(array_shape(N, 37, layout), np.nan, dtype=np.float32), N, 37, layout)
    l, _ = factor(Batch.from_dense(dense, layout), out=out)
    assert l.data is out.data
    assert_lower_factors(l, dense)
    np.testing.assert_array_equal(l.get(36, 37), np.tril(l.get(36, 37)))


@pytest.mark.parametrize("count", [1, 7, 8, 9, 31, 40])
@pytest.mark.parametrize("layout", [Layout.canonical(), Layout.chunked(8), Layout.interleaved()], ids=str)
def test_nothing_is_written_around_the_array(spd: Spd, layout: Layout, count: int) -> None:
    shape = array_shape(N, count, layout)
    size = int(np.prod(shape))
    room = np.full(size + 128, 7, dtype=np.float32)
    out = Batch(room[64:-64].reshape(shape), N, count, layout)
    factor(Batch.from_dense(spd(count, N), layout), out=out)
    np.testing.assert_array_equal(room[:64], 7)
    np.testing.assert_array_equal(room[-64:], 7)


# Arrays that end at a page that may not be touched, or begin behind one: whoever reaches over an end, dies.
GUARDED = """
import ctypes, mmap
import numpy as np
import batchchol
from batchchol import Batch, Layout
from batchchol.batches.layouts import array_shape

PAGE = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)
rooms = []

def guarded(shape, at_end):
    size = 4 * int(np.prod(shape))
    pages = -(-size // PAGE)
    room = mmap.mmap(-1, (pages + 2) * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(room))
    for guard in (start, start + (pages + 1) * PAGE):
        assert libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), 0) == 0, ctypes.get_errno()
    rooms.append(room)
    offset = PAGE + (pages * PAGE - size if at_end else 0)
    return np.frombuffer(room, np.float32, size // 4, offset).reshape(shape)

for n in (2, 5):
    for count in (1, 7, 8, 9, 31, 33):
        for at_end in (False, True):
            dense = guarded((count, n, n), at_end)
            dense[...] = n * np.eye(n) + 1
            expected = np.linalg.cholesky(dense)
            assert np.allclose(batchchol.cholesky(dense), expected, atol=1e-5)
            for layout in (Layout.canonical(), Layout.interleaved(), Layout.chunked(8), Layout.chunked(16)):
                shape = array_shape(n, count, layout)
                batch = Batch(guarded(shape, at_end), n, count, layout)
                out = Batch(guarded(shape, at_end), n, count, layout)
                batch.put(0, dense)
                assert np.allclose(batchchol.factor(batch, out=out).L.to_dense(), expected, atol=1e-5)
                batchchol.factor(batch, out=batch)
print("untouched")
"""


def test_nothing_around_the_arrays_is_touched(run_python: Callable[..., Any]) -> None:
    done = run_python("-c", GUARDED)
    assert done.stdout == "untouched\n", (done.returncode, done.stderr)


@pytest.mark.parametrize("layout", LAYOUTS[::2], ids=str)
def test_arrays_at_any_address(spd: Spd, layout: Layout) -> None:
    dense = spd(37, N)
    shape = array_shape(N, 37, layout)
    size = int(np.prod(shape))
    for offset in (1, 3):
        source, result = (np.zeros(size + offset, dtype=np.float32)[offset:].reshape(shape) for _ in range(2))
        batch = Batch(source, N, 37, layout)
        batch.put(0, dense)
        assert_lower_factors(factor(batch, out=Batch(result, N, 37, layout)).L, dense)
        assert_lower_factors(factor(batch, out=batch).L, dense)


@pytest.mark.parametrize("layout", [Layout.canonical(), Layout.chunked(16)], ids=str)
def test_upper_spec(spd: Spd, layout: Layout) -> None:
    dense = spd(37, N)
    batch = Batch.from_dense(dense, layout)
    l, _ = factor(batch, spec_of(batch, uplo="upper"))
    assert l.triangle == "upper"
    np.testing.assert_allclose(l.to_dense().swapaxes(1, 2), cholesky(dense), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(l.to_dense(), np.triu(l.to_dense()))


@pytest.mark.parametrize("layout", [Layout.canonical(), Layout.interleaved(), Layout.chunked(16)], ids=str)
def test_empty_batch(layout: Layout) -> None:
    batch = Batch.empty(N, 0, layout)
    l, info = factor(batch)
    assert (l.batch, l.to_dense().shape, info.shape) == (0, (0, N, N), (0,))
    assert factor(batch, out=batch).L.batch == 0


@pytest.mark.parametrize("threads", [1, 2, 3, np.int64(7)])
def test_threads_share_the_work(spd: Spd, threads: int) -> None:
    dense = spd(20_001, N)
    batch = Batch.from_dense(dense)
    l, info = factor(batch, threads=threads)
    assert not info.any()
    np.testing.assert_array_equal(l.to_dense(), factor(batch).L.to_dense())
    assert_lower_factors(l, dense)


@pytest.mark.parametrize("threads", [0, -1, 2.5, "2", True])
def test_bad_number_of_threads_is_refused(spd: Spd, threads: Any) -> None:
    with pytest.raises(ValueError, match=f"threads: got {threads!r}, expected a positive integer"):
        factor(Batch.from_dense(spd(3, N)), threads=threads)


def test_arrays_in_place_of_batches_are_refused(spd: Spd) -> None:
    dense = spd(3, N)
    batch = Batch.from_dense(dense)
    for argument, given, out in [("batch", dense, None), ("out", batch, dense), ("batch", None, batch)]:
        got = {"batch": given, "out": out}[argument]
        words = (
            rf"^{argument}: got {type(got).__name__}, expected a Batch: make one with Batch\.from_dense, or use chol"
        )
        with pytest.raises(TypeError, match=words):
            factor(given, out=out)


def test_out_holds_on_to_nothing_of_earlier_calls(spd: Spd) -> None:
    batches = [Batch.from_dense(spd(8, N)) for _ in range(3)]
    out = batches[0].copy()
    results = [weakref.ref(factor(batch, out=out).L) for batch in batches]
    assert [result() is None for result in results] == [True, True, False]


@pytest.mark.parametrize("marked", [False, True])
def test_memory_is_freed_without_the_garbage_collector(spd: Spd, marked: bool) -> None:
    batch = Batch.from_dense(spd(8, N))
    out = batch.copy().marked("lower" if marked else None)
    alive = weakref.ref(out)
    gc.disable()
    try:
        factor(batch, out=out)
        factor(batch, out=out)
        del out
        assert alive() is None
    finally:
        gc.enable()


def test_out_that_does_not_fit_is_refused(spd: Spd) -> None:
    layout = Layout.chunked(16)
    batch = Batch.from_dense(spd(33, N), layout)
    others = {
        "32": Batch.empty(N, 32, layout),
        "6×6": Batch.empty(6, 33, layout),
        "chunked48-col": Batch.empty(N, 33, Layout.chunked(48)),
        "chunked16-row": Batch.empty(N, 33, Layout.chunked(16, "row")),
        "float64": Batch.empty(N, 33, layout, "float64"),
    }
    for words, other in others.items():
        with pytest.raises(ValueError, match=f"out: got .*{words}.*; expected 33 × 5×5 float32, chunked16-col"):
            factor(batch, out=other)


def test_out_that_overlaps_is_refused(spd: Spd) -> None:
    room = np.concatenate([spd(20, N), spd(20, N)])
    batch = Batch(room[:20], N, 20, Layout.canonical())
    with pytest.raises(ValueError, match="out: shares memory"):
        factor(batch, out=Batch(room[1:21], N, 20, Layout.canonical()))
    np.testing.assert_array_equal(room[:20], spd(20, N), err_msg="nothing was written")
    beside = factor(batch, out=Batch(room[20:], N, 20, Layout.canonical())).L
    assert_lower_factors(beside, spd(20, N))


@pytest.mark.parametrize("layout", [Layout.canonical(), Layout.chunked(16)], ids=str)
def test_out_that_is_read_only_is_refused(spd: Spd, tmp_path: Path, layout: Layout) -> None:
    np.save(tmp_path / "out.npy", np.zeros(array_shape(N, 16, layout), dtype=np.float32))
    out = Batch(np.load(tmp_path / "out.npy", mmap_mode="r"), N, 16, layout)
    with pytest.raises(ValueError, match="out: its array is read-only"):
        factor(Batch.from_dense(spd(16, N), layout), out=out)


def test_spec_of_another_batch_is_refused(spd: Spd) -> None:
    batch = Batch.from_dense(spd(33, N))
    wrong = {"layout": "interleaved", "order": "row", "dtype": "float64"}
    for field, value in wrong.items():
        with pytest.raises(ValueError, match=r"spec: got a kernel for .*expected the batch's") as caught:
            factor(batch, spec_of(batch, **{field: value}))
        assert value in str(caught.value)
    with pytest.raises(ValueError, match="spec: got a kernel for"):
        factor(batch, default_spec(4, target=get_backend().target))


def test_spec_must_agree_with_out_on_being_in_place(spd: Spd) -> None:
    batch = Batch.from_dense(spd(33, N))
    with pytest.raises(ValueError, match="spec: got in_place=True, expected False"):
        factor(batch, spec_of(batch, in_place=True), out=Batch.empty(N, 33))
    with pytest.raises(ValueError, match="spec: got in_place=False, expected True"):
        factor(batch, spec_of(batch), out=batch)
    np.testing.assert_array_equal(batch.to_dense(), spd(33, N))


def test_spec_of_a_choice_of_ones_own(spd: Spd) -> None:
    dense = spd(33, N)
    spec = default_spec(N)
    other = replace(spec, schedule=replace(spec.schedule, nb=spec.schedule.nb % 4 + 1))
    assert_lower_factors(factor(Batch.from_dense(dense), other).L, dense)
    assert_lower_factors(Batch(cholesky(dense, spec=other), N, 33, Layout.canonical(), "lower"), dense)


def test_both_accuracy_classes(spd: Spd) -> None:
    dense = spd(33, N)
    batch = Batch.from_dense(dense)
    spec = spec_of(batch)
    fast = replace(spec, problem=replace(spec.problem, math="fast"))
    assert_lower_factors(factor(batch, fast).L, dense)
    # Whoever shares the thread finds its floating-point mode as it was.
    assert np.float32(1e-40) * np.float32(0.5) > 0


@pytest.mark.parametrize("layout", [Layout.canonical(), Layout.interleaved(), Layout.chunked(16)], ids=str)
def test_arrays_beyond_32_bit_offsets(spd: Spd, tmp_path: Path, layout: Layout) -> None:
    """Of a sparse file of more than 2^32 elements only the last matrices are touched."""
    n, first = 4, 2**28
    dense = spd(37, n)
    count = first + len(dense)
    shape = array_shape(n, count, layout)
    data = np.memmap(tmp_path / "data", dtype=np.float32, mode="w+", shape=shape)
    batch = Batch(data, n, count, layout)
    # From the border of a group on, so that the generated copies do the work.
    batch.put(first, dense)
    np.testing.assert_array_equal(batch.get(first, count), dense)
    spec = spec_of(batch, in_place=True)
    # The kernel counts from the beginning of the batch: so do its pointers.
    info = np.full(64, -1, dtype=np.int32)
    pointers = data.ctypes.data, data.ctypes.data, info.ctypes.data - first * info.itemsize
    extent = count if layout.kind == "canonical" else shape[-1]
    function = get_backend().kernel(spec).function
    assert function(*pointers, extent, first // spec.lanes, -(-count // spec.lanes)) == 0
    np.testing.assert_allclose(np.tril(batch.get(first, count)), cholesky(dense), rtol=1e-5)
    assert not info[: len(dense)].any()
    assert (tmp_path / "data").stat().st_blocks * 512 < 2**24, "the file stays sparse"


def test_what_is_remembered_is_of_this_batch_and_spec(spd: Spd) -> None:
    first, second = (Batch.from_dense(spd(37, N, seed=seed)) for seed in (1, 2))
    out = Batch.empty(N, 37)
    spec = spec_of(first)
    for batch, given in ((first, spec), (first, spec), (second, spec), (second, None), (first, None)):
        l, _ = factor(batch, given, out=out)
        assert_lower_factors(l, batch.to_dense())
    with pytest.raises(ValueError, match="spec: got a kernel for"):
        factor(first, spec_of(first, dtype="float64"), out=out)
    out.data.flags.writeable = False
    with pytest.raises(ValueError, match="out: its array is read-only"):
        factor(first, out=out)


def test_remembering_keeps_no_batch_alive(spd: Spd) -> None:
    batch, out = Batch.from_dense(spd(37, N)), Batch.empty(N, 37)
    factor(batch, out=out)
    seen = weakref.ref(batch)
    del batch
    gc.collect()
    assert seen() is None
