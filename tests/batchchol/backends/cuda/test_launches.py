"""Who launches a kernel: PyCUDA single calls on its own streams, the driver queues, graphs and others' streams."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import KernelSpec, Layout, Problem, cholesky_ex, factor, get_backend
from batchchol.backends import Backend
from batchchol.backends.cuda import memory, support
from batchchol.backends.cuda.batches.batch import DeviceBatch
from batchchol.backends.cuda.device import device
from batchchol.errors import DeviceError, DeviceLost, WrongArchitecture
from batchchol.measure.stopwatch import Stopwatch
from kernelgen import (
    BlockSchedule,
    KernelSource,
    Schedule,
    SharedSchedule,
    StripSchedule,
    ThreadSchedule,
    WarpSchedule,
    generate,
)
from kernelgen.emit.families.shared import generate_single
from kernelgen.emit.support import support_kernel, support_kernels

from ....fakes.pycuda import ILLEGAL_ADDRESS, NO_BINARY, FakeGpu, Function, LogicError

Spd = Callable[..., NDArray[np.floating]]
CHUNKS = Layout.chunked(32)
EARLY = KernelSpec(Problem(4), "chunked", "col", ThreadSchedule(2, pdl=True), "cuda")


def packed(spd: Spd, n: int = 4, batch: int = 64) -> DeviceBatch:
    """Whole chunks: no kernel fills what is left of one."""
    return DeviceBatch.from_dense(spd(batch, n), CHUNKS)


def ways(gpu: FakeGpu, work: Callable[[], Any]) -> tuple[int, int, int]:
    """How many launches PyCUDA made, how many the driver made plainly and how many early."""
    before, plain, early = len(gpu.launches), len(gpu.by_pycuda), len(gpu.early)
    work()
    made, by_pycuda, ahead = (len(gpu.launches) - before, len(gpu.by_pycuda) - plain, len(gpu.early) - early)
    return by_pycuda, made - by_pycuda - ahead, ahead


class TestWho:
    """Which of both launches."""

    def test_single_calls_are_pycuda_s(self, fake_gpu: FakeGpu, spd: Spd) -> None:
        a = packed(spd)
        for stream in (None, 0, np.int64(0), SimpleNamespace(ptr=0)):
            assert ways(fake_gpu, lambda stream=stream: factor(a, EARLY, stream=stream)) == (1, 0, 0)
            assert fake_gpu.launches[-1][2] == 0
        own = device().pycuda.Stream()
        assert ways(fake_gpu, lambda: factor(a, EARLY, stream=own)) == (1, 0, 0)
        assert fake_gpu.launches[-1][2] == own.handle

    def test_streams_of_others_are_the_driver_s(self, fake_gpu: FakeGpu, spd: Spd) -> None:
        a = packed(spd)
        for stream in (7, SimpleNamespace(ptr=7), SimpleNamespace(cuda_stream=7)):
            assert ways(fake_gpu, lambda stream=stream: factor(a, EARLY, stream=stream)) == (0, 0, 1)
            assert fake_gpu.launches[-1][2] == 7

    def test_queues_are_the_driver_s(self, fake_gpu: FakeGpu, spd: Spd) -> None:
        gpu, a = device(), packed(spd)
        with gpu.queueing():
            assert ways(fake_gpu, lambda: factor(a, EARLY)) == (0, 0, 1)
            with gpu.queueing():
                pass
            assert ways(fake_gpu, lambda: factor(a, EARLY)) == (0, 0, 1), "a queue in a queue ends itself alone"
            with ThreadPoolExecutor(1) as pool:
                other = pool.submit(ways, fake_gpu, lambda: factor(a, EARLY)).result(30)
            assert other == (1, 0, 0), "other threads queue nothing"
        assert ways(fake_gpu, lambda: factor(a, EARLY)) == (1, 0, 0)

    @pytest.mark.parametrize("protocol", ["queued", "single"])
    def test_timing_launches_as_its_protocol_says(self, fake_gpu: FakeGpu, spd: Spd, protocol: str) -> None:
        backend, a = get_backend("cuda"), packed(spd)
        out, info, kernel = a.copy(), backend.info(a, EARLY), backend.kernel(EARLY)
        calls = [lambda: kernel(a, out, info, threads=1)]
        backend.seconds(calls, samples=5, protocol=protocol)
        fake_gpu.early.clear()
        fake_gpu.by_pycuda.clear()
        fake_gpu.seconds_per_launch = 1e-3
        backend.seconds(calls, samples=5, protocol=protocol, warm_up=0)
        Stopwatch(device()).measure(calls, 5, protocol)
        by_pycuda = [entry for entry in fake_gpu.by_pycuda if entry.startswith("potrf")]
        assert (len(fake_gpu.early) >= 10, len(by_pycuda) <= 1) == (protocol == "queued",) * 2

    def test_calls_of_several_kernels_are_queues(
        self, fake_gpu: FakeGpu, spd: Spd, arrays_in: Callable[[Layout], None]
    ) -> None:
        a = memory.to_device(spd(40, 4), "a test's array")
        for layout, expected in ((Layout.canonical(), (1, 0)), (CHUNKS, (0, 3))):
            arrays_in(layout)
            cholesky_ex(a)
            by_pycuda, plain, early = ways(fake_gpu, lambda: cholesky_ex(a))
            assert (by_pycuda, plain + early) == expected


class TestLoading:
    """Each way loads what it launches, once."""

    def test_each_way_loads_when_it_is_needed(self, fake_gpu: FakeGpu, spd: Spd) -> None:
        a = packed(spd)
        factor(a, EARLY)
        known = list(fake_gpu.loaded)
        assert set(known) == {"pycuda"}
        factor(a, EARLY, stream=7)
        assert fake_gpu.loaded == [*known, "driver"]
        for stream in (None, 7):
            factor(a, EARLY, stream=stream)
        assert fake_gpu.loaded == [*known, "driver"]
        assert get_backend("cuda").occupancy(get_backend("cuda").kernel(EARLY)) > 0
        other = replace(EARLY, schedule=ThreadSchedule(1))
        with device().queueing():
            factor(a, other)
        assert fake_gpu.loaded == [*known, "driver", "driver"], "a sweep does not load what it does not launch"

    def test_both_ways_have_the_shared_memory(self, fake_gpu: FakeGpu, spd: Spd) -> None:
        schedule = ThreadSchedule(1, unroll="full", staged=True, threads=64)
        spec = KernelSpec(Problem(16), "canonical", "row", schedule, "cuda")
        a = DeviceBatch.from_dense(spd(70, 16), Layout.canonical())
        factors = [get_backend("cuda").host(factor(a, spec, stream=stream).L.data) for stream in (None, 7)]
        np.testing.assert_array_equal(*factors)
        assert fake_gpu.allowed[spec.name] == fake_gpu.allowed_by_pycuda[spec.name] > 48 << 10

    def test_code_for_another_gpu_is_known_by_its_number(self, fake_gpu: FakeGpu) -> None:
        fake_gpu.load_status = NO_BINARY
        with pytest.raises(WrongArchitecture, match="no kernel image") as caught:
            device().load(support_kernel("empty"))
        assert caught.value.status == NO_BINARY

    def test_first_launches_of_many_threads(self, fake_gpu: FakeGpu, spd: Spd) -> None:
        a, together = packed(spd), Barrier(6)
        outputs = [a.copy() for _ in range(6)]

        def work(out: DeviceBatch) -> None:
            together.wait(30)
            factor(a, EARLY, out=out)

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, outputs))
        assert fake_gpu.by_pycuda.count(EARLY.name) == 6
        for out in outputs[1:]:
            np.testing.assert_array_equal(out.to_host().data, outputs[0].to_host().data)


class TestErrors:
    """PyCUDA's errors have no number: which one it was is asked of the driver."""

    def test_a_lost_gpu(self, fake_gpu: FakeGpu) -> None:
        support.empty(device())
        fake_gpu.status = ILLEGAL_ADDRESS
        with pytest.raises(DeviceLost, match=r"illegal memory access .*CUDA error 700"):
            support.empty(device())

    def test_any_other(self, fake_gpu: FakeGpu, spd: Spd, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any, **__: Any) -> None:
            raise LogicError("cuLaunchKernel failed: invalid argument")

        a = packed(spd)
        factor(a, EARLY)
        monkeypatch.setattr(Function, "prepared_call", refuse)
        with pytest.raises(DeviceError, match=r"launching potrf_f32_n4\S+ on 2 blocks of 32 threads: cuLaunchKernel"):
            factor(a, EARLY)

    @pytest.mark.parametrize("late", [False, True])
    def test_an_interrupt_frees_nothing_that_is_in_use(
        self, fake_gpu: FakeGpu, spd: Spd, monkeypatch: pytest.MonkeyPatch, late: bool
    ) -> None:
        """What the call allocated goes back to the pool, for what is queued behind it; the GPU's memory keeps it."""
        launch, a = Function.prepared_call, packed(spd)
        factor(a, EARLY)
        gc.collect()
        used = fake_gpu.used

        def interrupted(self: Function, *arguments: Any, **named: Any) -> None:
            if late:
                launch(self, *arguments, **named)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Function, "prepared_call", interrupted)
            with pytest.raises(KeyboardInterrupt):
                factor(a, EARLY)
        gc.collect()
        assert fake_gpu.used == used
        l, info = factor(a, EARLY)
        assert get_backend("cuda").check(a, l, info, "ieee") <= 1.5


SCHEDULES: list[tuple[int, str, Schedule]] = [
    (4, "chunked", ThreadSchedule(2)),
    (9, "canonical", BlockSchedule(5, 3)),
    (20, "chunked", BlockSchedule(8, 8, pipeline=1)),
    (7, "interleaved", SharedSchedule(3)),
    (16, "chunked", WarpSchedule(1, teams=8, stride=2)),
    (20, "chunked", StripSchedule(2, ahead=1, stride=4)),
]
KERNELS: list[KernelSource] = [
    *(generate(KernelSpec(Problem(n, math="fast"), layout, "col", each, "cuda")) for n, layout, each in SCHEDULES),
    generate_single(33, "float32", "ieee"),
    *support_kernels(),
]


@pytest.mark.parametrize("source", KERNELS, ids=lambda source: source.entry)
def test_all_arguments_have_64_bits(source: KernelSource) -> None:
    """PyCUDA packs them one after another, as if they had."""
    found = re.search(rf"\b{source.entry}\((?!\w+\))([^()]*)\)\s*\{{", source.text)
    assert found is not None
    for parameter in filter(None, found[1].split(",")):
        assert re.search(r"\*|\blong long\b|\bdouble\b", parameter), parameter


class TestFunction:
    """A generated kernel is a function of PyCUDA's."""

    def test_as_documented(self, cuda: Backend) -> None:
        """docs/launching.md, as pasted: from arrays, and as a prepared call."""
        text = (Path(__file__).parents[4] / "docs" / "launching.md").read_text()
        example, prepared = re.findall(r"```python\n(.*?)```", text.split("\n## ", 1)[1], re.DOTALL)
        names: dict[str, Any] = {}
        for launched in (example, prepared):
            exec(launched, names)
            a, l, info = names["a"], names["l"], names["info"]
            expected = factor(a, names["spec"], out=a.copy()).L
            np.testing.assert_array_equal(cuda.host(l.data), cuda.host(expected.data))
            assert not cuda.host(info).any()
            names |= {"l": a.copy(), "info": cuda.info(a, names["spec"])}

    def test_it_is_the_caller_s(self, cuda: Backend, spd: Spd) -> None:
        a = cuda.from_dense(spd(40, 4), CHUNKS)
        expected = cuda.host(factor(a, EARLY).L.to_dense())
        cuda.pycuda_function(EARLY, a).function.prepare("iiiii")
        np.testing.assert_array_equal(cuda.host(factor(a, EARLY).L.to_dense()), expected)
        assert cuda.pycuda_function(EARLY, a).function is not cuda.pycuda_function(EARLY, a).function

    def test_geometry_is_the_launch_s(self, fake_gpu: FakeGpu, spd: Spd) -> None:
        schedule = BlockSchedule(5, 3, pipeline=1)
        backend, spec = get_backend("cuda"), KernelSpec(Problem(9), "chunked", "col", schedule, "cuda")
        launch = generate(spec).launch
        assert launch is not None
        for batch in (1, 7, 10_000):
            made = backend.pycuda_function(spec, DeviceBatch.empty(9, batch, CHUNKS))
            blocks = launch.grid(batch, device().multiprocessors)
            assert (made.grid, made.block) == ((blocks, 1), (launch.threads, 1, 1))
            assert made[3:] == (launch.shared_bytes, 32, batch)

    def test_what_it_is_not_for_is_refused(self, cuda: Backend, spd: Spd) -> None:
        with pytest.raises(ValueError, match=r"spec: got a kernel for .* expected the batch's"):
            cuda.pycuda_function(EARLY, cuda.from_dense(spd(40, 5), CHUNKS))
        fixed = replace(EARLY, schedule=replace(EARLY.schedule, stride=64))
        with pytest.raises(ValueError, match="chunk=32 is not the stride of 64"):
            cuda.pycuda_function(fixed, cuda.from_dense(spd(40, 4), CHUNKS))
