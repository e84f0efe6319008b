"""What only a real GPU can show: other libraries' arrays and streams, the host's time, the end of a process."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import cholesky, cholesky_ex, default_spec, factor, get_backend
from batchchol.artifacts.cuda_modules import build
from batchchol.backends.cuda.batches.batch import DeviceBatch
from batchchol.backends.cuda.device import device
from batchchol.datasets import generation
from batchchol.errors import WrongArchitecture
from kernelgen import KernelSpec, Layout, Problem, ThreadSchedule, generate
from tests.asked import choice_of

from ....cuda_spills import is_measured

pytestmark = pytest.mark.gpu

Spd = Callable[..., NDArray[np.floating]]
Run = Callable[..., subprocess.CompletedProcess[str]]
WARM_CALL_SECONDS = 15e-6


def assert_close(l: NDArray[np.floating], a: NDArray[np.floating]) -> None:
    np.testing.assert_allclose(l, np.linalg.cholesky(a), rtol=1e-4, atol=1e-4)


def test_cupy(spd: Spd) -> None:
    cupy = pytest.importorskip("cupy")
    a = spd(7, 100, 12)
    l = cupy.asarray(cholesky(cupy.asarray(a)))
    assert_close(cupy.asnumpy(l), a)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        given = cupy.asarray(a) * np.float32(1)
        assert_close(cupy.asnumpy(cupy.asarray(cholesky(given))), a)
    turned = cholesky(cupy.asarray(a).transpose(1, 0, 2, 3))
    assert_close(cupy.asnumpy(turned), np.ascontiguousarray(a.transpose(1, 0, 2, 3)))


def test_torch(spd: Spd) -> None:
    torch = pytest.importorskip("torch")
    a = spd(700, 12)
    given = torch.as_tensor(a, device="cuda")
    l, info = cholesky_ex(given)
    assert (l.device, info.device) == (given.device, given.device)
    assert_close(l.cpu().numpy(), a)
    assert not info.any()
    with pytest.raises(TypeError, match="float16"):
        cholesky(given.to(torch.float16))


def test_streams_of_everyone(spd: Spd) -> None:
    a = spd(5000, 12)
    # PyCUDA has a context of its own, which is not there yet if another library was the first.
    with device().current():
        streams: list[Any] = [device().pycuda.Stream()]
    if torch := pytest.importorskip("torch"):
        streams += [torch.cuda.Stream(), torch.cuda.Stream().cuda_stream]
    for stream in streams:
        l, info = factor(DeviceBatch.from_dense(a), stream=stream)
        device().synchronize()
        assert_close(get_backend("cuda").host(l.to_dense()), a)
        assert not info.get().any()


def test_more_elements_than_an_int_counts() -> None:
    n, batch = 32, 2_200_000
    assert batch * n * n > 2**31
    backend = get_backend("cuda")
    a = backend.empty(n, batch)
    backend.fill(a, "diagonally_dominant")
    l, info = factor(a)
    assert backend.check(a, l, info, "ieee") <= 1.5
    last = generation.generate("diagonally_dominant", n=n, start=batch - 3, stop=batch)
    np.testing.assert_array_equal(backend.host(a.get(batch - 3, batch)), last)
    assert_close(backend.host(l.get(batch - 3, batch)), last)


def test_both_ways_of_launching_factor_alike(spd: Spd) -> None:
    """PyCUDA on the default stream and on one of its own, the driver in a queue, on the same addresses in turn."""
    backend, a = get_backend("cuda"), spd(3000, 12)
    batch = backend.from_dense(a)
    expected = backend.host(factor(batch).L.to_dense())
    assert_close(expected, a)
    with device().current():
        own = device().pycuda.Stream()
    for turn in range(30):
        with device().queueing() if turn % 3 == 0 else nullcontext():
            l, info = factor(batch, stream=own if turn % 3 == 1 else None)
        device().synchronize()
        np.testing.assert_array_equal(backend.host(l.to_dense()), expected)
        assert not info.get().any()


def test_as_many_threads_as_there_are_ways(spd: Spd) -> None:
    """Threads launch the same kernel for the first time at once, some by PyCUDA and some by the driver."""
    backend, a = get_backend("cuda"), spd(500, 11)
    batch, together = backend.from_dense(a), threading.Barrier(8)

    def work(turn: int) -> NDArray[np.floating]:
        together.wait(60)
        with device().queueing() if turn % 2 else nullcontext():
            for _ in range(20):
                l, _ = factor(batch)
        return backend.host(l.to_dense())

    with ThreadPoolExecutor(8) as pool:
        for l in pool.map(work, range(8)):
            assert_close(l, a)


def test_a_large_block_of_shared_memory_by_both_ways() -> None:
    """More than a kernel has unasked."""
    backend = get_backend("cuda")
    spec = KernelSpec(Problem(32), "canonical", "row", ThreadSchedule(4, unroll="full", staged=True), "cuda")
    launch = generate(spec).launch
    assert launch is not None
    assert launch.shared_bytes > 48 << 10
    a = backend.empty(32, 700, Layout.canonical())
    backend.fill(a, "diagonally_dominant")
    for context in (nullcontext(), device().queueing()):
        with context:
            l, info = factor(a, spec)
        assert backend.check(a, l, info, "ieee") <= 1.5


def test_float64_defaults_at_all_orders() -> None:
    """Of batches and of arrays, both triangles: checked, and without a spill unless measured so."""
    backend = get_backend("cuda")
    cases = [
        (n, layout, uplo)
        for n in range(1, 129)
        for layout, uplo in ((backend.default_layout(n, "float64"), "lower"), (Layout.canonical(), "upper"))
    ]
    where = {"target": "cuda", "dtype": "float64", "arch": backend.architecture, "batch": 300}
    chosen = [
        choice_of(n, layout=layout.kind, chunk=layout.chunk, order=layout.order, uplo=uplo, **where)
        for n, layout, uplo in cases
    ]
    backend.build([choice.spec for choice in chosen])
    for (n, layout, uplo), choice in zip(cases, chosen, strict=True):
        spec = choice.spec
        measured = is_measured(choice, n, "float64", str(backend.architecture))
        assert measured or backend.kernel(spec).stats.spill_bytes == 0, spec.name
        a = backend.empty(n, 300, layout, "float64")
        backend.fill(a, "wishart")
        l, info = factor(a, spec)
        assert l.triangle == uplo
        assert backend.check(a, l, info, "ieee") <= 1.5, spec.name


def test_host_time_of_a_warm_call() -> None:
    backend = get_backend("cuda")
    a, out = backend.empty(8, 1024), backend.empty(8, 1024)
    backend.fill(a, "diagonally_dominant")
    spec = default_spec(8, target="cuda", chunk=a.layout.chunk)
    kernel, info = backend.kernel(spec), backend.info(a, spec)

    def seconds() -> float:
        device().synchronize()
        start = time.perf_counter()
        for _ in range(300):
            kernel(a, out, info, threads=1)
        return (time.perf_counter() - start) / 300

    assert min(seconds() for _ in range(20)) < WARM_CALL_SECONDS


def test_code_for_other_architectures() -> None:
    source = generate(default_spec(4, target="cuda"))
    other = "sm_80" if device().architecture != "sm_80" else "sm_90"
    module = build(source, other)
    with pytest.raises(WrongArchitecture, match=r"--arch of this GPU"):
        device().driver.load(module.path.read_bytes() + b"\0", str(module.path))


USE = "import batchchol as bc; b = bc.get_backend('cuda'); x = b.empty(8, 100); b.fill(x, 'wishart')\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (USE + "print('fine')", "fine"),
        ("import torch; torch.eye(4, device='cuda')\n" + USE + "print('fine')", "fine"),
        (USE + "import torch; print(torch.eye(4, device='cuda').sum().item())", "4.0"),
        ("import pycuda.autoprimaryctx\n" + USE + "print('fine')", "fine"),
        (
            "import threading, time\ndef work():\n    global x\n    import batchchol as bc\n"
            "    x = bc.get_backend('cuda').empty(8, 100)\n    print('fine', flush=True)\n    time.sleep(100)\n"
            "threading.Thread(target=work, daemon=True).start(); time.sleep(6)",
            "fine",
        ),
        (
            USE + "from batchchol.backends.cuda import support; support.copy(b._gpu, 0, x.address, 1024)\n"
            "for call in (lambda: b.host(x.data), lambda: b.empty(8, 10**6), lambda: bc.factor(x)):\n"
            "    try: call()\n    except bc.BatchcholError as error: print(type(error).__name__)",
            "DeviceLost\nDeviceLost\nDeviceLost",
        ),
        (
            USE + "import multiprocessing as mp\ndef work():\n    try: bc.factor(x)\n"
            "    except bc.BatchcholError as error: print(type(error).__name__, flush=True)\n"
            "p = mp.get_context('fork').Process(target=work); p.start(); p.join(); print(p.exitcode)",
            "BackendUnavailable\n0",
        ),
    ],
    ids=["plain", "torch first", "torch later", "primary context", "daemon thread", "lost context", "fork"],
)
def test_processes_end_well(run_python: Run, script: str, said: str) -> None:
    if "torch" in script:
        pytest.importorskip("torch")
    done = run_python("-c", script)
    assert (done.stdout.strip(), done.returncode) == (said, 0), done.stderr
