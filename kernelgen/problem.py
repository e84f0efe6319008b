"""Frozen descriptions of what is computed and where its matrices lie, which refuse what cannot be built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kernelgen.operations import OPERATIONS, Operation
from kernelgen.refusals import keep_integer, one_of, require
from kernelgen.targets import ELEMENT_BYTES

# The largest order of every operation, layout and target; and that of arrays which a GPU factors on chip.
MAX_N = 128
MAX_ON_CHIP: Mapping[str, int] = MappingProxyType({"float32": 335, "float64": 235})
MAX_CHUNK = 512

MATHS = ("ieee", "fast")
LAYOUT_KINDS = ("canonical", "interleaved", "chunked")
ORDERS = ("row", "col")


@dataclass(frozen=True)
class Problem:
    """What is computed: an operation `op` on SPD matrices of order `n` or on their factors, in the triangle `uplo`.

    Operations on general matrices have no triangle, and `uplo` is "lower". Those on rectangles have `m` rows and n
    columns; `m` is None where there are n rows too.

    `math` is a promise about the result: "ieee" or "fast" (docs/accuracy.md).
    """

    n: int
    dtype: str = "float32"
    uplo: str = "lower"
    op: str = "potrf"
    math: str = "ieee"
    m: int | None = None

    def __post_init__(self) -> None:
        one_of("dtype", self.dtype, tuple(ELEMENT_BYTES))
        one_of("uplo", self.uplo, ("lower", "upper"))
        one_of("op", self.op, tuple(OPERATIONS))
        keep_integer(self, "n", 1, MAX_ON_CHIP[self.dtype] if self.op == "potrf" else MAX_N)
        one_of("math", self.math, MATHS)
        works = f"{self.op} is on general matrices, which have no triangle, use 'lower'"
        require(self.uplo == "lower" or not self.operation.general, "uplo", self.uplo, works)
        self._check_rows()

    def _check_rows(self) -> None:
        """Refuse rows that an operation has no kernels for; as many as columns are none of their own."""
        if self.m is None:
            return
        keep_integer(self, "m", 1, MAX_N)
        works = f"{self.op} is on square matrices, use None"
        require(self.operation.rectangular or self.m == self.n, "m", self.m, works)
        works = f"{self.op} takes at least as many rows as columns, use {self.n} or more"
        require(self.op in ("geqrf", "ormqr") or self.m >= self.n, "m", self.m, works)
        if self.m == self.n:
            object.__setattr__(self, "m", None)

    @property
    def operation(self) -> Operation:
        """The entry of `op`."""
        return OPERATIONS[self.op]

    @property
    def rows(self) -> int:
        """Rows of each matrix."""
        return self.m or self.n


@dataclass(frozen=True)
class Layout:
    """The place of element (i, j) of matrix m in memory.

    `order` is the order of the elements of one matrix: "row" (NumPy's) or "col" (LAPACK's). `chunk` is the
    number of matrices interleaved together, and belongs to the chunked layout alone.
    """

    kind: str
    chunk: int | None = None
    order: str = "col"

    def __post_init__(self) -> None:
        one_of("layout", self.kind, LAYOUT_KINDS)
        one_of("order", self.order, ORDERS)
        if self.kind == "chunked":
            keep_integer(self, "chunk", 2, MAX_CHUNK)
        else:
            require(self.chunk is None, "chunk", self.chunk, f"layout {self.kind!r} has no chunk, use None")

    @classmethod
    def canonical(cls, order: str = "row") -> Layout:
        """One matrix after another."""
        return cls("canonical", None, order)

    @classmethod
    def interleaved(cls, order: str = "col") -> Layout:
        """Matrix index fastest over the whole batch."""
        return cls("interleaved", None, order)

    @classmethod
    def chunked(cls, chunk: int, order: str = "col") -> Layout:
        """Interleaved inside chunks of `chunk` matrices, chunks one after another."""
        return cls("chunked", chunk, order)

    def __str__(self) -> str:
        return f"{self.kind}{self.chunk or ''}-{self.order}"
