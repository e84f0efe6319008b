"""Kernels of QR factorizations, of every SIMD target here and emulated of GPUs, against LAPACK and bounds."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from batchchol.artifacts.c_library import supported_targets
from batchchol.operations.qr import BOUND, factor_ratios, orthogonal, orthogonality_ratios, solve_ratios
from kernelgen import KernelSpec, SpecError, generate
from kernelgen.gpu import WARP
from kernelgen.schedules.stages.general import most_general_order

from ....emulation.checks import CompiledTogether
from ....kernel_runs import Array, build_kernel, make_spec
from ....qr_runs import KINDS, matrices, run

COUNT = 13
# The first kinds are of full rank: rounding decides neither signs nor what is zero.
FULL_RANK = 3


def qr_spec(op: str, n: int, **choices: Any) -> KernelSpec:
    if op == "ormqr" and choices.get("split"):
        choices |= {"staged": None, "split": max(4, choices["split"])}
    if op == "orgqr" and choices.get("split", 0) >= WARP:
        choices |= {"staged": None, "threads": max(WARP, choices["split"])}
    return make_spec(n, 1, op=op, looking="right", **choices)


# Every value of each choice, rows and columns that differ, and all orders with few elements to a word.
_CASES: tuple[tuple[int, int, str, str, str, str, str], ...] = (
    (1, 1, "full", "canonical", "row", "float32", "ieee"),
    (3, 3, "full", "interleaved", "row", "float64", "fast"),
    (5, 2, "tiles", "canonical", "col", "float64", "ieee"),
    (6, 5, "tiles", "chunked", "col", "float32", "fast"),
    (9, 9, "full", "chunked", "row", "float32", "ieee"),
    (20, 17, "tiles", "canonical", "row", "float32", "ieee"),
)
_GPU_CASES: tuple[tuple[int, int, str, str, str, str, int], ...] = (
    (2, 2, "chunked", "col", "float32", "fast", 32),
    (5, 4, "canonical", "row", "float32", "ieee", 96),
    (4, 4, "canonical", "row", "float32", "fast", 32),
    (7, 5, "interleaved", "col", "float64", "ieee", 64),
)
# Threads share a matrix: several matrices of a warp, loops over panels, two threads a column, two warps a matrix;
# also together with those of other matrices, where neighbours in memory are read at once.
_SPLIT_CASES: tuple[tuple[int, int, str, str, str, str, int, int, bool | None], ...] = (
    (9, 6, "canonical", "row", "float32", "ieee", 4, 32, True),
    (7, 7, "chunked", "col", "float64", "fast", 8, 64, None),
    (36, 33, "canonical", "col", "float32", "ieee", 16, 32, True),
    (41, 34, "canonical", "row", "float32", "ieee", 64, 64, None),
    (68, 17, "interleaved", "row", "float64", "ieee", 32, 128, None),
)
# Whole warps have a matrix in shared memory, and panels of reflectors: a warp, and two, of arrays and of neighbours.
_PANEL_CASES: tuple[tuple[int, int, str, str, str, str, int, int, bool | None], ...] = (
    (36, 20, "canonical", "row", "float32", "ieee", 64, 64, True),
    (17, 17, "chunked", "col", "float64", "fast", 32, 64, True),
    (11, 10, "canonical", "col", "float32", "ieee", 32, 32, True),
)
# Lanes of a warp have whole columns: neighbours in memory at once, straight on and in loops, a column to spare.
_LANE_CASES: tuple[tuple[int, int, str, str, str, str, int, int, bool | None], ...] = (
    (10, 8, "canonical", "row", "float32", "ieee", 2, 32, None),
    (13, 12, "chunked", "col", "float64", "ieee", 4, 64, None),
    (30, 16, "canonical", "row", "float32", "fast", 4, 32, None),
    (17, 17, "interleaved", "row", "float32", "ieee", 4, 32, None),
)
SHAPES: list[dict[str, Any]] = (
    [
        {"m": m, "n": n, "layout": layout, "order": order, "dtype": dtype, "math": math, "unroll": unroll}
        | {"target": supported_targets()[place % len(supported_targets())]}
        for place, (m, n, unroll, layout, order, dtype, math) in enumerate(_CASES)
    ]
    + [
        {"m": m, "n": n, "layout": layout, "order": order, "dtype": dtype, "math": math, "unroll": "full"}
        | {"target": "cuda", "threads": threads}
        for m, n, layout, order, dtype, math, threads in _GPU_CASES
    ]
    + [
        {"m": m, "n": n, "layout": layout, "order": order, "dtype": dtype, "math": math, "unroll": "full"}
        | {"target": "cuda", "split": split, "threads": threads, "staged": staged}
        for m, n, layout, order, dtype, math, split, threads, staged in (*_LANE_CASES, *_PANEL_CASES, *_SPLIT_CASES)
    ]
)
WIDE: dict[str, Any] = {
    "m": 3,
    "n": 5,
    "layout": "canonical",
    "order": "row",
    "dtype": "float32",
    "math": "ieee",
    "unroll": "full",
}
OPS = ("geqrf", "orgqr", "ormqr", "gels")
ON_GPUS = [qr_spec(op, **shape) for shape in SHAPES if shape["target"] == "cuda" for op in OPS]
emulated = CompiledTogether(ON_GPUS)


def kernel_for(spec: KernelSpec) -> Any:
    return emulated(spec) if spec in ON_GPUS else build_kernel(spec, generate(spec))


def made(op: str, shape: dict[str, Any], a: Array, *beside: Array) -> Any:
    spec = qr_spec(op, **shape)
    chunk = 48 if spec.layout == "chunked" and spec.target != "cuda" else None
    return run(spec, a, *beside, chunk=chunk, kernel=kernel_for(spec))


def count_of(shape: dict[str, Any]) -> int:
    """Examples of a kind: few where a matrix takes many emulated threads a long time."""
    return COUNT if shape["m"] * shape["n"] < 500 else 2


def examples(shape: dict[str, Any]) -> Array:
    random, count = np.random.default_rng(shape["n"]), count_of(shape)
    return np.concatenate([matrices(kind, random, count, shape["m"], shape["n"]) for kind in KINDS]).astype(
        shape["dtype"]
    )


def by_lapack(a: Array) -> tuple[Array, Array]:
    """Factors and tau of matrices (batch, m, n), in their own precision."""
    found = [scipy.linalg.lapack.get_lapack_funcs("geqrf", (matrix,))(matrix) for matrix in a]
    return np.array([qr for qr, *_ in found]), np.array([tau for _, tau, *_ in found])


def assert_like_lapack(a: Array, qr: Array, tau: Array) -> None:
    """The same tau, and the same rows of R with the same signs, as far as rounding lets them be."""
    expected, scalars = by_lapack(a)
    near = 500 * np.finfo(a.dtype).eps
    assert np.abs(tau - scalars).max() <= near
    columns = np.abs(a).max(-2, keepdims=True, initial=np.finfo(a.dtype).smallest_subnormal)
    assert (np.abs(np.triu(qr) - np.triu(expected)) <= near * columns * a.shape[-2]).all()


@pytest.mark.parametrize("shape", [*SHAPES, WIDE], ids=str)
def test_factors_are_within_their_bounds(shape: dict[str, Any]) -> None:
    a, bound, count = examples(shape), BOUND[shape["math"]], count_of(shape)
    qr, tau = made("geqrf", shape, a)
    q = orthogonal(qr, tau)
    assert factor_ratios(a, qr, tau).max() <= bound
    assert orthogonality_ratios(q, a.dtype).max() <= bound
    assert_like_lapack(a[:count], qr[:count], tau[:count])
    triangular = slice(FULL_RANK * count, (FULL_RANK + 1) * count)
    # There is nothing to reflect: LAPACK has H = I, not one that changes a sign.
    assert not tau[triangular].any()
    assert np.array_equal(qr[triangular], a[triangular])
    for nrhs in (1, 6):
        b = np.random.default_rng(nrhs).standard_normal((len(a), shape["m"], nrhs)).astype(a.dtype)
        product = made("ormqr", shape, qr, tau, b)
        error = np.linalg.norm(product - q.swapaxes(-1, -2) @ b, axis=-2)
        assert (error <= bound * 4 * shape["m"] * np.finfo(a.dtype).eps * np.linalg.norm(b, axis=-2)).all()
    if shape is WIDE:
        return
    columns = made("orgqr", shape, qr, tau)
    assert orthogonality_ratios(columns, a.dtype).max() <= bound
    assert np.abs(columns - q[..., : shape["n"]]).max() <= 2 * bound * shape["m"] * np.finfo(a.dtype).eps


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_solutions_are_within_their_bounds(shape: dict[str, Any]) -> None:
    a, bound, count = examples(shape), BOUND[shape["math"]], count_of(shape)
    full = slice(FULL_RANK * count)
    for nrhs in (1, 3, 40) if count == COUNT else (1, 6):
        b = np.random.default_rng(nrhs).standard_normal((len(a), shape["m"], nrhs)).astype(a.dtype)
        x, info = made("gels", shape, a, b)
        assert solve_ratios(a[full], b[full], x[full]).max() <= bound
        assert not info[full].any()
        # The diagonal of R that is exactly zero: LAPACK's info.
        assert np.array_equal(info[-count:], np.arange(count) % shape["n"] + 1)


@pytest.mark.parametrize("shape", [SHAPES[2], SHAPES[4], *SHAPES[7:14:2], *SHAPES[-5::2]], ids=str)
def test_the_whole_range_of_numbers(shape: dict[str, Any]) -> None:
    """LAPACK's larfg rescales what is tiny: so do kernels in ieee."""
    a, limits = examples(shape)[: 2 * count_of(shape)], np.finfo(shape["dtype"])
    for size in (float(limits.max) * 2.0**-10, float(limits.tiny) * 2.0**16, float(limits.tiny) * 2.0**-4):
        scale = 2.0 ** np.round(np.log2(size)) / 2.0**14
        scaled = (a * scale).astype(a.dtype)
        factors, scalars = made("geqrf", shape, scaled)
        assert np.isfinite(factors).all()
        assert orthogonality_ratios(orthogonal(factors, scalars), a.dtype).max() <= BOUND["ieee"]
        rounding = np.abs(orthogonal(factors, scalars) @ np.triu(factors.astype(float)) - scaled.astype(float))
        norms = np.linalg.norm(scaled.astype(float) / scale, axis=-2)[:, None] * scale
        unit, (m, n) = float(limits.eps) / 2, a.shape[-2:]
        # Denormals are rounded to multiples of the smallest.
        assert (
            rounding <= BOUND["ieee"] * (m + n + 4) * unit * norms + m * n * float(limits.smallest_subnormal)
        ).all()


@pytest.mark.parametrize("shape", SHAPES[-5:], ids=str)
def test_solutions_have_the_range_of_right_hand_sides(shape: dict[str, Any]) -> None:
    """In units of a power of two they are the same, as far as their rounding allows: squares of neither are made."""
    a = examples(shape)[: 2 * count_of(shape)]
    b = np.random.default_rng(2).standard_normal((len(a), shape["m"], 2)).astype(a.dtype)
    (x, _), unit = made("gels", shape, a, b), a.dtype.type(2)
    for scale in (unit**80, unit**-80):
        other, _ = made("gels", shape, a, b * scale)
        assert np.array_equal(other, x * scale)


@pytest.mark.parametrize("shape", [SHAPES[4], *SHAPES[7:14:3], *SHAPES[-5::2], SHAPES[-2]], ids=str)
def test_what_is_far_below_the_rest_of_its_column(shape: dict[str, Any]) -> None:
    """Its squares are no normal numbers unless it is scaled on the way."""
    a = examples(shape)[: 2 * count_of(shape)]
    a[:, 1:] *= 2.0 ** (-90 if a.dtype == np.float32 else -600)
    factors, scalars = made("geqrf", shape, a)
    assert orthogonality_ratios(orthogonal(factors, scalars), a.dtype).max() <= BOUND["ieee"]
    assert factor_ratios(a, factors, scalars).max() <= BOUND["ieee"]
    assert_like_lapack(a, factors, scalars)


def test_neighbours_that_are_not_aligned() -> None:
    """Lanes read several elements at once from memory that is aligned to them, else one by one."""
    spec, random = qr_spec("geqrf", **SHAPES[10]), np.random.default_rng(6)
    (m, n), count, kernel = (SHAPES[10]["m"], SHAPES[10]["n"]), 21, kernel_for(spec)
    a = random.standard_normal((count, m, n)).astype(np.float32)
    results = []
    for offset in (0, 1):
        given, made = (np.zeros(a.size + 4, np.float32)[offset : a.size + offset] for _ in range(2))
        given[:], tau = a.ravel(), np.zeros((count, n), np.float32)
        places = (each.ctypes.data for each in (given, made, tau))
        kernel.program.launch_unfenced(kernel.source, count, *places, 1, count)
        results.append((made.tobytes(), tau.tobytes()))
    assert results[0] == results[1]
    assert factor_ratios(a, made.reshape(a.shape), tau).max() <= BOUND["ieee"]


@pytest.mark.parametrize("op", ["geqrf", "gels"])
@pytest.mark.parametrize("shape", [SHAPES[3], SHAPES[5], SHAPES[7], SHAPES[10], SHAPES[-4]], ids=str)
def test_numbers_that_are_not_finite_harm_no_neighbour(op: str, shape: dict[str, Any]) -> None:
    m, n, random = shape["m"], shape["n"], np.random.default_rng(3)
    a = random.standard_normal((40, m, n)).astype(shape["dtype"])
    beside = (random.standard_normal((40, m, 2)).astype(shape["dtype"]),) if op == "gels" else ()
    alone = made(op, shape, a, *beside)
    bad = np.arange(40) % 3 == 0
    for place, value in ((0, np.nan), (n - 1, np.nan), (1, np.inf), (n - 1, -np.inf)):
        spoilt = a.copy()
        spoilt[bad, m - 1, place] = value
        found = made(op, shape, spoilt, *beside)
        assert not np.isfinite(found[0][bad]).all((-1, -2)).any()
        for one, other in zip(found, alone, strict=True):
            assert one[~bad].tobytes() == other[~bad].tobytes()


@pytest.mark.parametrize(
    "change",
    [
        ("column[i] -= by[i] * sum;", "column[i] += by[i] * sum;"),
        ("sum *= tau;", ""),
        ("column[i] *= factor;", ""),
        ("-same_sign(norm, alpha)", "same_sign(norm, alpha)"),
    ],
    ids=lambda change: change[0],
)
def test_a_changed_line_is_noticed(change: tuple[str, str]) -> None:
    shape = SHAPES[3]
    spec, a = qr_spec("geqrf", **shape), examples(shape)
    text = generate(spec).text
    assert change[0] in text
    kernel = build_kernel(spec, replace(generate(spec), text=text.replace(*change)))
    qr, tau = run(spec, a, chunk=48, kernel=kernel)
    assert not factor_ratios(a, qr, tau).max() <= 100 * BOUND["fast"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_cannot_be_built_says_what_can(dtype: str) -> None:
    n = most_general_order(dtype) + 1
    with pytest.raises(SpecError, match=f"n={n} cannot be built"):
        qr_spec("gels", n, unroll="full", dtype=dtype, target="cuda")
    for op, choices, reason in (
        ("gels", {"m": 4}, "takes at least as many rows as columns, use 5 or more"),
        ("getrf", {"m": 4}, "is on square matrices, use None"),
        ("geqrf", {"uplo": "upper"}, "general matrices, which have no triangle"),
        ("geqrf", {"m": 129}, "m=129"),
    ):
        with pytest.raises(SpecError, match=re.escape(reason)):
            qr_spec(op, **{"n": 5, "dtype": dtype} | choices)
    assert qr_spec("geqrf", 5, m=5) == qr_spec("geqrf", 5)
    tall = qr_spec("geqrf", 5, m=7)
    assert (KernelSpec.from_dict(tall.to_dict()), "m" in qr_spec("geqrf", 5).to_dict()["problem"]) == (tall, False)
