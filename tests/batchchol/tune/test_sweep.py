"""A sweep goes on where it was, whatever ended it: nothing is lost, and nothing is measured twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import batchchol
from batchchol.artifacts.cuda_modules import Outcome
from batchchol.artifacts.stats import CompileStats
from batchchol.errors import CompilerNotFound
from batchchol.measure import dataset
from batchchol.measure import process as worker
from batchchol.measure.dataset import DataSet, key_of_row, read
from batchchol.measure.point import Point
from batchchol.measure.process import Measurer
from batchchol.measure.row import Row
from batchchol.progress import Progress
from batchchol.tune import compile
from batchchol.tune import sweep as engine
from batchchol.tune.sweep import Estimate, sweep
from kernelgen import KernelSpec, Problem, ThreadSchedule

from ...sweep_benches import points

pytest.importorskip("pyarrow")

TESTS = Path(__file__).parents[2]
PACKAGE = Path(batchchol.__file__).parents[1]


class Instant:
    """A measurer in this process; `stop` says at which point what is raised."""

    def __init__(self, stop: dict[int, BaseException] | None = None) -> None:
        self.keys: list[str] = []
        self.stop = stop or {}

    def about(self, dtype: str, threads: int) -> dict[str, Any]:
        return {"device": "a fake"}

    def submit(self, point: Point) -> None:
        self.point = point

    def result(self) -> Row:
        self.keys.append(self.point.key)
        if error := self.stop.get(len(self.keys)):
            raise error
        return Row.timed(self.point, (1.0,), about={"device": "a fake"})


def swept(folder: Path, count: int, measurer: Any, **options: Any) -> engine.Summary:
    with DataSet(folder, "a fake") as data:
        return sweep(points(count), measurer, data, **options)


def kept(folder: Path) -> list[str]:
    return sorted(key_of_row(row) for row in read(folder).to_pylist())


def test_every_point_is_measured_once_and_kept(tmp_path: Path) -> None:
    measurer, seen = Instant(), list[Progress]()
    summary = swept(tmp_path, 20, measurer, space="mine", show=seen.append)
    assert (summary.statuses, summary.left) == ({"correct": 20}, 0)
    assert measurer.keys == [point.key for point in points(20)]
    assert kept(tmp_path) == sorted(measurer.keys)
    assert set(read(tmp_path)["space"].to_pylist()) == {"mine"}
    assert [progress.done for progress in seen] == list(range(1, 21))
    assert seen[-1].seconds_left == 0
    again = Instant()
    assert swept(tmp_path, 25, again).statuses == {"correct": 5}
    assert set(measurer.keys) & set(again.keys) == set()
    assert kept(tmp_path) == sorted(point.key for point in points(25))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a crash")], ids=["interrupt", "crash"])
def test_what_was_measured_before_the_end_is_kept(tmp_path: Path, error: BaseException) -> None:
    first = Instant({8: error})
    with pytest.raises(type(error)):
        swept(tmp_path, 20, first)
    assert kept(tmp_path) == sorted(first.keys[:7])
    second = Instant()
    swept(tmp_path, 20, second)
    assert second.keys == [point.key for point in points(20)][7:]


def test_a_sweep_ends_when_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(1000))
    monkeypatch.setattr(engine.time, "monotonic", lambda: float(next(now)))
    with DataSet(tmp_path, "a fake") as data:
        summary = sweep(points(20), Instant(), data, seconds=30.0)
    assert 0 < summary.statuses["correct"] < 20
    assert summary.left == 20 - summary.statuses["correct"]


def test_points_without_a_kernel_are_rows_too(tmp_path: Path) -> None:
    failed = [Row(point, "timeout", "not compiled in 120 s") for point in points(3)]
    with DataSet(tmp_path, "a fake") as data:
        assert sweep(points(10)[3:], Instant(), data, failed=failed).statuses == {"correct": 7, "timeout": 3}
    rows = read(tmp_path).to_pylist()
    assert Counter((row["status"], row["device"]) for row in rows) == {
        ("correct", "a fake"): 7,
        ("timeout", "a fake"): 3,
    }
    with DataSet(tmp_path, "a fake") as data:
        assert sweep(points(10)[3:], Instant(), data, failed=failed).statuses == {}


def test_a_point_costs_the_engine_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A point on a GPU may take 50 ms: none of them waits for the disk, or is asked for more than once."""
    environment, many = {"PYTHONPATH": str(TESTS)}, points(400)
    measurer = Measurer("cpu", bench="sweep_benches:Quick", environment=environment)
    with measurer, DataSet(tmp_path, "a fake") as data:
        about = measurer.about()
        synced = list[int]()
        monkeypatch.setattr(dataset.os, "fdatasync", synced.append)
        monkeypatch.setattr(dataset, "_SYNC_SECONDS", 1e9)
        asked = list[str]()
        real = worker._Process.send

        def send(process: Any, message: tuple[Any, ...]) -> None:
            asked.append(message[0])
            real(process, message)

        monkeypatch.setattr(worker._Process, "send", send)
        assert sweep(many, measurer, data).statuses == {"correct": len(many)}
        assert measurer.about() == about
    assert synced == [], "none waits for the disk, but once a second"
    assert Counter(asked) == {"measure": len(many)}, "and each point is asked for once"


def started(folder: Path, count: int, log: Path) -> subprocess.Popen[bytes]:
    """A sweep with the slow bench in another process."""
    code = "import sys, sweep_benches; sweep_benches.script(sys.argv[1], sys.argv[2], int(sys.argv[3]))"
    path = os.pathsep.join([str(PACKAGE), str(TESTS)])
    return subprocess.Popen(
        [sys.executable, "-c", code, str(TESTS), str(folder), str(count)],
        env={**os.environ, "PYTHONPATH": path, "SWEEP_TEST_LOG": str(log)},
        stderr=subprocess.DEVNULL,
    )


def begun(log: Path) -> list[list[str]]:
    """The worker and the point of everything that was begun."""
    return [line.split(" ", 1) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_sweep_that_ends_midway_is_resumed(tmp_path: Path, how: signal.Signals) -> None:
    folder, log, count = tmp_path / "data", tmp_path / "log", 60
    process = started(folder, count, log)
    wait_for(lambda: len(begun(log)) >= 20)
    process.send_signal(how)
    process.wait(20)
    before = begun(log)
    worker = int(before[0][0])
    wait_for(lambda: not Path(f"/proc/{worker}").exists() or " Z " in Path(f"/proc/{worker}/stat").read_text())
    assert len(before) < count
    # The point in work, and the one whose row was on its way to the disk.
    assert len(before) - 2 <= len(kept(folder)) <= len(before)
    done = set(kept(folder))
    second = started(folder, count, log)
    assert second.wait(60) == 0
    again = [key for _, key in begun(log)[len(before) :]]
    assert not done & set(again), "what was kept is not measured again"
    assert kept(folder) == sorted(point.key for point in points(count))


@pytest.mark.usefixtures("time_is_over_when_a_point_hangs")
def test_a_worker_that_hangs_costs_one_point(tmp_path: Path) -> None:
    log = tmp_path / "log"
    environment = {"PYTHONPATH": str(TESTS), "SWEEP_TEST_LOG": str(log)}

    def kill(progress: Progress) -> None:
        if progress.done == 10:
            # In the midst of the next point.
            os.kill(int(begun(log)[-1][0]), signal.SIGSTOP)
            log.with_suffix(".hangs").touch()

    measurer = Measurer("cpu", bench="sweep_benches:Slow", environment=environment, time_limit=1.0)
    with measurer, DataSet(tmp_path / "data", "a fake") as data:
        summary = sweep(points(30), measurer, data, show=kill)
    assert summary.statuses == {"correct": 29, "timeout": 1}
    assert len(kept(tmp_path / "data")) == 30
    assert len({worker for worker, _ in begun(log)}) == 2


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def point(n: int, threads: int = 32, any_block: bool = True, cache: str = "l1", nb: int = 4) -> Point:
    spec = KernelSpec(Problem(n), "chunked", "col", ThreadSchedule(nb, threads=threads, cache=cache), "cuda")
    return Point(spec, 1000, 32, 1, "queued", any_block)


def test_the_time_left_is_by_what_took_so_long() -> None:
    """Small orders first, as the worst case: what was not measured takes longer, by its work."""
    many = [point(n, nb=nb) for n in (8, 16, 64) for nb in range(1, 9)]
    clock = Estimate(many)
    assert clock.seconds_left() is None
    now = clock._last

    def seconds(n: int) -> float:
        return 0.01 + 1e-9 * n**3 * 1000

    for done, each in enumerate(many):
        now += seconds(each.spec.problem.n)
        clock.add(each, now)
        left = sum(seconds(other.spec.problem.n) for other in many[done + 1 :])
        if each.spec.problem.n > 8:
            assert clock.seconds_left() == pytest.approx(left, rel=0.01, abs=1e-9)
        else:
            assert 8 * seconds(8) <= clock.seconds_left() + 1e-9, "of nothing but small ones it says no less"
    assert clock.seconds_left() == 0


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What was compiled, by call: kernels of n = 20 need many registers, those of n = 9 do not compile."""
    calls: list[list[str]] = []

    def build_all(sources: Any, arch: str, **_: Any) -> list[Outcome]:
        assert arch == "sm_90"
        calls.append([source.entry for source in sources if source.entry.startswith("potrf")])
        return [outcome(source.entry) for source in sources]

    def outcome(entry: str) -> Outcome:
        if "_n9_" in entry:
            return Outcome(entry, "timeout", "too slow")
        stats = CompileStats(1.0, 100, "nvcc", 200 if "_n20_" in entry else 40, 0, 0)
        return Outcome(entry, "built", "", stats)

    monkeypatch.setattr(compile, "build_all", build_all)
    monkeypatch.setattr(compile, "find_nvcc", lambda: None)
    return calls


def test_code_for_blocks_of_any_size_is_compiled_once(compiler: list[list[str]]) -> None:
    many = [point(8, threads, cache=cache) for threads in (32, 64, 512) for cache in ("l1", "shared")]
    built = compile.build(many, "sm_90")
    assert built.points == many
    assert compiler == [[entry for entry in compiler[0] if entry.endswith("_any")]]
    assert len(compiler[0]) == 1


def test_a_block_with_too_many_registers_has_code_of_its_own(compiler: list[list[str]]) -> None:
    built = compile.build([point(20, 32), point(20, 512), point(8, 512), point(20, 256)], "sm_90")
    assert [(each.spec.schedule.threads, each.any_block) for each in built.points] == [
        (32, True),
        (512, False),
        (512, True),
        (256, True),
    ]
    assert [len(call) for call in compiler] == [2, 1]
    assert "_t512_" in compiler[1][0]


def test_a_kernel_that_does_not_compile_costs_its_points(compiler: list[list[str]]) -> None:
    built = compile.build([point(8), point(9), point(9, 64)], "sm_90")
    assert built.points == [point(8)]
    assert [(row.point, row.status, row.message) for row in built.failed] == [
        (point(9), "timeout", "too slow"),
        (point(9, 64), "timeout", "too slow"),
    ]


def test_without_a_compiler_nothing_is_kept_as_if_it_had_failed(
    compiler: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_nvcc() -> None:
        raise CompilerNotFound("no nvcc")

    monkeypatch.setattr(compile, "find_nvcc", find_nvcc)
    with pytest.raises(CompilerNotFound):
        compile.build([point(8), point(9)], "sm_90")
    assert compile.build([point(8)], "sm_90").points == [point(8)], "everything is there: nothing is to be compiled"


def test_cpu_kernels_are_compiled_ahead_too() -> None:
    from batchchol.backends import get_backend

    target = get_backend("cpu").target
    spec = KernelSpec(Problem(2), "chunked", "col", ThreadSchedule(1), target)
    seen = list[Progress]()
    many = [Point(spec, batch, 32) for batch in (10, 20)]
    assert compile.build(many, None, show=seen.append).points == many
    assert (seen[-1].done, seen[-1].total) == (1, 1)
    assert compile.build([], None) == compile.Built([], [])
