"""The interface of every backend: all that the library above knows about a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from numpy.typing import DTypeLike, NDArray

from batchchol.artifacts.builds import Outcome
from batchchol.artifacts.compilers import TIME_LIMIT
from batchchol.artifacts.stats import CompileStats
from batchchol.batches.batch import Batch
from batchchol.batches.rectangular import RectangularBatch
from batchchol.operations.roofline import Ceilings
from batchchol.progress import Show
from kernelgen import KernelSpec, Layout
from kernelgen.operations import OPERATIONS, Operation


@dataclass(frozen=True)
class Availability:
    """Whether a backend can be used here: `detail` says what was found, `hint` how to get what is missing."""

    name: str
    found: bool
    detail: str
    hint: str = ""


def check_protocol(backend: Backend, protocol: str | None) -> str:
    """The protocol, or else the backend's default.

    Raises
    ------
    ValueError
        If the backend has no such protocol.
    """
    if protocol is not None and protocol not in backend.protocols:
        raise ValueError(
            f"protocol: got {protocol!r}, expected one of {', '.join(map(repr, backend.protocols))} "
            f"for backend {backend.name!r}"
        )
    return protocol or backend.protocols[0]


def check_calls(calls: Sequence[Callable[[], None]], samples: int) -> None:
    """Refuse to time nothing.

    Raises
    ------
    ValueError
        If there is nothing to time.
    """
    if not calls or samples < 1:
        raise ValueError(f"calls, samples: got {len(calls)} calls and {samples} samples, expected at least 1 of each")


def rotation(calls: Sequence[Callable[[], None]], samples: int, warm_up: int) -> Iterator[Callable[[], None]]:
    """The calls of `warm_up` turns and of `samples` more, such that sample i is of calls[i % len(calls)].

    Raises
    ------
    ValueError
        If there is nothing to time.
    """
    check_calls(calls, samples)
    return (calls[turn % len(calls)] for turn in range(-warm_up, samples))


def check_operation(spec: KernelSpec, op: str) -> None:
    """Refuse a spec of another operation, whose kernel takes other arguments."""
    if spec.problem.op != op:
        raise ValueError(f"spec: got a kernel of {spec.problem.op}, expected one of {op}: {OPERATIONS[op].does}")


class Form(NamedTuple):
    """What a batch is, apart from its data; `triangle` is the one that has a meaning, None if both have.

    Rectangular matrices have `m` rows.
    """

    n: int
    batch: int
    dtype: str
    layout: Layout
    triangle: str | None = None
    m: int | None = None

    @classmethod
    def of(cls, batch: Batch) -> Form:
        """The form of a batch."""
        return cls(batch.n, batch.batch, batch.dtype_name, batch.layout, batch.triangle)


def check_runnable(
    backend: Backend, spec: KernelSpec, batch: Batch, op: str = "potrf", argument: str = "batch"
) -> None:
    """Refuse a spec that is of another problem than `op` on the batch, or that the backend cannot run on its layout.

    So is one that reads the triangle of the batch that has no meaning. Kernels work on bare pointers: nothing below
    this notices.

    Raises
    ------
    TypeError, ValueError
        Names the argument, what was got and what is expected.
    """
    if not isinstance(batch, Batch):
        raise TypeError(f"{argument}: got {type(batch).__name__}, expected a Batch: make one with Batch.from_dense")
    if not isinstance(spec, KernelSpec):
        raise TypeError(f"spec: got {type(spec).__name__}, expected a KernelSpec: start from default_spec")
    if batch.backend != backend.name:
        raise ValueError(f"{argument}: lives on backend {batch.backend!r}, expected {backend.name!r}: make it there")
    check_form(backend, spec, Form.of(batch), op, argument)


def check_form(backend: Backend, spec: KernelSpec, form: Form, op: str, argument: str) -> None:
    """`check_runnable` for what lives on the backend."""
    check_operation(spec, op)
    wanted = (spec.problem.n, spec.problem.dtype, spec.layout, spec.order)
    given = (form.n, form.dtype, form.layout.kind, form.layout.order)
    if wanted != given:
        raise ValueError(f"spec: got a kernel for (n, dtype, layout, order)={wanted}, expected the batch's {given}")
    if spec.problem.rows != (form.m or form.n):
        raise ValueError(f"spec: got a kernel for m={spec.problem.rows} rows, expected {form.m or form.n}")
    if spec.problem.operation.general and form.triangle is not None:
        raise ValueError(
            f"{argument}: got one whose {form.triangle} triangle alone has a meaning, expected whole matrices, as "
            f"{op} reads them: use {argument}.marked(None) if those were put into it"
        )
    if form.triangle not in (None, spec.problem.uplo):
        raise ValueError(
            f"{argument}: got one whose {form.triangle} triangle alone has a meaning, expected the "
            f"{spec.problem.uplo} one, which the spec reads: use a spec with uplo={form.triangle!r}, or "
            f"{argument}.marked(None) if whole matrices were put into it"
        )
    if reason := backend.unsupported(spec, form.layout):
        raise ValueError(f"spec: backend {backend.name!r} cannot run {spec.name}: {reason}")


def memory_of(operation: Operation, arrays: Sequence[Any]) -> list[Any]:
    """Where the arguments of a kernel lie: matrices in a batch, all else in an array of the device."""
    pairs = zip(operation.in_batches, arrays, strict=True)
    return [array.data if in_batch else array for in_batch, array in pairs]


class Kernel(Protocol):
    """A compiled, loaded kernel."""

    @property
    def spec(self) -> KernelSpec: ...

    @property
    def stats(self) -> CompileStats: ...

    def __call__(self, *arrays: Any, threads: int, stream: Any = None) -> None:
        """Run on the arguments of the spec's operation, in their order.

        Matrices are batches of one layout, such as those to factor and room for the factors. Columns are C-contiguous
        arrays of the device, of shape (batch, n, nrhs), and a result may be what it is computed from; pivots are
        (batch, n), int32. The info is what the backend's `info` made. `threads` are a CPU's, `stream` a GPU's: there
        the call only enqueues the work, and returns.
        """


class Backend(Protocol):
    """A place where kernels run, and where the batches live that they run on.

    Only batches that the backend made itself (`empty`, `from_dense`) are arguments of the others.
    """

    @property
    def name(self) -> str: ...

    def __hash__(self) -> int: ...

    @property
    def targets(self) -> tuple[str, ...]:
        """The kernelgen targets whose code it runs, the fastest first."""

    @property
    def target(self) -> str:
        """The first of them."""

    @property
    def architecture(self) -> str | None:
        """A GPU's, such as "sm_90": what was measured on it serves it first."""

    @property
    def model(self) -> str:
        """The GPU's name, or the CPU's: what its user measured is kept under it."""

    @property
    def threads(self) -> int:
        """Threads of the host that a kernel may use."""

    @property
    def protocols(self) -> tuple[str, ...]:
        """How calls can be timed, the default first: "queued", launched back to back, and "single", one at a time."""

    def lanes(self, dtype: str) -> int:
        """The smallest chunk that uses the machine fully: a SIMD register of matrices, or a warp."""

    def default_layout(
        self,
        n: int,
        dtype: DTypeLike = "float32",
        batch: int | None = None,
        math: str | None = None,
        op: str = "potrf",
    ) -> Layout:
        """The layout in which it factors `batch` matrices of order `n` fastest; large batches by default.

        That of batches whose layout is not given. `math`, "ieee" or "fast": in which; by default both together.
        `op`, such as "gesv": what is done with them.
        """

    def array_layout(self, n: int, batch: int, dtype: DTypeLike = "float32", math: str = "ieee") -> Layout:
        """The layout in which arrays of shape (batch, n, n) are factored fastest, copies between layouts included."""

    def last_level_cache_bytes(self) -> int:
        """Bytes of the cache nearest to memory: cold data are buffers that together exceed four times as much."""

    def free_bytes(self) -> int:
        """Bytes that new batches may take."""

    def device(self) -> dict[str, str | int]:
        """The facts about the machine that an experiment records."""

    def conditions(self) -> dict[str, str | int | float]:
        """What varies from one measurement to the next (clocks, temperature, throttling); {} if nothing is known."""

    def joules(self) -> float | None:
        """Joules that the device has used since some moment, by its own counter; None if it has none."""

    def empty(self, n: int, batch: int, layout: Layout | None = None, dtype: DTypeLike = "float32") -> Batch:
        """A batch on this device whose matrices are yet to be written; its padding is there already.

        Raises
        ------
        OutOfMemory
            If it would not fit.
        """

    def from_dense(self, a: Any, layout: Layout | None = None) -> Batch:
        """Copy an array of shape (batch, n, n), from the host or the device, into a layout."""

    def from_rectangles(self, a: Any, layout: Layout | None = None) -> RectangularBatch:
        """Copy an array of shape (batch, m, n), from the host or the device, into a layout."""

    def fill(self, batch: Batch, recipe: str, *, start: int = 0, seed: int = 0, **parameters: object) -> None:
        """Overwrite a batch with matrices start, start + 1, ... of a data set; see `datasets.fill`."""

    def info(self, batch: Batch, spec: KernelSpec, *, poisoned: bool = True) -> Any:
        """Room for the info of a batch, int32, on this device: -1 until a kernel has written it.

        The first `batch.batch` entries are those of the matrices; there may be more, for whole groups. Unless
        `poisoned` they may hold anything.
        """

    def place(self, array: NDArray[Any]) -> Any:
        """A copy of a NumPy array on this device."""

    def host(self, array: Any) -> NDArray[Any]:
        """An array of this device as a NumPy array, once the work on it is done."""

    def check(self, a: Batch, l: Batch, info: Any, math: str) -> float:
        """The largest residual ratio of a factored batch of SPD matrices; see `residual.check`.

        Raises
        ------
        ResidualError
            If an info is not 0 or a ratio over the bound: no number measured with this result may be stored.
        """

    def unsupported(self, spec: KernelSpec, layout: Layout | None = None) -> str | None:
        """Why this backend cannot run a spec, on a batch of that layout, or None if it can."""

    def kernel(self, spec: KernelSpec) -> Kernel:
        """The kernel of a spec, compiled at most once; `check_operation` says whether it is that of an operation."""

    def build(
        self,
        specs: Sequence[KernelSpec],
        *,
        jobs: int | None = None,
        time_limit: float = TIME_LIMIT,
        progress: Show = lambda _: None,
    ) -> list[Outcome]:
        """Compile kernels ahead of their use, in parallel: an outcome each, in their order; never raises for one.

        Whatever ends this, such as an interrupt, ends the compilers; what is finished is in the cache.

        Parameters
        ----------
        jobs : int, optional
            Compilers at a time; by default :func:`batchchol.parallel.available_threads`.
        time_limit : float
            Seconds that one run of a compiler may take.
        progress : callable, optional
            Called with a :class:`Progress` about every second and whenever a kernel is done, in this thread.
        """

    def seconds(
        self, calls: Sequence[Callable[[], None]], *, samples: int, protocol: str | None = None, warm_up: int = 3
    ) -> list[float]:
        """Time calls that use this device, in turn, by its own clock; `warm_up` calls go before, untimed.

        Parameters
        ----------
        calls : sequence of callables
            Equivalent calls on different buffers. The last call of sample i is calls[i % len(calls)].
        samples : int
            How many samples to take.
        protocol : str, optional
            One of `protocols`, by default the first. "single": a sample is one call, from its start to its end.
            "queued": a burst of calls that is launched back to back, over their number.

        Returns
        -------
        list of float
            Seconds per call of each sample.

        Raises
        ------
        ValueError
            If the backend has no such protocol, or there is nothing to time.
        """

    def series(
        self, calls: Sequence[Callable[[], None]], *, samples: int, warm_up: int, burst_seconds: float
    ) -> tuple[list[float], int]:
        """`seconds` in the default protocol, for very many calls: in the shortest time.

        Where that is "queued" a burst takes about `burst_seconds`.

        Returns
        -------
        list of float, int
            Seconds per call of each sample, and how many calls a sample is of.
        """

    def in_turn(self, bursts: Sequence[Sequence[Callable[[], None]]], *, alone: bool = False) -> list[float]:
        """Seconds per call of each of several consecutive bursts of calls: to compare what differs little.

        `alone`: on a CPU, calls do all of their work in the calling thread, whose own time is taken: what other
        processes have meanwhile is not in it.
        """

    def ceilings(self, dtype: str = "float32", threads: int | None = None) -> Ceilings:
        """The ceilings of the device, measured once per process: the copy rate and the arithmetic peak."""

    def floor(self, protocol: str | None = None, samples: int = 20) -> float:
        """Seconds of a call that does nothing, timed like any other: their median; 0 where a call costs nothing."""
