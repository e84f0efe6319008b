"""The measuring stage on a cluster: which worker measures on which GPU, and which points it gets.

A GPU is measured on by one worker, one point at a time. Points of one order and batch go to one worker, as long as
there are others for everybody else: data serve many points, and what is compared ran on one GPU. At the end whoever
has nothing to do takes half of what another has left.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from batchchol.artifacts.cache import ArtifactCache
from batchchol.measure.dataset import DataSet
from batchchol.measure.point import Point
from batchchol.measure.process import MachineFailure
from batchchol.measure.row import Row, Value
from batchchol.progress import Progress
from batchchol.tune.cluster import remote
from batchchol.tune.cluster.compile import ClusterCompilers
from batchchol.tune.cluster.dispatch import Item, Task
from batchchol.tune.cluster.parcels import Parcel, pack
from batchchol.tune.cluster.remote import Ran, Ready, Setup
from batchchol.tune.sweep import Estimate, Keeper, Show, Summary

if TYPE_CHECKING:
    from batchchol.tune.cluster.workers import Crew, Member

# What a task is to take: long against the way there and back, short against what a lost worker costs.
_TASK_SECONDS = 0.5
_TASK_POINTS = 16
# One is measured while the other waits there.
_DEPTH = 2


class Seats:
    """Who measures, and on what.

    Parameters
    ----------
    setup : Setup
        How, without the GPU.
    per_host : int
        So many workers of a host measure at a time on a CPU.
    """

    def __init__(self, crew: Crew, setup: Setup, compilers: ClusterCompilers, per_host: int = 1) -> None:
        self._crew = crew
        self._setup = setup
        self._compilers = compilers
        self._per_host = per_host
        self._taken: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        self.device: str | None = None
        self.ready: dict[str, Ready] = {}
        """Those that can begin, by address."""
        self.about: dict[str, Value] = {}
        """The columns of a machine that can."""

    def open(self) -> None:
        """Have everybody who is there begin.

        Raises
        ------
        MachineFailure
            If nobody can.
        """
        members = {address: self.setup(member) for address, member in self._crew.members.items()}
        tasks = {address: Task(remote.prepare, (setup,)) for address, setup in members.items() if setup is not None}
        found, failures = self._crew.ask(tasks)
        for address, ready in found.items():
            self.admit(address, ready)
        for address, reason in failures.items():
            self.refuse(address, reason)
        self.check()

    def choose(self, device: str | None) -> None:
        """Only workers with this device measure, or with that of most of them."""
        devices = Counter(_device(ready) for ready in self.ready.values())
        self.device = device if device in devices else devices.most_common(1)[0][0]
        for address, ready in list(self.ready.items()):
            self.admit(address, ready)

    def admit(self, address: str, ready: Ready) -> None:
        """A worker can begin, if it has the device."""
        if self.device is not None and _device(ready) != self.device:
            self.refuse(
                address,
                f"it measures {_device(ready)!r}, and the data set is of {self.device!r}: give it another folder",
            )
        else:
            self.ready[address] = ready
            self.about = ready.about

    def refuse(self, address: str, reason: str) -> None:
        """A worker does not measure, or no more."""
        self.ready.pop(address, None)
        self._refused[address] = reason
        self._crew.say(f"worker {address} does not measure: {reason}")

    def check(self) -> None:
        """Raise a MachineFailure if there are workers, and none of them can measure."""
        members = self._crew.members
        if members and all(address in self._refused or self.setup(members[address]) is None for address in members):
            reason = next(iter(self._refused.values()), "they have no GPU of their own")
            raise MachineFailure(f"no worker of the cluster can measure: {reason}")

    def setup(self, member: Member) -> Setup | None:
        """How a member measures; None if it does not."""
        if member.address in self._refused:
            return None
        place = self._place(member)
        if place is None:
            return None
        self._taken[place] = member.address
        gpus = self._setup.backend == "cuda" and member.about.gpus
        nvcc, used = member.about.nvcc, self._compilers.nvcc
        own = nvcc is None or used is None or nvcc.identity == used.identity
        return replace(self._setup, gpu=place if gpus else "", own_compiler=own)

    def columns(self, dtype: str, threads: int) -> dict[str, Value]:
        """See `Measurer.about`, of any worker."""
        while True:
            self.check()
            self._crew.look()
            setups = {address: self.setup(member) for address, member in self._crew.members.items()}
            asked = {a: Task(remote.columns, (s, dtype, threads)) for a, s in setups.items() if s}
            found, _ = self._crew.ask(dict(list(asked.items())[:1]))
            if found:
                return cast(dict[str, Value], next(iter(found.values())))

    def _place(self, member: Member) -> str | None:
        """What a member measures on, which nobody else who is there does."""
        host = member.about.host
        if self._setup.backend == "cuda":
            places = list(member.about.gpus) or [host]
        elif member.about.compiler != self._compilers.compiler:
            return None
        else:
            places = [f"{host} {index}" for index in range(self._per_host)]
        owners = {place: self._taken.get(place) for place in places}
        for place, owner in owners.items():
            if owner == member.address:
                return place
        free = (place for place, owner in owners.items() if owner not in self._crew.members)
        return next(free, None)


class Queue:
    """The points that nobody has been given, in groups of one order and batch."""

    def __init__(self, points: Iterable[Point]) -> None:
        self._groups: list[deque[Point]] = []
        self._of: dict[str, deque[Point]] = {}
        by_data: dict[Any, deque[Point]] = {}
        for point in points:
            problem = point.spec.problem
            by_data.setdefault((problem.n, problem.dtype, point.batch), deque()).append(point)
        self._groups = list(by_data.values())

    def __len__(self) -> int:
        return sum(map(len, self._groups))

    def take(self, who: str, count: int) -> tuple[Point, ...]:
        """Up to so many points of the same data."""
        group = self._of.get(who) or self._free(who)
        points: list[Point] = []
        while group and len(points) < count and group[0].data == (points or group)[0].data:
            points.append(group.popleft())
        return tuple(points)

    def give_back(self, points: Sequence[Point]) -> None:
        """For whoever is the next without a group."""
        self._groups.insert(0, deque(points))

    def leave(self, who: str) -> None:
        """Somebody is gone; the group is free."""
        self._of.pop(who, None)

    def _free(self, who: str) -> deque[Point] | None:
        """A group that nobody has, or else half of the longest one."""
        self._groups = [group for group in self._groups if group]
        owned = [id(group) for group in self._of.values()]
        group = next((group for group in self._groups if id(group) not in owned), None)
        if group is None and self._groups:
            longest = max(self._groups, key=len)
            group = deque(longest.pop() for _ in range(-(-len(longest) // 2)))
            group.reverse()
            self._groups.append(group)
        if group is None:
            self._of.pop(who, None)
        else:
            self._of[who] = group
        return group


def sweep(
    points: Sequence[Point],
    crew: Crew,
    seats: Seats,
    compilers: ClusterCompilers,
    data: DataSet,
    *,
    space: str = "",
    failed: Iterable[Row] = (),
    seconds: float | None = None,
    show: Show = lambda _: None,
) -> Summary:
    """Measure the points that the data set lacks, on the workers of a cluster; see `sweep.sweep`.

    A row is kept when it arrives. What is in work when this ends, about a second of each worker, is measured again.
    """
    keeper = Keeper(data, space)
    keeper.keep_failed(failed, seats.columns)
    pending = [point for point in points if point.key not in data.keys]
    feed = _Measuring(pending, crew, seats, compilers, keeper, data, seconds, show)
    try:
        crew.work(feed)
    finally:
        feed.finish()
    return Summary(keeper.statuses, len(pending) - feed.count)


class _Measuring:
    """The feed of points."""

    def __init__(
        self,
        points: list[Point],
        crew: Crew,
        seats: Seats,
        compilers: ClusterCompilers,
        keeper: Keeper,
        data: DataSet,
        seconds: float | None,
        show: Show,
    ) -> None:
        self._points = points
        self._crew = crew
        self._seats = seats
        self._compilers = compilers
        self._keeper = keeper
        self._data = data
        self._show = show
        self._queue = Queue(points)
        self._clock = Estimate(points)
        self._pace: dict[str, float] = {}
        self._lacking: dict[str, set[str]] = {}
        self._preparing: set[str] = set()
        self._begin = time.monotonic()
        self._end = None if seconds is None else self._begin + seconds
        self.count = 0

    @property
    def waiting(self) -> bool:
        return len(self._queue) > 0

    @property
    def over(self) -> bool:
        return self._end is not None and time.monotonic() > self._end

    def depth(self, member: Member) -> int:
        if self._seats.setup(member) is None:
            return 0
        return _DEPTH if self._begun(member) else 1

    def next(self, member: Member) -> Task | None:
        setup = self._seats.setup(member)
        assert setup is not None
        if not self._begun(member):
            if member.address in self._preparing:
                return None
            self._preparing.add(member.address)
            keys = frozenset() if member.about.shares_cache else self._keys
            return Task(remote.prepare, (setup, keys))
        points = self._queue.take(member.address, self._size(member))
        return self._task(member, points) if points else None

    def fit(self, member: Member) -> bool:
        return self._begun(member)

    def alone(self, member: Member, item: Item) -> Task:
        assert isinstance(item, Point)
        return self._task(member, (item,))

    def done(self, member: Member, task: Task, value: Any) -> None:
        if isinstance(value, Ready):
            self._preparing.discard(member.address)
            self._lacking[member.address] = set(value.lacking)
            self._seats.admit(member.address, value)
            self._seats.check()
            return
        ran = cast(Ran, value)
        parcel: Parcel = task.arguments[2]
        self._lacking[member.address] -= parcel.keys
        for row, seconds in zip(ran.rows, ran.seconds, strict=True):
            self._keep(row, seconds)
        if ran.rows:
            self._pace[member.address] = sum(ran.seconds) / len(ran.rows)
        if ran.failure:
            self._give_up(member, cast(Sequence[Point], task.items[len(ran.rows) :]), ran.failure)

    def failed(self, member: Member, task: Task, reason: str) -> None:
        self._give_up(member, cast(Sequence[Point], task.items), reason)

    def lost(self, address: str) -> None:
        self._seats.ready.pop(address, None)
        self._queue.leave(address)

    def killed(self, item: Item, reason: str) -> None:
        assert isinstance(item, Point)
        # Without the ceilings: to ask for them takes another worker, and this is to be kept at once.
        self._keeper.keep(Row(item, "runtime", reason, about=self._seats.about))
        self._noted(item, None)

    def finish(self) -> None:
        """The last progress."""
        self._report()

    def _give_up(self, member: Member, points: Sequence[Point], reason: str) -> None:
        self._queue.give_back(points)
        self._queue.leave(member.address)
        self._seats.refuse(member.address, reason)
        self._seats.check()

    def _begun(self, member: Member) -> bool:
        known = member.about.shares_cache or member.address in self._lacking
        if known:
            self._lacking.setdefault(member.address, set())
        return known and member.address in self._seats.ready

    def _task(self, member: Member, points: tuple[Point, ...]) -> Task:
        lacking = self._lacking.get(member.address, set())
        keys = {key for point in points for key in self._compilers.keys(point)} if lacking else set()
        parcel = pack(ArtifactCache(), sorted(keys & lacking))
        return Task(remote.measure, (self._seats.setup(member), points, parcel), points)

    def _size(self, member: Member) -> int:
        """Points of a task: fewer where they take long, and towards the end, so that all end together."""
        pace = self._pace.get(member.address)
        if pace is None:
            return 1
        fair = len(self._queue) // (2 * _DEPTH * len(self._seats.ready) or 1)
        return max(1, min(_TASK_POINTS, int(_TASK_SECONDS / pace), fair))

    def _keep(self, row: Row, seconds: float) -> None:
        if row.point.key not in self._data.keys:
            self._keeper.keep(row)
            self._noted(row.point, seconds)

    def _noted(self, point: Point, seconds: float | None) -> None:
        self.count += 1
        self._clock.add(point, took=seconds)
        self._report()

    def _report(self) -> None:
        left = self._clock.seconds_left()
        elapsed = time.monotonic() - self._begin
        workers = len(self._crew.members.keys() & self._seats.ready.keys()) or 1
        seconds_left = None if left is None else left / workers
        self._show(Progress(self.count, len(self._points), 0, self._keeper.lost, elapsed, seconds_left, "points"))

    @cached_property
    def _keys(self) -> frozenset[str]:
        """Of all kernels that may have to be sent."""
        return frozenset(key for point in self._points for key in self._compilers.keys(point))


def _device(ready: Ready) -> str:
    return str(ready.about["device"])
