"""The public calls on a GPU for arrays that are known by their addresses: of PyTorch, CuPy, JAX and others.

All are C-contiguous: matrices (..., n, n) of orders 1 to 128, one at least, right-hand sides and solutions
(batch, n, nrhs). Results go where the caller says. What is chosen for a case is kept: of a warm call little more than
the launch is left.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from batchchol.backends import get_backend
from batchchol.backends.base import Form
from batchchol.backends.cuda import memory, support
from batchchol.backends.cuda.arrays import dense
from batchchol.backends.cuda.device import Device, device
from batchchol.backends.cuda.kernels import CudaKernel
from batchchol.backends.cuda.laid_out import laid_out
from batchchol.batches.checks import check_math
from batchchol.defaults.generation import generation
from batchchol.plan import array_choice, chosen_kernel, problem_of
from kernelgen import MAX_N, Layout, SpecError
from kernelgen.targets import ELEMENT_BYTES

_CANONICAL = Layout.canonical()
# Allocates a number of bytes for a stated purpose: they are the stream's until nothing refers to the address.
Room = Callable[[int, str], int]


class Case(NamedTuple):
    """What decides which kernel runs on matrices; rectangular ones have `m` rows."""

    n: int
    batch: int
    dtype: str
    upper: bool
    math: str
    m: int | None = None

    @property
    def form(self) -> Form:
        """That of the matrices as a batch."""
        return Form(self.n, self.batch, self.dtype, _CANONICAL, m=self.m)

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices."""
        return self.batch * self.n * (self.m or self.n) * ELEMENT_BYTES[self.dtype]


# Queues an operation on a stream, for its arrays' addresses; and what makes that, by what makes room.
Queue = Callable[..., None]
Operation = Callable[[Room], Queue]


def factoring(case: Case) -> Operation:
    """Factors and info of matrices; the factors may take their place: `a, l, info`."""
    return _factoring(case, device(), generation())


def solving(case: Case, nrhs: int) -> Operation:
    """Solutions and info of matrices: `a, b, x, info`."""
    return _solving(case, nrhs, device(), generation())


def substituting(case: Case, nrhs: int) -> Operation:
    """Solutions by factors: `l, b, x`."""
    return _substituting(case, nrhs, device(), generation())


def inverting(case: Case) -> Operation:
    """Inverses and info of matrices: `a, inverse, info`."""
    return _inverting("poinv", case, device(), generation())


def inverting_by_factors(case: Case) -> Operation:
    """Inverses by factors: `l, inverse, info`, the last one room for int32 that mean nothing."""
    return _inverting("potri", case, device(), generation())


def taking_logarithms(case: Case) -> Operation:
    """Signs and logarithms of determinants, and info, of matrices: `a, sign, logabsdet, info`."""
    return _taking_logarithms(case, device(), generation())


def kernel_of(op: str, case: Case, nrhs: int = 0) -> Any:
    """The kernel of an operation; None where there is none that takes matrices."""
    if case.n > MAX_N:
        return None
    check_math(case.math)
    choice = op, get_backend("cuda"), case.form, case.upper, None, case.math
    try:
        return chosen_kernel(*choice, argument="a", nrhs=nrhs)
    except SpecError:
        if op == "potrs":
            raise
        return None


def forget() -> None:
    """Choose anew at the next calls."""
    for kept in (_factoring, _solving, _substituting, _inverting, _taking_logarithms):
        kept.cache_clear()


@lru_cache(maxsize=1024)
def _factoring(case: Case, _: Device, __: object) -> Operation:
    check_math(case.math)
    gpu, problem = get_backend("cuda"), problem_of(case.n, case.dtype, case.upper, case.math)
    found = dense.Factorization(gpu, *array_choice(gpu, problem, case.batch, None, host=False), case.batch)
    prepared = found.prepared
    if prepared is not None:
        return lambda room: prepared

    def in_room(room: Room) -> Queue:
        return lambda stream, *addresses: found.queue(*addresses, stream=stream or None, room=room)

    return in_room


@lru_cache(maxsize=1024)
def _solving(case: Case, nrhs: int, _: Device, __: object) -> Operation:
    kernel = kernel_of("posv", case, nrhs)
    if kernel is not None:
        return launching(kernel, case, nrhs)
    factor_in, solve_in = factoring(case), substituting(case, nrhs)

    def in_room(room: Room) -> Queue:
        factor, solve = factor_in(room), solve_in(room)

        def by_factors(stream: int, a: int, b: int, x: int, info: int) -> None:
            l = room(case.nbytes, f"the factors of {case.batch:,} matrices")
            factor(stream, a, l, info)
            solve(stream, l, b, x)

        return by_factors

    return in_room


@lru_cache(maxsize=1024)
def _substituting(case: Case, nrhs: int, _: Device, __: object) -> Operation:
    return launching(kernel_of("potrs", case, nrhs), case, nrhs)


@lru_cache(maxsize=1024)
def _inverting(op: str, case: Case, _: Device, __: object) -> Operation:
    kernel = kernel_of(op, case)
    if kernel is not None:
        return launching(kernel, case)
    if op == "poinv":
        return of_identities(solving(case, case.n), case)
    solve_in = of_identities(substituting(case, case.n), case)

    def in_room(room: Room) -> Queue:
        solve = solve_in(room)
        return lambda stream, l, inverse, _: solve(stream, l, inverse)

    return in_room


def of_identities(solve_in: Operation, case: Case) -> Operation:
    """Solutions for identities, by what solves for right-hand sides in the place of solutions: `a, inverse, ...`."""
    gpu = device()
    # A copy to the GPU would wait for the work that is under way: it is made once.
    identity = memory.to_device(np.eye(case.n, dtype=case.dtype), "an identity")
    sizes, steps = (case.batch, case.n, case.n), (0, case.n, 1)
    copy = laid_out(gpu, 2, lambda gpu, i, sides: support.gather(gpu, i, sides, sizes, steps, case.dtype))

    def in_room(room: Room) -> Queue:
        solve = solve_in(room)

        def by_solving(stream: int, a: int, inverse: int, *info: int) -> None:
            copy(stream, int(identity.gpudata), inverse)
            solve(stream, a, inverse, inverse, *info)

        return by_solving

    return in_room


@lru_cache(maxsize=1024)
def _taking_logarithms(case: Case, gpu: Device, _: object) -> Operation:
    kernel = kernel_of("logdet", case)
    if kernel is None:
        return _logarithms_of_factors(case, gpu)
    logarithms_in = launching(kernel, case)
    signs = laid_out(gpu, 2, lambda gpu, info, sign: support.signs(gpu, info, sign, case.batch, case.dtype))

    def in_room(room: Room) -> Queue:
        logarithms = logarithms_in(room)

        def at_once(stream: int, a: int, sign: int, logabsdet: int, info: int) -> None:
            logarithms(stream, a, logabsdet, info)
            signs(stream, info, sign)

        return at_once

    return in_room


def _logarithms_of_factors(case: Case, gpu: Device) -> Operation:
    factor_in, what = factoring(case), (case.n, case.batch, _CANONICAL, case.dtype)

    def queue(gpu: Any, l: int, info: int, found: int, sign: int, logabsdet: int) -> None:
        support.log_determinants(gpu, l, info, sign, logabsdet, *what, found=found)

    logarithms = laid_out(gpu, 5, queue)

    def in_room(room: Room) -> Queue:
        factor = factor_in(room)

        def of_factors(stream: int, a: int, sign: int, logabsdet: int, info: int) -> None:
            l = room(case.nbytes, f"the factors of {case.batch:,} matrices")
            factor(stream, a, l, info)
            logarithms(stream, l, info, 0, sign, logabsdet)

        return of_factors

    return in_room


def launching(kernel: Any, case: Case, nrhs: int = 0) -> Operation:
    """A kernel's launches, or those of two kernels that are called as one and take room."""
    if isinstance(kernel, CudaKernel):
        prepared = kernel.prepared(nrhs, case.batch, _CANONICAL)
        return lambda room: prepared

    def in_room(room: Room) -> Queue:
        def queue(stream: int, *addresses: int) -> None:
            kernel.launch(addresses, nrhs, case.batch, _CANONICAL, stream or None, room=room)

        return queue

    return in_room
