"""A cluster of dask.distributed: the scheduler that is named, or one of this machine; and which workers take part."""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import dask
from distributed import Client, KilledWorker, LocalCluster

from batchchol.artifacts.cache import ArtifactCache
from batchchol.backends.cuda.measuring import nvml
from batchchol.errors import BatchcholError
from batchchol.measure.process import MachineFailure
from batchchol.parallel import available_threads
from batchchol.tune.cluster import remote
from batchchol.tune.cluster.remote import MEASURE, Member, Setup

LOCAL = "local"

_LOOK_SECONDS = 0.5
# How long all may be without work that they can do: longer than it takes to restart a worker.
_PATIENCE_SECONDS = 60.0
_RETRIES = 2
_NO_SCHEDULER = (
    "the cluster's scheduler does not answer: start it and run the same command again; what was measured so far "
    "is kept"
)
_CONNECT_SECONDS = 10.0
_WORKER_SECONDS = 30.0

_CONFIGURATION = {
    # Compiled kernels travel with the points to measure.
    "distributed.admin.large-graph-warning-threshold": "1GiB",
    # Nothing may query a GPU while it is measured.
    "distributed.diagnostics.nvml": False,
    # For a scheduler of our own: a task that loses two workers is to blame, or ran beside one that is.
    "distributed.scheduler.allowed-failures": 1,
}

Say = Callable[[str], None]


class WorkersLost(MachineFailure):
    """Workers were lost while they worked on something, or had it queued."""


class Crew:
    """The workers of a scheduler that can take part in a sweep; see `connect`."""

    def __init__(self, client: Client, name: str, ours: bool, say: Say) -> None:
        self.name = name
        self.say = say
        self.members: dict[str, Member] = {}
        self._client = client
        self._tasks = self._executor()
        self._ours = ours
        self._refused: set[str] = set()
        self._looked = -math.inf
        self._idle: float | None = None

    def look(self) -> set[str]:
        """Look, every now and then, which workers there are; return the addresses of those that are gone.

        Raises
        ------
        MachineFailure
            If the scheduler is gone.
        """
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return set()
        there: dict[str, int] = self._asked(self._client.nthreads)
        gone = self.members.keys() - there.keys()
        for address in gone:
            del self.members[address]
            self.say(f"worker {address} was lost: what it had to do goes to others")
        self._refused &= there.keys()
        if new := sorted(there.keys() - self.members.keys() - self._refused):
            self._admit(self._run(remote.join, remote.VERSION, self._ours, workers=new))
            self._asked(self._client.run_on_scheduler, remote.reconsider)
        self._looked = time.monotonic()
        return gone

    def sit(self, address: str, setup: Setup) -> None:
        """Have a worker offer to measure."""
        self._run(remote.sit, setup, workers=[address])
        self._asked(self._client.run_on_scheduler, remote.reconsider)

    def withdraw(self, address: str, resource: str, reason: str) -> None:
        """Stop giving a worker tasks of a kind."""
        self.say(f"worker {address} does not {'measure' if resource == MEASURE else 'compile'}: {reason}")
        self._run(remote.withdraw, resource, workers=[address])

    def submit(self, method: str, *arguments: Any, needs: str = "", worker: str = "") -> Future[Any]:
        """Have a method of a worker's `Station` called; a task whose worker is lost is given to another one.

        Parameters
        ----------
        needs : str
            The resource that a worker must have.
        worker : str
            The address of the only worker that is asked, as long as it is there.
        """
        options: dict[str, Any] = {"resources": {f"{self.name} {needs}": 1}} if needs else {}
        if worker:
            options |= {"workers": [worker], "allow_other_workers": True}
        return self._tasks.submit(remote.call, self.name, method, *arguments, **options)  # type: ignore[no-any-return]

    def anchor(self, address: str) -> Any:
        """A value kept by a worker: tasks that have it as an argument go there while the worker lives."""
        return self._client.submit(str, address, workers=[address], allow_other_workers=True, pure=False)

    def result(self, future: Future[Any]) -> Any:
        """What a method returned, once it has.

        Raises
        ------
        WorkersLost
            If the workers that called it were lost, one after another.
        MachineFailure
            If the scheduler is gone, or the method failed as none should.
        """
        try:
            return future.result()
        except KilledWorker as error:
            lost, last = error.allowed_failures + 1, error.last_worker.address
            raise WorkersLost(f"{lost} workers were lost while they did nothing else, last {last}") from error
        except CancelledError as error:
            raise MachineFailure(_NO_SCHEDULER) from error
        except Exception as error:
            raise MachineFailure(f"a worker of the cluster failed: {type(error).__name__}: {error}") from error

    def wait(self, able: bool) -> None:
        """Keep waiting for workers, unless for a long time none could do what is left.

        Raises
        ------
        MachineFailure
            Says so.
        """
        now = time.monotonic()
        self._idle = None if able else self._idle or now
        if self._idle is not None and now - self._idle > _PATIENCE_SECONDS:
            members = len(self.members)
            there = f"{members} are there, and none can" if members else "none is there"
            raise MachineFailure(
                f"no worker of the cluster takes what is left to do ({there}): start workers and run the same "
                "command again; what was measured so far is kept"
            )

    def cancel(self) -> None:
        """Cancel all submitted tasks."""
        with suppress(Exception):
            self._tasks.shutdown(wait=False)
        self._tasks = self._executor()

    def end(self) -> None:
        """End the sweep on every worker."""
        self.cancel()
        with suppress(Exception):
            self._client.run(remote.leave, self.name, on_error="ignore")

    def _executor(self) -> Any:
        # An unexpected failure may be a worker's fault.
        return self._client.get_executor(pure=False, retries=_RETRIES)  # type: ignore[no-untyped-call]

    def _run(self, function: Callable[..., Any], *arguments: Any, workers: list[str]) -> dict[str, Any]:
        return dict(
            self._asked(self._client.run, function, self.name, *arguments, workers=workers, on_error="return")
        )

    def _asked(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except (OSError, TimeoutError, RuntimeError, ValueError) as error:
            raise MachineFailure(f"{_NO_SCHEDULER} ({error})") from error

    def _admit(self, found: Mapping[str, Any]) -> None:
        for address, answer in found.items():
            if isinstance(answer, Member):
                self.members[address] = answer
            elif not isinstance(answer, OSError):
                # Otherwise it has ended already.
                reason = str(answer) if isinstance(answer, BatchcholError) else f"{type(answer).__name__}: {answer}"
                self._refused.add(address)
                self.say(f"worker {address} is not used: {reason}")


@contextmanager
def connect(
    where: str,
    *,
    backend: str,
    workers: int | None = None,
    threads: int | None = None,
    say: Say = lambda _: None,
) -> Iterator[Crew]:
    """The workers of a cluster.

    Parameters
    ----------
    where : str
        The address of a scheduler, such as "tcp://host:8786", or "local": a scheduler and workers of this machine,
        which end with this.
    backend : str
        "cpu" or "cuda": what local workers there are, one for each visible GPU, or one.
    workers : int, optional
        How many local workers to start instead.
    threads : int, optional
        How many tasks local workers run at a time, all together; by default the number of cores.
    say : callable
        Called with sentences about workers that do not take part, or were lost.

    Raises
    ------
    BatchcholError
        If no scheduler answers, or it has no workers that can be used.
    """
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(_CONFIGURATION))
        target: Any = where
        if where == LOCAL:
            usual = max(1, len(nvml.visible())) if backend == "cuda" else 1
            target = stack.enter_context(_local(workers or usual, threads or available_threads()))
        client = stack.enter_context(_client(target))
        name = f"batchchol-{secrets.token_hex(8)}"
        cache = ArtifactCache()
        cache.prepare()
        # Workers that see this file share the cache folder.
        token = cache.folder / remote.token(name)
        token.touch()
        stack.callback(token.unlink, missing_ok=True)
        crew = Crew(client, name, where == LOCAL, say)
        stack.callback(crew.end)
        try:
            client.wait_for_workers(1, timeout=_WORKER_SECONDS)
        except TimeoutError as error:
            raise BatchcholError(
                f"--cluster: the scheduler at {where} has no workers: start some with `dask worker {where}`"
            ) from error
        crew.look()
        if not crew.members:
            raise BatchcholError(f"--cluster: no worker of the scheduler at {where} can be used: see above")
        yield crew


def _local(workers: int, threads: int) -> LocalCluster:
    return LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=workers,
        threads_per_worker=max(1, threads // workers),
        processes=True,
        # What takes memory is the data, in the processes that measure.
        memory_limit=0,
        # Without a page of its own the scheduler still serves HTTP, and asks for a fixed port unless told otherwise.
        dashboard_address=":0",
        scheduler_kwargs={"dashboard": False},
        silence_logs=logging.CRITICAL,
    )


def _client(target: Any) -> Client:
    try:
        return Client(target, timeout=_CONNECT_SECONDS, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, TimeoutError, ValueError) as error:
        raise BatchcholError(
            f"--cluster: got {target!r}, expected 'local' or the address of a scheduler that runs, such as "
            f"tcp://host:8786 (start one with `dask scheduler`): {error}"
        ) from error
