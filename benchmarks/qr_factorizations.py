"""How long do QR factorizations take?"""

from __future__ import annotations

from . import inversions
from .harness import grid


class QrFactorizations(
    inversions.Inversions,
    names=inversions.Inversions.param_names,
    backend=grid.BACKEND,
    n=(3, *grid.SMALL_N),
    batch=(16_384,),
):
    """`qr`'s kernel, with reflectors and their scalars as its result; seconds per matrix: n × batch."""

    op = "geqrf"
