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
from batchchol.backends.cuda import dense, memory, support
from batchchol.backends.cuda.device import device
from batchchol.backends.cuda.kernels import CudaKernel
from batchchol.batches.checks import check_math
from batchchol.defaults.lookup import generation
from batchchol.plan import array_choice, chosen_kernel, problem_of
from kernelgen import MAX_N, Layout, SpecError
from kernelgen.targets import ELEMENT_BYTES

_CANONICAL = Layout.canonical()
# Allocates a number of bytes for a stated purpose: they are the stream's until nothing refers to the address.
Room = Callable[[int, str], int]


class Place(NamedTuple):
    """The stream that work is queued on, 0 for the default one, and what makes room there."""

    stream: int
    room: Room


class Case(NamedTuple):
    """What decides which kernel runs on matrices."""

    n: int
    batch: int
    dtype: str
    upper: bool
    math: str

    @property
    def form(self) -> Form:
        """That of the matrices as a batch."""
        return Form(self.n, self.batch, self.dtype, _CANONICAL)

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices."""
        return self.batch * self.n**2 * ELEMENT_BYTES[self.dtype]


# Queues an operation at a place, for its arrays' addresses.
Queue = Callable[..., None]


def factor(case: Case, place: Place, a: int, l: int, info: int) -> None:
    """Factors and info of matrices; the factors may take their place."""
    _factoring(case, generation())(place, a, l, info)


def solve(case: Case, nrhs: int, place: Place, a: int, b: int, x: int, info: int) -> None:
    """Solutions and info of matrices."""
    _solving(case, nrhs, generation())(place, a, b, x, info)


def solve_by_factors(case: Case, nrhs: int, place: Place, l: int, b: int, x: int) -> None:
    """Solutions by factors."""
    _substituting(case, nrhs, generation())(place, l, b, x)


def invert(case: Case, place: Place, a: int, inverse: int, info: int) -> None:
    """Inverses and info of matrices."""
    _inverting("poinv", case, generation())(place, a, inverse, info)


def invert_by_factors(case: Case, place: Place, l: int, inverse: int, info: int) -> None:
    """Inverses by factors; `info` is room for int32 that mean nothing."""
    _inverting("potri", case, generation())(place, l, inverse, info)


def log_determinants(case: Case, place: Place, a: int, sign: int, logabsdet: int, info: int) -> None:
    """Signs and logarithms of determinants, and info, of matrices."""
    _taking_logarithms(case, generation())(place, a, sign, logabsdet, info)


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
def _factoring(case: Case, _: object) -> Queue:
    check_math(case.math)
    gpu, problem = get_backend("cuda"), problem_of(case.n, case.dtype, case.upper, case.math)
    found = dense.Factorization(gpu, *array_choice(gpu, problem, case.batch, None, host=False), case.batch)
    prepared = found.prepared

    def packed(place: Place, *addresses: int) -> None:
        found.queue(*addresses, stream=place.stream or None, room=place.room)

    return packed if prepared is None else lambda place, *addresses: prepared(place.stream, *addresses)


@lru_cache(maxsize=1024)
def _solving(case: Case, nrhs: int, _: object) -> Queue:
    kernel = kernel_of("posv", case, nrhs)
    if kernel is not None:
        return _launching(kernel, case, nrhs)

    def by_factors(place: Place, a: int, b: int, x: int, info: int) -> None:
        l = place.room(case.nbytes, f"the factors of {case.batch:,} matrices")
        factor(case, place, a, l, info)
        solve_by_factors(case, nrhs, place, l, b, x)

    return by_factors


@lru_cache(maxsize=1024)
def _substituting(case: Case, nrhs: int, _: object) -> Queue:
    return _launching(kernel_of("potrs", case, nrhs), case, nrhs)


@lru_cache(maxsize=1024)
def _inverting(op: str, case: Case, _: object) -> Queue:
    kernel = kernel_of(op, case)
    if kernel is not None:
        return _launching(kernel, case)
    # A copy to the GPU would wait for the work that is under way: it is made once.
    identity = memory.to_device(np.eye(case.n, dtype=case.dtype), "an identity")

    def by_solving(place: Place, a: int, inverse: int, info: int) -> None:
        sides = place.room(case.nbytes, "identities")
        sizes, steps = (case.batch, case.n, case.n), (0, case.n, 1)
        support.gather(device(), int(identity.gpudata), sides, sizes, steps, case.dtype, stream=place.stream or None)
        if op == "poinv":
            solve(case, case.n, place, a, sides, inverse, info)
        else:
            solve_by_factors(case, case.n, place, a, sides, inverse)

    return by_solving


@lru_cache(maxsize=1024)
def _taking_logarithms(case: Case, _: object) -> Queue:
    gpu, kernel = device(), kernel_of("logdet", case)

    def of_factors(place: Place, a: int, sign: int, logabsdet: int, info: int) -> None:
        l = place.room(case.nbytes, f"the factors of {case.batch:,} matrices")
        factor(case, place, a, l, info)
        what = case.n, case.batch, _CANONICAL, case.dtype
        support.log_determinants(gpu, l, info, sign, logabsdet, *what, stream=place.stream or None)

    if kernel is None:
        return of_factors
    logarithms = _launching(kernel, case)

    def at_once(place: Place, a: int, sign: int, logabsdet: int, info: int) -> None:
        logarithms(place, a, logabsdet, info)
        support.signs(gpu, info, sign, case.batch, case.dtype, stream=place.stream or None)

    return at_once


def _launching(kernel: Any, case: Case, nrhs: int = 0) -> Queue:
    """A kernel's launches, or those of two kernels that are called as one and take room."""
    if isinstance(kernel, CudaKernel):
        prepared = kernel.prepared(nrhs, case.batch, _CANONICAL)
        return lambda place, *addresses: prepared(place.stream, *addresses)

    def queue(place: Place, *addresses: int) -> None:
        kernel.launch(addresses, nrhs, case.batch, _CANONICAL, place.stream or None, room=place.room)

    return queue
