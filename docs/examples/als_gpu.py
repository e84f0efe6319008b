"""The systems of alternating least squares on a GPU: one kernel sums them straight from the ratings.

Of row u, with what it rated in y (ratings, factors) and how confidently in c, the system is

    a_u = gram + y^T diag(c - 1) y,   b_u = y^T c.

Libraries gather y for all rows, write it, and read it twice. The kernel gathers some ratings at a time and adds their
product on tensor cores (three TF32 products, as accurate as float32); what it writes once are the systems. It is in
Triton, which comes with PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from scipy import sparse

# Ratings that one program sums, of longer rows several; elements of the systems that are in memory at a time.
PIECE, SLICE_ELEMENTS = 1024, 1 << 28


@triton.jit(do_not_specialize=["cut"])
def sum_systems(
    pieces, columns, confidence, fixed, gram, a, b, cut, n, N: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Sum the systems of one piece; the first `cut` pieces add theirs to those of their row's other pieces."""
    piece = tl.program_id(0)
    row = tl.load(pieces + 3 * piece).to(tl.int64)
    begin, end = tl.load(pieces + 3 * piece + 1), tl.load(pieces + 3 * piece + 2)
    one, f = tl.arange(0, BLOCK), tl.arange(0, N)
    of_a, of_b = tl.zeros((N, N), tl.float32), tl.zeros((N,), tl.float32)
    for first in range(begin, end, BLOCK):
        place = first + one
        column = tl.load(columns + place, place < end, 0)
        c = tl.load(confidence + place, place < end, 0)
        y = tl.load(fixed + column[:, None] * n + f, (place < end)[:, None] & (f < n), 0)
        of_a = tl.dot(tl.trans(y), y * (c - 1)[:, None], of_a, input_precision="tf32x3")
        of_b += tl.sum(y * c[:, None], 0)
    square, inside = f[:, None] * n + f, (f < n)[:, None] & (f < n)
    if piece < cut:
        tl.atomic_add(a + row * n * n + square, of_a, inside, sem="relaxed")
        tl.atomic_add(b + row * n + f, of_b, f < n, sem="relaxed")
    else:
        tl.store(a + row * n * n + square, of_a + tl.load(gram + square, inside), inside)
        tl.store(b + row * n + f, of_b, f < n)


class Slice(NamedTuple):
    """Rows first … last - 1; their pieces (row, begin, end), of cut rows the first; the rows that were cut."""

    first: int
    last: int
    pieces: torch.Tensor
    cut: int
    cut_rows: torch.Tensor


class Ratings(NamedTuple):
    """Ratings by row on a GPU."""

    columns: torch.Tensor
    confidence: torch.Tensor
    slices: list[Slice]


def placed(ratings: sparse.csr_matrix, factors: int, device: str = "cuda") -> Ratings:
    """Ratings with their rows in slices, the systems of which fit."""
    many = max(1, SLICE_ELEMENTS // factors**2)
    slices = [
        slice_of(ratings.indptr, first, min(first + many, ratings.shape[0]), device)
        for first in range(0, ratings.shape[0], many)
    ]
    return Ratings(
        torch.as_tensor(ratings.indices, device=device), torch.as_tensor(ratings.data, device=device), slices
    )


def slice_of(begins: np.ndarray, first: int, last: int, device: str) -> Slice:
    """A slice of rows, the longest pieces first: what is short fills the gaps at the end."""
    begin, end = begins[first:last], begins[first + 1 : last + 1]
    counts = np.maximum(-(-(end - begin) // PIECE), 1)
    row = np.repeat(np.arange(last - first), counts)
    begin = begin[row] + PIECE * (np.arange(len(row)) - (np.cumsum(counts) - counts)[row])
    end = np.minimum(begin + PIECE, end[row])
    order = np.lexsort((begin - end, counts[row] == 1))
    pieces = np.stack([row, begin, end], 1)[order].astype(np.int32)
    whole = torch.as_tensor(np.flatnonzero(counts > 1), device=device)
    return Slice(first, last, torch.as_tensor(pieces, device=device), int(counts[counts > 1].sum()), whole)


def shape_of(n: int) -> dict[str, int]:
    """How a program works: on matrices padded to a power of two, some ratings at a time, with some warps."""
    padded = max(16, triton.next_power_of_2(n))
    return {"N": padded, "BLOCK": 32, "num_warps": max(1, padded // 32)}


def systems(
    ratings: Ratings, part: Slice, fixed: torch.Tensor, gram: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Matrices and right-hand sides of a slice's rows, with the columns' factors `fixed`."""
    n, rows = fixed.shape[1], part.last - part.first
    a, b = fixed.new_empty(rows, n, n), fixed.new_empty(rows, n)
    a[part.cut_rows], b[part.cut_rows] = gram, 0
    given = part.pieces, ratings.columns, ratings.confidence, fixed, gram, a, b, part.cut, n
    sum_systems[(len(part.pieces),)](*given, **shape_of(n))
    return a, b


def half_step(
    ratings: Ratings,
    fixed: torch.Tensor,
    found: torch.Tensor,
    regularization: float,
    solve: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    """Write the best factors of all rows to `found`, with those of the columns `fixed`."""
    gram = fixed.T @ fixed + regularization * torch.eye(fixed.shape[1], device=fixed.device)
    for part in ratings.slices:
        found[part.first : part.last] = solve(*systems(ratings, part, fixed, gram))
