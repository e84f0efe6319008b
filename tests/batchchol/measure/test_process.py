"""The process that runs kernels: whatever ends it costs one point, and it ends with its parent."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from batchchol.measure import process as worker
from batchchol.measure.bench import Settings
from batchchol.measure.point import Point
from batchchol.measure.process import MachineFailure, Measurer
from kernelgen import KernelSpec, Problem, ThreadSchedule

TESTS = Path(__file__).parents[2]


def point(nb: int, n: int = 16) -> Point:
    return Point(KernelSpec(Problem(n), "chunked", "col", ThreadSchedule(nb), "avx2"), 1000, 16)


@pytest.fixture
def measurer(tmp_path: Path) -> Iterator[Callable[..., Measurer]]:
    """measurer(bench, ...): one whose process has that bench of tests/sweep_benches.py."""
    made = []

    def make(bench: str, **options: Any) -> Measurer:
        environment = {"PYTHONPATH": str(TESTS), "SWEEP_TEST_LOG": str(tmp_path / "log")}
        made.append(Measurer("cpu", bench=f"sweep_benches:{bench}", environment=environment, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def workers(tmp_path: Path) -> list[int]:
    """The process that began each point."""
    return [int(line.split()[0]) for line in (tmp_path / "log").read_text().splitlines()]


@pytest.mark.usefixtures("time_is_over_when_a_point_hangs")
def test_whatever_happens_costs_one_point(measurer: Callable[..., Measurer], tmp_path: Path) -> None:
    planted = measurer("Planted", time_limit=0.5)
    rows = {nb: planted.measure(point(nb)) for nb in (1, 2, 9, 3, 10, 4, 11, 5, 12, 6, 13, 7, 14)}
    assert [row.status for nb, row in rows.items() if nb in (1, 9, 10, 11, 12, 13, 14)] == ["correct"] * 7
    assert [(nb, rows[nb].status) for nb in (2, 3, 4, 5, 6, 7)] == [
        (2, "runtime"),
        (3, "timeout"),
        (4, "runtime"),
        (5, "runtime"),
        (6, "runtime"),
        (7, "wrong"),
    ]
    assert "was killed by SIGSEGV" in rows[2].message
    assert rows[3].message == "not done after 0.5 s: its process was ended"
    assert "was killed by SIGKILL" in rows[4].message
    assert "exit status 1" in rows[5].message
    assert "what nobody expected" in rows[5].message
    assert "illegal memory access" in rows[6].message
    assert len(set(workers(tmp_path))) == 6, "a process of its own after each of the five that ended, and no more"
    for process in set(workers(tmp_path)[:-1]) - {workers(tmp_path)[-1]}:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_rows_say_what_was_measured_where(measurer: Callable[..., Measurer]) -> None:
    row = measurer("Quick", settings=Settings(samples=7)).measure(point(1))
    values = row.values()
    assert (values["samples"], values["device"], values["commit"]) == (7, "a fake", "0123")
    assert values["copy_bytes_per_second"] == 1e9
    lost = measurer("Planted").measure(point(4)).values()
    assert (lost["status"], lost["device"], lost["median_seconds"]) == ("runtime", "a fake", None)


@pytest.mark.parametrize(
    ("bench", "reason"),
    [
        ("Absent", "no GPU"),
        ("Broken", "exit status 5"),
        ("Nothing", "has no attribute 'Nothing'"),
    ],
)
def test_no_device_is_no_status(measurer: Callable[..., Measurer], bench: str, reason: str) -> None:
    with pytest.raises(MachineFailure, match=reason):
        measurer(bench).measure(point(1))


def test_what_is_no_fault_of_a_point_stops_the_sweep(measurer: Callable[..., Measurer]) -> None:
    with pytest.raises(MachineFailure, match="cache folder"):
        measurer("Planted").measure(point(8))


def test_a_machine_on_which_no_point_survives_is_given_up(
    measurer: Callable[..., Measurer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "MOST_LOSSES", 3)
    doomed = measurer("Doomed")
    assert [doomed.measure(point(nb)).status for nb in (1, 2)] == ["runtime"] * 2
    with pytest.raises(MachineFailure, match="3 points in a row ended their process"):
        doomed.measure(point(3))


def test_a_worker_that_is_killed_between_points_costs_none(measurer: Callable[..., Measurer], tmp_path: Path) -> None:
    quick = measurer("Quick")
    assert quick.measure(point(1)).status == "correct"
    os.kill(workers(tmp_path)[0], signal.SIGKILL)
    wait_for(lambda: quick._process is not None and quick._process.ended)
    assert [quick.measure(point(nb)).status for nb in (2, 3)] == ["correct"] * 2
    assert len(set(workers(tmp_path))) == 2


@pytest.mark.parametrize("bench", ["Slow", "Planted"])
def test_a_worker_ends_with_its_parent(tmp_path: Path, bench: str) -> None:
    """Also in the midst of a point that never ends."""
    code = (
        "from batchchol.measure.process import Measurer; import pickle, sys\n"
        f"measurer = Measurer('cpu', bench='sweep_benches:{bench}', environment={{'PYTHONPATH': {str(TESTS)!r}}})\n"
        "while True: measurer.measure(pickle.loads(sys.argv[1].encode('latin1')))\n"
    )
    log = tmp_path / "log"
    package = Path(worker.__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, "-c", code, pickle.dumps(point(3), protocol=0).decode("latin1")],
        env={**os.environ, "SWEEP_TEST_LOG": str(log), "PYTHONPATH": str(package)},
    )
    try:
        wait_for(lambda: log.exists() and log.read_text().endswith("\n"))
        process = workers(tmp_path)[0]
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: not Path(f"/proc/{process}").exists() or " Z " in Path(f"/proc/{process}/stat").read_text())


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
