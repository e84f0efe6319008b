"""The operators on a GPU: kernels on torch's current stream, in torch's memory.

All that a call takes comes from torch's allocator, in the order of the stream: nothing waits for another stream, and
calls may be captured.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial, wraps
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from batchchol.api.arguments import check_square
from batchchol.api.arrays import device_addresses as at
from batchchol.api.arrays.device_addresses import Case
from batchchol.api.columns import Fit, check_columns_dtype, fit
from batchchol.api.factors.device_repairs import repairs_itself, run_repairing
from batchchol.api.repairs import GROWTH, TRIES, check_jitter
from batchchol.backends.cuda import gpus, support
from batchchol.backends.cuda.arrays.libraries import Torch
from batchchol.backends.cuda.device import device
from batchchol.batches.checks import check_math
from batchchol.defaults.generation import generation
from batchchol.interop.torch import larger
from batchchol.interop.torch.failures import check_kind, check_tensor, raise_here
from kernelgen import MAX_N, Layout

_CANONICAL = Layout.canonical()
_INFO = np.dtype(np.int32)
_DTYPES: dict[Any, np.dtype[Any]] = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}


class Room(int):
    """The address of torch's memory, and what keeps it."""

    tensor: Tensor


class Known(NamedTuple):
    """What is known of matrices of this shape: their case, and a tensor that their infos are made like.

    Describing a new tensor to torch takes three times as long as naming one like it.
    """

    case: Case
    info: Tensor

    @classmethod
    def of(cls, a: Tensor, upper: bool, math: str) -> Known:
        """The facts that are known of the matrices of a call."""
        return _known(a.shape, a.dtype, a.device, upper, math)


@lru_cache(maxsize=1024)
def _known(shape: Any, dtype: Any, where: Any, upper: bool, math: str) -> Known:
    check_math(math)
    case = Case(shape[-1], prod(shape[:-2]), _DTYPES[dtype].name, upper, math)
    return Known(case, torch.empty((), dtype=torch.int32, device=where).expand(shape[:-2]))


def on_its_gpu(operator: Callable[..., Any]) -> Callable[..., Any]:
    """An operator whose calls use the GPU that their first tensor is on, which is torch's current one meanwhile."""

    @wraps(operator)
    def called(a: Tensor, *args: Any, **named: Any) -> Any:
        gpu = a.get_device()
        if gpu == gpus.first() == torch._C._cuda_getDevice():
            return operator(a, *args, **named)
        with gpus.on(gpu), torch.cuda.device(gpu):
            return operator(a, *args, **named)

    return called


def cholesky(a: Tensor, upper: bool = False, math: str = "ieee", check: bool = False) -> tuple[Tensor, Tensor]:
    """Factors and info."""
    l, info = _factoring(a.shape, a.dtype, a.layout, a.device, upper, math, generation())(a)
    return l, _judged(info, upper, "cholesky_ex") if check else info


def cholesky_repaired(
    a: Tensor, jitter: float, upper: bool = False, math: str = "ieee", check: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Factors, info and what was added."""
    a = _matrices("a", a)
    l, info = _factored(a, upper, math)
    added = _repaired(a, info, jitter, Known.of(a, upper, math).case, l=l)
    return l, _judged(info, upper, "cholesky_ex") if check else info, added


def solve(
    a: Tensor, b: Tensor, upper: bool = False, math: str = "ieee", check: bool = False
) -> tuple[Tensor, Tensor]:
    """Solutions and info."""
    how = a.shape, a.dtype, a.layout, a.device, b.shape, b.dtype, b.layout, b.device
    x, info = _solving(*how, upper, math, generation())(a, b)
    return x, _judged(info, upper, "solve_ex") if check else info


def solve_repaired(
    a: Tensor, b: Tensor, jitter: float, upper: bool = False, math: str = "ieee", check: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Solutions, info and what was added."""
    x, info, added = _solved(_matrices("a", a), b, upper, math, jitter)
    return x, _judged(info, upper, "solve_ex") if check else info, added


def cho_solve(L: Tensor, b: Tensor, upper: bool = False, math: str = "ieee") -> Tensor:
    """Solutions."""
    return _solved_by_factors(_matrices("L", L), b, upper, math)


def cho_inverse(L: Tensor, upper: bool = False, math: str = "ieee") -> Tensor:
    """Inverses."""
    l = _matrices("L", L)
    if l.shape[-1] > MAX_N:
        return _solved_by_factors(l, _identity(l), upper, math)
    known, inverse = Known.of(l, upper, math), _like(l)
    if l.numel():
        nothing = torch.empty_like(known.info)
        _run(l, at.inverting_by_factors(known.case), l, inverse, nothing)
    return inverse


def inv(a: Tensor, upper: bool = False, math: str = "ieee", check: bool = False) -> tuple[Tensor, Tensor]:
    """Inverses and info."""
    a = _matrices("a", a)
    if a.shape[-1] > MAX_N or not a.numel():
        inverse, info, _ = _solved(a, _identity(a), upper, math)
    else:
        known = Known.of(a, upper, math)
        inverse, info = _like(a), torch.empty_like(known.info)
        _run(a, at.inverting(known.case), a, inverse, info)
    return inverse, _judged(info, upper, "inv_ex") if check else info


def slogdet(a: Tensor, upper: bool = False, math: str = "ieee", check: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Signs, logarithms and info."""
    a = _matrices("a", a)
    case, sign, logabsdet = Known.of(a, upper, math).case, a.new_empty(a.shape[:-2]), a.new_empty(a.shape[:-2])
    if case.n > MAX_N or not a.numel():
        l, info = _factored(a, upper, math)
        factors, status, signs, logs = _addresses(l, info, sign, logabsdet)
        what = case.n, case.batch, _CANONICAL, case.dtype
        support.log_determinants(device(), factors, status, signs, logs, *what, stream=_stream(a) or None)
    else:
        info = _info(a)
        _run(a, at.taking_logarithms(case), a, sign, logabsdet, info)
    return sign, logabsdet, _judged(info, upper, "slogdet_ex") if check else info


def _matrices(argument: str, a: Tensor) -> Tensor:
    """Matrices (..., n, n) as kernels take them."""
    check_tensor(argument, a)
    check_square(argument, a.shape)
    return a.contiguous()


def _factored(a: Tensor, upper: bool, math: str) -> tuple[Tensor, Tensor]:
    return _factoring(a.shape, a.dtype, a.layout, a.device, upper, math, generation())(a)


@lru_cache(maxsize=1024)
def _factoring(
    shape: Any, dtype: Any, layout: Any, where: Any, upper: bool, math: str, _: object
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """What factors matrices of a shape: this call is made most, and little is left to do in it."""
    check_kind("a", dtype, layout)
    check_square("a", shape)
    known = _known(shape, dtype, where, upper, math)
    case, nothing = known.case, not prod(shape)
    if nothing or case.n > MAX_N:

        def run_larger(a: Tensor) -> tuple[Tensor, Tensor]:
            if nothing:
                return _like(a), torch.empty_like(known.info).zero_()
            return larger.factored(a.contiguous(), case.dtype, upper, _stream(a) or None)

        return run_larger
    queue = at.factoring(case)(_room_on(where))
    factors, infos = _maker(shape, _DTYPES[dtype], where), _maker(shape[:-2], _INFO, where)

    def run(a: Tensor) -> tuple[Tensor, Tensor]:
        if not a.is_contiguous():
            a = a.contiguous()
        l, info = factors(), infos()
        queue(_stream(a), a.data_ptr(), l.data_ptr(), info.data_ptr())
        return l, info

    return run


@lru_cache(maxsize=1024)
def _solving(
    shape: Any,
    dtype: Any,
    layout: Any,
    where: Any,
    sides: Any,
    sides_dtype: Any,
    sides_layout: Any,
    sides_where: Any,
    upper: bool,
    math: str,
    _: object,
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """What solves for right-hand sides of a shape by matrices of another; see `_factoring`."""
    check_kind("a", dtype, layout)
    check_square("a", shape)
    check_kind("b", sides_dtype, sides_layout)
    _check_device(sides_where, where, "matrices")
    how, known = _fitted(shape, sides, dtype, sides_dtype, "matrices"), _known(shape, dtype, where, upper, math)
    if not how.plain or how.x != sides or known.case.n > MAX_N or not prod(shape) or not how.nrhs:
        return lambda a, b: _solved(a.contiguous(), b, upper, math)[:2]
    queue = at.solving(known.case, how.nrhs)(_room_on(where))
    solutions, infos = _maker(sides, _DTYPES[dtype], where), _maker(shape[:-2], _INFO, where)

    def run(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        a, b = a.contiguous(), b.contiguous()
        x, info = solutions(), infos()
        queue(_stream(a), a.data_ptr(), b.data_ptr(), x.data_ptr(), info.data_ptr())
        return x, info

    return run


def _solved(
    a: Tensor, b: Tensor, upper: bool, math: str, jitter: float | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Solutions by matrices, their info, and what `jitter` added to each."""
    how, known = _fit(a, b, "matrices"), Known.of(a, upper, math)
    case = known.case
    if case.n > MAX_N or not a.numel() or not how.nrhs:
        l, info = _factored(a, upper, math)
        added = None if jitter is None else _repaired(a, info, jitter, case, l=l)
        return _solved_by_factors(l, b, upper, math), info, added
    columns, info = _panels(b, how), torch.empty_like(known.info)
    x = _like(columns)
    places = a, columns, x, info
    if jitter is None:
        _run(a, at.solving(case, how.nrhs), *places)
        return _unfolded(x, how), info, None
    check_jitter(jitter)
    kernel = at.kernel_of("posv", case, how.nrhs)
    if repairs_itself(kernel):
        added = a.new_empty(info.shape)
        run_repairing(kernel, _addresses(*places, added), how.nrhs, case.form, jitter, _stream(a) or None)
    else:
        _run(a, at.solving(case, how.nrhs), *places)
        added = _repaired(a, info, jitter, case, b=columns, x=x, nrhs=how.nrhs)
    return _unfolded(x, how), info, added


def _solved_by_factors(l: Tensor, b: Tensor, upper: bool, math: str) -> Tensor:
    how = _fit(l, b, "factors")
    columns = _panels(b, how)
    x = _like(columns)
    if l.shape[-1] > MAX_N and l.numel() and how.nrhs:
        x = larger.solved(l, columns.reshape(how.panels), upper)
    elif l.numel() and how.nrhs:
        _run(l, at.substituting(Known.of(l, upper, math).case, how.nrhs), l, columns, x)
    return _unfolded(x, how)


def _maker(shape: Any, dtype: np.dtype[Any], where: Any) -> Callable[[], Tensor]:
    """What makes uninitialised C-contiguous tensors of a shape, where torch makes tensors now."""
    if where.type == "cuda":
        return Torch().maker(tuple(shape), dtype, where.index)
    return partial(torch.empty, tuple(shape), dtype=getattr(torch, dtype.name), device=where)


def _like(a: Tensor) -> Tensor:
    """An uninitialised C-contiguous tensor like one."""
    return torch.empty_like(a, memory_format=torch.contiguous_format)


def _identity(a: Tensor) -> Tensor:
    return torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(a.shape)


def _info(a: Tensor) -> Tensor:
    """Room for the info of matrices."""
    return torch.empty(a.shape[:-2], dtype=torch.int32, device=a.device)


def _panels(b: Tensor, how: Fit) -> Tensor:
    """Right-hand sides as a kernel's array."""
    if how.plain:
        return b.contiguous()
    return b.reshape(how.given).expand(how.whole).permute(how.axes).contiguous()


def _unfolded(x: Tensor, how: Fit) -> Tensor:
    """Solutions of a kernel's array in the order of the right-hand sides."""
    if how.folded:
        x = x.reshape(how.apart).permute(how.back).contiguous()
    return x if x.shape == how.x else x.reshape(how.x)


def _fit(a: Tensor, b: Tensor, what: str) -> Fit:
    check_tensor("b", b)
    _check_device(b.device, a.device, what)
    return _fitted(a.shape, b.shape, a.dtype, b.dtype, what)


def _check_device(got: Any, wanted: Any, what: str) -> None:
    if got != wanted:
        raise ValueError(f"b: got a tensor of {got}, expected one of {wanted}, where the {what} are")


@lru_cache(maxsize=1024)
def _fitted(a: Any, b: Any, a_dtype: Any, b_dtype: Any, what: str) -> Fit:
    check_columns_dtype(_DTYPES[b_dtype], _DTYPES[a_dtype], what)
    return fit(tuple(a[:-2]), a[-1], tuple(b), what)


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
    if case.n > MAX_N:
        assert l is not None, "no kernel solves by larger ones without factors"
        return larger.repaired(a, l, info, jitter, case.dtype, case.upper)
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
            stream=_stream(a) or None,
        )
    return added


def _judged(info: Tensor, upper: bool, instead: str) -> Tensor:
    """The info of a call that raises, once the GPU has written it."""
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(f"raising waits for the GPU, which no stream that is captured can: use {instead}")
    if info.any():
        raise_here(info.cpu().numpy(), None, upper, instead)
    return info


def _addresses(*tensors: Tensor) -> tuple[int, ...]:
    return tuple([tensor.data_ptr() for tensor in tensors])


def _stream(a: Tensor) -> int:
    """The address of torch's current stream, 0 if it is the default one."""
    # What torch compiles asks so too: an object for the stream would take as long as a launch.
    address: int = torch._C._cuda_getCurrentRawStream(a.get_device())
    return address


def _run(a: Tensor, operation: at.Operation, *tensors: Tensor) -> None:
    """Queue an operation on torch's current stream, with memory of torch's, where a tensor is."""
    operation(_room_on(a.device))(_stream(a), *_addresses(*tensors))


@lru_cache
def _room_on(where: Any) -> Callable[[int, str], Room]:
    """Makes room on a device, for as long as somebody has its address."""

    def room(nbytes: int, purpose: str) -> Room:
        tensor = torch.empty(nbytes, dtype=torch.uint8, device=where)
        address = Room(tensor.data_ptr())
        address.tensor = tensor
        return address

    return room
