"""The kernel where no table has an answer: by the rule of its operation."""

from __future__ import annotations

from dataclasses import replace

from batchchol.defaults.registers import block_that_fits
from batchchol.defaults.rules.fused import fused
from batchchol.defaults.rules.general import general
from batchchol.defaults.rules.on_chip import on_chip
from kernelgen import TARGETS, KernelSpec, ThreadSchedule

# Tile sizes of operations that were not measured, and that the thread family alone has.
NB, NB_OF_GPUS = 4, 8


def unmeasured(plain: KernelSpec, chunk: int | None, arch: str | None) -> KernelSpec:
    """The kernel of `plain`'s problem on batches in this chunk, if any."""
    gpu = TARGETS[plain.target].gpu
    if plain.problem.op == "potrf":
        return (block_that_fits(plain, chunk) if gpu else None) or plain
    operation = plain.problem.operation
    if operation.general:
        return general(plain, chunk, arch)
    if operation.forgets or operation.inverts:
        return (fused if operation.has_columns else on_chip)(plain, chunk, arch)
    # A group that is one piece of memory is read where it is.
    apart = None if gpu else plain.layout != "chunked" or chunk != plain.lanes
    return replace(plain, schedule=ThreadSchedule(min(NB_OF_GPUS if gpu else NB, plain.problem.n), staged=apart))
