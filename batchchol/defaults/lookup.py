"""The defaults: the spec, the chunk and the way of arrays, from measured tables.

If a device is named, its user's own measurements (`batchchol.defaults.user`) come first, then the tables that come
with the library.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache, lru_cache
from math import inf, log2
from pathlib import Path
from typing import Literal, NamedTuple

from batchchol.artifacts.c_library import supported_targets
from batchchol.batches.checks import check_math
from batchchol.defaults.entries import Placed, Planned, Tuned
from batchchol.defaults.fitting import fit, fitted
from batchchol.defaults.generation import generation
from batchchol.defaults.request import TYPICAL_BATCH, Request
from batchchol.defaults.rules.fused import fused_by_batch
from batchchol.defaults.rules.general import general_layout
from batchchol.defaults.rules.solves import solves
from batchchol.defaults.rules.unmeasured import unmeasured
from batchchol.defaults.shipped import source_of
from batchchol.defaults.tables import REACH_OF_ORDERS, Case, Evidence, Placement, nearest, rows
from batchchol.defaults.user import UserTable, load, merge
from kernelgen import TARGETS, KernelSpec, Layout, Problem, ThreadSchedule
from kernelgen.problem import MATHS
from kernelgen.refusals import require
from kernelgen.schedules import DEFAULT_THREADS

# A user's entry serves batches from half to twice its own: in logarithms half as far as the entries of the shipped
# tables do, which were measured at batches that are a factor of 16 apart and more.
REACH = 2


class Choice(NamedTuple):
    """A spec and where it comes from: an entry of a table, for batches near `batch`, or for all if that is None.

    `until` is as an `Entry` has it, `evidence` what the entry was chosen by, `n` and `case` are the entry's own;
    `tuned` is the user's entry, if it is one.
    """

    spec: KernelSpec
    batch: int | None
    origin: str
    until: int | None = None
    evidence: tuple[Evidence, ...] = ()
    n: int = 0
    case: Case | None = None
    tuned: Tuned | None = None


@lru_cache(maxsize=4096, typed=True)
def default_spec(
    n: int,
    *,
    target: str | None = None,
    dtype: str = "float32",
    layout: str = "chunked",
    chunk: int | None = None,
    order: str = "col",
    math: str = "ieee",
    uplo: str = "lower",
    in_place: bool = False,
    batch: int | None = None,
    arch: str | None = None,
    device: str | None = None,
    op: str = "potrf",
) -> KernelSpec:
    """The spec that the measured table of a target names for matrices of order `n`.

    An order between two of the table is served as the next larger one, a batch as the one nearest by ratio. What was
    not measured is served as what is most like it: float64 as float32, one class of accuracy as the other. What a GPU
    of another architecture than the table's cannot run has less ahead of its turn, or is passed over, as is what was
    not measured and would spill registers.

    Parameters
    ----------
    n, dtype, uplo, math, op
        As in `Problem`.
    target : str, optional
        As in `KernelSpec`: "cuda" for a GPU; by default the widest SIMD of this machine's CPU.
    layout, chunk, order, in_place, batch, arch, device
        As in `Request`.

    Raises
    ------
    SpecError
        If an argument is outside what can be built.

    Examples
    --------
    This machine's default with other tiles:

    >>> spec = default_spec(16)
    >>> other = dataclasses.replace(spec, schedule=dataclasses.replace(spec.schedule, nb=4))
    >>> factors, info = factor(batch, other)
    """
    target = supported_targets()[0] if target is None else target
    problem = Problem(n, dtype, uplo, op, math)
    return default_choice(Request(problem, target, layout, order, chunk, in_place, batch, arch, device)).spec


@lru_cache(maxsize=4096)
def default_choice(request: Request) -> Choice:
    """What is used for a request, and where it comes from.

    Raises
    ------
    SpecError
        If it is outside what can be built.
    """
    anywhere = replace(request, batch=None)
    shipped = choices(replace(anywhere, device=None))
    own = tuned_choices(anywhere) if request.device is not None else ()
    near = [
        choice
        for choice in own
        if choice.tuned and not choice.tuned.kept and within_reach(choice.batch, request.size)
    ]
    return nearest(near or shipped, request.size)


def within_reach(measured: int | None, batch: int) -> bool:
    """Whether an entry of the user's, measured at one batch, serves another one."""
    return measured is not None and measured <= REACH * batch and batch <= REACH * measured


@lru_cache(maxsize=4096)
def choices(request: Request) -> tuple[Choice, ...]:
    """What the shipped tables offer for a request, one choice for each size of batch.

    Raises
    ------
    SpecError
        If it is outside what can be built.
    """
    plain, wanted, arch, n = request.plain, request.case, request.arch, request.problem.n
    if wanted.op == "potrfdet":
        return _determining(request)
    table, reason = source_of(request.target, arch)
    cases = [case for case in table.cases if case.op == wanted.op and _serves(case, wanted, plain)]
    for case in sorted(cases, key=lambda case: _unlike(case, wanted)):
        for turn, row in enumerate(rows(table.cases[case], n)):
            if plain.problem.operation.general and not n <= row[0].n <= REACH_OF_ORDERS * n:
                break
            origin = f"{reason}; {case}, up to order {row[0].n}"
            serves, found = not turn and row[0].n >= n, []
            for entry in row:
                fitting = fit(entry, case, plain, wanted.chunk, arch=arch, measured_on=table.name, serves=serves)
                if fitting is not None:
                    said = f"{origin}, {fitting.unlike}" if fitting.unlike else origin
                    evidence = fitting.evidence
                    found.append(Choice(fitting.spec, entry.batch, said, entry.until, evidence, entry.n, case))
            if found:
                return tuple(found)
    fails = cases and not plain.problem.operation.general
    why = f"{reason}; nothing of it can be built" if fails else f"no kernel of {wanted.op} was measured so"
    if TARGETS[request.target].gpu and wanted.op == "potrs":
        return tuple(Choice(spec, batch, why) for batch, spec in solves(plain, wanted.chunk, arch))
    if TARGETS[request.target].gpu and wanted.op == "posv":
        return tuple(Choice(spec, batch, why) for batch, spec in fused_by_batch(plain, wanted.chunk, arch))
    return (Choice(unmeasured(plain, wanted.chunk, arch), None, why),)


def _determining(request: Request) -> tuple[Choice, ...]:
    """What factors and finds determinants besides: kernels of a factorization that have a thread to a matrix."""
    found = choices(replace(request, problem=replace(request.problem, op="potrf")))
    if not (threads := [each for each in found if isinstance(each.spec.schedule, ThreadSchedule)]):
        works = "the factorization is no thread's; determinants are found by the factors, use 'potrf'"
        require(False, "op", request.problem.op, works)
    return tuple(each._replace(spec=replace(each.spec, problem=request.problem)) for each in threads)


@lru_cache(maxsize=4096)
def tuned_choices(request: Request) -> tuple[Choice, ...]:
    """What the user measured on the request's device of exactly its order and case, one choice for each batch.

    Whether an entry was measured in place makes no difference: none was.
    """
    wanted, plain, n = request.case, request.plain, request.problem.n
    if request.layout != "canonical" and request.lower_order != "col":
        # In packed layouts the usual order is the only one that has entries.
        return ()
    table = user_table(str(request.device), request.target, request.arch)
    own = [entry for entry in table.entries if (entry.case, entry.n) == (wanted, n)]
    return tuple(
        Choice(
            spec, entry.batch, f"table {table.path} of {entry.about.get('date', 'unknown date')}", n=n, tuned=entry
        )
        for entry in sorted(own, key=lambda entry: entry.batch)
        if (spec := fitted(plain, entry.schedule, wanted.chunk)) is not None
    )


def _serves(case: Case, wanted: Case, plain: KernelSpec) -> bool:
    """Whether a case may serve another: of general matrices, for which there is a rule, only square ones like it."""
    alike = plain.problem.rows == plain.problem.n and replace(case, math=wanted.math, chunk=wanted.chunk) == wanted
    return alike or not plain.problem.operation.general


def _unlike(case: Case, wanted: Case) -> tuple[float, ...]:
    """How unlike a case of a table is to the wanted one; the first number matters most."""
    if wanted.layout == "canonical":
        layout = case.order != wanted.order if case.layout == "canonical" else 2
    else:
        layout = ("chunked", "interleaved", "canonical").index(case.layout) + 1 if case.layout != wanted.layout else 0
    if case.chunk == wanted.chunk or case.chunk is None or wanted.chunk is None:
        chunk = 0.0 if case.chunk == wanted.chunk else 1.0
    else:
        chunk = 2 + abs(log2(case.chunk / wanted.chunk))
    return (layout, case.dtype != wanted.dtype, case.math != wanted.math, chunk)


@lru_cache(maxsize=4096)
def default_layout(
    n: int,
    *,
    target: str,
    dtype: str = "float32",
    arch: str | None = None,
    batch: int | None = None,
    device: str | None = None,
    math: str | None = None,
    op: str = "potrf",
) -> Layout:
    """The layout in which `batch` matrices of order `n` are factored fastest; by default for large batches.

    Without a math, the best of both together. Of a GPU's LU factorizations and solves by them it follows from the
    kernel. Where none was measured, chunks of as many matrices as
    a warp has threads, or a SIMD register lanes. What the user measured on a device counts for batches of a known
    size.
    """
    check_math(math)
    if TARGETS[target].gpu and (lies := general_layout(Problem(n, dtype, op=op))):
        return lies
    if batch is not None and (own := tuned_placement("layouts", n, batch, target, dtype, arch, device, math)):
        return own.layout
    row = shipped_placements("layouts", n, target, dtype, arch, math)
    if row:
        chosen = row[-1] if batch is None else nearest(row, batch)
        return _where_it_runs(chosen.layout, n, batch or TYPICAL_BATCH, target, dtype, arch, math or MATHS[0])
    return Layout.chunked(DEFAULT_THREADS if TARGETS[target].gpu else TARGETS[target].lanes(dtype))


def _where_it_runs(
    chosen: Layout, n: int, batch: int, target: str, dtype: str, arch: str | None, math: str
) -> Layout:
    """The layout or, where a GPU cannot run its kernel as it was measured, the one whose kernel was the fastest.

    Of those that it can run, if need be with less ahead of its turn; on the table's GPU.
    """
    table, problem = source_of(target, arch).table, Problem(n, dtype, math=math)

    def usual(layout: Layout, arch: str) -> Choice:
        return nearest(choices(Request(problem, target, chunk=layout.chunk, arch=arch)), batch)

    if arch in (None, table.name) or usual(chosen, str(arch)).spec == usual(chosen, table.name).spec:
        return chosen
    others = dict.fromkeys((chosen, *(each.layout for each in table.layouts)))
    return min(others, key=lambda layout: _cost(usual(layout, str(arch))))


def _cost(choice: Choice) -> float:
    """Nanoseconds for each multiply-add, where it was measured."""
    return min((each.ns for each in choice.evidence), default=inf) / max(choice.n, 1) ** 3


@lru_cache(maxsize=4096)
def array_layout(
    n: int,
    batch: int,
    *,
    target: str,
    dtype: str = "float32",
    arch: str | None = None,
    device: str | None = None,
    math: str = "ieee",
) -> Layout:
    """The layout in which C-contiguous arrays (batch, n, n) are factored fastest, copies between layouts included.

    Where none was measured, as they are on a CPU, whose kernels transpose them in cache, and as batches on a GPU.
    """
    check_math(math)
    if own := tuned_placement("arrays", n, batch, target, dtype, arch, device, math):
        return own.layout
    row = shipped_placements("arrays", n, target, dtype, arch, math)
    if row:
        return nearest(row, batch).layout
    if TARGETS[target].gpu:
        return default_layout(n, target=target, dtype=dtype, arch=arch, batch=batch, math=math)
    return Layout.canonical()


def tuned_placement(
    section: str,
    n: int,
    batch: int,
    target: str,
    dtype: str,
    arch: str | None,
    device: str | None,
    math: str | None = None,
) -> Placed | None:
    """The user's placement that answers, "layouts" of batches or "arrays"; None if there is none.

    They are placed by what kernels of the default math took.
    """
    if device is None or math not in (None, MATHS[0]):
        return None
    own = [
        each
        for each in user_table(device, target, arch).placements
        if (each.section, each.dtype, each.n) == (section, dtype, n) and not each.kept
    ]
    near = [each for each in own if within_reach(each.batch, batch)]
    return nearest(near, batch) if near else None


@lru_cache(maxsize=1024)
def shipped_placements(
    section: Literal["layouts", "arrays"],
    n: int,
    target: str,
    dtype: str,
    arch: str | None,
    math: str | None = None,
) -> tuple[Placement, ...]:
    """The entries of a section for an order, one a batch; those of the other dtype if a dtype has none.

    A math has its own, or those for any.
    """
    known: tuple[Placement, ...] = getattr(source_of(target, arch).table, section)
    of_dtype = [each for each in known if each.dtype == dtype] or known
    own = [each for each in of_dtype if each.math == math] if math is not None else []
    return next(rows(own or [each for each in of_dtype if each.math is None], n), ())


@cache
def user_table(device: str, target: str, arch: str | None = None) -> UserTable:
    """What the user measured on a device, as read first by this process, or learned by it since."""
    source_of(target, arch)
    return load(device, arch or target, target)


def learn(
    device: str,
    target: str,
    arch: str | None,
    entries: Iterable[Tuned],
    placements: Iterable[Placed] = (),
    plans: Iterable[Planned] = (),
) -> Path:
    """Put what was measured on a device into the user's table, for the next call in any process; return its file.

    Other processes that run already see it when they are started again.

    Raises
    ------
    CacheError
        If it cannot be written.
    """
    path = merge(device, arch or target, entries, placements, plans)
    forget()
    return path


def forget() -> None:
    """Read the user's tables again at the next call: needed after anything but `learn` has changed them."""
    generation().valid.value = 0
    remembered = (
        default_spec,
        default_choice,
        choices,
        tuned_choices,
        default_layout,
        array_layout,
        shipped_placements,
        user_table,
    )
    for cached in (*remembered, generation):
        cached.cache_clear()
