"""What the questions share: the grid and its points, profiles, cases, and what the suite uses of the library."""

from . import grid, library
from .benchmark import Question, skipping
from .cases import (
    CHECKED_RECIPE,
    TIMED_RECIPE,
    Case,
    Plan,
    _KernelQuestion,
    about,
    backend_of,
    case,
    checked,
    layout_of,
    most_matrices,
    plan,
    planned,
    present,
    supported,
)
from .device import SAMPLES, Call, DeviceBenchmark, Taken, buffers, timed

__all__ = [
    "CHECKED_RECIPE",
    "SAMPLES",
    "TIMED_RECIPE",
    "Call",
    "Case",
    "DeviceBenchmark",
    "Plan",
    "Question",
    "Taken",
    "_KernelQuestion",
    "about",
    "backend_of",
    "buffers",
    "case",
    "checked",
    "grid",
    "layout_of",
    "library",
    "most_matrices",
    "plan",
    "planned",
    "present",
    "skipping",
    "supported",
    "timed",
]
