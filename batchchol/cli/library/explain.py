"""`python -m batchchol explain`: which kernel is used for an order and a batch, why, and what the next best costs."""

from __future__ import annotations

import argparse
from math import log

from batchchol.algorithms.on_chip import OnChip
from batchchol.algorithms.plan_tables import Chosen, chosen
from batchchol.algorithms.plans import ALONE, plan
from batchchol.algorithms.shipped_plans import Entry, shipped
from batchchol.backends import get_backend
from batchchol.backends.cuda.device import device
from batchchol.batches.sizes import architecture, matrices, positive, size
from batchchol.cli.options import BACKEND, DTYPE, MATH, declare, option
from batchchol.defaults.entries import Planned
from batchchol.defaults.request import Request
from batchchol.measure.plan_rows import words as plan_words
from batchchol.operations.roofline import flops
from batchchol.tune.choosing import explain
from batchchol.tune.general_candidates import OPS
from kernelgen import CUDA, MAX_N, Problem, SpecError
from kernelgen.operations import OPERATIONS, POTRF
from kernelgen.problem import LAYOUT_KINDS

# What is measured at another batch says little of this one's time beyond this ratio of their sizes.
_NEAR = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the order, the batch and where it would run."""
    declare(
        parser,
        option("--n", type=positive, required=True, help="order of the matrices"),
        option("--batch", type=size, required=True, help="how many there are, or memory to fill, such as 2GiB"),
        BACKEND,
        DTYPE,
        MATH,
        option("--op", choices=sorted(OPERATIONS), default=POTRF.name, help="the operation (default: %(default)s)"),
        option("--layout", choices=LAYOUT_KINDS, help="of a batch (default: that of arrays, and that of batches)"),
        option("--arch", type=architecture, help="on any GPU of this architecture, such as sm_90; needs none"),
    )


def run(arguments: argparse.Namespace) -> int:
    """Print what is used for arrays and for batches, or on one layout."""
    if arguments.n > MAX_N:
        if arguments.op != POTRF.name:
            raise SpecError(f"--op: got {arguments.op!r}, expected {POTRF.name!r} above n = {MAX_N}")
        return _run_larger(arguments)
    asked, where = _asked(arguments)
    n, batch, dtype, math = asked.problem.n, asked.size, asked.problem.dtype, asked.problem.math
    # All of it before the first line, so that an error prints nothing else.
    if arguments.op != POTRF.name:
        kinds = (arguments.layout,) if arguments.layout else ("canonical", "chunked")
        layouts = [explain.usual_layout(asked, kind) for kind in kinds]
        found = {
            f"{asked.problem.op} of {'arrays' if layout.kind == 'canonical' else 'a batch'}": explain.of_layout(
                asked, layout, "arrays are worked on where they are" if layout.kind == "canonical" else "by default"
            )
            for layout in layouts
        }
    elif arguments.layout is None:
        arrays, batches = explain.of_arrays(asked), explain.of_batches(asked)
        packed = ", packed and unpacked" if arrays.layout.kind != "canonical" else ""
        found = {f"cholesky(a), a of shape ({batch}, {n}, {n}){packed}": arrays}
        found["factor(batch), of a batch in the default layout"] = batches
        own = explain.of_batches(asked, math)
        if own.layout != batches.layout:
            found[f"factor(batch), of one in default_layout(n, batch=..., math={math!r})"] = own
    else:
        layout = explain.usual_layout(asked, arguments.layout)
        found = {"factor(batch)": explain.of_layout(asked, layout)}
    named = "" if arguments.op == "potrf" else f"{arguments.op}, "
    print(f"{named}n={n}, batch={batch:,}, {dtype}, {math}, on {where}")
    for what, explanation in found.items():
        _print(what, explanation, asked)
    return 0


def _run_larger(arguments: argparse.Namespace) -> int:
    """Print how arrays above the orders of kernels are factored, and why: the user's entry, or what ships."""
    if arguments.layout not in (None, "canonical"):
        raise SpecError(f"--layout: got {arguments.layout!r}, expected 'canonical' above n = {MAX_N}")
    n, dtype = arguments.n, arguments.dtype
    batch = matrices(arguments.batch, n, dtype)
    backend = None if arguments.arch else get_backend(arguments.backend)
    where = f"any GPU of {arguments.arch}" if backend is None else f"{backend.model} ({backend.target})"
    print(f"n={n}, batch={batch:,}, {dtype}, on {where}")
    print(f"\ncholesky(a), a of shape ({batch}, {n}, {n})")
    if backend is not None and backend.name == "cpu":
        print("  way        LAPACK, its matrices spread over the cores")
        return 0
    if backend is None:
        how, entry = Chosen(plan(n, batch, dtype, upper=False))
    else:
        how, entry = chosen(device(), n, batch, dtype, upper=False)
    print(f"  way        {how.name}")
    if entry is not None:
        _print_entry(entry, n, batch)
    elif isinstance(how.panel, OnChip):
        print("  because    kernels that have a matrix on chip were the fastest to their last order")
    else:
        _print_shipped(n, batch, dtype)
    print(f"  needs      {'nothing else' if how.blocking is None else 'CuPy, for cuBLAS'}")
    return 0


def _print_entry(entry: Planned, n: int, batch: int) -> None:
    """Print what was measured of a plan, and of the next best."""
    said = entry.about
    tuned = f"tuned at n={entry.n}, batch={entry.batch:,} on {said.get('date', 'an unknown day')}"
    among = f"{said['measured']} ways measured" if "measured" in said else "ways measured"
    if entry.kept:
        print(f"  because    it comes with the library; {tuned} ({among}): no other was faster by {entry.margin:.1%}")
    else:
        before = "could not run" if entry.incumbent_ns is None else f"took {_seconds(entry.incumbent_ns / 1e9)}"
        print(f"  because    {tuned} ({among}); what was used before {before}, the margin was {entry.margin:.1%}")
    _print_measured(entry, n, batch, _why_not(entry.ns, entry.runner_up_ns or entry.ns, entry.margin))


def _print_shipped(n: int, batch: int, dtype: str) -> None:
    """Print what the table of plans says of the one that serves."""
    table = shipped()
    entry = table.entry(n, batch if n <= ALONE else 1, dtype)
    where = f"on {table.about.get('gpu')}, {table.about.get('date')}"
    print(f"  because    it was the fastest of those measured at n={entry.n}, batch={entry.batch:,} {where}")
    _print_measured(entry, n, batch, "")


def _print_measured(entry: Planned | Entry, n: int, batch: int, why: str) -> None:
    """Print what a plan took, and the next best."""
    print(f"  measured   {_seconds(entry.ns / 1e9)} a matrix, {_number(flops(entry.n) / entry.ns)} GFLOP/s")
    if (entry.n, entry.batch) == (n, batch):
        print(f"  expected   {_seconds(entry.ns * batch / 1e9)} for {batch:,} matrices")
    if entry.runner_up is None or entry.runner_up_ns is None:
        print("  runner-up  not known: nothing else was measured there")
        return
    change = f"{entry.runner_up_ns / entry.ns - 1:+.1%}{why}"
    print(f"  runner-up  {_seconds(entry.runner_up_ns / 1e9)} ({change}): {plan_words(entry.runner_up)}")


def _asked(arguments: argparse.Namespace) -> tuple[Request, str]:
    """The request, and a description of the device."""
    batch = matrices(arguments.batch, arguments.n, arguments.dtype)
    problem = Problem(arguments.n, arguments.dtype, op=arguments.op, math=arguments.math)
    if arguments.arch:
        asked = Request(problem, CUDA.name, batch=batch, arch=arguments.arch)
        return asked, f"any GPU of {arguments.arch}: tables of users do not count"
    backend = get_backend(arguments.backend)
    asked = Request(problem, backend.target, batch=batch, arch=backend.architecture, device=backend.model)
    return asked, f"{backend.model} ({backend.architecture or backend.target})"


def _print(what: str, found: explain.Explanation, asked: Request) -> None:
    print(f"\n{what}: {_words(found)}")
    print(f"  because    {found.layout_reason}")
    print(f"  kernel     {found.spec.name}")
    print(f"  because    {found.reason}")
    if found.timing is None:
        also = "--n and --batch" if asked.problem.op == POTRF.name else "--op, --n and --batch"
        tune = f": `python -m batchchol tune` with these {also} measures it here"
        print(f"  measured   not known{tune if asked.problem.op in OPS else ''}")
        return
    _print_times(found, asked)


def _words(found: explain.Explanation) -> str:
    layout = found.layout
    if layout.kind == "canonical":
        return f"as they are, in {layout.order} order"
    return f"in chunks of {layout.chunk}" if layout.chunk else layout.kind


def _print_times(found: explain.Explanation, asked: Request) -> None:
    assert found.timing is not None, "the caller has looked"
    ns, n, batch, said, where = found.timing
    more, on = f"; {said}" if said else "", f" on {where}" if where else ""
    rate = _number(flops(n, op=asked.problem.op) / ns)
    print(f"  measured   {ns:.4g} ns a matrix, {rate} GFLOP/s (n={n}, batch={batch:,}{more}){on}")
    if n == asked.problem.n and not said and abs(log(batch / asked.size)) <= log(_NEAR):
        print(
            f"  expected   {_seconds(ns * asked.size / 1e9)} for {asked.size:,} matrices{' there' if where else ''}"
        )
    if found.runner_up is None:
        print("  runner-up  not known: nothing else was measured there")
        return
    other, other_ns = found.runner_up
    change = f"{other_ns / ns - 1:+.1%}{_why_not(ns, other_ns, found.margin)}"
    print(f"  runner-up  {other_ns:.4g} ns ({change}): {explain.differences(found.spec.schedule, other)}")


def _why_not(ns: float, other_ns: float, margin: float) -> str:
    """Why a runner-up that was faster is not what is used."""
    if not other_ns < ns <= other_ns * (1 + margin):
        return ""
    return f"; faster, but within the {100 * margin:.3g}% for which the table keeps one kernel"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _seconds(value: float) -> str:
    """A time in words, such as "1.23 ms"."""
    for unit, seconds in (("s", 1.0), ("ms", 1e-3)):
        if value >= seconds:
            return f"{value / seconds:.3g} {unit}"
    return f"{value * 1e6:.3g} \N{MICRO SIGN}s"
