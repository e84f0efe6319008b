"""What every backend offers: the library above knows nothing else about a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from batchchol.batch import Batch
from batchchol.native import CompileStats
from kernelgen import KernelSpec, Layout


@dataclass(frozen=True)
class Availability:
    """Whether a backend can be used here: `detail` says what was found, `hint` how to get what is missing."""

    name: str
    found: bool
    detail: str
    hint: str = ""


def check_runnable(backend: Backend, spec: KernelSpec, batch: Batch) -> None:
    """Refuse a spec that is of another problem than the batch, or that the backend cannot run on its layout.

    Kernels work on bare pointers: nothing below this notices.

    Raises
    ------
    TypeError, ValueError
        Names the argument, what was got and what is expected.
    """
    if not isinstance(batch, Batch):
        raise TypeError(f"batch: got {type(batch).__name__}, expected a Batch: make one with Batch.from_dense")
    if not isinstance(spec, KernelSpec):
        raise TypeError(f"spec: got {type(spec).__name__}, expected a KernelSpec: start from default_spec")
    wanted = (spec.problem.n, spec.problem.dtype, spec.layout, spec.order)
    given = (batch.n, batch.dtype_name, batch.layout.kind, batch.layout.order)
    if wanted != given:
        raise ValueError(f"spec: got a kernel for (n, dtype, layout, order)={wanted}, expected the batch's {given}")
    if reason := backend.unsupported(spec, batch.layout):
        raise ValueError(f"spec: backend {backend.name!r} cannot run {spec.name}: {reason}")


class Kernel(Protocol):
    """A compiled, loaded factorization kernel."""

    @property
    def spec(self) -> KernelSpec: ...

    @property
    def stats(self) -> CompileStats: ...

    def __call__(self, a: Batch, out: Batch, info: NDArray[np.int32], threads: int) -> None:
        """Factor `a` into `out`; `info` has room for whole groups of `spec.lanes` matrices."""


class Backend(Protocol):
    """A place where kernels run."""

    @property
    def name(self) -> str: ...

    @property
    def targets(self) -> tuple[str, ...]:
        """The kernelgen targets whose code it runs, fastest first."""

    @property
    def target(self) -> str:
        """The first of them."""

    @property
    def threads(self) -> int: ...

    def lanes(self, dtype: str) -> int:
        """Matrices factored side by side by one group."""

    def free_bytes(self) -> int:
        """Bytes that new batches may take."""

    def device(self) -> dict[str, str | int]:
        """What an experiment's record should say about the machine."""

    def unsupported(self, spec: KernelSpec, layout: Layout | None = None) -> str | None:
        """Why this backend cannot run a spec, on a batch of that layout, or None if it can."""

    def kernel(self, spec: KernelSpec) -> Kernel:
        """The kernel of a spec, compiled at most once."""

    def sample(self, kernel: Kernel, a: Batch, out: Batch, info: NDArray[np.int32], threads: int) -> float:
        """Run a kernel once; seconds by the device's clock."""
