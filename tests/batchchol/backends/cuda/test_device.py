"""The GPU of a process: found or explained, its context where it is needed alone, its errors understood."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from batchchol import BatchcholError, get_backend
from batchchol.artifacts.cuda_cache import Module
from batchchol.artifacts.stats import CompileStats
from batchchol.backends import fastest_backend, survey
from batchchol.backends.cuda import memory, support
from batchchol.backends.cuda.backend import driver_version
from batchchol.backends.cuda.batches.batch import DeviceBatch
from batchchol.backends.cuda.device import device, stream_address
from batchchol.backends.cuda.launching import driver, functions
from batchchol.backends.cuda.launching.driver import Driver
from batchchol.backends.cuda.launching.functions import Code, Function
from batchchol.cli import main
from batchchol.errors import (
    BackendUnavailable,
    CacheError,
    CompilerNotFound,
    DeviceError,
    DeviceLost,
    OutOfMemory,
    WrongArchitecture,
)
from kernelgen import KernelSource, Launch, Layout
from kernelgen.emit.support import support_kernel

from ....fakes.pycuda import CONTEXT, FOREIGN_CODE, ILLEGAL_ADDRESS, NO_BINARY, Context, FakeGpu, LogicError, forget


def in_a_thread(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(30)


class TestWhatIsMissing:
    """Each thing that can be missing has its own words."""

    def test_no_pycuda(self, fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pycuda", None)
        monkeypatch.setitem(sys.modules, "pycuda.driver", None)
        monkeypatch.setattr(driver, "LIBRARY", "libcuda.so.none")
        monkeypatch.delitem(sys.modules, "batchchol.backends.cuda.launching.without_pycuda", raising=False)
        with pytest.raises(BackendUnavailable, match=r"no NVIDIA driver: libcuda.so.none.*Install the driver"):
            get_backend("cuda")

    def test_no_driver(self, fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
        self.break_import(monkeypatch, "libcuda.so.1: cannot open shared object file")
        with pytest.raises(BackendUnavailable, match=r"no NVIDIA driver: libcuda.*Install the driver"):
            get_backend("cuda")

    def test_another_library(self, fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
        self.break_import(monkeypatch, "libcurand.so.10: cannot open shared object file")
        with pytest.raises(BackendUnavailable, match=r"installed but cannot be loaded: libcurand"):
            get_backend("cuda")

    @staticmethod
    def break_import(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
        class Finder:
            @staticmethod
            def find_spec(name: str, path: Any = None, target: Any = None) -> None:
                if name == "pycuda.driver":
                    raise ImportError(words)

        monkeypatch.delitem(sys.modules, "pycuda.driver")
        monkeypatch.delattr(sys.modules["pycuda"], "driver")
        monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])

    def test_no_gpu(self, fake_gpu: FakeGpu) -> None:
        fake_gpu.init_error = "no CUDA-capable device is detected"
        with pytest.raises(BackendUnavailable, match=r"no GPU that can be used .*no CUDA-capable device.*nvidia-smi"):
            get_backend("cuda")
        fake_gpu.init_error, fake_gpu.gpus = "", 0
        with pytest.raises(BackendUnavailable, match=r"finds no GPU: see what nvidia-smi"):
            get_backend("cuda")
        fake_gpu.gpus = 1
        assert get_backend("cuda").name == "cuda", "found as soon as it is there"

    def test_fall_back_says_why_in_a_line(self, fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
        fake_gpu.init_error = "no CUDA-capable device is detected"
        backend, why = fastest_backend()
        assert backend.name == "cpu"
        assert why.startswith("backend 'cuda' cannot be used: the NVIDIA driver finds no GPU")
        assert "\n" not in why
        fake_gpu.init_error = ""
        assert (fastest_backend()[0].name, fastest_backend()[1]) == ("cuda", "")
        monkeypatch.setenv("BATCHCHOL_BACKEND", "cpu")
        assert (fastest_backend()[0].name, fastest_backend()[1]) == ("cpu", "")

    def test_a_gpu_that_runs_no_kernel_is_not_the_fastest(
        self, fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake_gpu.load_status = NO_BINARY
        backend, why = fastest_backend()
        assert backend.name == "cpu"
        assert "no kernel image" in why
        assert "\n" not in why
        monkeypatch.setenv("BATCHCHOL_BACKEND", "cuda")
        assert fastest_backend()[0].name == "cuda", "whoever asks for it is told at the first kernel"

    def test_survey(self, fake_gpu: FakeGpu) -> None:
        _, found = survey()
        assert (found.name, found.found) == ("cuda", True)
        assert found.detail.startswith("Fake GPU, sm_90, ")

    def test_another_context_in_the_way(self, fake_gpu: FakeGpu) -> None:
        Context(7).push()
        try:
            with pytest.raises(
                BackendUnavailable, match=r"import pycuda\.autoprimaryctx in place of pycuda\.autoinit"
            ):
                get_backend("cuda")
        finally:
            Context.pop()


class TestContext:
    """The context is there when it is needed, and PyCUDA's stack empty in the end."""

    def test_main_thread_keeps_it_until_exit(self, fake_gpu: FakeGpu) -> None:
        assert fake_gpu.stack == []
        device()
        assert [context.handle for context, _ in fake_gpu.stack] == [CONTEXT]
        get_backend("cuda").empty(4, 10)
        assert len(fake_gpu.stack) == 1
        (leave,) = fake_gpu.at_exit
        leave()
        assert fake_gpu.stack == []

    def test_other_threads_have_it_during_a_call(self, fake_gpu: FakeGpu) -> None:
        def work() -> tuple[int, Any]:
            batch = DeviceBatch.empty(4, 40)
            l = batch.to_dense()
            return len(fake_gpu.stack), l.get().shape

        assert in_a_thread(work) == (0, (40, 4, 4)), "PyCUDA aborts a process whose thread ends with it"
        gc.collect()

    def test_memory_is_freed_from_any_thread(self, fake_gpu: FakeGpu) -> None:
        fake_gpu.total = 8 * (32 << 20)
        # Of chunks that need no padding.
        large = [DeviceBatch.empty(128, 1024, Layout.chunked(4))]
        assert fake_gpu.used == 128 * 128 * 4 * 1024, "more than is kept"
        in_a_thread(large.clear)
        gc.collect()
        assert fake_gpu.used == 0

    def test_first_use_in_another_thread(self, fake_gpu: FakeGpu) -> None:
        in_a_thread(lambda: DeviceBatch.empty(4, 10))
        assert fake_gpu.stack == []
        DeviceBatch.empty(4, 10)
        assert len(fake_gpu.stack) == 1

    def test_many_threads_find_one_gpu_and_build_once(self, fake_gpu: FakeGpu) -> None:
        together = threading.Barrier(6)

        def work(_: int) -> None:
            together.wait(30)
            support.empty(device())

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(6)))
        assert len(fake_gpu.built) == len(set(fake_gpu.built)) == 1

    def test_a_forked_child_is_told(self, fake_gpu: FakeGpu) -> None:
        batch = DeviceBatch.empty(4, 10)
        for forked in fake_gpu.after_fork:
            forked()
        for call in (batch.to_host, lambda: support.empty(device()), lambda: DeviceBatch.empty(4, 10)):
            with pytest.raises(
                BackendUnavailable, match=r"forked from one that used the GPU.*'spawn' or 'forkserver'"
            ):
                call()
        for leave in fake_gpu.at_exit:
            leave()
        assert len(fake_gpu.stack) == 1, "the child has no context to take away"


class TestLaunch:
    """Arguments and geometry reach the driver as the kernel wants them."""

    def test_geometry_is_the_source_s(self, fake_gpu: FakeGpu) -> None:
        source = support_kernel("empty")
        device().launch(source, 1000, ())
        assert source.launch is not None
        assert fake_gpu.launches == [(source.entry, source.launch.blocks(1000), 0)]
        device().launch(source, 0, ())
        assert len(fake_gpu.launches) == 1, "nothing to do"

    @pytest.mark.parametrize(("capability", "early"), [((8, 9), False), ((9, 0), True), ((10, 0), True)])
    def test_who_waits_itself_is_launched_early_where_gpus_can(
        self, fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], early: bool
    ) -> None:
        told: list[bool] = []
        gpu = device()
        monkeypatch.setattr(gpu, "handle", SimpleNamespace(compute_capability=lambda: capability))
        monkeypatch.setattr(gpu.driver, "launch", lambda *arguments, pdl: told.append(pdl))
        for pdl in (True, False):
            launch = Launch(32, 32, pdl=pdl)
            gpu.run(Function(Code(launch, handle=1), "potrf", launch, CompileStats(0, 0, "")), 100, (1, 2))
        assert told == [early, False]

    def test_arguments_of_every_kind(self, fake_gpu: FakeGpu) -> None:
        gpu = device()
        source = memory.to_device(np.arange(100, dtype=np.uint8), "a test's bytes")
        target = memory.empty((100,), np.uint8, "a test's bytes")
        kernel = support_kernel("copy")
        for arguments in (
            (source, target, 100),
            (int(source.gpudata), int(target.gpudata), np.int64(100)),
            (np.uint64(source.gpudata), np.uintp(target.gpudata), 100),
        ):
            memory.copy_to_device(np.zeros(100, np.uint8), int(target.gpudata))
            gpu.launch(kernel, 100, arguments)
            np.testing.assert_array_equal(target.get(), np.arange(100))
        with pytest.raises(TypeError, match=r"args: got ndarray, expected an integer"):
            gpu.launch(kernel, 100, (np.zeros(3), target, 100))
        with pytest.raises(DeviceError, match="launching copy_kernel"):
            gpu.launch(kernel, 100, (source, target))

    def test_sources_without_geometry(self, fake_gpu: FakeGpu) -> None:
        with pytest.raises(ValueError, match="expected the source of a GPU kernel"):
            device().launch(KernelSource("", "nothing", 1, ()), 1, ())

    def test_streams(self, fake_gpu: FakeGpu) -> None:
        for stream in (
            SimpleNamespace(handle=7),
            SimpleNamespace(ptr=7),
            SimpleNamespace(cuda_stream=7),
            7,
            np.int64(7),
        ):
            assert stream_address(stream) == 7
            support.empty(device(), stream=stream)
            assert fake_gpu.launches[-1][2] == 7
        with pytest.raises(TypeError, match="stream: got object"):
            stream_address(object())

    def test_foreign_arrays_are_waited_for(self, fake_gpu: FakeGpu) -> None:
        array = memory.to_device(np.zeros((2, 3, 3), np.float32), "a test's array")
        for queue, waits in ((None, []), (1, []), (99, [(99, 0)])):
            described = {**array.__cuda_array_interface__, "stream": queue}
            memory.as_gpuarray(SimpleNamespace(__cuda_array_interface__=described))
            assert fake_gpu.waits == waits


class TestErrors:
    """What goes wrong on a GPU is said once, and what can be done about it."""

    def test_lost_context(self, fake_gpu: FakeGpu) -> None:
        backend, batch = get_backend("cuda"), DeviceBatch.empty(4, 10)
        fake_gpu.status = ILLEGAL_ADDRESS
        for call in (
            lambda: backend.host(batch.data),
            lambda: DeviceBatch.empty(64, 10_000),
            lambda: support.empty(device()),
            backend.free_bytes,
        ):
            with pytest.raises(
                DeviceLost, match=r"illegal memory access .*CUDA error 700.*start a new one"
            ) as caught:
                call()
            assert caught.value.status == ILLEGAL_ADDRESS
        fake_gpu.status = 0

    def test_other_failures(self, fake_gpu: FakeGpu) -> None:
        def fail() -> None:
            raise LogicError("invalid argument")

        with (
            pytest.raises(DeviceError, match="copying to the GPU: invalid argument"),
            device().current("copying to the GPU"),
        ):
            fail()

    def test_code_for_another_gpu(self, fake_gpu: FakeGpu) -> None:
        fake_gpu.load_status = NO_BINARY
        with pytest.raises(
            WrongArchitecture, match=r"for sm_90: no kernel image.*another architecture.*BATCHCHOL_NVCC"
        ):
            support.empty(device())
        assert issubclass(WrongArchitecture, BatchcholError)

    def test_out_of_memory_frees_what_is_kept_first(self, fake_gpu: FakeGpu) -> None:
        fake_gpu.total = 40 << 20
        small = [memory.empty((1 << 20,), np.uint8, "a piece") for _ in range(3)]
        small.clear()
        gc.collect()
        assert fake_gpu.used == 3 << 20, "kept for the next"
        assert get_backend("cuda").free_bytes() == 40 << 20, "and counted as free"
        assert memory.empty((38 << 20,), np.uint8, "a large one").nbytes == 38 << 20
        with pytest.raises(OutOfMemory, match="three, on the GPU, needs 41,943,552 bytes") as caught:
            memory.empty(((40 << 20) + 1,), np.uint8, "three")
        assert caught.value.needed > caught.value.free


def test_meaning_of_the_driver_s_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = object.__new__(Driver)
    monkeypatch.setattr(Driver, "_describe", lambda self, status: "words")
    driver.check(0, "nothing")
    for status, kind in ((700, DeviceLost), (719, DeviceLost), (214, DeviceLost), (209, WrongArchitecture)):
        with pytest.raises(kind, match=rf"loading: words \(CUDA error {status}\)"):
            driver.check(status, "loading")
    with pytest.raises(DeviceError) as caught:
        driver.check(1, "launching")
    assert type(caught.value) is DeviceError
    assert caught.value.status == 1


def test_version_of_the_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr("batchchol.backends.cuda.backend.Path", lambda path: tmp_path / "version")
    assert driver_version(13010) == "CUDA 13.1"
    words = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder)\n"
    (tmp_path / "version").write_text(words + "GCC version: 12\n")
    assert driver_version(13010) == "580.159.04"


def test_importing_needs_no_pycuda(run_python: Any) -> None:
    script = (
        "import sys, batchchol.backends.cuda.backend, batchchol.backends.cuda.batches.batch\n"
        "import batchchol.backends.cuda.arrays.dense\n"
        "print([name for name in sys.modules if name.startswith('pycuda')])"
    )
    done = run_python("-c", script)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_info_says_why_a_gpu_is_of_no_use(fake_gpu: FakeGpu, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert "fastest     cuda" in out
    assert "defaults    table sm_90" in out
    fake_gpu.load_status = NO_BINARY
    forget()
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert "fastest     cpu" in out
    assert "not cuda: loading" in out


def test_code_of_another_gpu_under_this_one_s_name_is_built_again_once(
    fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = functions.build

    def find_foreign(source: KernelSource, arch: str) -> Module:
        module = build(source, arch)
        return replace(module, path=module.path.with_suffix(".foreign"), data=FOREIGN_CODE)

    monkeypatch.setattr(functions, "build", find_foreign)
    function = device().load(support_kernel("empty"))
    assert function.code.pycuda is not None
    assert device().loader.handle(function) >= 0
    assert fake_gpu.loaded == ["pycuda", "driver"], "by each once"


@pytest.mark.parametrize("error", [CompilerNotFound("no nvcc"), CacheError("read only")])
def test_code_that_cannot_be_built_again_is_the_driver_s_error(
    fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(source: KernelSource, arch: str) -> Module:
        raise error

    monkeypatch.setattr(functions, "rebuild", fail)
    fake_gpu.load_status = NO_BINARY
    with pytest.raises(WrongArchitecture, match="no kernel image"):
        device().load(support_kernel("empty"))
