"""Arguments of emulated kernels: refused where they do not fit the parameters, and copied between fences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..fenced_memory import Array, FencedMemory


class EmulationError(AssertionError):
    """A kernel did what a GPU would not let it do, or was called with what it does not take."""


def check_arguments(entry: str, codes: Sequence[str], arguments: Sequence[Any]) -> None:
    """Refuse what does not fit the parameters: their number, an array's dtype, a number's type, or its range."""
    if len(codes) != len(arguments):
        raise EmulationError(f"{entry}: got {len(arguments)} arguments, expected {len(codes)}: {' '.join(codes)}")
    for place, (code, argument) in enumerate(zip(codes, arguments, strict=True)):
        if not _fits(code, argument):
            got = f"{argument.dtype} array" if isinstance(argument, np.ndarray) else repr(argument)
            raise EmulationError(f"{entry}: argument {place} is {got}, the parameter is {code}")


def _fits(code: str, argument: Any) -> bool:
    if code.startswith("*"):
        element = code.removeprefix("*").removeprefix("c")
        return (
            isinstance(argument, np.ndarray)
            and argument.flags.c_contiguous
            and element in ("v0", _code(argument.dtype))
        )
    if isinstance(argument, np.generic):
        return code == _code(argument.dtype)
    if isinstance(argument, int):
        return code[0] in "iu" and np.iinfo(code).min <= argument <= np.iinfo(code).max
    return isinstance(argument, float) and code[0] == "f"


def _code(dtype: np.dtype[Any]) -> str:
    return f"{dtype.kind}{dtype.itemsize}"


def fence(
    arrays: Mapping[int, Array], codes: Sequence[str], arguments: Sequence[Any], *, at_end: bool, alignment: int
) -> dict[int, FencedMemory]:
    """Copies of the arrays between fences; those that only constant parameters point to may not be written."""
    fenced = {}
    for address, array in arrays.items():
        memory = FencedMemory(array.shape, array.dtype, at_end=at_end, alignment=alignment)
        memory.array[...] = array
        pointing = [code for code, argument in zip(codes, arguments, strict=True) if _is_at(argument, address)]
        if all(code.startswith("*c") for code in pointing):
            memory.forbid_writing()
        fenced[address] = memory
    return fenced


def _is_at(argument: Any, address: int) -> bool:
    return isinstance(argument, np.ndarray) and argument.ctypes.data == address
