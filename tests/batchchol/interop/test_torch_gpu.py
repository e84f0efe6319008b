"""The operators of PyTorch on a real GPU: streams, memory, graphs and derivatives."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (the extra torch)")

from batchchol.backends.cuda.pool import Pool  # noqa: E402
from batchchol.interop import torch as linalg  # noqa: E402

N, BATCH = 12, 500

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this PyTorch finds no GPU"),
]


def matrices(batch: int = BATCH, n: int = N, **how: Any) -> Any:
    r = torch.rand(batch, n, n, device="cuda", **how)
    return (r + r.mT) / 2 + n * torch.eye(n, device="cuda", **how)


def everything(a: Any, b: Any) -> tuple[Any, ...]:
    l, info = linalg.cholesky_ex(a)
    x, repaired, added = linalg.solve_ex(a, b, jitter="auto")
    inverse, logs = linalg.inv_ex(a).inverse, linalg.slogdet_ex(a).logabsdet
    return l, x, linalg.cho_solve(l, b), inverse, logs, info, repaired, added


def assert_right(a: Any, b: Any, found: tuple[Any, ...]) -> None:
    x = torch.linalg.solve(a, b)
    expected = torch.linalg.cholesky(a), x, x, torch.linalg.inv(a), torch.linalg.slogdet(a)[1]
    for ours, theirs in zip(found, expected, strict=False):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert not any(each.any() for each in found[-3:])


def test_on_the_current_stream_in_torch_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pool, "allocate", lambda *_: pytest.fail("this is the library's memory"))
    a, b = matrices(), torch.rand(BATCH, N, 2, device="cuda")
    assert_right(a, b, everything(a, b))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # On another stream the matrices would be read before they are written.
        torch.cuda._sleep(10_000_000)
        late = a * 2
        found = everything(late, b)
    torch.cuda.current_stream().wait_stream(stream)
    assert_right(late, b, found)


def test_in_a_graph() -> None:
    a, b = matrices(), torch.rand(BATCH, N, device="cuda")
    everything(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = everything(a, b)
    a.copy_(matrices())
    b.mul_(2)
    graph.replay()
    assert_right(a, b, found)
    with pytest.raises(RuntimeError, match="waits for the GPU"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        linalg.cholesky(a)


# cuBLAS comes first in the thread that autograd has for a GPU.
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")
def test_derivatives() -> None:
    a, b = matrices(2, 4, dtype=torch.float64), torch.rand(2, 4, 2, dtype=torch.float64, device="cuda")
    given = a.requires_grad_(), b.requires_grad_()

    def function(a: Any, b: Any) -> tuple[Any, ...]:
        a = (a + a.mT) / 2
        l = linalg.cholesky(a)
        return (
            l,
            linalg.solve(a, b),
            linalg.cho_solve(l, b),
            linalg.inv(a),
            linalg.cho_inverse(l),
            linalg.slogdet(a).logabsdet,
        )

    torch.autograd.gradcheck(function, given)
    torch.autograd.gradgradcheck(function, given)


def test_compiled() -> None:
    a, b = matrices(), torch.rand(BATCH, N, device="cuda")
    assert_right(a, b, torch.compile(everything, fullgraph=True, backend="aot_eager")(a, b))
    with pytest.raises(torch.linalg.LinAlgError, match=r"^matrix 0 is not positive definite"):
        torch.compile(linalg.cholesky, fullgraph=True, backend="aot_eager")(-a)


@pytest.mark.parametrize("n", [150, 300])
def test_larger_orders(n: int) -> None:
    a, b = matrices(5, n), torch.rand(5, n, 2, device="cuda")
    l, info = linalg.cholesky_ex(a)
    x = torch.linalg.solve(a, b)
    for found, expected in (
        (l, torch.linalg.cholesky(a)),
        (linalg.solve(a, b), x),
        (linalg.solve(a, b[..., 0]), x[..., 0]),
        (linalg.cho_solve(l, b), x),
        (linalg.inv(a), torch.linalg.inv(a)),
        (linalg.cho_inverse(l), torch.linalg.inv(a)),
        (linalg.slogdet(a).logabsdet, torch.linalg.slogdet(a)[1]),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
    a[1, 70, 70], a[2, 100, 3], a[2, 3, 100] = -1, torch.nan, torch.nan
    assert linalg.cholesky_ex(a).info.tolist() == [0, 71, 101, 0, 0]
    assert not info.any()
