"""Arrays of CuPy, Numba and PyCUDA, as fakes of them on a fake GPU, in calls that return such; on any stream."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import batchchol
from batchchol.api.arrays import device_addresses, foreign_calls
from batchchol.backends.cuda import gpus, memory
from batchchol.backends.cuda.arrays import libraries
from batchchol.backends.cuda.pool import Pool
from batchchol.errors import DeviceLost, OutOfMemory

from ...fakes import pycuda as fake_pycuda
from ...fakes.arrays import CupyArray, FakeArray, Memory, NoMemory, NumbaArray, OnGpu, on_stream
from ...fakes.pycuda import FakeGpu

N = 5
Array = np.ndarray[Any, Any]
Spd = Callable[..., Any]


@pytest.fixture(params=[CupyArray, NumbaArray, fake_pycuda.GPUArray])
def kind(request: pytest.FixtureRequest, fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> Any:
    cupy, cuda = ModuleType("cupy"), ModuleType("numba.cuda")
    current = SimpleNamespace(
        get_current_stream=lambda: SimpleNamespace(ptr=CupyArray.stream),
        runtime=SimpleNamespace(getDevice=lambda: FakeArray.device),
        Device=OnGpu,
        alloc=lambda nbytes: Memory(bytearray(nbytes)),
        memory=SimpleNamespace(OutOfMemoryError=NoMemory),
    )
    cupy.__dict__.update(ndarray=CupyArray, asarray=CupyArray.of, cuda=current)
    cuda.__dict__.update(device_array=NumbaArray, as_cuda_array=NumbaArray.of, gpus={0: OnGpu(0), 1: OnGpu(1)})
    monkeypatch.setattr(FakeArray, "gpu", fake_gpu, raising=False)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "numba.cuda", cuda)
    monkeypatch.setattr(fake_pycuda.GPUArray, "__module__", "pycuda.gpuarray")
    forget()
    yield request.param
    forget()


def forget() -> None:
    """Have the libraries found anew, and kernels loaded on the GPU of this test."""
    for kept in (libraries._library, libraries._by_type):
        kept.cache_clear()
    foreign_calls.forget()
    device_addresses.forget()


def put(kind: Any, host: Array) -> Any:
    return memory.to_device(host, "an argument") if kind is fake_pycuda.GPUArray else kind((), None, host)


def get(a: Any) -> Array:
    return np.asarray(a.host if isinstance(a, FakeArray) else a.get())


def close(found: Any, expected: Array) -> None:
    np.testing.assert_allclose(get(found), expected, rtol=1e-4, atol=1e-5)


def test_results_are_of_the_type_of_the_arguments(kind: Any, spd: Spd, monkeypatch: pytest.MonkeyPatch) -> None:
    host, sides = spd(2, 3, N), np.ones((2, 3, N, 2), np.float32)
    a, b = put(kind, host), put(kind, sides)
    if kind is not fake_pycuda.GPUArray:
        monkeypatch.setattr(Pool, "allocate", lambda *_: pytest.fail("this is the library's memory"))
    l, info = batchchol.cholesky_ex(a)
    found = [l, info, batchchol.solve_ex(a, b).x, batchchol.cho_solve(l, b), batchchol.inv_ex(a).inverse]
    found += [
        batchchol.cho_inverse(l),
        batchchol.slogdet_ex(a).logabsdet,
        batchchol.solve_ex(a, b=put(kind, sides[..., 0].copy())).x,
    ]
    monkeypatch.undo()
    x, inverse = np.linalg.solve(host, sides), np.linalg.inv(host)
    expected = [np.linalg.cholesky(host), np.zeros((2, 3)), x, x, inverse]
    expected += [inverse, np.linalg.slogdet(host)[1], x[..., 0]]
    for ours, theirs in zip(found, expected, strict=True):
        assert type(ours) is kind
        close(ours, theirs)


def test_results_are_the_same_in_either_memory(kind: Any, spd: Spd, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for beyond the usual, such as a number of threads, is done in this library's memory."""
    host = spd(2, 3, N)
    host += np.triu(np.ones((N, N), np.float32), 1)
    a, b, one = (put(kind, each) for each in (host, np.ones((2, 3, N, 2), np.float32), np.ones(N, np.float32)))
    several = put(kind, np.arange(4 * N, dtype=np.float32).reshape(2, 2, 1, N, 1))
    wide, tall = put(kind, host[..., :3, :].copy()), put(kind, host[..., :3].copy())
    lu, pivots, _ = batchchol.lu_factor_ex(a)
    reflectors, general = batchchol.qr(tall, "raw"), {"assume_a": "gen"}
    calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
        (batchchol.solve_ex, (a, one), {"upper": True}),
        (batchchol.solve_ex, (a, several), {}),
        (batchchol.solve_ex, (a, b), general),
        (batchchol.inv_ex, (a,), general),
        (batchchol.slogdet_ex, (a,), general),
        (batchchol.solve_ex, (a, b), {"logdet": True}),
        (batchchol.inv_ex, (a,), {"logdet": True}),
        (batchchol.cho_inverse_ex, (a,), {"upper": True}),
        (batchchol.lu_factor_ex, (a,), {"math": "fast"}),
        (batchchol.lu_solve, (lu, pivots, b), {}),
        (batchchol.lu_solve, (lu, pivots, several), {}),
        (batchchol.qr, (a,), {}),
        *[(batchchol.qr, (tall, mode), {}) for mode in ("raw", "r")],
        (batchchol.qr, (tall, "complete"), {"positive": True}),
        (batchchol.qr, (wide,), {"positive": True}),
        (batchchol.lstsq_ex, (tall, b), {}),
        (batchchol.ormqr, (reflectors, b), {}),
    ]
    for call, given, named in calls:
        expected = call(*given, **named, threads=1)
        call(*given, **named)
        with monkeypatch.context() as patched:
            if kind is not fake_pycuda.GPUArray:
                patched.setattr(Pool, "allocate", lambda *_: pytest.fail("this is the library's memory"))
            found = call(*given, **named)
        assert type(found) is type(expected)
        for ours, theirs in zip(
            *(each if isinstance(each, tuple) else (each,) for each in (found, expected)), strict=True
        ):
            assert (type(ours), ours.dtype) == (kind, theirs.dtype)
            np.testing.assert_array_equal(get(ours), get(theirs))


def test_results_are_where_the_caller_has_them(kind: Any, spd: Spd, monkeypatch: pytest.MonkeyPatch) -> None:
    host = spd(2, 3, N)
    a, b = put(kind, host), put(kind, np.ones((2, 3, N), np.float32))
    l, (lu, pivots, _) = batchchol.cholesky_ex(a).L, batchchol.lu_factor_ex(a)
    calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
        (batchchol.cholesky_ex, (a,), {"upper": True}),
        (batchchol.solve_ex, (a, b), {"assume_a": "gen"}),
        (batchchol.lu_solve, (lu, pivots, b), {}),
        (batchchol.cho_inverse, (l,), {}),
    ]
    for call, given, named in calls:
        expected = call(*given, **named)
        expected = expected[0] if isinstance(expected, tuple) else expected
        out = put(kind, np.zeros(expected.shape, np.float32))
        with monkeypatch.context() as patched:
            if kind is not fake_pycuda.GPUArray:
                patched.setattr(Pool, "allocate", lambda *_: pytest.fail("this is the library's memory"))
            found = call(*given, **named, out=out)
        assert (found[0] if isinstance(found, tuple) else found) is out
        np.testing.assert_array_equal(get(out), get(expected))
    # What has bytes in common with an argument is for the other way, which knows when that may be.
    assert batchchol.solve_ex(a, b, out=b).x is b
    close(b, np.linalg.solve(host, np.ones((2, 3, N, 1)))[..., 0])
    with pytest.raises(ValueError, match=r"^out: shares memory with an input"):
        batchchol.inv(a, out=a)
    with pytest.raises(ValueError, match=r"^out: got shape"):
        batchchol.cholesky_ex(a, out=b)


def test_what_is_not_done_in_the_library_memory(kind: Any, spd: Spd) -> None:
    host = spd(3, N)
    a = put(kind, host)
    found = batchchol.solve_ex(a=a, b=put(kind, np.ones(N, np.float32)), jitter="auto")
    assert {type(each) for each in found} == {kind}
    close(found.x, np.linalg.solve(host, np.ones((3, N, 1)))[..., 0])
    close(batchchol.cholesky(a, upper=True), np.linalg.cholesky(host).swapaxes(1, 2))
    lu, pivots = batchchol.lu_factor(a)
    assert type(pivots) is kind
    close(batchchol.lu_solve(lu, pivots, put(kind, np.ones((3, N), np.float32))), get(found.x))
    reflectors = batchchol.qr(a, "raw")
    products = batchchol.ormqr(reflectors, a)
    assert {type(each) for each in (*reflectors, products)} == {kind}
    close(products, np.triu(get(reflectors.qr)))
    out = put(kind, host * 0)
    assert batchchol.cholesky_ex(a, out=out).L is out
    close(out, np.linalg.cholesky(host))
    host[1] = 1
    with pytest.raises(np.linalg.LinAlgError, match=r"^matrix 1 is not positive definite"):
        batchchol.cholesky(put(kind, host))


def test_work_is_in_the_order_of_the_current_stream(kind: Any, spd: Spd, fake_gpu: FakeGpu) -> None:
    if kind is not CupyArray:
        pytest.skip("the library has no current stream")
    host = spd(3, N)
    a, b = put(kind, host), put(kind, np.ones((3, N), np.float32))
    with on_stream(11):
        batchchol.cholesky_ex(a)
        batchchol.solve_ex(a, b)
        assert ({stream for *_, stream in fake_gpu.launches}, fake_gpu.waits) == ({11}, [])
        # The default stream waits for the array's, and that for the default one.
        batchchol.cholesky_ex(a, jitter="auto")
    assert set(fake_gpu.waits) == {(11, 0), (0, 11)}
    assert fake_gpu.waits[-1] == (0, 11)


def test_small_results_lie_in_memory_of_their_stream(kind: Any, spd: Spd, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind is not CupyArray:
        pytest.skip("the library has no current stream")
    made: list[tuple[int, int]] = []

    def allocate(nbytes: int) -> Memory:
        made.append((CupyArray.stream, nbytes))
        return Memory(bytearray(nbytes))

    monkeypatch.setattr(sys.modules["cupy"].cuda, "alloc", allocate)
    a = put(kind, spd(3, N))
    infos = []
    for _ in range(20):
        for stream in (0, 11):
            with on_stream(stream):
                infos.append(batchchol.cholesky_ex(a).info)
    places = sorted(info.data.ptr for info in infos)
    assert len(set(places)) == 40
    assert min(np.diff(places)) >= 512
    assert [stream for stream, _ in made].count(0) == [stream for stream, _ in made].count(11) > 0
    # Of the stream of each thread, which have one number, each has its own.
    made.clear()
    with on_stream(2):
        for _ in range(3):
            batchchol.cholesky_ex(a)
    assert made == [(2, 512)] * 6


def test_where_a_library_lacks_memory_this_one_is_asked(
    kind: Any, spd: Spd, fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind is not CupyArray:
        pytest.skip("the library has no such error")

    def lacking(nbytes: int) -> None:
        raise NoMemory

    host = spd(3, N)
    a = put(kind, host)
    monkeypatch.setattr(sys.modules["cupy"].cuda, "alloc", lacking)
    found = batchchol.cholesky_ex(a)
    assert type(found.L) is kind
    close(found.L, np.linalg.cholesky(host))
    fake_gpu.total = 0
    memory.release()
    with pytest.raises(OutOfMemory, match="use a smaller batch"):
        batchchol.cholesky_ex(put(kind, np.ones((99, N, N), np.float32)))


@pytest.mark.parametrize(
    "view",
    [
        lambda host: host[::2],
        lambda host: host[:, 1:4, 1:4],
        lambda host: host.swapaxes(1, 2),
        lambda host: host[::-1],
        lambda host: np.broadcast_to(host[:1], host.shape),
    ],
    ids=["every-other", "parts", "transposed", "reversed", "broadcast"],
)
def test_arrays_of_any_strides(
    kind: Any, spd: Spd, view: Callable[[Array], Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind is fake_pycuda.GPUArray:
        pytest.skip("the fake has no strides")
    if kind is CupyArray:
        monkeypatch.setattr(Pool, "allocate", lambda *_: pytest.fail("this is the library's memory"))
    host = view(spd(4, N) + np.triu(np.ones((N, N), np.float32), 1))
    whole = np.tril(host) + np.tril(host, -1).swapaxes(1, 2)
    sides = np.ones_like(whole)[..., ::-1]
    close(batchchol.cholesky_ex(kind((), None, host)).L, np.linalg.cholesky(whole))
    close(batchchol.solve(kind((), None, host), kind((), None, sides)), np.linalg.solve(whole, sides))


def test_work_is_on_the_gpu_of_the_arrays(kind: Any, spd: Spd, fake_gpu: FakeGpu) -> None:
    fake_gpu.gpus, host = 2, spd(3, N)
    here = put(kind, host)
    batchchol.solve_ex(here, put(kind, np.ones((3, N), np.float32)))
    batchchol.cholesky_ex(here, jitter="auto")
    assert set(fake_gpu.ran_on) == {0}
    fake_gpu.ran_on.clear()
    with OnGpu(1), gpus.gpus(1):
        a, b = put(kind, host.copy()), put(kind, np.ones((3, N), np.float32))
    for _ in range(2):
        # Not where this thread's calls would be, nor where the library makes arrays.
        l, info = batchchol.cholesky_ex(a)
        x = batchchol.solve_ex(a, b, jitter="auto").x
    close(l, np.linalg.cholesky(host))
    close(batchchol.cho_solve(l, b), np.linalg.solve(host, np.ones((3, N, 1)))[..., 0])
    close(x, np.linalg.solve(host, np.ones((3, N, 1)))[..., 0])
    close(batchchol.lu_solve(*batchchol.lu_factor(a), b), get(x))
    assert set(fake_gpu.ran_on) == {1}
    assert {libraries._library(kind.__module__.partition(".")[0]).gpu_of(each) for each in (l, info, x)} == {1}
    # Each call is in the order of its GPU's current stream.
    assert gpus.first() == FakeArray.device == 0
    for refused in ((here, b), (a, put(kind, np.ones((3, N), np.float32)))):
        with pytest.raises(ValueError, match=r"^b: got an array of GPU \d, expected one of GPU \d, where the call's"):
            batchchol.solve(*refused)


def test_threads_work_on_a_gpu_each(kind: Any, spd: Spd, fake_gpu: FakeGpu) -> None:
    if kind is not fake_pycuda.GPUArray:
        pytest.skip("the fake has one current GPU for all threads")
    fake_gpu.gpus, host = 2, spd(3, N)

    def factored(number: int) -> Array:
        with gpus.gpus(number):
            there = put(kind, host * (1 + number))
        found = batchchol.cholesky_ex(there).L
        assert memory.gpu_of(found) == number
        return get(found)

    with ThreadPoolExecutor(2) as pool:
        for number, found in zip((0, 1), pool.map(factored, (0, 1)), strict=True):
            close(put(kind, found), np.linalg.cholesky(host * (1 + number)))


def test_what_is_wrong_is_said_as_ever(kind: Any, spd: Spd) -> None:
    a = put(kind, spd(2, N))
    with pytest.raises(ValueError, match=r"^math: got 'exact'"):
        batchchol.cholesky_ex(a, math="exact")
    with pytest.raises(TypeError, match=r"^upper: got 1"):
        batchchol.cholesky_ex(a, upper=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
        batchchol.cholesky_ex(a, nothing=None)
    with pytest.raises(TypeError, match="too many positional arguments"):
        batchchol.lu_factor_ex(a, "cuda")
    with pytest.raises(ValueError, match=r"^backend: got 'cpu', expected 'cuda'"):
        batchchol.cholesky_ex(a, backend="cpu")
    with pytest.raises(ValueError, match=r"^a: got shape \(2, 5\), expected square"):
        batchchol.cholesky_ex(put(kind, np.ones((2, N), np.float32)))
    with pytest.raises(TypeError, match=r"^a: got dtype int32"):
        batchchol.cholesky_ex(put(kind, np.ones((2, N, N), np.int32)))
    with pytest.raises(TypeError, match=r"^b: got ndarray, expected an array on the GPU"):
        batchchol.solve(a, np.ones(N, np.float32))
    assert get(batchchol.cholesky_ex(put(kind, np.ones((0, N, N), np.float32))).info).shape == (0,)


def test_arrays_that_numpy_knows_by_dlpack_alone(spd: Spd) -> None:
    class Array:
        def __init__(self, host: Any) -> None:
            self.host = host

        def __dlpack__(self, **how: Any) -> Any:
            return self.host.__dlpack__(**how)

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    a, b = spd(3, N), np.ones((3, N, 1), np.float32)
    np.testing.assert_allclose(batchchol.solve(Array(a), Array(b)), np.linalg.solve(a, b), rtol=1e-4)
    np.testing.assert_allclose(batchchol.cholesky(Array(a.swapaxes(1, 2))), np.linalg.cholesky(a), rtol=1e-4)
    np.testing.assert_allclose(batchchol.lstsq(Array(a), Array(b)), np.linalg.solve(a, b), rtol=1e-4)


def test_in_a_thread_without_the_context_and_after_a_failure(kind: Any, spd: Spd, fake_gpu: FakeGpu) -> None:
    host = spd(3, N)
    a = put(kind, host)
    batchchol.cholesky_ex(a)
    with ThreadPoolExecutor(1) as pool:
        l, _ = pool.submit(batchchol.cholesky_ex, a).result(30)
    close(l, np.linalg.cholesky(host))
    fake_gpu.status = fake_pycuda.ILLEGAL_ADDRESS
    with pytest.raises(DeviceLost, match="is lost to this process"):
        batchchol.cholesky_ex(a)
