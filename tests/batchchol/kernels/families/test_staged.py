"""Canonical arrays by the thread family on GPUs, staged in shared memory by whole warps, emulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import inf
from typing import Any

import numpy as np
import pytest

from batchchol.operations.residual import RATIO_BOUND, ratios
from kernelgen import KernelSpec, Layout, SpecError, ThreadSchedule, generate
from kernelgen.emit.thread import generate_any_block
from kernelgen.schedules.stages.thread import ThreadStage

from ....covering import Choice, covering_design
from ....emulation.checks import (
    CompiledTogether,
    case_id,
    check_arrays_that_begin_anywhere,
    check_kernel,
    check_last_matrices_past_32_bits,
    check_small_batches,
    mutated,
    spec_of,
)
from ....emulation.kernels import EmulatedKernel
from ....emulation.programs import EmulationError
from ....kernel_runs import make_spec, run_kernel
from ....matrices import DATA, dominant, wishart

staged_spec = partial(make_spec, target="cuda", layout="canonical", unroll="full", staged=True)

FACTORS: Mapping[str, Sequence[Any]] = {
    # Matrices of whole pieces or not, with padding or without, of lines that fit a sector or do not.
    "n": (1, 2, 3, 4, 5, 6, 8, 9, 10, 12),
    "nb": (1, 3, 8),
    "looking": ("right", "left", "top"),
    "unroll": ("full",),
    "staged": (True,),
    "layout": ("canonical",),
    "in_place": (False, True),
    "math": ("ieee", "fast"),
    "order": ("row", "col"),
    "uplo": ("lower", "upper"),
    "dtype": ("float32", "float64"),
    "threads": (32, 96),
    "cache": ("l1", "shared"),
    # Fewer than a warp, whole warps, and some more.
    "batch": (1, 31, 96, 133),
}
CASE_COST = 500


def cost_of(choice: Choice) -> float:
    """What a choice costs, in lines of code; infinite for what is refused."""
    return lines_of(choice["n"], choice["nb"]) + CASE_COST


@cache
def lines_of(n: int, nb: int) -> float:
    try:
        return generate(staged_spec(n, nb)).text.count("\n")
    except SpecError:
        return inf


DESIGN = sorted(covering_design(FACTORS, ("n", "nb"), cost_of), key=lambda choice: (choice["math"], choice["dtype"]))
# The other orders, in rows and in columns by turns.
EVERY_ORDER = [
    staged_spec(n, 1, order=("row", "col")[n // 2 % 2], math=("ieee", "fast")[n % 2]) for n in (7, 11, 14, 16, 17)
]
# No register is left for the number of a matrix.
EVERY_ORDER.append(staged_spec(20, 1, looking="left", dtype="float64", threads=32))

emulated = CompiledTogether(
    (spec_of(choice)[0] for choice in DESIGN), sorted(EVERY_ORDER, key=lambda spec: spec.problem.math)
)


@pytest.mark.parametrize("choice", DESIGN, ids=case_id)
def test_every_pair_of_values(choice: Choice) -> None:
    spec, _ = spec_of(choice)
    check_kernel(spec, choice["batch"], kernel=emulated(spec))


@pytest.mark.parametrize("spec", EVERY_ORDER, ids=lambda spec: spec.name)
def test_every_order(spec: KernelSpec) -> None:
    check_kernel(spec, 45, kernel=emulated(spec))


@pytest.mark.parametrize("order", ["row", "col"])
def test_triangles_that_would_not_fit_registers_stay_in_the_stage(order: str) -> None:
    spec = staged_spec(15, 1, looking="left", order=order, dtype="float64", threads=32)
    assert "read_matrix" not in generate(spec).text
    check_kernel(spec, 37)


@pytest.mark.parametrize("math", ["ieee", "fast"])
def test_same_bits_as_without_a_stage(math: str) -> None:
    spec = staged_spec(12, 4, math=math, order="row")
    direct = make_spec(12, 4, math=math, order="row", target="cuda", layout="canonical", unroll="full")
    a = wishart(70, 12).astype(np.float32)
    a[::3, 5, 5] = np.nan
    staged, expected = run_kernel(spec, a), run_kernel(direct, a)
    assert np.array_equal(staged.info, expected.info)
    assert staged.info[0] == 6
    assert staged.l[staged.info == 0].tobytes() == expected.l[staged.info == 0].tobytes()


def test_code_for_any_block() -> None:
    """One text for blocks of any number of whole warps, each with shared memory for its own; the same bits."""
    spec = staged_spec(6, 2, order="row")
    a = dominant(210, 6).astype(np.float32)
    expected = run_kernel(spec, a, kernel=EmulatedKernel.of(spec)).l.tobytes()
    sources = set()
    for threads in (32, 96):
        schedule = replace(spec.schedule, threads=threads)
        assert isinstance(schedule, ThreadSchedule)
        source = generate_any_block(replace(spec, schedule=schedule), schedule)
        sources.add((source.entry, source.text))
        kernel = EmulatedKernel.of(replace(spec, schedule=schedule), source)
        assert run_kernel(kernel.spec, a, kernel=kernel).l.tobytes() == expected
    assert len(sources) == 1


def test_every_small_batch() -> None:
    check_small_batches(staged_spec(5, 2, threads=64))


@pytest.mark.parametrize(("n", "dtype"), [(4, "float32"), (9, "float32"), (10, "float64")])
@pytest.mark.parametrize("in_place", [False, True])
def test_arrays_that_begin_anywhere(in_place: bool, n: int, dtype: str) -> None:
    check_arrays_that_begin_anywhere(staged_spec(n, 2, order="row", in_place=in_place, dtype=dtype), 45)


@pytest.mark.parametrize("order", ["row", "col"])
def test_last_matrices_of_a_batch_past_32_bits(order: str) -> None:
    check_last_matrices_past_32_bits(staged_spec(2, 1, order=order, in_place=True), Layout.canonical(order))


# ---- The stage ----


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", range(1, 34))
def test_threads_read_their_matrices_from_different_banks(n: int, dtype: str) -> None:
    """As many at once as there are banks for what each of them reads."""
    stage = ThreadStage(n, dtype, 32)
    words = 4 // stage.piece * stage.width
    paddings = [thread // stage.group if stage.group else 0 for thread in range(33)]
    starts = [thread * n**2 + stage.piece * padding for thread, padding in enumerate(paddings)]
    assert starts.pop() == stage.scalars
    for first in range(0, 32, 32 // words):
        banks = [start * 4 // stage.piece % 32 for start in starts[first : first + 32 // words]]
        assert len(set(banks)) == len(banks)
        assert all(bank % words == 0 for bank in banks)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", range(1, 34))
def test_parts_of_a_stage_are_whole_groups_and_groups_fill_all_banks(n: int, dtype: str) -> None:
    stage = ThreadStage(n, dtype, 32)
    assert 32 % stage.parts == 0
    if stage.group:
        assert 32 // stage.parts % stage.group == 0
        assert stage.group * n**2 % (8 * stage.piece) == 0
    assert stage.turns * stage.parts * 32 * stage.piece - 32 * n**2 in range(32 * stage.piece)


@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize("n", [16, 20, 24])
def test_what_lies_above_the_diagonal_is_not_fetched(n: int, order: str) -> None:
    """The pieces of the triangle are; were others needed the results would be wrong, as shared memory is not zero."""
    spec = staged_spec(n, 1, order=order)
    text = generate(spec).text
    condition = text.split("INLINE bool is_read(const int e) { return ", 1)[1].split(";", 1)[0]
    over, left = ("//", "%") if order == "row" else ("%", "//")
    condition = condition.replace("row_of(e)", f"(e {over} {n})").replace("column_of(e)", f"(e {left} {n})")
    read = {e for e in range(0, 32 * n * n, 4) if eval(condition, {"e": e % n**2, "PIECE": 4, "N": n})}
    element = [divmod(e % n**2, n) if order == "row" else divmod(e % n**2, n)[::-1] for e in range(32 * n * n)]
    assert read == {e for e in range(0, 32 * n * n, 4) if any(i >= j for i, j in element[e : e + 4])}


# ---- One line changed ----

CHANGED = {
    "a multiply-add": (r"C\(5, 3\) -= C\(5, 1\).*\n", ""),
    "a scaling": (r"C\(4, 1\) \*= .*\n", ""),
    "another line": (r"return e / N;", "return e % N;"),
    "another place": (r"return e \+ e / \(2 \* SIZE\) \* PIECE;", "return e;"),
    "another part": (r"part \* \(STAGE / PARTS\)", "part * SIZE"),
}


@pytest.mark.parametrize("change", CHANGED)
def test_the_source_with_a_line_changed_fails(change: str) -> None:
    spec = staged_spec(12, 12, order="row")
    kernel = mutated(spec, *CHANGED[change])
    for name, make in DATA.items():
        a = make(33, 12).astype(np.float32)
        try:
            run = run_kernel(spec, a, kernel=kernel)
        except EmulationError:
            continue
        assert run.info.any() or ratios(a, run.l).max() > RATIO_BOUND["fast"], name


@pytest.mark.parametrize("place", [0, 1])
def test_every_barrier_is_needed(place: int) -> None:
    spec = staged_spec(6, 3)
    assert generate(spec).text.count("__syncwarp();") == 2
    kernel = mutated(spec, r"__syncwarp\(\);", "", place=place)
    with pytest.raises(EmulationError, match="depends on the order"):
        run_kernel(spec, dominant(33, 6).astype(np.float32), kernel=kernel)


def test_copies_are_waited_for() -> None:
    spec = staged_spec(6, 3)
    kernel = mutated(spec, r"\n    wait_for_fetched\(\);", "")
    with pytest.raises(EmulationError, match="while copies of its own were under way"):
        run_kernel(spec, dominant(33, 6).astype(np.float32), kernel=kernel)
