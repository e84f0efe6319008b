"""The operations: what each computes, on which arguments, with how many flops.

An operation is an entry here, its tile program, and under the same name in `batchchol.operations` what needs NumPy
and LAPACK: the oracle and the check. Signatures of kernels, launches, compulsory bytes and tables of defaults follow
from the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType


@dataclass(frozen=True)
class Argument:
    """An array that an operation reads or writes.

    Attributes
    ----------
    name : str
        As in LAPACK, in small letters.
    shape : str
        What one matrix has of it: "triangle" of n × n elements, "square", all of them, "rectangle", m × n, "columns",
        n × nrhs, "observations", m × nrhs, "reflectors", one for each of the fewer of rows and columns, "scalar", one
        element, "pivots", n integers, or "info", one.
    written : bool
        Whether it is a result.
    packed : bool
        Whether it lies in the layout of the kernel, or else always in the canonical one, in rows.
    """

    name: str
    shape: str
    written: bool = False
    packed: bool = True

    def elements(self, n: int, nrhs: int, m: int | None = None) -> int:
        """Elements of one matrix, of n rows unless there are m, that have to be read or written."""
        rows = m or n
        elements = {
            "triangle": n * (n + 1) // 2,
            "square": n * n,
            "rectangle": rows * n,
            "columns": n * nrhs,
            "observations": rows * nrhs,
            "reflectors": min(rows, n),
            "scalar": 1,
        }
        return elements.get(self.shape, 0)

    def integers(self, n: int) -> int:
        """Integers of one matrix that have to be read or written."""
        return {"pivots": n, "info": 1}.get(self.shape, 0)

    @property
    def in_batch(self) -> bool:
        """Whether it is a batch of matrices, or of triangles of them, else an array."""
        return self.shape in ("triangle", "rectangle") or (self.shape == "square" and self.packed)


@dataclass(frozen=True)
class Operation:
    """An operation by LAPACK's name without the type letter.

    `does` says what it computes, `work` what a run of it is called. The first of its arguments is a triangle, or a
    square or a rectangle if it is on general matrices; "a" is a matrix, another one its factors. `flops` is the
    textbook's number for a square matrix of order n and nrhs right-hand sides, whatever a kernel does. `fixed` has
    the choices of the thread family that its kernels do not have, and what each is.

    A kernel takes the arguments, nrhs if there are right-hand sides, and where the matrices lie: on a GPU the stride
    and the batch, on a CPU only one of them if it works on `whole_groups`, then the first and the last group.
    """

    name: str
    does: str
    work: str
    arguments: tuple[Argument, ...]
    flops: Callable[[int, int], float]
    fixed: Mapping[str, object] = field(default_factory=dict, hash=False)

    @cached_property
    def columns(self) -> int | None:
        """The place of the first argument that has right-hand sides, if there is one."""
        shapes = ("columns", "observations")
        return next((place for place, each in enumerate(self.arguments) if each.shape in shapes), None)

    @cached_property
    def in_batches(self) -> tuple[bool, ...]:
        """Whether each argument is a batch, or else an array."""
        return tuple(argument.in_batch for argument in self.arguments)

    @cached_property
    def read(self) -> tuple[int, ...]:
        """The places of the arguments that are no results."""
        return tuple(place for place, argument in enumerate(self.arguments) if not argument.written)

    @cached_property
    def whole_groups(self) -> bool:
        """Whether a CPU's kernel works on padding too: all arguments have room for whole groups of matrices."""
        return all(argument.packed for argument in self.arguments) and not self.inverts

    @cached_property
    def has_info(self) -> bool:
        """Whether there is an info of each matrix."""
        return any(each.shape == "info" for each in self.arguments)

    @cached_property
    def factors(self) -> bool:
        """Whether it factors its matrices: if that can fail, it has an info of each."""
        return self.arguments[0].name == "a"

    @cached_property
    def forgets(self) -> bool:
        """Whether it factors its matrices, and does not write the factors."""
        return self.factors and not any(each.in_batch and each.written for each in self.arguments)

    @property
    def general(self) -> bool:
        """Whether it is on general matrices, of which all elements have a meaning, and no triangle."""
        return self.arguments[0].shape in ("square", "rectangle")

    @property
    def rectangular(self) -> bool:
        """Whether its matrices may have other numbers of rows than of columns."""
        return self.arguments[0].shape == "rectangle"

    @cached_property
    def inverts(self) -> bool:
        """Whether it computes inverses."""
        return any(each.name == "x" and each.shape in ("square", "triangle") for each in self.arguments)

    @cached_property
    def packs(self) -> bool:
        """Whether it computes one triangle of inverses, in the layout of the kernel."""
        return self.inverts and all(each.shape != "square" for each in self.arguments)

    @cached_property
    def in_registers(self) -> bool:
        """Whether a GPU has it in straight-line code alone, each thread with a triangle in its registers."""
        return self.forgets and not self.has_columns and not self.inverts

    @cached_property
    def multiplies(self) -> bool:
        """Whether it computes determinants: it multiplies the pivots."""
        return any(each.shape == "scalar" for each in self.arguments)

    @cached_property
    def multiplies_besides(self) -> bool:
        """Whether determinants are a by-product."""
        return self.multiplies and sum(each.written for each in self.arguments) > 2

    @property
    def has_columns(self) -> bool:
        """Whether there are right-hand sides."""
        return self.columns is not None


_LOGDET = Argument("logdet", "scalar", written=True, packed=False)


def _with_logdet(operation: Operation) -> tuple[Argument, ...]:
    """The arguments of an operation, and the logarithm of each determinant before the info."""
    return (*operation.arguments[:-1], _LOGDET, operation.arguments[-1])


POTRF = Operation(
    "potrf",
    "the Cholesky factor L of A = L L^T",
    "a factorization",
    (Argument("a", "triangle"), Argument("l", "triangle", written=True), Argument("info", "info", written=True)),
    lambda n, nrhs: n**3 / 3,
)
# No library's name, as the others that find determinants besides.
POTRFDET = Operation(
    "potrfdet",
    "the Cholesky factor L of A = L L^T, and the logarithm of A's determinant",
    "a factorization",
    _with_logdet(POTRF),
    POTRF.flops,
)
POTRS = Operation(
    "potrs",
    "the solution X of A X = B by the Cholesky factor L of A",
    "a solve",
    (
        Argument("l", "triangle"),
        Argument("b", "columns", packed=False),
        Argument("x", "columns", written=True, packed=False),
    ),
    lambda n, nrhs: 2 * n**2 * nrhs,
    MappingProxyType({"looking": "left", "stride": None, "blocks": None, "prefetch": False}),
)
POSV = Operation(
    "posv",
    "the solution X of A X = B, A symmetric positive definite",
    "a factorization and solve",
    (
        Argument("a", "triangle"),
        Argument("b", "columns", packed=False),
        Argument("x", "columns", written=True, packed=False),
        Argument("info", "info", written=True),
    ),
    lambda n, nrhs: n**3 / 3 + 2 * n**2 * nrhs,
)
# No library's name: what a likelihood of a Gaussian process takes, b^T x and the logarithm, in one kernel.
POSVDET = Operation(
    "posvdet",
    "the solution X of A X = B, A symmetric positive definite, and the logarithm of A's determinant",
    "a factorization and solve",
    _with_logdet(POSV),
    POSV.flops,
)
LOGDET = Operation(
    "logdet",
    "the logarithm of the determinant of A, symmetric positive definite",
    "a determinant",
    (Argument("a", "triangle"), _LOGDET, Argument("info", "info", written=True)),
    lambda n, nrhs: n**3 / 3,
)
POTRI = Operation(
    "potri",
    "the inverse X of A by the Cholesky factor L of A",
    "an inversion",
    (
        Argument("l", "triangle"),
        Argument("x", "square", written=True, packed=False),
        Argument("info", "info", written=True),
    ),
    lambda n, nrhs: 2 * n**3 / 3,
    MappingProxyType({"looking": "left"}),
)
# PLASMA's and Chameleon's name: LAPACK has no driver for it.
POINV = Operation(
    "poinv",
    "the inverse X of A, symmetric positive definite",
    "a factorization and inversion",
    (
        Argument("a", "triangle"),
        Argument("x", "square", written=True, packed=False),
        Argument("info", "info", written=True),
    ),
    lambda n, nrhs: n**3,
)
# LAPACK's name of an inversion whose result is packed as its factor is.
PPTRI = Operation(
    "pptri",
    "one triangle of the inverse X of A by the Cholesky factor L of A",
    "an inversion",
    (Argument("l", "triangle"), Argument("x", "triangle", written=True), Argument("info", "info", written=True)),
    POTRI.flops,
    POTRI.fixed,
)
PPINV = Operation(
    "ppinv",
    "one triangle of the inverse X of A, symmetric positive definite",
    "a factorization and inversion",
    (Argument("a", "triangle"), Argument("x", "triangle", written=True), Argument("info", "info", written=True)),
    POINV.flops,
)
POTRIDET = Operation(
    "potridet",
    "the inverse X of A by the Cholesky factor L of A, and the logarithm of A's determinant",
    "an inversion",
    _with_logdet(POTRI),
    POTRI.flops,
    POTRI.fixed,
)
POINVDET = Operation(
    "poinvdet",
    "the inverse X of A, symmetric positive definite, and the logarithm of A's determinant",
    "a factorization and inversion",
    _with_logdet(POINV),
    POINV.flops,
)

# Kernels of general matrices work column by column, in one order.
_BY_COLUMNS = MappingProxyType({"nb": 1, "looking": "right", "rhs": None, "prefetch": False})
_ALSO_SOLVING = MappingProxyType(_BY_COLUMNS | {"rhs": 1})
_GENERAL = Argument("a", "square")
_LU = Argument("lu", "square")
_RIGHT_HAND_SIDES = (Argument("b", "columns", packed=False), Argument("x", "columns", written=True, packed=False))

GETRF = Operation(
    "getrf",
    "the LU factorization P A = L U with partial pivoting",
    "a factorization",
    (
        _GENERAL,
        Argument("lu", "square", written=True),
        Argument("pivots", "pivots", written=True, packed=False),
        Argument("info", "info", written=True),
    ),
    lambda n, nrhs: 2 * n**3 / 3,
    _BY_COLUMNS,
)
GETRS = Operation(
    "getrs",
    "the solution X of A X = B by the LU factorization of A",
    "a solve",
    (_LU, Argument("pivots", "pivots", packed=False), *_RIGHT_HAND_SIDES),
    lambda n, nrhs: 2 * n**2 * nrhs,
    _ALSO_SOLVING,
)
GESV = Operation(
    "gesv",
    "the solution X of A X = B, A a general matrix",
    "a factorization and solve",
    (_GENERAL, *_RIGHT_HAND_SIDES, Argument("info", "info", written=True)),
    lambda n, nrhs: 2 * n**3 / 3 + 2 * n**2 * nrhs,
    _ALSO_SOLVING,
)

_RECTANGLE, _TAU = Argument("a", "rectangle"), Argument("tau", "reflectors", packed=False)
_REFLECTORS = Argument("qr", "rectangle")

GEQRF = Operation(
    "geqrf",
    "the QR factorization A = Q R by Householder reflectors",
    "a factorization",
    (_RECTANGLE, replace(_REFLECTORS, written=True), replace(_TAU, written=True)),
    lambda n, nrhs: 4 * n**3 / 3,
    _BY_COLUMNS,
)
ORGQR = Operation(
    "orgqr",
    "the matrix Q with orthonormal columns, by its Householder reflectors",
    "a product of reflectors",
    (_REFLECTORS, _TAU, Argument("q", "rectangle", written=True)),
    lambda n, nrhs: 4 * n**3 / 3,
    _BY_COLUMNS,
)
ORMQR = Operation(
    "ormqr",
    "the product X = Q^T B, Q given by its Householder reflectors",
    "a product with reflectors",
    (
        _REFLECTORS,
        _TAU,
        Argument("b", "observations", packed=False),
        Argument("x", "observations", written=True, packed=False),
    ),
    lambda n, nrhs: 2 * n**2 * nrhs,
    _ALSO_SOLVING,
)
GELS = Operation(
    "gels",
    "the X that has the least |B - A X|, by the QR factorization of A",
    "a factorization and solve",
    (
        _RECTANGLE,
        Argument("b", "observations", packed=False),
        Argument("x", "columns", written=True, packed=False),
        Argument("info", "info", written=True),
    ),
    lambda n, nrhs: 4 * n**3 / 3 + 3 * n**2 * nrhs,
    _ALSO_SOLVING,
)

_OF_TRIANGLES = (POTRF, POTRFDET, POTRS, POSV, POSVDET, LOGDET, POTRI, POTRIDET, POINV, POINVDET, PPTRI, PPINV)
_ALL = (*_OF_TRIANGLES, GETRF, GETRS, GESV, GEQRF, ORGQR, ORMQR, GELS)
OPERATIONS: Mapping[str, Operation] = MappingProxyType({each.name: each for each in _ALL})
