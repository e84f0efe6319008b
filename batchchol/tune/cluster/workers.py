"""A cluster of dask.distributed: the scheduler that is named, or one of this machine; and which workers take part."""

from __future__ import annotations

import importlib
import logging
import pickle
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from batchchol.artifacts.cache import ArtifactCache
from batchchol.backends.cuda import nvml
from batchchol.errors import BatchcholError, install
from batchchol.measure.process import MachineFailure
from batchchol.parallel import available_threads
from batchchol.tune.cluster import remote
from batchchol.tune.cluster.dispatch import Dispatch, Feed, Questions, Task, request
from batchchol.tune.cluster.remote import About, Answer, answer

LOCAL = "local"

_CONNECT_SECONDS = 10.0
_WORKER_SECONDS = 30.0

_CONFIGURATION = {
    # Compiled kernels travel with what is to be measured.
    "distributed.admin.large-graph-warning-threshold": "1GiB",
    # Nobody is to ask a GPU anything while it is measured.
    "distributed.diagnostics.nvml": False,
}

Say = Callable[[str], None]


@dataclass(frozen=True)
class Member:
    """A worker that takes part: where it is, what it is, how many things it does at a time."""

    address: str
    about: About
    threads: int


class Crew:
    """The workers of a scheduler that can take part in a sweep; see `connect`."""

    def __init__(self, client: Any, name: str, ours: bool, say: Say) -> None:
        self.name = name
        self.say = say
        self.members: dict[str, Member] = {}
        self._client = client
        self._ours = ours
        self._refused: set[str] = set()
        self._count = 0

    def work(self, feed: Feed) -> None:
        """Give the members tasks until all are done; see `Dispatch`."""
        Dispatch(self, feed).run()

    def ask(self, tasks: Mapping[str, Task]) -> tuple[dict[str, Any], dict[str, str]]:
        """Give members a task each; by address, what they returned, and why others could not."""
        questions = Questions(self, dict(tasks))
        self.work(questions)
        return questions.found, questions.failures

    def look(self) -> set[str]:
        """See who is there; the addresses of those who are gone.

        Raises
        ------
        MachineFailure
            If the scheduler is gone.
        """
        threads: dict[str, int] = self._asked(self._client.nthreads)
        gone = (self.members.keys() | self._refused) - threads.keys()
        for address in gone & self.members.keys():
            del self.members[address]
            self.say(f"worker {address} was lost: what it had to do goes to others")
        self._refused &= threads.keys()
        if new := sorted(threads.keys() - self.members.keys() - self._refused):
            task = request(Task(remote.describe, (self.name, self._ours)))
            found = self._asked(self._client.run, answer, task, workers=new, on_error="return")
            for address, described in found.items():
                self._admit(address, described, threads[address])
        return gone

    def submit(self, member: Member, task: Task) -> Any:
        """The future of a task's answer, which that member gives and no other."""
        self._count += 1
        key = f"{self.name}-{self._count}"
        return self._client.submit(answer, request(task), key=key, workers=[member.address], pure=False)

    def cancel(self, futures: Iterable[Any]) -> None:
        """Forget what was submitted."""
        if found := list(futures):
            with suppress(Exception):
                self._client.cancel(found, force=True)

    def refuse(self, address: str, reason: str) -> None:
        """Use a worker no more."""
        self._refused.add(address)
        self.members.pop(address, None)
        self.say(f"worker {address} is not used: {reason}")

    def end(self) -> None:
        """Have every worker leave off."""
        with suppress(Exception):
            self._client.run(remote.end, self.name, on_error="ignore")

    def _asked(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except (OSError, TimeoutError, RuntimeError, ValueError) as error:
            raise MachineFailure(
                f"the cluster's scheduler does not answer ({error}): start it and run the same command again; what "
                "was measured so far is kept"
            ) from error

    def _admit(self, address: str, found: Any, threads: int) -> None:
        if isinstance(found, OSError):
            # It has ended already.
            return
        if isinstance(found, BaseException):
            self.refuse(address, f"{type(found).__name__}: {found}")
            return
        described: Answer = pickle.loads(found)
        if described.failure:
            self.refuse(address, described.failure)
        elif described.value.version != remote.VERSION:
            reason = f"it has {described.value.version}, expected {remote.VERSION}: install that there"
            self.refuse(address, reason)
        else:
            self.members[address] = Member(address, described.value, threads)


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
        So many local workers instead.
    threads : int, optional
        What local workers do at a time, all together; by default as many things as there are cores.
    say : callable
        Told, in a sentence, who does not take part and who was lost.

    Raises
    ------
    BatchcholError
        If dask.distributed is not installed, no scheduler answers, or it has no workers that can be used.
    """
    distributed = _distributed()
    with ExitStack() as stack:
        stack.enter_context(importlib.import_module("dask").config.set(_CONFIGURATION))
        target: Any = where
        if where == LOCAL:
            target = stack.enter_context(
                _local(distributed, workers or _local_workers(backend), threads or available_threads())
            )
        client = stack.enter_context(_client(distributed, target))
        name = f"batchchol-{secrets.token_hex(8)}"
        stack.enter_context(_token(name))
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


def _distributed() -> Any:
    try:
        return importlib.import_module("distributed")
    except ImportError as error:
        raise BatchcholError(f"--cluster: dask.distributed cannot be used ({error}): {install('cluster')}") from error


def _local_workers(backend: str) -> int:
    return max(1, len(nvml.visible())) if backend == "cuda" else 1


@contextmanager
def _local(distributed: Any, workers: int, threads: int) -> Iterator[Any]:
    with distributed.LocalCluster(
        n_workers=workers,
        threads_per_worker=max(1, threads // workers),
        processes=True,
        # What takes memory is the data, in the processes that measure.
        memory_limit=0,
        dashboard_address=None,
        silence_logs=logging.CRITICAL,
    ) as cluster:
        yield cluster


@contextmanager
def _client(distributed: Any, target: Any) -> Iterator[Any]:
    try:
        client = distributed.Client(target, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise BatchcholError(
            f"--cluster: got {target!r}, expected 'local' or the address of a scheduler that runs, such as "
            f"tcp://host:8786 (start one with `dask scheduler`): {error}"
        ) from error
    with client:
        yield client


@contextmanager
def _token(name: str) -> Iterator[None]:
    """A file in the cache folder: workers that see it share the folder."""
    cache = ArtifactCache()
    cache.prepare()
    path = cache.folder / remote.token(name)
    path.touch()
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
