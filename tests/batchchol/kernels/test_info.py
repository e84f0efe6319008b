"""Info is LAPACK's in every family, layout, math and batch: nineteen kinds of matrices in one."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchchol import cholesky_ex
from batchchol.artifacts.c_library import supported_targets
from batchchol.operations.residual import RATIO_BOUND, ratios
from kernelgen import KernelSpec
from kernelgen.emit.families.shared import generate_single

from ...emulation.programs import compile_program
from ...kernel_runs import make_spec, run_kernel
from ...matrix_kinds import FLUSHED_KINDS, KINDS, Array, certain, lapack_info, make, reference_info
from .test_failing import SPECS, N, flushes, run

EACH = 3
SIMD_SPECS = [
    make_spec(N, 4, layout=layout, order=order, looking=looking, dtype=dtype, math=math, uplo=uplo, target=target)
    for target, (layout, order, looking, dtype, math, uplo) in product(
        supported_targets(),
        (
            ("chunked", "col", "right", "float32", "fast", "lower"),
            ("canonical", "row", "left", "float64", "fast", "upper"),
            ("interleaved", "row", "top", "float32", "ieee", "upper"),
            ("canonical", "col", "top", "float64", "ieee", "lower"),
        ),
    )
    # All targets take the same correctly rounded roots.
    if math == "fast" or target == supported_targets()[0]
]
# What these add to the kernels of the tests of failing members: approximate roots in double precision.
GPU_SPECS = [
    make_spec(N, 6, family="block", lanes=4, dtype="float64", math="fast", target="cuda"),
    make_spec(N, 6, family="shared", looking="left", matrices=2, dtype="float64", math="fast", target="cuda"),
]


@cache
def mixed(dtype: str) -> tuple[tuple[str, ...], Array]:
    """Matrices of every kind in turn, good ones between them."""
    random = np.random.default_rng(11)
    kinds = tuple(kind for _ in range(EACH) for kind in ("dominant", *KINDS))
    made = {kind: iter(make(kind, random, kinds.count(kind), N, dtype)) for kind in KINDS}
    return kinds, np.array([next(made[kind]) for kind in kinds])


def promised(spec: KernelSpec, kinds: tuple[str, ...], a: Array) -> Array:
    """Whether the info of a matrix is certain: not where a kernel may take numbers for zero, or rounding decides."""
    flushed = np.array([kind in FLUSHED_KINDS for kind in kinds])
    return certain(kinds, a) & ~(flushed & flushes(spec))


@pytest.mark.parametrize("spec", [*SIMD_SPECS, *SPECS, *GPU_SPECS], ids=lambda spec: spec.name)
def test_info_of_every_kind_in_one_batch(spec: KernelSpec) -> None:
    kinds, a = mixed(spec.problem.dtype)
    result, sure, lapack = run(spec, a), promised(spec, kinds, a), lapack_info(a)
    assert sure.mean() > 0.75
    differs = sure & (result.info != lapack)
    assert not differs.any(), [(kinds[m], result.info[m], lapack[m]) for m in np.flatnonzero(differs)]
    good = sure & (lapack == 0)
    assert not np.isnan(np.tril(result.l[good])).any()
    measured = good & np.isfinite(a).all(axis=(1, 2)) & (np.array(kinds) != "denormal")
    assert ratios(a[measured], result.l[measured]).max() <= RATIO_BOUND[spec.problem.math]


@pytest.mark.parametrize("spec", [*SIMD_SPECS, *SPECS, *GPU_SPECS], ids=lambda spec: spec.name)
def test_no_kind_changes_a_bit_of_its_neighbours(spec: KernelSpec) -> None:
    kinds, a = mixed(spec.problem.dtype)
    good = np.array(kinds) == "dominant"
    alone = np.where(good[:, None, None], a, a[0])
    beside, expected_bits = run(spec, a).l[good], run(spec, alone).l[good]
    assert np.tril(beside).tobytes() == np.tril(expected_bits).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("math", ["ieee", "fast"])
def test_info_of_a_single_matrix_by_a_block_of_threads(dtype: str, math: str) -> None:
    source = generate_single(N, dtype, math)
    program = compile_program((source,))
    kinds, a = mixed(dtype)
    spec = make_spec(N, 6, family="shared", matrices=1, dtype=dtype, math=math, target="cuda")
    sure, lapack = promised(spec, kinds, a), lapack_info(a)
    for member in np.flatnonzero(sure):
        # In columns: the lower triangle of a column-major matrix.
        given_matrix = np.ascontiguousarray(np.where(np.tri(N, dtype=bool), a[member], np.nan).T.astype(dtype))
        l, info = np.zeros_like(given_matrix), np.full(1, -7, np.int32)
        program.launch(source, 1, given_matrix, l, info, np.int64(1), np.int64(1))
        assert info[0] == lapack[member], kinds[member]
        assert lapack[member] or not np.isnan(l).any()


@settings(max_examples=40)
@given(
    n=st.sampled_from([1, 9]),
    kind=st.sampled_from(sorted(KINDS)),
    dtype=st.sampled_from(["float32", "float64"]),
    math=st.sampled_from(["ieee", "fast"]),
    upper=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_info_through_the_api(n: int, kind: str, dtype: str, math: str, upper: bool, seed: int) -> None:
    """What the other triangle holds is no matter."""
    a = make(kind, np.random.default_rng(seed), 5, n, dtype)
    lapack, sure = lapack_info(a), certain([kind] * len(a), a)
    sure &= math == "ieee" or kind not in FLUSHED_KINDS
    triangle = np.tri(n, dtype=bool).T if upper else np.tri(n, dtype=bool)
    found = cholesky_ex(np.where(triangle, a, np.nan).astype(dtype), math=math, upper=upper)
    assert np.array_equal(found.info[sure], lapack[sure])
    assert not np.isnan(found.L[sure & (lapack == 0)]).any()


def test_the_reference_for_what_is_not_finite_is_lapack_for_what_is() -> None:
    random = np.random.default_rng(3)
    for kind in KINDS:
        a = make(kind, random, 30, 9, "float64")
        sure = certain([kind] * len(a), a) & np.isfinite(a).all(axis=(1, 2))
        assert np.array_equal(reference_info(a)[sure], lapack_info(a)[sure])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("target", supported_targets())
def test_fast_roots_of_all_normal_pivots(dtype: str, target: str) -> None:
    limits = np.finfo(dtype)
    random = np.random.default_rng(1)
    # Of every binade the first, the last and others in between: the halves of the first binade's are denormal.
    mantissas = np.concatenate([[1.0, 2 - 2 * limits.eps], random.uniform(1, 2, 30)])
    exponents = np.arange(limits.minexp, limits.maxexp)
    d = np.ldexp(mantissas[:, None], exponents[None, :]).astype(dtype).reshape(-1)
    result = run_kernel(make_spec(1, 1, target=target, dtype=dtype, math="fast"), d[:, None, None])
    assert not result.info.any()
    # The root's square, whose error against d is judged where nothing of it is denormal.
    half = np.frexp(d)[1][:, None, None] // 2
    seen = ratios(np.ldexp(d[:, None, None].astype(float), -2 * half), np.ldexp(result.l.astype(float), -half), dtype)
    inside = (d >= 1e-30) if dtype == "float32" else d >= 2.0**-960
    assert seen[inside].max() <= RATIO_BOUND["fast"]
    assert seen.max() <= 5


def test_the_smallest_normal_pivot_has_its_root_where_half_of_it_is_denormal() -> None:
    for dtype in ("float32", "float64"):
        tiny = np.finfo(dtype).tiny
        found = cholesky_ex(np.full((1, 1, 1), tiny, dtype), math="fast")
        np.testing.assert_allclose(found.L[0, 0, 0], np.sqrt(tiny), rtol=4 * np.finfo(dtype).eps)
