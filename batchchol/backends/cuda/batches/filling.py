"""Data sets that a GPU makes, with the CPU's bits; as `batchchol.backends.cuda.support`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from typing import cast

import numpy as np

from batchchol.backends.cuda.support import Launcher, integers, pointers
from batchchol.batches.layouts import padded, stride
from batchchol.datasets import catalogue, recipes
from batchchol.datasets.catalogue import Value
from batchchol.datasets.generation import check_slice
from kernelgen import Layout
from kernelgen.emit.support import support_kernel

_FAILURES = {"negative": 0, "zero": 1, "nan": 2}
# The kernel sums products in 32-bit integers, which limits columns to 33,025.
_LARGEST_SUM = 2**31 - 1


def can_fill(recipe: str, n: int, dtype: str, parameters: dict[str, object]) -> bool:
    """Whether `fill` makes a data set on the device; the others are made on the host and copied.

    Raises
    ------
    ValueError
        An unknown recipe or parameter, or a value out of range.
    """
    recipes.plan(recipe, n, dtype, parameters)
    return _kernel(recipe, n, parameters) is not None


def fill(
    device: Launcher,
    packed: int,
    n: int,
    batch: int,
    layout: Layout,
    dtype: str,
    recipe: str,
    *,
    start: int = 0,
    seed: int = 0,
    stream: object | None = None,
    **parameters: object,
) -> None:
    """Overwrite a batch with matrices start, ..., start + batch - 1 of a data set, the bits of `datasets.fill`.

    The room beyond the batch becomes identities. Parameters and errors are those of `datasets.generate`.

    Raises
    ------
    ValueError
        Also if `can_fill` says no.
    """
    check_slice(n, start, start + batch, seed, dtype)
    plan = recipes.plan(recipe, n, dtype, parameters)
    kernel = _kernel(recipe, n, parameters)
    if kernel is None:
        raise ValueError(f"recipe: got {recipe!r} with {parameters}, which is made on the host: ask can_fill")
    name, arguments = kernel
    room, apart = padded(batch, layout), stride(batch, layout)
    stream_words = (np.uint64(seed), np.uint64(plan.stream << 32 | n))
    args = (
        *pointers(packed),
        *integers(n, apart, batch, room),
        *stream_words,
        *integers(plan.blocks, start, *arguments),
    )
    device.launch(support_kernel(name, dtype), room, args, stream)
    if recipe == "failing":
        chosen = catalogue.settle(catalogue.find(recipe), parameters)
        for failures in _failures(n, start, batch, chosen):
            args = (*pointers(packed), *integers(n, apart, *astuple(failures), _FAILURES[str(chosen["kind"])]))
            device.launch(support_kernel("spoil", dtype), failures.count * n, args, stream)


@dataclass(frozen=True)
class _Failures:
    """Matrices first, first + step, ... of a batch, `count` of them, which fail at the leading minor of order k."""

    first: int
    step: int
    count: int
    minor: int


def _failures(n: int, start: int, batch: int, chosen: Mapping[str, Value]) -> Iterator[_Failures]:
    """The failing members of matrices start, ..., start + batch - 1 of a data set, as few progressions."""
    members, every = cast(tuple[int, ...], chosen["members"]), cast(int, chosen["every"])
    minors = cast(tuple[int, ...], chosen["minors"]) or tuple(range(1, n + 1))
    stop = start + batch
    if members:
        for turn, member in enumerate(sorted(set(members))):
            if start <= member < stop:
                yield _Failures(member - start, 1, 1, minors[turn % len(minors)])
    elif every:
        first_turn, last_turn = -(-start // every), -(-stop // every)
        for turn in range(first_turn, min(last_turn, first_turn + len(minors))):
            count = -(-(last_turn - turn) // len(minors))
            yield _Failures(turn * every - start, every * len(minors), count, minors[turn % len(minors)])


def _kernel(recipe: str, n: int, parameters: Mapping[str, object]) -> tuple[str, tuple[int, ...]] | None:
    """The kernel of a recipe, and its own arguments; None if there is no kernel."""
    chosen = catalogue.settle(catalogue.find(recipe), parameters)
    if recipe == "failing":
        return _kernel(str(chosen["base"]), n, {})
    if recipe == "wishart":
        columns = recipes.wishart_columns(n, chosen)
        if columns * 255**2 > _LARGEST_SUM:
            return None
        return ("fill_wishart", (columns, recipes.wishart_exponent(columns)))
    if recipe == "banded":
        bandwidth = cast(int, chosen["bandwidth"])
        return ("fill_uniform", (2 * bandwidth + 1, bandwidth, 0))
    if recipe in ("diagonally_dominant", "graded"):
        return ("fill_uniform", (n, n, cast(int, chosen.get("octaves", 0))))
    return None
