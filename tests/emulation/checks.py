"""What every family of GPU kernels is held to, emulated: the residual bound, and LAPACK in float64."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol.batches.layouts import array_shape, dense_view, stride
from batchchol.operations.residual import RATIO_BOUND, ratios
from kernelgen import KernelSource, KernelSpec, Layout, generate

from ..covering import Choice
from ..fenced_memory import sparse_zeros
from ..kernel_runs import GuardedMemory, Run, check_other_triangle, make_spec, run_kernel
from ..matrices import DATA, dominant, reference, wishart
from ..offsets import element_offset
from .kernels import EmulatedKernel
from .programs import ACROSS_WARPS, ORDERS, EmulationError, compile_program

# Lines of generated code that are compiled together.
PROGRAM_LINES = 5_000
# Matrices in a batch that differ, a number prime to every number of threads: each takes its turn in every lane.
DISTINCT = 37
# The distance from LAPACK in float64 that rounding explains, in units of (n + 1) u times the condition number.
FORWARD_BOUND = {"ieee": 1.0, "fast": 4.0}


def spec_of(choice: Choice, family: str = "thread") -> tuple[KernelSpec, int | None]:
    """The spec of a choice of a covering design, and its chunk; a layout that is an integer is a chunk."""
    fields = {name: value for name, value in choice.items() if name not in ("batch", "constant_chunk")}
    chunk = fields["layout"] if isinstance(fields["layout"], int) else None
    if chunk is not None:
        fields |= {"layout": "chunked", "stride": chunk if choice["constant_chunk"] else None}
    return make_spec(**fields, family=family, target="cuda"), chunk


def case_id(choice: Choice, family: str = "thread") -> str:
    spec, chunk = spec_of(choice, family)
    return f"{spec.name}-{choice['batch']}" + (f"-chunk{chunk}" if chunk else "")


def check_last_matrices_past_32_bits(spec: KernelSpec, layout: Layout) -> None:
    """The last matrices of a batch whose numbers and offsets need 64 bits, in memory that is mostly not there."""
    n, batch, last = spec.problem.n, 2**32 + 77, 40
    a = wishart(last, n).astype(np.float32)
    try:
        data, info = sparse_zeros(prod(array_shape(n, batch, layout)), np.float32), sparse_zeros(batch, np.int32)
    except OSError as error:
        pytest.skip(f"needs 86 GB of addresses, not of memory: {error}")
    places = np.array(
        [
            [[element_offset(n, batch, layout, m, i, j) for j in range(n)] for i in range(n)]
            for m in range(batch - last, batch)
        ]
    )
    data[places] = a
    kernel = EmulatedKernel.of(spec)
    assert kernel.source.launch is not None
    items = kernel.source.launch.items
    blocks = ((batch - last) // items, -(-batch // items))
    arguments = (data.ctypes.data, data.ctypes.data, info.ctypes.data, stride(batch, layout), batch)
    kernel.program.launch_unfenced(kernel.source, batch, *arguments, blocks=blocks)
    assert not info[-last:].any()
    assert ratios(a, data[places]).max() <= RATIO_BOUND[spec.problem.math]


def check_kernel(
    spec: KernelSpec, batch: int, chunk: int | None = None, kernel: EmulatedKernel | None = None
) -> None:
    """A batch of each kind of data: the residual, the distance from LAPACK, and the same bits in every thread."""
    distinct, math = min(batch, DISTINCT), spec.problem.math
    for name in DATA:
        expected = reference(name, distinct, spec.problem.n, spec.problem.dtype)
        run = run_kernel(spec, expected.a[np.arange(batch) % distinct], chunk, kernel=kernel)
        assert not run.info.any(), name
        assert ratios(expected.a, run.l[:distinct]).max() <= RATIO_BOUND[math], name
        assert expected.distance(run.l[:distinct]).max() <= FORWARD_BOUND[math], name
        check_other_triangle(spec, run.l)
        repeated = np.tril(run.l[:distinct])[np.arange(batch) % distinct]
        assert np.array_equal(np.tril(run.l), repeated), f"{name}: the result depends on the thread"


def check_arrays_that_begin_anywhere(spec: KernelSpec, batch: int = 13) -> None:
    """The same bits, wherever both arrays begin: the wide accesses of some have a fallback."""
    kernel, apart, dtype = EmulatedKernel.of(spec), spec.schedule.stride or 1, spec.problem.dtype
    layout = Layout.chunked(apart) if spec.layout == "chunked" else Layout(spec.layout, None, spec.order)
    a = np.ascontiguousarray(_pack(dominant(batch, spec.problem.n).astype(dtype), layout))
    results = []
    for offset in (0, a.itemsize, 8, 16):
        memory = [GuardedMemory(a.shape, dtype, offset) for _ in range(2)]
        memory[0].array[...] = a
        result = memory[0] if spec.in_place else memory[1]
        # Out of place a strip writes zeros above the diagonal, which ones depends on the address.
        result.array[...] = 0 if spec.family == "strip" and not spec.in_place else a
        info = np.full(batch, -1, np.int32)
        pointers = (memory[0].array.ctypes.data, result.array.ctypes.data, info.ctypes.data)
        kernel.program.launch_unfenced(kernel.source, batch, *pointers, apart, batch)
        for guarded in memory:
            guarded.check()
        assert not info.any()
        results.append(result.array.tobytes())
    assert len(set(results)) == 1


def _pack(a: NDArray[Any], layout: Layout) -> NDArray[Any]:
    """The matrices as an array of a layout, identities where there are none."""
    n = a.shape[-1]
    packed = np.zeros(array_shape(n, len(a), layout), a.dtype)
    members, apart = np.arange(len(a)), dense_view(packed, layout).shape[1]
    dense_view(packed, layout)[members // apart, members % apart] = a
    return packed


def mutated(spec: KernelSpec, pattern: str, replacement: str, count: int = 1, place: int = 0) -> EmulatedKernel:
    """The kernel with `count` matches of a pattern replaced, all of them if that is 0, from a place on."""
    source = generate(spec)
    found = list(re.finditer(pattern, source.text))[place:]
    assert found, f"there is no {pattern}"
    text = source.text
    for match in reversed(found[: count or None]):
        text = text[: match.start()] + replacement + text[match.end() :]
    return EmulatedKernel.of(spec, replace(source, text=text))


def check_small_batches(spec: KernelSpec) -> None:
    """Any number of matrices from 1 to past two warps, good and bad ones, has the bits of the whole batch."""
    n, batch = spec.problem.n, 70
    a = dominant(batch, n).astype(spec.problem.dtype)
    a[::3, 2, 2] = -1
    expected = np.where(np.arange(batch) % 3 == 0, 3, 0)
    whole = np.tril(run_kernel(spec, a).l)
    for few in range(1, batch + 1):
        run = run_kernel(spec, a[:few])
        assert np.array_equal(run.info, expected[:few])
        good = run.info == 0
        assert np.array_equal(np.tril(run.l)[good], whole[:few][good])


def in_every_order(spec: KernelSpec, source: KernelSource, a: NDArray[Any]) -> Run:
    """A run by an emulation that also lets threads of a warp run far apart."""
    program = compile_program((source,))

    class Kernel(EmulatedKernel):
        def __call__(self, a: Any, out: Any, info: Any, threads: int = 1, stream: Any = None) -> None:
            numbers = (np.int64(stride(a.batch, a.layout)), np.int64(a.batch))
            orders = (*ORDERS, ACROSS_WARPS)
            self.program.launch(self.source, a.batch, a.data, out.data, info, *numbers, orders=orders)

    return run_kernel(spec, a, spec.schedule.stride, kernel=Kernel(spec, source, program))


def run_or_error(spec: KernelSpec, source: KernelSource, a: NDArray[Any]) -> Run | str:
    """A run in every order, or what is wrong with it."""
    try:
        return in_every_order(spec, source, a)
    except EmulationError as error:
        return str(error)


class CompiledTogether:
    """Emulated kernels of lists of specs: neighbours of equal flags are compiled together, once one is asked for."""

    def __init__(self, *lists: Iterable[KernelSpec]) -> None:
        self._lists = tuple(map(tuple, lists))

    def __call__(self, spec: KernelSpec) -> EmulatedKernel:
        return EmulatedKernel(spec, generate(spec), compile_program(self._groups[spec.name]))

    @cached_property
    def _groups(self) -> Mapping[str, tuple[KernelSource, ...]]:
        groups = [group for specs in self._lists for group in _neighbours(map(generate, specs))]
        return {source.entry: tuple(group) for group in groups for source in group}


def _neighbours(sources: Iterable[KernelSource]) -> list[list[KernelSource]]:
    groups: list[list[KernelSource]] = []
    for source in dict.fromkeys(sources):
        room = groups and groups[-1][0].flags == source.flags and _lines(groups[-1]) < PROGRAM_LINES
        groups[-1:] = [[*groups[-1], source]] if room else [*groups[-1:], [source]]
    return groups


def _lines(sources: Sequence[KernelSource]) -> int:
    return sum(source.text.count("\n") for source in sources)
