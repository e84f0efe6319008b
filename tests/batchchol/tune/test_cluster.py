"""A sweep on a cluster loses nothing and does nothing twice, whichever worker is lost."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed")

from batchchol import cli
from batchchol.errors import BatchcholError
from batchchol.measure import process as worker
from batchchol.measure.bench import Settings
from batchchol.measure.dataset import DataSet, key_of_row, read_rows
from batchchol.measure.point import Point
from batchchol.progress import Progress
from batchchol.tune import compile
from batchchol.tune.cluster import remote, workers
from batchchol.tune.cluster.compile import ClusterCompilers
from batchchol.tune.cluster.measure import Seats
from batchchol.tune.cluster.remote import Setup
from batchchol.tune.cluster.workers import Crew, connect
from batchchol.tune.sweep import Summary
from kernelgen import KernelSpec, Problem, ThreadSchedule

from ...fakes.nvcc import compiled, write_fake_nvcc
from ...sweep_benches import LOG, points

TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where benches say which points they began."""
    return tmp_path_factory.mktemp("cluster") / "log"


@pytest.fixture(scope="module")
def nvcc(log: Path) -> Path:
    return write_fake_nvcc(log.with_name("nvcc"))


@pytest.fixture(scope="module")
def crew(log: Path, nvcc: Path) -> Iterator[Crew]:
    """A local cluster of two workers that can run the benches of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS))
        patch.setenv(LOG, str(log))
        patch.setenv("BATCHCHOL_NVCC", str(nvcc))
        patch.setattr(workers, "_LOOK_SECONDS", 0.0)
        with connect("local", backend="cpu", workers=2, threads=2, say=[].append) as crew:
            yield crew


@pytest.fixture
def begun(log: Path, crew: Crew) -> Callable[[], list[tuple[int, str]]]:
    """The process and the key of each point that was begun."""
    log.write_text("")
    crew._client.wait_for_workers(2)
    crew.look()

    def read() -> list[tuple[int, str]]:
        lines = [line.split(" ", 1) for line in log.read_text().splitlines()]
        return [(int(process), key) for process, key in lines]

    return read


class Sweeping:
    """Seats with a bench, and sweeps there."""

    def __init__(self, crew: Crew, bench: str, backend: str = "cpu") -> None:
        self.crew = crew
        self.compilers = ClusterCompilers(crew)
        setup = Setup(backend, Settings(samples=3), 5.0, f"sweep_benches:{bench}")
        self.seats = Seats(crew, setup, self.compilers, per_host=2)
        self.seats.open()

    def sweep(self, folder: Path, many: list[Point], device: str | None = None, **options: Any) -> Summary:
        self.seats.choose(device)
        with DataSet(folder, str(self.seats.device)) as data:
            return self.seats.sweep(many, data, **options)


def said(crew: Crew) -> list[str]:
    return list(crew.say.__self__)  # type: ignore[attr-defined]


def kept(folder: Path) -> list[str]:
    return sorted(key_of_row(row) for row in read_rows(folder))


def keys(many: list[Point]) -> list[str]:
    return sorted(point.key for point in many)


def pids(crew: Crew) -> list[int]:
    return list(crew._client.run(os.getpid).values())


def test_every_point_is_measured_once_on_either_worker(
    crew: Crew, tmp_path: Path, begun: Callable[[], list[tuple[int, str]]]
) -> None:
    seen: list[Progress] = []
    summary = Sweeping(crew, "Slow").sweep(tmp_path, points(96), space="mine", show=seen.append)
    assert (summary.statuses, summary.left) == ({"correct": 96}, 0)
    assert kept(tmp_path) == keys(points(96))
    assert sorted(key for _, key in begun()) == keys(points(96))
    shares = Counter(process for process, _ in begun())
    assert len(shares) == 2
    assert min(shares.values()) > 24, shares
    assert (seen[-1].done, seen[-1].total, seen[-1].seconds_left) == (96, 96, 0)
    rows = read_rows(tmp_path)
    assert {(row["space"], row["device"], row["copy_bytes_per_second"]) for row in rows} == {("mine", "a fake", 1e9)}


@pytest.mark.parametrize("count", [1, 2])
def test_workers_that_are_killed_lose_nothing(
    count: int, crew: Crew, tmp_path: Path, begun: Callable[[], list[tuple[int, str]]]
) -> None:
    """One, or all that there are."""
    killed: list[int] = []

    def kill(progress: Progress) -> None:
        if progress.done >= 20 and not killed:
            killed.extend(pids(crew)[:count])
            for process in killed:
                os.kill(process, signal.SIGKILL)

    summary = Sweeping(crew, "Slow").sweep(tmp_path, points(96), show=kill)
    assert (summary.statuses, summary.left) == ({"correct": 96}, 0)
    assert kept(tmp_path) == keys(points(96))
    # No more is measured again than what those workers had been given.
    assert len(begun()) - 96 <= count * 2 * 16
    assert "was lost" in said(crew)[-1]


def test_a_point_that_takes_its_worker_with_it_is_found(
    crew: Crew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles of 3 do; one loss alone is enough here, so that there are fewer workers to start again."""
    monkeypatch.setattr(crew._client.cluster.scheduler, "allowed_failures", 0)
    many = points(20)[5:]
    summary = Sweeping(crew, "Fatal").sweep(tmp_path, many)
    assert summary.statuses == {"correct": 14, "runtime": 1}
    assert kept(tmp_path) == keys(many)
    (lost,) = (row for row in read_rows(tmp_path) if row["status"] == "runtime")
    assert (lost["nb"], lost["device"]) == (3, "a fake")
    assert "1 workers were lost while they did nothing else" in lost["message"]


def test_an_interrupt_keeps_what_has_arrived(
    crew: Crew, tmp_path: Path, begun: Callable[[], list[tuple[int, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without pyarrow too."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    def interrupt(progress: Progress) -> None:
        if progress.done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Sweeping(crew, "Slow").sweep(tmp_path, points(60), show=interrupt)
    first = kept(tmp_path)
    assert 20 <= len(first) < 60
    time.sleep(1.0)
    before = len(begun())
    assert Sweeping(crew, "Slow").sweep(tmp_path, points(60)).statuses == {"correct": 60 - len(first)}
    assert kept(tmp_path) == keys(points(60))
    assert not {key for _, key in begun()[before:]} & set(first)


def test_workers_of_another_device_are_refused(
    crew: Crew, tmp_path: Path, begun: Callable[[], list[tuple[int, str]]]
) -> None:
    (tmp_path / "_sweep.json").write_text('{"schema": 1, "device": "a fake"}')
    sweeping = Sweeping(crew, "Uneven")
    assert {ready.about["device"] for ready in sweeping.seats.ready.values()} == {"a fake", "another"}
    assert sweeping.sweep(tmp_path, points(20), device="a fake").statuses == {"correct": 20}
    assert len({process for process, _ in begun()}) == 1
    assert "it measures 'another', and the data set is of 'a fake': give it another folder" in said(crew)[-1]


def test_every_kernel_is_compiled_once_and_found_by_whoever_measures(
    crew: Crew, nvcc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client and each worker have caches of their own."""
    crew._client.wait_for_workers(2)
    crew.look()
    crew._client.run(remote.leave, crew.name)
    for number, address in enumerate(crew.members):
        chosen = f"import os; os.environ['BATCHCHOL_CACHE'] = {str(tmp_path / f'worker{number}')!r}"
        crew._client.run(exec, chosen, workers=[address])
    monkeypatch.setenv("BATCHCHOL_CACHE", str(tmp_path / "client"))
    monkeypatch.setenv("BATCHCHOL_NVCC", str(nvcc))
    crew.members.clear()
    crew.look()
    assert not any(member.shares_cache for member in crew.members.values())
    schedules = [ThreadSchedule(nb, threads=32) for nb in (2, 3, 4)]
    specs = [KernelSpec(Problem(n), "chunked", "col", each, "cuda") for n in (4, 5) for each in schedules]
    many = [Point(spec, batch, 32, 1, "queued") for spec in specs for batch in (1000, 2000)]
    sweeping = Sweeping(crew, "Finder", "cuda")
    seen: list[Progress] = []
    built = compile.build(many, "sm_90", show=seen.append, compilers=sweeping.compilers)
    assert (built.points, built.failed) == (many, [])
    entries = Counter(entry for module in compiled(nvcc) for entry in module)
    assert set(entries.values()) == {1}
    assert len([entry for entry in entries if entry.startswith("potrf")]) == len(specs)
    assert (seen[-1].done, seen[-1].failed) == (len(entries), 0)
    assert sweeping.sweep(tmp_path / "data", built.points).statuses == {"correct": len(many)}
    # Another client, whose cache has nothing yet, gets them from the workers.
    monkeypatch.setenv("BATCHCHOL_CACHE", str(tmp_path / "another"))
    assert compile.build(many, "sm_90", compilers=ClusterCompilers(crew)).points == many
    assert Counter(entry for module in compiled(nvcc) for entry in module) == entries


def test_a_scheduler_is_used_by_its_address(
    crew: Crew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From end to end, with real kernels; and gone on with without the cluster."""
    monkeypatch.setattr(worker, "BENCH", "sweep_benches:Quick")
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    space, data = tmp_path / "tiny.toml", tmp_path / "data"
    space.write_text("[[kernels]]\nn = [1, 2]\nnb = [1, 2]\nbatch = 500\n")
    command = ["tune", "--space", str(space), "--data", str(data)]
    assert cli.main([*command, "--n", "2", "--cluster", crew._client.scheduler.address]) == 0
    told = capsys.readouterr()
    assert "measured: 2 correct; 0 points left" in told.out
    assert "cluster: workers: 2, of which 1 measure (a fake)" in told.err
    assert cli.main(command) == 0
    assert "measured: 1 correct; 0 points left" in capsys.readouterr().out


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nowhere"])
def test_what_is_no_cluster_is_said(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_CONNECT_SECONDS", 0.3)
    message = f"got {address!r}, expected 'local' or the address of a scheduler"
    with pytest.raises(BatchcholError, match=re.escape(message)), connect(address, backend="cpu"):
        pass


def test_without_dask_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    for module in [name for name in sys.modules if name.startswith("batchchol.tune.cluster")]:
        monkeypatch.delitem(sys.modules, module)
    space = tmp_path / "tiny.toml"
    space.write_text("[[kernels]]\nn = 1\nnb = 1\nbatch = 500\n")
    assert cli.main(["tune", "--space", str(space), "--data", str(tmp_path / "data"), "--cluster", "local"]) == 2
    assert "pip install -e '.[cluster]'" in capsys.readouterr().err
