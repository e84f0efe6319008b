"""GPU kernels that stage the factors they solve by, emulated, against LAPACK in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import inf
from typing import Any

import pytest

from batchchol.operations.potrs import ratio_bound, ratios
from kernelgen import KernelSpec, Layout, ThreadSchedule, generate
from kernelgen.schedules.stages.triangles import TriangleStage

from ....covering import Choice, covering_design
from ....emulation.checks import CompiledTogether
from ....emulation.programs import EmulationError
from ....kernel_runs import build_kernel, kernel_of, run_solver
from .test_solves import case_id, check_past_32_bits, check_solver, mutated, solve_spec, spec_of, system

FACTORS: Mapping[str, Sequence[Any]] = {
    "n": (1, 3, 8, 13),
    "nb": (1, 2, 4),
    "split": (1, 2, 8, 32),
    "rhs": (1, 2, 3),
    # An integer is the chunk of the chunked layout.
    "layout": ("canonical", "interleaved", 3, 4, 32),
    "order": ("row", "col"),
    "uplo": ("lower", "upper"),
    "dtype": ("float32", "float64"),
    "math": ("ieee", "fast"),
    "threads": (32, 96),
    "pdl": (None, True),
    "in_place": (False, True),
    "batch": (1, 15, 16, 37),
}


def cost_of(choice: Choice) -> float:
    """What compiling a choice costs; infinite for what is refused."""
    refused = choice["nb"] > min(choice["n"], choice["split"])
    return inf if refused else 200 + (choice["rhs"] + 1) * choice["n"] ** 2


def staged_of(choice: Choice) -> tuple[KernelSpec, int | None]:
    return spec_of(choice | {"unroll": "full", "staged": True})


DESIGN = sorted(
    covering_design(FACTORS, ("n", "nb", "split", "rhs"), cost_of),
    key=lambda choice: (choice["math"], choice["dtype"]),
)
emulated = CompiledTogether(staged_of(choice)[0] for choice in DESIGN)


@pytest.mark.parametrize("choice", DESIGN, ids=lambda choice: case_id(choice | {"unroll": "full", "staged": True}))
def test_every_pair_of_values(choice: Choice) -> None:
    spec, chunk = staged_of(choice)
    every_nrhs = (1, choice["rhs"], choice["rhs"] + 1, 2 * choice["rhs"] + 1)
    check_solver(spec, choice["batch"], chunk, every_nrhs, emulated(spec), in_place=choice["in_place"])


def staged(n: int, nb: int = 1, **choices: Any) -> KernelSpec:
    return solve_spec(n, nb, unroll="full", staged=True, target="cuda", **choices)


@pytest.mark.parametrize(
    ("spec", "chunk"),
    [
        (staged(33, 4, rhs=1, split=16, layout="canonical", order="row"), None),
        (staged(33, 2, rhs=2, split=4, layout="canonical", order="col", dtype="float64"), None),
        (staged(97, 4, rhs=1, split=8), 4),
        (staged(65, 4, rhs=1, split=32, layout="interleaved"), None),
    ],
    ids=lambda each: each.name if isinstance(each, KernelSpec) else "",
)
def test_larger_orders(spec: KernelSpec, chunk: int | None) -> None:
    """Whose lines are copied in other loops."""
    check_solver(spec, 5, chunk, (1, 3), kernel_of(spec), in_place=False)


# ---- The same bits ----


@pytest.mark.parametrize("layout", ["canonical", "chunked"])
def test_same_bits_however_threads_share_the_work(layout: str) -> None:
    """And on memory that begins anywhere, which is copied in other pieces."""
    l, b = system(13, 37, 3, "float32")
    found = {
        (split, offset): run_solver(spec, l, b, solver=kernel, offset=offset).tobytes()
        for split, nb in ((1, 1), (2, 1), (8, 4))
        for spec in [staged(13, nb, rhs=2, split=split, layout=layout)]
        for kernel in [kernel_of(spec)]
        for offset in (0, 4)
    }
    assert len(set(found.values())) == 1, found.keys()


@pytest.mark.parametrize("layout", [Layout.canonical(), Layout.interleaved(), Layout.chunked(32)], ids=str)
def test_last_matrices_of_a_batch_past_32_bits(layout: Layout) -> None:
    check_past_32_bits(staged(2, 1, rhs=2, split=2, layout=layout.kind, order=layout.order), layout)


# ---- Places in shared memory ----


@pytest.mark.parametrize(("n", "split"), [*product((1, 2, 7, 16, 33, 128), (1, 2, 8, 32))])
def test_elements_have_slots_of_their_own(n: int, split: int) -> None:
    """In as many as there is room for; threads that read at once find theirs in different banks."""
    for by_rows in (False, True):
        stage = TriangleStage(n, "float32", split, by_rows, canonical=False)
        slots = {(i, j): slot(stage, i, j) for i in range(n) for j in range(i + 1)}
        assert len(set(slots.values())) == len(slots)
        assert min(slots.values()) >= 0
        assert max(slots.values()) < stage.scalars // stage.pitch
        for first, across in product(range(0, n, split), range(n)):
            column = [slots[i, across] for i in range(first, first + split) if (i, across) in slots]
            row = [slots[across, j] for j in range(first, first + split) if (across, j) in slots]
            assert all(len({each % split for each in some}) == len(some) for some in (column, row))


def slot(stage: TriangleStage, i: int, j: int) -> int:
    """Where kernels have element (i, j)."""
    n, line, fold = stage.n, stage.line, stage.fold
    if stage.by_rows:
        return (i - fold) * line + j if i >= fold else (n - 1 - i - fold) * line + n - j
    return j * line + i + 1 if j < fold else (n - 1 - j) * line + n - 1 - i


# ---- One line changed ----

SPEC = staged(11, 2, rhs=2, split=4, threads=64)
LINES: dict[str, tuple[str, str, str]] = {
    "a line of the triangle not copied": ("fetch_triangles", r"k < N;", "k < N - 1;"),
    "a right-hand side not copied": ("fetch_columns_2", r"c < left", "c < left - 1"),
    "a solution not copied": ("store_columns_1", r"e < size", "e < size - 1"),
    "a diagonal not inverted": ("invert_diagonals", r"row < N", "row < N - 1"),
    "a row of another thread": ("gather_2", r"\(j \+ r\) % SPLIT", "(j + r + 1) % SPLIT"),
    "a row kept by another thread": ("keep_2", r"% SPLIT", "% SPLIT + 1"),
    "an update of a tile dropped": ("solve_2", r"i > r && j \+ i < N", "i > r + 1 && j + i < N"),
    "an update of the forward solve dropped": ("solve_2", r"t >= part \+ NB", "t > part + NB"),
    "an update of the backward solve dropped": ("solve_2", r"t < part\b", "t < part - 1"),
}


def worst_ratio(kernel: Any) -> float:
    l, b = system(11, 37, 5, "float32")
    try:
        return float(ratios(l, b, run_solver(SPEC, l, b, solver=kernel)).max())
    except EmulationError:
        return inf


def test_the_source_as_it_is_passes() -> None:
    assert worst_ratio(kernel_of(SPEC)) <= 0.5


@pytest.mark.parametrize("line", LINES)
def test_the_source_with_one_line_changed_fails(line: str) -> None:
    assert worst_ratio(build_kernel(SPEC, mutated(generate(SPEC), *LINES[line]))) > ratio_bound(11, "ieee")


# ---- What cannot be built ----


@pytest.mark.parametrize(
    ("n", "choices", "refusal"),
    [
        (8, {"nb": 2}, "nb=2 .*a power of two up to split=1"),
        (8, {"nb": 3, "split": 4}, "nb=3 .*a power of two up to split=4"),
        (8, {"split": 3}, "split=3 .*use a power of two"),
        (8, {"unroll": "tiles"}, "unroll='tiles' .*use 'full'"),
        (8, {"threads": 48}, "threads=48 .*a multiple of 32"),
        (24, {"rhs": 6}, "rhs=6 .*n=24 is 144 registers of each thread, over 128; use fewer"),
        (59, {"rhs": 1}, "threads=32 .*bytes of shared memory.*or a larger split"),
        (8, {"staged": None, "split": 2}, "split=2 .*only staged solves"),
    ],
)
def test_refusals(n: int, choices: dict[str, Any], refusal: str) -> None:
    wanted = {"nb": 1, "unroll": "full", "staged": True, "rhs": 1, **choices}
    with pytest.raises(ValueError, match=f"^{refusal}"):
        solve_spec(n, wanted.pop("nb"), target="cuda", **wanted)


def test_names_tell_them_apart() -> None:
    specs = [staged(8, nb, split=split, rhs=rhs) for nb, split, rhs in ((1, 1, 1), (1, 4, 1), (4, 4, 1), (1, 1, 2))]
    assert len({spec.name for spec in (*specs, solve_spec(8, 1, unroll="full", target="cuda"))}) == 5
    assert KernelSpec.from_dict(specs[2].to_dict()) == specs[2]
    assert staged(8, split=1) == staged(8)
    assert isinstance(specs[0].schedule, ThreadSchedule)
