"""Handing out work to workers of which any may be lost: nothing of it is lost with them.

What is handed out is a task of one or several items. The items of a worker that was lost go to others, one by one and
each alone on a worker: an item that loses its worker even so is to blame for it, and no other.
"""

from __future__ import annotations

import math
import pickle
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from batchchol.measure.process import MachineFailure
from batchchol.tune.cluster.remote import Answer

if TYPE_CHECKING:
    from batchchol.tune.cluster.workers import Crew, Member

MOST_LOSSES = 2
"""So often an item may lose its worker while nothing else is in work there."""

# So long all may be without work who could get some: longer than a worker takes to be started again.
_PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.5
_RESULT_SECONDS = 30.0

Item = Hashable


@dataclass(frozen=True)
class Task:
    """A function of `remote`, its arguments, and the items that it is about."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    items: tuple[Item, ...] = ()


class Feed(Protocol):
    """Work for a cluster: what a member gets next, and what to do with the answer."""

    @property
    def waiting(self) -> bool:
        """Whether there is something that nobody has been given."""

    @property
    def over(self) -> bool:
        """Whether nothing more is to be given to anybody."""

    def depth(self, member: Member) -> int:
        """How many tasks a member may have at a time."""

    def next(self, member: Member) -> Task | None:
        """Something for a member, if there is."""

    def fit(self, member: Member) -> bool:
        """Whether a member can be given items already."""

    def alone(self, member: Member, item: Item) -> Task:
        """One item, for a member that has nothing else meanwhile."""

    def done(self, member: Member, task: Task, value: Any) -> None:
        """What the function returned."""

    def failed(self, member: Member, task: Task, reason: str) -> None:
        """The member could not, and gets nothing more; others are to have the items."""

    def lost(self, address: str) -> None:
        """A member is gone; its items will be given to others."""

    def killed(self, item: Item, reason: str) -> None:
        """An item that is not to be tried again."""


@dataclass
class _Flight:
    """A task that a member has been given, alone or beside others."""

    member: Member
    task: Task
    future: Any
    alone: bool


class Dispatch:
    """One feed, given out to the members of a crew until all of it is done."""

    def __init__(self, crew: Crew, feed: Feed) -> None:
        self._crew = crew
        self._feed = feed
        self._flights: dict[str, _Flight] = {}
        self._answers: SimpleQueue[tuple[str, Answer | None, str]] = SimpleQueue()
        self._suspects: deque[Item] = deque()
        self._losses: Counter[Item] = Counter()
        self._holder: str | None = None
        """The member on which suspects are tried, one after another."""
        self._looked = time.monotonic()
        self._idle = time.monotonic()

    def run(self) -> None:
        """Give out and collect.

        Raises
        ------
        MachineFailure
            If for a long time there is nobody who takes what is waiting, or the scheduler is gone.
        """
        try:
            while self._flights or (not self._feed.over and (self._feed.waiting or self._suspects)):
                self._collect(0.0)
                self._look()
                for member in list(self._crew.members.values()):
                    self._give(member)
                self._wait()
        finally:
            # What was answered is not to be lost, whatever ends this.
            self._collect(0.0)
            self._crew.cancel(flight.future for flight in self._flights.values())

    def _wait(self) -> None:
        if self._flights:
            self._collect(_LOOK_SECONDS)
            self._idle = time.monotonic()
        elif time.monotonic() - self._idle > _PATIENCE_SECONDS:
            members = len(self._crew.members)
            there = f"{members} are there, and none can" if members else "none is there"
            raise MachineFailure(
                f"no worker of the cluster takes what is left to do ({there}): start workers and run the same "
                "command again; what was measured so far is kept"
            )
        else:
            time.sleep(_LOOK_SECONDS / 10)

    def _look(self) -> None:
        """Find out who is gone, and what that means for what they had to do."""
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        gone = self._crew.look()
        self._looked = time.monotonic()
        if self._holder in gone:
            self._holder = None
        lost = {key: flight for key, flight in self._flights.items() if flight.member.address in gone}
        for address in gone:
            self._feed.lost(address)
        for key, flight in lost.items():
            del self._flights[key]
            self._suspect(flight, blame=True)
        self._crew.cancel(flight.future for flight in lost.values())

    def _suspect(self, flight: _Flight, blame: bool) -> None:
        for item in flight.task.items:
            self._losses[item] += flight.alone and blame
            if self._losses[item] >= MOST_LOSSES:
                where = f"{flight.member.address} on {flight.member.about.host}"
                self._feed.killed(item, f"{MOST_LOSSES} workers were lost while they did nothing else, last {where}")
            else:
                self._suspects.append(item)

    def _give(self, member: Member) -> None:
        """Tasks for a member, as many as it may have."""
        depth = 0 if self._feed.over else self._feed.depth(member)
        busy = [flight for flight in self._flights.values() if flight.member.address == member.address]
        if any(flight.alone for flight in busy):
            return
        if depth and self._suspects and self._holder in (None, member.address) and self._feed.fit(member):
            self._holder = member.address
            if not busy:
                self._submit(member, self._feed.alone(member, self._suspects.popleft()), alone=True)
            return
        for _ in range(depth - len(busy)):
            task = self._feed.next(member)
            if task is None:
                return
            self._submit(member, task, alone=False)

    def _submit(self, member: Member, task: Task, alone: bool) -> None:
        future = self._crew.submit(member, task)
        key: str = future.key
        self._flights[key] = _Flight(member, task, future, alone)
        # In a thread of the library: fetching an answer takes time, and may never end.
        future.add_done_callback(lambda future: self._answers.put((key, *_answered(future))))

    def _collect(self, seconds: float) -> None:
        """Pass on all answers that are there; wait so long for the first."""
        with suppress(Empty):
            while True:
                key, found, reason = self._answers.get(timeout=seconds) if seconds else self._answers.get_nowait()
                seconds = 0.0
                # Otherwise somebody else has been given it.
                if flight := self._flights.pop(key, None):
                    self._landed(flight, found, reason)

    def _landed(self, flight: _Flight, found: Answer | None, reason: str) -> None:
        member, task = flight.member, flight.task
        if flight.alone and not self._suspects:
            self._holder = None
        if found is None and not reason:
            # The scheduler has forgotten it, or is gone itself, which looking shows.
            self._suspect(flight, blame=False)
            self._looked = -math.inf
            return
        if found is None:
            self._crew.refuse(member.address, reason)
        if found is None or found.failure:
            self._feed.failed(member, task, found.failure if found else reason)
        else:
            self._feed.done(member, task, found.value)


class Questions:
    """A feed of one task for each of some members, of whom those matter that answer."""

    def __init__(self, crew: Crew, tasks: dict[str, Task]) -> None:
        self._crew = crew
        self._tasks = tasks
        self.over = False
        self.found: dict[str, Any] = {}
        self.failures: dict[str, str] = {}

    @property
    def waiting(self) -> bool:
        return any(address in self._crew.members for address in self._tasks)

    def depth(self, member: Member) -> int:
        return 1

    def next(self, member: Member) -> Task | None:
        return self._tasks.pop(member.address, None)

    def fit(self, member: Member) -> bool:
        return False

    def alone(self, member: Member, item: Item) -> Task:
        raise AssertionError("a question is about no items")

    def done(self, member: Member, task: Task, value: Any) -> None:
        self.found[member.address] = value

    def failed(self, member: Member, task: Task, reason: str) -> None:
        self.failures[member.address] = reason

    def lost(self, address: str) -> None:
        self._tasks.pop(address, None)

    def killed(self, item: Item, reason: str) -> None:
        raise AssertionError("a question is about no items")


def request(task: Task) -> bytes:
    """What `answer` wants."""
    return pickle.dumps((task.function, task.arguments))


def _answered(future: Any) -> tuple[Answer | None, str]:
    """An answer, or why there is none; nothing about one that was cancelled."""
    if future.cancelled():
        return None, ""
    try:
        found: Answer = pickle.loads(future.result(timeout=_RESULT_SECONDS))
        return found, ""
    except BaseException as error:
        return None, f"{type(error).__name__}: {error}"
