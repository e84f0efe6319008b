"""`python -m batchchol emit`: print the generated source of a spec."""

from __future__ import annotations

import argparse

from batchchol.artifacts.c_library import supported_targets
from batchchol.batches.sizes import integer
from batchchol.cli.options import DTYPE, MATH, add_options, chosen, declare, option, with_choices
from batchchol.defaults.lookup import default_spec
from kernelgen import TARGETS, KernelSpec, generate
from kernelgen.problem import LAYOUT_KINDS, ORDERS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the fields of a spec."""
    declare(
        parser,
        option("--n", type=integer, required=True, help="order of the matrices, 1 to 128"),
        DTYPE,
        option("--uplo", default="lower", choices=("lower", "upper"), help="triangle read and written"),
        option("--layout", default="chunked", choices=LAYOUT_KINDS),
        option("--order", choices=ORDERS, help="elements of a matrix; default: row if canonical, else col"),
        MATH,
        option("--target", choices=tuple(TARGETS), help="default: this machine's widest SIMD"),
        option("--in-place", action="store_true"),
    )
    add_options(parser)


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
    return with_choices(spec, chosen(arguments))
