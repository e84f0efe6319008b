"""What the tests of the library share: SPD matrices, and processes that import the library under test."""

from __future__ import annotations

import gc
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import DTypeLike, NDArray

import batchchol
from batchchol import get_backend
from batchchol.backends import Backend
from batchchol.defaults import lookup, shipped
from batchchol.defaults.tables import Case, Entry, Table
from batchchol.measure.process import _Process
from kernelgen import TARGETS, Layout, ThreadSchedule

from ..fakes.pycuda import FakeGpu, forget, install
from ..support_devices import Device, EmulatedDevice, GpuDevice


@pytest.fixture(scope="module", params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    """What support kernels run on: the emulation, and a GPU."""
    return EmulatedDevice() if request.param == "emulated" else GpuDevice()


@pytest.fixture
def time_is_over_when_a_point_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is: a point of a sweep's worker process has no time left when a file says it hangs."""
    hangs, receive = tmp_path / "log.hangs", _Process.receive

    def received(process: _Process, limit: float) -> tuple[str, Any]:
        while not process._answers.poll(0.01):
            if hangs.exists():
                hangs.unlink()
                raise TimeoutError
        return receive(process, limit)

    monkeypatch.setattr(_Process, "receive", received)
    monkeypatch.setenv("SWEEP_TEST_LOG", str(tmp_path / "log"))


@pytest.fixture
def arrays_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Layout], None]]:
    """arrays_in(layout): arrays on a GPU are factored in it, whatever the table says; no choice of before is kept."""

    def choose(layout: Layout) -> None:
        monkeypatch.setattr("batchchol.backends.cuda.backend.array_layout", lambda *_, **__: layout)
        lookup.forget()

    yield choose
    lookup.forget()


@pytest.fixture(scope="session")
def spd() -> Callable[..., NDArray[np.floating]]:
    """spd(..., n, dtype=, seed=): strictly diagonally dominant matrices of shape (..., n, n)."""

    def make(*shape: int, dtype: DTypeLike = "float32", seed: int = 0) -> NDArray[np.floating]:
        n = shape[-1]
        r = np.random.default_rng(seed).random((*shape, n))
        return ((r + r.swapaxes(-1, -2)) / 2 + n * np.eye(n)).astype(dtype)

    return make


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """run_python(*arguments, **environment): a fresh interpreter in an empty folder; None removes a variable."""

    def run(*arguments: str | Path, **environment: str | Path | None) -> subprocess.CompletedProcess[str]:
        wanted = {
            **os.environ,
            "PYTHONPATH": Path(batchchol.__file__).parents[1],
            # Nothing but what the test is about writes a file.
            "PYTHONDONTWRITEBYTECODE": "1",
            **environment,
        }
        folder = tmp_path / "empty"
        folder.mkdir(exist_ok=True)
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            env={name: str(value) for name, value in wanted.items() if value is not None},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture
def full_device(tmp_path: Path) -> Path:
    """A device such as /dev/full: for root, who could replace the machine's own, one in the test's folder."""
    if os.geteuid() != 0:
        return Path("/dev/full")
    path = tmp_path / "full"
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 7))
    try:
        path.open("wb").close()
    except PermissionError:
        pytest.skip("the folder for temporary files allows no devices")
    return path


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeGpu]:
    """A GPU that is none, with kernels that are emulated; it says what happened, and fails if it is told to."""
    yield install(monkeypatch, tmp_path)
    gc.collect()
    forget()


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """tables(*tables): have them in place of the shipped ones of GPUs, which are measured anew now and then."""
    others = {name: table for name, table in shipped.shipped_tables().items() if not TARGETS[table.target].gpu}

    def forget() -> None:
        shipped.source_of.cache_clear()
        lookup.forget()

    def use(*given: Table) -> None:
        monkeypatch.setattr(shipped, "shipped_tables", lambda: others | {table.name: table for table in given})
        forget()

    yield use
    monkeypatch.undo()
    forget()


@pytest.fixture(params=["emulated", pytest.param("real", marks=pytest.mark.gpu)])
def cuda(request: pytest.FixtureRequest) -> Backend:
    """The backend "cuda": over the fake GPU, and over a real one where there is one."""
    if request.param == "emulated":
        request.getfixturevalue("fake_gpu")
    return get_backend("cuda")


@pytest.fixture
def thread_table(tables: Callable[..., None]) -> None:
    """On a GPU one thread a matrix is the best; canonical arrays are staged, and chunks of 32 a constant stride."""
    chunked, staged = ThreadSchedule(4, stride=32), ThreadSchedule(1, unroll="full", staged=True, threads=64)
    cases = {
        Case("float32", "ieee", "chunked", 32): (Entry(128, None, chunked),),
        Case("float32", "ieee", "canonical", order="row"): (Entry(24, None, staged),),
    }
    tables(Table("sm_90", "cuda", cases))
