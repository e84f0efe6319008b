"""Options as values: a command lists its own, and those that several commands have are defined once, here."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

from batchchol.batches.sizes import positive
from kernelgen.problem import MATHS
from kernelgen.targets import ELEMENT_BYTES


class Option(NamedTuple):
    """The names of an argument, and the keywords that `ArgumentParser.add_argument` gets for it."""

    names: tuple[str, ...]
    settings: dict[str, Any]


def option(*names: str, **settings: Any) -> Option:
    """An argument of a command line, as `ArgumentParser.add_argument` takes it."""
    return Option(names, settings)


def declare(parser: argparse.ArgumentParser | argparse._ArgumentGroup, *options: Option) -> None:
    """Add options to a parser or to a group of it, in their order."""
    for each in options:
        parser.add_argument(*each.names, **each.settings)


BACKEND = option("--backend", help="cpu or cuda (default: BATCHCHOL_BACKEND, else cpu)")
DTYPE = option("--dtype", choices=tuple(ELEMENT_BYTES), default="float32", help="default: %(default)s")
MATH = option("--math", choices=MATHS, default=MATHS[0], help="default: %(default)s")
JOBS = option("--jobs", type=positive, help="compilers at a time (default: the cores)")


def add_action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    *options: Option,
    help: str,
) -> None:
    """Add an action of a command, whose function is then the argument `action`."""
    parser = actions.add_parser(name, help=help)
    declare(parser, *options)
    parser.set_defaults(action=run)
