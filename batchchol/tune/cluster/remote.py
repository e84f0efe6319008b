"""What the workers of a cluster do for a sweep: a plugin of each worker, and the coroutines that install it.

A worker measures on one GPU at most, in a process of its own that sees no other GPU. That process ends with the
sweep, with the worker, and when nothing was measured for a while: a client may be gone without a word.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributed import Scheduler, Worker, WorkerPlugin, get_worker

import batchchol
from batchchol.artifacts import cuda_cache, cuda_modules
from batchchol.artifacts.archive import pack_bytes, unpack_bytes
from batchchol.artifacts.builds import Outcome
from batchchol.artifacts.c_compiler import find_compiler
from batchchol.artifacts.c_library import key_of, load
from batchchol.artifacts.cache import ArtifactCache
from batchchol.artifacts.compilers import Compiler, Running
from batchchol.artifacts.nvcc import find_nvcc
from batchchol.backends.cuda.measuring import nvml
from batchchol.errors import BatchcholError, CompileError
from batchchol.files import TEMPORARY_PREFIX
from batchchol.measure.bench import Settings
from batchchol.measure.point import Point
from batchchol.measure.process import Measurer
from batchchol.measure.row import Row, Value
from kernelgen import GENERATOR_VERSION, KernelSource, KernelSpec, generate

VERSION = f"batchchol {batchchol.__version__}, generator {GENERATOR_VERSION}"

MEASURE = "measure"
"""The resource of a worker that measures: it has one of it. Those that compile have one for each thread."""

_IDLE_SECONDS = 120.0
_NO_COMPILER = "none"


@dataclass(frozen=True)
class Member:
    """A worker that takes part: what it is, and what it can do.

    Attributes
    ----------
    address : str
        Where the scheduler finds it.
    host : str
        Where it runs.
    gpus : tuple of str
        UUIDs of the GPUs that it may use.
    threads : int
        How many things it does at a time.
    nvcc, compiler : Compiler, str or None
        Its CUDA compiler; its C compiler's identity.
    shares_cache : bool
        Whether its cache folder is that of the client.
    """

    address: str
    host: str
    gpus: tuple[str, ...]
    threads: int
    nvcc: Compiler | None
    compiler: str | None
    shares_cache: bool

    @property
    def compilers(self) -> list[str]:
        """The identities of its compilers, which are resources too."""
        return [name for name in (self.nvcc and self.nvcc.identity, self.compiler) if name]


@dataclass(frozen=True)
class Setup:
    """How a worker measures.

    Attributes
    ----------
    backend, settings, time_limit, bench :
        See `Measurer`.
    gpu : str
        UUID of the only GPU that the measuring process sees; "" leaves it those of the worker.
    own_compiler : bool
        Whether kernels that this host's compiler made are run; otherwise those that were sent.
    device : str or None
        The only device that is measured; None is any.
    """

    backend: str
    settings: Settings = field(default_factory=Settings)
    time_limit: float | None = None
    bench: str | None = None
    gpu: str = ""
    own_compiler: bool = True
    device: str | None = None

    def measurer(self) -> Measurer:
        """A measurer with this setup."""
        environment = {"CUDA_VISIBLE_DEVICES": self.gpu} if self.gpu else {}
        if not self.own_compiler:
            environment["BATCHCHOL_NVCC"] = _NO_COMPILER
        return Measurer(
            self.backend,
            settings=self.settings,
            time_limit=self.time_limit,
            environment=environment,
            bench=self.bench,
        )

    def check(self, device: Any) -> None:
        """Raise a BatchcholError if a worker measures another device."""
        if self.device not in (None, device):
            raise BatchcholError(
                f"it measures {device!r}, and the data set is of {self.device!r}: give it another folder"
            )


@dataclass(frozen=True)
class Ready:
    """What a worker measures on: see `Bench.facts` and `Bench.about`."""

    facts: dict[str, Any]
    about: dict[str, Value]


@dataclass(frozen=True)
class Ran:
    """Rows of points, the seconds that each took, and why a worker, by its address, has stopped measuring."""

    rows: tuple[Row, ...]
    seconds: tuple[float, ...]
    failure: str = ""
    worker: str = ""


@dataclass(frozen=True)
class Made:
    """Outcomes of kernels, packed kernels, and why a worker, by its address, has stopped compiling."""

    outcomes: Sequence[Outcome] = ()
    packed: bytes = b""
    failure: str = ""
    worker: str = ""


def token(sweep: str) -> str:
    """The name of a file in the client's cache folder; a stale one is removed like others of that prefix."""
    return f"{TEMPORARY_PREFIX}{sweep}"


async def join(sweep: str, version: str, ours: bool, dask_worker: Worker) -> Member:
    """Take part in a sweep, and offer the compilers; the client's own workers leave Ctrl-C to the client."""
    if version != VERSION:
        raise BatchcholError(f"it has {VERSION}, expected {version}: install that there")
    if ours:
        with suppress(ValueError):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    station = Station(sweep)
    await dask_worker.plugin_add(station, sweep)
    await _offer(dask_worker, station, dict.fromkeys(station.member.compilers, float(station.member.threads)))
    return station.member


async def sit(sweep: str, setup: Setup, dask_worker: Worker) -> None:
    """Offer to measure."""
    station = _station(dask_worker, sweep)
    station.seat = Seat(setup)
    await _offer(dask_worker, station, {MEASURE: 1.0})


async def withdraw(sweep: str, resource: str, dask_worker: Worker) -> None:
    """Have the scheduler send no more tasks of a kind; those already sent are answered."""
    resources = {_station(dask_worker, sweep).resource(resource): 0.0}
    await dask_worker.scheduler.set_resources(resources=resources, worker=dask_worker.contact_address)


async def leave(sweep: str, dask_worker: Worker) -> None:
    """End a sweep on this worker."""
    if sweep in dask_worker.plugins:
        await dask_worker.plugin_remove(sweep)


async def _offer(worker: Worker, station: Station, resources: dict[str, float]) -> None:
    await worker.set_resources(**{station.resource(name): amount for name, amount in resources.items()})


def _station(worker: Worker, sweep: str) -> Station:
    found = worker.plugins[sweep]
    assert isinstance(found, Station)
    return found


def reconsider(dask_scheduler: Scheduler) -> None:
    """Send the tasks that wait for a worker: dask does so when a worker joins, but not when it offers more."""
    waiting: dict[Any, Any] = {task.key: "processing" for task in dask_scheduler.unrunnable}
    dask_scheduler.transitions(waiting, f"batchchol-{time.time()}")


def call(sweep: str, method: str, *arguments: Any) -> Any:
    """Call a method of the worker's station: this is the function of all tasks."""
    return getattr(_station(get_worker(), sweep), method)(*arguments)


class Station(WorkerPlugin):
    """A worker's part in a sweep: its compilers, and the process that measures.

    The resources that it offers bear the sweep's name, so that nothing asks for them once it has ended.
    """

    member: Member

    def __init__(self, sweep: str) -> None:
        self.seat: Seat | None = None
        self._sweep = sweep
        self._running = Running()
        self._failure = ""

    async def setup(self, worker: Worker) -> None:
        """See WorkerPlugin."""
        # A compiler that is asked for its version takes longer than the worker's other connections should wait.
        self.member = await asyncio.to_thread(_describe, self._sweep, worker.address, worker.state.nthreads)

    def teardown(self, worker: Worker) -> None:
        """End the compilers, and the process that measures; see WorkerPlugin."""
        self._running.stop()
        if self.seat is not None:
            # Not in this thread: it waits for the point in work.
            threading.Thread(target=self.seat.close, daemon=True).start()

    def resource(self, name: str) -> str:
        """The name of a resource of this sweep."""
        return f"{self._sweep} {name}"

    def ready(self) -> Ready:
        """Begin to measure."""
        with self._measurer() as measurer:
            return Ready(measurer.facts(), measurer.about())

    def columns(self, dtype: str, threads: int) -> dict[str, Value]:
        """See `Measurer.about`."""
        with self._measurer() as measurer:
            return measurer.about(dtype, threads)

    def measure(self, points: Sequence[Point], packed: bytes, _: object = None) -> Ran:
        """One point after another, with kernels that were sent; after a failure all others fail at once."""
        rows: list[Row] = []
        seconds: list[float] = []
        try:
            unpack_bytes(packed, ArtifactCache())
            if self._failure:
                raise BatchcholError(self._failure)
            with self._measurer() as measurer:
                for point in points:
                    if self._running.stopped:
                        break
                    begin = time.monotonic()
                    rows.append(measurer.measure(point))
                    seconds.append(time.monotonic() - begin)
        except BatchcholError as error:
            self._failure = str(error)
        return Ran(tuple(rows), tuple(seconds), self._failure, self.member.address)

    def compile(self, kernels: Sequence[Any], arch: str, time_limit: float) -> Made:
        """Sources of an architecture, to one module, or else the spec of a kernel for a CPU.

        There are no outcomes if several kernels do not compile together. Kernels are sent to a client that does not
        share the cache folder.
        """
        make = self._compile_cuda if arch else self._compile_cpu
        try:
            outcomes, keys = make(kernels, arch, time_limit)
            return Made(outcomes, pack_bytes(ArtifactCache(), () if self.member.shares_cache else keys))
        except BatchcholError as error:
            return Made(failure=str(error), worker=self.member.address)

    def _compile_cuda(
        self, sources: Sequence[KernelSource], arch: str, time_limit: float
    ) -> tuple[list[Outcome], list[str]]:
        cache, nvcc = ArtifactCache(), find_nvcc()
        done = cuda_modules.reused(sources, lambda source: cuda_cache.find_compiled(cache, source, arch, nvcc))
        if missing := tuple(source for source in sources if source not in done):
            cache.prepare()
            made = cuda_modules.attempt_module(cache, arch, nvcc, time_limit, self._running, missing)
            done |= zip(missing, made, strict=bool(made))
        keys = [key for source in done for key in cuda_cache.keys(source, arch, nvcc)]
        return [done[source] for source in sources] if len(done) == len(set(sources)) else [], keys

    def _compile_cpu(self, specs: Sequence[KernelSpec], _: str, time_limit: float) -> tuple[list[Outcome], list[str]]:
        (spec,) = specs
        source = generate(spec)
        try:
            load(source, spec.target, time_limit=time_limit, running=self._running)
        except CompileError as error:
            return [Outcome(spec.name, error.status, str(error))], []
        return [Outcome(spec.name, "built")], [key_of(source, find_compiler().identity)]

    def fetch(self, keys: Collection[str]) -> bytes:
        """Kernels of the cache here."""
        return pack_bytes(ArtifactCache(), keys)

    def _measurer(self) -> Seat:
        if self.seat is None:
            raise BatchcholError("it has nothing to measure on")
        return self.seat


def _describe(sweep: str, address: str, threads: int) -> Member:
    nvcc = compiler = None
    with suppress(BatchcholError):
        nvcc = find_nvcc()
    with suppress(BatchcholError):
        compiler = find_compiler().identity
    shares = (ArtifactCache().folder / token(sweep)).exists()
    return Member(address, socket.gethostname(), tuple(nvml.visible()), threads, nvcc, compiler, shares)


class Seat:
    """The measurer of a GPU, used by one task at a time; it ends after a while without use."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._measurer = setup.measurer()
        self._busy = threading.Lock()
        self._claim: int | None = None
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Measurer:
        self._busy.acquire()
        try:
            if self._timer is not None:
                self._timer.cancel()
            if self._claim is None:
                self._claim = _claimed(self._setup.gpu)
            if self._setup.device is not None:
                self._setup.check(self._measurer.about()["device"])
        except BaseException:
            self._busy.release()
            raise
        return self._measurer

    def __exit__(self, *_: object) -> None:
        self._timer = threading.Timer(_IDLE_SECONDS, self.close)
        self._timer.daemon = True
        self._timer.start()
        self._busy.release()

    def close(self) -> None:
        """End the process, and give the GPU back, once nothing is measured; it begins anew if it is used again."""
        with self._busy:
            if self._timer is not None:
                self._timer.cancel()
            self._measurer.close()
            if self._claim is not None:
                os.close(self._claim)
                self._claim = None


def _claimed(gpu: str) -> int | None:
    """A lock on a GPU that the system releases when this process ends; None if there is nothing to lock."""
    if not gpu:
        return None
    path = Path(tempfile.gettempdir(), f"batchchol-{gpu}.lock")
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise BatchcholError(f"{gpu} is measured by another sweep: wait for its end") from None
    return lock
