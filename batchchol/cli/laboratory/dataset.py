"""`python -m batchchol dataset`: make, convert and look into batches on disk."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotrf

from batchchol.batches.checks import check_range
from batchchol.batches.sizes import integer, memory
from batchchol.cli import interrupts
from batchchol.cli.options import DTYPE, Option, add_action, option
from batchchol.datasets import batch_files, catalogue
from batchchol.datasets.files import DTYPES, Slices
from batchchol.datasets.generation import SMALLEST_BATCH, stream
from batchchol.datasets.ladder import Ladder
from batchchol.errors import BatchcholError
from batchchol.files import make_folder

_RECIPE: tuple[Option, ...] = (
    option("name", help="a recipe: see list"),
    option("--n", type=integer, required=True, help="order of the matrices"),
    option("--seed", type=integer, default=0, help="0 to 2**64 - 1 (default 0)"),
    DTYPE,
    option("--param", action="append", default=[], metavar="KEY=VALUE", help="of the recipe"),
)
"""What names a data set."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their options."""
    actions = parser.add_subparsers(required=True, metavar="action")
    add_action(actions, "list", _list, help="the recipes, with their parameters and sources")
    add_action(
        actions,
        "generate",
        _generate,
        *_RECIPE,
        option("--batch", type=integer, required=True, help="how many matrices"),
        option("--start", type=integer, default=0, help="index of the first one (default 0)"),
        option("--out", type=batch_files.data_file, required=True, help="file to write: .npy, or .txt for text"),
        help="make matrices start ... start + batch - 1 of a data set",
    )
    add_action(
        actions,
        "ladder",
        _ladder,
        *_RECIPE,
        option("--up-to", type=memory, default="1GiB", help="of the largest batch (default 1GiB)"),
        option("--out", type=Path, metavar="FOLDER", help="where to make them; without it they are listed"),
        help="list or make its batches of 1,024, 2,048, 4,096 ... matrices",
    )
    add_action(
        actions,
        "convert",
        _convert,
        option("source", type=batch_files.data_file, help=".npy or .txt file"),
        option("out", type=batch_files.data_file, help=".npy or .txt file to write"),
        option("--dtype", choices=DTYPES, help="default: as in the .npy file; float64 for text"),
        help="copy a batch from one format or precision to another",
    )
    add_action(
        actions,
        "show",
        _show,
        option("file", type=batch_files.data_file, help=".npy or .txt file"),
        option("--matrix", type=integer, metavar="I", help="print matrix I (from 0) instead"),
        help="what a file holds: sizes, range, symmetry, definiteness",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the action; report a bad value as an error message, not a traceback."""
    try:
        return int(arguments.action(arguments))
    except ValueError as error:
        raise BatchcholError(str(error)) from error


def _list(arguments: argparse.Namespace) -> int:
    for recipe in catalogue.catalogue().values():
        print(f"{recipe.name}\n    {recipe.description}")
        for parameter in recipe.parameters.values():
            default = (
                ",".join(map(str, parameter.default)) if isinstance(parameter.default, tuple) else parameter.default
            )
            print(f"    --param {parameter.name}={default}  {parameter.about}")
        print(f"    source: {recipe.source}")
        if recipe.requires:
            print(f"    needs: {', '.join(recipe.requires)}")
    return 0


def _parameters(arguments: argparse.Namespace) -> dict[str, Any]:
    """The recipe's parameters, checked."""
    recipe = catalogue.find(arguments.name)
    parameters: dict[str, Any] = {}
    for assignment in arguments.param:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise ValueError(f"--param: got {assignment!r}, expected KEY=VALUE")
        parameters[key] = catalogue.parse(recipe, key, text)
    return parameters


def _generate(arguments: argparse.Namespace) -> int:
    parameters = _parameters(arguments)
    check_range("--batch", arguments.batch, 0)
    slices = stream(
        arguments.name,
        n=arguments.n,
        start=arguments.start,
        stop=arguments.start + arguments.batch,
        seed=arguments.seed,
        dtype=arguments.dtype,
        **parameters,
    )
    return _write(arguments.out, slices)


def _ladder(arguments: argparse.Namespace) -> int:
    named = {name: getattr(arguments, name) for name in ("name", "n", "seed", "dtype")}
    ladder = Ladder(**named, most_bytes=arguments.up_to, parameters=_parameters(arguments))
    if not ladder.batches:
        raise ValueError(f"--up-to: expected at least {ladder.nbytes(SMALLEST_BATCH):,} bytes, one batch of 1,024")
    if arguments.out is None:
        for batch in ladder.batches:
            print(f"{batch:,} matrices of order {ladder.n}, {ladder.dtype}, {ladder.nbytes(batch):,} bytes")
        return 0
    make_folder(arguments.out)
    with interrupts.advice("files that were written are kept, the same command makes the others"):
        for path, there in ladder.write(arguments.out):
            print(f"{path}: {path.stat().st_size:,} bytes{', already there' if there else ''}", flush=True)
    return 0


def _convert(arguments: argparse.Namespace) -> int:
    return _write(arguments.out, batch_files.read(arguments.source, arguments.dtype))


def _show(arguments: argparse.Namespace) -> int:
    slices = batch_files.read(arguments.file, None)
    if arguments.matrix is not None:
        return _print_matrix(slices, arguments.matrix)
    text = arguments.file.suffix == ".txt"
    print(f"format     {'text, read as float64' if text else 'npy, ' + slices.dtype}")
    print(f"batch      {slices.batch:,}\nn          {slices.n}")
    print(f"bytes      {arguments.file.stat().st_size:,}")
    for name, value in _survey(batch_files.watched(slices, "examined")):
        print(f"{name:10} {value}")
    return 0


def _print_matrix(slices: Slices, index: int) -> int:
    check_range("--matrix", index, 0, slices.batch - 1)
    number = "{:.9g}" if slices.dtype == "float32" else "{:.17g}"
    for start, dense in slices:
        if index < start + len(dense):
            for row in dense[index - start].tolist():
                print(" ".join(number.format(element) for element in row))
            break
    return 0


def _survey(slices: Slices) -> Iterator[tuple[str, str]]:
    """What can be said of the values, from one pass over them."""
    batch, symmetric, finite, definite, first = slices.batch, 0, 0, 0, ""
    smallest, largest = np.inf, -np.inf
    for start, dense in slices:
        symmetric += int(((dense == dense.swapaxes(1, 2)) | np.isnan(dense)).all((1, 2)).sum())
        finite += int(np.isfinite(dense).all((1, 2)).sum())
        smallest = min(smallest, np.fmin.reduce(dense, None, initial=np.inf))
        largest = max(largest, np.fmax.reduce(dense, None, initial=-np.inf))
        for index, matrix in enumerate(dense, start):
            info = dpotrf(matrix, lower=1)[1] if np.isfinite(matrix).all() else -1
            definite += info == 0
            if info and not first:
                first = f"; first other: matrix {index}" + (f", leading minor {info}" if info > 0 else "")
    yield "range", f"{smallest:.9g} to {largest:.9g}" if smallest <= largest else "no numbers"
    yield "finite", f"{finite:,} of {batch:,}"
    yield "symmetric", f"{symmetric:,} of {batch:,}"
    yield "definite", f"{definite:,} of {batch:,}{first}"


def _write(path: Path, slices: Slices) -> int:
    batch, n, dtype = slices.batch, slices.n, slices.dtype
    with interrupts.advice(f"{path} was not written, run the same command again"):
        batch_files.write(path, batch_files.watched(slices, "written"), path.suffix)
    print(f"{path}: {batch:,} matrices of order {n}, {dtype}, {path.stat().st_size:,} bytes")
    return 0
