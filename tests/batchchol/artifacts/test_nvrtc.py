"""NVRTC in place of nvcc: its command line over a library that stands for it, and the real one where that is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from batchchol.artifacts import nvcc
from batchchol.artifacts.nvcc import compile_code, find_nvcc, known_architectures
from batchchol.errors import CompileError
from kernelgen.emit.support import support_kernel

# What it is asked for, and no more: code is the options, and a source that begins with '!' does not compile.
LIBRARY = """
#include <string.h>
static char log_[64], code[512];
const char *nvrtcGetErrorString(int s) { return s == 6 ? "COMPILATION" : "OTHER"; }
int nvrtcVersion(int *major, int *minor) { *major = 13; *minor = 7; return 0; }
int nvrtcGetNumSupportedArchs(int *n) { *n = 2; return 0; }
int nvrtcGetSupportedArchs(int *a) { a[0] = 80; a[1] = 90; return 0; }
int nvrtcCreateProgram(void **p, const char *s, const char *n, int c, void *h, void *i) { *p = (void *)s; return 0; }
int nvrtcCompileProgram(void *p, int n, const char **o) {
    code[0] = 0;
    for (int i = 0; i < n; i++) strcat(strcat(code, o[i]), " ");
    strcpy(log_, *(char *)p == '!' ? "kernel.cu(1): error" : "a warning");
    return *(char *)p == '!' ? 6 : 0;
}
int nvrtcGetProgramLogSize(void *p, size_t *n) { *n = strlen(log_) + 1; return 0; }
int nvrtcGetProgramLog(void *p, char *t) { strcpy(t, log_); return 0; }
int nvrtcGetCUBINSize(void *p, size_t *n) { *n = strlen(code); return 0; }
int nvrtcGetCUBIN(void *p, char *t) { memcpy(t, code, strlen(code)); return 0; }
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel of NVRTC, and no nvcc."""
    folder = tmp_path / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    (tmp_path / "library.c").write_text(LIBRARY)
    made = folder / "libnvrtc.so.13"
    command = ["cc", "-shared", "-fPIC", "-w", "-include", "stddef.h", "-o", str(made), str(tmp_path / "library.c")]
    subprocess.run(command, check=True)
    monkeypatch.setattr(nvcc, "_in_wheels", lambda pattern: sorted((tmp_path / "nvidia").glob(f"*/{pattern}")))
    monkeypatch.setattr(nvcc, "STANDARD_PATH", tmp_path / "nvcc")
    for variable in ("BATCHCHOL_NVCC", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return made


def test_it_is_found_where_there_is_no_nvcc(library: Path) -> None:
    found = find_nvcc()
    assert (found.identity, found.version) == ("NVRTC 13.7", "13.7")
    assert found.command[0] == sys.executable
    assert known_architectures(found) == ("sm_80", "sm_90")


def test_it_takes_the_options_of_nvcc(library: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "kernel.cu", tmp_path / "kernel.cubin"
    source.write_text("kernel")
    options = ("-cubin", "-arch=sm_90", "-std=c++17", "--resource-usage", "-ftz=true")
    command = [*find_nvcc().command, *options, "-o", str(output), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "a warning" in done.stderr
    assert output.read_text() == "-arch=sm_90 -std=c++17 --ptxas-options=-v -ftz=true "


def test_what_does_not_compile_is_said(library: Path) -> None:
    with pytest.raises(CompileError, match=r"kernel.cu\(1\): error"):
        compile_code(find_nvcc(), "!", ("kernel",), "sm_90")


@pytest.mark.parametrize("kind", ["cubin", "ptx"])
def test_the_real_one_compiles_kernels(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = nvcc._in_wheels("lib/libnvrtc.so.*")
    if not libraries:
        pytest.skip("NVRTC is not installed (the extra nvrtc)")
    script = nvcc._NVRTC
    monkeypatch.setenv("BATCHCHOL_NVCC", f"{sys.executable} {script} {libraries[0]}")
    compiler, source = find_nvcc(), support_kernel("pack", "float32")
    assert compiler.identity.startswith("NVRTC ")
    code = compile_code(compiler, source.text, (source.entry,), "sm_90" if kind == "cubin" else "sm_91")
    assert code.kind == kind
    if kind == "cubin":
        assert code.usage[source.entry].registers
