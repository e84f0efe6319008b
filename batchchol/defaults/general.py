"""The kernel of general matrices where none was measured: a rule."""

from __future__ import annotations

from dataclasses import replace

from kernelgen import TARGETS, KernelSpec, ThreadSchedule

# Of CPUs, the largest order of straight-line code.
STRAIGHT_LINE = 6


def general(plain: KernelSpec) -> KernelSpec:
    """The kernel of `plain`'s problem."""
    straight = TARGETS[plain.target].gpu or plain.problem.n <= STRAIGHT_LINE
    looking = plain.problem.operation.fixed["looking"]
    return replace(plain, schedule=ThreadSchedule(1, str(looking), "full" if straight else "tiles"))
