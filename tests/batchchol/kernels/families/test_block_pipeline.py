"""The block family's pipelines, emulated by few blocks, so that each has several groups of matrices."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import cycle, product
from math import inf
from typing import Any

import numpy as np
import pytest

from batchchol.operations.residual import RATIO_BOUND, ratios
from kernelgen import BlockSchedule, KernelSpec, Launch, Layout, Problem, SpecError, generate
from kernelgen.gpu import PIECE_BYTES
from kernelgen.schedules.block import BlockShape

from ....covering import Choice, covering_design
from ....emulation import checks as cuda_checks
from ....emulation.checks import (
    CompiledTogether,
    check_arrays_that_begin_anywhere,
    check_kernel,
    check_last_matrices_past_32_bits,
    in_every_order,
    run_or_error,
)
from ....emulation.kernels import EmulatedKernel
from ....kernel_runs import Run, make_spec, run_kernel
from ....matrices import DATA, dominant, wishart

FACTORS: Mapping[str, Sequence[Any]] = {
    "n": (3, 16, 23, 40, 65, 128),
    "nb": (4, 7, 8, 9, 10),
    "lanes": (1, 3, 4, 8, 12, 32),
    "pipeline": (1, 2, 3),
    "early": (0, 1, 3),
    "spare": (0, 1, 2),
    "fold": (0, 1, 2),
    # An integer is the chunk of the chunked layout.
    "layout": ("canonical", "interleaved", 3, 8, 33),
    "in_place": (False, True),
    "math": ("ieee", "fast"),
    "order": ("row", "col"),
    "uplo": ("lower", "upper"),
    "dtype": ("float32", "float64"),
    "blocks": (1, 2),
    # Whether the chunk is a constant of the code, where there is a chunk.
    "constant_chunk": (False, True),
    "batch": (1, 9, 70),
}
CONSTRAINED = ("n", "nb", "lanes", "pipeline", "early", "spare", "fold", "batch")
# What a case costs besides its threads' turns at barriers.
CASE_COST = 20_000


def cost_of(choice: Choice) -> float:
    """What a choice costs, in turns of threads; infinite for what is refused."""
    launched = launch_of(*(choice[name] for name in CONSTRAINED[:-1]))
    if launched is None:
        return inf
    side = -(-choice["n"] // choice["nb"])
    return float(launched.blocks(choice["batch"]) * launched.threads * 3 * side + CASE_COST)


@cache
def launch_of(n: int, nb: int, lanes: int, pipeline: int, early: int, spare: int, fold: int) -> Launch | None:
    """As much as a double takes; None where that is refused."""
    try:
        schedule = BlockSchedule(nb, lanes, pipeline=pipeline, early=early, spare=spare, fold=fold)
        schedule.check(Problem(n, "float64"), "chunked")
    except SpecError:
        return None
    return Launch(BlockShape(n, nb, lanes, "float64", spare=spare, fold=fold).threads, lanes)


DESIGN = sorted(
    covering_design(FACTORS, CONSTRAINED, cost_of), key=lambda choice: (choice["math"], choice["dtype"], choice["nb"])
)

spec_of = partial(cuda_checks.spec_of, family="block")
case_id = partial(cuda_checks.case_id, family="block")
pipeline = partial(make_spec, family="block", target="cuda")

# Every order to 33, padded by every number of rows.
EVERY_ORDER = [
    pipeline(n, max(4, min(n, nb)), lanes=lanes, layout=layout, pipeline=1, early=early)
    for n, nb, lanes, layout, early in zip(
        range(1, 34),
        cycle((4, 8, 6, 5, 8, 7, 4)),
        cycle((4, 2, 1, 8)),
        cycle(("canonical", "chunked", "canonical", "interleaved")),
        cycle((0, 1, 1)),
        strict=False,
    )
]


emulated = CompiledTogether((spec_of(choice)[0] for choice in DESIGN), EVERY_ORDER)


@pytest.mark.parametrize("choice", DESIGN, ids=case_id)
def test_every_pair_of_values(choice: Choice) -> None:
    spec, chunk = spec_of(choice)
    check_kernel(spec, choice["batch"], chunk, emulated(spec))


@pytest.mark.parametrize("spec", EVERY_ORDER, ids=lambda spec: spec.name)
def test_every_order(spec: KernelSpec) -> None:
    check_kernel(spec, 19, 3, emulated(spec))


@pytest.mark.parametrize("layout", ["canonical", "interleaved", "chunked"])
def test_ragged_batches_with_failing_members(layout: str) -> None:
    spec = pipeline(6, 4, lanes=4, layout=layout, pipeline=1, early=1)
    a = dominant(20, 6).astype(np.float32)
    a[::3, 2, 2] = np.nan
    a[1::6, 5, 5] = -1
    expected = np.where(np.arange(20) % 3 == 0, 3, np.where(np.arange(20) % 6 == 1, 6, 0))
    whole = run_kernel(spec, a, 3 if layout == "chunked" else None).l
    for batch in range(1, 21):
        run = run_kernel(spec, a[:batch])
        assert np.array_equal(run.info, expected[:batch])
        good = run.info == 0
        assert np.array_equal(np.tril(run.l[good]), np.tril(whole[:batch][good]))


@pytest.mark.parametrize("math", ["ieee", "fast"])
def test_the_first_bad_pivot_is_told_wherever_it_is(math: str) -> None:
    """In any tile, at its first and last place, alone and before other bad ones, and good matrices after bad ones."""
    n = 11
    a = dominant(3 * n, n).astype(np.float32)
    for m in range(n):
        a[m, m, m] = -1
        a[n + m, m:, m:] = np.nan
    run = run_kernel(pipeline(n, 4, lanes=2, math=math, pipeline=2), a)
    assert run.info.tolist() == [*range(1, n + 1), *range(1, n + 1), *[0] * n]


def test_an_infinite_pivot_has_an_info_of_the_matrix() -> None:
    a = dominant(5, 6).astype(np.float32)
    a[:, 2, 2] = np.inf
    exact = run_kernel(pipeline(6, 4, lanes=4, pipeline=1), a).info
    fast = run_kernel(pipeline(6, 4, lanes=4, math="fast", pipeline=1), a).info
    assert (exact == 0).all()
    assert (fast == 0).all()


def test_same_bits_as_without_a_pipeline() -> None:
    a = wishart(70, 19).astype(np.float32)
    expected = np.tril(run_kernel(pipeline(19, 8, lanes=4), a).l).tobytes()
    for depth, early, blocks in ((1, 0, 1), (1, 2, 3), (2, 0, 2), (2, 3, 1), (4, 1, 1)):
        spec = pipeline(19, 8, lanes=4, pipeline=depth, early=early, blocks=blocks)
        assert np.tril(run_kernel(spec, a).l).tobytes() == expected, (depth, early, blocks)


@pytest.mark.parametrize(("spare", "early", "depth"), [(0, 0, 1), (0, 5, 2), (1, 2, 1), (3, 4, 1), (1, 1, 2)])
def test_same_bits_with_folded_warps(spare: int, early: int, depth: int) -> None:
    a = dominant(90, 30).astype(np.float32)
    expected = np.tril(run_kernel(pipeline(30, 6, lanes=12, pipeline=1), a).l).tobytes()
    shape = BlockShape(30, 6, 12, "float32")
    folds = [fold for fold in range(1, (6 - spare) // 2 + 1) if not shape.shared_diagonal(fold)]
    assert 1 in folds
    for fold in folds:
        spec = pipeline(30, 6, lanes=12, pipeline=depth, early=early, spare=spare, fold=fold)
        assert np.tril(run_kernel(spec, a).l).tobytes() == expected, fold


def test_same_bits_with_spare_warps() -> None:
    """Some that have a part of a column, one that has nearly all, with room for one group of panels and for more."""
    a = wishart(70, 30).astype(np.float32)
    expected = np.tril(run_kernel(pipeline(30, 6, lanes=12), a).l).tobytes()
    for depth, early, spare in ((1, 0, 1), (1, 4, 2), (2, 3, 1), (3, 0, 5)):
        spec = pipeline(30, 6, lanes=12, pipeline=depth, early=early, spare=spare)
        assert np.tril(run_kernel(spec, a).l).tobytes() == expected, (depth, early, spare)


@pytest.mark.parametrize("early", [0, 2])
@pytest.mark.parametrize("in_place", [False, True])
def test_any_number_of_blocks_will_do(in_place: bool, early: int) -> None:
    """As many as a GPU has room for, fewer, and one to each group."""
    n, batch = 9, 33
    spec = pipeline(n, 4, lanes=4, layout="canonical", order="row", in_place=in_place, pipeline=1, early=early)
    a = dominant(batch, n).astype(np.float32)
    for resident in (1, 2, 5, 8, 9, 100):
        source = generate(spec)
        assert source.launch is not None
        source = replace(source, launch=replace(source.launch, resident=resident))
        run = run_kernel(spec, a, kernel=EmulatedKernel.of(spec, source))
        assert not run.info.any()
        assert ratios(a, run.l).max() <= RATIO_BOUND["ieee"]


@pytest.mark.parametrize(("in_place", "order"), [(False, "row"), (True, "col")])
def test_canonical_arrays_that_begin_anywhere(in_place: bool, order: str) -> None:
    choices = {"layout": "canonical", "order": order, "in_place": in_place, "early": int(in_place)}
    check_arrays_that_begin_anywhere(pipeline(12, 4, lanes=2, pipeline=1, **choices), batch=9)


@pytest.mark.parametrize("layout", [Layout.canonical(), *map(Layout.chunked, (32, 33))], ids=str)
def test_last_matrices_of_a_batch_past_32_bits(layout: Layout) -> None:
    choices = {"layout": layout.kind, "order": layout.order, "in_place": True, "pipeline": 1, "early": 1}
    check_last_matrices_past_32_bits(pipeline(2, 4, lanes=4, **choices), layout)


# ---- Shapes and launches ----


def test_a_pipeline_has_blocks_for_the_whole_gpu_and_no_more() -> None:
    launched = generate(pipeline(32, 8, lanes=8, pipeline=1, blocks=5)).launch
    assert launched is not None
    assert launched.resident == 5
    assert [launched.grid(items, 132) for items in (1, 8, 9, 5279, 5281, 1 << 40)] == [1, 1, 2, 660, 660, 660]
    without = generate(pipeline(32, 8, lanes=8, blocks=5)).launch
    assert without is not None
    assert without.grid(1 << 20, 132) == without.blocks(1 << 20) == 1 << 17


def test_what_ptxas_mistakes_is_of_few_warps() -> None:
    """Each bit of a warp's first column is then one comparison, if any: no columns but some of few warps are such."""
    warps = set()
    for side, lanes in product(range(2, 33), range(1, 33)):
        starts = [column * side - column * (column - 1) // 2 for column in range(1, side)]
        steps = sorted(Counter(-(-start * lanes // 32) for start in starts).values())
        if len(set(steps)) == len(steps) and all(step & (step - 1) == 0 for step in steps):
            warps.add(BlockShape(side * 4, 4, lanes, "float32", pipeline=1).working_threads // 32)
    assert max(warps) == 5
    for n, nb, lanes, few in ((23, 6, 4, True), (40, 8, 32, False)):
        text = generate(pipeline(n, nb, lanes=lanes, pipeline=1, spare=1)).text
        assert ("relieved(warp) << 11" in text) != few


def test_shared_memory_of_a_pipeline() -> None:
    shape = BlockShape(100, 8, 4, "float32", pipeline=2, early=3)
    assert (shape.tiles, shape.tile_pieces, shape.barriers, shape.early_threads) == (91, 17, 3 * 13 * 2, 6 * 4)
    assert shape.shared_bytes == 2 * 91 * 17 * 4 * PIECE_BYTES + 78 * 8 + 24 * 64 * 4
    spare = BlockShape(100, 8, 4, "float32", pipeline=2, early=3, spare=1)
    assert (spare.working_threads, spare.relieved, spare.threads) == (384, 352, 416)
    assert (spare.barriers, spare.early_threads) == (2 * 78, 352 - 85 * 4)
    folded = BlockShape(100, 8, 4, "float32", pipeline=2, early=3, spare=1, fold=3)
    assert (folded.threads, folded.relieved, folded.shared_bytes) == (416 - 3 * 32, 352, spare.shared_bytes)
    # What is fetched begins with a piece.
    assert BlockShape(20, 8, 4, "float32", pipeline=1, early=1).barriers == 10
    source = generate(pipeline(48, 8, lanes=8, pipeline=2, early=1))
    assert source.launch is not None
    assert source.launch.shared_bytes == BlockShape(48, 8, 8, "float32", 2, 1).shared_bytes
    assert re.findall(r".*__shared__.*", source.text) == ["extern __shared__ Piece panel[];"]


@pytest.mark.parametrize(
    ("n", "choices", "reason"),
    [
        (20, {"pipeline": 1, "early": 4}, r"early=4 .* is 3 columns of them"),
        (20, {"early": 1}, r"early=1 .* use pipeline=1"),
        (20, {"spare": 1}, r"spare=1 .* use pipeline=1"),
        (40, {"pipeline": 1, "spare": 1}, r"spare=1 .* is 1 warps, use fewer"),
        (20, {"fold": 1}, r"fold=1 .* use pipeline=1"),
        (
            128,
            {"pipeline": 1, "spare": 2, "fold": 4},
            r"fold=4 .* is 7 warps that are not relieved, use no more than half",
        ),
        (16, {"lanes": 12, "pipeline": 1, "fold": 1}, r"fold=1 .* warps 0 and 1 with lanes of one diagonal tile"),
        (20, {"pipeline": 5}, r"pipeline=5 .* from 0 to 4"),
        (128, {"pipeline": 4}, r"over the 232,448 of a block; use fewer lanes, a smaller pipeline or less of early"),
        (120, {"lanes": 8, "pipeline": 1, "spare": 3}, r"1,056 threads, .* or a larger nb, or fewer spare warps"),
    ],
)
def test_refused_are_pipelines_that_do_not_exist(n: int, choices: dict[str, int], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        pipeline(n, 8, **{"lanes": 2, **choices})


def test_a_name_and_a_description_of_its_own() -> None:
    spec = pipeline(32, 8, lanes=8, pipeline=2, early=1)
    assert "_pipe2_early1_" in spec.name
    assert KernelSpec.from_dict(spec.to_dict()) == spec
    assert pipeline(32, 8, lanes=8) == pipeline(32, 8, lanes=8, pipeline=0, early=0)
    assert "pipe" not in pipeline(32, 8, lanes=8).name


# ---- One line changed ----

# Each tile has a warp, or several share one.
MUTATED = pipeline(15, 4, lanes=32, layout="interleaved", pipeline=1, early=1)
SHARED_WARPS = pipeline(20, 4, lanes=8, layout="interleaved", pipeline=1)
# Lanes fetch elements for each other.
TOGETHER = pipeline(15, 4, lanes=8, stride=32, pipeline=1, early=2)
# Warps that have every second group.
SPARE_WARPS = pipeline(20, 4, lanes=8, layout="interleaved", pipeline=1, spare=2)
# One that does the work of two besides.
FOLDED_WARPS = pipeline(20, 4, lanes=8, layout="interleaved", pipeline=1, spare=1, fold=1)
MUTATED_BATCH = {MUTATED: 7 * 32, SHARED_WARPS: 7 * 8, TOGETHER: 7 * 8, SPARE_WARPS: 7 * 8, FOLDED_WARPS: 7 * 8}
# A wait, an arrival or what is handed over: dropped, something depends on what runs first, or nothing goes on.
DROPPED: Mapping[str, Sequence[Any]] = {
    "waiting for an empty panel": (MUTATED, r"wait_for\(barriers \+ EMPTY, .*\);"),
    "waiting for a diagonal tile": (MUTATED, r"wait_for\(barriers \+ READY, .*\);"),
    "waiting for a full panel": (MUTATED, r"wait_for\(barriers \+ FULL, .*\);"),
    "waiting for the right phase": (MUTATED, r"wait_for\(barriers \+ FULL, .*\);", "wait_for(barriers + FULL, 0);"),
    "waiting for what was fetched": (MUTATED, r"wait_for_fetched\(\);(?=\n +take)"),
    "arriving at a diagonal tile": (MUTATED, r"arrive\(barriers \+ READY\);"),
    "arriving at a full panel": (MUTATED, r"arrive_as_warp\(barriers \+ FULL\);"),
    "arriving only where somebody waits": (MUTATED, r"if \(k < SIDE - 1\)(?=\n +arrive)"),
    "arriving at an empty panel": (MUTATED, r"arrive_as_warp\(barriers \+ EMPTY\);"),
    "setting up": (MUTATED, r"set_up_barriers\(\);"),
    "all threads knowing of it": (MUTATED, r"__syncthreads\(\);"),
    "one warp speaking for all its threads": (SHARED_WARPS, r"__syncwarp\(\);(?=\n +if \(threadIdx.x % 32 == 0)"),
    "the diagonal tile in its own warp": (SHARED_WARPS, r"__syncwarp\(\);(?=\n +if \(threadIdx.x % WARP)"),
    "waiting for what others fetch": (TOGETHER, r"wait_for_fetched\(\);(?=\n +__syncwarp)"),
    "others having waited": (TOGETHER, r"__syncwarp\(\);(?=\n +if \(early && round)"),
    "others having taken what is fetched over": (TOGETHER, r"__syncwarp\(\);(?=\n +if \(early && next)"),
    "waiting for the group before": (SPARE_WARPS, r"wait_for\(barriers_of\(\(round - PIPELINE\) .*\);"),
    "barriers for every second group": (
        SPARE_WARPS,
        r"Barrier \*const barriers = .*;",
        "Barrier *const barriers = barriers_of(turn, k);",
    ),
    "the last panel being left to another warp": (
        SPARE_WARPS,
        r"arrive_as_warp\(barriers \+ \(k < SIDE - 1 \? FULL : EMPTY\)\);",
        "arrive_as_warp(barriers + FULL);",
    ),
    "the tiles of another warp": (FOLDED_WARPS, r"const int working = [^;]*;", "const int working = warp;"),
    "two steps for a group": (FOLDED_WARPS, r"const unsigned round = step / 2;", "const unsigned round = step;"),
    "an update": (MUTATED, r"update\(c, .*\);"),
    "a solution": (MUTATED, r"solve\(c, .*\);"),
    "fetching": (MUTATED, r"fetch_tile\(fetched, .*\);"),
}


@pytest.mark.parametrize("line", DROPPED)
def test_every_line_of_the_pipeline_is_needed(line: str) -> None:
    spec, pattern, *replacement = DROPPED[line]
    source = generate(spec)
    text, found = re.subn(
        rf"(?<=^)( +){pattern}", rf"\1{''.join(replacement) or '{}'}", source.text, flags=re.MULTILINE
    )
    assert found == 1
    for name, make in DATA.items():
        a = make(MUTATED_BATCH[spec], spec.problem.n).astype(np.float32)
        outcome = run_or_error(spec, replace(source, text=text), a)
        if not isinstance(outcome, Run):
            assert re.search("depends on the order|waits at|was not set up|under way", outcome), name
            # Which thread waits for which does not depend on the data.
            break
        assert outcome.info.any() or not ratios(a, outcome.l).max() <= RATIO_BOUND["fast"], name


@pytest.mark.parametrize("spec", [*MUTATED_BATCH], ids=lambda spec: spec.name)
def test_unchanged_it_does_not_depend_on_the_order_of_threads(spec: KernelSpec) -> None:
    a = dominant(MUTATED_BATCH[spec], spec.problem.n).astype(np.float32)
    run = in_every_order(spec, generate(spec), a)
    assert not run.info.any()
    assert ratios(a, run.l).max() <= RATIO_BOUND["ieee"]
