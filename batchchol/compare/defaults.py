"""The default kernels of an operation, as contenders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from batchchol.backends import Backend
from batchchol.compare.contenders import Contender, Entrant
from batchchol.compare.cpu import CpuVenue
from batchchol.compare.gpu import GpuVenue
from batchchol.defaults.lookup import default_choice
from batchchol.defaults.request import Request
from batchchol.defaults.rules.fused import of_several, two_kernels
from batchchol.plan import TWO
from kernelgen import KernelSpec, Layout, Problem, SpecError


def default_specs(
    backend: Backend, problem: Problem, batch: int, layout: Layout, nrhs: int = 1
) -> tuple[KernelSpec, ...]:
    """The kernel of an operation for `nrhs` right-hand sides, or those that are faster together.

    Raises
    ------
    SpecError
        If there is no kernel of it.
    """
    asked = Request(problem, backend.target, batch=batch, arch=backend.architecture, device=backend.model).on(layout)
    two = problem.op == "posv" and two_kernels(asked, nrhs)
    if problem.op == "posv" and not two and (found := of_several(asked, nrhs)):
        return (found,)
    ops = TWO if two else (problem.op,)
    return tuple(default_choice(replace(asked, problem=replace(problem, op=op))).spec for op in ops)


def default_kernels(
    backend: Backend,
    venue: CpuVenue | GpuVenue,
    problem: Problem,
    batch: int,
    maths: Sequence[str],
    absent: dict[str, str],
    kernel: Callable[..., list[Contender]],
) -> Iterator[Entrant]:
    """The default in each accuracy class, on packed matrices and on whole arrays.

    `kernel(arena, specs=..., layout=...)` makes its contenders; why there is no kernel goes into `absent`.
    """
    for math in maths:
        suffix = f" {math}" if len(maths) > 1 else ""
        for place, layout in (
            ("packed", backend.default_layout(problem.n, problem.dtype, batch, math, problem.op)),
            ("canonical", Layout.canonical()),
        ):
            name = f"{venue.prefix}{place}{suffix}"
            try:
                specs = default_specs(backend, replace(problem, math=math), batch, layout)
            except SpecError as error:
                absent[f"{name} at n = {problem.n}"] = f"there is no kernel of {problem.op}: {error}"
                continue
            yield Entrant(name, venue.version, partial(kernel, specs=specs, layout=layout), specs, venue.tolerated)
