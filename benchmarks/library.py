"""What the suite uses of the library, imported in one place: an older commit may lack part of it.

`MISSING` says what is lacking; where it is not empty, every point is skipped for that reason.
"""

from __future__ import annotations

import batchchol

MISSING = ""
try:
    from batchchol.api import cholesky
    from batchchol.backends import Backend, get_backend
    from batchchol.batch import Batch, default_layout
    from batchchol.datasets import fill, generate
    from batchchol.defaults import default_spec
    from batchchol.errors import BackendUnavailable, OutOfMemory, ResidualError
    from batchchol.residual import RATIO_BOUND, ratios
    from batchchol.timing import sample_factor
    from kernelgen import KernelSpec, Layout, Problem, SpecError, ThreadSchedule
except ImportError as error:
    MISSING = f"this commit of {batchchol.__name__} lacks part of what is measured: {error}"

__all__ = [
    "MISSING",
    "RATIO_BOUND",
    "Backend",
    "BackendUnavailable",
    "Batch",
    "KernelSpec",
    "Layout",
    "OutOfMemory",
    "Problem",
    "ResidualError",
    "SpecError",
    "ThreadSchedule",
    "cholesky",
    "default_layout",
    "default_spec",
    "fill",
    "generate",
    "get_backend",
    "ratios",
    "sample_factor",
]
