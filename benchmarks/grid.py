"""The one grid of the suite, whatever the machine has, and the profiles: selections from it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

PROFILE_VARIABLE = "BATCHCHOL_PROFILE"
DEFAULT_PROFILE = "quick"

BACKEND = ("cpu",)
N = (4, 8, 12, 16, 17, 20, 24, 32, 33, 40, 48, 64, 80, 100, 128)
BATCH = (1_000, 16_384, 100_000)
DTYPE = ("float32", "float64")
LAYOUT = ("canonical", "interleaved", "chunked")
# As many matrices as the backend has SIMD lanes: the best chunk wherever it was measured, and on every machine one.
SIMD: Final = "simd"
CHUNK = (SIMD, 8, 16, 32, 64, 128, 256, 512)
NB = (1, 2, 3, 4, 5, 6, 8, 12, 16)
LOOKING = ("right", "left", "top")
UNROLL = ("tiles", "full")
MATH = ("ieee", "fast")
PREFETCH = (False, True)
STAGED = (False, True)
THREADS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Point:
    """One point of the grid; every benchmark has these parameters, most of them with a single value.

    `chunk` is a number, SIMD, or None where the layout has none. The defaults are what a question holds fixed:
    one thread, being the least noisy, and the batch that speeds are stated for.
    """

    backend: str = "cpu"
    n: int = 32
    batch: int = 16_384
    dtype: str = "float32"
    layout: str = "chunked"
    chunk: int | Literal["simd"] | None = SIMD
    nb: int = 4
    looking: str = "left"
    unroll: str = "tiles"
    math: str = "ieee"
    prefetch: bool = True
    staged: bool = True
    threads: int = 1


AXES = tuple(field.name for field in fields(Point))


def axes(names: Sequence[str] = AXES, **varied: Sequence[Any]) -> tuple[tuple[Any, ...], ...]:
    """asv's `params` for the parameters `names`: the values given, or the single default."""
    default = Point()
    return tuple(tuple(varied.get(name, (getattr(default, name),))) for name in names)


# A box keeps the points that have, of every parameter it names, one of its values; a selection joins boxes.
Box = Mapping[str, tuple[Any, ...]]

QUICK_N = (4, 8, 16, 24, 32, 48, 64, 100)
QUICK: Box = {"n": QUICK_N, "batch": (16_384,), "dtype": ("float32",), "backend": ("cpu",)}
CI_BATCH = (1_000, 16_384)

# Profile -> question -> boxes; a question that is absent keeps no point, and None keeps the whole grid.
PROFILES: Mapping[str, Mapping[str, tuple[Box, ...]] | None] = {
    "quick": {
        "Tiles": (
            {**QUICK, "n": (4, 8, 16, 24, 32, 48), "nb": (3, 4), "looking": ("right", "left")},
            {**QUICK, "n": (64, 100), "nb": (3, 4), "looking": ("left",)},
        ),
        "Defaults": ({**QUICK, "threads": (1,)},),
        "Numpy": (QUICK,),
        "WholeCall": ({**QUICK, "n": (8, 16, 32, 64)},),
        "Layouts": ({**QUICK, "n": (32,), "layout": ("canonical", "interleaved"), "chunk": (None,)},),
        "Threads": ({**QUICK, "n": (16, 32, 64), "threads": (2,)},),
        "Compiling": ({"backend": ("cpu",), "n": (32,), "unroll": ("tiles",), "math": ("ieee",)},),
    },
    "ci": {
        "Tiles": ({"n": (8, 17, 32, 64), "nb": (2, 3, 4, 5)},),
        "Defaults": ({"n": (4, 8, 16, 17, 32, 33, 64, 100), "batch": CI_BATCH, "threads": (1,)},),
        "Numpy": ({"n": (8, 32, 64), "batch": CI_BATCH},),
        "WholeCall": ({"n": (4, 8, 16, 32, 64), "batch": CI_BATCH},),
        "Layouts": ({"n": (8, 32, 64), "batch": CI_BATCH},),
        "Chunks": ({"n": (8, 32, 64)},),
        "Unrolling": ({"n": (4, 8, 12, 16)},),
        "Mathematics": ({"n": (8, 32, 64)},),
        "Prefetching": ({"n": (8, 32, 64)},),
        "Staging": ({"n": (8, 32, 64)},),
        "Threads": ({"n": (16, 64), "threads": (1, 2)},),
        "Compiling": ({"n": (8, 32, 64), "unroll": ("tiles",)},),
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


def keeps(name: str, question: str, values: Mapping[str, Any]) -> bool:
    """Whether profile `name` keeps the point `values` (parameter -> value) of `question`.

    A question without the parameter that a box names, having fixed it, is not narrowed by it.
    """
    selection = PROFILES[name]
    if selection is None:
        return True
    return any(
        all(values[parameter] in kept for parameter, kept in box.items() if parameter in values)
        for box in selection.get(question, ())
    )


def kept_points(name: str, question: str, names: list[str], params: list[list[Any]]) -> Iterator[dict[str, Any]]:
    """The points of `question`, given asv's `param_names` and `params`, that profile `name` keeps."""
    for combination in itertools.product(*params):
        values = dict(zip(names, combination, strict=True))
        if keeps(name, question, values):
            yield values
