"""A step of many Kalman filters on a GPU: the products before the solve in one kernel, those after it in another.

Libraries make each product, sum and transpose by a kernel of its own, which reads and writes all covariances. Here
a program keeps a filter's in registers; products are made on tensor cores (three TF32 products, as accurate as
float32). The kernels are in Triton, which comes with PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def times(a, b):
    """Product of two matrices, to float32's accuracy."""
    return tl.dot(a, b, input_precision="tf32x3")


@triton.jit
def apply(a, x):
    """Product of a matrix and a vector."""
    return tl.sum(a * x[None, :], 1)


@triton.jit
def predict(x, p, z, f, q, h, r, new_x, new_p, hp, s, y, n, m, N: tl.constexpr, M: tl.constexpr):
    """Predict a filter's x and P; H P, S = H P H^T + R, and how far the measurement is off, y = z - H x."""
    i, j = tl.arange(0, N), tl.arange(0, M)
    nn, mn, mm = i[:, None] * n + i, j[:, None] * n + i, j[:, None] * m + j
    in_nn, in_mn, in_mm = (i < n)[:, None] & (i < n), (j < m)[:, None] & (i < n), (j < m)[:, None] & (j < m)
    which = tl.program_id(0).to(tl.int64)
    of_f, of_h = tl.load(f + nn, in_nn, 0), tl.load(h + mn, in_mn, 0)
    of_p = times(times(of_f, tl.load(p + which * n * n + nn, in_nn, 0)), tl.trans(of_f)) + tl.load(q + nn, in_nn, 0)
    of_hp = times(of_h, of_p)
    of_x = apply(of_f, tl.load(x + which * n + i, i < n, 0))
    tl.store(new_p + which * n * n + nn, of_p, in_nn)
    tl.store(hp + which * m * n + mn, of_hp, in_mn)
    tl.store(s + which * m * m + mm, times(of_hp, tl.trans(of_h)) + tl.load(r + mm, in_mm, 0), in_mm)
    tl.store(new_x + which * n + i, of_x, i < n)
    tl.store(y + which * m + j, tl.load(z + which * m + j, j < m, 0) - apply(of_h, of_x), j < m)


@triton.jit
def correct(x, p, k, hp, y, n, m, N: tl.constexpr, M: tl.constexpr):
    """Take a measurement in: x += K y and P -= K H P, given K^T, and keep P symmetric."""
    i, j = tl.arange(0, N), tl.arange(0, M)
    nn, mn = i[:, None] * n + i, j[:, None] * n + i
    in_nn, in_mn = (i < n)[:, None] & (i < n), (j < m)[:, None] & (i < n)
    which = tl.program_id(0).to(tl.int64)
    of_k = tl.load(k + which * m * n + mn, in_mn, 0)
    gained = times(tl.trans(of_k), tl.load(hp + which * m * n + mn, in_mn, 0))
    of_p = tl.load(p + which * n * n + nn, in_nn, 0)
    tl.store(p + which * n * n + nn, of_p - (gained + tl.trans(gained)) / 2, in_nn)
    of_y = tl.load(y + which * m + j, j < m, 0)
    of_x = tl.load(x + which * n + i, i < n, 0)
    tl.store(x + which * n + i, of_x + tl.sum(of_k * of_y[:, None], 0), i < n)


def step(
    model: Any, x: torch.Tensor, p: torch.Tensor, z: torch.Tensor, solve: Callable[..., torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """States (filters, n) and covariances (filters, n, n) after a prediction and a measurement (filters, m)."""
    (filters, n), m = x.shape, z.shape[1]
    new_x, new_p, y = torch.empty_like(x), torch.empty_like(p), torch.empty_like(z)
    hp, s = x.new_empty(filters, m, n), x.new_empty(filters, m, m)
    sizes = {"N": max(16, triton.next_power_of_2(n)), "M": max(16, triton.next_power_of_2(m)), "num_warps": 1}
    predict[(filters,)](x, p, z, *model, new_x, new_p, hp, s, y, n, m, **sizes)
    correct[(filters,)](new_x, new_p, solve(s, hp).contiguous(), hp, y, n, m, **sizes)
    return new_x, new_p
