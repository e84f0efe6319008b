"""The warning, one per process, that LAPACK stands in for generated kernels because there is no C compiler."""

from __future__ import annotations

import sys
import warnings
from threading import Lock

from batchchol.errors import NoCompilerWarning

# Taken by the first to warn, and never given back.
_FIRST = Lock()


def warn(error: Exception) -> None:
    """Say what is missing, what that costs, and how to get it, where the library was called.

    Raises
    ------
    NoCompilerWarning
        If warnings are errors.
    """
    if not _FIRST.acquire(blocking=False):
        return
    try:
        warnings.warn(
            f"{error}. Until then LAPACK factors one matrix after another, many times slower where they are small "
            "(cached kernels are used only with the compiler that built them)",
            NoCompilerWarning,
            stacklevel=_outside(),
        )
    except Warning:
        _FIRST.release()
        raise


def _outside() -> int:
    """The level, counted from `warn`, of the first frame outside the library."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _package(frame.f_globals.get("__name__", "")) == _package(__name__):
        frame, level = frame.f_back, level + 1
    return level


def _package(module: str) -> str:
    return module.partition(".")[0]
