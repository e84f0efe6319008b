"""solve and solve_ex on a GPU: arrays and batches there, broadcasting, out, streams, slices, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import Batch, Layout, cho_solve, cholesky, default_spec, get_backend, solve, solve_ex
from batchchol.api.solves import device_solves
from batchchol.backends import Backend
from batchchol.backends.cuda import graphs, memory
from batchchol.backends.cuda.arrays import dense
from batchchol.backends.cuda.batches.batch import DeviceBatch
from kernelgen import SpecError

from ...fakes.pycuda import FakeGpu
from ..backends.cuda.test_batches import Foreign, on_device
from .test_cho_solve import columns
from .test_solve import NRHS, N, assert_solves

Array = NDArray[Any]
Spd = Callable[..., Array]


@pytest.mark.parametrize("upper", [False, True])
def test_arrays_of_the_host_by_a_gpu(cuda: Backend, spd: Spd, upper: bool) -> None:
    a = spd(2, 20, N, dtype="float64")
    for b in (columns(2, 20, N, dtype="float64"), columns(20, N, NRHS, dtype="float64")):
        x, info = solve_ex(a, b, upper=upper, backend="cuda")
        assert_solves(a, b, x, upper=upper)
        assert type(info) is np.ndarray
        assert (info.shape, info.any()) == ((2, 20), False)
    out = np.empty((2, 20, N))
    assert solve(a, columns(N, dtype="float64"), backend="cuda", out=out) is out
    assert_solves(a, columns(N, dtype="float64"), out)
    with pytest.raises(ValueError, match=r"^stream: got 0, expected None: arrays of the host"):
        solve(a, b, backend="cuda", stream=0)
    assert solve(a[:0], np.empty((0, 20, N)), backend="cuda").shape == (0, 20, N)


def test_arrays_of_the_host_that_do_not_fit_go_in_slices(
    cuda: Backend, spd: Spd, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = spd(1100, N), columns(1100, N, 2)
    monkeypatch.setattr(dense, "_SMALL_BYTES", 0)
    monkeypatch.setattr(memory, "free_bytes", lambda: 600 * 2 * 4 * N * N)
    monkeypatch.setattr(memory, "kept_bytes", lambda: 0)
    taken: list[list[tuple[int, int]]] = []
    slices = dense.slices
    monkeypatch.setattr(dense, "slices", lambda *given: iter(taken.append(list(slices(*given))) or taken[-1]))
    a[1050, 2, 2] = -1
    x, info = solve_ex(a, b, backend="cuda")
    assert np.flatnonzero(info).tolist() == [1050]
    assert_solves(a[:1050], b[:1050], x[:1050])
    assert_solves(a[1051:], b[1051:], x[1051:])
    assert taken[0] == [(0, 512), (512, 1024), (1024, 1100)]


@pytest.mark.parametrize("outer", [(), (40,), (2, 3)], ids=str)
def test_arrays_of_a_gpu(cuda: Backend, spd: Spd, outer: tuple[int, ...]) -> None:
    a = spd(*outer, N)
    for shape in ((*outer, N), (*outer, N, NRHS)):
        b = columns(*shape)
        there = on_device(b)
        read_only = {"data": (there.__cuda_array_interface__["data"][0], True)}
        for given in (there, Foreign(there), Foreign(there, **read_only)):
            x, info = solve_ex(on_device(a), given)
            assert tuple(x.shape) == shape
            assert_solves(a, b, cuda.host(x))
            assert cuda.host(info).tolist() == np.zeros(outer).tolist()
        for given, same in ((Foreign(there, **read_only), False), (Foreign(there), True)):
            x = solve(on_device(a), given, overwrite_a=True, overwrite_b=True)
            assert (int(x.gpudata) == int(there.gpudata)) == same
            assert_solves(a, b, cuda.host(x))


BROADCAST = [
    ((5,), (N,)),
    ((2, 3), (3, N, NRHS)),
    ((2, 3), (2, 1, N, 2)),
    ((), (4, 2, N, NRHS)),
    ((2, 1), (2, 3, N, 2)),
    ((2, 1, 3), (4, 1, N, 2)),
    ((2, 1, 3, 1), (1, 2, 1, 3, N, 2)),
]


@pytest.mark.parametrize(("outer", "shape"), BROADCAST, ids=str)
def test_right_hand_sides_are_broadcast(
    cuda: Backend, spd: Spd, outer: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    a, b = spd(*outer, N), columns(*shape)
    x, info = solve_ex(on_device(a), on_device(b))
    assert_solves(a, b, cuda.host(x))
    assert tuple(info.shape) == outer
    out = on_device(np.zeros(x.shape, np.float32))
    assert cuda.host(cho_solve(on_device(cholesky(a)), on_device(b))).shape == out.shape
    assert solve(on_device(a), on_device(b), out=out) is out
    assert_solves(a, b, cuda.host(out))


@pytest.mark.parametrize("layout", [Layout.canonical("col"), Layout.interleaved(), Layout.chunked(32)], ids=str)
def test_batches_of_a_gpu(cuda: Backend, spd: Spd, layout: Layout) -> None:
    a, b = spd(70, N), columns(70, N, NRHS)
    batch = DeviceBatch.from_dense(a, layout)
    x, info = solve_ex(batch, on_device(b))
    assert_solves(a, b, cuda.host(x))
    assert cuda.host(info).tolist() == [0] * 70
    assert_solves(a, b[..., 0], cuda.host(solve(batch.marked("upper"), on_device(b[..., 0].copy()))), upper=True)


@pytest.mark.parametrize(
    ("a_shape", "b_shape", "x_shape"),
    [
        ((0, 5, 5), (0, 5), (0, 5)),
        ((3, 5, 5), (5, 0), (3, 5, 0)),
        ((0, 0), (0, 2), (0, 2)),
        ((1, 5, 5), (0, 5, 2), (0, 5, 2)),
    ],
    ids=str,
)
def test_nothing_on_a_gpu(
    cuda: Backend, a_shape: tuple[int, ...], b_shape: tuple[int, ...], x_shape: tuple[int, ...]
) -> None:
    a = np.ascontiguousarray(np.broadcast_to(np.eye(a_shape[-1], dtype="f4"), a_shape))
    x, info = solve_ex(on_device(a), on_device(np.ones(b_shape, "f4")))
    assert (tuple(x.shape), x.dtype, tuple(info.shape)) == (x_shape, np.float32, a_shape[:-2])
    assert not cuda.host(info).any()
    assert solve(DeviceBatch.empty(5, 0), on_device(np.ones((0, 5), "f4"))).shape == (0, 5)


def test_matrices_that_fail_are_named(cuda: Backend, spd: Spd) -> None:
    a, b = spd(3, 10, N), columns(3, 10, N)
    a[1, 4, 2, 2] = -1
    for given in ((on_device(a), on_device(b)), (a, b)):
        info = solve_ex(*given, backend="cuda").info
        assert np.argwhere(info if type(info) is np.ndarray else cuda.host(info)).tolist() == [[1, 4]]
        with pytest.raises(np.linalg.LinAlgError, match=r"matrix \(1, 4\) is not positive definite: .* order 3"):
            solve(*given, backend="cuda")
    packed = DeviceBatch.from_dense(a.reshape(30, N, N))
    with pytest.raises(np.linalg.LinAlgError, match=r"matrix 14 .*; solve_ex returns info"):
        solve(packed, on_device(b.reshape(30, N)))


@pytest.mark.usefixtures("cuda")
def test_what_does_not_live_where_it_should_is_refused(spd: Spd) -> None:
    a, b = spd(9, N), columns(9, N)
    matrices, there, packed = on_device(a), on_device(b), DeviceBatch.from_dense(a)
    long = on_device(columns(12, N))
    read_only = Foreign(there, data=(there.__cuda_array_interface__["data"][0], True))
    calls: list[tuple[Any, Any, dict[str, Any], type[Exception], str]] = [
        (a, there, {}, TypeError, "b: got an array on a GPU, expected one of the host, where the matrices are"),
        (Batch.from_dense(a), there, {}, TypeError, "b: got an array on a GPU"),
        (matrices, b, {}, TypeError, "b: got ndarray, expected an array on the GPU, where the matrices are"),
        (packed, b, {}, TypeError, "b: got ndarray"),
        (matrices, there, {"backend": "cpu"}, ValueError, "backend: got 'cpu', expected 'cuda'"),
        (packed, there, {"backend": "cpu"}, ValueError, "backend: got 'cpu', expected 'cuda'"),
        (matrices, on_device(b.astype("f8")), {}, TypeError, "b: got dtype float64, expected float32"),
        (matrices, on_device(b[:3]), {}, ValueError, r"b: got shape \(3, 6\), expected \(9, 6\)"),
        (Foreign(matrices, typestr=">f4"), there, {}, TypeError, "a: got dtype >f4, expected native"),
        (matrices, there, {"spec": default_spec(N, target="cuda")}, ValueError, "spec: got a kernel of potrf"),
        (packed, there, {"spec": default_spec(N, target="cuda")}, ValueError, "spec: got a kernel of potrf"),
        (matrices, there, {"out": np.zeros_like(b)}, TypeError, "out: got ndarray, expected an array on the GPU"),
        (matrices, there, {"out": on_device(b[:3])}, ValueError, r"out: got shape \(3, 6\), expected \(9, 6\)"),
        (matrices, there, {"out": on_device(b.astype("f8"))}, TypeError, "out: got dtype float64, expected"),
        (matrices, there, {"out": read_only}, ValueError, "out: got a read-only array"),
        (matrices, long[0:9], {"out": long[1:10]}, ValueError, "out: shares memory with an input"),
        (a, b, {"out": there, "backend": "cuda"}, TypeError, "out: got GPUArray, expected an array of the host"),
    ]
    for given, right, arguments, error, words in calls:
        with pytest.raises(error, match=f"^{words}"):
            solve(given, right, **arguments)
    assert solve(matrices, long[0:9], out=long[0:9]) is not None


def test_streams(fake_gpu: FakeGpu, spd: Spd) -> None:
    a, b = on_device(spd(40, N)), on_device(columns(40, N))
    for stream in (None, 0x77):
        solve_ex(a, b, stream=stream)
        assert fake_gpu.launches[-1][2] == (stream or 0)
    assert fake_gpu.waits[-1] == (0, 0x77)
    # What another stream reads or writes is not used again without waiting for it.
    assert memory._memory_of(b).reusable is False
    solve_ex(a, on_device(columns(3, 1, N, 2)), stream=0x77)
    assert [launch[2] for launch in fake_gpu.launches[-3:]] == [0x77] * 3


def test_arrays_that_are_factored_first_are_so_once_they_are_written(
    fake_gpu: FakeGpu, spd: Spd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no kernel does both, the default stream factors, and waits for the caller's before it does."""
    choose = device_solves.chosen_kernel

    def refuse(op: str, *rest: Any, **how: Any) -> Any:
        if op == "posv":
            raise SpecError("there is none")
        return choose(op, *rest, **how)

    monkeypatch.setattr(device_solves, "chosen_kernel", refuse)
    a, b = spd(40, N), columns(40, N)
    there, right = on_device(a), on_device(b)
    fake_gpu.waits.clear()
    x = solve_ex(there, right, stream=0x77).x
    assert [launch[2] for launch in fake_gpu.launches] == [0, 0x77]
    assert fake_gpu.waits == [(0x77, 0), (0, 0x77)]
    assert_solves(a, b, x.get())


@pytest.mark.usefixtures("fake_gpu")
def test_a_batch_whose_graph_is_being_recorded_is_refused(spd: Spd) -> None:
    class Recorder:
        def add(self, *_: Any) -> None:
            pass

    batch, b = DeviceBatch.from_dense(spd(32, N), Layout.chunked(32)), on_device(columns(32, N))
    with graphs.recording(Recorder()):
        with pytest.raises(
            RuntimeError, match=r"^a: a graph is being recorded in this thread, and a batch of matrices"
        ):
            solve(batch, b)
        x = get_backend("cuda").host(solve(on_device(spd(32, N)), b))
    assert_solves(spd(32, N), columns(32, N), x)
