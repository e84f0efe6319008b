"""The command line: rooms of commands, one module a command, each with add_arguments and run."""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

from batchchol import __version__
from batchchol.cli import interrupts, standard_streams
from batchchol.errors import BatchcholError
from kernelgen import SpecError

ROOMS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "library": {
            "info": "say what was found on this machine, what is missing and how to get it",
            "factor": "factor the matrices of a .npy or text file into another one",
            "explain": "say which kernel is used for an order and a batch, why, and what the next best would cost",
            "emit": "print the generated source of a kernel; options not given are the measured default's",
            "compile": "compile GPU kernels ahead of time, for any GPU, on any machine with nvcc",
            "cache": "what the cache of compiled kernels has; pack it into one file, unpack it elsewhere",
        },
        "laboratory": {
            "run": "the main job: data, generation, compile, check, the quick benchmarks, a table and a plot",
            "tune": "find the fastest kernels on this machine, for one case or a whole search space, and use them",
            "compare": "time the library and its peers side by side, with the same data, clock and checks",
            "reproduce": "measure published claims again on this machine, and say which of them hold",
            "report": (
                "explain a data set of `tune --space`: figures, what each parameter does, a page; or show a CSV file "
                "of `tune`"
            ),
            "replay": "show what each search strategy needs: they search in the data set of a whole sweep",
            "dataset": ("list the data sets, generate one, convert between .npy and text, or show what a file holds"),
        },
        "commits": {
            "gate": "say whether a commit is slower than another: proof where code is equal, else paired measurement",
            "noise": "learn what equal code seems to differ by on this machine, case by case; list flaky cases",
            "suite": "run asv on the points of a profile, for any commits, and show only what was measured",
            "history": "keep the suite's results of every commit and run, and say where they change",
            "publish": "write that history as a folder of pages, which need no internet",
            "machine": "write this machine's entry of asv's machine file",
        },
    }
)
"""The commands by room, each with what it does; `add_arguments` and `run` are in the module of its name."""

_ABOUT = MappingProxyType(
    {
        "library": "use the library",
        "laboratory": "measure this machine's kernels",
        "commits": "measure commits of batchchol",
    }
)
COMMANDS: Mapping[str, str] = MappingProxyType({name: says for room in ROOMS.values() for name, says in room.items()})


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
    words = sys.argv[1:] if argv is None else argv
    for word in words:
        # argparse takes the dashes for the end of the options, and then fails because there is no value.
        if word.endswith("=--"):
            return _failed(f"argument {word.removesuffix('=--')}: got '--', expected a value")
    try:
        arguments = _parser(words).parse_args(words)
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


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of all commands; only the module of the one that is called is imported, and knows its options."""
    parser = argparse.ArgumentParser(
        prog="python -m batchchol",
        description="Factor and solve huge batches of small matrices by generated kernels.",
        epilog=_listing(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"batchchol {__version__}")
    commands = parser.add_subparsers(
        required=True, metavar="command", help="one of those below; `command --help` lists its options"
    )
    parser.usage = "%(prog)s [-h] [--version] command ...   (--help lists the commands)"
    called = next((word for word in words if not word.startswith("-")), None)
    for room, purposes in ROOMS.items():
        for name, purpose in purposes.items():
            command = commands.add_parser(name, description=purpose)
            if name == called:
                module = importlib.import_module(f"batchchol.cli.{room}.{name}")
                module.add_arguments(command)
                command.set_defaults(run=module.run)
    return parser


def _listing() -> str:
    """The commands by room, as wide as the terminal."""
    indent = max(map(len, COMMANDS)) + 4
    width = max(shutil.get_terminal_size().columns - 2, 2 * indent)
    wrap = partial(textwrap.fill, width=width, subsequent_indent=" " * indent)
    rooms = []
    for room, purposes in ROOMS.items():
        lines = [wrap(f"  {name:{indent - 2}}{purpose}") for name, purpose in purposes.items()]
        rooms.append("\n".join([f"{_ABOUT[room]}:", *lines]))
    return "\n\n".join(rooms)
