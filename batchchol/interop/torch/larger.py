"""Orders on a GPU above those of kernels: by one launch where that is planned, else by torch.linalg.

What the library does itself then has cuBLAS work in one workspace, which several streams of torch's must not share.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from batchchol.algorithms import large, plan_tables
from batchchol.backends.cuda.device import device


def factored(a: Tensor, dtype: str, upper: bool, stream: int | None) -> tuple[Tensor, Tensor]:
    """Factors and info of C-contiguous matrices."""
    n, batch = a.shape[-1], prod(a.shape[:-2])
    how = plan_tables.chosen(device(), n, batch, dtype, upper).plan
    if how.blocking is not None:
        return _by_torch(a, upper)
    l, info = torch.empty_like(a), torch.empty(a.shape[:-2], dtype=torch.int32, device=a.device)
    # Torch's memory, so that a graph which is captured keeps it.
    work = torch.zeros(large.work_words(how, n, batch), dtype=torch.int32, device=a.device)
    addresses = a.data_ptr(), l.data_ptr(), info.data_ptr()
    large.factor_at(device(), how, *addresses, n, batch, stream, work.data_ptr())
    return l, info


def solved(l: Tensor, b: Tensor, upper: bool) -> Tensor:
    """The solutions by factors (..., n, n), C-contiguous as (batch, n, nrhs)."""
    x: Tensor = torch.cholesky_solve(b, l.reshape(-1, *l.shape[-2:]), upper=upper)
    return x.contiguous()


def _by_torch(a: Tensor, upper: bool) -> tuple[Tensor, Tensor]:
    l, info = torch.linalg.cholesky_ex(a, upper=upper)
    # cuSOLVER takes a pivot that is NaN for a positive one.
    missed = l.diagonal(dim1=-2, dim2=-1).isnan()
    first = missed.int().argmax(-1).int() + 1
    return l.contiguous(), torch.where((info == 0) & missed.any(-1), first, info)
