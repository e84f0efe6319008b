"""Which points of the grid are measured: those of a profile, on the backends that this run is about."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .grid import BACKEND, CPU, CUDA, LIMIT

PROFILE_VARIABLE = "BATCHCHOL_PROFILE"
DEFAULT_PROFILE = "quick"
BACKEND_VARIABLE = "BATCHCHOL_BACKEND"

# A box keeps the points that have, of every parameter it names, one of its values; a selection joins boxes.
Box = Mapping[str, tuple[Any, ...]]

# Without n = 100, which takes a sixth of the time of all on two cores.
QUICK: Box = {"n": (4, 8, 16, 24, 32, 48, 64), "batch": (16_384,), "dtype": ("float32",)}
QUICK_CPU: Box = {**QUICK, "backend": CPU, "threads": (1,)}
QUICK_CUDA: Box = {**QUICK, "backend": CUDA, "threads": (1,)}
CI_BATCH = (1_000, 16_384)
CI_CUDA: Box = {"backend": CUDA, "batch": (16_384, 1_048_576), "threads": (1,)}

# Profile -> question -> boxes; a question that is absent keeps no point, and None keeps the whole grid.
PROFILES: Mapping[str, Mapping[str, tuple[Box, ...]] | None] = {
    "quick": {
        "Tiles": (
            {**QUICK_CPU, "nb": (3, 4), "looking": ("left",)},
            {**QUICK_CPU, "n": (4, 8, 16, 24), "nb": (3, 4), "looking": ("right",)},
            {**QUICK_CUDA, "n": (32, 64), "nb": (4, 8), "looking": ("top",)},
        ),
        "Defaults": (QUICK_CPU, QUICK_CUDA, {**QUICK_CUDA, "n": (4, 8, 16), "batch": (1_048_576,)}),
        "GpuWinners": ({"n": (16, 24, 32, 64), "math": ("fast",), "layout": ("chunked",)},),
        "CpuWinners": ({"n": (8, 16, 32, 64), "math": ("ieee",), "layout": ("chunked",), "threads": (1,)},),
        "Latency": ({**QUICK_CUDA, "n": (8, 32, 64)},),
        "Numpy": (QUICK,),
        "WholeCall": ({**QUICK, "n": (8, 16, 32, 64)},),
        "Layouts": ({**QUICK, "n": (32,), "layout": ("canonical", "interleaved")},),
        "Threads": ({**QUICK, "n": (16, 32, 64), "threads": (2,)},),
        "Blocks": ({**QUICK, "n": (32,), "block": (128,)},),
        "Caches": ({**QUICK, "n": (32,), "cache": ("shared",)},),
        "Strides": ({**QUICK, "n": (32,), "stride": (32,)},),
        "Mathematics": ({**QUICK_CUDA, "n": (64,), "math": ("fast",)},),
        "Compiling": ({"n": (32,), "unroll": ("tiles",), "math": ("ieee",)},),
        "Registers": ({"n": (32,), "unroll": ("tiles",), "math": ("ieee",)},),
        "Floor": ({},),
        "Copies": (
            {"backend": CUDA, "n": (8,), "batch": (1_048_576,)},
            {"backend": CUDA, "n": (32, 64), "batch": (100_000,)},
        ),
        "Filling": ({"backend": CUDA, "n": (32,), "recipe": ("diagonally_dominant",)},),
        "Canonical": ({**QUICK_CUDA, "n": (32, 64), "layout": ("canonical",)},),
        "Ladder": ({"n": (32,), "batch": (1_024,)},),
        "SmallBatches": ({"n": (32,), "batch": (1_024,), "way": ("graph",)},),
        "Launches": ({"n": (32,), "batch": (1_024,), "pdl": (True,)},),
    },
    "ci": {
        "Tiles": (
            {"backend": CPU, "n": (8, 17, 32, 64), "nb": (2, 3, 4, 5)},
            {"backend": CUDA, "n": (8, 16, 17, 24, 32, 64), "nb": (3, 4, 8), "looking": ("left", "top")},
        ),
        "Defaults": (
            {"backend": CPU, "n": (4, 8, 16, 17, 32, 33, 64, 100), "batch": CI_BATCH, "threads": (1,)},
            {**CI_CUDA, "n": (4, 8, 16, 17, 24, 32, 33, 48, 64, 100, 128), "dtype": ("float32",)},
            {**CI_CUDA, "n": (8, 32, 64), "dtype": ("float64",)},
        ),
        "GpuWinners": (
            {"math": ("fast",), "layout": ("chunked",)},
            {"n": (8, 24, 32, 64), "math": ("ieee",), "layout": ("chunked",)},
            {"n": (8, 24, 32, 80), "math": ("fast",), "layout": ("interleaved",)},
        ),
        "CpuWinners": ({"n": (4, 8, 16, 24, 32, 64, 100), "layout": ("chunked",)},),
        "Latency": ({**QUICK_CUDA, "n": (4, 8, 16, 24, 32, 64, 100)},),
        "Numpy": ({"n": (8, 32, 64), "batch": CI_BATCH},),
        "WholeCall": ({"n": (4, 8, 16, 32, 64), "batch": CI_BATCH},),
        "Layouts": ({"n": (8, 32, 64), "batch": CI_BATCH},),
        "Chunks": ({"n": (8, 32, 64)},),
        "Unrolling": ({"n": (4, 8, 12, 16)},),
        "Mathematics": ({"n": (8, 32, 64)},),
        "Prefetching": ({"n": (8, 32, 64)},),
        "Staging": ({"n": (8, 32, 64)},),
        "Blocks": ({"n": (8, 32, 64)},),
        "Residence": ({"n": (8, 16, 24), "batch": (16_384, 1_048_576)},),
        "Caches": ({"n": (8, 32, 64)},),
        "Strides": ({"n": (8, 32, 64)},),
        "Threads": ({"n": (16, 64), "threads": (1, 2)},),
        "Compiling": ({"n": (8, 32, 64), "unroll": ("tiles",)},),
        "Registers": ({"n": (8, 32, 64), "unroll": ("tiles",)},),
        "Solves": ({"batch": (16_384,)},),
        "FusedSolves": ({"batch": (16_384,)},),
        "GeneralSolves": ({"batch": (16_384,)},),
        "GeneralFactors": ({"batch": (16_384,)},),
        "LargerGeneralSolves": ({"nrhs": (1,)},),
        "LeastSquares": ({"batch": (16_384,)},),
        "QrFactorizations": ({},),
        "Inversions": ({},),
        "InversionsByFactors": ({},),
        "Determinants": ({},),
        "Floor": ({},),
        "Copies": (
            {"backend": CPU, "n": (8, 32, 64), "batch": (100_000,)},
            {"backend": CUDA, "n": (4, 8, 16, 17, 32, 64, 128)},
        ),
        "Filling": ({"n": (8, 32, 64)},),
        "Families": ({"n": (8, 24, 32, 64, 128), "batch": (16_384,), "math": ("fast",)},),
        "Shared": ({"n": (32,), "layout": ("chunked",), "looking": ("left",)},),
        "Canonical": ({"n": (8, 32, 64), "batch": (16_384, 1_048_576), "layout": ("canonical",)},),
        "Ladder": (
            {"backend": CPU, "n": (8, 32), "batch": (1_024, 131_072)},
            {"backend": CUDA, "n": (8, 32, 128), "batch": (1_024, 131_072, LIMIT)},
        ),
        "SmallBatches": ({"n": (8, 32), "batch": (1_024,)},),
        "Launches": ({"n": (8, 32), "batch": (1_024, 16_384)},),
    },
    "full": None,
}


def profile() -> str:
    """The profile that the environment variable BATCHCHOL_PROFILE names.

    Raises
    ------
    ValueError
        If there is none of that name.
    """
    name = os.environ.get(PROFILE_VARIABLE) or DEFAULT_PROFILE
    if name not in PROFILES:
        raise ValueError(f"{PROFILE_VARIABLE}={name!r} is no profile: use one of {', '.join(PROFILES)}")
    return name


def backends(name: str) -> tuple[str, ...]:
    """The backends that profile `name` measures: the one that BATCHCHOL_BACKEND names, if it is set.

    Else the quick profile measures one, a GPU where there seems to be one, and the others all.
    """
    chosen = os.environ.get(BACKEND_VARIABLE)
    if chosen:
        return (chosen,)
    if name == "quick":
        return CUDA if gpu_present() else CPU
    return BACKEND


def gpu_present() -> bool:
    """Whether PyCUDA and a driver seem to be there; neither is asked, for this must not initialise CUDA."""
    return find_spec("pycuda") is not None and Path("/dev/nvidiactl").exists()


def left_out(name: str, question: str, values: Mapping[str, Any]) -> str:
    """Why profile `name` does not measure the point `values` (parameter -> value) of `question`; "" if it does."""
    if not keeps(name, question, values):
        return f"not in profile {name!r} ({PROFILE_VARIABLE})"
    measured = backends(name)
    if values.get("backend", measured[0]) not in measured:
        return f"this run measures backend {' and '.join(measured)} ({BACKEND_VARIABLE} chooses another)"
    return ""


def keeps(name: str, question: str, values: Mapping[str, Any]) -> bool:
    """Whether the point `values` of `question` is part of profile `name`, whatever the backend.

    A question without the parameter that a box names, having fixed it, is not narrowed by it.
    """
    selection = PROFILES[name]
    if selection is None:
        return True
    return any(
        all(values[parameter] in kept for parameter, kept in box.items() if parameter in values)
        for box in selection.get(question, ())
    )


def kept_points(
    name: str, question: str, names: Sequence[str], params: Sequence[Sequence[Any]], backend: str | None = None
) -> Iterator[dict[str, Any]]:
    """The points of `question`, given asv's `param_names` and `params`, that are part of profile `name`.

    They come in the order in which asv measures them; with `backend`, only those of it.
    """
    axes = [
        (backend,) if backend and axis == "backend" else values for axis, values in zip(names, params, strict=True)
    ]
    for combination in itertools.product(*axes):
        values = dict(zip(names, combination, strict=True))
        if keeps(name, question, values):
            yield values
