"""What a call runs: backend, spec, layout, kernel and result, checked, and for batches kept for the next call."""

from __future__ import annotations

import weakref
from copy import copy
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

from batchchol.backends import Backend, get_backend
from batchchol.backends.base import Form, Kernel, check_form, check_operation, check_runnable
from batchchol.batches.batch import Batch
from batchchol.batches.checks import check_choice, check_math
from batchchol.defaults.generation import generation
from batchchol.defaults.lookup import default_choice
from batchchol.defaults.request import Request
from batchchol.defaults.rules.fused import of_several, two_kernels
from batchchol.defaults.rules.general import of_many_columns
from batchchol.defaults.rules.pipelines import MANY
from batchchol.defaults.rules.wholes import by_given_factors
from kernelgen import MAX_N, TARGETS, KernelSpec, Layout, Problem, SpecError, ThreadSchedule
from kernelgen.problem import MATHS

# The operations that "posv" is together.
TWO = ("potrf", "potrs")
_REMEMBERED, _CHOSEN = "_prepared", "_chosen"


class Choice(NamedTuple):
    """The backend, the spec and the kernel, None for no matrices, of a batch of this triangle.

    `given` and `math` are what it was asked for; what is chosen by default is as new as `generation`.
    """

    triangle: str | None
    given: KernelSpec | None
    math: str | None
    device: Backend
    spec: KernelSpec
    kernel: Kernel | None
    generation: object

    def answers(self, batch: Batch, given: KernelSpec | None, math: str | None) -> bool:
        """Whether it is still what is chosen for a batch if that is asked for."""
        same = self.given is given and (self.triangle, self.math) == (batch.triangle, math)
        return same and self.generation is generation()


class Prepared(NamedTuple):
    """What `prepare` found: the kernel factors the batch into `result`, whose triangle is marked."""

    batch: weakref.ref[Batch]
    choice: Choice
    result: Batch


def prepare(batch: Batch, given: KernelSpec | None, out: Batch | None, math: str | None = None) -> Prepared:
    """Check what to factor, by which spec or in which math, and into what.

    The result remembers it, for the next time that the same batch is factored into it in the same way. A batch
    that is factored into new ones remembers all but the result. (Checking took a third of a small call.)

    Raises
    ------
    TypeError, ValueError
        If spec, math or out do not belong to each other or the batch, or its backend cannot run the spec on its
        layout.
    OutOfMemory
        If the factors would not fit.
    """
    # Before it is compared with what is remembered: arrays are compared element by element.
    check_math(math)
    if out is None:
        known: Choice | None = batch.__dict__.get(_CHOSEN)
        if known is not None and known.answers(batch, given, math):
            return Prepared(weakref.ref(batch), known, batch.like(known.spec.problem.uplo))
    else:
        last: Prepared | None = out.__dict__.get(_REMEMBERED)
        if last and last.batch() is batch and last.choice.answers(batch, given, math) and out.writeable:
            return last
        # Copies of `out` are made below: were this among what they copy, each call would hold on to all before it.
        out.__dict__.pop(_REMEMBERED, None)
    return _prepared_anew(batch, given, out, math)


def _prepared_anew(batch: Batch, given: KernelSpec | None, out: Batch | None, math: str | None) -> Prepared:
    check_choice(given, math)
    device = get_backend(batch.backend)
    in_place = out is not None and out.shares_memory(batch)
    spec = given
    if spec is None:
        problem = Problem(batch.n, batch.dtype_name, math=math or MATHS[0])
        target = _fitting_target(device, batch.dtype_name, batch.layout)
        spec = _default(device, problem, batch.layout, batch.batch, in_place=in_place, target=target)
    check_runnable(device, spec, batch)
    result = _result(device, batch, out, spec, in_place).marked(spec.problem.uplo)
    if result is out:
        # `out` must not remember itself: its memory would stay until the garbage collector finds the cycle.
        result = copy(out)
    kernel = device.kernel(spec) if batch.batch else None
    choice = Choice(batch.triangle, given, math, device, spec, kernel, generation())
    prepared = Prepared(weakref.ref(batch), choice, result)
    if out is None:
        batch.__dict__[_CHOSEN] = choice
    else:
        out.__dict__[_REMEMBERED] = prepared
    return prepared


def prepare_lower(batch: Batch, out: Batch | None) -> Batch:
    """Where the lower factors of a batch of the host go, without a kernel; checked and marked as `prepare` does.

    Raises
    ------
    ValueError
        If the batch has no lower triangle, or `out` does not belong to it.
    OutOfMemory
        If the factors would not fit.
    """
    if batch.triangle not in (None, "lower"):
        raise ValueError(
            f"batch: got one whose {batch.triangle} triangle alone has a meaning, expected the lower one: use "
            "batch.marked(None) if whole matrices were put into it"
        )
    if out is None:
        return batch.like("lower")
    check_out(batch, out, out.shares_memory(batch))
    # Not `out` itself, nor what it remembers.
    out.__dict__.pop(_REMEMBERED, None)
    return copy(out).marked("lower")


def _default(
    device: Backend, problem: Problem, layout: Layout, batch: int, *, in_place: bool, target: str | None = None
) -> KernelSpec:
    """The kernel that is the best for `batch` matrices in a layout, by what was measured."""
    where = (target or device.target, layout.kind, layout.order, layout.chunk, in_place, batch)
    return default_choice(Request(problem, *where, device.architecture, device.model)).spec


def problem_of(n: int, dtype: str, upper: bool, math: str | None, op: str = "potrf", m: int | None = None) -> Problem:
    """The problem of a call, in the math that it asks for or the default."""
    return Problem(n, dtype, "upper" if upper else "lower", op, math or MATHS[0], m)


def kernel_choice(
    op: str, device: Backend, form: Form, upper: bool, given: KernelSpec | None, math: str | None, *, argument: str
) -> KernelSpec:
    """The kernel by which an operation is done on a batch of this form: given, or the best in a math.

    `argument` is what the caller calls the batch. Choices are kept for the next call.

    Raises
    ------
    TypeError, ValueError
        If spec or math do not belong to each other or to the batch, or the backend cannot run the spec on it.
    SpecError
        If there is no kernel for it.
    """
    # Before they are looked up: arrays have no hash.
    check_choice(given, math)
    _check_order(argument, form.n)
    return _kernel_choice(op, device, form, upper, given, math, argument, generation())


def _check_order(argument: str, n: int) -> None:
    """Refuse matrices that no kernel is for."""
    if n > MAX_N:
        raise SpecError(
            f"{argument}: got matrices of order {n}, expected at most {MAX_N} in a batch: use to_dense(), arrays may "
            "be larger"
        )


@lru_cache(maxsize=1024)
def _kernel_choice(
    op: str,
    device: Backend,
    form: Form,
    upper: bool,
    given: KernelSpec | None,
    math: str | None,
    argument: str,
    _: object,
) -> KernelSpec:
    problem = problem_of(form.n, form.dtype, upper, math, op, form.m)
    target = _fitting_target(device, form.dtype, form.layout, argument)
    spec = given or _default(device, problem, form.layout, form.batch, in_place=False, target=target)
    check_form(device, spec, form, op, argument)
    if spec.problem.uplo != problem.uplo:
        raise ValueError(
            f"spec: got the {spec.problem.uplo} triangle, expected the {problem.uplo} one, as the {argument} have"
        )
    return spec


def chosen_kernel(
    op: str,
    device: Backend,
    form: Form,
    upper: bool,
    given: KernelSpec | None,
    math: str | None,
    *,
    argument: str,
    nrhs: int = 1,
) -> Kernel:
    """The kernel of `kernel_choice`, loaded, and kept as well; or two kernels, called as one, that are faster."""
    check_choice(given, math)
    _check_order(argument, form.n)
    return _chosen_kernel(op, device, form, upper, given, math, min(nrhs, MANY), argument, generation())


@lru_cache(maxsize=1024)
def _chosen_kernel(
    op: str,
    device: Backend,
    form: Form,
    upper: bool,
    given: KernelSpec | None,
    math: str | None,
    nrhs: int,
    argument: str,
    key: object,
) -> Kernel:
    rest = device, form, upper
    if op in ("posv", "potrs") and given is None:
        problem = Problem(form.n, form.dtype, "upper" if upper else "lower", op, math or MATHS[0])
        request = Request(problem, device.target, batch=form.batch, arch=device.architecture).on(form.layout)
        if op == "posv" and two_kernels(request, nrhs):
            return factor_then_solve(
                device, *(_kernel_choice(each, *rest, None, math, argument, key) for each in TWO)
            )
        given = of_several(request, nrhs) if op == "posv" else by_given_factors(request, nrhs)
    spec = _kernel_choice(op, *rest, given, math, argument, key)
    if op == "gels" and given is None and nrhs >= MANY:
        spec = of_many_columns(spec, device.architecture)
    return device.kernel(spec)


def factor_then_solve(device: Backend, factor: KernelSpec, solve: KernelSpec) -> Kernel:
    """Two kernels of a GPU, called as one of "posv"."""
    from batchchol.algorithms.posv import FactorThenSolve

    factoring, solving = (cast(Any, device.kernel(spec)) for spec in (factor, solve))
    return FactorThenSolve(factoring, solving)


@lru_cache(maxsize=1024)
def determining(spec: KernelSpec) -> KernelSpec | None:
    """The kernel that factors as that of a spec does and finds determinants besides; None if there is none."""
    if not isinstance(spec.schedule, ThreadSchedule):
        return None
    return replace(spec, problem=replace(spec.problem, op="potrfdet"))


def _fitting_target(device: Backend, dtype: str, layout: Layout, argument: str = "batch") -> str:
    """The backend's widest SIMD whose groups fill the batch's chunks."""
    chunk = layout.chunk
    for target in device.targets:
        if chunk is None or chunk % TARGETS[target].lanes(dtype) == 0:
            return target
    lanes = {target: TARGETS[target].lanes(dtype) for target in device.targets}
    raise ValueError(f"{argument}: got chunk={chunk}, expected a multiple of the SIMD lanes of one of {lanes}")


def _result(device: Backend, batch: Batch, out: Batch | None, spec: KernelSpec, in_place: bool) -> Batch:
    if out is None:
        if spec.in_place:
            # Without a place for the factors the matrices must stay.
            raise ValueError(
                "spec: got in_place=True without out: pass out=batch to have the batch overwritten, or a spec with "
                "in_place=False"
            )
        return device.empty(batch.n, batch.batch, batch.layout, batch.dtype)
    check_out(batch, out, in_place)
    if spec.in_place != in_place:
        raise ValueError(f"spec: got in_place={spec.in_place}, expected {in_place} for this out")
    return out


def check_out(batch: Batch, out: Batch, in_place: bool) -> None:
    """Refuse what the factors or inverses of a batch cannot be written to."""
    if (out.n, out.batch, out.layout, out.dtype) != (batch.n, batch.batch, batch.layout, batch.dtype):
        raise ValueError(f"out: got {out.contents}; expected {batch.contents}, as the batch is")
    if out.backend != batch.backend:
        raise ValueError(f"out: lives on backend {out.backend!r}, expected {batch.backend!r}, where the batch lives")
    if not out.writeable:
        raise ValueError("out: its array is read-only: use one that can be written, such as Batch.empty's")
    if in_place and out.address != batch.address:
        raise ValueError("out: shares memory with the batch without being it: use the batch itself, or other memory")


def array_choice(
    device: Backend, problem: Problem, batch: int, given: KernelSpec | None, *, host: bool, same: bool = False
) -> tuple[KernelSpec, Layout]:
    """The kernel for arrays (batch, n, n) of the host or the GPU and the layout it works in: given, or the best.

    What is given has passed `check_array_spec`. `same` says that the factors take the place of the matrices.
    """
    if given is not None:
        if reason := device.unsupported(given):
            raise ValueError(f"spec: backend {device.name!r} cannot run {given.name}: {reason}")
        return given, _layout_of(device, given, batch)
    layout = device.array_layout(problem.n, batch, problem.dtype, problem.math)
    # What is packed is a copy, and so is what goes to a GPU: it may be overwritten.
    copied = layout.kind != "canonical" or (host and device.name == "cuda")
    return _default(device, problem, layout, batch, in_place=copied or same), layout


# Describing the problem anew takes longer than launching a kernel, or than factoring a hundred small matrices.
@lru_cache(maxsize=1024)
def kept_array_choice(
    device: Backend,
    n: int,
    dtype: str,
    upper: bool,
    batch: int,
    given: KernelSpec | None,
    math: str | None,
    host: bool,
    same: bool,
    _: object,
) -> tuple[KernelSpec, Layout]:
    """`array_choice`, kept for the next call until other tables are read: what comes last is their `generation`."""
    return array_choice(device, problem_of(n, dtype, upper, math), batch, given, host=host, same=same)


def check_array_spec(
    n: int, dtype: str, upper: bool, given: KernelSpec | None, math: str | None, op: str = "potrf"
) -> None:
    """Refuse a spec that does not fit the operation, the arrays, or the math that is asked for."""
    check_choice(given, math)
    if given is None:
        return
    check_operation(given, op)
    if n > MAX_N:
        raise ValueError(
            f"spec: got a kernel for matrices of order {given.problem.n}, expected None for those of order {n}: "
            f"how orders above {MAX_N} are factored is planned (python -m batchchol explain)"
        )
    if upper != (given.problem.uplo == "upper"):
        raise ValueError(f"spec: got the {given.problem.uplo} triangle, expected the one that upper={upper} asks for")
    if given.in_place:
        raise ValueError("spec: got in_place=True, expected False: the input is left as it was; use factor(out=)")
    if (given.problem.n, given.problem.dtype) != (n, dtype):
        raise ValueError(
            f"spec: got a kernel for {given.problem.dtype} matrices of order {given.problem.n}, expected {dtype} "
            f"and {n}"
        )


def _layout_of(device: Backend, spec: KernelSpec, batch: int) -> Layout:
    """The layout that a spec works in; where it leaves the chunk open, the fastest: on a CPU that is the smallest."""
    if spec.layout != "chunked":
        return Layout(spec.layout, None, spec.order)
    if device.name == "cpu":
        fastest: int | None = spec.lanes
    else:
        fastest = device.default_layout(spec.problem.n, spec.problem.dtype, batch, spec.problem.math).chunk
    return Layout(spec.layout, spec.schedule.stride or fastest, spec.order)
