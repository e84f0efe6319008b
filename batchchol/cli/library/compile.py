"""`python -m batchchol compile`: GPU kernels ahead of time; neither a GPU nor its driver is needed."""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from batchchol.artifacts.compilers import TIME_LIMIT, Compiler
from batchchol.artifacts.cuda_modules import Outcome, build_all, find
from batchchol.artifacts.nvcc import compile_target, find_nvcc
from batchchol.batches.sizes import architectures, counts, integers, positive, seconds
from batchchol.cli import interrupts
from batchchol.cli.options import JOBS, add_list_options, add_words, chosen, declare, option, with_choices
from batchchol.defaults.lookup import choices, default_choice, default_layout
from batchchol.defaults.request import Request
from batchchol.progress import ProgressDisplay
from kernelgen import CUDA, KernelSource, KernelSpec, Problem, SpecError, generate
from kernelgen.emit.support import support_kernels
from kernelgen.problem import LAYOUT_KINDS, MATHS, ORDERS
from kernelgen.targets import ELEMENT_BYTES

# Messages of failures are long: beyond this many they are only counted.
_SHOWN_FAILURES = 3
_MOST_COMBINATIONS = 100_000
# The options that take lists, besides the choices of schedules: the arguments of `_request`, in their order.
_ASKED = ("n", "dtype", "uplo", "math", "layout", "order", "chunk", "arch")
_NUMBERS = ("registers", "spill_bytes", "stack_bytes", "shared_bytes", "code_bytes")
_ROW = "{:10} {:8} {:>9} {:>7} {:>7} {:>7} {:>8} {:>7} {}"


@dataclass(frozen=True)
class Selection:
    """The kernels that the arguments describe, and why combinations were left out."""

    specs: tuple[KernelSpec, ...]
    unsupported: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The architectures, the fields of the specs, and how to compile."""
    parser.epilog = (
        "Lists are separated by commas. All combinations are compiled; options that are not given take the default's "
        "value."
    )
    declare(
        parser,
        option("--arch", type=architectures, required=True, help="such as sm_90 or sm_80,sm_90"),
        option("--n", type=integers, required=True, help="orders of the matrices, such as 8,16-20"),
    )
    add_words(parser, "--dtype", tuple(ELEMENT_BYTES), ["float32"])
    add_words(parser, "--layout", LAYOUT_KINDS, ["chunked"])
    parser.add_argument("--chunk", type=counts, help="of the batches to run on (default: the fastest of each order)")
    add_words(parser, "--order", ORDERS)
    add_words(parser, "--uplo", ("lower", "upper"), ["lower"])
    add_words(parser, "--math", MATHS, ["ieee"])
    parser.add_argument("--in-place", action="store_true", help="kernels that overwrite their input")
    add_list_options(parser)
    declare(
        parser,
        option(
            "--support",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="also kernels besides the factorization, such as packing (default: yes)",
        ),
        JOBS,
        option("--time-limit", type=seconds, default=TIME_LIMIT, help="of one compiler, in s (default: 120)"),
        option("--per-module", type=positive, default=8, help="kernels in a module (default: 8)"),
        option("--list", action="store_true", help="compile nothing; list the kernels, and which are in the cache"),
    )


def run(arguments: argparse.Namespace) -> int:
    """Compile; 0 if every kernel can be loaded now, 1 if some failed."""
    selection = select(arguments)
    if not selection.specs:
        raise SpecError(f"none of these combinations can be built: {selection.unsupported[0]}")
    sources = [*map(generate, selection.specs), *(support_kernels() if arguments.support else ())]
    if arguments.list:
        return _list(sources, arguments.arch)
    nvcc = find_nvcc()
    print(f"{nvcc.path}: {nvcc.identity}; kernels: {len(sources)}", file=sys.stderr)
    failed = 0
    for arch in arguments.arch:
        kept = interrupts.advice("compiled kernels are kept, the same command goes on from there")
        with kept, ProgressDisplay(sys.stderr, arch) as display:
            outcomes = build_all(
                sources,
                arch,
                jobs=arguments.jobs,
                per_module=arguments.per_module,
                time_limit=arguments.time_limit,
                progress=display,
            )
        _print_table(arch, outcomes)
        _say_what_is_ptx(arch, outcomes, nvcc)
        failed += _say_what_failed(outcomes)
    if selection.unsupported:
        print(f"unsupported: {len(selection.unsupported)}, such as {selection.unsupported[0]}", file=sys.stderr)
    return 1 if failed else 0


def select(arguments: argparse.Namespace) -> Selection:
    """The cross product of the options, each combination on top of its measured default.

    Raises
    ------
    SpecError
        If there are too many combinations.
    """
    specs: dict[KernelSpec, None] = {}
    unsupported = []
    # None is the best, or the usual, value there.
    asked = [getattr(arguments, name) or [None] for name in _ASKED]
    choices_of = chosen(arguments)
    if (count := math.prod(map(len, [*asked, *choices_of.values()]))) > _MOST_COMBINATIONS:
        raise SpecError(f"{count:,} combinations, expected at most {_MOST_COMBINATIONS:,}: shorten the lists")
    schedules = [dict(zip(choices_of, values, strict=True)) for values in itertools.product(*choices_of.values())]
    for combination in itertools.product(*asked):
        for schedule in schedules:
            try:
                specs |= dict.fromkeys(_specs(_request(*combination, in_place=arguments.in_place), schedule))
            except SpecError as error:
                unsupported.append(str(error))
    return Selection(tuple(specs), tuple(unsupported))


def _request(
    n: int,
    dtype: str,
    uplo: str,
    math: str,
    layout: str,
    order: str | None,
    chunk: int | None,
    arch: str,
    *,
    in_place: bool,
) -> Request:
    order = order or ("row" if layout == "canonical" else "col")
    return Request(Problem(n, dtype, uplo, math=math), CUDA.name, layout, order, chunk, in_place, arch=arch)


def _specs(request: Request, schedule: Mapping[str, Any]) -> list[KernelSpec]:
    """The kernels of a request: with nothing chosen those for all sizes of batches, else that of the usual one.

    If no chunk is given, few matrices may go into others than many, and those of one math into others again.
    """
    problem = request.problem

    def fastest(math: str | None, batch: int | None = None) -> Request:
        at = {"target": CUDA.name, "dtype": problem.dtype, "arch": request.arch}
        return replace(request, chunk=default_layout(problem.n, math=math, batch=batch, **at).chunk, batch=batch)

    usual = fastest(problem.math) if request.chunk is None else request
    if schedule:
        return [with_choices(default_choice(usual).spec, schedule)]
    specs = [choice.spec for choice in choices(usual)]
    if request.chunk is None and request.layout == "chunked":
        for math in (None, problem.math):
            specs += [choice.spec for choice in choices(fastest(math))]
            specs.append(default_choice(fastest(math, batch=1)).spec)
    return list(dict.fromkeys(specs))


def _list(sources: Sequence[KernelSource], architectures: Sequence[str]) -> int:
    for arch in architectures:
        for source in sources:
            print(f"{arch:10} {'cached' if find(source, arch) else 'missing':8} {source.entry}")
    return 0


def _print_table(arch: str, outcomes: Sequence[Outcome]) -> None:
    print(_ROW.format("arch", "status", "registers", "spills", "stack", "shared", "code", "seconds", "kernel"))
    for outcome in outcomes:
        status, stats = "cached" if outcome.reused else outcome.status, outcome.stats
        numbers = [getattr(stats, name, None) for name in _NUMBERS]
        cells = ["" if number is None else number for number in numbers]
        seconds = "" if stats is None else f"{stats.compile_seconds:.2f}"
        print(_ROW.format(arch, status, *cells, seconds, outcome.entry), flush=True)


def _say_what_is_ptx(arch: str, outcomes: Sequence[Outcome], nvcc: Compiler) -> None:
    if not any(outcome.status == "built" for outcome in outcomes):
        return
    kind, target = compile_target(nvcc, arch)
    if kind == "ptx":
        print(
            f"{arch}: nvcc {nvcc.version} does not know it, and built PTX for {target}: the GPU's driver compiles it "
            "when a kernel is loaded",
            file=sys.stderr,
        )


def _say_what_failed(outcomes: Sequence[Outcome]) -> int:
    failures = [outcome for outcome in outcomes if outcome.status != "built"]
    for outcome in failures[:_SHOWN_FAILURES]:
        print(f"{outcome.status}: {outcome.entry}: {outcome.message}", file=sys.stderr)
    if len(failures) > _SHOWN_FAILURES:
        print(f"and {len(failures) - _SHOWN_FAILURES} more failures", file=sys.stderr)
    return len(failures)
