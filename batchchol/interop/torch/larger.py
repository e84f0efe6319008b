"""Orders on a GPU above those of kernels: by one launch where that is planned, else by torch.linalg.

What the library does itself then has cuBLAS work in one workspace, which several streams of torch's must not share.
"""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from torch import Tensor

from batchchol.algorithms import large, plan_tables
from batchchol.api.factors.larger_repairs import repair_larger
from batchchol.backends.cuda import memory
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


def repaired(a: Tensor, l: Tensor, info: Tensor, jitter: float, dtype: str, upper: bool) -> Tensor:
    """What is added to the diagonals of those that fail; their factors and info are written anew.

    The host looks at the info, and waits for it.
    """
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("jitter for orders above 128 waits for the GPU, which no stream that is captured allows")
    matrices = memory.View(a.data_ptr(), tuple(a.shape), np.dtype(dtype))
    status = memory.over(info.data_ptr(), tuple(info.shape), np.dtype(np.int32))
    added = repair_larger(jitter, matrices, upper, l.data_ptr(), status)
    # What was copied to the GPU is there before work on torch's stream, which knows nothing of it.
    device().synchronize()
    return torch.from_numpy(memory.to_host(added)).to(a.device)


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
