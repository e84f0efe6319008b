"""The public calls on a GPU for general and rectangular matrices that are known by their addresses.

All is as in `device_addresses`, for arrays that are C-contiguous and not empty, with up to 128 rows and columns. What
is made here is to be kept.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from math import prod
from typing import Any

from batchchol.api.arrays.device_addresses import Case, Operation, Queue, Room, kernel_of, launching, of_identities
from batchchol.api.columns import Fit, Shape
from batchchol.backends import get_backend
from batchchol.backends.cuda import support
from batchchol.backends.cuda.device import device
from batchchol.backends.cuda.laid_out import laid_out
from batchchol.plan import chosen_kernel
from kernelgen import Layout
from kernelgen.targets import ELEMENT_BYTES

_CANONICAL, _INFO_BYTES, _ALIGNMENT = Layout.canonical(), 4, 512


def kernel(op: str, case: Case, nrhs: int = 0) -> Operation:
    """An operation's kernel alone, for its own arguments.

    They are `a, lu, pivots, info` of "getrf", `lu, pivots, b, x` of "getrs", `a, b, x, info` of "gesv" and "gels",
    `a, factors, tau` of "geqrf", `factors, tau, q` of "orgqr" and `factors, tau, b, product` of "ormqr".
    """
    choice = op, get_backend("cuda"), case.form, False, None, case.math
    return launching(chosen_kernel(*choice, argument="a", nrhs=nrhs), case, nrhs)


def inverting(case: Case) -> Operation:
    """Inverses and info of general matrices: `a, inverse, info`."""
    return of_identities(kernel("gesv", case, case.n), case)


def taking_logarithms(case: Case) -> Operation:
    """Signs and logarithms of determinants, and info, of general matrices: `a, sign, logabsdet, info`."""
    factor_in, what = kernel("getrf", case), (case.n, case.batch, _CANONICAL, case.dtype)
    logarithms = laid_out(device(), 4, lambda gpu, *places: support.lu_determinants(gpu, places, *what))
    sizes = case.nbytes, case.batch * case.n * _INFO_BYTES

    def in_room(room: Room) -> Queue:
        factor, make = factor_in(room), _parts(room, case, sizes)

        def of_factors(stream: int, a: int, sign: int, logabsdet: int, info: int) -> None:
            _, lu, pivots = make()
            factor(stream, a, lu, pivots, info)
            logarithms(stream, lu, pivots, sign, logabsdet)

        return of_factors

    return in_room


def determining(op: str, case: Case, nrhs: int = 0) -> Operation | None:
    """What a kernel finds besides logarithms of determinants, and these, behind the info: `..., info, logabsdet`.

    None where there is no kernel for both.
    """
    found = kernel_of(op, case, nrhs)
    if found is None:
        return None
    launch_in = launching(found, case, nrhs)

    def in_room(room: Room) -> Queue:
        launch = launch_in(room)

        def queue(stream: int, *addresses: int) -> None:
            *others, info, logabsdet = addresses
            launch(stream, *others, logabsdet, info)

        return queue

    return in_room


def triangular_factors(case: Case, *, positive: bool) -> Operation:
    """The R of QR factorizations alone, with as many rows as columns or as the matrices: `a, r`."""
    m, n = case.m or case.n, case.n
    factor_in, k = kernel("geqrf", case), min(m, n)
    take = _part(case, (m, n), (k, n), upper=True, positive=positive)
    sizes = case.nbytes, case.batch * k * ELEMENT_BYTES[case.dtype]

    def in_room(room: Room) -> Queue:
        factor, make = factor_in(room), _parts(room, case, sizes)

        def queue(stream: int, a: int, r: int) -> None:
            _, factors, tau = make()
            factor(stream, a, factors, tau)
            take(stream, factors, r, factors)

        return queue

    return in_room


def orthogonal_factors(case: Case, columns: int, *, positive: bool) -> Operation:
    """Q, with that many columns, and R of QR factorizations: `a, q, r`."""
    m, n = case.m or case.n, case.n
    size, k = case.batch * ELEMENT_BYTES[case.dtype], min(m, n)
    square = case._replace(n=columns, m=None if m == columns else m)
    factor_in, generate_in = kernel("geqrf", case), kernel("orgqr", square)
    take = _part(case, (m, n), (columns, n), upper=True, positive=positive)
    turn = _part(case, (m, columns), (m, columns), by_columns=True, positive=True) if positive else None
    # The reflectors of fewer or more columns than the matrices have, and zeros for those that there are not.
    cut, widen = _part(case, (m, n), (m, columns)), _part(case, (1, k), (1, columns))
    sizes = case.nbytes, size * k, size * columns

    def in_room(room: Room) -> Queue:
        factor, generate, make = factor_in(room), generate_in(room), _parts(room, case, sizes)

        def queue(stream: int, a: int, q: int, r: int) -> None:
            _, factors, tau, scalars = make()
            factor(stream, a, factors, tau)
            take(stream, factors, r, factors)
            if columns == n:
                generate(stream, factors, tau, q)
            else:
                cut(stream, factors, q, 0)
                widen(stream, tau, scalars, 0)
                generate(stream, q, scalars, q)
            if turn is not None:
                turn(stream, q, q, factors)

        return queue

    return in_room


def beside(operation: Operation, place: int, how: Fit, dtype: str) -> Operation:
    """An operation whose arguments from a place on are right-hand sides and solutions, as the caller has these."""
    if how.plain:
        return operation
    gpu = device()
    take = laid_out(gpu, 2, lambda gpu, b, work: support.gather(gpu, b, work, *how.taking, dtype))
    give = laid_out(gpu, 2, lambda gpu, work, x: support.gather(gpu, work, x, *how.giving, dtype))
    size = how.count * how.n * how.nrhs * ELEMENT_BYTES[dtype]

    def in_room(room: Room) -> Queue:
        solve = operation(room)

        def queue(stream: int, *addresses: int) -> None:
            b, x = addresses[place : place + 2]
            work = room(size, "right-hand sides in another place") if how.folded else x
            take(stream, b, work)
            solve(stream, *addresses[:place], work, work, *addresses[place + 2 :])
            if how.folded:
                give(stream, work, x)

        return queue

    return in_room


def of_copy(operation: Operation, place: int, shape: Shape, dtype: str, steps: Shape) -> Operation:
    """An operation whose argument at a place is not C-contiguous: it is done with a copy of that."""
    copy = laid_out(device(), 2, lambda gpu, a, whole: support.gather(gpu, a, whole, shape, steps, dtype))
    nbytes = prod(shape) * ELEMENT_BYTES[dtype]

    def in_room(room: Room) -> Queue:
        queue = operation(room)

        def queue_copied(stream: int, *addresses: int) -> None:
            whole = room(nbytes, "a contiguous copy")
            copy(stream, addresses[place], whole)
            queue(stream, *addresses[:place], whole, *addresses[place + 1 :])

        return queue_copied

    return in_room


def _part(
    case: Case,
    given: tuple[int, int],
    wanted: tuple[int, int],
    *,
    upper: bool = False,
    by_columns: bool = False,
    positive: bool = False,
) -> Queue:
    """`support.part`: `source, target, factors`, the last of which tell signs if they are to be positive."""
    shape = (case.m or case.n, case.n) if positive else (0, 0)

    def queue(gpu: Any, source: int, target: int, signs: int) -> None:
        places = source, target, given, wanted, case.batch, case.dtype
        support.part(gpu, *places, upper=upper, signs=(signs, *shape), by_columns=by_columns)

    launch = laid_out(device(), 3, queue)
    return launch if positive else lambda stream, source, target, _: launch(stream, source, target, 0)


def _parts(room: Room, case: Case, sizes: tuple[int, ...]) -> Callable[[], list[int]]:
    """A function that allocates factors of these sizes in bytes, and returns the memory to keep, then addresses."""
    *begins, nbytes = accumulate((-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes), initial=0)
    purpose = f"the factors of {case.batch:,} matrices"

    def make() -> list[int]:
        whole = room(nbytes, purpose)
        return [whole, *[whole + begin for begin in begins]]

    return make
