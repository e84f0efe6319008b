"""CUDA graphs: many factorizations recorded once, and launched with one call as often as the data change.

What a small batch costs is its launch. A graph is launched as a whole, and calls in it that do not touch each other's
data run side by side. It is built node by node, not captured from a stream: so nothing is forbidden while it is
recorded, in this thread or another, and what goes wrong meanwhile leaves no stream that is of no use.

    with record() as graph:
        results = [factor(batch) for batch in batches]
    ...  # new matrices into the same batches
    graph.launch()
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from batchchol.backends.base import Kernel
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.device import Device, device, stream_address
from batchchol.backends.cuda.kernels import CudaKernel
from batchchol.backends.cuda.launching.functions import Arguments
from batchchol.backends.recorder import recording
from batchchol.batches.batch import Batch
from batchchol.errors import BackendUnavailable, install
from kernelgen.refusals import whole

INSTALL = install("gpu,graphs")
# How many independent calls run side by side by default: measured as the best on average for 1,024 matrices on an
# H200 (docs/small-batches.md).
BRANCHES = 4


@contextmanager
def record(*, branches: int | None = BRANCHES) -> Iterator[Graph]:
    """Record the `factor` calls of this thread into a graph, in place of running them.

    Inside, `factor` checks and allocates as ever, compiles and loads its kernel, and returns a result that is written
    when the graph is launched. All else runs at once, other threads' calls of `factor` too; other operations on a
    batch on the GPU, which may not be there yet, are refused. Calls need not be alike.

    Parameters
    ----------
    branches : int, optional
        How many calls run side by side at most; None: as many as the data allow. Calls of which one writes what
        another reads or writes keep their order in any case: a launch yields the same bits as the calls.

    Yields
    ------
    Graph
        To be launched when the recording has ended. It keeps what it reads and writes alive.

    Raises
    ------
    BackendUnavailable
        If there is no GPU, or no cuda-bindings; says how to get it.
    RuntimeError
        If a graph is being recorded in this thread already.
    ValueError
        If `branches` is not positive; from `factor`, if a batch does not live on the GPU or a stream is named.
    DeviceError
        If the driver refuses the graph.
    """
    if branches is not None and (whole(branches) or 0) < 1:
        raise ValueError(f"branches: got {branches!r}, expected a positive integer, or None for no limit")
    graph = Graph(branches)
    with recording(graph):
        yield graph
    graph._end()


@dataclass(frozen=True)
class _Call:
    """A recorded factorization; `place` is its bit in others' `earlier`, the calls that end before they begin."""

    reads: Batch
    writes: Batch
    node: Any
    place: int
    earlier: int


class Graph:
    """Factorizations that one call launches; see `record`, which makes them.

    It belongs to the GPU of its process, and always reads and writes the same memory: new matrices go into the
    batches that were recorded, as by `Batch.put`. `len(graph)` is the number of calls in it.
    """

    def __init__(self, branches: int | None) -> None:
        self._cuda = bindings()
        self._gpu: Device = device()
        self._branches = branches
        self._calls: list[_Call] = []
        # Kept for as long as the graph may read and write them.
        self._arrays: list[Any] = []
        self._shared = False
        self._executable: Any = None
        with self._gpu.current():
            self._graph = self._made("making a graph", self._cuda.cuGraphCreate(0))

    def __len__(self) -> int:
        return len(self._calls)

    def launch(self, stream: Any = None) -> None:
        """Queue all calls, in one; returns before they are done.

        Parameters
        ----------
        stream : optional
            As for `factor`: PyCUDA's, torch's or CuPy's stream or the address of one; by default the default stream.

        Raises
        ------
        RuntimeError
            If the recording has not ended, or ended with an error.
        DeviceError
            If the driver refuses, or something failed on the GPU before.
        """
        if self._executable is None:
            raise RuntimeError("graph: it is not recorded: launch it after its `with` block, once that has succeeded")
        if not self._calls:
            return
        queue = 0 if stream is None else stream_address(stream)
        if stream is not None:
            memory.share(stream, *([] if self._shared else self._arrays))
            self._shared = True
        with self._gpu.at_hand():
            self._made("launching a graph", self._cuda.cuGraphLaunch(self._executable, queue))

    def add(self, kernel: Kernel, a: Batch, out: Batch, info: Any, stream: Any) -> None:
        """Record a call; see `batchchol.backends.recorder.Recorder`."""
        if not isinstance(kernel, CudaKernel):
            raise ValueError(f"batch: lives on backend {a.backend!r}, expected 'cuda': a graph is the GPU's")
        if stream is not None:
            raise ValueError("stream: got one while a graph is recorded, expected None: give it to Graph.launch")
        before = self._before(a, out)
        earlier = 0
        for call in before:
            earlier |= call.earlier | call.place
        node = self._node(kernel, kernel.words(a, out, info), a.batch, [call.node for call in before])
        self._calls.append(_Call(a, out, node, 1 << len(self._calls), earlier))
        self._arrays += [a.data, out.data, info]

    def _before(self, reads: Batch, writes: Batch) -> list[_Call]:
        """The calls that must end before one begins, less those that end before others of them anyway."""
        found: list[_Call] = []
        known = 0
        for back, call in enumerate(reversed(self._calls), 1):
            if call.place & known:
                continue
            pairs = ((call.writes, reads), (call.writes, writes), (call.reads, writes))
            if back == self._branches or any(earlier.shares_memory(later) for earlier, later in pairs):
                found.append(call)
                known |= call.earlier
        return found

    def _node(self, kernel: CudaKernel, words: tuple[int, ...], items: int, before: list[Any]) -> Any:
        function, launch = kernel.function, kernel.function.launch
        # The driver copies them.
        arguments = Arguments(len(words))
        arguments.words[:] = list(words)
        parameters = self._cuda.CUDA_KERNEL_NODE_PARAMS()
        parameters.func = self._cuda.CUfunction(self._gpu.loader.handle(function))
        blocks = launch.grid(items, self._gpu.multiprocessors)
        parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ = blocks, 1, 1
        parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ = launch.threads, 1, 1
        parameters.sharedMemBytes = launch.shared_bytes
        parameters.kernelParams = arguments.address
        with self._gpu.current():
            added = self._cuda.cuGraphAddKernelNode(self._graph, before, len(before), parameters)
            return self._made(f"recording {function.entry}", added)

    def _end(self) -> None:
        """Make the graph ready to be launched."""
        with self._gpu.current():
            self._executable = self._made("instantiating a graph", self._cuda.cuGraphInstantiate(self._graph, 0))

    def _made(self, doing: str, answer: tuple[Any, ...]) -> Any:
        """The result of a call of the driver; raises if its status is an error."""
        self._gpu.driver.check(int(answer[0]), doing)
        return answer[1] if len(answer) > 1 else None

    def __del__(self) -> None:
        try:
            with self._gpu.current():
                if self._executable is not None:
                    # Ends by itself where it is still running.
                    self._cuda.cuGraphExecDestroy(self._executable)
                self._cuda.cuGraphDestroy(self._graph)
        except Exception:
            # It was never made, or the interpreter or the context is going down.
            return


def bindings() -> Any:
    """The driver's functions in cuda-bindings.

    Raises
    ------
    BackendUnavailable
        If it is not installed; says how to get it.
    """
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise BackendUnavailable(
            f"graphs need cuda-bindings, and it cannot be imported ({error}): {INSTALL}"
        ) from error
    return driver
