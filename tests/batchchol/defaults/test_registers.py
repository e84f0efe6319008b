"""No kernel is a default unmeasured if its threads have too few registers for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest

from batchchol.artifacts.cuda_modules import build_all
from batchchol.artifacts.nvcc import find_nvcc, known_architectures
from batchchol.defaults.lookup import default_layout
from batchchol.defaults.registers import block_that_fits, registers_of_a_thread, spills
from batchchol.defaults.shipped import shipped_tables
from batchchol.defaults.tables import Case, Entry, Table
from batchchol.errors import CompilerNotFound
from kernelgen import BlockSchedule, KernelSpec, Problem, Schedule, ThreadSchedule, generate
from tests.asked import choices_of

from ...cuda_spills import is_measured, read, spilled

# Of every kind: tiny, at both sides of what straight-line code fits into registers, odd, the largest.
ORDERS = (3, 8, 13, 14, 18, 19, 32, 47, 128)
PLACES: tuple[dict[str, Any], ...] = (
    *({"layout": "chunked", "chunk": chunk} for chunk in (2, 5, 32, 128)),
    {"layout": "canonical", "order": "row", "uplo": "upper"},
    {"layout": "canonical", "order": "col"},
    {"layout": "interleaved"},
)


@pytest.mark.parametrize("arch", ["sm_75", "sm_86", "sm_90", "sm_120"])
def test_no_float64_default_spills_unmeasured(arch: str) -> None:
    """By the rule, of which the other tests show that it accepts nothing that spills."""
    for n in ORDERS:
        for place in PLACES:
            in_place = (n + len(place)) % 2 == 0
            for choice in choices_of(n, target="cuda", dtype="float64", arch=arch, in_place=in_place, **place):
                measured = is_measured(choice, n, "float64", "sm_90")
                assert measured or not spills(choice.spec), choice.spec.name


def test_nor_do_float32_kernels_of_other_orders() -> None:
    """What a GPU without tensor cores gets in place of an entry that it cannot run."""
    for n, chunk in ((31, 4), (48, 2), (128, 32)):
        for choice in choices_of(n, target="cuda", arch="sm_75", chunk=chunk):
            assert choice.case is not None
            serving = min(entry.n for entry in shipped_tables()["sm_90"].cases[choice.case] if entry.n >= n)
            assert choice.n == serving or not spills(choice.spec), choice.spec.name


def test_what_the_assembler_said() -> None:
    """No default that was compiled spills, and of an H200 every usual one of float64 was."""
    latest = {(spec, arch): row for (spec, arch, _), row in read().items()}
    assert {arch for _, arch in latest} >= {"sm_80", "sm_86", "sm_90", "sm_100", "sm_120"}
    for dtype, n in product(("float32", "float64"), range(1, 129)):
        for arch in ("sm_90", *(("sm_80", "sm_86", "sm_89", "sm_100", "sm_120") if n % 8 == 0 else ())):
            for spec in usual_defaults(n, dtype, arch):
                row = latest.get((spec.name, arch))
                usual = (arch, dtype, spec.problem.math) == ("sm_90", "float64", "ieee")
                assert row or not usual, f"{spec.name}: run python -m tests.cuda_spills --dtype {dtype}"
                assert row is None or not spilled(row), (spec.name, arch)


def usual_defaults(n: int, dtype: str, arch: str) -> Iterator[KernelSpec]:
    """Of arrays, and of the chunks that batches go into, in both maths."""
    for math in ("ieee", "fast"):
        chunk = default_layout(n, target="cuda", dtype=dtype, math=math, arch=arch).chunk
        for place in ({"chunk": chunk}, {"layout": "canonical", "order": "row"}):
            for choice in choices_of(n, target="cuda", dtype=dtype, math=math, arch=arch, **place):
                yield choice.spec


@pytest.mark.parametrize(
    ("n", "dtype", "schedule", "expected"),
    [
        # What ptxas 13.0 said for sm_90, in bytes that are stored and loaded.
        (32, "float64", ThreadSchedule(2, unroll="full"), 29_936),
        (21, "float64", ThreadSchedule(6, unroll="full", threads=64, blocks=1), 3_608),
        (17, "float64", ThreadSchedule(3, "right", "full", blocks=1), 48),
        (17, "float64", ThreadSchedule(2, "top", "full"), 832),
        (12, "float64", ThreadSchedule(2, unroll="full", threads=64, blocks=1), 0),
        (18, "float64", ThreadSchedule(2, unroll="full", threads=64, blocks=1), 0),
        (64, "float64", ThreadSchedule(7, "top"), 24),
        (28, "float64", BlockSchedule(7, 32, pipeline=1, early=3, blocks=2), 4_924),
        (112, "float64", BlockSchedule(8, 4, pipeline=1), 6_296),
        (32, "float64", BlockSchedule(5, 32), 552),
        (128, "float64", BlockSchedule(6, 2), 8),
        (32, "float64", BlockSchedule(4, 8), 0),
        (128, "float64", BlockSchedule(4, 1), 0),
        (40, "float64", BlockSchedule(8, 16, pipeline=1, early=3), 0),
        (32, "float32", ThreadSchedule(7, "top"), 64),
        (128, "float32", BlockSchedule(8, 4, pipeline=1), 0),
    ],
    ids=str,
)
def test_the_rule_and_the_assembler_agree(n: int, dtype: str, schedule: Schedule, expected: int) -> None:
    assert spills(KernelSpec(Problem(n, dtype), "chunked", "col", schedule, "cuda")) == (expected > 0)


def test_registers_are_handed_out_to_whole_warps_of_each_scheduler() -> None:
    """As ptxas bounded them: 672 threads are 24 warps, which have 80 registers and not 97."""
    found = [registers_of_a_thread(threads) for threads in (32, 256, 288, 512, 544, 672, 1024)]
    assert found == [255, 255, 168, 128, 96, 80, 64]
    assert registers_of_a_thread(480, 2) == 64


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("layout", "chunk"), [("chunked", 4), ("chunked", None), ("canonical", None)])
def test_there_is_a_block_that_fits_from_its_smallest_tile_on(dtype: str, layout: str, chunk: int | None) -> None:
    for n in range(1, 129):
        plain = KernelSpec(Problem(n, dtype, math="fast"), layout, "col", ThreadSchedule(1), "cuda")
        found = block_that_fits(plain, chunk)
        assert (found is None) == (n < 4)
        if found is not None:
            assert not spills(found)
            assert (found.problem.math, found.schedule.stride) == ("fast", chunk)


def test_a_choice_says_what_takes_the_place_of_what(tables: Callable[..., None]) -> None:
    entries = (Entry(8, None, ThreadSchedule(2, unroll="full")), Entry(32, None, ThreadSchedule(2, unroll="full")))
    tables(Table("sm_90", "cuda", {Case("float32", "ieee", "chunked"): entries}))
    said = {n: choices_of(n, target="cuda", dtype="float64")[0] for n in (8, 32)}
    assert "but" not in said[8].origin
    assert said[32].origin.endswith(
        "in float64 its thread kernel would spill registers: the nearest kernel that fits"
    )
    assert said[32].evidence == (), "what was measured is another kernel's"
    assert choices_of(32, target="cuda")[0].spec.schedule.unroll == "full", "it was measured so"


def test_a_cpu_s_kernels_have_what_they_want() -> None:
    plain = KernelSpec(Problem(32, "float64"), "chunked", "col", ThreadSchedule(2, unroll="full"), "avx2")
    assert not spills(plain)


def test_sampled_defaults_compile_without_spills() -> None:
    """Where there is nvcc: what it says of the texts as they are now."""
    try:
        known = known_architectures(find_nvcc())
    except CompilerNotFound as error:
        pytest.skip(str(error))
    arch = "sm_90" if "sm_90" in known else known[-1]
    specs = [choices_of(n, target="cuda", dtype="float64", chunk=32, arch=arch)[0].spec for n in (12, 32)]
    for spec, outcome in zip(specs, build_all([generate(spec) for spec in specs], arch), strict=True):
        assert outcome.stats is not None, outcome.message
        assert outcome.stats.spill_bytes == 0, spec.name
