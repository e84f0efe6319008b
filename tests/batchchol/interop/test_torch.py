"""The operators of PyTorch on the CPU: results, strides, derivatives, compiling, vmap and what fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (the extra torch)")

import batchchol  # noqa: E402
from batchchol.interop import torch as linalg  # noqa: E402

from ...pages import DOCS, blocks  # noqa: E402

N, NRHS = 3, 2
Spd = Callable[..., Any]


@pytest.fixture
def tensors(spd: Spd) -> tuple[Any, Any]:
    """Matrices (3, n, n) and right-hand sides (3, n, nrhs) of float64."""
    return torch.from_numpy(spd(3, N, dtype="float64")), torch.linspace(-1, 1, 3 * N * NRHS).double().view(3, N, NRHS)


def compiled(function: Any) -> Any:
    return torch.compile(function, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("upper", [False, True])
def test_results_are_those_of_the_library(spd: Spd, dtype: str, upper: bool) -> None:
    a = spd(2, 3, N, dtype=dtype)
    b = np.linspace(-1, 1, 6 * N * NRHS, dtype=dtype).reshape(2, 3, N, NRHS)
    t, u, how = torch.from_numpy(a), torch.from_numpy(b), {"upper": upper}
    l = batchchol.cholesky(a, **how)
    pairs = [
        (linalg.cholesky(t, **how), l),
        (linalg.cholesky_ex(t, **how).info, np.zeros((2, 3), np.int32)),
        (linalg.solve(t, u, **how), batchchol.solve(a, b, **how)),
        (linalg.solve(t, u[0, 0, :, 0], **how), batchchol.solve(a, b[0, 0, :, 0], **how)),
        (linalg.solve(t, u[..., 0], **how), batchchol.solve(a, b[..., 0], **how)),
        (linalg.cho_solve(torch.from_numpy(l), u, **how), batchchol.cho_solve(l, b, **how)),
        (linalg.cho_inverse(torch.from_numpy(l), **how), batchchol.cho_inverse(l, **how)),
        (linalg.inv(t, **how), batchchol.inv(a, **how)),
        (linalg.slogdet(t, **how).logabsdet, batchchol.slogdet(a, **how).logabsdet),
    ]
    for found, expected in pairs:
        assert found.is_contiguous()
        np.testing.assert_array_equal(found.numpy(), expected, strict=True)


def test_vectors_and_broadcast_right_hand_sides(tensors: tuple[Any, Any]) -> None:
    a, b = tensors
    for columns in (b[0, :, 0], b[..., 0], b[0], b[:, None], b.expand(2, 3, N, NRHS)):
        vectors = columns.ndim == 1 or columns.shape == a.shape[:-1]
        given = columns[..., None] if vectors else columns
        expected = torch.linalg.solve(a, given)
        expected = expected[..., 0] if vectors else expected
        torch.testing.assert_close(linalg.solve(a, columns), expected)
        torch.testing.assert_close(linalg.cho_solve(linalg.cholesky(a), columns), expected)
    # As many right-hand sides as a rule for vectors would look at: these are a matrix for each.
    several, square = a[:1].expand(N, N, N), torch.eye(N).double()
    torch.testing.assert_close(linalg.solve(several, square[None]), torch.linalg.solve(several, square[None]))


def test_any_strides(tensors: tuple[Any, Any]) -> None:
    a, b = tensors
    wide = torch.zeros(3, N, 2 * N).double()
    wide[..., ::2] = a
    # The other triangle is not read.
    turned = a.tril().mT
    for given, upper in (
        (wide[..., ::2], False),
        (a.flip(0).flip(0), False),
        (turned, True),
        (a[0].expand(3, N, N), True),
    ):
        expected = torch.linalg.cholesky(given.contiguous(), upper=upper)
        torch.testing.assert_close(linalg.cholesky(given, upper=upper), expected)
        torch.testing.assert_close(
            linalg.slogdet(given, upper=upper).logabsdet, 2 * expected.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        )
        x = torch.cholesky_solve(b, expected, upper=upper)
        torch.testing.assert_close(linalg.solve(given, b.mT.contiguous().mT, upper=upper), x)
        torch.testing.assert_close(linalg.cho_solve(expected, b, upper=upper), x)
    assert linalg.cholesky(turned, upper=True).mT.is_contiguous(), "a stack of transposes is not copied"


@pytest.mark.parametrize(("shape", "nrhs"), [((0, N), 2), ((2, 0), 2), ((2, N), 0)], ids=str)
def test_nothing(spd: Spd, shape: tuple[int, ...], nrhs: int) -> None:
    a, b = torch.from_numpy(spd(*shape)), torch.zeros(*shape, nrhs)
    assert linalg.cholesky(a).shape == linalg.inv(a).shape == linalg.cho_inverse(a).shape == a.shape
    assert linalg.solve(a, b).shape == linalg.cho_solve(a, b).shape == b.shape
    assert linalg.slogdet(a).logabsdet.shape == shape[:1]
    assert linalg.cholesky_ex(a).info.tolist() == [0] * shape[0]


def symmetric(a: Any) -> Any:
    return (a + a.mT) / 2


def cases(upper: bool) -> dict[str, Any]:
    how = {"upper": upper}
    triangle = torch.triu if upper else torch.tril
    return {
        "cholesky": lambda a, b: linalg.cholesky(symmetric(a), **how),
        "transposed": lambda a, b: linalg.cholesky(symmetric(a).mT, **how),
        "solve": lambda a, b: linalg.solve(symmetric(a), b, **how),
        "broadcast": lambda a, b: linalg.solve(symmetric(a)[0], b, jitter="auto", **how),
        "vectors": lambda a, b: linalg.solve(symmetric(a), b[..., 0], jitter="auto", **how),
        "one for all": lambda a, b: linalg.solve(symmetric(a), b[0, :, 0], **how),
        "cho_solve": lambda a, b: linalg.cho_solve(triangle(a), b[0], **how),
        "cho_solve of vectors": lambda a, b: linalg.cho_solve(triangle(a), b[..., 0], **how),
        "cho_inverse": lambda a, b: linalg.cho_inverse(triangle(a), **how),
        "inv": lambda a, b: linalg.inv(symmetric(a), **how),
        "slogdet": lambda a, b: linalg.slogdet(symmetric(a), **how).logabsdet,
    }


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("case", list(cases(False)))
def test_derivatives_and_second_ones(tensors: tuple[Any, Any], case: str, upper: bool) -> None:
    given = [tensor[:2].clone().requires_grad_() for tensor in tensors]
    function = cases(upper)[case]
    torch.autograd.gradcheck(function, given)
    torch.autograd.gradgradcheck(function, given)


def test_derivatives_are_those_of_torch(tensors: tuple[Any, Any]) -> None:
    a, b = (tensor.requires_grad_() for tensor in tensors)
    for ours, theirs in (
        (linalg.cholesky(a), torch.linalg.cholesky(a)),
        (linalg.slogdet(a)[1], torch.linalg.slogdet(a)[1]),
        (linalg.solve(a, b), torch.cholesky_solve(b, torch.linalg.cholesky(a))),
    ):
        weights = torch.linspace(1, 2, ours.numel()).double().view(ours.shape)
        found, expected = (torch.autograd.grad((x * weights).sum(), a)[0] for x in (ours, theirs))
        torch.testing.assert_close(found, expected)


def test_operators_pass_the_checks_of_torch(tensors: tuple[Any, Any]) -> None:
    a, b = (tensor[:2].clone().requires_grad_() for tensor in tensors)
    one = b[0].detach().requires_grad_()
    given = {
        "cholesky": (a, True),
        "cholesky_repaired": (a, 1e-8),
        "solve": (a, one),
        "solve_repaired": (a, b, 1e-8, True),
        "cho_solve": (a, b[..., 0].detach().requires_grad_()),
        "cho_inverse": (a,),
        "inv": (a,),
        "slogdet": (a,),
    }
    assert given.keys() == linalg.OPERATORS.keys()
    for name, args in given.items():
        torch.library.opcheck(linalg.OPERATORS[name], args)


def test_compiled_as_one_graph(tensors: tuple[Any, Any]) -> None:
    def loss(a: Any, b: Any) -> Any:
        x, l = linalg.solve(a, b), linalg.cholesky(a.mT, jitter="auto")
        return x.square().sum() + linalg.slogdet(a).logabsdet.sum() + l.sum() + linalg.inv(a).sum()

    given = [tensor.requires_grad_() for tensor in tensors]
    found, expected = (torch.autograd.grad(f(*given), given) for f in (compiled(loss), loss))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("call", [lambda f: f, compiled], ids=["eager", "compiled"])
def test_failures_are_defined(tensors: tuple[Any, Any], call: Any) -> None:
    a, b = tensors
    expected = torch.autograd.functional.jacobian(lambda a: linalg.solve(a, b)[2], a)
    a[0, 1, 1], a[1, 2, 1] = -1, torch.nan
    a.requires_grad_()

    def everything(a: Any, b: Any) -> tuple[Any, ...]:
        return linalg.cholesky_ex(a), linalg.solve_ex(a, b), linalg.inv_ex(a), linalg.slogdet_ex(a)

    l, solution, inverse, determinant = call(everything)(a, b)
    for info in (l.info, solution.info, inverse.info, determinant.info):
        assert info.tolist() == [2, 3, 0]
    assert determinant.sign.isnan().tolist() == determinant.logabsdet.isnan().tolist() == [True, True, False]
    torch.testing.assert_close(l.L[2], torch.linalg.cholesky(a[2]))
    (found,) = torch.autograd.grad(solution.x[2].sum(), a)
    torch.testing.assert_close(found[2], expected.sum((0, 1))[2])
    for function in (linalg.cholesky, linalg.inv, linalg.slogdet, lambda a: linalg.solve(a, b)):
        with pytest.raises(
            torch.linalg.LinAlgError, match=r"^matrix 0 is not positive definite: .* of order 2 is not"
        ):
            call(function)(a)


@pytest.mark.parametrize("call", [lambda f: f, compiled], ids=["eager", "compiled"])
def test_jitter_repairs_the_failed_alone(tensors: tuple[Any, Any], call: Any) -> None:
    a, b = tensors
    a[0] = 1
    l, info, added = call(lambda a: linalg.cholesky_ex(a, jitter=1e-3))(a)
    assert info.tolist() == [0, 0, 0]
    assert (added > 0).tolist() == [True, False, False]
    repaired = a + added[:, None, None] * torch.eye(N).double()
    torch.testing.assert_close(l @ l.mT, repaired)
    x = call(lambda a, b: linalg.solve(a, b, jitter=1e-3))(a.requires_grad_(), b)
    torch.testing.assert_close(x, torch.linalg.solve(repaired, b))
    (found,) = torch.autograd.grad(x.sum(), a)
    ones = torch.ones_like(b)
    torch.testing.assert_close(found, symmetric(-torch.linalg.solve(repaired, ones) @ x.mT).detach())


def test_what_watches_the_dispatcher_sees_the_operators(tensors: tuple[Any, Any]) -> None:
    a, b = tensors
    seen: list[str] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        linalg.solve(a, b)
    assert "batchchol.solve.default" in seen
    with torch._subclasses.FakeTensorMode() as mode:
        assert linalg.inv(mode.from_tensor(a)).shape == a.shape
    traced = torch.fx.experimental.proxy_tensor.make_fx(
        torch.func.functionalize(lambda a: linalg.cholesky(a, upper=True))
    )(a)
    assert "batchchol.cholesky.default" in traced.code


def test_vmap_over_any_axis(tensors: tuple[Any, Any]) -> None:
    a, b = tensors
    expected = torch.linalg.solve(a, b)
    vmap = torch.func.vmap
    torch.testing.assert_close(
        vmap(linalg.cholesky, in_dims=1, out_dims=1)(a.movedim(0, 1)), linalg.cholesky(a).movedim(0, 1)
    )
    torch.testing.assert_close(vmap(linalg.solve, in_dims=(0, 2))(a, b.movedim(0, 2)), expected)
    torch.testing.assert_close(vmap(linalg.solve, in_dims=(0, None))(a, b), torch.linalg.solve(a[:, None], b))
    for vectors, axes in ((b[..., 0], (0, 0)), (b[..., 0].mT, (0, 1)), (b[0, :, 0], (0, None))):
        found = vmap(linalg.solve, in_dims=axes)(a, vectors)
        torch.testing.assert_close(found, vmap(torch.linalg.solve, in_dims=axes)(a, vectors))
    # Of as many sides as there are matrices, and of the same order, each is one of a matrix.
    square = torch.eye(N).double()
    torch.testing.assert_close(vmap(linalg.solve, in_dims=(0, None))(a, square), torch.linalg.inv(a))
    torch.testing.assert_close(
        vmap(vmap(linalg.cho_solve), in_dims=(None, 0))(linalg.cholesky(a), b.expand(2, 3, N, NRHS)),
        expected.expand(2, 3, N, NRHS),
    )
    x, info = vmap(lambda b: tuple(linalg.solve_ex(a, b)), out_dims=(0, None))(b[:, None])
    torch.testing.assert_close(x, torch.linalg.solve(a, b[:, None]))
    assert info.tolist() == [0, 0, 0]


def test_what_is_refused(tensors: tuple[Any, Any]) -> None:
    a, b = tensors
    with pytest.raises(TypeError, match=r"^a: got ndarray, expected a torch.Tensor"):
        linalg.cholesky(a.numpy())
    with pytest.raises(TypeError, match=r"^b: got list, expected a torch.Tensor"):
        linalg.solve(a, [1.0])
    with pytest.raises(TypeError, match=r"^a: got dtype torch.float16, expected torch.float32 or torch.float64"):
        linalg.cholesky(a.half())
    with pytest.raises(ValueError, match=r"^a: got shape \(3, 3, 2\), expected square matrices"):
        linalg.cholesky(a[..., :2])
    with pytest.raises(TypeError, match=r"^b: got dtype float32, expected float64"):
        linalg.solve(a, b.float())
    with pytest.raises(ValueError, match=r"^b: got shape \(3, 2, 2\), expected"):
        linalg.solve(a, b[:, :2])
    with pytest.raises(ValueError, match=r"^math: got 'exact', expected one of"):
        linalg.cholesky(a, math="exact")
    with pytest.raises(ValueError, match=r"^jitter: got -1, expected a positive number"):
        linalg.cholesky(a, jitter=-1)


@pytest.mark.skipif(not DOCS.exists(), reason="docs/ belongs to the clone, and this is no clone")
def test_the_page_of_the_documentation_runs(tensors: tuple[Any, Any]) -> None:
    names: dict[str, Any] = {}
    for block in blocks("interop", "PyTorch"):
        exec(
            compile(block.replace("fullgraph=True", 'fullgraph=True, backend="aot_eager"'), "interop.md", "exec"),
            names,
        )
    assert not names["info"].any()
    torch.testing.assert_close(names["a"].grad, names["a"].grad.mT)
    a, b = tensors
    value, info = names["likelihood"](a, b[..., 0])
    assert info.tolist() == [0, 0, 0]
    normal = torch.distributions.MultivariateNormal(torch.zeros(N).double(), a)
    torch.testing.assert_close(value, normal.log_prob(b[..., 0]) + N / 2 * np.log(2 * np.pi))


def test_vmap_over_more_right_hand_sides_than_matrices_keeps_the_shape_of_info() -> None:
    b = torch.rand(3, 4, N, 2)
    a = torch.eye(N) * torch.arange(1.0, 4.0)[:, None, None]
    x, info = torch.func.vmap(lambda a, b: tuple(linalg.solve_ex(a, b)))(a, b)
    torch.testing.assert_close(x, torch.linalg.solve(a[:, None], b))
    assert (tuple(info.shape), info.any().item()) == ((3,), False)
