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

from batchchol.api.arguments import check_square
from batchchol.api.columns import Fit, check_columns_dtype, fit
from batchchol.api.device_repairs import repairs_itself, run_repairing
from batchchol.api.repairs import GROWTH, TRIES, check_jitter
from batchchol.backends import get_backend
from batchchol.backends.base import Form
from batchchol.backends.cuda import dense, support
from batchchol.backends.cuda.device import device
from batchchol.batches.checks import check_math, check_order
from batchchol.defaults.lookup import generation
from batchchol.interop.torch import larger
from batchchol.interop.torch.failures import check_tensor, raise_here
from batchchol.plan import array_choice, check_array_spec, chosen_kernel
from kernelgen import MAX_N, Layout, Problem, SpecError

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

    @property
    def form(self) -> Form:
        """That of the matrices as a batch."""
        return Form(self.n, self.batch, self.dtype, _CANONICAL)

    @classmethod
    def of(cls, a: Tensor, upper: bool, math: str) -> Case:
        """That of a call."""
        return _case(a.shape, a.dtype, upper, math)


# Working it out takes as long as allocating a result.
@lru_cache(maxsize=1024)
def _case(shape: tuple[int, ...], dtype: Any, upper: bool, math: str) -> Case:
    check_math(math)
    return Case(shape[-1], prod(shape[:-2]), _DTYPES[dtype].name, upper, math)


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
    added = _repaired(a, info, jitter, Case.of(a, upper, math), l=l)
    return l, _judged(info, upper, "cholesky_ex", check), added


def solve(
    a: Tensor, b: Tensor, upper: bool = False, math: str = "ieee", check: bool = False
) -> tuple[Tensor, Tensor]:
    """Solutions and info."""
    x, info, _ = _solved(_matrices("a", a), b, upper, math)
    return x, _judged(info, upper, "solve_ex", check)


def solve_repaired(
    a: Tensor, b: Tensor, jitter: float, upper: bool = False, math: str = "ieee", check: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Solutions, info and what was added."""
    x, info, added = _solved(_matrices("a", a), b, upper, math, jitter)
    return x, _judged(info, upper, "solve_ex", check), added


def cho_solve(L: Tensor, b: Tensor, upper: bool = False, math: str = "ieee") -> Tensor:
    """Solutions."""
    return _solved_by_factors(_matrices("L", L), b, upper, math)


def cho_inverse(L: Tensor, upper: bool = False, math: str = "ieee") -> Tensor:
    """Inverses."""
    l = _matrices("L", L)
    found = _inverted("potri", l, upper, math)
    return _solved_by_factors(l, _identity(l), upper, math) if found is None else found[0]


def inv(a: Tensor, upper: bool = False, math: str = "ieee", check: bool = False) -> tuple[Tensor, Tensor]:
    """Inverses and info."""
    a = _matrices("a", a)
    inverse, info = _inverted("poinv", a, upper, math) or _solved(a, _identity(a), upper, math)[:2]
    return inverse, _judged(info, upper, "inv_ex", check)


def slogdet(a: Tensor, upper: bool = False, math: str = "ieee", check: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Signs, logarithms and info."""
    a = _matrices("a", a)
    case, sign, logabsdet = Case.of(a, upper, math), a.new_empty(a.shape[:-2]), a.new_empty(a.shape[:-2])
    kernel = _kernel("logdet", case, 0, generation()) if a.numel() else None
    if kernel is None:
        l, info = _factored(a, upper, math)
        factors, status, signs, logs = _addresses(l, info, sign, logabsdet)
        what = case.n, case.batch, _CANONICAL, case.dtype
        support.log_determinants(device(), factors, status, signs, logs, *what, stream=_stream(a))
    else:
        info = _info(a)
        _queue(kernel, a, logabsdet, info)
        support.signs(device(), info.data_ptr(), sign.data_ptr(), case.batch, case.dtype, stream=_stream(a))
    return sign, logabsdet, _judged(info, upper, "slogdet_ex", check)


def _matrices(argument: str, a: Tensor) -> Tensor:
    """Matrices (..., n, n) as kernels take them."""
    check_tensor(argument, a)
    check_square(argument, a.shape)
    if a.device.index:
        raise ValueError(
            f"{argument}: got a tensor of {a.device}, expected one of cuda:0, the only GPU used: start the process "
            "with CUDA_VISIBLE_DEVICES"
        )
    return a.contiguous()


def _factored(a: Tensor, upper: bool, math: str) -> tuple[Tensor, Tensor]:
    l = torch.empty_like(a, memory_format=torch.contiguous_format)
    info = _info(a)
    if not a.numel():
        return l, info.zero_()
    if a.shape[-1] > MAX_N:
        return larger.factored(a, _DTYPES[a.dtype].name, upper, _stream(a))
    found = _factorization(Case.of(a, upper, math), generation())
    found.queue(*_addresses(a, l, info), stream=_stream(a), room=_room_of(a))
    return l, info


def _solved(
    a: Tensor, b: Tensor, upper: bool, math: str, jitter: float | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Solutions by matrices, their info, and what `jitter` added to each."""
    how, case, added = _fit(a, b, "matrices"), Case.of(a, upper, math), None
    kernel = _kernel("posv", case, how.nrhs, generation()) if a.numel() and how.nrhs else None
    if kernel is None:
        l, info = _factored(a, upper, math)
        if jitter is not None:
            added = _repaired(a, info, jitter, case, l=l)
        return _solved_by_factors(l, b, upper, math), info, added
    columns, x, info = _panels(b, how), a.new_empty(how.panels), _info(a)
    if jitter is not None and repairs_itself(kernel):
        check_jitter(jitter)
        added = a.new_empty(info.shape)
        places = _addresses(a, columns, x, info, added)
        run_repairing(kernel, places, how.nrhs, case.form, jitter, _stream(a))
    else:
        _queue(kernel, a, columns, x, info, nrhs=how.nrhs)
        if jitter is not None:
            added = _repaired(a, info, jitter, case, b=columns, x=x, nrhs=how.nrhs)
    return _unfolded(x, how), info, added


def _solved_by_factors(l: Tensor, b: Tensor, upper: bool, math: str) -> Tensor:
    how = _fit(l, b, "factors")
    x = l.new_empty(how.panels)
    if l.numel() and how.nrhs:
        kernel = _kernel("potrs", Case.of(l, upper, math), how.nrhs, generation())
        if kernel is None:
            x = larger.solved(l, _panels(b, how).reshape(how.panels), upper)
        else:
            _queue(kernel, l, _panels(b, how), x, nrhs=how.nrhs)
    return _unfolded(x, how)


def _inverted(op: str, matrices: Tensor, upper: bool, math: str) -> tuple[Tensor, Tensor] | None:
    """Inverses, by matrices or factors, and info; None where there is no kernel for them."""
    if not matrices.numel() or (kernel := _kernel(op, Case.of(matrices, upper, math), 0, generation())) is None:
        return None
    inverse, info = torch.empty_like(matrices, memory_format=torch.contiguous_format), _info(matrices)
    _queue(kernel, matrices, inverse, info)
    return inverse, info


def _identity(a: Tensor) -> Tensor:
    return torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(a.shape)


def _queue(kernel: Any, matrices: Tensor, *tensors: Tensor, nrhs: int = 0) -> None:
    """Queue a kernel for matrices or factors, and its other arguments."""
    places, batch = _addresses(matrices, *tensors), prod(matrices.shape[:-2])
    kernel.launch(places, nrhs, batch, _CANONICAL, _stream(matrices), room=_room_of(matrices))


def _info(a: Tensor) -> Tensor:
    """Room for the info of matrices."""
    return torch.empty(a.shape[:-2], dtype=torch.int32, device=a.device)


def _panels(b: Tensor, how: Fit) -> Tensor:
    """Right-hand sides as a kernel's array."""
    return (b if how.plain else b.reshape(how.given).expand(how.whole).permute(how.axes)).contiguous()


def _unfolded(x: Tensor, how: Fit) -> Tensor:
    """Solutions of a kernel's array in the order of the right-hand sides."""
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
def _kernel(op: str, case: Case, nrhs: int, _: object) -> Any:
    """What does an operation; None where there is no kernel that takes matrices."""
    if case.n > MAX_N:
        return None
    try:
        return chosen_kernel(op, get_backend("cuda"), case.form, case.upper, None, case.math, argument="a", nrhs=nrhs)
    except SpecError:
        if op == "potrs":
            raise
        return None


def _repaired(
    a: Tensor,
    info: Tensor,
    jitter: float,
    case: Case,
    *,
    l: Tensor | None = None,
    b: Tensor | None = None,
    x: Tensor | None = None,
    nrhs: int = 0,
) -> Tensor:
    """Have matrices whose info will not be 0 factored, and solved by, again; what is added to each."""
    check_jitter(jitter)
    check_order("a", case.n, "jitter repairs larger ones once they are on the host")
    added = a.new_zeros(info.shape)
    if a.numel():
        at = [0 if tensor is None else tensor.data_ptr() for tensor in (a, l, b, x, info, added)]
        support.repair(
            device(),
            (at[0], at[1], at[2], at[3], at[4], at[5]),
            case.n,
            nrhs,
            case.batch,
            _CANONICAL,
            case.dtype,
            uplo="upper" if case.upper else "lower",
            multiples=(jitter, GROWTH, TRIES),
            stream=_stream(a),
        )
    return added


def _judged(info: Tensor, upper: bool, instead: str, check: bool) -> Tensor:
    """The info; of calls that raise, once the GPU has written it."""
    if check:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(f"raising waits for the GPU, which no stream that is captured can: use {instead}")
        if info.any():
            raise_here(info.cpu().numpy(), None, upper, instead)
    return info


def _addresses(*tensors: Tensor) -> tuple[int, ...]:
    return tuple([tensor.data_ptr() for tensor in tensors])


def _stream(a: Tensor) -> int | None:
    """The address of torch's current stream; None if it is the default one."""
    # What torch compiles asks so too: an object for the stream would take as long as a launch.
    return torch._C._cuda_getCurrentRawStream(a.get_device()) or None


def _room_of(a: Tensor) -> Callable[[int, str], Room]:
    """Makes room where a tensor is, for as long as somebody has it."""

    def room(nbytes: int, purpose: str) -> Room:
        tensor = torch.empty(nbytes, dtype=torch.uint8, device=a.device)
        address = Room(tensor.data_ptr())
        address.tensor = tensor
        return address

    return room
