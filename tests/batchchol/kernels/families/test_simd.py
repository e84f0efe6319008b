"""Every parameter value of the thread family on the cpu backend, against the residual bound and LAPACK in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, product
from math import inf
from typing import Any

import numpy as np
import pytest

from batchchol.artifacts.c_library import COMMON_FLAGS, supported_targets
from batchchol.backends import Kernel
from batchchol.operations.residual import RATIO_BOUND, ratios
from kernelgen import SIMD_TARGETS, KernelSpec, generate

from ....covering import Choice, covering_design
from ....kernel_runs import Array, build_kernel, check_other_triangle, make_spec, require_target, run_kernel
from ....matrices import DATA, Reference, conditioned, dominant, lapack_factor, reference, wishart

FACTORS: Mapping[str, Sequence[Any]] = {
    "n": (1, 2, 5, 17, 33, 64, 127),
    "nb": (*range(1, 9), 16),
    "looking": ("right", "left", "top"),
    "unroll": ("tiles", "full"),
    # An integer is the chunk of the chunked layout.
    "layout": ("canonical", "interleaved", 16, 32, 48, 512),
    "in_place": (False, True),
    "staged": (False, True),
    "math": ("ieee", "fast"),
    "prefetch": (False, True),
    "order": ("row", "col"),
    "uplo": ("lower", "upper"),
    "dtype": ("float32", "float64"),
    "target": supported_targets(),
    "batch": (1, 31, 33, 1000),
}
CONSTRAINED = ("n", "nb", "unroll", "layout", "staged", "batch")
# Lines of straight-line code, about a millisecond of compiling each (gcc 12): what one case may cost, and what
# starting the compiler and reading its headers does.
LINE_BUDGET = 1150
COMPILER_START = 400
# Elements of a batch: what one case may take, enough for 1000 matrices of order 64 or 512 of order 100.
ROOM_BUDGET = 5_200_000
# Matrices in a batch that differ, a number prime to every SIMD width: each takes its turn in every lane.
DISTINCT = 37
# The distance from LAPACK in float64 that rounding explains, in units of (n + 1) u times the condition number.
FORWARD_BOUND = {"ieee": 1.0, "fast": 4.0}


def compile_cost(choice: Choice) -> float:
    """What compiling a choice costs, in lines; infinite for what is refused or over the budget of one case."""
    lines = inlined_lines(choice)
    refused = choice["nb"] > choice["n"] or (choice["layout"] == "canonical" and not choice["staged"])
    room = max(choice["batch"], choice["layout"] if isinstance(choice["layout"], int) else 1) * choice["n"] ** 2
    return inf if refused or lines > LINE_BUDGET or room > ROOM_BUDGET else lines + COMPILER_START


def inlined_lines(choice: Choice) -> float:
    """About how many multiply-adds the source of a choice contains, copies by inlining included."""
    n, nb, staged = choice["n"], choice["nb"], choice["staged"]
    if choice["unroll"] == "full":
        lines = n**3 / 6
    else:
        corner, rows = n % nb, n // nb
        lines = nb**3 / 6 + (rows > 1) * nb**3 + (rows > 2) * nb**3 + corner * nb**2 * (1 + (rows > 1))
    # A chunked kernel that is not staged has a copy of its own for the smallest chunk.
    return lines * (2 if isinstance(choice["layout"], int) and not staged else 1)


def spec_of(choice: Choice) -> tuple[KernelSpec, int | None]:
    """The spec of a choice and its chunk."""
    fields = {name: value for name, value in choice.items() if name != "batch"}
    chunk = fields["layout"] if isinstance(fields["layout"], int) else None
    if chunk is not None:
        fields["layout"] = "chunked"
    return make_spec(**fields), chunk


def case_id(choice: Choice) -> str:
    spec, chunk = spec_of(choice)
    return f"{spec.name}-{choice['batch']}" + (f"-chunk{chunk}" if chunk else "")


def check_kernel(spec: KernelSpec, batch: int, chunk: int | None = None, kernel: Kernel | None = None) -> None:
    """A batch of each kind of data: the residual, the distance from LAPACK, and the same bits in every lane."""
    distinct = min(batch, DISTINCT)
    for name in DATA:
        expected = reference(name, distinct, spec.problem.n, spec.problem.dtype)
        run = run_kernel(spec, expected.a[np.arange(batch) % distinct], chunk, kernel=kernel)
        assert not run.info.any(), name
        check_accuracy(spec, expected, run.l[:distinct])
        check_other_triangle(spec, run.l)
        repeated = np.tril(run.l[:distinct])[np.arange(batch) % distinct]
        assert np.array_equal(np.tril(run.l), repeated), f"{name}: the result depends on the lane"


def check_text(spec: KernelSpec) -> None:
    """A kernel whose compiling by the library's own flags would take seconds."""
    check_kernel(spec, 33, kernel=build_kernel(spec, generate(spec)))


def check_accuracy(spec: KernelSpec, expected: Reference, l: Array) -> None:
    math = spec.problem.math
    assert ratios(expected.a, l).max() <= RATIO_BOUND[math]
    assert expected.distance(l).max() <= FORWARD_BOUND[math]


@pytest.mark.parametrize("choice", covering_design(FACTORS, CONSTRAINED, compile_cost), ids=case_id)
def test_every_pair_of_values(choice: Choice) -> None:
    spec, chunk = spec_of(choice)
    check_kernel(spec, choice["batch"], chunk)


# Tiles whose gemm alone is past the budget above, with and without corner tiles, by the cheapest program. That of the
# largest ones is compiled for GPUs only, in a tenth of the time.
@pytest.mark.parametrize(
    ("n", "nb", "looking"),
    [
        (127, 9, "left"),
        (100, 10, "top"),
        (33, 11, "left"),
        (48, 12, "top"),
        (32, 16, "left"),
    ],
)
def test_large_tiles(n: int, nb: int, looking: str) -> None:
    check_text(make_spec(n, nb, looking=looking, layout="interleaved", prefetch=False))


def test_longest_straight_line_code() -> None:
    check_text(make_spec(33, 33 // 2, unroll="full", layout="interleaved", target="generic"))


# Layouts take turns: the design above has every pair of them with each of these.
@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize(
    ("target", "dtype", "math", "layout"),
    [
        (*case, layout)
        for case, layout in zip(
            product(SIMD_TARGETS, ("float32", "float64"), ("ieee", "fast")),
            cycle(("canonical", "interleaved", "chunked")),
            strict=False,
        )
    ],
)
def test_every_target(target: str, dtype: str, math: str, layout: str) -> None:
    require_target(target)
    spec = make_spec(5, 2, target=target, dtype=dtype, math=math, layout=layout)
    check_kernel(spec, 33, kernel=build_kernel(spec, generate(spec), COMMON_FLAGS))


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize(
    ("n", "dtype", "math", "uplo", "batch", "choices"),
    [
        (2, "float32", "fast", "upper", 33, {"target": "avx512", "half": True}),
        (5, "float32", "ieee", "lower", 33, {"target": "avx512", "half": True, "overlap": True}),
        (12, "float64", "fast", "lower", 33, {"target": "avx512", "half": True}),
        (1, "float32", "ieee", "lower", 1, {"overlap": True}),
        (4, "float64", "ieee", "upper", 70, {"target": "generic", "overlap": True}),
        (8, "float32", "ieee", "lower", 64, {"overlap": True}),
    ],
)
def test_how_groups_of_arrays_are_staged(
    n: int, dtype: str, math: str, uplo: str, batch: int, choices: Mapping[str, Any]
) -> None:
    require_target(choices.get("target", "generic"))
    spec = make_spec(n, min(n, 2), dtype=dtype, math=math, uplo=uplo, layout="canonical", **choices)
    check_kernel(spec, batch, kernel=build_kernel(spec, generate(spec), COMMON_FLAGS))


# Small matrices leave the least room for the errors of an approximate root.
@pytest.mark.parametrize(("n", "math"), [(1, "ieee"), (1, "fast"), (2, "fast")])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("target", SIMD_TARGETS)
def test_roots_of_pivots_all_over_their_range(target: str, dtype: str, n: int, math: str) -> None:
    require_target(target)
    pivots = np.linspace(1, 4, 20_000) * np.exp2(np.resize([-20, 0, 40], 20_000))
    factors = np.tril(np.random.default_rng(5).random((len(pivots), n, n)) + 0.5)
    a = (factors @ factors.swapaxes(1, 2) * pivots[:, None, None]).astype(dtype)
    run = run_kernel(make_spec(n, 1, target=target, dtype=dtype, math=math, layout="interleaved"), a)
    assert not run.info.any()
    assert ratios(a, run.l).max() <= RATIO_BOUND[math]


@pytest.mark.parametrize("looking", ["right", "left", "top"])
def test_same_bits_for_every_chunk_and_alignment(looking: str) -> None:
    spec = make_spec(17, 4, looking=looking)
    a = wishart(97, 17).astype(np.float32)
    expected = run_kernel(spec, a).l
    for chunk in (8, 16, 24, 32, 48, 104, 512):
        if chunk % spec.lanes == 0:
            assert run_kernel(spec, a, chunk).l.tobytes() == expected.tobytes(), chunk
    unaligned = run_kernel(spec, a, 48, offset=4)
    assert np.array_equal(np.tril(unaligned.l), np.tril(expected))


@pytest.mark.parametrize("layout", ["canonical", "interleaved"])
def test_unaligned_arrays(layout: str) -> None:
    spec = make_spec(7, 3, layout=layout, dtype="float64")
    a = wishart(33, 7)
    assert np.array_equal(run_kernel(spec, a, offset=8).l, run_kernel(spec, a).l)


@pytest.mark.parametrize("layout", ["canonical", "interleaved", "chunked"])
def test_same_bits_for_every_number_of_threads(layout: str) -> None:
    spec = make_spec(33, 4, layout=layout)
    a = dominant(1000, 33).astype(np.float32)
    expected = run_kernel(spec, a, threads=1).l
    for threads in (2, 3, 5):
        assert run_kernel(spec, a, threads=threads).l.tobytes() == expected.tobytes()


@pytest.mark.parametrize("layout", ["canonical", "interleaved", "chunked"])
def test_every_small_batch(layout: str) -> None:
    spec = make_spec(5, 2, layout=layout)
    a = dominant(40, 5).astype(np.float32)
    a[::3, 2, 2] = -1
    expected = np.where(np.arange(40) % 3 == 0, 3, 0)
    whole = run_kernel(spec, a).l
    for batch in range(1, 41):
        run = run_kernel(spec, a[:batch])
        assert np.array_equal(run.info, expected[:batch])
        good = run.info == 0
        assert np.array_equal(np.tril(run.l[good]), np.tril(whole[:batch][good]))


# Condition numbers a little short of where rounding alone makes a matrix indefinite.
@pytest.mark.parametrize(("dtype", "condition"), [("float32", 1e6), ("float64", 1e14)])
@pytest.mark.parametrize(
    ("n", "nb", "looking", "math"),
    [(5, 2, "top", "ieee"), (5, 2, "top", "fast"), (17, 4, "right", "ieee"), (33, 5, "left", "fast")],
)
def test_ill_conditioned(n: int, nb: int, looking: str, math: str, dtype: str, condition: float) -> None:
    spec = make_spec(n, nb, looking=looking, math=math, dtype=dtype)
    a = conditioned(33, n, condition).astype(dtype)
    assert not lapack_factor(a)[1].any(), "LAPACK factors these"
    run = run_kernel(spec, a)
    assert not run.info.any()
    assert ratios(a, run.l).max() <= RATIO_BOUND[math]


@pytest.mark.parametrize(("looking", "math"), [("right", "ieee"), ("left", "fast"), ("top", "ieee")])
def test_graded_factor_is_the_scaled_factor(looking: str, math: str) -> None:
    """Scaling by powers of two rounds nothing: D A D has the factor D L, to the last bit."""
    n = 31
    spec = make_spec(n, 4, looking=looking, math=math)
    a = wishart(33, n).astype(np.float32)
    scale = np.exp2(-np.arange(n)).astype(np.float32)
    graded = run_kernel(spec, a * scale[:, None] * scale)
    assert not graded.info.any()
    assert np.array_equal(np.tril(graded.l), np.tril(run_kernel(spec, a).l) * scale[:, None])
