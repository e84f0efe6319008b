"""What the suite uses of the library, imported in one place: an older commit may lack part of it.

`MISSING` says what is lacking; where it is not empty, every point is skipped for that reason. The functions below
measure commits from before there were GPUs as well: their one kind of batch lives on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

import batchchol

from . import former

former.install()
MISSING = ""
try:
    from batchchol.api import cholesky, factor
    from batchchol.backends import Backend, get_backend
    from batchchol.batches.batch import Batch
    from batchchol.batches.batch import default_layout as _host_layout
    from batchchol.batches.packing import Slots
    from batchchol.batches.packing import pack as _host_pack
    from batchchol.batches.packing import unpack as _host_unpack
    from batchchol.datasets.generation import fill as _host_fill
    from batchchol.datasets.generation import generate
    from batchchol.defaults.lookup import default_spec as _default_spec
    from batchchol.errors import BackendUnavailable, CompilerNotFound, OutOfMemory, ResidualError
    from batchchol.measure.timing import Sample
    from batchchol.measure.timing import sample_factor as _sample_factor
    from batchchol.operations.residual import RATIO_BOUND, ratios
    from kernelgen import KernelSpec, Layout, Problem, SpecError, ThreadSchedule
    from kernelgen import generate as generate_source
except ImportError as error:
    MISSING = f"this commit of {batchchol.__name__} lacks part of what is measured: {error}"

# Once in the server that asv forks for every point, rather than in each of them; this initialises no device.
with suppress(ImportError):
    import batchchol.backends.cuda.backend
with suppress(ImportError):
    import pycuda.driver
    import pycuda.gpuarray  # noqa: F401

__all__ = [
    "MISSING",
    "RATIO_BOUND",
    "Backend",
    "BackendUnavailable",
    "Batch",
    "CompilerNotFound",
    "KernelSpec",
    "Layout",
    "OutOfMemory",
    "Problem",
    "ResidualError",
    "Sample",
    "SpecError",
    "ThreadSchedule",
    "build",
    "cholesky",
    "circumstances",
    "copies",
    "default_layout",
    "default_spec",
    "empty",
    "factor",
    "family_spec",
    "fill",
    "generate",
    "generate_source",
    "get_backend",
    "graphs",
    "host_seconds",
    "launched",
    "nothing",
    "protocols",
    "ratios",
    "sample_factor",
    "sample_solve",
    "schedule_type",
    "single",
]


def protocols(backend: Backend) -> tuple[str, ...]:
    """How the backend can time calls, its own choice first."""
    return getattr(backend, "protocols", ("single",))


def default_layout(backend: Backend, n: int, dtype: str, batch: int) -> Layout:
    """The layout in which the backend factors a batch of matrices of order `n` fastest."""
    choose: Callable[..., Layout] = getattr(backend, "default_layout", _host_layout)
    known, said = signature(choose).parameters, {"n": n, "dtype": dtype, "batch": batch}
    return choose(**{name: value for name, value in said.items() if name in known})


def default_spec(n: int, backend: Backend, layout: Layout, **options: Any) -> KernelSpec:
    """The spec that the library uses on a backend for matrices of order `n` in that layout.

    Raises
    ------
    SpecError
        If an operation `op` is asked for, and this commit has one operation alone.
    """
    options |= {"chunk": layout.chunk, "arch": getattr(backend, "architecture", None)}
    known = signature(_default_spec).parameters
    if "op" in options.keys() - known:
        raise SpecError(f"op={options['op']!r} cannot be built: this commit has factorizations alone")
    options = {name: value for name, value in options.items() if name in known}
    return _default_spec(n, target=backend.target, layout=layout.kind, order=layout.order, **options)


def family_spec(
    n: int, backend: Backend, layout: Layout, *, family: str, dtype: str, math: str, batch: int
) -> KernelSpec:
    """The best spec of one family, of those that the table of defaults names anywhere for that layout.

    Raises
    ------
    SpecError
        If it names none, or this commit has no such table.
    """
    try:
        from batchchol.defaults import source_of
        from batchchol.defaults.tables import nearest, rows
    except ImportError as error:
        raise SpecError(f"family={family!r} cannot be built: this commit has no tables of families") from error
    table = source_of(backend.target, getattr(backend, "architecture", None)).table
    order = layout.order if layout.kind == "canonical" else None
    named = [
        entry
        for case, entries in table.cases.items()
        if (case.dtype, case.math, case.layout) == (dtype, math, layout.kind)
        and case.chunk in (None, layout.chunk)
        and case.order in (None, order)
        for entry in entries
        if entry.schedule.family == family
    ]
    row = next(rows(sorted(named, key=lambda entry: entry.n), n), None)
    if row is None:
        raise SpecError(f"family={family!r} cannot be built: the table of defaults names none for {layout}, {math}")
    schedule = nearest(row, batch).schedule
    problem = Problem(n, dtype) if hasattr(schedule, "math") else Problem(n, dtype, math=math)
    return KernelSpec(problem, layout.kind, layout.order, schedule, backend.target)


def launched(spec: KernelSpec, backend: Backend, *, pdl: bool) -> KernelSpec:
    """The spec, launched before its predecessors have ended or not.

    Raises
    ------
    SpecError
        If this commit has no such launches.
    BackendUnavailable
        If the backend's GPU has none: both were the same.
    """
    if not hasattr(spec.schedule, "pdl"):
        raise SpecError(f"pdl={pdl} cannot be built: this commit launches kernels when their predecessors have ended")
    from batchchol.artifacts.nvcc import parse_architecture
    from kernelgen.gpu import PDL_CAPABILITY

    arch = getattr(backend, "architecture", None)
    if arch is not None and divmod(parse_architecture(arch)[1], 10) < PDL_CAPABILITY:
        raise BackendUnavailable(f"{arch} launches no kernel before its predecessors have ended, whatever pdl says")
    return replace(spec, schedule=replace(spec.schedule, pdl=pdl))


def schedule_type(family: str | None) -> Any:
    """The class of a family's schedules; by default that of the thread family, once the only one.

    Raises
    ------
    SpecError
        If this commit has no such family.
    """
    import kernelgen

    known = getattr(kernelgen, "FAMILIES", {"thread": ThreadSchedule})
    if (family or "thread") not in known:
        raise SpecError(f"family={family!r} cannot be built: this commit has {', '.join(known)}")
    return known[family or "thread"]


def graphs(backend: Backend, spec: KernelSpec, batch: Batch, **options: Any) -> Any:
    """Graphs of calls on copies of a batch; see `batchchol.measure.graph_samples.record_calls`.

    Raises
    ------
    BackendUnavailable
        If this commit has no graphs, or this machine no cuda-bindings.
    """
    try:
        from batchchol.measure.graph_samples import record_calls
    except ImportError as error:
        raise BackendUnavailable("this commit of batchchol has no graphs") from error
    return record_calls(backend, spec, batch, **options)


def single(order: int, backend: str, **options: Any) -> Sample:
    """The factorization of one matrix; see `batchchol.compare.single_matrix.sample_single`.

    Raises
    ------
    BackendUnavailable
        If this commit does not measure that, or there is no CuPy.
    """
    try:
        from batchchol.compare.single_matrix import sample_single

        get_backend(backend)
        return sample_single(order, **options)
    except ImportError as error:
        raise BackendUnavailable(f"one matrix cannot be timed: {error}") from error


def larger(order: int, batch: int, backend: str, **options: Any) -> Sample:
    """The factorization of larger matrices on a GPU; see `batchchol.compare.large.sample_large`.

    Raises
    ------
    BackendUnavailable
        If this commit has none.
    """
    try:
        from batchchol.compare.large import sample_large
    except ImportError as error:
        raise BackendUnavailable(f"larger matrices cannot be timed: {error}") from error
    get_backend(backend)
    return sample_large(order, batch, **options)


def fused(order: int, batch: int, backend: str, **options: Any) -> Sample:
    """One launch that factors whole matrices on a GPU; see `batchchol.compare.large.sample_fused`.

    Raises
    ------
    BackendUnavailable
        If this commit has none.
    """
    try:
        from batchchol.compare.large import sample_fused
    except ImportError as error:
        raise BackendUnavailable(f"panels are not fused: {error}") from error
    get_backend(backend)
    if "border" in options and "border" not in signature(sample_fused).parameters:
        raise BackendUnavailable("panels have no border")
    return sample_fused(order, batch, **options)


def panels(order: int, backend: str, **options: Any) -> Sample:
    """One matrix by panels in several launches on a GPU; see `batchchol.compare.large.sample_panels`.

    Raises
    ------
    BackendUnavailable
        If this commit has none.
    """
    try:
        from batchchol.compare.large import sample_panels
    except ImportError as error:
        raise BackendUnavailable(f"panels cannot be timed: {error}") from error
    get_backend(backend)
    return sample_panels(order, **options)


def host_seconds(backend: Backend, call: Callable[[], None]) -> list[float]:
    """Seconds of the host that a call on a GPU takes.

    Raises
    ------
    BackendUnavailable
        If this commit does not measure that.
    """
    if not hasattr(backend, "host_seconds"):
        raise BackendUnavailable("this commit of batchchol does not measure the host's time")
    return list(backend.host_seconds(call))


def joules(backend: Backend, spec: KernelSpec, batch: Batch, threads: int) -> float:
    """What a factorization uses; see `batchchol.measure.energy.factor_energy`.

    Raises
    ------
    BackendUnavailable
        If this commit does not measure that, or this machine does not say.
    """
    try:
        from batchchol.measure.energy import factor_energy
    except ImportError as error:
        raise BackendUnavailable("this commit of batchchol measures no energy") from error
    if backend.joules() is None:
        raise BackendUnavailable(f"backend {backend.name}: the device does not say what energy it uses")
    return float(factor_energy(backend, spec, batch, threads=threads).joules)


def empty(backend: Backend, n: int, batch: int, layout: Layout, dtype: str) -> Batch:
    """A batch where the backend's kernels can use it."""
    return getattr(backend, "empty", Batch.empty)(n, batch, layout, dtype)


def fill(backend: Backend, batch: Batch, recipe: str) -> None:
    """Overwrite a batch with the first matrices of a data set."""
    getattr(backend, "fill", _host_fill)(batch, recipe)


def copies(dense: Any, packed: Any) -> tuple[Callable[[], None], Callable[[], None]]:
    """Calls that copy a canonical batch into another one's layout, and back."""
    if hasattr(packed, "unpack_to"):
        return partial(packed.put, 0, dense.data), partial(packed.unpack_to, dense.address, 0, packed.batch)
    slots = Slots(packed.data, packed.n, packed.batch, packed.layout, 0, packed.batch)
    return partial(_host_pack, dense.data, slots), partial(_host_unpack, slots, dense.data)


def sample_solve(*arguments: Any, **options: Any) -> Sample:
    """Time solves by a batch of factors."""
    from batchchol.measure.solves import sample_solve as measured

    return measured(*arguments, **options)


def nothing() -> Callable[[], None]:
    """A call that launches an empty kernel on the GPU."""
    from batchchol.backends.cuda import support
    from batchchol.backends.cuda.device import device

    return partial(support.empty, device())


def build(backend: Backend, specs: Sequence[KernelSpec]) -> None:
    """Compile kernels ahead, in parallel; what fails will say so when it is measured."""
    if hasattr(backend, "build"):
        backend.build(specs)


def sample_factor(backend: Backend, *arguments: Any, protocol: str | None, **options: Any) -> Sample:
    """Time a factorization; see `batchchol.measure.timing.sample_factor`."""
    if hasattr(backend, "protocols"):
        options["protocol"] = protocol
    return _sample_factor(backend, *arguments, **options)


def circumstances(sample: Sample) -> dict[str, Any]:
    """How a sample was taken, as far as its commit says."""
    if not hasattr(sample, "protocol"):
        return {}
    return {"protocol": sample.protocol, "floor_seconds": sample.floor, "conditions": dict(sample.conditions)}
