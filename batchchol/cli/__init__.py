"""The command line: one module a command, each with HELP, add_arguments and run."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from batchchol.errors import BatchcholError
from kernelgen import SpecError

COMMANDS = (
    "run",
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 if it did its work, 2 if it says why not, 130 if it was interrupted."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except (BatchcholError, SpecError) as error:
        print(f"batchchol: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("batchchol: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the output has had enough; nothing more may be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m batchchol")
    parser.description = "Batched Cholesky factorization of huge numbers of tiny SPD matrices."
    commands = parser.add_subparsers(required=True, metavar="command")
    for name in COMMANDS:
        module = importlib.import_module(f"batchchol.cli.{name}")
        command = commands.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser
