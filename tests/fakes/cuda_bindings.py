"""cuda-bindings on a machine that has none: graphs of kernels, run by the fakes of pycuda.py.

`install(monkeypatch, gpu)` puts a module `cuda.bindings.driver` in place of the real one, with as much of it as the
library uses. A launched graph runs its latest calls first, as far as their dependencies allow: an order that is right
by chance alone shows. The `FakeGraphs` that it returns says what happened, and can be told to fail.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from ..emulation.programs import compile_program
from .pycuda import CONTEXT, FakeDriver, FakeGpu


@dataclass(eq=False)
class CUfunction:
    """cuda-bindings'."""

    handle: int


@dataclass(eq=False)
class Parameters:
    """cuda-bindings' CUDA_KERNEL_NODE_PARAMS."""

    func: CUfunction | None = None
    gridDimX: int = 0
    gridDimY: int = 0
    gridDimZ: int = 0
    blockDimX: int = 0
    blockDimY: int = 0
    blockDimZ: int = 0
    sharedMemBytes: int = 0
    kernelParams: int = 0


@dataclass(eq=False)
class Node:
    """A kernel with its arguments, copied when it was added."""

    launch: Callable[[int], None]
    before: tuple[Node, ...]


@dataclass(eq=False)
class Nodes:
    """A graph, or an executable one."""

    nodes: list[Node] = field(default_factory=list)
    destroyed: bool = False


@dataclass
class FakeGraphs:
    """What was asked for; `fail` has the status of calls that are to fail."""

    gpu: FakeGpu
    calls: list[str] = field(default_factory=list)
    fail: dict[str, int] = field(default_factory=dict)
    graphs: list[Nodes] = field(default_factory=list)

    def cuGraphCreate(self, flags: int) -> tuple[Any, ...]:
        assert flags == 0
        return self._answer("cuGraphCreate", lambda: self._keep(Nodes()))

    def cuGraphAddKernelNode(
        self, graph: Nodes, before: list[Node], count: int, parameters: Parameters
    ) -> tuple[Any, ...]:
        def add() -> Node:
            assert count == len(before)
            assert set(before) <= set(graph.nodes)
            graph.nodes.append(Node(self._launch_of(parameters), tuple(before)))
            return graph.nodes[-1]

        return self._answer("cuGraphAddKernelNode", add)

    def cuGraphInstantiate(self, graph: Nodes, flags: int) -> tuple[Any, ...]:
        assert flags == 0
        return self._answer("cuGraphInstantiate", lambda: self._keep(Nodes(list(graph.nodes))))

    def cuGraphLaunch(self, executable: Nodes, stream: int) -> tuple[Any, ...]:
        def launch() -> None:
            left = list(executable.nodes)
            while left:
                ready = next(node for node in reversed(left) if not set(node.before) & set(left))
                ready.launch(stream)
                left.remove(ready)

        return self._answer("cuGraphLaunch", launch)[:1]

    def cuGraphExecDestroy(self, executable: Nodes) -> tuple[Any, ...]:
        return self._destroy(executable)

    def cuGraphDestroy(self, graph: Nodes) -> tuple[Any, ...]:
        return self._destroy(graph)

    def _answer(self, name: str, work: Callable[[], Any]) -> tuple[Any, ...]:
        assert self.gpu.current == CONTEXT, f"{name} without the context"
        self.calls.append(name)
        if status := self.fail.get(name, self.gpu.status):
            return status, None
        return 0, work()

    def _keep(self, graph: Nodes) -> Nodes:
        self.graphs.append(graph)
        return graph

    def _destroy(self, graph: Nodes) -> tuple[Any, ...]:
        assert self.gpu.current == CONTEXT
        assert not graph.destroyed
        graph.destroyed = True
        return (0,)

    def _launch_of(self, parameters: Parameters) -> Callable[[int], None]:
        assert parameters.func is not None
        function, shared_bytes = parameters.func.handle, parameters.sharedMemBytes
        blocks, threads = parameters.gridDimX, parameters.blockDimX
        assert [parameters.gridDimY, parameters.gridDimZ, parameters.blockDimY, parameters.blockDimZ] == [1] * 4
        entry = list(self.gpu.sources)[function]
        source = self.gpu.sources[entry]
        assert source.launch is not None
        assert (threads, shared_bytes) == (source.launch.threads, source.launch.shared_bytes)
        count = len(compile_program((source,)).parameters(entry))
        given = (ctypes.c_void_p * count).from_address(parameters.kernelParams)
        words = (ctypes.c_uint64 * count)(*(ctypes.c_uint64.from_address(int(each or 0)).value for each in given))

        def launch(stream: int) -> None:
            first = ctypes.addressof(words)
            addresses = (ctypes.c_void_p * count)(*range(first, first + 8 * count, 8))
            FakeDriver().launch(function, blocks, threads, shared_bytes, stream, ctypes.addressof(addresses), entry)

        return launch


def install(patch: pytest.MonkeyPatch, gpu: FakeGpu) -> FakeGraphs:
    """Put the fakes in place."""
    graphs = FakeGraphs(gpu)
    driver = ModuleType("cuda.bindings.driver")
    driver.__dict__.update({name: getattr(graphs, name) for name in dir(graphs) if name.startswith("cuGraph")})
    driver.__dict__.update(CUDA_KERNEL_NODE_PARAMS=Parameters, CUfunction=CUfunction)
    package, bindings = ModuleType("cuda"), ModuleType("cuda.bindings")
    package.__dict__.update(bindings=bindings, __path__=[])
    bindings.__dict__.update(driver=driver, __path__=[])
    for module in (package, bindings, driver):
        patch.setitem(sys.modules, module.__name__, module)
    return graphs
