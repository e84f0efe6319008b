"""What the workers of a cluster do for a sweep: these functions run there, and what they answer can be sent.

A worker measures on one GPU at most, in a process of its own that sees no other GPU. That process ends with the
sweep, with the worker, and when nothing was measured for a while: a client may be gone without a word.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import socket
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import batchchol
from batchchol.artifacts import cuda_cache, cuda_modules
from batchchol.artifacts.c_compiler import find_compiler
from batchchol.artifacts.cache import ArtifactCache
from batchchol.artifacts.compilers import Running
from batchchol.artifacts.cuda_modules import Outcome
from batchchol.artifacts.nvcc import Nvcc, find_nvcc
from batchchol.backends.cuda import nvml
from batchchol.errors import BatchcholError, CompileError
from batchchol.files import TEMPORARY_PREFIX
from batchchol.measure.bench import Settings
from batchchol.measure.point import Point
from batchchol.measure.process import Measurer
from batchchol.measure.row import Row, Value
from batchchol.tune.cluster.parcels import NOTHING, Parcel, lacking, pack
from kernelgen import GENERATOR_VERSION, KernelSource, KernelSpec, generate

VERSION = f"batchchol {batchchol.__version__}, generator {GENERATOR_VERSION}"

_IDLE_SECONDS = 120.0
_NO_COMPILER = "none"


@dataclass(frozen=True)
class About:
    """A worker: what it is, and what it can do.

    Attributes
    ----------
    host : str
        Where it runs.
    version : str
        Of this package there.
    gpus : tuple of str
        UUIDs of the GPUs that it may use.
    nvcc, compiler : Nvcc, str or None
        Its CUDA compiler; its C compiler's identity.
    shares_cache : bool
        Whether its cache folder is that of the client.
    """

    host: str
    version: str
    gpus: tuple[str, ...]
    nvcc: Nvcc | None
    compiler: str | None
    shares_cache: bool


@dataclass(frozen=True)
class Setup:
    """How a worker measures.

    Attributes
    ----------
    sweep : str
        Whose it is.
    backend, settings, time_limit, bench :
        See `Measurer`.
    gpu : str
        UUID of the only GPU that the measuring process sees; "" leaves it those of the worker.
    own_compiler : bool
        Whether kernels that this host's compiler made are to be run; otherwise those that were sent.
    """

    sweep: str
    backend: str
    settings: Settings = field(default_factory=Settings)
    time_limit: float | None = None
    bench: str | None = None
    gpu: str = ""
    own_compiler: bool = True

    def measurer(self) -> Measurer:
        """A measurer that is set up so."""
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


@dataclass(frozen=True)
class Ready:
    """A worker that can measure: see `Bench.facts` and `Bench.about`; which of the keys it was asked for it lacks."""

    facts: dict[str, Any]
    about: dict[str, Value]
    lacking: frozenset[str]


@dataclass(frozen=True)
class Ran:
    """Rows of points, the seconds that each took, and why there are no more."""

    rows: tuple[Row, ...]
    seconds: tuple[float, ...]
    failure: str = ""


@dataclass(frozen=True)
class Made:
    """Outcomes of kernels, None for one to be tried alone, and those that were built, if they were asked for."""

    outcomes: tuple[Outcome | None, ...]
    parcel: Parcel = NOTHING


@dataclass(frozen=True)
class Answer:
    """What a function returned, or why it did not."""

    value: Any = None
    failure: str = ""


def answer(request: bytes) -> bytes:
    """Call the pickled (function, arguments); its answer, pickled."""
    function, arguments = pickle.loads(request)
    try:
        return pickle.dumps(Answer(function(*arguments)))
    except BatchcholError as error:
        return pickle.dumps(Answer(None, str(error)))


def token(sweep: str) -> str:
    """The name of a file in the client's cache folder; a stale one is removed like others of that prefix."""
    return f"{TEMPORARY_PREFIX}{sweep}"


def describe(sweep: str, ours: bool = False) -> About:
    """What this worker is; one of the client's own leaves Ctrl-C to it."""
    if ours:
        with suppress(ValueError):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    nvcc = compiler = None
    with suppress(BatchcholError):
        nvcc = find_nvcc()
    with suppress(BatchcholError):
        compiler = find_compiler().identity
    shares = (ArtifactCache().folder / token(sweep)).exists()
    return About(socket.gethostname(), VERSION, nvml.visible(), nvcc, compiler, shares)


def prepare(setup: Setup, keys: Collection[str] = ()) -> Ready:
    """Begin to measure here; which of the kernels are to be sent."""
    with _seat(setup) as measurer:
        facts, about = measurer.facts(), measurer.about()
    return Ready(facts, about, lacking(ArtifactCache(), keys))


def measure(setup: Setup, points: Sequence[Point], parcel: Parcel = NOTHING) -> Ran:
    """One point after another, with kernels that were sent."""
    rows: list[Row] = []
    seconds: list[float] = []
    try:
        parcel.unpack(ArtifactCache())
        with _seat(setup) as measurer:
            for point in points:
                begin = time.monotonic()
                rows.append(measurer.measure(point))
                seconds.append(time.monotonic() - begin)
    except BatchcholError as error:
        return Ran(tuple(rows), tuple(seconds), str(error))
    return Ran(tuple(rows), tuple(seconds))


def columns(setup: Setup, dtype: str, threads: int) -> dict[str, Value]:
    """See `Measurer.about`."""
    with _seat(setup) as measurer:
        return measurer.about(dtype, threads)


def compile_cuda(sweep: str, sources: Sequence[KernelSource], arch: str, time_limit: float, send: bool) -> Made:
    """One module; of several kernels that do not compile together, each is to be tried alone."""
    cache, nvcc = ArtifactCache(), find_nvcc()
    found = {source: cuda_cache.find_compiled(cache, source, arch, nvcc) for source in sources}
    outcomes = {source: Outcome(source.entry, "built", "", at.stats, True) for source, at in found.items() if at}
    if missing := tuple(source for source, at in found.items() if at is None):
        cache.prepare()
        try:
            made = cuda_modules.compile_module(cache, missing, arch, nvcc, time_limit, _compilers[sweep])
            outcomes |= {
                source: Outcome(source.entry, "built", "", module.stats)
                for source, module in zip(missing, made, strict=True)
            }
        except CompileError as error:
            if len(missing) == 1:
                outcomes[missing[0]] = Outcome(missing[0].entry, error.status, str(error))
    keys = [key for source in sources for key in cuda_cache.keys(source, arch, nvcc)] if send else []
    return Made(tuple(outcomes.get(source) for source in sources), pack(cache, keys))


def compile_cpu(sweep: str, specs: Sequence[KernelSpec], time_limit: float, send: bool) -> Made:
    """Kernels for a CPU."""
    from batchchol.artifacts.c_library import key_of

    outcomes = tuple(_compiled_for_cpu(spec, time_limit, _compilers[sweep]) for spec in specs)
    keys = [key_of(generate(spec), find_compiler().identity) for spec in specs] if send else []
    return Made(outcomes, pack(ArtifactCache(), keys))


def _compiled_for_cpu(spec: KernelSpec, time_limit: float, running: Running) -> Outcome:
    from batchchol.artifacts.c_library import load

    try:
        load(generate(spec), spec.target, time_limit=time_limit, running=running)
    except CompileError as error:
        return Outcome(spec.name, error.status, str(error))
    return Outcome(spec.name, "built")


def stock(keys: Collection[str]) -> frozenset[str]:
    """Those that are in the cache here."""
    return frozenset(keys) - lacking(ArtifactCache(), keys)


def fetch(keys: Collection[str]) -> Parcel:
    """Kernels of the cache here."""
    return pack(ArtifactCache(), keys)


def end(sweep: str) -> None:
    """Nothing of a sweep is to go on here."""
    if compilers := _compilers.pop(sweep, None):
        compilers.stop()
    for setup in [setup for setup in _seats if setup.sweep == sweep]:
        if seat := _seats.pop(setup, None):
            # Not in this thread: it waits for the point in work, and is not to wait for that.
            threading.Thread(target=seat.close, daemon=True).start()


class _Seat:
    """The measurer of a GPU, used by one at a time; it ends when it was not used for a while."""

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


_seats: dict[Setup, _Seat] = {}
_compilers: defaultdict[str, Running] = defaultdict(Running)
_guard = threading.Lock()


def _seat(setup: Setup) -> _Seat:
    with _guard:
        if setup not in _seats:
            _seats[setup] = _Seat(setup)
        return _seats[setup]


def _claimed(gpu: str) -> int | None:
    """A lock on a GPU that the system takes away when this process ends; None if there is nothing to lock."""
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
