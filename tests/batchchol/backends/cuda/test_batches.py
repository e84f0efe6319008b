"""Batches on a GPU and the functions that factor them: the same as on the host, emulated and on a real GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import Batch, KernelSpec, Layout, cholesky, cholesky_ex, default_spec, factor
from batchchol.backends import Backend, survey
from batchchol.backends.cuda import memory, support
from batchchol.backends.cuda.arrays import dense, streaming
from batchchol.backends.cuda.batches.batch import DeviceBatch
from batchchol.batches.layouts import dense_view, padded
from batchchol.datasets import generation
from batchchol.defaults.lookup import default_layout
from batchchol.errors import OutOfMemory, ResidualError
from batchchol.measure.timing import sample_factor
from kernelgen import Problem, ThreadSchedule, generate

from .foreign import Foreign, on_device

Spd = Callable[..., NDArray[np.floating]]
Choose = Callable[[Layout], None]
LAYOUTS = (
    Layout.chunked(32),
    Layout.chunked(5, "row"),
    Layout.interleaved(),
    Layout.canonical(),
    Layout.canonical("col"),
)
N, BATCH = 5, 70


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_layouts_are_those_of_the_host(cuda: Backend, spd: Spd, layout: Layout, dtype: str) -> None:
    a = spd(BATCH, N, dtype=dtype)
    there, here = cuda.from_dense(a, layout), Batch.from_dense(a, layout)
    assert isinstance(there, DeviceBatch)
    np.testing.assert_array_equal(there.to_host().data, here.data)
    np.testing.assert_array_equal(cuda.host(there.to_dense()), a)
    np.testing.assert_array_equal(cuda.host(there.get(3, 40)), a[3:40])
    for batch in (there, here):
        batch.put(2, a[50:60])
    np.testing.assert_array_equal(there.to_host().data, here.data)
    np.testing.assert_array_equal(
        there.to_layout(Layout.chunked(64)).to_host().data, here.to_layout(Layout.chunked(64)).data
    )
    np.testing.assert_array_equal(cuda.host(there.copy().marked("lower").to_dense()), np.tril(here.to_dense()))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_padding_is_identities(cuda: Backend, layout: Layout) -> None:
    there = cuda.empty(3, 37, layout)
    members = dense_view(cuda.host(there.data), layout).reshape(-1, 3, 3)
    assert len(members) == padded(37, layout)
    np.testing.assert_array_equal(members[37:], np.broadcast_to(np.eye(3), members[37:].shape))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("uplo", ["lower", "upper"])
def test_factors(cuda: Backend, spd: Spd, layout: Layout, in_place: bool, uplo: str) -> None:
    a = spd(BATCH, N)
    batch = cuda.from_dense(a, layout)
    spec = KernelSpec(
        Problem(N, "float32", uplo), layout.kind, layout.order, ThreadSchedule(3, "top"), "cuda", in_place
    )
    source = batch.copy()
    l, info = factor(batch, spec, out=batch if in_place else None)
    expected = np.linalg.cholesky(a.astype("float64"))
    expected = expected if uplo == "lower" else expected.swapaxes(-1, -2)
    np.testing.assert_allclose(cuda.host(l.to_dense()), expected, rtol=1e-5, atol=1e-6)
    assert info.shape == (BATCH,)
    assert not cuda.host(info).any()
    assert cuda.check(source, l, info, "ieee") <= 1.5
    if not in_place:
        np.testing.assert_array_equal(cuda.host(batch.to_dense()), a)


def test_a_warm_call_builds_and_loads_nothing(fake_gpu: Any, spd: Spd) -> None:
    batch = DeviceBatch.from_dense(spd(BATCH, N))
    out = batch.copy()
    factor(batch, out=out)
    built, launches = list(fake_gpu.built), len(fake_gpu.launches)
    factor(batch, out=out)
    assert fake_gpu.built == built
    assert len(fake_gpu.launches) == launches + 1, "one kernel and nothing else"


@pytest.mark.parametrize("recipe", ["diagonally_dominant", "wishart", "failing", "condition"])
def test_data_have_the_bits_of_the_host(cuda: Backend, recipe: str) -> None:
    there, here = cuda.empty(6, 50, Layout.chunked(8)), Batch.empty(6, 50, Layout.chunked(8))
    cuda.fill(there, recipe, start=7, seed=3)
    generation.fill(here, recipe, start=7, seed=3)
    np.testing.assert_array_equal(there.to_host().data, here.data)


def test_info_of_matrices_that_fail(cuda: Backend) -> None:
    batch = cuda.empty(6, 200)
    cuda.fill(batch, "failing")
    expected = generation.expected_info("failing", n=6, stop=200)
    l, info = factor(batch)
    np.testing.assert_array_equal(cuda.host(info), expected)
    with pytest.raises(ResidualError, match="has info"):
        cuda.check(batch, l, info, "ieee")


def test_a_wrong_factor_is_found_wherever_it_is(cuda: Backend, spd: Spd) -> None:
    batch = cuda.from_dense(spd(BATCH, N))
    l, info = factor(batch)
    wrong = cuda.host(l.get(41, 42))
    wrong[0, 3, 1] *= np.float32(1.001)
    l.put(41, wrong)
    with pytest.raises(ResidualError, match="matrix 41 has the residual ratio"):
        cuda.check(batch, l, info, "ieee")


def test_arrays_of_the_host_stay_there_unless_asked(cuda: Backend, spd: Spd, monkeypatch: pytest.MonkeyPatch) -> None:
    a = spd(3, 10, N)
    expected = np.linalg.cholesky(a)
    there = cholesky(a, backend="cuda")
    assert isinstance(there, np.ndarray)
    np.testing.assert_allclose(there, expected, rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(streaming, "factor_host", lambda *_: pytest.fail("this is for the CPU"))
    np.testing.assert_allclose(cholesky(a), expected, rtol=1e-5, atol=1e-6)


def test_arrays_of_the_device_stay_there(cuda: Backend, spd: Spd) -> None:
    a = spd(3, 10, N)
    given = on_device(a)
    expected = np.linalg.cholesky(a)
    for array in (given, Foreign(given)):
        l = cholesky(array)
        assert l.shape == a.shape
        np.testing.assert_allclose(l.get(), expected, rtol=1e-5, atol=1e-6)
    u, info = cholesky_ex(given, upper=True)
    np.testing.assert_allclose(u.get(), expected.swapaxes(-1, -2), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(info.get(), np.zeros((3, 10)))
    np.testing.assert_array_equal(given.get(), a, err_msg="the input is left as it was")


def test_canonical_specs_work_without_packing(cuda: Backend, spd: Spd) -> None:
    a = spd(40, N)
    spec = default_spec(N, target="cuda", layout="canonical", order="row")
    np.testing.assert_allclose(cholesky(on_device(a), spec=spec).get(), np.linalg.cholesky(a), rtol=1e-5, atol=1e-6)


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch, arrays_in: Choose) -> None:
    """Arrays are factored as they are, whatever the table says, and packing them is a failure."""
    arrays_in(Layout.canonical("row"))
    for name in ("pack", "unpack"):
        monkeypatch.setattr(
            f"batchchol.backends.cuda.support.{name}", lambda *_, **__: pytest.fail("this is not to be packed")
        )


@pytest.mark.usefixtures("unpacked")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 4, 13])
@pytest.mark.parametrize("upper", [False, True])
def test_canonical_kernels_factor_arrays_where_they_lie(
    cuda: Backend, spd: Spd, dtype: str, n: int, upper: bool
) -> None:
    a = spd(3, 11, n, dtype=dtype)
    given, expected = a.copy(), np.linalg.cholesky(a.astype("float64"))
    # What is in the other triangle must not matter, and must not remain.
    given[..., *np.triu_indices(n, 1)] = np.nan
    if upper:
        given, expected = given.swapaxes(-1, -2).copy(), expected.swapaxes(-1, -2)
    there = on_device(given)
    for array in (given, there, Foreign(there)):
        l, info = cholesky_ex(array, upper=upper, backend="cuda")
        assert l.dtype == dtype
        np.testing.assert_allclose(cuda.host(l) if array is not given else l, expected, rtol=2e-5, atol=1e-6)
        assert not (cuda.host(info) if array is not given else info).any()
    np.testing.assert_array_equal(cuda.host(there), given, err_msg="the input is left as it was")


@pytest.mark.usefixtures("unpacked")
def test_arrays_as_they_are_go_in_slices_too(cuda: Backend, spd: Spd, monkeypatch: pytest.MonkeyPatch) -> None:
    a = spd(1300, N)
    a[1100, 2, 2] = -1
    monkeypatch.setattr(dense, "slices", lambda batch, each: iter([(0, 512), (512, 1024), (1024, batch)]))
    for given in (a, on_device(a)):
        l, info = (cuda.host(each) if given is not a else each for each in cholesky_ex(given, backend="cuda"))
        np.testing.assert_array_equal(np.flatnonzero(info), [1100])
        assert info[1100] == 3
        good = np.delete(np.arange(1300), 1100)
        np.testing.assert_allclose(l[good], np.linalg.cholesky(a[good]), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("unpacked")
def test_a_canonical_spec_of_the_callers_leaves_the_input(cuda: Backend, spd: Spd) -> None:
    a = spd(40, N)
    spec = default_spec(N, target="cuda", layout="canonical", order="row")
    for given in (a, on_device(a)):
        l = cholesky(given, spec=spec, backend="cuda")
        np.testing.assert_allclose(l if given is a else l.get(), np.linalg.cholesky(a), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(a, spd(40, N))


@pytest.mark.parametrize("layout", [Layout.chunked(4), Layout.interleaved(), Layout.canonical("col")], ids=str)
def test_arrays_are_packed_into_the_layout_of_the_table(
    cuda: Backend, spd: Spd, monkeypatch: pytest.MonkeyPatch, arrays_in: Choose, layout: Layout
) -> None:
    arrays_in(layout)
    packed = []
    pack = support.pack
    monkeypatch.setattr(support, "pack", lambda *given: packed.append(given[5]) or pack(*given))
    dense.launches.cache_clear()
    a = spd(70, N)
    np.testing.assert_allclose(cholesky(on_device(a)).get(), np.linalg.cholesky(a), rtol=1e-5, atol=1e-6)
    assert packed == [layout]


def test_arrays_that_do_not_fit_go_in_slices(
    cuda: Backend, spd: Spd, monkeypatch: pytest.MonkeyPatch, arrays_in: Choose
) -> None:
    a = spd(1700, N)
    arrays_in(Layout.chunked(32))
    monkeypatch.setattr(dense, "_SMALL_BYTES", 0)
    monkeypatch.setattr(memory, "free_bytes", lambda: 600 * 2 * 4 * N * N)
    monkeypatch.setattr(memory, "kept_bytes", lambda: 0)
    expected = np.linalg.cholesky(a)
    taken: list[list[tuple[int, int]]] = []

    def noted(slices: Callable[..., Iterator[tuple[int, int]]]) -> Callable[..., Iterator[tuple[int, int]]]:
        return lambda *given: taken.append(list(slices(*given))) or iter(taken[-1])

    monkeypatch.setattr(dense, "slices", noted(dense.slices))
    monkeypatch.setattr(streaming, "_slices", noted(streaming._slices))
    np.testing.assert_allclose(cholesky(a, backend="cuda"), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(cholesky(on_device(a)).get(), expected, rtol=1e-5, atol=1e-6)
    assert [len(parts) for parts in taken] == [4, 2]
    assert taken[0] == [(0, 512), (512, 1024), (1024, 1536), (1536, 1700)]


def test_first_failing_matrix_is_named(cuda: Backend, spd: Spd) -> None:
    a = spd(3, 10, N)
    a[1, 4, 2, 2] = -1
    for given in (on_device(a), a):
        with pytest.raises(np.linalg.LinAlgError, match=r"matrix \(1, 4\) is not positive definite: .* order 3"):
            cholesky(given, backend="cuda")


def test_empty_batches(cuda: Backend) -> None:
    assert cholesky(on_device(np.empty((0, 3, 3), np.float32))).shape == (0, 3, 3)
    assert cholesky(np.empty((0, 3, 3)), backend="cuda").shape == (0, 3, 3)
    for shape in ((2, 0, 3, 3), (2, 3, 0, 0), (0, 0)):
        l, info = cholesky_ex(on_device(np.empty(shape)))
        assert (l.shape, l.dtype) == (shape, np.float64)
        np.testing.assert_array_equal(cuda.host(info), np.zeros(shape[:-2]))
    with pytest.raises(TypeError, match="spec: got str, expected a KernelSpec"):
        cholesky(on_device(np.empty((0, 3, 3))), spec="junk")  # type: ignore[call-overload]
    l, info = factor(cuda.empty(3, 0))
    assert (l.batch, len(info)) == (0, 0)
    assert cuda.check(l, l, info, "ieee") == 0


def test_what_is_refused(cuda: Backend, spd: Spd) -> None:
    a = spd(10, N)
    there, here, given = cuda.from_dense(a), Batch.from_dense(a), on_device(a)
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: cholesky(given, backend="cpu"), "backend: got 'cpu', expected 'cuda' for an array on a GPU"),
        (lambda: factor(there, backend="cpu"), "backend: got 'cpu', expected 'cuda', where the batch lives"),
        (lambda: factor(here, backend="cuda"), "backend: got 'cuda', expected 'cpu'"),
        (lambda: factor(there, out=Batch.empty(N, 10, there.layout)), "out: lives on backend 'cpu'"),
        (lambda: cholesky(Foreign(given, strides=(4, 20, 100))), "expected a C-contiguous one"),
        (lambda: cholesky(on_device(np.zeros((2, 3, 4), np.float32))), r"got shape \(2, 3, 4\)"),
        (lambda: cholesky(a, backend="cuda", spec=default_spec(N, target="generic")), "is not a GPU's: use 'cuda'"),
        (lambda: cholesky(given, spec=default_spec(N, target="cuda", in_place=True)), "in_place=True"),
        (lambda: cuda.fill(here, "wishart"), "batch: lives on backend 'cpu', expected 'cuda': make it there"),
        (lambda: cuda.check(there, here, None, "ieee"), "l: lives on backend 'cpu', expected 'cuda'"),
        (
            lambda: cuda.check(there, cuda.from_dense(a[:9]), None, "ieee"),
            "l: got 9 × 5×5 float32, .*; expected 10 × 5×5",
        ),
        (lambda: there.put(9, a[:2]), "outside a batch of 10"),
        (lambda: there.put(0, spd(2, 6)), "dense: got"),
        (lambda: there.put(0, np.array(3, "float32")), "dense: got"),
        (lambda: DeviceBatch.from_dense(a[0]), r"a: got shape \(5, 5\)"),
        (
            lambda: DeviceBatch.from_dense(np.eye(129)[np.newaxis], Layout.chunked(32)),
            "layout: got chunked32-col for matrices of order 129",
        ),
        (lambda: DeviceBatch.from_dense(np.ma.masked_equal(a, a[3, 2, 2])), "a: got .* masked"),
    ]
    for call, words in refused:
        with pytest.raises((ValueError, IndexError), match=words):
            call()
    with pytest.raises(TypeError, match="dense: got list, expected an array of matrices"):
        there.put(0, a.tolist())
    with pytest.raises(TypeError, match=r"start: got 0\.0, expected an integer"):
        there.get(0.0, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"data: got ndarray, expected a pycuda\.gpuarray\.GPUArray.*over"):
        DeviceBatch(a, N, 10, Layout.canonical())
    with pytest.raises(TypeError, match="n: got True, expected an integer"):
        cuda.empty(True, 10)
    with pytest.raises(TypeError, match="a: got ndarray, expected an array on a GPU"):
        DeviceBatch.over(a, N, 10, Layout.canonical("row"))
    with pytest.raises(TypeError, match="with a mask"):
        cholesky(Foreign(given, mask=given))
    with pytest.raises(TypeError, match="got dtype int32, expected float32 or float64"):
        cholesky(on_device(np.zeros((2, 3, 3), np.int32)))
    with pytest.raises(TypeError, match=r"stream: got str, expected a stream of PyCUDA, torch or CuPy"):
        factor(there, stream="fast")


def test_code_for_one_stride_runs_on_no_other(cuda: Backend, spd: Spd) -> None:
    spec = KernelSpec(Problem(N), "chunked", "col", ThreadSchedule(3, stride=32), "cuda")
    batch = cuda.from_dense(spd(40, N), Layout.chunked(32))
    l, _ = factor(batch, spec)
    np.testing.assert_allclose(cuda.host(l.to_dense()), np.linalg.cholesky(spd(40, N)), rtol=1e-5, atol=1e-6)
    other = cuda.from_dense(spd(40, N), Layout.chunked(16))
    with pytest.raises(ValueError, match="chunk=16 is not the stride of 32"):
        factor(other, spec)
    with pytest.raises(ValueError, match="a stride of 32, expected 16"):
        cuda.kernel(spec)(other, other.copy(), cuda.info(other, spec), threads=1)


def test_batches_over_foreign_memory_copy_nothing(cuda: Backend, spd: Spd) -> None:
    a = spd(64, N)
    packed = on_device(Batch.from_dense(a, Layout.chunked(32)).data)
    batch = DeviceBatch.over(Foreign(packed), N, 64, Layout.chunked(32))
    assert batch.address == int(packed.gpudata)
    np.testing.assert_array_equal(cuda.host(batch.to_dense()), a)
    assert batch.shares_memory(batch)
    assert not batch.shares_memory(batch.copy())
    assert not batch.shares_memory(Batch.empty(N, 64))


def test_memory_of_work_on_another_stream_is_not_used_again(fake_gpu: Any, spd: Spd) -> None:
    a = spd(2, 64, N)
    whole = on_device(a)
    # A view of a view, whose address is a plain integer.
    first = DeviceBatch.over(whole.reshape(128, N, N)[:64], N, 64, Layout.canonical("row"))
    factor(first, stream=7)
    assert fake_gpu.waits == [(0, 7)]
    address = int(whole.gpudata)
    del whole, first
    assert address not in fake_gpu.pieces, "freed, not kept for the next array"


def test_more_than_there_is(cuda: Backend) -> None:
    with pytest.raises(
        OutOfMemory, match=r"a batch of shape .*, on the GPU, needs [\d,]+ bytes and [\d,]+ bytes are free"
    ):
        cuda.empty(128, 10**8)
    assert cuda.empty(4, 10).batch == 10, "the GPU is as usable as before"


def test_samples_in_both_protocols(cuda: Backend, spd: Spd) -> None:
    batch = cuda.from_dense(spd(64, N))
    spec = default_spec(N, target="cuda", chunk=32)
    for protocol in ("queued", "single"):
        sample = sample_factor(cuda, spec, batch, samples=3, protocol=protocol)
        assert (sample.protocol, len(sample.seconds)) == (protocol, 3)
        assert sample.floor > 0
        assert 0 < sample.ratio <= 1.5
    with pytest.raises(ValueError, match="protocol: got 'warped', expected one of 'queued', 'single'"):
        sample_factor(cuda, spec, batch, protocol="warped")


def test_what_the_backend_says_of_itself(cuda: Backend) -> None:
    device = cuda.device()
    assert device["backend"] == "cuda"
    assert device["architecture"] == "sm_" + str(device["compute_capability"]).replace(".", "")
    assert all(isinstance(value, str | int) and value for value in device.values())
    assert cuda.last_level_cache_bytes() == device["l2_bytes"]
    at = {"target": "cuda", "arch": cuda.architecture}
    assert cuda.default_layout(8) == default_layout(8, **at)
    assert cuda.empty(8, 1).layout == default_layout(8, batch=1, **at)
    assert (cuda.targets, cuda.threads) == (("cuda",), 1)
    assert 0 < cuda.free_bytes() <= int(device["gpu_memory_bytes"])


def test_kernels_are_built_ahead(cuda: Backend) -> None:
    specs = [default_spec(n, target="cuda") for n in (2, 3)]
    told: list[tuple[int, int]] = []
    outcomes = cuda.build(specs, progress=lambda state: told.append((state.done, state.total)))
    assert [outcome.entry for outcome in outcomes] == [generate(spec).entry for spec in specs]
    compiles = "nvcc" in survey()[1].detail
    assert {outcome.status for outcome in outcomes} == {"built" if compiles else "compile"}
    assert told[-1] == (2, 2)
