"""Results of calls in one form, lower factors and whole inverses, and the errors of results over their bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from batchchol import Batch, cho_inverse_ex, cholesky_ex, factor, get_backend, inv_ex
from batchchol.backends.base import Form
from batchchol.defaults.rules.on_chip import IN_MEMORY
from batchchol.operations import logdet, posv, potri, potrs, residual
from batchchol.plan import kernel_choice
from kernelgen import KernelSpec

from .differential import Mismatch

if TYPE_CHECKING:
    from .solves import Case

Array = NDArray[Any]
# A residual of inverses like those of solves, of a bound that potri has as well: Higham, section 14.3.
INVERSE_BOUND = {"ieee": 1.5, "fast": 2.5}
# By factors.
BY_FACTORS = ("potrs", "cho_solve", "cho_inverse_logdet")


def factored(matrices: Any, *, upper: bool, math: str) -> tuple[Any, Any, Any]:
    """The lower factors of arrays, or of a batch in its layout, info and logarithms."""
    if isinstance(matrices, Batch):
        l, info, logs = cast(Any, factor(matrices.marked(None), default_of(matrices, upper, math), logdet=True))
        l = l.to_dense()
    else:
        l, info, logs = cast(Any, cholesky_ex(matrices, upper=upper, math=math, logdet=True))
    return (l.get() if hasattr(l, "get") else l).swapaxes(1, 2) if upper else l, info, logs


def default_of(batch: Batch, upper: bool, math: str) -> KernelSpec:
    """The default's kernel for a triangle of a batch."""
    return kernel_choice("potrf", get_backend(batch.backend), Form.of(batch), upper, None, math, argument="batch")


@np.errstate(all="ignore")
def packed_inverses(case: Case, matrices: Any, **how: Any) -> tuple[Any, Any]:
    """Inverses in the layout of a batch, where there is a kernel for it, and info."""
    packed = isinstance(matrices, Batch) and matrices.layout.kind != "canonical"
    if not packed or (case.backend == "cuda" and case.n > IN_MEMORY[case.dtype]):
        return cast(Any, inv_ex(matrices, **how))
    x, info = cast(Any, inv_ex(matrices, out=matrices.like(), **how))
    half = get_backend(case.backend).host(x.to_dense())
    whole = half + half.swapaxes(1, 2) - half * np.eye(case.n, dtype=half.dtype)
    return (get_backend("cuda").place(whole) if case.backend == "cuda" else whole), info


def by_factors(factors: Any, **how: Any) -> tuple[Any, None, Any]:
    """Inverses and logarithms; a factor's info is another one than its matrix's."""
    found = cho_inverse_ex(factors, **how)
    return found.inverse, None, found.logabsdet


def worst_error(
    case: Case, kinds: NDArray[np.str_], a: Array, b: Array, result: Array, good: NDArray[np.bool_]
) -> float:
    """The largest error over its bound, of those results that have one."""
    members = np.flatnonzero(good)
    if not len(members):
        return 0.0
    a, b, result = a[members], b[members], result[members]
    if case.op in ("potrs", "cho_solve"):
        seen = potrs.ratios(a, b, result) / potrs.ratio_bound(case.n, case.math)
    elif case.op in ("posv", "posvdet", "solve"):
        seen = posv.ratios(a, b, result) / posv.ratio_bound(case.n, case.math)
    elif case.op in ("inv", "inv_logdet", "inv_packed"):
        seen = inverse_ratios(a, result) / INVERSE_BOUND[case.math]
    elif case.op == "cho_inverse_logdet":
        seen = potri.ratios(a, result) / potri.RATIO_BOUND[case.math]
    elif case.op == "cholesky_logdet":
        seen = residual.ratios(a, np.ascontiguousarray(result)) / residual.RATIO_BOUND[case.math]
    elif case.op == "logdet_by_factors":
        # Where no kernel inverts, the logarithms are summed.
        seen = logdet.ratios_by_factors(a, result) / logdet.RATIO_BOUND[case.math]
        seen = with_sum_by_factors(a, result, seen)
    else:
        seen = logdet.ratios(a, result) / logdet.RATIO_BOUND[case.math]
        seen = seen if case.op == "logdet" else with_sum(a, result, seen)
    worst = int(np.argmax(seen))
    if not seen[worst] <= 1:
        raise Mismatch(
            f"matrix {members[worst]} ({kinds[members[worst]]}) has {seen[worst]:.3g} times the error allowed"
        )
    return float(seen[worst])


@np.errstate(all="ignore")
def inverse_ratios(a: Array, x: Array) -> NDArray[np.float64]:
    """max_ij |A X - I|_ij / ((4 n + 1) u (|L| |L^T| |L^-T| |L^-1|)_ij) of each inverse; infinite if not finite."""
    exact, n = a.astype(np.float64), a.shape[-1]
    l = np.linalg.cholesky(exact)
    size, inverted = np.abs(l), np.abs(np.linalg.inv(l))
    allowed = size @ (size.swapaxes(1, 2) @ (inverted.swapaxes(1, 2) @ inverted))
    error = np.abs(exact @ x.astype(np.float64) - np.eye(n))
    unit = (4 * n + 1) * float(np.finfo(x.dtype).eps) / 2
    worst = np.max(np.where(error == 0, 0.0, error / (unit * allowed)), axis=(1, 2))
    return np.where(np.isfinite(x).all(axis=(1, 2)) & ~np.isnan(worst), worst, np.inf)


def with_sum(a: Array, logabsdet: Array, ratios: NDArray[np.float64]) -> NDArray[np.float64]:
    """The ratios of logarithms if a sum of the pivots' has errors of its own: u of each and of each partial sum."""
    l = np.linalg.cholesky(a.astype(np.float64))
    return with_sum_by_factors(l, logabsdet, ratios, logdet.oracle(a))


def with_sum_by_factors(
    l: Array, logabsdet: Array, ratios: NDArray[np.float64], exact: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """The same by factors."""
    logs = 2 * np.log(np.abs(np.diagonal(l, axis1=1, axis2=2)).astype(np.longdouble))
    error = np.abs(logabsdet - (logs.sum(1).astype(np.float64) if exact is None else exact))
    summed = np.abs(logs).sum(1).astype(np.float64) * (l.shape[-1] + 1) * float(np.finfo(logabsdet.dtype).eps) / 2
    off = error != 0
    ratios[off] = 1 / (1 / ratios[off] + summed[off] / error[off])
    return ratios
