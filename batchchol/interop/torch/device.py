"""The operators on a GPU: kernels on torch's current stream, in torch's memory.

All that a call takes comes from torch's allocator, in the order of the stream: nothing waits for another stream, and
calls may be captured.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from batchchol.api.columns import Fit, check_columns_dtype, fit
from batchchol.api.repairs import GROWTH, TRIES, check_jitter
from batchchol.backends import get_backend
from batchchol.backends.base import Form
from batchchol.backends.cuda import dense, support
from batchchol.backends.cuda.device import device
from batchchol.batches.checks import check_order
from batchchol.defaults.lookup import generation
from batchchol.interop.torch.failures import check_tensor, raise_here
from batchchol.plan import array_choice, check_array_spec, chosen_kernel
from kernelgen import Layout, Problem, SpecError

_CANONICAL = Layout.canonical()
_DTYPES: dict[Any, np.dtype[Any]] = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}


class Room(int):
    """The address of torch's memory, and what keeps it."""

    tensor: Tensor


class Case(NamedTuple):
    """What decides which kernel runs on matrices."""

    n: int
    batch: int
    dtype: str
    upper: bool
    math: str

    @classmethod
    def of(cls, a: Tensor, upper: bool, math: str) -> Case:
        """That of a call."""
        return cls(a.shape[-1], prod(a.shape[:-2]), _DTYPES[a.dtype].name, upper, math)


def cholesky(a: Tensor, upper: bool = False, math: str = "ieee", check: bool = False) -> tuple[Tensor, Tensor]:
    """Factors and info."""
    l, info = _factored(_matrices("a", a), upper, math)
    return l, _judged(info, upper, "cholesky_ex", check)


def cholesky_repaired(
    a: Tensor, jitter: float, upper: bool = False, math: str = "ieee", check: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Factors, info and what was added."""
    a = _matrices("a", a)
    l, info = _factored(a, upper, math)
    added = _repairs(a, info, jitter, upper, math)
    if added.any():
        l, info = _factored(_with(a, added), upper, math)
    return l, _judged(info, upper, "cholesky_ex", check), added


def solve(
    a: Tensor, b: Tensor, upper: bool = False, math: str = "ieee", check: bool = False
) -> tuple[Tensor, Tensor]:
    """Solutions and info."""
    x, info = _solved(_matrices("a", a), b, upper, math)
    return x, _judged(info, upper, "solve_ex", check)


def solve_repaired(
    a: Tensor, b: Tensor, jitter: float, upper: bool = False, math: str = "ieee", check: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Solutions, info and what was added."""
    a = _matrices("a", a)
    x, info = _solved(a, b, upper, math)
    added = _repairs(a, info, jitter, upper, math)
    if added.any():
        x, info = _solved(_with(a, added), b, upper, math)
    return x, _judged(info, upper, "solve_ex", check), added


def cho_solve(L: Tensor, b: Tensor, upper: bool = False, math: str = "ieee") -> Tensor:
    """Solutions."""
    return _solved_by_factors(_matrices("L", L), b, upper, math)


def inv(a: Tensor, upper: bool = False, math: str = "ieee", check: bool = False) -> tuple[Tensor, Tensor]:
    """Inverses and info."""
    a = _matrices("a", a)
    identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(a.shape)
    inverse, info = _solved(a, identity, upper, math)
    return inverse, _judged(info, upper, "inv_ex", check)


def slogdet(a: Tensor, upper: bool = False, math: str = "ieee", check: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Signs, logarithms and info."""
    a = _matrices("a", a)
    l, info = _factored(a, upper, math)
    sign, logabsdet = (a.new_empty(info.shape) for _ in range(2))
    case = Case.of(a, upper, math)
    factors, status, signs, logs = _addresses(l, info, sign, logabsdet)
    what = case.n, case.batch, _CANONICAL, case.dtype
    support.log_determinants(device(), factors, status, signs, logs, *what, stream=_stream(a))
    return sign, logabsdet, _judged(info, upper, "slogdet_ex", check)


def _matrices(argument: str, a: Tensor) -> Tensor:
    """Matrices (..., n, n) as kernels take them."""
    check_tensor(argument, a)
    if a.device.index:
        raise ValueError(
            f"{argument}: got a tensor of {a.device}, expected one of cuda:0, the only GPU used: start the process "
            "with CUDA_VISIBLE_DEVICES"
        )
    check_order(argument, a.shape[-1], "torch.linalg takes larger ones there")
    return a.contiguous()


def _factored(a: Tensor, upper: bool, math: str) -> tuple[Tensor, Tensor]:
    l = torch.empty_like(a, memory_format=torch.contiguous_format)
    info = a.new_empty(a.shape[:-2], dtype=torch.int32)
    if not a.numel():
        return l, info.zero_()
    found = _factorization(Case.of(a, upper, math), generation())
    found.queue(*_addresses(a, l, info), stream=_stream(a), room=_room_of(a))
    return l, info


def _solved(a: Tensor, b: Tensor, upper: bool, math: str) -> tuple[Tensor, Tensor]:
    """Solutions by matrices, and their info."""
    how = _fit(a, b, "matrices")
    kernel = _kernel("posv", Case.of(a, upper, math), generation()) if a.numel() and how.nrhs else None
    if kernel is None:
        l, info = _factored(a, upper, math)
        return _solved_by_factors(l, b, upper, math), info
    info = a.new_empty(a.shape[:-2], dtype=torch.int32)
    return _launched(kernel, a, b, how, info), info


def _solved_by_factors(l: Tensor, b: Tensor, upper: bool, math: str) -> Tensor:
    how = _fit(l, b, "factors")
    if not l.numel() or not how.nrhs:
        return l.new_empty(how.x)
    return _launched(_kernel("potrs", Case.of(l, upper, math), generation()), l, b, how)


def _launched(kernel: Any, matrices: Tensor, b: Tensor, how: Fit, *info: Tensor) -> Tensor:
    """Queue a kernel that solves, and the copies that it needs of right-hand sides and solutions."""
    columns = b if how.plain else b.reshape(how.given).expand(how.whole).permute(how.axes)
    columns, x = columns.contiguous(), matrices.new_empty(how.panels)
    places = _addresses(matrices, columns, x, *info)
    kernel.launch(places, how.nrhs, how.count, _CANONICAL, _stream(matrices), room=_room_of(matrices))
    if how.folded:
        x = x.reshape(how.apart).permute(how.back).contiguous()
    return x.reshape(how.x)


def _fit(a: Tensor, b: Tensor, what: str) -> Fit:
    check_tensor("b", b)
    if b.device != a.device:
        raise ValueError(f"b: got a tensor of {b.device}, expected one of {a.device}, where the {what} are")
    check_columns_dtype(_DTYPES[b.dtype], _DTYPES[a.dtype], what)
    # With as many axes as the matrices right-hand sides are not taken for a vector each.
    return fit(tuple(a.shape[:-2]), a.shape[-1], (1,) * (a.ndim - b.ndim) + tuple(b.shape), what)


@lru_cache(maxsize=1024)
def _factorization(case: Case, _: object) -> dense.Factorization:
    """What factors matrices: chosen once, and anew when other kernels are the best."""
    gpu = get_backend("cuda")
    uplo = "upper" if case.upper else "lower"
    check_array_spec(case.n, case.dtype, case.upper, None, case.math)
    problem = Problem(case.n, case.dtype, uplo, math=case.math)
    return dense.Factorization(gpu, *array_choice(gpu, problem, case.batch, None, host=False), case.batch)


@lru_cache(maxsize=1024)
def _kernel(op: str, case: Case, _: object) -> Any:
    """What solves by matrices or factors; None where no kernel takes matrices."""
    form = Form(case.n, case.batch, case.dtype, _CANONICAL)
    try:
        return chosen_kernel(op, get_backend("cuda"), form, case.upper, None, case.math, argument="a")
    except SpecError:
        if op == "potrs":
            raise
        return None


def _repairs(a: Tensor, info: Tensor, jitter: float, upper: bool, math: str) -> Tensor:
    """What makes matrices positive definite whose info is not 0: as `batchchol.api.repairs.repair`."""
    check_jitter(jitter)
    _check_not_captured("jitter=")
    added = a.new_zeros(info.shape)
    matrices, amounts_of, failed = a.reshape(-1, *a.shape[-2:]), added.view(-1), info.reshape(-1).nonzero()[:, 0]
    for turn in range(TRIES):
        some = matrices[failed]
        diagonals = some.diagonal(dim1=-2, dim2=-1)
        amounts = (jitter * GROWTH**turn * diagonals.double().mean(-1)).to(a.dtype)
        hopeful = (amounts.isfinite() & (amounts > 0)).nonzero()[:, 0]
        if not hopeful.numel():
            break
        failed, amounts = failed[hopeful], amounts[hopeful]
        amounts_of[failed] = amounts
        status = _factored(_with(some[hopeful], amounts), upper, math)[1]
        failed = failed[status != 0]
    return added


def _with(a: Tensor, added: Tensor) -> Tensor:
    """Matrices with more on their diagonals."""
    more = a.clone()
    more.diagonal(dim1=-2, dim2=-1).add_(added.unsqueeze(-1))
    return more


def _judged(info: Tensor, upper: bool, instead: str, check: bool) -> Tensor:
    """The info; of calls that raise, once the GPU has written it."""
    if check:
        _check_not_captured("raising")
        if info.any():
            raise_here(info.cpu().numpy(), None, upper, instead)
    return info


def _check_not_captured(what: str) -> None:
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{what} waits for the GPU, which no stream that is captured can: use the _ex form, without jitter"
        )


def _addresses(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(tensor.data_ptr() for tensor in tensors)


def _stream(a: Tensor) -> int | None:
    """The address of torch's current stream; None if it is the default one."""
    return torch.cuda.current_stream(a.device).cuda_stream or None


def _room_of(a: Tensor) -> Callable[[int, str], Room]:
    """Makes room where a tensor is, for as long as somebody has it."""

    def room(nbytes: int, purpose: str) -> Room:
        tensor = torch.empty(nbytes, dtype=torch.uint8, device=a.device)
        address = Room(tensor.data_ptr())
        address.tensor = tensor
        return address

    return room
