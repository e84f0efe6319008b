"""Many Kalman filters on a GPU: a step is one kernel, and one call for the inverses of the innovations' covariances.

Libraries make each product, sum and transpose by a kernel of its own, which reads and writes all covariances. Here
a covariance is read once a step, to take a measurement in and to predict the next one, and written once. Products are
made on tensor cores (three TF32 products, as accurate as float32). The kernel is in Triton, which comes with PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

import batchchol


@triton.jit
def times(a, b):
    """Product of two matrices, to float32's accuracy."""
    return tl.dot(a, b, input_precision="tf32x3")


@triton.jit
def apply(a, x):
    """Product of a matrix and a vector."""
    return tl.sum(a * x[None, :], 1)


@triton.jit
def advance(
    x, p, inverse, z, f, q, h, r, found, next_x, next_p, s,
    n: tl.constexpr, m: tl.constexpr, N: tl.constexpr, M: tl.constexpr, MEASURED: tl.constexpr,
):  # fmt: skip
    """Take a filter's measurement in, by the inverse of S; predict x and P and, of the next one, S = H P H^T + R."""
    i, j = tl.arange(0, N), tl.arange(0, M)
    nn, mn, mm = i[:, None] * n + i, j[:, None] * n + i, j[:, None] * m + j
    in_nn, in_mn, in_mm = (i < n)[:, None] & (i < n), (j < m)[:, None] & (i < n), (j < m)[:, None] & (j < m)
    which = tl.program_id(0).to(tl.int64)
    of_f, of_h = tl.load(f + nn, in_nn, 0), tl.load(h + mn, in_mn, 0)
    of_x, of_p = tl.load(x + which * n + i, i < n, 0), tl.load(p + which * n * n + nn, in_nn, 0)
    if MEASURED:
        hp = times(of_h, of_p)
        k = times(tl.load(inverse + which * m * m + mm, in_mm, 0), hp)  # the gain, transposed
        off = tl.load(z + which * m + j, j < m, 0) - apply(of_h, of_x)
        of_x += tl.sum(k * off[:, None], 0)
        of_p -= times(tl.trans(k), hp)
        # Rounding makes it a little asymmetric, and that grows from step to step.
        of_p = (of_p + tl.trans(of_p)) / 2
        tl.store(found + which * n + i, of_x, i < n)
    of_p = times(times(of_f, of_p), tl.trans(of_f)) + tl.load(q + nn, in_nn, 0)
    of_s = times(times(of_h, of_p), tl.trans(of_h)) + tl.load(r + mm, in_mm, 0)
    tl.store(next_x + which * n + i, apply(of_f, of_x), i < n)
    tl.store(next_p + which * n * n + nn, of_p, in_nn)
    tl.store(s + which * m * m + mm, of_s, in_mm)


def shape_of(n: int, m: int) -> dict[str, int]:
    """How a program works: on matrices padded to powers of two, with warps that have registers for them.

    One warp of n = 34 would have 32 KB a thread in local memory, and compile for minutes.
    """
    size = max(16, triton.next_power_of_2(n))
    return {"N": size, "M": max(16, triton.next_power_of_2(m)), "num_warps": max(1, size**2 // 1024)}


def run(
    model: Any,
    x: torch.Tensor,
    p: torch.Tensor,
    z: torch.Tensor,
    invert: Callable[[torch.Tensor], torch.Tensor] = batchchol.inv,
) -> list[torch.Tensor]:
    """The filters' states after each step, (steps, filters, n), as `kalman.run`; `invert` inverts S."""
    (filters, n), m = x.shape, z.shape[2]
    shape, states = shape_of(n, m), [torch.empty_like(x) for _ in z]
    s, next_x = x.new_empty(filters, m, m), torch.empty_like(x)
    p, other = torch.empty_like(p), p
    advance[(filters,)](x, other, s, z, *model, x, next_x, p, s, n, m, MEASURED=False, **shape)
    x, spare, other = next_x, torch.empty_like(x), torch.empty_like(p)
    for measured, found in zip(z, states, strict=True):
        given = x, p, invert(s).contiguous(), measured
        advance[(filters,)](*given, *model, found, spare, other, s, n, m, MEASURED=True, **shape)
        x, spare, p, other = spare, x, other, p
    return states
