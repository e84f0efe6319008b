"""`python -m batchchol emit`: print the generated source of a spec."""

from __future__ import annotations

import argparse
from dataclasses import replace

from batchchol.arguments import positive
from batchchol.defaults import default_spec
from batchchol.native import supported_targets
from kernelgen import TARGETS, KernelSpec, generate
from kernelgen.spec import CACHES, LAYOUT_KINDS, LOOKINGS, MATHS, ORDERS, UNROLLS
from kernelgen.targets import ELEMENT_BYTES

HELP = "print the generated source of a kernel; what is not said is the measured default"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The fields of a spec."""
    parser.add_argument("--n", type=int, required=True, help="order of the matrices, 1 to 128")
    parser.add_argument("--dtype", default="float32", choices=tuple(ELEMENT_BYTES))
    parser.add_argument("--uplo", default="lower", choices=("lower", "upper"), help="triangle read and written")
    parser.add_argument("--layout", default="chunked", choices=LAYOUT_KINDS)
    parser.add_argument("--order", choices=ORDERS, help="elements of a matrix; default: row if canonical, else col")
    parser.add_argument("--math", default="ieee", choices=MATHS)
    parser.add_argument("--nb", type=int, help="tile size, 1 to 16")
    parser.add_argument("--looking", choices=LOOKINGS)
    parser.add_argument("--unroll", choices=UNROLLS)
    parser.add_argument("--prefetch", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--staged", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--threads", type=positive, help="threads of a GPU's block")
    parser.add_argument("--cache", choices=CACHES, help="which a GPU's on-chip memory favours")
    parser.add_argument("--stride", type=positive, help="the only chunk that a GPU kernel runs on (default: any)")
    parser.add_argument("--target", choices=tuple(TARGETS), help="default: this machine's widest SIMD")
    parser.add_argument("--in-place", action="store_true")


def run(arguments: argparse.Namespace) -> int:
    """Print the source."""
    print(generate(spec_of(arguments)).text, end="")
    return 0


def spec_of(arguments: argparse.Namespace) -> KernelSpec:
    """The spec that the arguments describe, on top of the measured default."""
    spec = default_spec(
        arguments.n,
        target=arguments.target or supported_targets()[0],
        dtype=arguments.dtype,
        layout=arguments.layout,
        order=arguments.order or ("row" if arguments.layout == "canonical" else "col"),
        math=arguments.math,
        uplo=arguments.uplo,
        in_place=arguments.in_place,
    )
    fields = ("nb", "looking", "unroll", "prefetch", "staged", "threads", "cache", "stride")
    chosen = {name: value for name in fields if (value := getattr(arguments, name)) is not None}
    return replace(spec, schedule=replace(spec.schedule, **chosen))
