"""Arrays whose matrices are whole on the chip, or in a warp, factored and solved by tensor cores at once: a rule.

Fitted to datasets/solves/posv_whole_h200.csv.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from batchchol.defaults.request import Request
from batchchol.defaults.runnable import has_pdl, runs_on
from kernelgen import KernelSpec, SpecError, WarpSchedule, WholeSchedule

# The GPU that the rule is for.
FITTED = "sm_90"
# Orders for one right-hand side: 65,536 matrices of n = 64 take 1,173 us, two kernels 1,679. For smaller ones, and in
# float32, other families are faster.
ORDERS: Mapping[str, range] = MappingProxyType({"float64": range(40, 129), "float32": range(0)})
# Orders for several, and how many are solved for at a time: eight of 16,384 matrices of n = 64 take 249 us, by two
# kernels 360 and by blocks 342, in float64 345 and by two kernels 694; of n = 32 in float64 111, by blocks 224.
OF_SEVERAL: Mapping[str, range] = MappingProxyType({"float64": range(24, 129), "float32": range(48, 129)})
RHS = 8
# Orders of float32 whose matrices are a warp's then, and matrices of a warp, teams of a block and blocks: at n = 32
# 71 us, by blocks 88, at n = 40 120 and 139.
OF_WARPS, TEAMS = range(29, 48), ((32, (2, 2, 8)), (47, (2, 2, 6)))
# Of few matrices, 1,024, what is the better choice: 7.0 us at n = 24 and 9.7 at n = 32, one after the other 13.5 and
# 19.8; at n = 16 4.8 us by threads 10.4, and in float64 6.3 and 11.8; by two kernels n = 48 28.4 us in place of 15.4,
# n = 64 60.9 in place of 22.6, n = 128 167 in place of 80 (datasets/solves/posv_several_h200.csv).
_WARP, _WHOLE = partial(WarpSchedule, 1, 1, update="tensor", rhs=RHS), partial(WholeSchedule, rhs=RHS)
OF_FEW: Mapping[str, Sequence[tuple[range, WarpSchedule | WholeSchedule]]] = MappingProxyType(
    {
        "float32": (
            (range(16, 33), _WARP(4, blocks=4)),
            (range(48, 65, 16), _WARP(8, blocks=1)),
            (range(33, 65), _WHOLE(1, 8)),
            (range(65, 97), _WHOLE(3, 7)),
            (range(97, 129), _WHOLE(4, 2)),
        ),
        "float64": ((range(16, 17), _WHOLE(1, 8)),),
    }
)
# Of few packed float32 matrices, in chunks of at most LARGEST_CHUNK: n = 16, 32 and 64 take 4.8, 9.2 and 22.7 us
# by these, 12.9, 18.6 and 52.1 without them.
OF_FEW_PACKED, LARGEST_CHUNK = ((range(16, 33), _WARP(4, blocks=4)), (range(33, 65), _WARP(8, blocks=1))), 4
# Orders whose given factors are whole then, and from how many right-hand sides on: eight of 16,384 matrices of n = 64
# take 150 us in place of 211, of 1,024 16.5 in place of 24.5. Of n = 32 threads take less.
GIVEN: Mapping[str, range] = MappingProxyType({"float64": range(0), "float32": range(57, 65)})
SEVERAL_GIVEN = 3
# Orders, warps, and blocks of a multiprocessor.
WARPS: Mapping[str, Sequence[tuple[int, int, int]]] = MappingProxyType(
    {
        "float64": ((32, 1, 16), (64, 1, 8), (96, 3, 5), (128, 4, 2)),
        "float32": ((64, 1, 16), (96, 3, 7), (128, 4, 5)),
    }
)


def of_few(plain: KernelSpec, chunk: int | None) -> WarpSchedule | WholeSchedule | None:
    """What few matrices have of their own for several right-hand sides."""
    n, dtype = plain.problem.n, plain.problem.dtype
    if plain.layout == "canonical":
        return next((schedule for orders, schedule in OF_FEW[dtype] if n in orders), None)
    if plain.layout == "interleaved" or dtype != "float32" or chunk not in range(2, LARGEST_CHUNK + 1):
        return None
    own = next((schedule for orders, schedule in OF_FEW_PACKED if n in orders), None)
    return own and replace(own, stride=chunk)


def of_several_at_once(
    plain: KernelSpec, chunk: int | None, arch: str | None, nrhs: int, *, few: bool = False
) -> KernelSpec | None:
    """The kernel that solves for several right-hand sides at once by tensor cores, if it is the better choice."""
    n, dtype = plain.problem.n, plain.problem.dtype
    if few and (schedule := of_few(plain, chunk)):
        return _of_schedule(plain, arch, schedule)
    if few and dtype == "float32":
        return None
    if plain.layout != "canonical" or dtype != "float32" or n not in OF_WARPS:
        return by_whole(plain, arch, nrhs=nrhs)
    matrices, teams, blocks = next(each for most, each in TEAMS if n <= most)
    return _of_schedule(plain, arch, WarpSchedule(matrices, 1, teams, update="tensor", blocks=blocks, rhs=RHS))


def _of_schedule(plain: KernelSpec, arch: str | None, schedule: WarpSchedule | WholeSchedule) -> KernelSpec | None:
    """The kernel, launched early where a GPU can, if it can be built and has what it needs there."""
    with suppress(SpecError):
        found = replace(plain, schedule=replace(schedule, pdl=has_pdl(arch) or None))
        return found if runs_on(found, arch, FITTED) else None
    return None


def by_given_factors(request: Request, nrhs: int) -> KernelSpec | None:
    """The kernel that solves for several right-hand sides at once by given factors, if it is the better choice."""
    n, dtype = request.problem.n, request.problem.dtype
    if nrhs < SEVERAL_GIVEN or request.layout != "canonical" or n not in GIVEN[dtype]:
        return None
    return _whole(request.plain, request.arch, RHS)


def by_whole(plain: KernelSpec, arch: str | None, *, nrhs: int = 1) -> KernelSpec | None:
    """The kernel of the whole family that does the operation of `plain`, if it is the better choice."""
    n, dtype = plain.problem.n, plain.problem.dtype
    several = nrhs > 1
    if plain.layout != "canonical" or n not in (OF_SEVERAL if several else ORDERS)[dtype]:
        return None
    return _whole(plain, arch, RHS if several else 1)


def _whole(plain: KernelSpec, arch: str | None, rhs: int) -> KernelSpec | None:
    n, dtype = plain.problem.n, plain.problem.dtype
    _, warps, blocks = next(each for each in WARPS[dtype] if n <= each[0])
    return _of_schedule(plain, arch, WholeSchedule(warps, blocks, rhs=rhs))
