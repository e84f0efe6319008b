"""Kernels under the address and undefined-behaviour sanitizers: no read or write past an array of exact size."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from batchchol.artifacts.c_compiler import find_compiler
from batchchol.operations import poinv, posv, potri, potrs
from batchchol.operations.residual import RATIO_BOUND, ratios
from kernelgen import KernelSpec

from ...kernel_programs import build_program, run_program, run_solve_program
from ...kernel_runs import make_spec, require_target
from ...matrices import lapack_factor, wishart

# What is undefined traps: messages take GCC a quarter more time.
SANITIZERS = ("-O0", "-fsanitize=address,undefined", "-fsanitize-undefined-trap-on-error")


@cache
def missing_sanitizers() -> str:
    """Why nothing can be built with the sanitizers here, or nothing."""
    command = (*find_compiler().command, *SANITIZERS, "-x", "c", "-", "-o", "/dev/null")
    done = subprocess.run(command, input="int main(void) { return 0; }", capture_output=True, text=True, check=False)
    return done.stderr


# Fewer matrices than lanes, whole groups, and some more; matrices smaller than a vector, and just not a multiple.
@pytest.mark.parametrize(
    "spec",
    [
        make_spec(1, 1, layout="canonical", order="row"),
        make_spec(2, 2, layout="canonical", order="row", dtype="float64", in_place=True),
        make_spec(3, 2, layout="canonical", order="row", uplo="upper"),
        make_spec(5, 2, layout="canonical", order="row", looking="right", math="fast"),
        make_spec(9, 4, layout="canonical", order="row", looking="top", target="generic"),
    ],
    ids=lambda spec: spec.name,
)
def test_canonical_arrays_are_kept_to(spec: KernelSpec, tmp_path: Path) -> None:
    check(spec, (1, 3, 16, 21), tmp_path)


@pytest.mark.parametrize(
    ("looking", "in_place", "staged"),
    [
        ("right", False, True),
        ("right", True, False),
        ("left", False, False),
        ("left", True, True),
        ("top", False, True),
        ("top", True, False),
    ],
)
def test_interleaved_arrays_are_kept_to(looking: str, in_place: bool, staged: bool, tmp_path: Path) -> None:
    choices = {"layout": "interleaved", "order": "row", "looking": looking, "in_place": in_place, "staged": staged}
    check(make_spec(7, 3, **choices), (16,), tmp_path)


@pytest.mark.parametrize(
    "spec",
    [
        make_spec(1, 1, op="potrs", layout="canonical", order="row"),
        make_spec(3, 2, op="potrs", layout="canonical", order="row", uplo="upper", dtype="float64"),
        make_spec(9, 4, op="potrs", layout="canonical", order="row", rhs=3, target="generic"),
        make_spec(7, 3, op="potrs", layout="interleaved", order="row", staged=False),
        make_spec(1, 1, op="posv", layout="canonical", order="row"),
        make_spec(3, 2, op="posv", layout="canonical", order="row", rhs=2),
        make_spec(9, 4, op="posv", layout="canonical", order="row", uplo="upper", dtype="float64", looking="right"),
        make_spec(7, 3, op="posv", layout="interleaved", order="row", math="fast"),
    ],
    ids=lambda spec: spec.name,
)
def test_matrices_and_right_hand_sides_are_kept_to(spec: KernelSpec, tmp_path: Path) -> None:
    program, n, dtype = sanitized(spec, tmp_path), spec.problem.n, spec.problem.dtype
    for batch in (1, 3, 16, 21) if spec.layout == "canonical" else (16, 32):
        a = wishart(batch, n).astype(dtype)
        given, ratios_of = (a, posv.ratios) if spec.problem.op == "posv" else (lapack_factor(a)[0], potrs.ratios)
        memory = np.ascontiguousarray(given if spec.problem.uplo == "lower" else given.swapaxes(1, 2))
        for nrhs in (1, spec.lanes - 1, spec.lanes, 2 * spec.lanes - 1, 2 * spec.lanes, 2 * spec.lanes + 1):
            b = np.random.default_rng(nrhs).standard_normal((batch, n, max(nrhs, 1))).astype(dtype)
            x, in_place = run_solve_program(program, spec, memory, b)
            assert ratios_of(given, b, x).max() <= potrs.ratio_bound(n, spec.problem.math), (batch, nrhs)
            assert in_place.tobytes() == x.tobytes(), (batch, nrhs)


@pytest.mark.parametrize(
    "spec",
    [
        make_spec(1, 1, op="potri", layout="canonical", order="row"),
        make_spec(3, 2, op="poinv", layout="interleaved", order="row", uplo="upper"),
        make_spec(9, 4, op="potri", layout="interleaved", order="row", dtype="float64", unroll="full"),
        make_spec(7, 3, op="poinv", layout="canonical", order="row", math="fast", looking="top"),
    ],
    ids=lambda spec: spec.name,
)
def test_matrices_and_inverses_are_kept_to(spec: KernelSpec, tmp_path: Path) -> None:
    program, n, dtype = sanitized(spec, tmp_path), spec.problem.n, spec.problem.dtype
    for batch in (1, 3, 16, 21) if spec.layout == "canonical" else (16, 32):
        a = wishart(batch, n).astype(dtype)
        given, operation = (a, poinv) if spec.problem.op == "poinv" else (lapack_factor(a)[0], potri)
        memory = np.ascontiguousarray(given if spec.problem.uplo == "lower" else given.swapaxes(1, 2))
        x, info = run_program(program, spec, memory)
        assert not info.any(), batch
        assert operation.ratios(given, x).max() <= potri.RATIO_BOUND[spec.problem.math], batch


def sanitized(spec: KernelSpec, folder: Path) -> Path:
    """A program of a kernel, built with the sanitizers."""
    require_target(spec.target)
    if reason := missing_sanitizers():
        pytest.skip(f"nothing can be built with sanitizers: {reason}")
    return build_program(spec, folder, str(find_compiler().path), *SANITIZERS)


def check(spec: KernelSpec, batches: tuple[int, ...], folder: Path) -> None:
    program = sanitized(spec, folder)
    for batch in batches:
        a = wishart(batch, spec.problem.n).astype(spec.problem.dtype)
        l, info = run_program(program, spec, a)
        assert not info.any(), batch
        lower = l if spec.problem.uplo == "lower" else l.swapaxes(1, 2)
        assert ratios(a, np.ascontiguousarray(lower)).max() <= RATIO_BOUND[spec.problem.math], batch
