"""Arrays of torch, CuPy, Numba and PyCUDA on a real GPU: results of their type, on their stream, of any strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import batchchol
from batchchol import gpus
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.device import device

from ...pages import DOCS, blocks

pytestmark = pytest.mark.gpu

N, BATCH = 10, 50
Array = np.ndarray[Any, Any]


class Torch:
    """PyTorch's tensors."""

    def __init__(self) -> None:
        self.module = pytest.importorskip("torch", reason="PyTorch is not installed")
        self.kind = self.module.Tensor

    def put(self, a: Array) -> Any:
        return self.module.from_numpy(np.array(a)).cuda()

    def get(self, a: Any) -> Array:
        return np.asarray(a.cpu())


class Cupy:
    """CuPy's arrays."""

    def __init__(self) -> None:
        self.module = pytest.importorskip("cupy", reason="CuPy is not installed")
        self.kind = self.module.ndarray

    def put(self, a: Array) -> Any:
        return self.module.asarray(a)

    def get(self, a: Any) -> Array:
        return np.asarray(a.get())


class Numba:
    """Numba's device arrays."""

    def __init__(self) -> None:
        self.module = pytest.importorskip("numba.cuda", reason="Numba is not installed")
        self.kind = type(self.module.to_device(np.zeros(1)))

    def put(self, a: Array) -> Any:
        return self.module.to_device(np.ascontiguousarray(a))

    def get(self, a: Any) -> Array:
        return np.asarray(a.copy_to_host())


class Pycuda:
    """PyCUDA's arrays."""

    def __init__(self) -> None:
        batchchol.get_backend("cuda")
        self.module = pytest.importorskip("pycuda.gpuarray", reason="PyCUDA is not installed")
        self.kind = self.module.GPUArray

    def put(self, a: Array) -> Any:
        with device().current():
            return self.module.to_gpu(np.ascontiguousarray(a))

    def get(self, a: Any) -> Array:
        with device().current():
            return np.asarray(a.get())


@pytest.fixture(params=[Torch, Cupy, Numba, Pycuda], ids=lambda kind: kind.__name__)
def library(request: pytest.FixtureRequest) -> Any:
    return request.param()


def matrices(*outer: int, dtype: str = "float64", n: int = N) -> Array:
    r = np.random.default_rng(5).random((*outer, n, n))
    return ((r + r.swapaxes(-1, -2)) / 2 + n * np.eye(n)).astype(dtype)


def close(found: Array, expected: Array) -> None:
    tolerance = 1e-4 if found.dtype == np.float32 else 1e-10
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [N, 72])
def test_results_are_of_the_type_of_the_arguments(library: Any, dtype: str, n: int) -> None:
    host, sides = matrices(2, BATCH, dtype=dtype, n=n), np.ones((2, BATCH, n, 2), dtype)
    a, b = library.put(host), library.put(sides)
    inverse, x = np.linalg.inv(host), np.linalg.solve(host, sides)
    l, info = batchchol.cholesky_ex(a)
    found = [
        (l, np.linalg.cholesky(host)),
        (info, np.zeros((2, BATCH))),
        (batchchol.cholesky(a, upper=True), np.linalg.cholesky(host).swapaxes(-1, -2)),
        (batchchol.cholesky(a, jitter="auto"), np.linalg.cholesky(host)),
        (batchchol.solve_ex(a, b).x, x),
        (batchchol.solve(a, library.put(sides[..., 0])), x[..., 0]),
        (batchchol.solve_ex(a, b, jitter="auto").added, np.zeros((2, BATCH))),
        (batchchol.solve_ex(a, b, logdet=True).logabsdet, np.linalg.slogdet(host)[1]),
        (batchchol.solve(a, library.put(sides[0, 0])), np.linalg.solve(host, sides[0, 0])),
        (batchchol.cho_solve(l, b), x),
        (batchchol.inv(a), inverse),
        (batchchol.cho_inverse(l), inverse),
        (batchchol.slogdet_ex(a).logabsdet, np.linalg.slogdet(host)[1]),
        (batchchol.slogdet(a).sign, np.ones((2, BATCH))),
    ]
    if n == N:
        lu, pivots = batchchol.lu_factor(a)
        found += [
            (batchchol.lu_solve(lu, pivots, b), x),
            (batchchol.solve(a, b, assume_a="gen"), x),
            (batchchol.qr(a, "r", positive=True), _r(host)),
        ]
        close(library.get(batchchol.lstsq(a, library.put(sides[..., 0]))), x[..., 0])
    for ours, theirs in found:
        assert isinstance(ours, library.kind)
        close(library.get(ours), theirs)


def _r(a: Array) -> Array:
    """The R of a whose diagonal is positive."""
    r = np.linalg.qr(a)[1]
    return np.sign(np.diagonal(r, axis1=-2, axis2=-1))[..., None] * r


def _turned(library: Any, host: Array) -> Any:
    a = library.put(host)
    return a.mT if isinstance(library, Torch) else a.swapaxes(-1, -2) if isinstance(library, Cupy) else None


def _spread(library: Any, host: Array) -> Any:
    one = library.put(host[:1])
    if isinstance(library, Torch):
        return one.expand(host.shape)
    return library.module.broadcast_to(one, host.shape) if isinstance(library, Cupy) else None


@pytest.mark.parametrize(
    ("strided", "same"),
    [
        (lambda library, host: library.put(host)[::2], lambda host: host[::2]),
        (lambda library, host: library.put(host)[:, :6, :6], lambda host: host[:, :6, :6]),
        (_turned, lambda host: host.swapaxes(-1, -2)),
        (_spread, lambda host: np.broadcast_to(host[:1], host.shape)),
    ],
    ids=["every-other", "parts", "transposed", "broadcast"],
)
def test_arrays_of_any_strides(
    library: Any, strided: Callable[[Any, Array], Any], same: Callable[[Array], Array]
) -> None:
    host = matrices(BATCH)
    # Only the lower triangle is read: the upper one tells a transpose from what it is of.
    host += np.triu(np.ones((N, N)), 1)
    a = strided(library, host)
    if a is None:
        pytest.skip("the library has no such view")
    expected = np.linalg.cholesky(same(host))
    close(library.get(batchchol.cholesky_ex(a).L), expected)
    sides = np.ones(expected.shape)
    turned = library.put(sides) if not isinstance(library, Cupy | Torch) else _turned(library, sides)
    full = np.tril(same(host)) + np.tril(same(host), -1).swapaxes(-1, -2)
    close(library.get(batchchol.solve(a, turned)), np.linalg.solve(full, sides))


def test_on_the_current_stream(library: Any) -> None:
    """On any other the matrices would be read before they are written, and results before they are there."""
    host, module = matrices(BATCH, dtype="float32"), library.module
    if isinstance(library, Torch):
        stream, late = module.cuda.Stream(), lambda: module.cuda._sleep(20_000_000)
        context, wait = module.cuda.stream(stream), stream.synchronize
    elif isinstance(library, Cupy):
        stream = context = module.cuda.Stream(non_blocking=True)
        big, wait = module.ones((6000, 6000), dtype="float32"), stream.synchronize
        late = lambda: [module.matmul(big, big) for _ in range(8)]  # noqa: E731
        late()
    else:
        pytest.skip("the library has no current stream")
    a, b = library.put(host / 2), library.put(np.ones((BATCH, N), "float32"))
    batchchol.solve(a, b)
    module.cuda.synchronize() if isinstance(library, Torch) else module.cuda.runtime.deviceSynchronize()
    with context:
        late()
        doubled = a * 2
        found = [batchchol.cholesky_ex(doubled).L * 1, batchchol.solve_ex(doubled, b, jitter="auto").x * 1]
        found += [batchchol.lu_factor_ex(doubled)[0] * 1, *(each * 1 for each in batchchol.qr(doubled))]
    wait()
    close(library.get(found[0]), np.linalg.cholesky(host))
    close(library.get(found[1]), np.linalg.solve(host, np.ones((BATCH, N, 1)))[..., 0])
    close(np.matmul(*map(library.get, found[3:])), host)


def _on_second(library: Any, host: Array) -> Any:
    """An array on the second GPU, which is not made current."""
    if isinstance(library, Torch):
        return library.put(host).to("cuda:1")
    current = {Cupy: lambda cupy: cupy.cuda.Device(1), Numba: lambda cuda: cuda.gpus[1]}.get(type(library))
    with gpus(1) if current is None else current(library.module):
        return memory.to_device(host, "an array") if current is None else library.put(host)


def test_on_the_second_gpu(library: Any) -> None:
    if device().pycuda.Device.count() < 2:
        pytest.skip("there is one GPU")
    host, sides = matrices(BATCH, dtype="float32"), np.ones((BATCH, N, 2), "float32")
    a, b = _on_second(library, host), _on_second(library, sides)
    found = [(batchchol.cholesky_ex(a).L, np.linalg.cholesky(host)), (batchchol.inv(a), np.linalg.inv(host))]
    found += [
        (each, np.linalg.solve(host, sides)) for each in (batchchol.solve(a, b), batchchol.solve(a, b, jitter="auto"))
    ]
    with gpus(1), device().current():
        for ours, theirs in found:
            assert memory.gpu_of(ours) == 1
            close(library.get(ours), theirs)
    with pytest.raises(ValueError, match="got an array of GPU"):
        batchchol.solve(library.put(host), b)
    close(batchchol.cholesky(host, backend="cuda"), np.linalg.cholesky(host))


def test_failures_and_refusals(library: Any) -> None:
    host = matrices(4, dtype="float32")
    host[2, 3, 3] = -1
    a = library.put(host)
    assert library.get(batchchol.cholesky_ex(a).info).tolist() == [0, 0, 4, 0]
    with pytest.raises(np.linalg.LinAlgError, match=r"^matrix 2 is not positive definite"):
        batchchol.cholesky(a)
    with pytest.raises(ValueError, match=r"^math: got 'exact'"):
        batchchol.cholesky_ex(a, math="exact")
    with pytest.raises(ValueError, match=r"^a: got shape"):
        batchchol.cholesky_ex(library.put(host[:, 0]))
    with pytest.raises(TypeError, match=r"^a: got dtype int32"):
        batchchol.cholesky_ex(library.put(host.astype(np.int32)))
    with pytest.raises(TypeError, match="unexpected keyword"):
        batchchol.cholesky_ex(a, nothing=None)
    out = library.put(host * 0)
    assert batchchol.cholesky_ex(a, out=out).L is out
    close(library.get(out)[:2], np.linalg.cholesky(host[:2]))


@pytest.mark.skipif(not DOCS.exists(), reason="docs/ belongs to the clone, and this is no clone")
def test_the_page_of_the_documentation_runs() -> None:
    library, names = Cupy(), dict[str, Any]()
    for block in blocks("interop", "Arrays on a GPU"):
        exec(compile(block, "interop.md", "exec"), names)
    assert isinstance(names["x"], library.kind)
    close(library.get(names["x"]), np.full((1000, 8), 1 / 16))


def test_tensors_that_want_gradients_are_refused() -> None:
    library = Torch()
    a = library.put(matrices(2)).requires_grad_()
    with pytest.raises(RuntimeError, match="requires grad"):
        batchchol.cholesky_ex(a)
    with library.module.no_grad():
        assert not batchchol.cholesky_ex(a).L.requires_grad
