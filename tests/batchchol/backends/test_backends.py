"""Backends: found or explained, each kernel built once, first calls from many threads and processes at once."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import Batch, KernelSpec, Layout, cholesky, default_spec, get_backend
from batchchol.artifacts.c_library import supported_targets
from batchchol.backends import cpu, survey
from batchchol.backends.base import check_runnable
from batchchol.backends.cpu import CpuBackend
from batchchol.batches import host_memory, packing
from batchchol.batches.batch import info_array
from batchchol.errors import BackendUnavailable
from kernelgen import SIMD_TARGETS

Spd = Callable[..., NDArray[np.floating]]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of the test's own."""
    monkeypatch.setenv("BATCHCHOL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("BATCHCHOL_CC", raising=False)
    monkeypatch.delenv("CC", raising=False)


def spec_of(n: int = 4) -> KernelSpec:
    return default_spec(n, target=supported_targets()[0])


def run_kernel(backend: CpuBackend, dense: NDArray[np.floating]) -> NDArray[np.floating]:
    spec = spec_of(dense.shape[-1])
    batch = Batch.from_dense(dense)
    out = Batch.empty(batch.n, batch.batch, batch.layout, batch.dtype)
    backend.kernel(spec)(batch, out, info_array(batch, spec.lanes), threads=2)
    return np.tril(out.to_dense())


def test_backend_is_made_once() -> None:
    backend = get_backend()
    assert backend.name == "cpu"
    assert get_backend("cpu") is backend
    assert get_backend() is backend


def test_choice_by_environment_is_the_same_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = get_backend("cpu")
    monkeypatch.setenv("BATCHCHOL_BACKEND", "cpu")
    assert get_backend() is backend


def test_unknown_backend_names_where_it_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendUnavailable, match=r"^backend='abacus' is unknown: use one of 'cpu', 'cuda'"):
        get_backend("abacus")
    monkeypatch.setenv("BATCHCHOL_BACKEND", "slide rule")
    with pytest.raises(BackendUnavailable, match=r"^BATCHCHOL_BACKEND='slide rule' is unknown"):
        get_backend()


def test_what_a_backend_says_of_itself() -> None:
    backend = get_backend()
    assert backend.targets == supported_targets()
    assert backend.target == backend.targets[0]
    assert backend.lanes("float32") == 2 * backend.lanes("float64") == SIMD_TARGETS[backend.target].lanes("float32")
    assert backend.free_bytes() > 0
    assert backend.threads >= 1
    device = backend.device()
    assert device["backend"] == "cpu"
    assert device["simd"] == backend.target
    assert device["simd_bits"] == 32 * backend.lanes("float32")
    assert all(isinstance(value, str | int) and value for value in device.values())


def test_survey_of_what_was_found() -> None:
    found, _ = survey()
    assert (found.name, found.found, found.hint) == ("cpu", True, "")
    assert supported_targets()[0] in found.detail


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_everything_says_how_to_get_one() -> None:
    found, _ = survey()
    assert (found.name, found.found) == ("cpu", False)
    assert "apt install gcc" in found.hint
    assert "LAPACK factors" in found.hint
    with pytest.raises(BackendUnavailable, match=r"backend 'cpu' cannot be used: no usable C compiler.*BATCHCHOL_CC"):
        CpuBackend()


def test_kernel_is_built_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = CpuBackend()
    kernel = backend.kernel(spec_of())
    assert kernel.spec == spec_of()
    assert kernel.stats.code_bytes > 0
    monkeypatch.setattr(cpu, "generate", lambda _: pytest.fail("generated again"))
    assert backend.kernel(spec_of()) is kernel


def test_warm_call_renders_hashes_and_starts_nothing(spd: Spd, monkeypatch: pytest.MonkeyPatch) -> None:
    a = spd(100, 4)
    expected = cholesky(a), cholesky(a, spec=spec_of())
    slow = [(cpu, "generate"), (cpu, "load"), (packing, "load"), (hashlib, "sha256"), (subprocess, "Popen")]
    for module, name in slow:
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("a warm call works at once"))
    np.testing.assert_array_equal(cholesky(a), expected[0])
    np.testing.assert_array_equal(cholesky(a, spec=spec_of()), expected[1])


def test_first_use_from_many_threads_at_once(spd: Spd, cache: Path) -> None:
    backend = CpuBackend()
    batches = [spd(1000, n, seed=seed) for seed in range(4) for n in (4, 5)]
    together = Barrier(len(batches))

    def first_use(dense: NDArray[np.floating]) -> NDArray[np.floating]:
        together.wait(60)
        return run_kernel(backend, dense)

    with ThreadPoolExecutor(len(batches)) as pool:
        results = list(pool.map(first_use, batches))
    for dense, l in zip(batches, results, strict=True):
        np.testing.assert_allclose(l, np.linalg.cholesky(dense), rtol=1e-5, atol=1e-6)
    assert not list(cache.glob(".partial-*"))


def test_first_use_from_many_processes_at_once(run_python: Run, cache: Path) -> None:
    script = "import numpy, batchchol; print(batchchol.cholesky(numpy.array([[4.0, 2], [2, 5]])).tolist())"
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: run_python("-c", script), range(3)))
    assert [process.stdout for process in done] == ["[[2.0, 0.0], [1.0, 2.0]]\n"] * 3
    assert not list(cache.glob(".partial-*"))


def compiler_script(path: Path, body: str) -> Path:
    """A compiler that says it is the system's own and then does something else."""
    path.write_text(f'#!/bin/sh\nPATH=/usr/bin:/bin:$PATH\n[ "$1" = -v ] && exec cc -v\n{body}\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("body", "status"), [("exit 1", "compile"), ("sleep 1000", "timeout")])
def test_compiler_that_fails_or_hangs_and_then_works(
    spd: Spd, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str, status: str
) -> None:
    backend = CpuBackend()
    with monkeypatch.context() as broken:
        broken.setenv("BATCHCHOL_CC", str(compiler_script(tmp_path / "cc", body)))
        (outcome,) = backend.build([spec_of()], time_limit=0.5 if status == "timeout" else 100.0)
    assert outcome.status == status
    assert [path.name for path in cache.iterdir()] == ["failed"], "nothing half-written"
    dense = spd(10, 4)
    np.testing.assert_allclose(run_kernel(backend, dense), np.linalg.cholesky(dense), rtol=1e-5, atol=1e-6)


def test_what_the_backend_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = get_backend()
    assert backend.unsupported(spec_of()) is None
    assert backend.unsupported(spec_of(), Layout.chunked(64)) is None
    reason = backend.unsupported(spec_of(), Layout.chunked(17))
    assert reason is not None
    assert reason.startswith("chunk=17 is not a multiple of the ")
    monkeypatch.setattr(cpu, "supported_targets", lambda: ("generic",))
    reason = backend.unsupported(default_spec(4, target="avx2"))
    assert reason == "target='avx2' is not among this CPU's: generic"


def test_spec_and_batch_must_belong_together(spd: Spd) -> None:
    batch = Batch.from_dense(spd(10, 4))
    check_runnable(get_backend(), spec_of(), batch)
    with pytest.raises(ValueError, match="spec: got a kernel for"):
        check_runnable(get_backend(), spec_of(5), batch)
    with pytest.raises(ValueError, match="batch: got one whose upper triangle alone has a meaning"):
        check_runnable(get_backend(), spec_of(), batch.marked("upper"))
    with pytest.raises(TypeError, match=r"batch: got ndarray, .* Batch\.from_dense"):
        check_runnable(get_backend(), spec_of(), spd(10, 4))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="spec: got str"):
        check_runnable(get_backend(), "fast", batch)  # type: ignore[arg-type]


def test_cache_size_and_name_of_the_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in (cpu, host_memory):
        monkeypatch.setattr(module, "Path", lambda path: tmp_path / path.lstrip("/"))
    size, model = host_memory.last_level_cache_bytes.__wrapped__, cpu.cpu_model.__wrapped__
    assert size() == 32 << 20
    assert model() != ""
    folder = tmp_path / "sys/devices/system/cpu/cpu0/cache"
    for index, text in enumerate(["48K", "2048K", "105M"]):
        (folder / f"index{index}").mkdir(parents=True)
        (folder / f"index{index}" / "size").write_text(text + "\n")
    assert size() == 105 << 20
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor : 0\nmodel name\t: Abacus 9000: deluxe\n")
    assert model() == "Abacus 9000: deluxe"
