"""Who gets what, and what happens when somebody is lost: with workers that are none."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchchol.artifacts.nvcc import find_nvcc
from batchchol.measure.process import MachineFailure
from batchchol.progress import Progress
from batchchol.tune.cluster import dispatch, remote
from batchchol.tune.cluster.compile import ClusterCompilers
from batchchol.tune.cluster.dispatch import Dispatch, Item, Task
from batchchol.tune.cluster.measure import Queue, Seats
from batchchol.tune.cluster.remote import About, Ready, Setup, answer
from batchchol.tune.cluster.workers import Member

from ...fake_nvcc import compiled, kernel_source, write_fake_nvcc
from ...sweep_benches import points

ABOUT = About("host", remote.VERSION, ("GPU-a", "GPU-b"), None, "gcc", True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(dispatch, "_PATIENCE_SECONDS", 0.05)


class Future:
    """A task that is done when its worker comes to it."""

    def __init__(self, key: str, member: Member, request: bytes) -> None:
        self.key = key
        self.member = member
        self.request = request
        self.then: Callable[[Future], None] = lambda _: None
        self.answer: bytes | None = None

    def add_done_callback(self, then: Callable[[Future], None]) -> None:
        self.then = then

    def cancelled(self) -> bool:
        return self.answer is None

    def result(self, timeout: float) -> bytes:
        assert self.answer is not None
        return self.answer


class FakeCrew:
    """Workers in this process. Each time that somebody looks, one of them does one thing, or is lost.

    `fatal` items end the worker that has them; `accidents` are the numbers of the looks at which one is lost that has
    several things to do.
    """

    name = "fake"

    def __init__(
        self, count: int, fatal: Iterable[Item] = (), accidents: Iterable[int] = (), back: bool = True
    ) -> None:
        self.members = {f"w{number}": Member(f"w{number}", ABOUT, 2) for number in range(count)}
        self.queues: dict[str, list[tuple[Future, Task]]] = {address: [] for address in self.members}
        self.fatal = set(fatal)
        self.accidents = set(accidents)
        self.back = back
        self.looks = self.submitted = 0
        self.said: list[str] = []
        self.say = self.said.append
        self.random = random.Random(7)

    def submit(self, member: Member, task: Task) -> Future:
        self.submitted += 1
        future = Future(str(self.submitted), member, dispatch.request(task))
        self.queues[member.address].append((future, task))
        return future

    def look(self) -> set[str]:
        self.looks += 1
        busy = [address for address, queue in self.queues.items() if queue]
        if not busy:
            return set()
        address = self.random.choice(busy)
        if self.looks in self.accidents and len(self.queues[address]) > 1:
            return self.lose(address)
        future, task = self.queues[address].pop(0)
        if self.fatal & set(task.items):
            return self.lose(address)
        future.answer = answer(future.request)
        future.then(future)
        return set()

    def lose(self, address: str) -> set[str]:
        del self.members[address], self.queues[address]
        if self.back:
            again = f"{address}+"
            self.members[again], self.queues[again] = Member(again, ABOUT, 2), []
        return {address}

    def cancel(self, futures: Iterable[Future]) -> None:
        for future in futures:
            future.then(future)

    def refuse(self, address: str, reason: str) -> None:
        self.say(reason)
        del self.members[address]

    def work(self, feed: Any) -> None:
        Dispatch(self, feed).run()  # type: ignore[arg-type]

    def ask(self, tasks: dict[str, Task]) -> tuple[dict[str, Any], dict[str, str]]:
        questions = dispatch.Questions(self, tasks)  # type: ignore[arg-type]
        self.work(questions)
        return questions.found, questions.failures


class Numbers:
    """A feed of numbers, some at a time."""

    over = False

    def __init__(self, count: int, depth: int = 2) -> None:
        self.left = list(range(count))
        self.results: list[int] = []
        self.dead: dict[Item, str] = {}
        self.gone: list[str] = []
        self._depth = depth

    @property
    def waiting(self) -> bool:
        return bool(self.left)

    def depth(self, member: Member) -> int:
        return self._depth

    def next(self, member: Member) -> Task | None:
        some, self.left = self.left[:3], self.left[3:]
        return Task(squares, (some,), tuple(some)) if some else None

    def fit(self, member: Member) -> bool:
        return True

    def alone(self, member: Member, item: Item) -> Task:
        return Task(squares, ([item],), (item,))

    def done(self, member: Member, task: Task, value: list[int]) -> None:
        self.results += value

    def failed(self, member: Member, task: Task, reason: str) -> None:
        raise AssertionError(reason)

    def lost(self, address: str) -> None:
        self.gone.append(address)

    def killed(self, item: Item, reason: str) -> None:
        self.dead[item] = reason


def squares(numbers: list[int]) -> list[int]:
    return [number**2 for number in numbers]


@pytest.mark.parametrize("seed", range(20))
def test_everything_is_done_once_whoever_is_lost(seed: int) -> None:
    chance = random.Random(seed)
    fatal, accidents = chance.sample(range(60), 3), chance.sample(range(1, 40), 6)
    crew, feed = FakeCrew(3, fatal, accidents), Numbers(60)
    crew.random = chance
    Dispatch(crew, feed).run()  # type: ignore[arg-type]
    assert sorted(feed.results) == [number**2 for number in range(60) if number not in fatal]
    assert set(feed.dead) == set(fatal)
    assert all("2 workers were lost while they did nothing else, last w" in reason for reason in feed.dead.values())
    # The first time in company, or not even that, and then twice alone.
    assert 2 * len(fatal) <= len(feed.gone) <= 3 * len(fatal) + len(accidents)


def test_without_workers_it_ends_and_says_so() -> None:
    crew, feed = FakeCrew(2, fatal={7}, back=False), Numbers(20)
    with pytest.raises(MachineFailure, match=r"none is there.*start workers and run the same command again"):
        Dispatch(crew, feed).run()  # type: ignore[arg-type]
    assert 49 not in feed.results


def test_answers_that_are_there_are_taken_when_something_else_ends_it() -> None:
    crew, feed = FakeCrew(1), Numbers(20)

    def interrupted() -> set[str]:
        while crew.queues["w0"]:
            FakeCrew.look(crew)
        raise KeyboardInterrupt

    crew.look = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        Dispatch(crew, feed).run()  # type: ignore[arg-type]
    assert sorted(feed.results) == [number**2 for number in range(6)]


def test_an_item_that_was_forgotten_is_given_again() -> None:
    crew, feed = FakeCrew(2), Numbers(9)
    forgotten: list[Future] = []
    submit = crew.submit

    def forget(member: Member, task: Task) -> Future:
        future = submit(member, task)
        if not forgotten:
            forgotten.append(crew.queues[member.address].pop()[0])
            future.add_done_callback = lambda then: then(future)  # type: ignore[method-assign]
        return future

    crew.submit = forget  # type: ignore[method-assign]
    Dispatch(crew, feed).run()  # type: ignore[arg-type]
    assert sorted(feed.results) == [number**2 for number in range(9)]
    assert not feed.dead


def test_points_of_one_order_go_to_one_worker_until_the_end() -> None:
    many = points(96)
    queue, taken = Queue(many), Counter[tuple[str, int]]()
    got: list[str] = []
    while len(queue):
        for who in ("a", "b"):
            for point in queue.take(who, 5):
                taken[who, point.spec.problem.n] += 1
                got.append(point.key)
    assert sorted(got) == sorted(point.key for point in many)
    assert taken.keys() == {("a", 16), ("b", 17), ("a", 18), ("b", 18)}
    assert min(taken.values()) >= 14, "the last order is shared by both"


def test_what_is_given_back_is_taken_by_others() -> None:
    queue = Queue(points(40))
    lost = queue.take("a", 4)
    queue.give_back(lost)
    queue.leave("a")
    assert queue.take("b", 4) == lost
    rest = [point for who in ("b", "c") * 40 for point in queue.take(who, 1)]
    assert sorted(point.key for point in (*lost, *rest)) == sorted(point.key for point in points(40))


@pytest.fixture
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = write_fake_nvcc(tmp_path / "nvcc")
    monkeypatch.setenv("BATCHCHOL_NVCC", str(path))
    monkeypatch.setenv("BATCHCHOL_CACHE", str(tmp_path / "cache"))
    return path


def test_a_kernel_that_does_not_compile_costs_itself_alone(nvcc: Path) -> None:
    crew = FakeCrew(2)
    about = replace(ABOUT, nvcc=find_nvcc())
    crew.members = {address: replace(member, about=about) for address, member in crew.members.items()}
    sources = [kernel_source(f"k{number}", "BROKEN" if number == 2 else "") for number in range(6)]
    seen: list[Progress] = []
    compilers = ClusterCompilers(crew)  # type: ignore[arg-type]
    limits: dict[str, Any] = {"jobs": None, "per_module": 3, "time_limit": 60.0, "progress": seen.append}
    found = compilers.cuda(sources, "sm_90", **limits)
    assert [outcome.status for outcome in found] == ["built", "built", "compile", "built", "built", "built"]
    assert "expected something else" in found[2].message
    assert max(Counter(entry for run in compiled(nvcc) for entry in run).values()) == 2
    assert (seen[-1].done, seen[-1].failed, seen[-1].reused) == (6, 1, 0)
    assert [outcome.reused for outcome in compilers.cuda(sources[3:], "sm_90", **limits)] == [True] * 3


def test_a_group_that_ends_its_workers_is_compiled_one_by_one(nvcc: Path) -> None:
    sources = [kernel_source(f"k{number}") for number in range(4)]
    crew = FakeCrew(2)
    about = replace(ABOUT, nvcc=find_nvcc())
    crew.members = {address: replace(member, about=about) for address, member in crew.members.items()}
    lose = crew.lose

    def again(address: str) -> set[str]:
        gone = lose(address)
        crew.members = {name: replace(member, about=about) for name, member in crew.members.items()}
        return gone

    crew.lose = again  # type: ignore[method-assign]
    crew.fatal = {(sources[0], sources[1]), (sources[1],)}
    limits: dict[str, Any] = {"jobs": None, "per_module": 2, "time_limit": 60.0, "progress": lambda _: None}
    found = ClusterCompilers(crew).cuda(sources, "sm_90", **limits)  # type: ignore[arg-type]
    assert [outcome.status for outcome in found] == ["built", "compile", "built", "built"]
    assert "workers were lost" in found[1].message


def seats(crew: FakeCrew, backend: str, per_host: int = 1) -> Seats:
    compilers = ClusterCompilers(crew)  # type: ignore[arg-type]
    return Seats(crew, Setup("fake", backend), compilers, per_host)  # type: ignore[arg-type]


def test_a_gpu_is_measured_on_by_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHCHOL_NVCC", "nothing")
    crew = FakeCrew(3)
    found = seats(crew, "cuda")
    setups = {address: found.setup(member) for address, member in crew.members.items()}
    assert [setup and setup.gpu for setup in setups.values()] == ["GPU-a", "GPU-b", None]
    crew.lose("w0")
    again = {
        address: setup and setup.gpu for address, setup in ((a, found.setup(m)) for a, m in crew.members.items())
    }
    assert again == {"w1": "GPU-b", "w2": "GPU-a", "w0+": None}


def test_without_a_driver_to_ask_a_host_has_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHCHOL_NVCC", "nothing")
    crew = FakeCrew(2)
    crew.members = {name: replace(each, about=replace(ABOUT, gpus=())) for name, each in crew.members.items()}
    assert [(each and each.gpu) for each in map(seats(crew, "cuda").setup, crew.members.values())] == ["", None]


def test_cpus_measure_one_at_a_time_unless_more_are_asked_for() -> None:
    crew = FakeCrew(3)
    for per_host, measuring in ((1, 1), (2, 2), (5, 3)):
        found = seats(crew, "cpu", per_host)
        assert sum(found.setup(member) is not None for member in crew.members.values()) == measuring


def test_a_compiler_of_another_make_is_not_used_where_it_measures(nvcc: Path, tmp_path: Path) -> None:
    """Its worker runs what the others' made."""
    crew = FakeCrew(2)
    other = replace(find_nvcc(), identity="nvcc 12.4")
    crew.members["w0"] = replace(crew.members["w0"], about=replace(ABOUT, nvcc=other, gpus=("GPU-a",)))
    crew.members["w1"] = replace(crew.members["w1"], about=replace(ABOUT, nvcc=find_nvcc(), gpus=("GPU-b",)))
    found = seats(crew, "cuda")
    assert [bool(each and each.own_compiler) for each in map(found.setup, crew.members.values())] == [False, True]


def test_when_nobody_can_measure_it_is_said_why() -> None:
    found = seats(FakeCrew(1), "cpu")
    found.ready["w0"] = Ready({}, {"device": "one"}, frozenset())
    found.choose("another")
    assert found.device == "one"
    found.refuse("w0", "it broke")
    with pytest.raises(MachineFailure, match="no worker of the cluster can measure: it broke"):
        found.check()
