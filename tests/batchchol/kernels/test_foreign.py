"""Sources for machines other than this one: they compile without a warning, and run where an emulator does."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from batchchol.artifacts.c_library import COMMON_FLAGS, supported_targets
from batchchol.operations.residual import RATIO_BOUND, ratios
from kernelgen import SIMD_TARGETS, KernelSource, KernelSpec, generate
from kernelgen.emit.simd import generate_layout_kernels, generate_peak_kernel

from ...kernel_programs import build_program, compile_source, run_program
from ...kernel_runs import build_kernel, make_spec, run_kernel
from ...matrices import lapack_factor, wishart

NATIVE_COMPILERS = ("gcc", "clang")
CROSS_COMPILER = "aarch64-linux-gnu-gcc"
EMULATOR = "qemu-aarch64"


def specs(target: str) -> list[KernelSpec]:
    """Every template and every branch in them: layouts, orders, roots, corner tiles, unrolling."""
    return [
        make_spec(7, 3, target=target, looking="right", layout="canonical", order="row", math="fast"),
        make_spec(1, 1, target=target, layout="canonical", dtype="float64"),
        make_spec(9, 4, target=target, looking="left", layout="chunked", math="fast", dtype="float64", in_place=True),
        make_spec(12, 4, target=target, looking="top", layout="interleaved", prefetch=False, uplo="upper"),
        make_spec(5, 2, target=target, looking="right", layout="chunked", unroll="full", in_place=True),
        make_spec(7, 3, target=target, op="potrs", layout="canonical", order="row", uplo="upper"),
        make_spec(9, 6, target=target, op="potrs", layout="chunked", dtype="float64", staged=True),
        make_spec(1, 1, target=target, op="potrs", layout="interleaved", staged=False, rhs=1),
    ]


SOURCES = [
    pytest.param(target, source, id=f"{target}-{name}")
    for target in SIMD_TARGETS
    for name, source in [
        *((spec.name, generate(spec)) for spec in specs(target)),
        ("layouts-float32", generate_layout_kernels("float32", target)),
        ("layouts-float64", generate_layout_kernels("float64", target)),
        ("peak-float32", generate_peak_kernel("float32", target)),
    ]
]


def require_tool(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not on the PATH: on Debian and Ubuntu, apt install {package}")
    return found


@pytest.mark.parametrize("compiler", NATIVE_COMPILERS)
@pytest.mark.parametrize(("target", "source"), SOURCES)
def test_compiles_without_a_warning(target: str, source: KernelSource, compiler: str, tmp_path: Path) -> None:
    command = require_tool(compiler, compiler)
    machine = subprocess.run([command, "-dumpmachine"], capture_output=True, text=True, check=True).stdout
    if target != "generic" and not machine.startswith("x86_64"):
        pytest.skip(f"{compiler} compiles for {machine.strip()}, and {target} belongs to x86-64")
    compile_source(command, source, tmp_path / "kernel.o", "-c")


@pytest.mark.parametrize("target", supported_targets())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["canonical", "chunked"])
def test_kernels_built_by_clang_are_right(
    layout: str, dtype: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHCHOL_CC", require_tool("clang", "clang"))
    spec = make_spec(11, 4, layout=layout, dtype=dtype, target=target, math="fast")
    a = wishart(33, 11).astype(dtype)
    result = run_kernel(spec, a, kernel=build_kernel(spec, generate(spec), COMMON_FLAGS))
    assert not result.info.any()
    assert ratios(a, result.l).max() <= RATIO_BOUND["fast"]


@pytest.mark.parametrize(("target", "source"), [param for param in SOURCES if param.values[0] == "generic"])
def test_compiles_for_aarch64_without_a_warning(target: str, source: KernelSource, tmp_path: Path) -> None:
    assert not source.flags, "what is generic relies on no machine's options"
    compile_source(require_tool(CROSS_COMPILER, "gcc-aarch64-linux-gnu"), source, tmp_path / "kernel.o", "-c")


@pytest.mark.parametrize(
    "spec",
    [
        make_spec(17, 4, target="generic", looking="left", layout="interleaved", order="row", prefetch=False),
        make_spec(17, 5, target="generic", looking="right", layout="interleaved", order="row", dtype="float64"),
        make_spec(17, 3, target="generic", looking="top", layout="canonical", order="row", math="fast"),
    ],
    ids=lambda spec: spec.name,
)
def test_runs_on_an_emulated_aarch64(spec: KernelSpec, tmp_path: Path) -> None:
    a = wishart(16, 17).astype(spec.problem.dtype)
    a[5, 8, 8] = -1
    compiler = require_tool(CROSS_COMPILER, "gcc-aarch64-linux-gnu")
    emulator = require_tool(EMULATOR, "qemu-user")
    program = build_program(spec, tmp_path, compiler, "-static")
    l, info = run_program(program, spec, a, emulator=(emulator,))
    assert np.array_equal(info, lapack_factor(a)[1])
    good = info == 0
    assert ratios(a[good], l[good]).max() <= RATIO_BOUND[spec.problem.math]
