"""What several public functions refuse, in the same words."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelgen import MAX_N, KernelSpec
from kernelgen.refusals import whole
from kernelgen.schedule_checks import MATHS


def integer(argument: str, got: object) -> int:
    """The plain int of an integer, NumPy's too.

    Raises
    ------
    TypeError
        If it is anything else, True or False included.
    """
    number = whole(got)
    if number is None:
        raise TypeError(f"{argument}: got {got!r}, expected an integer")
    return number


def check_order(argument: str, n: int) -> None:
    """Refuse arrays of matrices that are too large for any kernel."""
    if n > MAX_N:
        raise ValueError(
            f"{argument}: got matrices of order {n}, expected at most {MAX_N}: larger ones are "
            "numpy.linalg.cholesky's job"
        )


def check_math(math: str | None) -> None:
    """Refuse the name of a class of accuracy that there is not; None is nobody's wish."""
    if math is not None and math not in MATHS:
        raise ValueError(f"math: got {math!r}, expected one of {', '.join(map(repr, MATHS))}")


def check_choice(spec: KernelSpec | None, math: str | None) -> None:
    """Refuse what is no spec, no math, or a spec of another math."""
    check_math(math)
    if spec is None:
        return
    if not isinstance(spec, KernelSpec):
        raise TypeError(f"spec: got {type(spec).__name__}, expected a KernelSpec: start from default_spec")
    if math not in (None, spec.schedule.math):
        raise ValueError(f"math: got {math!r} beside a spec of {spec.schedule.math!r}, expected one of the two alone")


def check_unmasked(argument: str, a: Any) -> None:
    """Refuse an array of which elements are masked: kernels would take what is under the mask."""
    # NumPy imports its masked arrays late, and no plain array needs them.
    if type(a) is not np.ndarray and isinstance(a, np.ndarray) and np.ma.is_masked(a):
        raise ValueError(
            f"{argument}: got an array of which elements are masked, expected none: use .filled() to put numbers "
            "in their places, or .data for what is under the mask"
        )
