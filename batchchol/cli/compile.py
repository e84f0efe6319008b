"""`python -m batchchol compile`: GPU kernels ahead of time; neither a GPU nor its driver is needed."""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchchol import interrupts
from batchchol.artifacts.compilers import TIME_LIMIT
from batchchol.artifacts.cuda_modules import Outcome, build_all, find
from batchchol.artifacts.nvcc import Nvcc, compile_target, find_nvcc
from batchchol.batches.sizes import architectures, counts, integers, names, positive, seconds
from batchchol.cli.schedule_options import with_choices
from batchchol.defaults.lookup import choices, default_layout, default_spec
from batchchol.progress import ProgressDisplay
from kernelgen import CUDA, FAMILIES, KernelSource, KernelSpec, SpecError, generate
from kernelgen.schedule_checks import CACHES, MATHS, UNROLLS
from kernelgen.schedules import LOOKINGS
from kernelgen.spec import LAYOUT_KINDS, ORDERS
from kernelgen.support import support_kernels
from kernelgen.targets import ELEMENT_BYTES
from kernelgen.tensor_schedules import UPDATES

HELP = "compile GPU kernels ahead of time, for any GPU, on any machine with nvcc"

# What the schedule of the measured default is replaced by, where it is said.
SCHEDULE_OPTIONS = (
    "family",
    "nb",
    "looking",
    "unroll",
    "threads",
    "matrices",
    "warps",
    "teams",
    "update",
    "lanes",
    "blocks",
    "pipeline",
    "early",
    "ahead",
    "spare",
    "fold",
    "staged",
    "cache",
    "stride",
    "pdl",
)
# Messages of failures are long: more of them than this are counted only.
_SHOWN_FAILURES = 3
_MOST_COMBINATIONS = 100_000


@dataclass(frozen=True)
class Selection:
    """The kernels that the arguments describe, and why combinations were left out."""

    specs: tuple[KernelSpec, ...]
    unsupported: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The architectures, the fields of the specs, and how to compile."""
    parser.epilog = "Lists are separated by commas. All combinations are compiled; what is not said is the default's."
    parser.add_argument("--arch", type=architectures, required=True, help="such as sm_90 or sm_80,sm_90")
    parser.add_argument("--n", type=integers, required=True, help="orders of the matrices, such as 8,16-20")
    _add_list(parser, "--dtype", tuple(ELEMENT_BYTES), ["float32"])
    _add_list(parser, "--layout", LAYOUT_KINDS, ["chunked"])
    parser.add_argument("--chunk", type=counts, help="of the batches to run on (default: the fastest of each order)")
    _add_list(parser, "--order", ORDERS)
    _add_list(parser, "--uplo", ("lower", "upper"), ["lower"])
    _add_list(parser, "--math", MATHS, ["ieee"])
    parser.add_argument("--in-place", action="store_true", help="kernels that overwrite their input")
    _add_list(parser, "--family", tuple(FAMILIES))
    parser.add_argument("--nb", type=integers, help="tile sizes, such as 1-8")
    _add_list(parser, "--looking", LOOKINGS)
    _add_list(parser, "--unroll", UNROLLS)
    parser.add_argument("--threads", type=integers, help="threads of a block")
    parser.add_argument("--matrices", type=integers, help="of a block of family shared, of a team of family warp")
    parser.add_argument("--warps", type=integers, help="of a team of family warp, of a block of family strip")
    parser.add_argument("--teams", type=integers, help="of family warp, that make a block of threads")
    _add_list(parser, "--update", UPDATES)
    parser.add_argument("--lanes", type=integers, help="matrices of a block of family block")
    parser.add_argument("--blocks", type=integers, help="that a multiprocessor has room for (not family shared)")
    parser.add_argument("--pipeline", type=integers, help="of family block, groups that have panels at a time")
    parser.add_argument("--early", type=integers, help="columns of tiles of a pipeline that fetch their next early")
    parser.add_argument("--ahead", type=integers, help="of family strip, strips that have room for two groups' tiles")
    parser.add_argument("--spare", type=integers, help="warps of a pipeline that take turns with its last ones")
    parser.add_argument("--fold", type=integers, help="first warps of a pipeline that do the work of two")
    staged = "family thread: canonical arrays by way of shared memory, a warp's matrices together"
    parser.add_argument("--staged", action="store_const", const=[True], help=staged)
    parser.add_argument(
        "--pdl", action="store_const", const=[True], help="launched before its predecessors have ended"
    )
    _add_list(parser, "--cache", CACHES)
    parser.add_argument("--stride", type=integers, help="chunks that are constants of the code")
    parser.add_argument(
        "--support",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also what a GPU does besides factoring, such as packing (default: yes)",
    )
    parser.add_argument("--jobs", type=positive, help="compilers at a time (default: the cores)")
    parser.add_argument("--time-limit", type=seconds, default=TIME_LIMIT, help="of one compiler, in s (default: 120)")
    parser.add_argument("--per-module", type=positive, default=8, help="kernels in a module (default: 8)")
    parser.add_argument("--list", action="store_true", help="only say which kernels there are, and are in the cache")


def _add_list(
    parser: argparse.ArgumentParser, option: str, allowed: tuple[str, ...], default: list[str] | None = None
) -> None:
    said = f" (default: {default[0]})" if default else ""
    words = f"some of {', '.join(allowed)}, or all{said}"
    parser.add_argument(option, type=names(allowed), default=default, metavar="LIST", help=words)


def run(arguments: argparse.Namespace) -> int:
    """Compile; 0 if every kernel can be loaded now, 1 if some failed."""
    selection = select(arguments)
    if not selection.specs:
        raise SpecError(f"none of these combinations can be built: {selection.unsupported[0]}")
    sources = sources_of(selection.specs, support=arguments.support)
    if arguments.list:
        return _list(sources, arguments.arch)
    nvcc = find_nvcc()
    print(f"{nvcc.path}: {nvcc.identity}; kernels: {len(sources)}", file=sys.stderr)
    failed = 0
    for arch in arguments.arch:
        with interrupts.advice("compiled kernels are kept, the same command goes on from there"):
            outcomes = _compile(sources, arch, arguments)
        _print_table(arch, outcomes)
        _say_what_is_ptx(arch, outcomes, nvcc)
        failed += _say_what_failed(outcomes)
    if selection.unsupported:
        print(f"unsupported: {len(selection.unsupported)}, such as {selection.unsupported[0]}", file=sys.stderr)
    return 1 if failed else 0


def select(arguments: argparse.Namespace) -> Selection:
    """The cross product of what was said, each combination on top of its measured default."""
    specs: dict[KernelSpec, None] = {}
    unsupported = []
    axes = {option: values for option in SCHEDULE_OPTIONS if (values := getattr(arguments, option)) is not None}
    _check_count(arguments, axes)
    schedules = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    for problem in _problems(arguments):
        for chosen in schedules:
            try:
                specs |= dict.fromkeys(_specs(problem, chosen))
            except SpecError as error:
                unsupported.append(str(error))
    return Selection(tuple(specs), tuple(unsupported))


def _check_count(arguments: argparse.Namespace, axes: Mapping[str, Sequence[Any]]) -> None:
    """Refuse more combinations than anybody waits for, before each is tried."""
    problems = ("arch", "n", "dtype", "layout", "chunk", "order", "uplo", "math")
    lengths = [len(getattr(arguments, name) or [None]) for name in problems] + [len(each) for each in axes.values()]
    if (count := math.prod(lengths)) > _MOST_COMBINATIONS:
        raise SpecError(f"{count:,} combinations, expected at most {_MOST_COMBINATIONS:,}: shorten the lists")


def sources_of(specs: Sequence[KernelSpec], *, support: bool) -> list[KernelSource]:
    """The sources of factorization kernels, and those of the kernels that go with them."""
    return [generate(spec) for spec in specs] + list(support_kernels() if support else ())


def _problems(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The arguments of `choices`; None is what is best, or usual, there."""
    axes = {"arch": arguments.arch, "n": arguments.n, "dtype": arguments.dtype, "layout": arguments.layout}
    axes |= {"chunk": arguments.chunk or [None], "order": arguments.order or [None]}
    axes |= {"uplo": arguments.uplo, "math": arguments.math}
    return [
        dict(zip(axes, values, strict=True)) | {"in_place": arguments.in_place}
        for values in itertools.product(*axes.values())
    ]


def _specs(problem: dict[str, Any], chosen: dict[str, Any]) -> list[KernelSpec]:
    """The kernels of a problem: with nothing chosen those for all sizes of batches, else that of the usual one.

    Where nobody says the chunk, few matrices may go into others than many, and those of one math into others again.
    """
    order = problem["order"] or ("row" if problem["layout"] == "canonical" else "col")
    at = {"target": CUDA.name, "dtype": problem["dtype"], "arch": problem["arch"]}
    chunk = problem["chunk"]
    if chunk is None:
        chunk = default_layout(problem["n"], math=problem["math"], **at).chunk
    case = problem | {"target": CUDA.name, "order": order, "chunk": chunk}
    if chosen:
        return [with_choices(default_spec(**case), chosen)]
    specs = [choice.spec for choice in choices(**case)]
    if problem["chunk"] is None and problem["layout"] == "chunked":
        for math in (None, problem["math"]):
            many, few = (default_layout(problem["n"], batch=batch, math=math, **at).chunk for batch in (None, 1))
            specs += [choice.spec for choice in choices(**case | {"chunk": many})]
            specs.append(default_spec(**case | {"chunk": few, "batch": 1}))
    return list(dict.fromkeys(specs))


def _list(sources: Sequence[KernelSource], architectures: Sequence[str]) -> int:
    for arch in architectures:
        for source in sources:
            print(f"{arch:10} {'cached' if find(source, arch) else 'missing':8} {source.entry}")
    return 0


def _compile(sources: Sequence[KernelSource], arch: str, arguments: argparse.Namespace) -> list[Outcome]:
    with ProgressDisplay(sys.stderr, arch) as display:
        return build_all(
            sources,
            arch,
            jobs=arguments.jobs,
            per_module=arguments.per_module,
            time_limit=arguments.time_limit,
            progress=display,
        )


def _print_table(arch: str, outcomes: Sequence[Outcome]) -> None:
    print(_row("arch", "status", "registers", "spills", "stack", "shared", "code", "seconds", "kernel"))
    for outcome in outcomes:
        status, stats = "cached" if outcome.reused else outcome.status, outcome.stats
        numbers: list[object] = [None] * 6
        if stats is not None:
            numbers = [stats.registers, stats.spill_bytes, stats.stack_bytes, stats.shared_bytes]
            numbers += [stats.code_bytes, f"{stats.compile_seconds:.2f}"]
        print(_row(arch, status, *numbers, outcome.entry), flush=True)


def _row(arch: str, status: str, *rest: object) -> str:
    *numbers, kernel = ("" if value is None else str(value) for value in rest)
    cells = (number.rjust(width) for number, width in zip(numbers, (9, 7, 7, 7, 8, 7), strict=True))
    return " ".join((f"{arch:10} {status:8}", *cells, kernel))


def _say_what_is_ptx(arch: str, outcomes: Sequence[Outcome], nvcc: Nvcc) -> None:
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
