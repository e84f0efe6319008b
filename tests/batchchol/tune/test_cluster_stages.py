"""Who gets what, and what happens when workers are lost: with workers that are none."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("distributed")
from distributed import KilledWorker

from batchchol.artifacts.nvcc import find_nvcc
from batchchol.measure.process import MachineFailure
from batchchol.measure.row import Row
from batchchol.progress import Progress
from batchchol.tune.cluster import workers
from batchchol.tune.cluster.compile import ClusterCompilers
from batchchol.tune.cluster.measure import Queue, Seats
from batchchol.tune.cluster.remote import Made, Member, Ran, Ready, Setup, Station
from batchchol.tune.cluster.workers import Crew
from batchchol.tune.sweep import Summary

from ...fakes.nvcc import compiled, kernel_source, write_fake_nvcc
from ...sweep_benches import points

ABOUT = Member("w0", "host", ("GPU-a", "GPU-b"), 2, None, "gcc", True)

Worker = Callable[..., Any]


class FakeCrew(Crew):
    """Workers of which `work` is all: it is called with the name of a method and its arguments, at once."""

    def __init__(self, count: int, work: Worker, about: Member = ABOUT) -> None:
        self.said: list[str] = []
        super().__init__(SimpleNamespace(get_executor=lambda **_: self), "fake", False, self.said.append)  # type: ignore[arg-type]
        self.members = {f"w{number}": replace(about, address=f"w{number}") for number in range(count)}
        self.work = work

    def submit(self, method: str, *arguments: Any, needs: str = "", worker: str = "") -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(self.work(method, *arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def anchor(self, address: str) -> str:
        return address

    def look(self) -> set[str]:
        return set()

    def sit(self, address: str, setup: Setup) -> None:
        pass

    def _run(self, function: Callable[..., Any], *arguments: Any, workers: list[str]) -> dict[str, Any]:
        return {}


def nothing(method: str, *arguments: Any) -> None:
    raise AssertionError(method)


def killed() -> KilledWorker:
    return KilledWorker("task", SimpleNamespace(address="w9"), 1)  # type: ignore[arg-type]


def measured(crew: FakeCrew, count: int, **options: Any) -> tuple[Summary, list[Row]]:
    """What became of points."""
    kept: list[Row] = []
    data: Any = SimpleNamespace(done={}, append=kept.append)
    found = seats(crew, "cpu", per_host=3)
    found.open()
    found.choose(None)
    return found.sweep(points(count), data, **options), kept


def rows(address: str | None, some: Any, failure: str = "") -> Ran:
    return Ran(tuple(Row(point, "correct") for point in some), (0.01,) * len(some), failure, address or "w0")


@pytest.mark.parametrize("seed", range(10))
def test_everything_is_measured_once_whichever_workers_are_lost(seed: int) -> None:
    """Points that are fatal take those beside them along; others have their worker lost by accident."""
    chance = random.Random(seed)
    fatal = {point.key for point in chance.sample(points(60), 3)}

    def work(method: str, *arguments: Any) -> Any:
        if method == "ready":
            return Ready({"free_bytes": None}, {"device": "one"})
        some, _, address = arguments
        if fatal & {point.key for point in some} or (address and chance.random() < 0.2):
            raise killed()
        return rows(address, some)

    summary, kept = measured(FakeCrew(3, work), 60)
    assert sorted(row.point.key for row in kept) == sorted(point.key for point in points(60))
    assert {row.point.key for row in kept if row.status == "runtime"} == fatal
    assert (summary.statuses, summary.left) == ({"correct": 57, "runtime": 3}, 0)
    assert {row.message for row in kept if row.status == "runtime"} == {
        "2 workers were lost while they did nothing else, last w9"
    }


def test_what_a_worker_could_not_measure_is_measured_by_others() -> None:
    def work(method: str, *arguments: Any) -> Any:
        if method == "ready":
            return Ready({"free_bytes": None}, {"device": "one"})
        some, _, address = arguments
        return rows(address, some[: len(some) // 2], "it broke") if address == "w1" else rows(address, some)

    crew = FakeCrew(2, work)
    summary, kept = measured(crew, 40)
    assert sorted(row.point.key for row in kept) == sorted(point.key for point in points(40))
    assert (summary.statuses, summary.left) == ({"correct": 40}, 0)
    assert crew.said == ["worker w1 does not measure: it broke"]


def test_a_sweep_ends_when_its_time_is_over() -> None:
    crew = FakeCrew(1, lambda method, *_: Ready({"free_bytes": None}, {"device": "one"}))
    summary, kept = measured(crew, 40, seconds=-1.0)
    assert (summary.statuses, summary.left, kept) == ({}, 40, [])


@pytest.mark.parametrize(("members", "there"), [(0, "none is there"), (2, "2 are there, and none can")])
def test_without_workers_it_ends_and_says_so(members: int, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_PATIENCE_SECONDS", 0.0)
    crew = FakeCrew(members, lambda: None)
    crew.wait(False)
    crew.wait(True)
    crew.wait(False)
    with pytest.raises(MachineFailure, match=rf"\({there}\): start workers and run the same command again"):
        crew.wait(False)


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


def station() -> Station:
    found = Station("fake")
    found.member = ABOUT
    return found


def test_a_kernel_that_does_not_compile_costs_itself_alone(nvcc: Path) -> None:
    crew = FakeCrew(
        2, lambda method, *arguments: getattr(station(), method)(*arguments), replace(ABOUT, nvcc=find_nvcc())
    )
    sources = [kernel_source(f"k{number}", "BROKEN" if number == 2 else "") for number in range(6)]
    seen: list[Progress] = []
    compilers = ClusterCompilers(crew)
    limits: dict[str, Any] = {"jobs": None, "per_module": 3, "time_limit": 60.0, "progress": seen.append}
    found = compilers.cuda(sources, "sm_90", **limits)
    assert [outcome.status for outcome in found] == ["built", "built", "compile", "built", "built", "built"]
    assert "expected something else" in found[2].message
    assert max(Counter(entry for run in compiled(nvcc) for entry in run).values()) == 2
    assert (seen[-1].done, seen[-1].failed, seen[-1].reused) == (6, 1, 0)
    assert [outcome.reused for outcome in compilers.cuda(sources[3:], "sm_90", **limits)] == [True] * 3


def test_a_group_that_ends_its_workers_is_compiled_one_by_one(nvcc: Path) -> None:
    sources = [kernel_source(f"k{number}") for number in range(4)]

    def work(method: str, group: Any, *arguments: Any) -> Any:
        if sources[1] in group:
            raise killed()
        return getattr(station(), method)(group, *arguments)

    crew = FakeCrew(2, work, replace(ABOUT, nvcc=find_nvcc()))
    limits: dict[str, Any] = {"jobs": None, "per_module": 2, "time_limit": 60.0, "progress": lambda _: None}
    found = ClusterCompilers(crew).cuda(sources, "sm_90", **limits)
    assert [outcome.status for outcome in found] == ["built", "compile", "built", "built"]
    assert "2 workers were lost" in found[1].message


@pytest.mark.parametrize("failing", [["w0"], ["w0", "w1"]])
def test_a_worker_that_cannot_compile_any_more_leaves_it_to_others(failing: list[str], nvcc: Path) -> None:
    able = failing == ["w0"]

    def work(method: str, *arguments: Any) -> Any:
        return Made(failure="no room", worker=failing[0]) if failing else getattr(station(), method)(*arguments)

    crew = FakeCrew(2, work, replace(ABOUT, nvcc=find_nvcc()))
    crew.withdraw = lambda address, *_: failing.remove(address)  # type: ignore[method-assign]
    limits: dict[str, Any] = {"jobs": None, "per_module": 2, "time_limit": 60.0, "progress": lambda _: None}
    sources = [kernel_source(f"k{number}") for number in range(4)]
    if able:
        assert [outcome.status for outcome in ClusterCompilers(crew).cuda(sources, "sm_90", **limits)] == [
            "built"
        ] * 4
    else:
        with pytest.raises(MachineFailure, match="no worker of the cluster can compile any more: no room"):
            ClusterCompilers(crew).cuda(sources, "sm_90", **limits)


def seats(crew: FakeCrew, backend: str, per_host: int = 1) -> Seats:
    return Seats(crew, Setup(backend), ClusterCompilers(crew), per_host)


def test_a_gpu_is_measured_on_by_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHCHOL_NVCC", "nothing")
    crew = FakeCrew(3, nothing)
    found = seats(crew, "cuda")
    setups = {address: found.setup(member) for address, member in crew.members.items()}
    assert [setup and setup.gpu for setup in setups.values()] == ["GPU-a", "GPU-b", None]
    del crew.members["w0"]
    crew.members["w0+"] = replace(ABOUT, address="w0+")
    again = {
        address: setup and setup.gpu for address, setup in ((a, found.setup(m)) for a, m in crew.members.items())
    }
    assert again == {"w1": "GPU-b", "w2": "GPU-a", "w0+": None}


def test_without_a_driver_to_ask_a_host_has_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHCHOL_NVCC", "nothing")
    crew = FakeCrew(2, nothing)
    crew.members = {name: replace(each, gpus=()) for name, each in crew.members.items()}
    assert [(each and each.gpu) for each in map(seats(crew, "cuda").setup, crew.members.values())] == ["", None]


def test_cpus_measure_one_at_a_time_unless_more_are_asked_for() -> None:
    crew = FakeCrew(3, nothing)
    for per_host, measuring in ((1, 1), (2, 2), (5, 3)):
        found = seats(crew, "cpu", per_host)
        assert sum(found.setup(member) is not None for member in crew.members.values()) == measuring


def test_a_compiler_of_another_make_is_not_used_where_it_measures(nvcc: Path, tmp_path: Path) -> None:
    """Its worker runs what the others' made."""
    crew = FakeCrew(2, nothing)
    other = replace(find_nvcc(), identity="nvcc 12.4")
    crew.members["w0"] = replace(crew.members["w0"], nvcc=other, gpus=("GPU-a",))
    crew.members["w1"] = replace(crew.members["w1"], nvcc=find_nvcc(), gpus=("GPU-b",))
    found = seats(crew, "cuda")
    assert [bool(each and each.own_compiler) for each in map(found.setup, crew.members.values())] == [False, True]


def test_when_nobody_can_measure_it_is_said_why() -> None:
    found = seats(FakeCrew(1, nothing), "cpu")
    found.ready["w0"] = Ready({"free_bytes": None}, {"device": "one"})
    found.choose("another")
    assert found.device == "one"
    found.refuse("w0", "it broke")
    with pytest.raises(MachineFailure, match="no worker of the cluster can measure: it broke"):
        found.check()
