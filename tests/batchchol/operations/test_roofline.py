"""The roofline: its formulas against counting by hand, and what the ceilings are measured with."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchchol.artifacts.c_library import load, supported_targets
from batchchol.batches.host_memory import aligned_empty
from batchchol.operations import roofline
from batchchol.operations.roofline import (
    Ceilings,
    compulsory_bytes,
    flops,
    measured_ceilings,
    roofline_fraction,
    roofline_seconds,
)
from kernelgen import Layout
from kernelgen.emit.simd import generate_peak_kernel

PACKED = (Layout.interleaved(), Layout.chunked(16))
CEILINGS = Ceilings(1e9, 1e9, 1, "float32", "generic")


def sectors_by_hand(n: int, order: str, size: int, matrices: int) -> int:
    """Sectors that hold a byte of a lower triangle, over matrices that follow each other in memory."""
    touched = set()
    for m in range(matrices):
        for i in range(n):
            for j in range(i + 1):
                element = m * n * n + (i * n + j if order == "row" else j * n + i)
                touched |= {byte // 32 for byte in range(element * size, (element + 1) * size)}
    return len(touched)


def test_flops_are_a_third_of_the_cube() -> None:
    assert flops(6) == 72
    assert flops(1) == pytest.approx(1 / 3)


@pytest.mark.parametrize("layout", [*PACKED, Layout.canonical()], ids=str)
def test_a_solve_reads_factors_and_right_hand_sides_and_writes_solutions(layout: Layout) -> None:
    n, nrhs = 8, 5
    triangle = 4 * n * (n + 1) / 2 if layout in PACKED else 32 * sectors_by_hand(n, "row", 4, 8) / 8
    assert compulsory_bytes(n, layout, nrhs=nrhs, op="potrs") == triangle + 2 * 4 * n * nrhs
    assert flops(n, nrhs, "potrs") == 2 * n**2 * nrhs


@pytest.mark.parametrize("layout", PACKED, ids=str)
@pytest.mark.parametrize("n", [1, 4, 17, 100])
def test_packed_layouts_move_one_triangle_each_way(n: int, layout: Layout) -> None:
    assert compulsory_bytes(n, layout) == 4 * n * (n + 1) + 4
    assert compulsory_bytes(n, layout, "float64") == 8 * n * (n + 1) + 4


@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float64", 8)])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 8, 16, 31])
def test_canonical_matrices_move_whole_sectors_and_a_whole_result(n: int, dtype: str, size: int, order: str) -> None:
    # Eight matrices end where a sector does, whatever n and the dtype.
    sectors = sectors_by_hand(n, order, size, 8) / 8
    assert compulsory_bytes(n, Layout.canonical(order), dtype) == pytest.approx(32 * sectors + size * n * n + 4)


@given(n=st.integers(1, 128))
def test_no_layout_beats_packed_ones(n: int) -> None:
    assert compulsory_bytes(n, Layout.canonical()) >= compulsory_bytes(n, Layout.chunked(8))


def test_the_slower_of_copy_and_arithmetic_decides() -> None:
    layout = Layout.chunked(8)
    assert roofline_seconds(4, 1000, layout, CEILINGS) == pytest.approx(1000 * 84 / 1e9)
    assert roofline_seconds(100, 1000, layout, CEILINGS) == pytest.approx(1000 * 1e6 / 3 / 1e9)


def test_the_fraction_is_one_at_the_roofline_and_halves_with_twice_the_time() -> None:
    layout = Layout.interleaved()
    seconds = roofline_seconds(8, 512, layout, CEILINGS)
    assert roofline_fraction(seconds, 8, 512, layout, CEILINGS) == pytest.approx(1)
    assert roofline_fraction(2 * seconds, 8, 512, layout, CEILINGS) == pytest.approx(0.5)


def test_float64_counts_twice_the_bytes() -> None:
    wide = Ceilings(1e9, 1e15, 1, "float64", "generic")
    assert roofline_seconds(4, 10, Layout.chunked(8), wide) == pytest.approx(10 * 164 / 1e9)


@pytest.mark.parametrize("target", supported_targets())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_peak_kernel_does_the_flops_that_are_counted(dtype: str, target: str) -> None:
    source = generate_peak_kernel(dtype, target)
    function = load(source, target).function(source.entry, ctypes.c_void_p, ctypes.c_int64, result=None)
    operands = np.zeros(2 * source.lanes, dtype)
    # x <- 0 x + 1 in every chain: the sum over the chains, which is the result, counts them.
    operands[source.lanes :] = 1
    function(operands.ctypes.data, 1)
    assert (operands[: source.lanes] == roofline._PEAK_CHAINS).all()
    # x <- 1 x + 1, from chain c's c + 1: each step adds one to each chain.
    operands[...] = 1
    function(operands.ctypes.data, 1000)
    chains = roofline._PEAK_CHAINS
    assert (operands[: source.lanes] == chains * (chains + 1) / 2 + 1000 * chains).all()


def test_the_streaming_copy_copies_its_range_and_nothing_else() -> None:
    source = aligned_empty((64 * 9,), "uint8", "a test")
    target = aligned_empty((64 * 9,), "uint8", "a test")
    source[...], target[...] = np.arange(64 * 9) % 251 + 1, 0
    for copy in roofline._copies(target, source):
        target[...] = 0
        copy(128, 384)
        assert (target[128:384] == source[128:384]).all()
        assert not target[:128].any()
        assert not target[384:].any()


@pytest.mark.parametrize(
    ("fraction", "text"), [(0.92, "92%"), (1.05, "105%"), (1.84, roofline.BAD_CEILING), (float("nan"), "")]
)
def test_a_fraction_that_cannot_be_is_none(fraction: float, text: str) -> None:
    assert roofline.fraction_text(fraction) == text


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ceilings of no value, quickly."""
    monkeypatch.setattr(roofline.host_memory, "last_level_cache_bytes", lambda: 1 << 16)
    monkeypatch.setattr(roofline, "_MEASURING_SECONDS", 0.0)
    monkeypatch.setattr(roofline, "_PEAK_STEPS", 1000)
    measured_ceilings.cache_clear()
    yield
    measured_ceilings.cache_clear()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("threads", [1, 2])
def test_ceilings_say_what_they_were_measured_for_and_are_measured_once(threads: int) -> None:
    ceilings = measured_ceilings(threads, "float64", "generic")
    assert (ceilings.threads, ceilings.dtype, ceilings.target) == (threads, "float64", "generic")
    assert np.isfinite([ceilings.copy_bytes_per_second, ceilings.peak_flops_per_second]).all()
    assert min(ceilings.copy_bytes_per_second, ceilings.peak_flops_per_second) > 0
    assert measured_ceilings(threads, "float64", "generic") is ceilings


@pytest.mark.usefixtures("quick")
def test_ceilings_default_to_all_threads_and_the_widest_simd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHCHOL_THREADS", "2")
    assert (measured_ceilings().threads, measured_ceilings().target) == (2, supported_targets()[0])


def test_a_number_of_threads_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="threads: got -1"):
        measured_ceilings(-1)
