"""The operations: what each computes, on which arguments, with how many flops.

An operation is an entry here, its tile program, and under the same name in `batchchol.operations` what needs NumPy
and LAPACK: the oracle and the check. Signatures of kernels, launches, compulsory bytes and tables of defaults follow
from the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Argument:
    """An array that an operation reads or writes.

    Attributes
    ----------
    name : str
        As in LAPACK, in small letters.
    shape : str
        What one matrix has of it: "triangle" of n × n elements, "columns", n × nrhs, or "info", one integer.
    written : bool
        Whether it is a result.
    packed : bool
        Whether it lies in the layout of the kernel, or else always in the canonical one, in rows.
    """

    name: str
    shape: str
    written: bool = False
    packed: bool = True

    def elements(self, n: int, nrhs: int) -> int:
        """Elements of one matrix that have to be read or written."""
        return {"triangle": n * (n + 1) // 2, "columns": n * nrhs, "info": 0}[self.shape]


@dataclass(frozen=True)
class Operation:
    """An operation by LAPACK's name without the type letter.

    `flops` is the textbook's number for a matrix of order n and nrhs right-hand sides, whatever a kernel does.
    """

    name: str
    does: str
    arguments: tuple[Argument, ...]
    flops: Callable[[int, int], float]

    @property
    def has_columns(self) -> bool:
        """Whether there are right-hand sides."""
        return any(argument.shape == "columns" for argument in self.arguments)

    @property
    def has_info(self) -> bool:
        """Whether it can fail for the values of a matrix."""
        return any(argument.shape == "info" for argument in self.arguments)


POTRF = Operation(
    "potrf",
    "the Cholesky factor L of A = L L^T",
    (Argument("a", "triangle"), Argument("l", "triangle", written=True), Argument("info", "info", written=True)),
    lambda n, nrhs: n**3 / 3,
)
POTRS = Operation(
    "potrs",
    "the solution X of A X = B by the Cholesky factor L of A",
    (
        Argument("l", "triangle"),
        Argument("b", "columns", packed=False),
        Argument("x", "columns", written=True, packed=False),
    ),
    lambda n, nrhs: 2 * n**2 * nrhs,
)

OPERATIONS: Mapping[str, Operation] = MappingProxyType({each.name: each for each in (POTRF, POTRS)})
