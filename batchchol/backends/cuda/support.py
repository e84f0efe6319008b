"""What a GPU does besides factoring: copies between layouts, repair, residuals, ceilings.

Every function takes the device that launches, device addresses as plain integers, and returns as soon as the kernels
are queued on `stream`. Nothing is allocated and nothing is synchronised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple
from itertools import chain
from typing import Protocol

import numpy as np

from batchchol.batches.layouts import padded, stride
from kernelgen import KernelSource, Layout
from kernelgen.emit.support import CHAINS, GATHERED_AXES, Tiling, support_kernel, tiling

Arguments = tuple[np.generic, ...]

_CLEARED = {None: 0, "upper": 1, "lower": 2}


class Launcher(Protocol):
    """What these functions need of a device."""

    def launch(self, source: KernelSource, items: int, args: Arguments, stream: object | None = None) -> None:
        """Queue a kernel on `items` items, if there are any; block and grid are those of `source.launch`."""


def pack(
    device: Launcher,
    dense: int,
    packed: int,
    n: int,
    batch: int,
    layout: Layout,
    dtype: str,
    *,
    first: int = 0,
    last: int | None = None,
    stream: object | None = None,
) -> None:
    """Copy canonical matrices in row order into a batch: matrices first, ..., last - 1 of it.

    Parameters
    ----------
    dense : int
        Address of (last - first, n, n) elements: its first matrix becomes matrix `first`. Ignored if last = first.
    packed : int
        Address of the whole array of the batch, of any layout, canonical included.
    n, batch, layout, dtype
        Those of the batch.
    first, last : int
        0 <= first <= last <= batch; by default the whole batch. If last = batch, the room beyond it becomes
        identities.

    Raises
    ------
    IndexError
        If the matrices are outside the batch.
    """
    stop = batch if last is None else last
    _check_range(first, stop, batch)
    end = padded(batch, layout) if stop == batch else stop
    if first == end:
        return
    tiles = tiling(n, stride(batch, layout), dtype)
    args = (*pointers(dense, packed), *_geometry(tiles, first, layout), *integers(first, stop, end))
    device.launch(support_kernel("pack", dtype), tiles.tiles(first, end), args, stream)


def unpack(
    device: Launcher,
    packed: int,
    dense: int,
    n: int,
    batch: int,
    layout: Layout,
    dtype: str,
    *,
    first: int = 0,
    last: int | None = None,
    clear: str | None = None,
    stream: object | None = None,
) -> None:
    """Copy matrices first, ..., last - 1 of a batch to an array (last - first, n, n) in row order.

    Parameters are those of `pack`; `clear` names the triangle whose elements off the diagonal become zeros and are
    not read: "upper", "lower" or None.
    """
    stop = batch if last is None else last
    _check_range(first, stop, batch)
    if clear not in _CLEARED:
        raise ValueError(f"clear: got {clear!r}, expected 'upper', 'lower' or None")
    if first == stop:
        return
    tiles = tiling(n, stride(batch, layout), dtype)
    args = (*pointers(packed, dense), *_geometry(tiles, first, layout), *integers(first, stop, _CLEARED[clear]))
    device.launch(support_kernel("unpack", dtype), tiles.tiles(first, stop), args, stream)


def gather(
    device: Launcher,
    source: int,
    destination: int,
    sizes: Sequence[int],
    steps: Sequence[int],
    dtype: str,
    *,
    stream: object | None = None,
) -> None:
    """Copy an array of any strides to a C-contiguous one.

    Parameters
    ----------
    source, destination : int
        Addresses of the first element of each, which must not overlap.
    sizes : sequence of int
        The shape.
    steps : sequence of int
        Elements between neighbours along each axis of the source, 0 where it is broadcast.

    Raises
    ------
    ValueError
        If there are too many axes that are not one with their neighbours.
    """
    axes = _merged(sizes, steps)
    if len(axes) > GATHERED_AXES:
        raise ValueError(
            f"sizes: got {tuple(sizes)} in steps of {tuple(steps)}, expected at most {GATHERED_AXES} axes apart"
        )
    padding = [(1, 0)] * (GATHERED_AXES - len(axes))
    count = math.prod(sizes)
    args = (*pointers(source, destination), *integers(count, *chain.from_iterable([*padding, *axes])))
    device.launch(support_kernel("gather", dtype), count, args, stream)


def _merged(sizes: Sequence[int], steps: Sequence[int]) -> list[tuple[int, int]]:
    """The axes of an array, with those merged that are contiguous in memory."""
    axes = list[tuple[int, int]]()
    for size, step in zip(sizes, steps, strict=True):
        if axes and axes[-1][1] == size * step:
            axes[-1] = axes[-1][0] * size, step
        elif size != 1:
            axes.append((size, step))
    return axes


def log_determinants(
    device: Launcher,
    factors: int,
    info: int,
    signs: int,
    logs: int,
    n: int,
    batch: int,
    layout: Layout,
    dtype: str,
    *,
    found: int = 0,
    stream: object | None = None,
) -> None:
    """The signs and logarithms of determinants, by the factors of a batch: NaN where an info is not 0.

    `signs`, which may be 0, and `logs` are addresses of `batch` elements of the factors' dtype. If the info is at 0
    it is told by the factors, and goes to `found`: the first element of a diagonal that is 0 or NaN, counted from 1.
    """
    args = (*pointers(factors, info, found, signs, logs), *integers(n, stride(batch, layout), batch))
    device.launch(support_kernel("log_determinants", dtype), batch, args, stream)


def lu_determinants(
    device: Launcher,
    addresses: tuple[int, int, int, int],
    n: int,
    batch: int,
    layout: Layout,
    dtype: str,
    *,
    stream: object | None = None,
) -> None:
    """The signs and logarithms of determinants of general matrices; as `log_determinants`.

    The addresses are those of LU factors, of pivots (batch, n), int32, counted from 1, and of room for signs and for
    logarithms.
    """
    args = (*pointers(*addresses), *integers(n, stride(batch, layout), batch))
    device.launch(support_kernel("lu_determinants", dtype), batch, args, stream)


def repair(
    device: Launcher,
    addresses: tuple[int, int, int, int, int, int],
    n: int,
    nrhs: int,
    batch: int,
    layout: Layout,
    dtype: str,
    *,
    uplo: str,
    multiples: tuple[float, int, int],
    logdet: int = 0,
    stream: object | None = None,
) -> None:
    """Factor matrices whose info is not 0 again, with more and more on their diagonals, and solve by them.

    Parameters
    ----------
    addresses : tuple of int
        Of the matrices, which are left as they are; of room for factors (batch, n, n) in rows, or 0; of right-hand
        sides (batch, n, nrhs) and of room for solutions, which may be the same, or 0 and 0, or 0 and that of room for
        inverses, with nrhs = n; of the info of each, an int32, which is written anew; of room for what was added to
        each diagonal: 0 to those that did not fail, or whose mean diagonal is not a positive number.
    uplo : {"lower", "upper"}
        The triangle that is read, and written.
    multiples : tuple
        The multiple of the mean diagonal that is tried first, how it grows, and how often it is tried.
    logdet : int
        The address of logarithms of determinants, those of repaired matrices of which are written anew, or 0.
    """
    swap = (layout.order == "col") != (uplo == "upper")
    first, growth, tries = multiples
    args = (
        *pointers(*addresses[:4], logdet, *addresses[4:]),
        *integers(n, nrhs, stride(batch, layout), batch, swap),
        np.float64(first),
        *integers(growth, tries),
    )
    device.launch(support_kernel("repair", dtype), batch, args, stream)


def signs(device: Launcher, info: int, signs: int, batch: int, dtype: str, *, stream: object | None = None) -> None:
    """The signs of determinants of positive definite matrices: 1, and NaN where an info is not 0."""
    args = (*pointers(info, signs), *integers(batch))
    device.launch(support_kernel("signs", dtype), batch, args, stream)


def part(
    device: Launcher,
    source: int,
    target: int,
    given: tuple[int, int],
    wanted: tuple[int, int],
    batch: int,
    dtype: str,
    *,
    upper: bool = False,
    signs: tuple[int, int, int] = (0, 0, 0),
    by_columns: bool = False,
    stream: object | None = None,
) -> None:
    """Copy the first rows and columns, `wanted`, of matrices in rows that have as many as `given` says.

    Beyond those, and below the diagonal if `upper`, there are zeros. `signs` are the address, the rows and the
    columns of matrices on whose diagonals negative numbers have rows, or if `by_columns` columns, change their signs.
    """
    address, *shape = signs
    numbers = integers(*given, *wanted, upper, *shape, by_columns, batch)
    items = batch * wanted[0] * wanted[1]
    device.launch(support_kernel("part", dtype), items, (*pointers(source, target, address), *numbers), stream)


def identity_padding(
    device: Launcher, packed: int, n: int, batch: int, layout: Layout, dtype: str, *, stream: object | None = None
) -> None:
    """Write identities into the room beyond the batch, if there is any."""
    pack(device, 0, packed, n, batch, layout, dtype, first=batch, stream=stream)


def residual_ratios(
    device: Launcher,
    a: int,
    l: int,
    ratios: int,
    n: int,
    batch: int,
    layout: Layout,
    dtype: str,
    *,
    uplo: str = "lower",
    stream: object | None = None,
) -> None:
    """The componentwise residual ratio of every matrix, as `batchchol.operations.residual.ratios` defines it.

    Parameters
    ----------
    a, l : int
        Addresses of the matrices and of their factors, two arrays of the same batch, layout and dtype; only the
        triangle `uplo` of either is read.
    ratios : int
        Address of `batch` float64, one for each matrix; no initial value is expected.
    """
    # The upper triangle of a matrix is the lower one of its transpose.
    swap = (layout.order == "col") != (uplo == "upper")
    args = (*pointers(a, l, ratios), *integers(n, stride(batch, layout), batch, swap))
    device.launch(support_kernel("residual", dtype), batch, args, stream)


def empty(device: Launcher, *, stream: object | None = None) -> None:
    """Launch a kernel that does nothing: the cost of a launch."""
    device.launch(support_kernel("empty"), 1, (), stream)


def copy(device: Launcher, source: int, destination: int, nbytes: int, *, stream: object | None = None) -> None:
    """Copy bytes from one place of the device's memory to another; any address, no overlap."""
    device.launch(support_kernel("copy"), nbytes, (*pointers(source, destination), *integers(nbytes)), stream)


def multiply_add(
    device: Launcher, result: int, threads: int, steps: int, dtype: str, *, stream: object | None = None
) -> None:
    """Chains of fused multiply-adds, `multiply_add_flops(threads, steps)` of them: the arithmetic peak.

    Parameters
    ----------
    result : int
        Address of `threads` elements, one for each thread.
    threads : int
        How many threads there are; whole blocks of them run.
    """
    # The divisor is 2: see the kernel.
    args = (*pointers(result), *integers(threads, steps, 2))
    device.launch(support_kernel("multiply_add", dtype), threads, args, stream)


def multiply_add_flops(threads: int, steps: int) -> int:
    """Flops of one `multiply_add`; a fused multiply-add counts two."""
    return 2 * CHAINS * threads * steps


def _check_range(first: int, last: int, batch: int) -> None:
    if not 0 <= first <= last <= batch:
        raise IndexError(f"matrices {first} to {last} are outside a batch of {batch}")


def _geometry(tiles: Tiling, first: int, layout: Layout) -> Arguments:
    """How the batch is cut, which unit is the first, and whether rows and columns change places."""
    return integers(*astuple(tiles), tiles.unit(first), layout.order == "col")


def pointers(*addresses: int) -> Arguments:
    """Addresses as a kernel takes them."""
    return tuple(np.uint64(address) for address in addresses)


def integers(*numbers: int) -> Arguments:
    """Numbers as a kernel takes them."""
    return tuple(np.int64(number) for number in numbers)
