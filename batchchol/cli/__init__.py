"""The command line: one module a command, each with HELP, add_arguments and run."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from batchchol import __version__, interrupts
from batchchol.cli import standard_streams
from batchchol.errors import BatchcholError
from kernelgen import SpecError

COMMANDS = (
    "run",
    "factor",
    "info",
    "emit",
    "compile",
    "cache",
    "tune",
    "explain",
    "report",
    "replay",
    "compare",
    "dataset",
    "machine",
)


@interrupts.handled()
def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns
    -------
    int
        0 if it did its work, 1 if its output is no longer read, 2 if it failed and said why, 130 if it was
        interrupted.
    """
    try:
        return _run(argv)
    except (BatchcholError, SpecError) as error:
        return _failed(str(error))
    except KeyboardInterrupt as interrupt:
        standard_streams.complain(interrupts.message(interrupt))
        interrupts.forget_frames(interrupt)
        return interrupts.status(interrupt)
    except BrokenPipeError:
        return 1
    except OSError as error:
        place = f"{error.filename}: " if error.filename is not None else "reading or writing failed: "
        return _failed(f"{place}{error.strerror or error}")
    finally:
        standard_streams.discard()


def _run(argv: Sequence[str] | None) -> int:
    standard_streams.prepare()
    for word in sys.argv[1:] if argv is None else argv:
        # argparse takes the dashes for the end of the options, and then fails for want of a value.
        if word.endswith("=--"):
            return _failed(f"argument {word.removesuffix('=--')}: got '--', expected a value")
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit:
        # After --help and --version.
        standard_streams.flush()
        raise
    status = int(arguments.run(arguments))
    standard_streams.flush()
    return status


def _failed(why: str) -> int:
    standard_streams.complain(f"error: {why}")
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m batchchol")
    parser.description = "Batched Cholesky factorization of huge numbers of tiny SPD matrices."
    parser.add_argument("--version", action="version", version=f"batchchol {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    for name in COMMANDS:
        module = importlib.import_module(f"batchchol.cli.{name}")
        command = commands.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser
