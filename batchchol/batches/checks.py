"""What several public functions refuse, in the same words."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelgen import KernelSpec
from kernelgen.problem import MATHS
from kernelgen.refusals import whole


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


def flag(argument: str, got: object) -> bool:
    """The plain bool of True or False, NumPy's too.

    Raises
    ------
    TypeError
        If it is anything else: "no" is true, as far as Python is concerned.
    """
    if not isinstance(got, bool | np.bool_):
        raise TypeError(f"{argument}: got {got!r}, expected True or False")
    return bool(got)


def host_array(a: Any) -> NDArray[Any]:
    """What NumPy makes an array of; by DLPack, without a copy, of arrays that NumPy does not know otherwise."""
    if hasattr(a, "__dlpack__") and not hasattr(a, "__array__"):
        return np.from_dlpack(a)
    return np.asarray(a)


def check_range(argument: str, got: int, least: int, most: int | None = None) -> None:
    """Refuse a number below `least`, or above `most` if that is given."""
    if got < least or (most is not None and got > most):
        expected = f"at least {least}" if most is None else f"{least} to {most}"
        raise ValueError(f"{argument}: got {got}, expected {expected}")


def check_math(math: str | None) -> None:
    """Refuse an unknown class of accuracy; None stands for the default."""
    # Arrays are compared element by element.
    if math is not None and not (isinstance(math, str) and math in MATHS):
        raise ValueError(f"math: got {math!r}, expected one of {', '.join(map(repr, MATHS))}")


def check_choice(spec: KernelSpec | None, math: str | None) -> None:
    """Refuse anything but a spec and a math, each optional, that agree."""
    check_math(math)
    if spec is None:
        return
    if not isinstance(spec, KernelSpec):
        raise TypeError(f"spec: got {type(spec).__name__}, expected a KernelSpec: start from default_spec")
    if math not in (None, spec.problem.math):
        raise ValueError(f"math: got {math!r} beside a spec of {spec.problem.math!r}, expected one of the two alone")


def check_unmasked(argument: str, a: Any) -> None:
    """Refuse an array of which elements are masked, or lists of such: kernels would take what is under the mask."""
    if isinstance(a, list | tuple):
        for part in a:
            # A number needs no call.
            if isinstance(part, list | tuple | np.ndarray):
                check_unmasked(argument, part)
    # NumPy imports its masked arrays late, and no plain array needs them.
    elif type(a) is not np.ndarray and isinstance(a, np.ndarray) and np.ma.is_masked(a):
        raise ValueError(
            f"{argument}: got an array of which elements are masked, expected none: use .filled() to put numbers "
            "in their places, or .data for what is under the mask"
        )
