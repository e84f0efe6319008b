"""cho_solve on a GPU: arrays and batches there, streams, and what does not live where it should."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import (
    Batch,
    Layout,
    cho_solve,
    cholesky,
    cholesky_ex,
    default_spec,
    factor,
    get_backend,
)
from batchchol.backends import Backend
from batchchol.backends.cuda import graphs, memory
from batchchol.backends.cuda.batches.batch import DeviceBatch
from batchchol.measure.point import Point
from batchchol.measure.solves import sample_solve
from batchchol.measure.timing import sample_factor
from batchchol.operations.potrs import check, ratio_bound

from ...fakes.pycuda import FakeGpu
from ..artifacts.test_no_compiler import bare, warned
from ..backends.cuda.test_batches import Foreign, on_device
from .test_cho_solve import NRHS, ON_GPU, SOLVE, N, assert_solves, columns

__all__ = ["bare", "warned"]

Array = NDArray[Any]
Spd = Callable[..., Array]


# ---- A GPU ----


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arrays_of_the_host_by_a_gpu(cuda: Backend, spd: Spd, dtype: str, upper: bool) -> None:
    l = np.asarray(np.linalg.cholesky(spd(2, 20, N, dtype=dtype), upper=upper))
    for b in (columns(2, 20, N, dtype=dtype), columns(2, 20, N, NRHS, dtype=dtype)):
        assert_solves(l, b, cho_solve(l, b, upper=upper, backend="cuda"), upper=upper)
    with pytest.raises(ValueError, match=r"^stream: got 0, expected None: arrays of the host"):
        cho_solve(l, columns(2, 20, N, dtype=dtype), backend="cuda", stream=0)
    with pytest.raises(ValueError, match=r"^spec: backend 'cuda' cannot run potrs"):
        cho_solve(np.eye(N, dtype="f4"), np.ones(N, "f4"), backend="cuda", spec=SOLVE)
    assert cho_solve(l[:0], np.empty((0, 20, N), dtype), backend="cuda").shape == (0, 20, N)


@pytest.mark.parametrize("outer", [(), (40,), (2, 3)], ids=str)
def test_arrays_of_a_gpu(cuda: Backend, spd: Spd, outer: tuple[int, ...]) -> None:
    l = np.asarray(np.linalg.cholesky(spd(*outer, N)))
    for shape in ((*outer, N), (*outer, N, NRHS)):
        b = columns(*shape)
        there = on_device(b)
        read_only = {"data": (there.__cuda_array_interface__["data"][0], True)}
        for given in (there, Foreign(there), Foreign(there, **read_only)):
            x = cho_solve(on_device(l), given)
            assert tuple(x.shape) == shape
            assert_solves(l, b, cuda.host(x))
    assert_solves(l, b, cuda.host(cho_solve(on_device(l), on_device(b), spec=ON_GPU)))


@pytest.mark.parametrize(
    "layout", [Layout.canonical("col"), Layout.interleaved(), Layout.chunked(32), Layout.chunked(5, "row")], ids=str
)
def test_batches_of_a_gpu(cuda: Backend, spd: Spd, layout: Layout) -> None:
    l, b = np.asarray(np.linalg.cholesky(spd(70, N))), columns(70, N, NRHS)
    batch = DeviceBatch.from_dense(l, layout)
    assert_solves(l, b, cuda.host(cho_solve(batch, on_device(b))))
    assert_solves(l, b[..., 0], cuda.host(cho_solve(batch.marked("lower"), on_device(b[..., 0].copy()))))
    solved = cuda.host(cho_solve(batch, on_device(b)))
    assert check(batch.to_host(), b, solved, "ieee") <= ratio_bound(N, "ieee")


@pytest.mark.parametrize(("l_shape", "b_shape"), [((0, 5, 5), (0, 5)), ((3, 5, 5), (3, 5, 0)), ((0, 0), (0, 2))])
def test_nothing_on_a_gpu(cuda: Backend, l_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> None:
    x = cho_solve(on_device(np.ones(l_shape, "f4")), on_device(np.ones(b_shape, "f4")))
    assert (tuple(x.shape), x.dtype) == (b_shape, np.float32)
    assert cho_solve(DeviceBatch.empty(5, 0), on_device(np.ones((0, 5), "f4"))).shape == (0, 5)


@pytest.mark.usefixtures("cuda")
def test_what_does_not_live_where_it_should_is_refused(spd: Spd) -> None:
    l, b = spd(9, N), columns(9, N)
    there, packed = DeviceBatch.from_dense(l), on_device(b)
    swapped = Foreign(packed, typestr=">f4")
    calls: list[tuple[Any, Any, dict[str, Any], type[Exception], str]] = [
        (l, packed, {}, TypeError, "b: got an array on a GPU, expected one of the host"),
        (Batch.from_dense(l), packed, {}, TypeError, "b: got an array on a GPU"),
        (on_device(l), b, {}, TypeError, "b: got ndarray, expected an array on the GPU"),
        (there, b, {}, TypeError, "b: got ndarray"),
        (on_device(l), packed, {"backend": "cpu"}, ValueError, "backend: got 'cpu', expected 'cuda'"),
        (there, packed, {"backend": "cpu"}, ValueError, "backend: got 'cpu', expected 'cuda'"),
        (there, swapped, {}, TypeError, "b: got dtype >f4, expected float32"),
        (on_device(l), on_device(b.astype("f8")), {}, TypeError, "b: got dtype float64, expected float32"),
        (on_device(l), on_device(b[:3]), {}, ValueError, r"b: got shape \(3, 6\), expected \(9, 6\)"),
        (on_device(l[0, :3]), packed, {}, ValueError, r"L: got shape \(3, 6\), expected square"),
        (on_device(l), packed, {"math": "exact"}, ValueError, "math: got 'exact'"),
        (on_device(l[:0]), on_device(b[:0]), {"math": "exact"}, ValueError, "math: got 'exact'"),
        (on_device(l), packed, {"spec": default_spec(N, target="cuda")}, ValueError, "spec: got a kernel of potrf"),
        (there, packed, {"spec": default_spec(N, target="cuda")}, ValueError, "spec: got a kernel of potrf"),
    ]
    for factors, given, arguments, error, words in calls:
        with pytest.raises(error, match=f"^{words}"):
            cho_solve(factors, given, **arguments)


def test_streams(fake_gpu: FakeGpu, spd: Spd) -> None:
    l, b = spd(40, N), columns(40, N)
    there, given = on_device(l), on_device(b)
    for stream in (None, 0x77):
        cho_solve(there, given, stream=stream)
        assert fake_gpu.launches[-1][2] == (stream or 0)
    assert fake_gpu.waits[-1] == (0, 0x77)
    # What another stream reads or writes is not used again without waiting for it.
    assert [memory._memory_of(array).reusable for array in (there, given)] == [False, False]


@pytest.mark.usefixtures("fake_gpu")
def test_a_batch_whose_graph_is_being_recorded_is_refused(spd: Spd) -> None:
    class Recorder:
        def add(self, *_: Any) -> None:
            pass

    batch, b = DeviceBatch.from_dense(spd(32, N), Layout.chunked(32)), on_device(columns(32, N))
    with graphs.recording(Recorder()):
        recorded = factor(batch).L
        with pytest.raises(RuntimeError, match=r"^L: a graph is being recorded in this thread"):
            cho_solve(recorded, b)
        there = on_device(np.asarray(np.linalg.cholesky(spd(32, N))))
        x = get_backend("cuda").host(cho_solve(there, b))
        assert_solves(np.linalg.cholesky(spd(32, N)), columns(32, N), x)


# ---- Specs of the other operation ----


def test_a_kernel_of_solves_factors_nothing(cuda: Backend, spd: Spd) -> None:
    words = r"^spec: got a kernel of potrs, expected one of potrf: the Cholesky factor L of A = L L"
    host, there = (
        Batch.from_dense(spd(9, N), Layout.canonical()),
        DeviceBatch.from_dense(spd(9, N), Layout.canonical()),
    )
    calls: list[Callable[[], object]] = [
        lambda: factor(host, SOLVE),
        lambda: factor(host, SOLVE, out=host),
        lambda: factor(there, ON_GPU),
        lambda: cholesky(spd(9, N), spec=SOLVE),
        lambda: cholesky(spd(0, N, N), spec=SOLVE),
        lambda: cholesky_ex(spd(200), spec=SOLVE),
        lambda: cholesky(on_device(spd(9, N)), spec=ON_GPU),
        lambda: cuda.pycuda_function(ON_GPU, there),  # type: ignore[attr-defined]
        lambda: sample_factor(get_backend("cpu"), SOLVE, host),
        lambda: sample_factor(cuda, ON_GPU, there),
        lambda: Point(SOLVE, 100),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=words):
            call()


def test_a_kernel_of_factorizations_solves_nothing(cuda: Backend) -> None:
    words = r"^spec: got a kernel of potrf, expected one of potrs: the solution X of"
    dense, layout = np.eye(N, dtype=np.float32)[np.newaxis], Layout.canonical("col")
    for backend, target in ((get_backend("cpu"), None), (cuda, "cuda")):
        spec, l = default_spec(N, target=target, layout="canonical"), backend.from_dense(dense, layout)
        with pytest.raises(ValueError, match=words):
            sample_solve(backend, spec, l)
        with pytest.raises(ValueError, match=words):
            cho_solve(l, backend.place(dense), spec=spec)


def test_a_kernel_refuses_arguments_of_another_operation(cuda: Backend) -> None:
    """A batch for an array and an array for a batch, or too few, before their addresses are used."""
    dense = np.eye(N, dtype=np.float32)[np.newaxis]
    for backend, spec in ((get_backend("cpu"), SOLVE), (cuda, ON_GPU)):
        kernel, l = backend.kernel(spec), backend.from_dense(dense, Layout(spec.layout, None, spec.order))
        with pytest.raises(AttributeError):
            kernel(l, l, backend.info(l, spec), threads=1)
        with pytest.raises(ValueError, match="shorter"):
            kernel(l, backend.place(dense), threads=1)


def test_kernels_of_solves_are_built_ahead_and_kept() -> None:
    (outcome,) = get_backend("cpu").build([SOLVE])
    assert outcome.status == "built"
    assert get_backend("cpu").kernel(SOLVE) is get_backend("cpu").kernel(SOLVE)
