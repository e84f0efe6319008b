"""Sources for machines other than this one: they compile without a warning, and run where an emulator does."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from batchchol.native import COMMON_FLAGS
from batchchol.residual import RATIO_BOUND, ratios
from kernelgen import TARGETS, KernelSource, KernelSpec, generate
from kernelgen.source import generate_layout_kernels, generate_peak_kernel

from ..kernel_runs import Array, make_spec
from ..matrices import lapack_factor, wishart

WARNINGS = ("-Wall", "-Wextra", "-Werror")
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
    ]


SOURCES = [
    pytest.param(target, source, id=f"{target}-{name}")
    for target in TARGETS
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


def build(compiler: str, source: KernelSource, output: Path, *options: str | Path) -> None:
    """Compile with every warning an error, and quote the compiler if there is one."""
    done = subprocess.run(
        [compiler, "-x", "c", "-", "-x", "none", *options, "-o", output, *COMMON_FLAGS, *WARNINGS, *source.flags],
        input=source.text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("compiler", NATIVE_COMPILERS)
@pytest.mark.parametrize(("target", "source"), SOURCES)
def test_compiles_without_a_warning(target: str, source: KernelSource, compiler: str, tmp_path: Path) -> None:
    command = require_tool(compiler, compiler)
    machine = subprocess.run([command, "-dumpmachine"], capture_output=True, text=True, check=True).stdout
    if target != "generic" and not machine.startswith("x86_64"):
        pytest.skip(f"{compiler} compiles for {machine.strip()}, and {target} belongs to x86-64")
    build(command, source, tmp_path / "kernel.o", "-c")


@pytest.mark.parametrize(("target", "source"), [param for param in SOURCES if param.values[0] == "generic"])
def test_compiles_for_aarch64_without_a_warning(target: str, source: KernelSource, tmp_path: Path) -> None:
    assert not source.flags, "what is generic relies on no machine's options"
    build(require_tool(CROSS_COMPILER, "gcc-aarch64-linux-gnu"), source, tmp_path / "kernel.o", "-c")


# Reads the input, and what is there of the result, and writes the result and the info.
DRIVER = """
#include <stdint.h>
#include <stdio.h>

int {entry}(const {scalar} *, {scalar} *, int32_t *, int64_t, int64_t, int64_t);
static {scalar} a[{size}], l[{size}];
static int32_t info[{room}];

int main(void)
{{
    if (fread(a, sizeof *a, {size}, stdin) != {size} || {entry}(a, l, info, {extent}, 0, {groups}))
        return 1;
    return fwrite(l, sizeof *l, {size}, stdout) != {size} || fwrite(info, sizeof *info, {room}, stdout) != {room};
}}
"""


def emulate(spec: KernelSpec, a: Array, folder: Path) -> tuple[Array, Array]:
    """Factor matrices whose number is a multiple of the lanes, (batch, n, n), under an emulator of aarch64."""
    compiler = require_tool(CROSS_COMPILER, "gcc-aarch64-linux-gnu")
    emulator = require_tool(EMULATOR, "qemu-user")
    source = generate(spec)
    canonical = spec.layout == "canonical"
    # The one chunk of an interleaved batch: matrix index fastest.
    data = a if canonical else np.ascontiguousarray(np.moveaxis(a, 0, -1))
    driver = DRIVER.format(
        entry=source.entry,
        scalar={"float32": "float", "float64": "double"}[spec.problem.dtype],
        size=a.size,
        room=len(a),
        extent=len(a),
        groups=len(a) // spec.lanes,
    )
    (folder / "driver.c").write_text(driver)
    build(compiler, source, folder / "kernel", "-static", folder / "driver.c")
    done = subprocess.run(
        [emulator, folder / "kernel"], input=data.tobytes(), capture_output=True, timeout=60, check=True
    )
    result = np.frombuffer(done.stdout, a.dtype, a.size).reshape(data.shape)
    return result if canonical else np.moveaxis(result, -1, 0), np.frombuffer(done.stdout[a.nbytes :], np.int32)


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
    l, info = emulate(spec, a, tmp_path)
    assert np.array_equal(info, lapack_factor(a)[1])
    good = info == 0
    assert ratios(a[good], l[good]).max() <= RATIO_BOUND[spec.schedule.math]
