"""Kernels as programs of their own, for emulators and sanitizers: the input by a pipe, the result by another."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.artifacts.c_library import COMMON_FLAGS
from kernelgen import KernelSource, KernelSpec, generate

from .system_headers import read_ahead

Array = NDArray[Any]
WARNINGS = ("-Wall", "-Wextra", "-Werror")

# Its arrays are on the heap and as long as they must be, so that an element too many is noticed.
_DRIVER = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int {entry}(const {scalar} *, {scalar} *, int32_t *, {size_type}int64_t, int64_t, int64_t);

/* The argument is how many matrices there are. */
int main(int count, char **arguments)
{{
    const size_t batch = strtoul(arguments[count - 1], NULL, 10), size = batch * {n} * {n};
    const size_t groups = (batch + {lanes} - 1) / {lanes};
    {scalar} *a = malloc(size * sizeof *a), *l = {result};
    int32_t *info = malloc(groups * {lanes} * sizeof *info);
    if (fread(a, sizeof *a, size, stdin) != size || {entry}(a, l, info, {size}batch, 0, groups))
        return 1;
    fwrite(l, sizeof *l, size, stdout);
    fwrite(info, sizeof *info, groups * {lanes}, stdout);
    if (l != a)
        free(l);
    free(a), free(info);
    return 0;
}}
"""

# The arguments are how many matrices there are, and how many right-hand sides of each.
_SOLVE_DRIVER = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int {entry}(const {scalar} *, const {scalar} *, {scalar} *, {info_type}int64_t, int64_t, int64_t, int64_t, int64_t);

int main(int count, char **arguments)
{{
    const size_t batch = strtoul(arguments[count - 2], NULL, 10), nrhs = strtoul(arguments[count - 1], NULL, 10);
    const size_t size = batch * {n} * {n}, columns = batch * {n} * nrhs, groups = (batch + {lanes} - 1) / {lanes};
    {scalar} *l = malloc(size * sizeof *l), *b = malloc(columns * sizeof *b), *x = malloc(columns * sizeof *x);
    if (fread(l, sizeof *l, size, stdin) != size || fread(b, sizeof *b, columns, stdin) != columns)
        return 1;
    int32_t *info = calloc(batch, sizeof *info);
    if ({entry}(l, b, x, {info}nrhs, batch, batch, 0, groups))
        return 1;
    if ({entry}(l, b, b, {info}nrhs, batch, batch, 0, groups))
        return 1;
    for (size_t m = 0; m < batch; ++m)
        if (info[m])
            return 1;
    fwrite(x, sizeof *x, columns, stdout);
    fwrite(b, sizeof *b, columns, stdout);
    free(l), free(b), free(x), free(info);
    return 0;
}}
"""


def compile_source(compiler: str, source: KernelSource, output: Path, *options: str | Path) -> None:
    """Compile with every warning an error; a failure quotes the compiler."""
    flags = (*COMMON_FLAGS, *WARNINGS, *source.flags, *(option for option in options if str(option).startswith("-")))
    files = [option for option in options if not str(option).startswith("-")]
    headers = read_ahead((compiler, *map(str, flags)))
    done = subprocess.run(
        [compiler, *headers, "-x", "c", "-", "-x", "none", *flags, *files, "-o", output],
        input=source.text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def build_program(spec: KernelSpec, folder: Path, compiler: str, *options: str) -> Path:
    """A program that factors or solves by a kernel; the spec's layout is canonical or interleaved, in row order."""
    assert spec.order == "row"
    source = generate(spec)
    operation = spec.problem.operation
    driver = (_SOLVE_DRIVER if operation.has_columns else _DRIVER).format(
        entry=source.entry,
        scalar={"float32": "float", "float64": "double"}[spec.problem.dtype],
        n=spec.problem.n,
        lanes=spec.lanes,
        result="a" if spec.in_place else "malloc(size * sizeof *a)",
        info_type="int32_t *, " if operation.factors else "",
        info="info, " if operation.factors else "",
        size_type="" if operation.whole_groups else "int64_t, ",
        size="" if operation.whole_groups else "batch, ",
    )
    (folder / "driver.c").write_text(driver)
    compile_source(compiler, source, folder / "kernel", *options, folder / "driver.c")
    return folder / "kernel"


def run_program(
    program: Path, spec: KernelSpec, a: Array, *, emulator: tuple[str, ...] = ()
) -> tuple[Array, NDArray[np.int32]]:
    """Factor or invert matrices (batch, n, n) in row order by a program made of a kernel: the result, and the info.

    In the interleaved layout the batch is a multiple of the lanes.
    """
    data = a if spec.layout == "canonical" else np.ascontiguousarray(np.moveaxis(a, 0, -1))
    command = [*emulator, program, str(len(a))]
    done = subprocess.run(command, input=data.tobytes(), capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    canonical = spec.layout == "canonical" or spec.problem.operation.inverts
    result = np.frombuffer(done.stdout, a.dtype, a.size).reshape(a.shape if canonical else data.shape)
    info = np.frombuffer(done.stdout[a.nbytes :], np.int32)[: len(a)]
    return result if canonical else np.moveaxis(result, -1, 0), info


def run_solve_program(program: Path, spec: KernelSpec, l: Array, b: Array) -> tuple[Array, Array]:
    """Solve by factors or matrices (batch, n, n) for (batch, n, nrhs), out of place and in place, by a program.

    In the interleaved layout the batch is a multiple of the lanes.
    """
    data = l if spec.layout == "canonical" else np.ascontiguousarray(np.moveaxis(l, 0, -1))
    command = [program, str(len(l)), str(b.shape[-1])]
    done = subprocess.run(command, input=data.tobytes() + b.tobytes(), capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    both = np.frombuffer(done.stdout, b.dtype).reshape(2, *b.shape)
    return both[0], both[1]
