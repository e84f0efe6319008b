"""The measuring stage on a cluster: which worker measures on which GPU, and which points it gets.

A GPU is measured on by one worker, one point at a time. Points of one order and batch go to one worker, as long as
there are others for the rest: data serve many points, and what is compared ran on one GPU. At the end a
worker with nothing to do takes half of what another has left.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from typing import Any, NamedTuple

from batchchol.artifacts.archive import pack_bytes
from batchchol.artifacts.cache import ArtifactCache
from batchchol.errors import BatchcholError
from batchchol.measure.dataset import DataSet
from batchchol.measure.point import Point
from batchchol.measure.process import MachineFailure
from batchchol.measure.row import Row, Value
from batchchol.progress import Progress, Show
from batchchol.tune.choosing.winners import grouped
from batchchol.tune.cluster.compile import ClusterCompilers
from batchchol.tune.cluster.remote import MEASURE, Member, Ran, Ready, Setup
from batchchol.tune.cluster.workers import Crew, WorkersLost
from batchchol.tune.compile import Built, build
from batchchol.tune.sweep import Estimate, Keeper, Summary

# How long a task should take: long against the way there and back, short against what a lost worker costs.
_TASK_SECONDS = 0.5
_TASK_POINTS = 16
# One is measured while the other waits there.
_DEPTH = 2
_TICK_SECONDS = 0.5


class Seats:
    """The workers that measure, and their devices: the place of a sweep on a cluster, like `executors.Here`.

    Parameters
    ----------
    setup : Setup
        How, without the GPU.
    per_host : int
        How many workers of a host measure at a time on a CPU.
    """

    measurer = None
    """There is no measuring process on this machine."""

    def __init__(self, crew: Crew, setup: Setup, compilers: ClusterCompilers, per_host: int = 1) -> None:
        self.crew = crew
        self._setup = setup
        self.compilers = compilers
        self._per_host = per_host
        self._taken: dict[str, str] = {}
        self._sitting: set[str] = set()
        self._refused: dict[str, str] = {}
        self._facts: dict[str, Any] = {}
        self.ready: dict[str, Ready] = {}
        """What the workers that were there at the start measure on, by address."""
        self.about: dict[str, Value] = {}
        """The columns of a machine with the chosen device."""

    def open(self) -> None:
        """Start measuring on all workers that have joined.

        Raises
        ------
        MachineFailure
            If none can.
        """
        self.look()
        futures = {address: self.crew.submit("ready", worker=address) for address in self.measuring()}
        for address, future in futures.items():
            try:
                self.ready[address] = self.crew.result(future)
            except MachineFailure as error:
                self.refuse(address, str(error))
        if not self.ready:
            raise self._nobody()

    def choose(self, device: str | None) -> None:
        """Let only workers with this device measure, or with the commonest one."""
        devices = Counter(str(ready.about["device"]) for ready in self.ready.values())
        chosen = device if device in devices else devices.most_common(1)[0][0]
        self._setup = replace(self._setup, device=chosen)
        self.about = next(ready.about for ready in self.ready.values() if ready.about["device"] == chosen)
        for address, ready in list(self.ready.items()):
            try:
                self._setup.check(ready.about["device"])
            except BatchcholError as error:
                self.refuse(address, str(error))
        found = [ready.facts for ready in self.ready.values()]
        free = [facts["free_bytes"] for facts in found if facts["free_bytes"] is not None]
        self._facts = found[0] | {"free_bytes": min(free, default=None)}

    @property
    def device(self) -> str:
        """The only device that is measured, once it is chosen."""
        return str(self._setup.device)

    def facts(self) -> Mapping[str, Any]:
        """What all of them can do: the free memory is that of the smallest; see `Bench.facts`."""
        return self._facts

    def build(self, points: Sequence[Point], arch: str | None, **limits: Any) -> Built:
        """See `compile.build`."""
        return build(points, arch, compilers=self.compilers, **limits)

    def look(self) -> None:
        """Set up the workers that have joined since."""
        for address, member in self.crew.members.items():
            if address not in self._sitting and (setup := self.setup(member)):
                self._sitting.add(address)
                self.crew.sit(address, setup)

    def measuring(self) -> list[str]:
        """The workers that measure, by address."""
        return [address for address in self.crew.members if address in self._sitting - self._refused.keys()]

    def refuse(self, address: str, reason: str) -> None:
        """Exclude a worker from measuring."""
        self.ready.pop(address, None)
        if address not in self._refused:
            self._refused[address] = reason
            self.crew.withdraw(address, MEASURE, reason)

    def check(self) -> None:
        """Raise a MachineFailure if there are workers, and none of them can measure."""
        members = self.crew.members
        if members and all(address in self._refused or self.setup(members[address]) is None for address in members):
            raise self._nobody()

    def setup(self, member: Member) -> Setup | None:
        """How a member measures; None if it does not."""
        place = None if member.address in self._refused else self._place(member)
        if place is None:
            return None
        self._taken[place] = member.address
        gpus = self._setup.backend == "cuda" and member.gpus
        nvcc, used = member.nvcc, self.compilers.nvcc
        own = nvcc is None or used is None or nvcc.identity == used.identity
        return replace(self._setup, gpu=place if gpus else "", own_compiler=own)

    def columns(self, dtype: str, threads: int) -> dict[str, Value]:
        """See `Measurer.about`, of any worker."""
        self.check()
        return dict(self.crew.result(self.crew.submit("columns", dtype, threads, needs=MEASURE)))

    def sweep(
        self,
        points: Sequence[Point],
        data: DataSet,
        *,
        space: str = "",
        failed: Iterable[Row] = (),
        seconds: float | None = None,
        show: Show = lambda _: None,
    ) -> Summary:
        """Measure the points that the data set lacks, on the workers of a cluster; see `sweep.sweep`.

        A row is kept when it arrives. What is in work when this ends, about a second of each worker, is measured
        again.
        """
        keeper = Keeper(data, space)
        keeper.keep_failed(failed, self.columns)
        pending = [point for point in points if point.key not in data.done]
        work = _Measuring(pending, self, keeper, show)
        work.run(seconds)
        return Summary(keeper.summary.statuses, len(pending) - work.count)

    def _nobody(self) -> MachineFailure:
        reason = next(iter(self._refused.values()), "they have no GPU of their own")
        return MachineFailure(f"no worker of the cluster can measure: {reason}")

    def _place(self, member: Member) -> str | None:
        """What a member measures on: nothing that another present member has."""
        host = member.host
        if self._setup.backend == "cuda":
            places = list(member.gpus) or [host]
        elif member.compiler != self.compilers.compiler:
            return None
        else:
            places = [f"{host} {index}" for index in range(self._per_host)]
        owners = {place: self._taken.get(place) for place in places}
        for place, owner in owners.items():
            if owner == member.address:
                return place
        free = (place for place, owner in owners.items() if owner not in self.crew.members)
        return next(free, None)


class Queue:
    """The points that are not assigned to a worker yet, in groups of one order and batch."""

    def __init__(self, points: Iterable[Point]) -> None:
        alike = grouped(points, lambda point: (point.spec.problem.n, point.spec.problem.dtype, point.batch))
        self._groups = [deque(group) for group in alike.values()]
        self._of: dict[str, deque[Point]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._groups))

    def take(self, who: str, count: int) -> tuple[Point, ...]:
        """The next points of the same data, at most as many as asked for."""
        group = self._of.get(who) or self._free(who)
        points: list[Point] = []
        while group and len(points) < count and group[0].data == (points or group)[0].data:
            points.append(group.popleft())
        return tuple(points)

    def give_back(self, points: Sequence[Point]) -> None:
        """Return points, for the next worker without a group."""
        self._groups.insert(0, deque(points))

    def leave(self, who: str) -> None:
        """Free the group of a worker that was lost."""
        self._of.pop(who, None)

    def _free(self, who: str) -> deque[Point] | None:
        """An unassigned group, or else half of the longest one."""
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


class _Flight(NamedTuple):
    """Points that were given to a worker, which may be lost; or one point that is the only one in work anywhere."""

    worker: str
    points: tuple[Point, ...]


class _Measuring:
    """One sweep: points on their way to workers, and rows back."""

    def __init__(self, points: list[Point], seats: Seats, keeper: Keeper, show: Show) -> None:
        self._crew = seats.crew
        self._seats = seats
        self._keeper = keeper
        self._show = show
        self._total = len(points)
        self._queue = Queue(points)
        self._suspects: deque[Point] = deque()
        self._flights: dict[Future[Ran], _Flight] = {}
        self._anchors: dict[str, Any] = {}
        self._pace: dict[str, float] = {}
        self._clock = Estimate(points)
        self._begin = time.monotonic()
        self.count = 0

    def run(self, seconds: float | None) -> None:
        """Measure until all is done, or the time is over.

        Raises
        ------
        MachineFailure
            If for a long time no worker can measure what is left, or the scheduler is gone.
        """
        try:
            while self._flights or self._open(seconds):
                for address in self._crew.look():
                    self._queue.leave(address)
                self._seats.look()
                self._crew.wait(bool(self._seats.measuring()))
                if self._open(seconds):
                    self._give()
                self._collect(_TICK_SECONDS)
        finally:
            # However this ends, the answers are kept.
            self._collect(0.0)
            self._crew.cancel()
            self._report()

    def _open(self, seconds: float | None) -> bool:
        """Whether there are points to give, and time for them."""
        over = seconds is not None and time.monotonic() - self._begin > seconds
        return not over and bool(self._queue or self._suspects)

    def _give(self) -> None:
        """Points for all workers that measure; suspects when nothing else is in work."""
        for address in self._seats.measuring():
            for _ in range(_DEPTH - sum(flight.worker == address for flight in self._flights.values())):
                if points := self._queue.take(address, self._size(address)):
                    self._submit(address, points)
        if self._suspects and not self._flights:
            self._submit("", (self._suspects.popleft(),))

    def _submit(self, address: str, points: tuple[Point, ...]) -> None:
        """Send points; if the worker is lost, dask gives them to another one, whose cache may differ."""
        keys: set[str] = set()
        if not all(member.shares_cache for member in self._crew.members.values()):
            keys = {key for point in points for key in self._seats.compilers.keys(point)}
        packed = pack_bytes(ArtifactCache(), sorted(keys))
        if address and address not in self._anchors:
            self._anchors[address] = self._crew.anchor(address)
        future = self._crew.submit("measure", points, packed, self._anchors.get(address), needs=MEASURE)
        self._flights[future] = _Flight(address, points)

    def _collect(self, seconds: float) -> None:
        """Take all answers that are there; wait at most `seconds` for the first."""
        if not self._flights:
            time.sleep(seconds / 10)
        done, _ = wait(self._flights, seconds, FIRST_COMPLETED)
        for future in done:
            self._landed(self._flights.pop(future), future)

    def _landed(self, flight: _Flight, future: Future[Ran]) -> None:
        try:
            ran: Ran = self._crew.result(future)
        except WorkersLost as error:
            if flight.worker:
                self._suspects += flight.points
            else:
                (point,) = flight.points
                # Without the ceilings, which another worker would have to measure: the row is kept at once.
                self._keeper.keep(Row(point, "runtime", str(error), about=self._seats.about))
                self._noted(point, None)
            return
        for row, seconds in zip(ran.rows, ran.seconds, strict=True):
            self._keeper.keep(row)
            self._noted(row.point, seconds)
        if ran.rows:
            self._pace[ran.worker] = sum(ran.seconds) / len(ran.rows)
        if rest := flight.points[len(ran.rows) :]:
            self._queue.give_back(rest)
        if ran.failure:
            self._queue.leave(ran.worker)
            self._seats.refuse(ran.worker, ran.failure)
            self._seats.check()

    def _size(self, address: str) -> int:
        """Points of a task: fewer where they take long, and towards the end, so that all end together."""
        pace = self._pace.get(address)
        if pace is None:
            return 1
        fair = len(self._queue) // (2 * _DEPTH * len(self._seats.measuring()))
        return max(1, min(_TASK_POINTS, int(_TASK_SECONDS / pace), fair))

    def _noted(self, point: Point, seconds: float | None) -> None:
        self.count += 1
        self._clock.add(point, took=seconds)
        self._report()

    def _report(self) -> None:
        left = self._clock.seconds_left()
        elapsed = time.monotonic() - self._begin
        seconds_left = None if left is None else left / (len(self._seats.measuring()) or 1)
        self._show(Progress(self.count, self._total, 0, self._keeper.summary.lost, elapsed, seconds_left, "points"))
