"""Matrices above the orders that kernels are for: what takes part, on stacks in place of batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.algorithms.blocked import Blocking
from batchchol.algorithms.graphs import FactorizationGraph
from batchchol.algorithms.large import factor_at
from batchchol.algorithms.plan_tables import chosen
from batchchol.algorithms.plans import Plan, hybrids, tiled, ways
from batchchol.api import cholesky, cholesky_ex
from batchchol.backends import Backend, get_backend
from batchchol.backends.base import check_protocol
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.device import device
from batchchol.batches.checks import check_range
from batchchol.batches.host_memory import aligned_empty
from batchchol.compare.contenders import BOTH, SINGLE, Arena, Contender, Entrant, Latest, Result
from batchchol.compare.heat import Venue
from batchchol.datasets.generation import generate
from batchchol.measure.stopwatch import Stopwatch
from batchchol.measure.timing import CACHES, Sample
from batchchol.operations import residual
from kernelgen import MAX_N, Layout
from kernelgen.emit.panels.fused_panel import FusedPanel

# Different matrices of a stack: the others are copies of them. How long one takes does not depend on its numbers.
_DISTINCT = 8


@dataclass(frozen=True)
class Stack:
    """`batch` matrices as an array (batch, n, n) of a backend: what comparisons ask of a batch."""

    backend: Backend
    data: Any
    batch: int

    def copy(self) -> Stack:
        """The same matrices in memory of their own."""
        made = Stack(self.backend, _room(self.backend, self.data.shape, self.data.dtype), self.batch)
        made.put(0, self.data)
        return made

    def put(self, start: int, array: Any) -> None:
        """Write matrices start, start + 1, ... from an array of the backend."""
        part = self.data[start : start + len(array)]
        if self.backend.name == "cuda":
            memory.copy_on_device(array, part)
        else:
            np.copyto(part, array)


@dataclass(frozen=True)
class LargeResult:
    """Factors, lower ones in a layout's order, of matrices; and info, which some libraries lack."""

    backend: Backend
    a: Any
    l: Any
    info: Any
    layout: Layout

    def ratio(self, backend: Backend, math: str) -> float:
        """Of the first, the middle and the last matrix, evaluated on the host."""
        members = sorted({0, len(self.a) // 2, len(self.a) - 1})
        a, l = (np.concatenate([self._host(each[m : m + 1]) for m in members]) for each in (self.a, self.l))
        factors = l if self.layout.order == "row" else l.swapaxes(1, 2)
        info = np.zeros(len(self.a), np.int32) if self.info is None else self._host(self.info)
        return residual.judge(info, residual.ratios(a, factors), members, math)

    def _host(self, array: Any) -> NDArray[Any]:
        return array if isinstance(array, np.ndarray) else self.backend.host(array)


@dataclass(frozen=True)
class LargeArena(Arena):
    """`Arena` for orders that no kernel is for."""

    @cached_property
    def inputs(self) -> Any:
        """The matrices of all sets, of which `_DISTINCT` at most differ."""
        cache = CACHES * self.backend.last_level_cache_bytes()
        sets = -(-cache // (self.batch * self.matrix_bytes)) if self.cold else 1
        count = sets * self.batch
        different = generate(self.recipe, n=self.n, stop=min(count, _DISTINCT), dtype=self.dtype)
        room = _room(self.backend, (count, self.n, self.n), different.dtype)
        for member in range(count):
            matrix = different[member % len(different)]
            if self.backend.name == "cuda":
                memory.copy_to_device(matrix, int(room.gpudata) + member * self.matrix_bytes)
            else:
                room[member] = matrix
        return Stack(self.backend, room, count)

    def result(self, index: int, factors: Any = None, info: Any = None, order: str = "row") -> Any:
        """The result of set `index`: lower factors of an order, by default in the room for them."""
        found: Result = LargeResult(
            self.backend,
            self.input(index),
            self.output(index) if factors is None else factors,
            info,
            Layout.canonical(order),
        )
        return found


def _room(backend: Backend, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    what = f"{shape[0]:,} matrices of order {shape[-1]:,}"
    return memory.empty(shape, dtype, what) if backend.name == "cuda" else aligned_empty(shape, dtype, what)


def entrants(
    backend: Backend, venue: Venue, n: int, batch: int, dtype: str, *, searched: bool = False
) -> list[Entrant]:
    """The library's call on arrays, by blocks on a GPU and by LAPACK on a CPU.

    If `searched`, on a GPU also the fastest of all ways in which these matrices may be factored there.
    """
    function: Callable[[Any], Any]
    if backend.name == "cuda":
        how = chosen(device(), n, batch, dtype, False).plan
        name, function, spec = "cholesky_ex", cholesky_ex, how.name
    else:
        name, function, spec = "cholesky", partial(cholesky, backend=backend.name), "LAPACK"
    make = partial(_array_call, spec=spec, function=function)
    found = [Entrant(f"{venue.prefix}{name}", venue.version, make, (), venue.tolerated)]
    if searched and backend.name == "cuda":
        found.append(Entrant(f"{venue.prefix}ways", venue.version, _ways, (), venue.tolerated))
    return found


def _ways(arena: LargeArena) -> Sequence[Contender]:
    """All ways to factor, into the arena's room for factors; of one matrix also hybrids, and look-ahead as graphs."""
    n, batch, dtype = arena.n, arena.batch, arena.dtype
    everything = ways(n, batch, dtype)
    found = [_way(arena, how) for how in everything]
    if batch == 1:
        found += [_way(arena, how, SINGLE) for how in hybrids(n, dtype)]
        found += [_graph(arena, how) for how in everything if how.blocking is not None and how.blocking.ahead]
    return found


def _way(arena: LargeArena, how: Plan, protocols: tuple[str, ...] = BOTH) -> Contender:
    info = arena.info()

    def result(index: int) -> Any:
        return arena.result(index, info=info)

    calls = arena.calls(_calls(arena, how, info))
    return Contender(how.name, calls, result, protocols=protocols, math="ieee")


def _graph(arena: LargeArena, how: Plan) -> Contender:
    info = arena.info()

    def result(index: int) -> Any:
        return arena.result(index, info=info)

    calls = arena.calls(_graph_calls(arena, how, info))
    return Contender(f"{how.name}, as a graph", calls, result, math="ieee")


def _calls(arena: LargeArena, how: Plan, info: Any) -> Callable[[int], None]:
    """What factors a set by a plan."""
    gpu = device()

    def call(index: int) -> None:
        factor_at(gpu, how, *_places(arena, index), int(info.gpudata), arena.n, arena.batch)

    return call


def _graph_calls(arena: LargeArena, how: Plan, info: Any) -> Callable[[int], None]:
    """What launches a CUDA graph of a set, which its first call makes."""
    made: dict[int, FactorizationGraph] = {}

    def call(index: int) -> None:
        if index not in made:
            places = *_places(arena, index), int(info.gpudata)
            made[index] = FactorizationGraph(device(), how, *places, arena.n, arena.batch)
        made[index].launch()

    return call


def _places(arena: LargeArena, index: int) -> tuple[int, int]:
    """The addresses of the matrices of a set, and of room for their factors."""
    return int(arena.input(index).gpudata), int(arena.output(index).gpudata)


def _array_call(arena: LargeArena, spec: str, function: Callable[[Any], Any]) -> Sequence[Contender]:
    made = Latest(function, arena.each(arena.input))

    def result(index: int) -> Any:
        factors, info = getattr(made.value, "L", made.value), getattr(made.value, "info", None)
        return arena.result(index, factors, info)

    return [Contender(spec, made.calls, result, forget=made.forget, math="ieee")]


def sample_large(
    n: int,
    batch: int = 1,
    *,
    dtype: str = "float32",
    looking: str = "right",
    ahead: bool = False,
    nb: int | None = None,
    ib: int = 16,
    rows: int = 32,
    threads: int = 256,
    protocol: str | None = None,
    samples: int = 20,
) -> Sample:
    """Time the factorization of larger matrices on a GPU, by its clock, on cold data, and check a result.

    Parameters
    ----------
    n, batch, dtype
        What is factored, out of place, by tiles and level-3 calls; n is above 128.
    looking, ahead, nb
        Of `batchchol.algorithms.blocked.Blocking`; without `nb` a panel is a tile. Where a matrix is a tile itself
        they do not count.
    ib, rows, threads
        Of `kernelgen.emit.panels.panel.Panel`.
    protocol, samples
        As of `batchchol.compare.single_matrix.sample_single`.

    Raises
    ------
    ValueError, SpecError
        If an argument is out of range.
    BatchcholError
        If there is no GPU, no CuPy where it is needed, or too little memory.
    ResidualError
        If the result is wrong.
    """
    tile, cut = tiled(n, batch, dtype)
    panel = replace(tile, ib=ib, rows=rows, threads=threads)
    how = Plan(panel, cut and Blocking(panel.nb, nb or panel.nb, looking, ahead))
    return _sample(how, n, batch, protocol, samples)


def sample_fused(
    n: int,
    batch: int = 1,
    *,
    dtype: str = "float32",
    nb: int = 64,
    ib: int = 16,
    lb: int = 16,
    threads: int = 256,
    resident: int = 1,
    update: str = "tensor",
    blocks: int = 132,
    border: bool = False,
    protocol: str | None = None,
    samples: int = 20,
) -> Sample:
    """`sample_large` of one launch that factors whole matrices, but for a border.

    Parameters
    ----------
    nb, ib, lb, threads, resident, update
        Of `kernelgen.emit.panels.fused_panel.FusedPanel`.
    blocks, border
        Of `batchchol.algorithms.plans.Plan`.
    """
    panel = FusedPanel(dtype, "row", nb, ib, lb, threads, resident, update)
    return _sample(Plan(panel, None, blocks, border=border), n, batch, protocol, samples)


def sample_panels(
    n: int,
    *,
    dtype: str = "float64",
    looking: str = "left",
    ahead: bool = False,
    columns: int = 2048,
    width: int = 512,
    depth: int = 4,
    resident: int = 1,
    graph: bool = False,
    protocol: str | None = None,
    samples: int = 20,
) -> Sample:
    """`sample_large` of one matrix by panels, launches of which factor `width` columns with all rows below.

    Parameters
    ----------
    looking, ahead, columns, width
        `looking`, `ahead`, `nb` and `tile` of `batchchol.algorithms.blocked.Blocking`.
    depth, resident
        Of `kernelgen.emit.panels.fused_panel.FusedPanel`, with tensor cores and its other defaults.
    graph
        Have a CUDA graph launch all of it.
    """
    panel = FusedPanel(dtype, "row", update="tensor", depth=depth, resident=resident)
    how = Plan(panel, Blocking(width, columns, looking, ahead, fused=True))
    return PlanBench(n, 1, dtype, protocol).sample(how, samples, graph=graph)


def _sample(how: Plan, n: int, batch: int, protocol: str | None, samples: int) -> Sample:
    return PlanBench(n, batch, how.panel.dtype, protocol).sample(how, samples)


class PlanBench:
    """Times ways to factor the same larger matrices, out of place, on cold data, and checks a result of each.

    Raises
    ------
    ValueError
        If an argument is out of range.
    BatchcholError
        If there is no GPU, or too little memory.
    """

    def __init__(self, n: int, batch: int, dtype: str, protocol: str | None = None) -> None:
        check_range("n", n, MAX_N + 1)
        self._backend = get_backend("cuda")
        self.protocol = check_protocol(self._backend, protocol)
        self._arena = LargeArena(self._backend, "diagonally_dominant", n, batch, dtype)
        self._info = self._arena.info()

    def sample(self, how: Plan, samples: int, *, graph: bool = False) -> Sample:
        """Seconds of a call by a plan, or of a launch of a CUDA graph that has it.

        Raises
        ------
        BatchcholError
            If it takes CuPy, and there is none, or too little memory.
        ResidualError
            If the result is wrong.
        """
        arena, backend = self._arena, self._backend
        call = _graph_calls(arena, how, self._info) if graph else _calls(arena, how, self._info)
        before = backend.conditions()
        timing = Stopwatch(device()).measure(arena.calls(call), samples, self.protocol)
        conditions = {"before": before, "after": backend.conditions()}
        ratio = arena.result(timing.last, info=self._info).ratio(backend, arena.math)
        return Sample(timing.seconds, ratio, self.protocol, backend.floor(self.protocol), conditions)
