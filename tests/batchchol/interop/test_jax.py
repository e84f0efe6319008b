"""JAX's calls on the CPU and, where it has one, on a GPU: values, transformations, derivatives and failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed (the extra jax)")

import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

from batchchol.interop import jax as linalg  # noqa: E402

from ...pages import DOCS, blocks  # noqa: E402

N = 5
Array = Any


def _devices() -> list[Any]:
    """The first of each kind."""
    found = [jax.devices("cpu")[0]]
    try:
        return [*found, jax.devices("gpu")[0]]
    except RuntimeError:
        return found


@pytest.fixture(params=_devices(), ids=lambda device: device.platform, autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    with jax.enable_x64(True), jax.default_device(request.param):
        yield request.param


def matrices(*outer: int, dtype: str = "float64", n: int = N) -> Array:
    r = np.random.default_rng(5).random((*outer, n, n))
    return jnp.asarray(((r + r.swapaxes(-1, -2)) / 2 + n * np.eye(n)).astype(dtype))


def sides(*shape: int, dtype: str = "float64") -> Array:
    return jnp.asarray(np.random.default_rng(6).random(shape), dtype)


def close(found: Array, expected: Array) -> None:
    assert found.dtype == expected.dtype
    tolerance = 1e-4 if found.dtype == np.float32 else 1e-11
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("upper", [False, True])
def test_values(device: Any, dtype: str, upper: bool) -> None:
    a, b, how = matrices(2, 3, dtype=dtype), sides(2, 3, N, 2, dtype=dtype), {"upper": upper}
    l, info = jax.jit(lambda a: linalg.cholesky_ex(a, **how))(a)
    assert l.devices() == {device}
    expected = np.linalg.cholesky(a)
    close(l, expected.swapaxes(-1, -2) if upper else expected)
    assert info.dtype == np.int32
    assert not info.any()
    close(linalg.solve(a, b, **how), np.linalg.solve(a, b))
    close(linalg.solve(a, b[..., 0], **how), np.linalg.solve(a, b)[..., 0])
    close(linalg.solve(a, b[:1, :1], **how), np.linalg.solve(a, b[:1, :1]))
    close(linalg.solve(a[0, 0], b, **how), np.linalg.solve(a[0, 0], b))
    close(linalg.cho_solve(l, b, **how), np.linalg.solve(a, b))
    close(linalg.cho_inverse(l, **how), np.linalg.inv(a))
    close(linalg.inv(a.mT, **how), np.linalg.inv(a))
    close(linalg.slogdet(a, **how).logabsdet, np.linalg.slogdet(a)[1])


def test_orders_of_other_kernels() -> None:
    # On a GPU some of these are solved by and inverted through factors, in memory of XLA's.
    for n in (1, 40):
        a, b = matrices(3, n=n), sides(3, n, 1)
        close(linalg.cholesky(a, math="fast"), np.linalg.cholesky(a))
        close(linalg.solve(a, b), np.linalg.solve(a, b))
        close(linalg.inv(a), np.linalg.inv(a))
        close(linalg.slogdet(a).logabsdet, np.linalg.slogdet(a)[1])


def test_vmap() -> None:
    a, b = matrices(2, 3), sides(N, 2)
    expected = np.linalg.solve(a, b)
    twice = jax.vmap(jax.vmap(linalg.solve, in_axes=(0, None)), in_axes=(0, None))
    close(jax.jit(twice)(a, b), expected)
    close(jax.vmap(linalg.cholesky, in_axes=-1, out_axes=-1)(jnp.moveaxis(a, 0, -1)), _last(np.linalg.cholesky(a)))
    each = jax.vmap(jax.grad(lambda a, b: linalg.solve(a, b).sum()), in_axes=(0, None))(a[0], b)
    assert each.shape == a[0].shape
    close(each[1], jax.grad(lambda a: linalg.solve(a, b).sum())(a[0, 1]))


def _last(a: Array) -> Array:
    return np.moveaxis(a, 0, -1)


def _symmetric(call: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    """A call whose matrices stay symmetric, whatever is added to its argument."""
    return lambda a, *b: call((a + a.mT) / 2, *b, **how)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("name", ["cholesky", "inv", "cho_inverse", "slogdet", "solve", "cho_solve"])
def test_derivatives(name: str, upper: bool) -> None:
    """Against differences, of both modes, first and second ones."""
    call = getattr(linalg, name)
    of_factors = name.startswith("cho_")
    f = (lambda *given: call(*given, upper=upper)) if of_factors else _symmetric(call, upper=upper)
    g = (lambda a: f(a)[1]) if name == "slogdet" else f
    given = (matrices(2), sides(2, N, 2)) if name.endswith("solve") else (matrices(2),)
    check_grads(g, given, order=2, atol=1e-5, rtol=1e-5)


def test_gradients_are_symmetric() -> None:
    a, b = matrices(3), sides(3, N)

    @jax.jit
    @jax.grad
    def gradient(a: Array) -> Array:
        return (linalg.solve(a, b) ** 2).sum() + linalg.slogdet(a).logabsdet.sum() + linalg.cholesky(a).sum()

    found = gradient(a)
    close(found, found.mT)
    close(jax.grad(lambda a: linalg.slogdet(a).logabsdet.sum())(a), jnp.linalg.inv(a))


def test_failures() -> None:
    a, b = matrices(4).at[2, 3, 3].set(-1), sides(4, N, 1)
    assert linalg.cholesky_ex(a).info.tolist() == [0, 0, 4, 0]
    assert linalg.solve_ex(a, b).info.tolist() == [0, 0, 4, 0]
    failed = [False, False, True, False]
    for found in (linalg.cholesky(a), linalg.solve(a, b), linalg.inv(a), linalg.slogdet(a).logabsdet[:, None, None]):
        assert jnp.isnan(found).any((1, 2)).tolist() == failed
    gradient = jax.grad(lambda a: linalg.slogdet(a).logabsdet[:2].sum())(a)
    assert not jnp.isnan(gradient[:2]).any()


def test_nothing() -> None:
    assert linalg.cholesky(jnp.zeros((0, N, N))).shape == (0, N, N)
    assert linalg.solve(matrices(2), jnp.zeros((2, N, 0))).shape == (2, N, 0)
    assert linalg.slogdet(jnp.zeros((3, 0, 0))).sign.tolist() == [1, 1, 1]


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^a: got shape \(3, 2\), expected square matrices"):
        linalg.cholesky(jnp.zeros((3, 2)))
    with pytest.raises(TypeError, match=r"^a: got dtype int"):
        linalg.inv(jnp.eye(3, dtype=int))
    with pytest.raises(ValueError, match=r"^L: got matrices of order 129, expected at most 128"):
        linalg.cho_inverse(jnp.eye(129))
    with pytest.raises(TypeError, match=r"^b: got dtype float32, expected float64"):
        linalg.solve(matrices(2), sides(2, N, dtype="float32"))
    with pytest.raises(ValueError, match=r"^math: got 'exact'"):
        linalg.slogdet(matrices(2), math="exact")
    with pytest.raises(TypeError, match=r"^upper: "):
        linalg.cholesky(matrices(2), upper=1)


@pytest.mark.skipif(not DOCS.exists(), reason="docs/ belongs to the clone, and this is no clone")
def test_the_page_of_the_documentation_runs() -> None:
    names: dict[str, Any] = {}
    for block in blocks("interop", "JAX"):
        exec(compile(block, "interop.md", "exec"), names)
    value, gradient = names["likelihood"](matrices(N)[0], sides(N))
    assert gradient.shape == (N, N)
    assert np.isfinite(value)


def test_errors_of_a_handler_are_raised_by_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    from batchchol.interop.jax import xla

    monkeypatch.setattr(xla.Execution, "free", lambda _: 1 // 0)
    with pytest.raises(Exception, match="ZeroDivisionError: "):
        # Shapes that were met before are no matter of Python's on a GPU.
        linalg.cholesky(matrices(17)).block_until_ready()


def test_what_xla_refuses_is_said(device: Any) -> None:
    if device.platform != "cpu":
        pytest.skip("a GPU has memory and a stream")
    from batchchol.interop.jax import xla

    xla.register("batchchol_test_room", {"cpu": lambda execution: execution.room(64, "a test")})
    call = jax.ffi.ffi_call("batchchol_test_room", jax.ShapeDtypeStruct((1,), np.float32))
    with pytest.raises(Exception, match="allocating 64 bytes for a test: XLA FFI GPU context is not available"):
        jax.block_until_ready(call(jnp.ones(1, np.float32)))
