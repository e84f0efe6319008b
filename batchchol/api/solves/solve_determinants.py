"""Solutions and the logarithms of determinants at once: by one kernel, or where there is none one after the other."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from batchchol.api.arguments import Wanted, square_matrices
from batchchol.api.columns import Fit, fit, host_columns
from batchchol.api.factors.device_repairs import Repair, repairs_itself
from batchchol.api.factors.factorizations import cholesky_ex
from batchchol.api.repairs import Members, repair
from batchchol.api.solves import device_solves, host_solves
from batchchol.api.solves.log_determinants import log_determinants
from batchchol.artifacts.no_compiler import warn
from batchchol.backends import DEFAULT_BACKEND, chosen_backend, get_backend
from batchchol.backends.base import Form
from batchchol.batches.batch import Batch
from batchchol.errors import CompilerNotFound
from batchchol.parallel import available_threads
from batchchol.plan import chosen_kernel
from kernelgen import MAX_N, Layout, SpecError


class Determined(NamedTuple):
    """Solutions, the info of each matrix, what was added to it, if anything may be, and the logarithms."""

    x: Any
    info: Any
    added: Any
    logabsdet: Any


def by_one_kernel(a: Any, b: Any, backend: str | None, wanted: Wanted) -> Determined | None:
    """What a kernel of "posvdet" finds where the matrices are; None where there is none, or b is to be moved first.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as `solve_ex` says.
    """
    if isinstance(a, Batch):
        wanted = wanted.of_batch(a, backend)
        return _on_host(a, (a.batch,), b, wanted) if a.backend == "cpu" else _on_gpu(a, b, wanted)
    if hasattr(a, "__cuda_array_interface__"):
        return _on_gpu(a, b, wanted)
    if (chosen_backend(backend) or DEFAULT_BACKEND) != "cpu":
        return None
    given = square_matrices("a", a)
    *outer, n, _ = given.shape
    wanted.check_array(n, given.dtype)
    if not given.size or n > MAX_N:
        return None
    dense = given.reshape(-1, n, n)
    return _on_host(Batch.over_checked(dense, n, len(dense), Layout.canonical()), tuple(outer), b, wanted)


def logarithms(a: Any, backend: str | None, wanted: Wanted) -> Any:
    """The logarithms of determinants, by a kernel of their own."""
    return log_determinants(a, backend, wanted._replace(op="logdet", spec=None, out=None)).logabsdet


def by_factors(a: Any, backend: str | None, wanted: Wanted, *, logdet: bool) -> Any:
    """Factors, info, what was added, and logarithms of determinants, as `cholesky_ex`: of a batch too as arrays."""
    how: dict[str, Any] = {"math": wanted.math, "jitter": wanted.jitter, "logdet": logdet}
    if not isinstance(a, Batch):
        if wanted.stream is not None:
            _wait_for(wanted.stream)
        return cholesky_ex(a, upper=wanted.upper, backend=backend, **how)
    wanted = wanted.of_batch(a, backend)
    if wanted.stream is not None and a.backend != "cpu":
        _wait_for(wanted.stream)
    return cholesky_ex(a.to_dense(), upper=wanted.upper, **how)


def _wait_for(stream: Any) -> None:
    """Arrays are factored on the default stream, and may still be written to on this one."""
    from batchchol.backends.cuda import memory

    memory.wait_for(stream)


def _on_host(batch: Batch, outer: tuple[int, ...], b: Any, wanted: Wanted) -> Determined | None:
    wanted.check_no_stream("backend 'cpu' has none")
    columns = host_columns(b, wanted.what)
    how = fit(outer, batch.n, columns.shape, wanted.what)
    if wanted.out is not None or not columns.flags.c_contiguous or not _plain(how, columns.dtype, batch.dtype):
        return None
    if batch.n > MAX_N and wanted.spec is None:
        return None
    try:
        choice = wanted.op, get_backend("cpu"), Form.of(batch), wanted.upper, wanted.spec, wanted.math
        kernel = chosen_kernel(*choice, argument=wanted.argument)
    except CompilerNotFound as error:
        if wanted.spec is not None:
            raise
        warn(error)
        return None
    x = host_solves.room_for(batch.data, columns, how, wanted, None, True)
    logs, info = np.empty(batch.batch, batch.dtype), np.zeros(batch.batch, np.int32)
    threads = int(wanted.threads or available_threads(batch.nbytes + columns.nbytes))
    panels, given = x.reshape(how.panels), columns.reshape(how.panels)
    kernel(batch, given, panels, logs, info, threads=threads)
    if wanted.jitter is None:
        return Determined(x.reshape(how.x), info.reshape(outer), None, logs.reshape(outer))
    own = wanted._replace(spec=None, math=kernel.spec.problem.math, jitter=None, overwrite_b=False)

    def again(chosen: Members, dense: NDArray[Any]) -> NDArray[np.int32]:
        repaired = Batch.over_checked(dense, batch.n, len(dense), Layout.canonical())
        found = _on_host(repaired, (len(dense),), given[chosen], own)
        assert found is not None
        panels[chosen], logs[chosen] = found.x, found.logabsdet
        return cast("NDArray[np.int32]", found.info)

    added = repair(wanted.jitter, batch.dtype, info, partial(host_solves.members_of, batch), again)
    return Determined(x.reshape(how.x), info.reshape(outer), added.reshape(outer), logs.reshape(outer))


def _on_gpu(a: Any, b: Any, wanted: Wanted) -> Determined | None:
    from batchchol.backends.cuda import memory

    matrices = device_solves.located(a, wanted)
    form, outer = matrices.form, matrices.outer
    if not memory.is_device_array(b):
        return None
    columns, dtype = memory.view(b, "b"), np.dtype(form.dtype)
    how = fit(outer, form.n, columns.shape, wanted.what)
    if not _plain(how, columns.dtype, dtype):
        return None
    try:
        choice = wanted.op, get_backend("cuda"), form, wanted.upper, wanted.spec, wanted.math
        kernel: Any = chosen_kernel(*choice, argument=wanted.argument)
    except SpecError:
        if wanted.spec is not None:
            raise
        return None
    x = device_solves.room_for(matrices, b, columns.address, how, wanted)
    logs, info = memory.empty(outer, dtype, "the logarithms"), memory.empty(outer, np.dtype(np.int32), "the info")
    if wanted.stream is not None:
        owner = a.data if isinstance(a, Batch) else a
        memory.share(wanted.stream, owner, b, x.owner, logs, info)
    places = (matrices.address, columns.address, x.address, int(logs.gpudata), int(info.gpudata))
    if wanted.jitter is None:
        kernel.launch(places, how.nrhs, form.batch, form.layout, wanted.stream)
        return Determined(x.owner, info, None, logs)
    again = Repair.of(wanted.jitter, matrices.address, form, wanted.upper, info)
    if x.address == columns.address and not repairs_itself(kernel):
        return None
    again.solve(kernel, places, how.nrhs, wanted.stream)
    return Determined(x.owner, info, again.added, logs)


def _plain(how: Fit, dtype: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether right-hand sides are a kernel's array as they lie in memory, and not empty."""
    return how.plain and dtype == wanted and bool(how.count and how.n and how.nrhs)
