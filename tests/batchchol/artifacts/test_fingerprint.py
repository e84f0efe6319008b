"""Machine code is told from what names, dates and surrounds it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from batchchol.artifacts import elf
from batchchol.artifacts.c_compiler import find_compiler
from batchchol.artifacts.nvcc import find_nvcc
from batchchol.errors import CompilerNotFound

C = """#include <math.h>
static const double table[3] = {1.0, 2.5, FACTOR};
double ENTRY(const double *a, int i) { return BODY; }
"""
BODY = "table[i & 1] + floor(a[i]) * a[0]"
CUDA = """static __constant__ float table[3] = {1.0f, 2.5f, FACTOR};
static __device__ __noinline__ float further(float x) { return x * BODY; }
extern "C" __global__ void ENTRY(float *a, int i)
{
    __shared__ float room[ROOM];
    room[threadIdx.x] = a[i];
    __syncthreads();
    a[i] = further(room[(threadIdx.x + 1) & 31]) + table[i & 1];
}
"""
CUBIN = {"FACTOR": "3.0f", "BODY": "x", "ROOM": "64"}


def written(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def shared(folder: Path, entry: str, body: str = BODY, factor: str = "3.0", flags: str = "-O2") -> str:
    """The fingerprint of a shared object."""
    source, made = folder / f"{entry}.c", folder / f"{entry}.so"
    source.write_text(written(C, {"ENTRY": entry, "BODY": body, "FACTOR": factor}))
    command = (str(find_compiler().path), flags, "-shared", "-fPIC", "-fno-builtin", str(source), "-o", str(made))
    subprocess.run(command, check=True)
    return elf.fingerprint(made.read_bytes())


def test_the_same_source_of_another_name_and_place_is_equal(tmp_path: Path) -> None:
    folder = tmp_path / "a folder of a much longer name"
    folder.mkdir()
    assert shared(tmp_path, "f") == shared(folder, "a_function_of_another_and_rather_longer_name" * 3)


@pytest.mark.parametrize(
    "change",
    [
        {"body": BODY.replace("*", "-")},
        {"body": BODY.replace("floor", "trunc")},
        {"body": BODY.replace("a[0]", "a[1]")},
        {"factor": "3.5"},
        {"flags": "-O0"},
    ],
    ids=["an operation", "what it calls", "an address", "a constant", "optimization"],
)
def test_other_code_is_not_equal(tmp_path: Path, change: dict[str, str]) -> None:
    assert shared(tmp_path, "f") != shared(tmp_path, "f", **change)


def test_a_damaged_file_has_no_fingerprint() -> None:
    with pytest.raises(ValueError, match="not an ELF file with sections"):
        elf.fingerprint(b"\x7fELF\x02\x01" + bytes(20))


def cubin(folder: Path, entry: str, other: str = "", arch: str = "sm_90", **change: str) -> str:
    """The fingerprint of a CUDA kernel, in a module of its own or beside another one."""
    try:
        nvcc = find_nvcc()
    except CompilerNotFound as error:
        pytest.skip(str(error))
    source, made = folder / f"{entry}.cu", folder / f"{entry}.cubin"
    source.write_text(written(CUDA, {"ENTRY": entry, **CUBIN, **change}) + other)
    subprocess.run((str(nvcc.path), "-cubin", f"-arch={arch}", str(source), "-o", str(made)), check=True)
    return elf.fingerprint(made.read_bytes(), entry)


def test_a_cuda_kernel_of_another_name_or_beside_another_kernel_is_equal(tmp_path: Path) -> None:
    alone = cubin(tmp_path, "potrf")
    assert cubin(tmp_path, "another_potrf") == alone
    assert cubin(tmp_path, "potrf", 'extern "C" __global__ void other(int *a) { *a = 1; }\n') == alone


def test_another_cuda_kernel_is_not_equal(tmp_path: Path) -> None:
    changes = ({}, {"FACTOR": "3.5f"}, {"BODY": "(x + 1)"}, {"ROOM": "4096"}, {"arch": "sm_80"})
    assert len({cubin(tmp_path, "potrf", **change) for change in changes}) == len(changes)
