"""What racecheck does not see: that `__syncwarp` orders a warp's writes before the arrival of its first lane.

The memory model of PTX says so, but the tool reports each read behind such a barrier. With every lane arriving for
itself, and as many arrivals expected, kernels of the families block and strip wait for the same, and the tool sees
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

from batchchol.backends.cuda import backend
from kernelgen import KernelSource, KernelSpec, generate

# Of a text that arrives as warps do: who arrives, also where one warp has a whole tile, and how many.
_EVERY_LANE = (
    (r"    if \(threadIdx\.x % 32 == 0\)\n        arrive\(barrier\);", "    arrive(barrier);"),
    (r"if \(threadIdx\.x % WARP == 0 && AWAITED", "if (AWAITED"),
    (r"if \(lane == 0 && ((?:awaited|half).*)\)(?=\n +arrive\()", r"if (\1)"),
    (r"(INLINE int warps_of\(const int first, .*?return )([^;]*);", r"\1WARP * (\2);"),
    (r"(set_up\(.* \+ b, )(.*)\);", r"\1WARP * (\2));"),
    # Of what solves: the factor of a strip's diagonal tile, and those who have used a panel.
    (r"if \(lane == 0\)(?=\n +arrive\()", "if (true)"),
    (r"if \(last && (?:own_lane\(\)|lane) == 0\)(?=\n +arrive\()", "if (last)"),
    (r"(\+ EMPTY, .*warps_of\(right, TILES\) : 0\) \+ )(\d+)\);", r"\1WARP * \2);"),
)


def with_every_lane_arriving(source: KernelSource) -> KernelSource:
    """The source with an arrival of each lane where its warp had one; others as they are."""
    text = source.text
    if "arrive_as_warp" not in text:
        return source
    for arrival, of_every_lane in _EVERY_LANE:
        text = re.sub(arrival, of_every_lane, text)
    return replace(source, text=text)


@contextmanager
def every_lane_arrives() -> Iterator[None]:
    """Have the GPU's kernels built so."""

    def generated(spec: KernelSpec) -> KernelSource:
        return with_every_lane_arriving(generate(spec))

    with mock.patch.object(backend, "generate", generated):
        yield
