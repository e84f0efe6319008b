"""Importing costs nothing that a user would notice: no heavy package, no thread, no process, no file."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

HEAVY = (
    "scipy",
    "matplotlib",
    "asv",
    "asv_runner",
    "sklearn",
    "cuda",
    "pycuda",
    "torch",
    "jax",
    "cupy",
    "numba",
    "distributed",
    "pytest",
    "ctypes.util",
)

WATCH = """
import os, sys

def watch(event, arguments):
    if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        print("writes", arguments[0])
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.mkdir", "os.rename",
                 "os.remove", "socket.connect", "ctypes.dlopen", "_thread.start_new_thread"):
        print(event, *arguments)

import ctypes, numpy  # they may do what they like
sys.addaudithook(watch)
"""


def test_import_loads_nothing_heavy(run_python: Run) -> None:
    script = f"import sys, batchchol, batchchol.cli; print([name for name in {HEAVY} if name in sys.modules])"
    done = run_python("-c", script)
    assert done.stdout == "[]\n", done.stderr


def test_import_starts_and_writes_nothing(run_python: Run, tmp_path: Path) -> None:
    script = WATCH + "import batchchol, threading; print(threading.active_count(), 'thread')"
    done = run_python("-c", script, BATCHCHOL_CACHE=tmp_path / "cache", PATH="")
    assert done.stdout == "1 thread\n", done.stderr
    script = WATCH + "import batchchol; batchchol.cholesky(numpy.eye(2))"
    used = run_python("-c", script, BATCHCHOL_CACHE=tmp_path / "cache")
    assert "subprocess.Popen" in used.stdout, "the watch sees what a first call does"
    assert "writes" in used.stdout


@pytest.mark.parametrize("package", ["numpy", "scipy", "batchchol"])
def test_kernelgen_stands_alone(run_python: Run, package: str) -> None:
    script = f"""
import sys
sys.modules[{package!r}] = None
import kernelgen
spec = kernelgen.KernelSpec(kernelgen.Problem(5), "chunked", "col", kernelgen.ThreadSchedule(4), "avx2")
print(len(kernelgen.generate(spec).text) > 1000)
"""
    done = run_python("-c", script)
    assert done.stdout == "True\n", done.stderr


def test_everything_public_is_there() -> None:
    import batchchol
    import kernelgen

    for package in (batchchol, kernelgen):
        assert sorted(set(package.__all__)) == sorted(package.__all__)
        for name in package.__all__:
            assert getattr(package, name) is not None


def test_commands_are_importable_without_their_heavy_parts(run_python: Run) -> None:
    script = f"""
import sys
from batchchol.cli import main
try:
    main(["--help"])
except SystemExit as end:
    print(end.code, [name for name in {HEAVY} if name in sys.modules])
"""
    done = run_python("-c", script)
    assert done.stdout.endswith("0 []\n"), done.stderr
    for command in ("info", "emit"):
        assert command in done.stdout
