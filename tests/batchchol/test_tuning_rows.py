"""Rows of tuning data: flat, and with the same columns whatever the family of kernels."""

from __future__ import annotations

from batchchol.roofline import Ceilings
from batchchol.tuning import Point
from batchchol.tuning_rows import row
from kernelgen import BlockSchedule, KernelSpec, Problem, Schedule, SharedSchedule, ThreadSchedule

CEILINGS = Ceilings(4e12, 6e13, 1, "float32", "cuda")


def row_of(schedule: Schedule) -> dict[str, object]:
    spec = KernelSpec(Problem(9), "chunked", "col", schedule, "cuda")
    return row(Point(spec, 32, 1024, 1, "queued", "correct"), CEILINGS, {"commit": "0123abc"})


def test_rows_of_every_family_have_the_same_columns() -> None:
    thread, shared, block = map(row_of, (ThreadSchedule(3), SharedSchedule(3, "top", 5), BlockSchedule(4, 8)))
    assert list(thread) == list(shared) == list(block)
    assert [values["family"] for values in (thread, shared, block)] == ["thread", "shared", "block"]
    # The threads of a block, for those of a row are the host's.
    assert (thread["block"], thread["threads"], shared["block"]) == (32, 1, None)
    assert (shared["looking"], shared["matrices"], block["looking"], block["lanes"]) == ("top", 5, None, 8)
