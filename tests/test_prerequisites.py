""".ci/prerequisites, which make asks before it installs anything."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "prerequisites"
# What the script itself calls.
UTILITIES = ("sh", "sed", "dirname", "readlink")

Check = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    """The only folder of the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in UTILITIES:
        (folder / name).symlink_to(str(shutil.which(name)))
    return folder


@pytest.fixture
def check(bin_folder: Path) -> Check:
    """check("gpu", CUDA_ROOT=...): run the script with this Python and nothing else."""

    def run(*wanted: str, python: str = sys.executable, **environment: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SCRIPT, python, *wanted],
            env={"PATH": str(bin_folder), **{name: str(value) for name, value in environment.items()}},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def program(path: Path, text: str = "exit 0") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def compilers(folder: Path) -> None:
    for name in ("cc", "g++", "git"):
        program(folder / name)


def toolkit(folder: Path) -> Path:
    """A CUDA toolkit as far as the script looks."""
    program(folder / "bin" / "nvcc", f"echo '#$ _HERE_={folder}/bin'; echo '#$ TOP={folder}/bin/..'")
    (folder / "include").mkdir()
    (folder / "include" / "cuda.h").touch()
    return folder


def test_complete_machine(check: Check, bin_folder: Path) -> None:
    compilers(bin_folder)
    done = check()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_everything_that_is_missing_is_named_at_once(check: Check) -> None:
    done = check("gpu", python="no-such-python", CUDA_ROOT=Path("no-such-folder"))
    assert done.returncode == 1
    assert done.stderr.endswith("apt install python3 python3-venv gcc libc6-dev git g++\n")
    assert "CUDA_ROOT" in done.stderr
    assert "Traceback" not in done.stderr


def test_compiler_without_the_c_library(check: Check, bin_folder: Path) -> None:
    compilers(bin_folder)
    program(bin_folder / "cc", "exit 1")
    done = check()
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "On Debian or Ubuntu: apt install libc6-dev")


def test_named_compiler_is_not_looked_for(check: Check, bin_folder: Path) -> None:
    program(bin_folder / "git")
    assert check(BATCHCHOL_CC=Path("a-compiler")).returncode == 0


@pytest.mark.parametrize("name", ["cuda-13.0", "a folder/cuda"])
def test_toolkit_behind_a_script(name: str, check: Check, bin_folder: Path, tmp_path: Path) -> None:
    compilers(bin_folder)
    real = toolkit(tmp_path / name)
    program(bin_folder / "nvcc", f'exec "{real}/bin/nvcc" "$@"')
    done = check("gpu")
    assert (done.returncode, done.stdout) == (0, f"{real}\n"), done.stderr


def test_toolkit_by_link_and_by_variable(check: Check, bin_folder: Path, tmp_path: Path) -> None:
    compilers(bin_folder)
    real, other = toolkit(tmp_path / "cuda"), toolkit(tmp_path / "other")
    program(real / "bin" / "nvcc", "exit 1")
    (bin_folder / "nvcc").symlink_to(real / "bin" / "nvcc")
    assert check("gpu").stdout == f"{real}\n"
    assert check("gpu", CUDA_ROOT=other).stdout == f"{other}\n"


def test_toolkit_that_was_named_and_is_none(check: Check, bin_folder: Path, tmp_path: Path) -> None:
    compilers(bin_folder)
    (bin_folder / "nvcc").symlink_to(toolkit(tmp_path / "cuda") / "bin" / "nvcc")
    done = check("gpu", CUDA_ROOT=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no CUDA toolkit" in done.stderr


def test_gpu_is_asked_for_a_cpp_compiler(check: Check, bin_folder: Path, tmp_path: Path) -> None:
    compilers(bin_folder)
    (bin_folder / "g++").unlink()
    done = check("gpu", CUDA_ROOT=toolkit(tmp_path / "cuda"))
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "On Debian or Ubuntu: apt install g++")


def test_compiling_pycuda_takes_headers(check: Check, tmp_path: Path) -> None:
    folder = toolkit(tmp_path / "cuda")
    done = check("pycuda", str(folder), python="no-such-python")
    assert done.returncode == 1
    assert "curand.h" in done.stderr
    assert done.stderr.endswith("apt install python3-dev\n")
    (folder / "include" / "curand.h").touch()
    assert "curand.h" not in check("pycuda", str(folder), python="no-such-python").stderr


def test_make_says_so_before_it_makes_anything(tmp_path: Path, bin_folder: Path) -> None:
    root = SCRIPT.parents[1]
    if not (make := shutil.which("make")):
        pytest.skip("needs make")
    (tmp_path / ".ci").symlink_to(root / ".ci")
    done = subprocess.run(
        [make, "-f", root / "Makefile", "PYTHON=no-such-python"],
        env={"PATH": str(bin_folder)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "apt install python3 python3-venv" in done.stderr
    assert not (tmp_path / ".venv").exists()
