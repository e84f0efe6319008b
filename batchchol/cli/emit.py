"""`python -m batchchol emit`: print the generated source of a spec."""

from __future__ import annotations

import argparse
from dataclasses import fields

from batchchol.artifacts.c_library import supported_targets
from batchchol.batches.sizes import integer, positive
from batchchol.cli.schedule_options import with_choices
from batchchol.defaults.lookup import default_spec
from kernelgen import FAMILIES, TARGETS, KernelSpec, generate
from kernelgen.schedule_checks import CACHES, MATHS, UNROLLS
from kernelgen.schedules import LOOKINGS
from kernelgen.spec import LAYOUT_KINDS, ORDERS
from kernelgen.targets import ELEMENT_BYTES
from kernelgen.tensor_schedules import UPDATES

HELP = "print the generated source of a kernel; what is not said is the measured default"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The fields of a spec."""
    parser.add_argument("--n", type=integer, required=True, help="order of the matrices, 1 to 128")
    parser.add_argument("--dtype", default="float32", choices=tuple(ELEMENT_BYTES))
    parser.add_argument("--uplo", default="lower", choices=("lower", "upper"), help="triangle read and written")
    parser.add_argument("--layout", default="chunked", choices=LAYOUT_KINDS)
    parser.add_argument("--order", choices=ORDERS, help="elements of a matrix; default: row if canonical, else col")
    parser.add_argument("--math", default="ieee", choices=MATHS)
    parser.add_argument("--family", choices=tuple(FAMILIES), help="who works on a matrix; default: the default's")
    parser.add_argument("--nb", type=integer, help="tile size, 1 to 16 (family shared: 32), no more than n")
    parser.add_argument("--looking", choices=LOOKINGS)
    parser.add_argument("--unroll", choices=UNROLLS)
    parser.add_argument("--prefetch", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--staged", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--threads", type=positive, help="threads of a GPU's block")
    parser.add_argument("--cache", choices=CACHES, help="which a GPU's on-chip memory favours")
    parser.add_argument("--matrices", type=positive, help="of a block of family shared, of a team of family warp")
    parser.add_argument("--warps", type=positive, help="of a team of family warp, of a block of family strip")
    parser.add_argument("--teams", type=positive, help="of family warp, that make a block of threads")
    parser.add_argument("--update", choices=UPDATES, help="of family warp: tensor cores, or multiply-adds")
    parser.add_argument("--lanes", type=positive, help="matrices that a block of family block factors side by side")
    parser.add_argument("--blocks", type=positive, help="that a multiprocessor has room for (not family shared)")
    parser.add_argument(
        "--pipeline", type=integer, help="of family block, groups of matrices that have panels at a time"
    )
    parser.add_argument(
        "--early", type=integer, help="columns of tiles of a pipeline that fetch their next tiles early"
    )
    parser.add_argument("--ahead", type=integer, help="of family strip, strips that have room for two groups' tiles")
    parser.add_argument("--spare", type=integer, help="warps of a pipeline that take turns with its last ones")
    parser.add_argument("--fold", type=integer, help="first warps of a pipeline that do the work of two")
    parser.add_argument("--stride", type=positive, help="the only chunk that a GPU kernel runs on (default: any)")
    parser.add_argument(
        "--pdl", action="store_true", default=None, help="launched before its predecessors have ended"
    )
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
    choices = dict.fromkeys(field.name for family in FAMILIES.values() for field in fields(family))
    options = [name for name in ("family", *choices) if name != "math"]
    return with_choices(spec, {name: value for name in options if (value := getattr(arguments, name)) is not None})
