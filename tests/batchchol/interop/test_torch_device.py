"""The operators of PyTorch on a GPU: their kernels emulated on tensors of the host, and all of them on a real GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (the extra torch)")

from batchchol.algorithms import plan_tables, plans  # noqa: E402
from batchchol.algorithms.plan_tables import Chosen  # noqa: E402
from batchchol.algorithms.plans import Plan  # noqa: E402
from batchchol.api.arrays import device_addresses  # noqa: E402
from batchchol.backends.cuda import memory  # noqa: E402
from batchchol.backends.cuda.arrays import dense  # noqa: E402
from batchchol.interop.torch import device as operators  # noqa: E402
from kernelgen import Layout  # noqa: E402

from ...fakes.pycuda import FakeGpu  # noqa: E402

N, NRHS, STREAM = 5, 2, 7
Spd = Callable[..., Any]


@pytest.fixture
def emulated(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """The fake GPU, whose memory is the host's: tensors of the CPU stand for its own, on a stream of torch's."""
    monkeypatch.setattr(operators, "_stream", lambda a: STREAM)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    device_addresses.forget()
    operators._factoring.cache_clear()
    operators._solving.cache_clear()
    return fake_gpu


@pytest.mark.parametrize("upper", [False, True])
def test_results_without_memory_of_the_library(emulated: FakeGpu, spd: Spd, upper: bool) -> None:
    a = torch.from_numpy(spd(2, 3, N))
    b = torch.linspace(-1, 1, 6 * N * NRHS).view(2, 3, N, NRHS)
    expected, how = torch.linalg.cholesky(a, upper=upper), {"upper": upper}
    l, info = operators.cholesky(a, **how)
    torch.testing.assert_close(l, expected)
    assert not info.any()
    for columns in (b, b[0, :1], b.mT.contiguous().mT, b.expand(2, 2, 3, N, NRHS), b[..., 0], b[0, 0, :, 0]):
        x = torch.linalg.solve(a, columns)
        torch.testing.assert_close(operators.solve(a, columns, **how)[0], x)
        torch.testing.assert_close(operators.cho_solve(l, columns, **how), x)
    torch.testing.assert_close(operators.cho_inverse(l, **how), torch.linalg.inv(a))
    torch.testing.assert_close(operators.inv(a.mT.contiguous().mT, **how)[0], torch.linalg.inv(a))
    torch.testing.assert_close(operators.slogdet(a, **how)[1], torch.linalg.slogdet(a)[1])
    assert {stream for _, _, stream in emulated.launches} == {STREAM}
    assert (emulated.allocations, emulated.waits) == (0, [])


def test_copies_in_other_layouts_are_in_torch_memory(
    emulated: FakeGpu, spd: Spd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchchol.backends.cuda.backend.array_layout", lambda *_, **__: Layout.chunked(32))
    a = torch.from_numpy(spd(1100, N))
    torch.testing.assert_close(operators.cholesky(a)[0], torch.linalg.cholesky(a))
    monkeypatch.setattr(dense, "_SMALL_BYTES", 0)
    monkeypatch.setattr(memory, "free_bytes", lambda: 600 * 4 * N * N)
    monkeypatch.setattr(memory, "kept_bytes", lambda: 0)
    torch.testing.assert_close(operators.cholesky(a)[0], torch.linalg.cholesky(a))
    assert emulated.allocations == 0


def test_two_kernels_have_their_factors_in_torch_memory(
    emulated: FakeGpu, spd: Spd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchchol.plan.two_kernels", lambda *_: True)
    a, b = torch.from_numpy(spd(3, N + 1)), torch.ones(3, N + 1, 1)
    torch.testing.assert_close(operators.solve(a, b)[0], torch.linalg.solve(a, b))
    assert [entry.split("_")[0] for entry, *_ in emulated.launches] == ["potrf", "potrs"]
    assert emulated.allocations == 0


@pytest.mark.parametrize(("n", "dtype"), [(129, "float32"), (161, "float64")])
@pytest.mark.parametrize("upper", [False, True])
def test_larger_orders(
    emulated: FakeGpu, spd: Spd, n: int, dtype: str, upper: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One launch, and, if it is not upper, what torch.linalg does in place of what is cut into panels."""
    if not upper:
        panels = Chosen(Plan(*plans.tiled(300, 3, dtype)))
        monkeypatch.setattr(plan_tables, "chosen", lambda *_: panels)
    a, how = torch.from_numpy(spd(3, n, dtype=dtype)), {"upper": upper}
    b, expected = torch.ones(2, 3, n, 1, dtype=a.dtype), torch.linalg.cholesky(a, upper=upper)
    torch.testing.assert_close(operators.cholesky(a, **how)[0], expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(operators.solve(a, b, **how)[0], torch.linalg.solve(a, b), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(operators.cho_inverse(expected, **how), torch.linalg.inv(a), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(operators.inv(a[0], **how)[0], torch.linalg.inv(a[0]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(operators.slogdet(a, **how)[1], torch.linalg.slogdet(a)[1], rtol=1e-5, atol=1e-4)
    a[1, 70, 70], a[2, 100, 3], a[2, 3, 100] = -1, torch.nan, torch.nan
    assert operators.cholesky(a, **how)[1].tolist() == [0, 71, 101]
    l, info, added = operators.cholesky_repaired(a[:2].contiguous(), 1e-1, **how)
    assert info.tolist() == [0, 0]
    assert added[0] == 0
    repaired = a[1] + added[1] * torch.eye(n, dtype=a.dtype)
    torch.testing.assert_close(l[1], torch.linalg.cholesky(repaired, upper=upper), rtol=1e-4, atol=1e-4)


def test_failures_and_repairs(emulated: FakeGpu, spd: Spd) -> None:
    a, b = torch.from_numpy(spd(4, N)), torch.ones(4, N, 1)
    a[1], a[2, 1, 0] = 1, torch.nan
    assert (operators.cholesky(a)[1] > 0).tolist() == [False, True, True, False]
    assert operators.slogdet(a)[1].isnan().tolist() == [False, True, True, False]
    x, info, added = operators.solve_repaired(a, b, 1e-3)
    assert info.tolist() == [0, 0, 2, 0]
    assert (added > 0).tolist() == [False, True, True, False]
    repaired = a + added[:, None, None] * torch.eye(N)
    torch.testing.assert_close(x[[0, 1, 3]], torch.linalg.solve(repaired[[0, 1, 3]], b[:3]), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(operators.cholesky_repaired(a, 1e-3)[0][1], torch.linalg.cholesky(repaired[1]))
    with pytest.raises(torch.linalg.LinAlgError, match=r"^matrix 1 is not positive definite"):
        operators.cholesky(a, check=True)


def test_what_cannot_be_captured(emulated: FakeGpu, spd: Spd, monkeypatch: pytest.MonkeyPatch) -> None:
    a = torch.from_numpy(spd(2, N))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not operators.cholesky(a)[1].any()
    with pytest.raises(RuntimeError, match=r"^raising waits for the GPU, which no stream that is captured"):
        operators.cholesky(a, check=True)
    assert not operators.solve_repaired(a, a, 1e-6)[2].any()
    with pytest.raises(RuntimeError, match=r"^jitter for orders above 128 waits for the GPU"):
        operators.cholesky_repaired(torch.eye(129), 1e-6)


def test_nothing(emulated: FakeGpu) -> None:
    for shape, nrhs in (((0, N), 2), ((2, 0), 2), ((2, N), 0)):
        a, b = torch.eye(shape[1]).repeat(shape[0], 1, 1), torch.ones(*shape, nrhs)
        assert operators.cholesky(a)[0].shape == operators.inv(a)[0].shape == a.shape
        assert operators.solve(a, b)[0].shape == operators.cho_solve(a, b).shape == b.shape
        assert operators.slogdet(a)[1].tolist() == [0.0] * shape[0]


def test_what_is_refused(emulated: FakeGpu) -> None:
    with pytest.raises(ValueError, match=r"^a: got shape \(3, 2\), expected square matrices"):
        operators.cholesky(torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"^b: got a tensor of meta, expected one of cpu, where the matrices are"):
        operators.solve(torch.eye(2), torch.ones(2, 1, device="meta"))
    with pytest.raises(ValueError, match=r"^math: got 'exact'"):
        operators.cholesky(torch.eye(2), math="exact")
