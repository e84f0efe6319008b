"""Kernels that repair, emulated: in memory that is mostly not there, and one line changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from batchchol import Layout
from batchchol.batches.layouts import array_shape, stride
from batchchol.operations.posv import ratio_bound, ratios
from kernelgen import KernelSource
from kernelgen.emit.operations.repair import generate_repairing
from kernelgen.emit.support import support_kernel

from ....emulation.programs import EmulationError, compile_program
from ....fenced_memory import sparse_zeros
from ....kernel_runs import Array, make_spec
from ....offsets import element_offset

N, NRHS, FIRST, GROWTH, TRIES = 3, 2, 1e-3, 10, 3
LAYOUT = Layout.chunked(32)
ITSELF = generate_repairing(make_spec(N, 1, op="posv", target="cuda", layout="chunked", unroll="full"))
BEHIND = support_kernel("repair")
ARRAYS = {"layout": "canonical", "order": "row", "staged": True}
FACTORS = generate_repairing(make_spec(N, 1, target="cuda", unroll="full", **ARRAYS))
# How many tries the first ones need; the next cannot be repaired, the others need not be.
NEEDED = (1, 2, 3)


def matrices(count: int) -> tuple[Array, Array]:
    """Matrices, the first ones less something that they are repaired by, and right-hand sides."""
    a = np.broadcast_to(np.eye(N, dtype=np.float32), (count, N, N)).copy()
    a[:, 0, 1] = a[:, 1, 0] = 0.5
    for member, tries in enumerate(NEEDED):
        a[member, 2, 2] = -FIRST * GROWTH ** (tries - 1) / 2
    a[len(NEEDED), 1, 1] = -9
    return a, np.random.default_rng(1).standard_normal((count, N, NRHS)).astype(np.float32)


def check(a: Array, b: Array, x: Array, info: Array, added: Array, solved: slice) -> None:
    """Fail unless all are repaired that can be, by as much as they need, and solved by."""
    check_repaired(a, info, added)
    repaired = a.astype(np.float64) + added[:, None, None] * np.eye(N)
    a, b, x = (each[solved][info[solved] == 0] for each in (repaired, b, x))
    assert ratios(a, b, x).max() <= ratio_bound(N, "ieee") + 1


def check_factors(a: Array, l: Array, info: Array, added: Array) -> None:
    """Fail unless all are repaired that can be, and their factors, of which zeros are the other part, are right."""
    check_repaired(a, info, added)
    assert not np.triu(l, 1).any()
    repaired = a + added[:, None, None] * np.eye(N)
    product = l.astype(np.float64) @ l.swapaxes(1, 2)
    np.testing.assert_allclose(product[info == 0], repaired[info == 0], atol=1e-6)


def check_repaired(a: Array, info: Array, added: Array) -> None:
    """Fail unless as much was added as each needs, and one is left that cannot be repaired."""
    means = np.trace(a, axis1=1, axis2=2) / N
    expected = np.zeros(len(a))
    expected[: len(NEEDED)] = [FIRST * GROWTH ** (tries - 1) for tries in NEEDED]
    np.testing.assert_allclose(added, expected * means, rtol=1e-6)
    assert np.flatnonzero(info).tolist() == [len(NEEDED)]


def words(source: KernelSource, pointers: Mapping[str, int], batch: int) -> tuple[object, ...]:
    """The arguments of either kernel."""
    geometry, multiples = (stride(batch, LAYOUT), batch), (FIRST, GROWTH, TRIES)
    a, b, x, info, added = (pointers[name] for name in ("a", "b", "x", "info", "added"))
    if source is BEHIND:
        return (a, 0, b, x, 0, info, added, N, NRHS, *geometry, int(LAYOUT.order == "col"), *multiples)
    if source is FACTORS:
        return (a, x, info, added, 1, batch, *multiples)
    return (a, b, x, info, added, NRHS, *geometry, *multiples)


def run(source: KernelSource, entry: KernelSource, batch: int, count: int) -> None:
    """Repair the last matrices of a batch, in memory of which only theirs is there, by the last blocks."""
    a, b = matrices(count)
    layout = Layout.canonical("row") if entry is FACTORS else LAYOUT
    data = sparse_zeros(prod(array_shape(N, batch, layout)), np.float32)
    columns = N if entry is FACTORS else NRHS
    given, x = (sparse_zeros(batch * N * columns, np.float32) for _ in range(2))
    info, added = sparse_zeros(batch, np.int32), sparse_zeros(batch, np.float32)
    for m, i, j in np.ndindex(count, N, N):
        data[element_offset(N, batch, layout, batch - count + m, i, j)] = a[m, i, j]
    if entry is not FACTORS:
        given[-b.size :] = b.ravel()
    failed = np.arange(count) <= len(NEEDED)
    info[-count:] = np.where(failed, 3, 0)
    added[-count:] = np.nan
    arrays = {"a": data, "b": given, "x": x, "info": info, "added": added}
    pointers = {name: array.ctypes.data for name, array in arrays.items()}
    assert source.launch is not None
    items = source.launch.items
    blocks = ((batch - count) // items, -(-batch // items))
    program = compile_program((source,))
    program.launch_unfenced(source, batch, *words(entry, pointers, batch), blocks=blocks)
    found = x[-count * N * columns :].reshape(count, N, columns)
    if entry is FACTORS:
        check_factors(a, found, info[-count:], added[-count:])
        return
    # Those that did not fail are solved for by the kernel before.
    solved = slice(0, len(NEEDED) + 1) if entry is BEHIND else slice(None)
    check(a, b, found, info[-count:], added[-count:], solved)


@pytest.mark.parametrize("source", [ITSELF, FACTORS, BEHIND], ids=["itself", "factors", "behind"])
def test_last_matrices_of_a_batch_past_32_bits(source: KernelSource) -> None:
    try:
        run(source, source, 2**32 + 77, 40)
    except OSError as error:
        pytest.skip(f"needs 400 GB of addresses, not of memory: {error}")


MUTANTS = {
    "the first try alone": (BEHIND, r"attempt < multiples.tries", "attempt < 1"),
    "the multiple does not grow": (BEHIND, r"share \*= multiples.growth", "share *= 1"),
    "no wait for the root": (BEHIND, r"(/ root;\n    )    __syncthreads\(\);", r"\1    "),
    "the backward solve without a row": (ITSELF, r"int k = n - 1; k >= 0", "int k = n - 1; k > 0"),
    "another matrix": (ITSELF, r"__ffs\(failed\) - 1", "__ffs(failed)"),
    "another factor": (FACTORS, r"__ffs\(failed\) - 1", "__ffs(failed)"),
    "no zeros": (FACTORS, r"(AT_ROOM\(row_of\(e\), column_of\(e\)\)) : 0", r"\1 : 1"),
    "right-hand sides not kept": (ITSELF, r"keep_columns<1>\(at, b, nrhs, 0\);", ";"),
}


@pytest.mark.parametrize("change", MUTANTS)
def test_one_line_changed_is_found(change: str) -> None:
    source, line, other = MUTANTS[change]
    text, changes = re.subn(line, other, source.text, count=1)
    assert changes == 1
    with pytest.raises((AssertionError, EmulationError)):
        run(replace(source, text=text), source, 77, 40)
