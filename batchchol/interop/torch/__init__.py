"""The public calls for tensors of PyTorch, on the CPU and on a GPU: tensors in, tensors of the same device out.

They are operators (`torch.ops.batchchol`, see `operators`): differentiable, twice too, batched by `torch.func.vmap`,
and of one piece with `torch.compile`. On a GPU they work on torch's current stream and in torch's memory, also while
that stream is captured; calls that raise wait for the GPU to know, and can be captured by no graph.

Tensors are float32 or float64, of any strides. What is neither C-contiguous nor a stack of transposes (as
torch.linalg.cholesky returns them) is copied.
"""

from __future__ import annotations

from typing import Any

from batchchol.api import (
    Cholesky,
    Inverse,
    LogDeterminant,
    LogDeterminantInfo,
    RepairedCholesky,
    RepairedSolution,
    Solution,
)
from batchchol.errors import BatchcholError, optional

try:
    optional("torch", "batchchol.interop.torch", "torch")
except BatchcholError as error:
    # What those who import a module expect.
    raise ImportError(str(error)) from error

from torch import Tensor

from batchchol.interop.torch.operators import OPERATORS, first_share

__all__ = [
    "cho_inverse",
    "cho_solve",
    "cholesky",
    "cholesky_ex",
    "inv",
    "inv_ex",
    "slogdet",
    "slogdet_ex",
    "solve",
    "solve_ex",
]


def cholesky(a: Tensor, *, upper: bool = False, math: str = "ieee", jitter: float | str | None = None) -> Tensor:
    """Cholesky factors of symmetric positive definite matrices; see `batchchol.cholesky`.

    Parameters
    ----------
    a : Tensor, shape (..., n, n)
        The matrices. Only the lower triangle is used, or the upper one if `upper` is set. The gradient is symmetric,
        as that of torch.linalg.cholesky.
    upper : bool
        Return U with A = U^T U in place of L with A = L L^T.
    math : {"ieee", "fast"}
        As for `batchchol.cholesky`.
    jitter : float or "auto", optional
        As for `batchchol.solve`. Gradients are those at the matrices with what was added to them, which they take for
        a constant. On a GPU it waits for orders above 128, and is no part of a graph.

    Returns
    -------
    Tensor, shape (..., n, n)
        The factors; the other triangle is zero.

    Raises
    ------
    torch.linalg.LinAlgError
        If a matrix is not positive definite.
    TypeError, ValueError
        If an argument is not as above, or on another GPU than the first.
    """
    return _factored(a, upper, math, jitter, True)[0]


def cholesky_ex(
    a: Tensor, *, upper: bool = False, math: str = "ieee", jitter: float | str | None = None
) -> Cholesky | RepairedCholesky:
    """Cholesky factors and LAPACK's info of each matrix, int32; never raises because of the matrices' values.

    See `cholesky` and `batchchol.cholesky_ex`. Where the info is not 0 the factor and what is derived from it have no
    meaning; other matrices' have.
    """
    found = _factored(a, upper, math, jitter, False)
    return Cholesky(*found) if jitter is None else RepairedCholesky(*found)


def solve(
    a: Tensor,
    b: Tensor,
    *,
    upper: bool = False,
    math: str = "ieee",
    jitter: float | str | None = None,
) -> Tensor:
    """The solutions x of a x = b, factored and solved by in one kernel; see `batchchol.solve`.

    Parameters
    ----------
    a : Tensor, shape (..., n, n)
        The matrices, as for `cholesky`.
    b : Tensor, shape (n,), (..., n) or (..., n, nrhs)
        The right-hand sides, of the matrices' dtype and device: one vector for each matrix if b.ndim == 1 or b.shape
        == a.shape[:-1], else matrices, which are broadcast with those of `a`.

    Returns
    -------
    Tensor, of the shape of b, broadcast

    Raises
    ------
    torch.linalg.LinAlgError, TypeError, ValueError
        As `cholesky` does.
    """
    return _solved(a, b, upper, math, jitter, True)[0]


def solve_ex(
    a: Tensor,
    b: Tensor,
    *,
    upper: bool = False,
    math: str = "ieee",
    jitter: float | str | None = None,
) -> Solution | RepairedSolution:
    """The solutions x of a x = b and LAPACK's info of each matrix; never raises because of the matrices' values.

    See `solve` and `batchchol.solve_ex`.
    """
    found = _solved(a, b, upper, math, jitter, False)
    return Solution(*found) if jitter is None else RepairedSolution(*found)


def cho_solve(L: Tensor, b: Tensor, *, upper: bool = False, math: str = "ieee") -> Tensor:
    """The solutions x of A x = b, given the Cholesky factors L of the matrices A = L L^T; see `batchchol.cho_solve`.

    `b` is as for `solve`. The gradient of the factors is triangular.
    """
    l, upper = _in_rows(L, upper, "L")
    _check_sides(b)
    return OPERATORS["cho_solve"](l, b, upper, math)


def cho_inverse(L: Tensor, *, upper: bool = False, math: str = "ieee") -> Tensor:
    """Inverses of matrices A = L L^T, given their Cholesky factors L; see `batchchol.cho_inverse` and `cho_solve`."""
    l, upper = _in_rows(L, upper, "L")
    return OPERATORS["cho_inverse"](l, upper, math)


def inv(a: Tensor, *, upper: bool = False, math: str = "ieee") -> Tensor:
    """Inverses of symmetric positive definite matrices, (..., n, n), both triangles; see `cholesky`."""
    a, upper = _in_rows(a, upper)
    return OPERATORS["inv"](a, upper, math, True)[0]


def inv_ex(a: Tensor, *, upper: bool = False, math: str = "ieee") -> Inverse:
    """Inverses and LAPACK's info of each matrix: where it is not 0 an inverse has no meaning."""
    a, upper = _in_rows(a, upper)
    return Inverse(*OPERATORS["inv"](a, upper, math, False))


def slogdet(a: Tensor, *, upper: bool = False, math: str = "ieee") -> LogDeterminant:
    """Signs, which are 1, and logarithms of determinants of symmetric positive definite matrices; see `cholesky`."""
    a, upper = _in_rows(a, upper)
    return LogDeterminant(*OPERATORS["slogdet"](a, upper, math, True)[:2])


def slogdet_ex(a: Tensor, *, upper: bool = False, math: str = "ieee") -> LogDeterminantInfo:
    """`slogdet` and LAPACK's info of each matrix: where it is not 0, sign and logabsdet are NaN."""
    a, upper = _in_rows(a, upper)
    return LogDeterminantInfo(*OPERATORS["slogdet"](a, upper, math, False))


def _factored(a: Tensor, upper: bool, math: str, jitter: float | str | None, check: bool) -> tuple[Tensor, ...]:
    rows, turned = _in_rows(a, upper)
    if jitter is None:
        found = OPERATORS["cholesky"](rows, turned, math, check)
    else:
        found = OPERATORS["cholesky_repaired"](rows, first_share(jitter, a.dtype), turned, math, check)
    return found if turned == upper else (found[0].mT, *found[1:])


def _solved(
    a: Tensor, b: Tensor, upper: bool, math: str, jitter: float | str | None, check: bool
) -> tuple[Tensor, ...]:
    a, upper = _in_rows(a, upper)
    _check_sides(b)
    found: tuple[Tensor, ...]
    if jitter is None:
        found = OPERATORS["solve"](a, b, upper, math, check)
    else:
        found = OPERATORS["solve_repaired"](a, b, first_share(jitter, a.dtype), upper, math, check)
    return found


def _in_rows(a: Tensor, upper: bool, argument: str = "a") -> tuple[Tensor, bool]:
    """The matrices as kernels read them, by rows, and which triangle of them: transposes need no copy."""
    if not isinstance(a, Tensor):
        raise TypeError(f"{argument}: got {type(a).__name__}, expected a torch.Tensor")
    if a.ndim > 1 and not a.is_contiguous() and a.mT.is_contiguous():
        return a.mT, not upper
    return a, upper


def _check_sides(b: Any) -> None:
    if not isinstance(b, Tensor):
        raise TypeError(f"b: got {type(b).__name__}, expected a torch.Tensor")
