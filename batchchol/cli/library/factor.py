"""`python -m batchchol factor`: from a file of matrices to a file of their Cholesky factors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from batchchol.api import cholesky_ex
from batchchol.cli.options import BACKEND, MATH, declare, option
from batchchol.datasets import batch_files
from batchchol.datasets.files import Slices
from batchchol.errors import BatchcholError
from batchchol.files import check_writable
from kernelgen.targets import ELEMENT_BYTES

_SHOWN_FAILURES = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the files and how to factor."""
    parser.epilog = (
        "Exit status: 1 if a matrix is not positive definite; its factor is NaN, and standard error names it. "
        "Text may have one matrix: its order, then its elements; its factor is written in the same way."
    )
    declare(
        parser,
        option(
            "source", type=batch_files.data_file_or_stream, metavar="IN", help=".npy or .txt file; - reads either"
        ),
        option(
            "out",
            type=batch_files.data_file_or_stream,
            metavar="OUT",
            help=".npy or .txt file to write; - writes what IN is",
        ),
        option("--upper", action="store_true", help="U with A = U'U of the upper triangle, not L with A = LL'"),
        MATH,
        option("--dtype", choices=tuple(ELEMENT_BYTES), help="default: as in the .npy file; float64 for text"),
        BACKEND,
    )


def run(arguments: argparse.Namespace) -> int:
    """Factor; 0 if every matrix is positive definite, else 1."""
    to_stream = arguments.out == batch_files.STANDARD
    check_writable("/dev/stdout" if to_stream else arguments.out)
    failures = Failures()
    try:
        with ExitStack() as stack:
            from_stream = arguments.source == batch_files.STANDARD
            source = stack.enter_context(batch_files.standard_input()) if from_stream else arguments.source
            slices = batch_files.read(source, arguments.dtype)
            factors = _factored(slices, arguments, failures)
            kind = batch_files.kind_of(source if to_stream else arguments.out)
            batch_files.write(arguments.out, batch_files.watched(factors, "factored"), kind)
    except ValueError as error:
        raise BatchcholError(str(error)) from error
    if not to_stream:
        print(f"{arguments.out}: {slices.batch:,} factors of order {slices.n}, {slices.dtype}")
    for line in failures.lines(slices.batch):
        print(line, file=sys.stderr)
    return 1 if failures.count else 0


@dataclass
class Failures:
    """The matrices that are not positive definite: how many there are, and the info of the first few."""

    count: int = 0
    first: list[tuple[int, int]] = field(default_factory=list)

    def add(self, start: int, info: Any) -> None:
        """Add the info of matrices from `start` on."""
        failed = info.nonzero()[0].tolist()
        self.count += len(failed)
        left = _SHOWN_FAILURES - len(self.first)
        self.first += ((start + index, int(info[index])) for index in failed[:left])

    def lines(self, batch: int) -> list[str]:
        """The lines to print; none if all matrices are positive definite."""
        if not self.count:
            return []
        more = self.count - len(self.first)
        return [
            f"{self.count:,} of {batch:,} matrices are not positive definite; their factors are NaN",
            *(
                f"matrix {at}: info {info}, the order of its first leading minor that is not"
                for at, info in self.first
            ),
            *([f"and {more:,} more"] if more else []),
        ]


def _factored(slices: Slices, arguments: argparse.Namespace, failures: Failures) -> Slices:
    def parts() -> Iterator[tuple[int, Any]]:
        for start, dense in slices:
            factors, info = cholesky_ex(dense, upper=arguments.upper, math=arguments.math, backend=arguments.backend)
            failures.add(start, info)
            # What a failed factorization leaves is no factor, and must not be taken for one.
            factors[info != 0] = np.nan
            yield start, factors

    return Slices(slices.batch, slices.n, slices.dtype, parts(), single=slices.single)
