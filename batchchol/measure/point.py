"""A point: one kernel on one batch, to be measured."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from batchchol.backends.base import check_operation
from kernelgen import KernelSpec, Layout
from kernelgen.targets import ELEMENT_BYTES


@dataclass(frozen=True)
class Point:
    """A kernel, and the batch and the manner in which it is measured.

    Attributes
    ----------
    spec : KernelSpec
        The kernel.
    batch : int
        Matrices of a call.
    chunk : int or None
        The batch's, if it is chunked.
    threads : int
        Of the host.
    protocol : str
        One of the backend's.

    Raises
    ------
    ValueError
        If the kernel is not one of factorizations or of general matrices, which alone are measured.
    """

    spec: KernelSpec
    batch: int
    chunk: int | None = None
    threads: int = 1
    protocol: str = "single"
    any_block: bool = False

    def __post_init__(self) -> None:
        if not self.spec.problem.operation.general:
            check_operation(self.spec, "potrf")

    @property
    def layout(self) -> Layout:
        """The layout of the batch."""
        return Layout(self.spec.layout, self.chunk, self.spec.order)

    @property
    def data(self) -> tuple[int, str, int, Layout]:
        """What decides the batch: order, dtype, matrices and layout."""
        return self.spec.problem.n, self.spec.problem.dtype, self.batch, self.layout

    @property
    def nbytes(self) -> int:
        """Bytes of the batch's matrices."""
        return self.spec.problem.n**2 * self.batch * ELEMENT_BYTES[self.spec.problem.dtype]

    @property
    def own(self) -> Point:
        """The point with its spec's own code."""
        return replace(self, any_block=False) if self.any_block else self

    def known_as(self, keys: Container[str]) -> str | None:
        """Which of these keys it is known by: its spec's own code may have run in place of that for any block."""
        return next((key for key in (self.key, self.own.key) if key in keys), None)

    @cached_property
    def key(self) -> str:
        """The name in a data set: no two points have the same."""
        return key_of(self.spec.name, self.chunk, self.batch, self.threads, self.protocol, self.any_block)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "key"}


def key_of(spec: str, chunk: int | None, batch: int, threads: int, protocol: str, any_block: bool | None) -> str:
    """The key of the point that has these columns in a data set."""
    return f"{spec} {chunk or '-'} {batch} {threads} {protocol}{' any' if any_block else ''}"
