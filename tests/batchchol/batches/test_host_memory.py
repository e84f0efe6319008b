"""Host memory: what is free, and arrays that refuse to be larger than that."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from batchchol import BatchcholError, Layout, cholesky, default_spec, get_backend
from batchchol.batches import host_memory
from batchchol.batches.host_memory import aligned_empty, free_bytes, total_bytes
from batchchol.errors import OutOfMemory

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """system(file, text): a machine that has this file; at first it has none."""
    monkeypatch.setattr(host_memory, "Path", lambda path: tmp_path / path.lstrip("/"))

    def write(file: str, text: str) -> None:
        path = tmp_path / file.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return write


@given(
    shape=st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_arrays_begin_on_a_cache_line(shape: tuple[int, ...], dtype: str) -> None:
    array = aligned_empty(shape, dtype, "a test")
    assert (array.shape, array.dtype) == (shape, dtype)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.size == 0 or array.ctypes.data % 64 == 0


def test_array_that_does_not_fit_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 2**27)
    assert aligned_empty((2**25,), "float32", "what just fits").nbytes == 2**27
    monkeypatch.setattr(np, "empty", lambda *_, **__: pytest.fail("it was allocated"))
    with pytest.raises(OutOfMemory) as caught:
        aligned_empty((2**25 + 1,), "float32", "a table of numbers")
    assert str(caught.value).startswith(
        "a table of numbers needs 134,217,732 bytes and 134,217,728 bytes are free: use a smaller batch"
    )
    assert (caught.value.needed, caught.value.free) == (2**27 + 4, 2**27)
    assert isinstance(caught.value, MemoryError)
    assert isinstance(caught.value, BatchcholError)


def test_size_beyond_64_bits_is_refused() -> None:
    with pytest.raises(OutOfMemory) as caught:
        aligned_empty((2**40, 2**24, 4), "float32", "a wish")
    assert caught.value.needed == 2**68


def test_refusal_of_the_system_is_reported_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "empty", refuse)
    with pytest.raises(OutOfMemory, match="a test needs 40 bytes"):
        aligned_empty((10,), "float32", "a test")


@pytest.mark.parametrize("layout", ["canonical", "chunked"])
def test_factorization_that_does_not_fit_says_so(
    monkeypatch: pytest.MonkeyPatch, spd: Callable[..., NDArray[np.floating]], layout: str
) -> None:
    order = "row" if layout == Layout.canonical().kind else "col"
    spec = default_spec(5, target=get_backend().target, layout=layout, order=order)
    a = np.broadcast_to(spd(5), (2**20, 5, 5))
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 10**8)
    with pytest.raises(OutOfMemory, match=r"a batch of shape .*free|a contiguous copy of a .*free") as caught:
        cholesky(a, spec=spec)
    assert caught.value.needed == 4 * 25 * 2**20


def test_free_is_what_the_system_has_available(system: Callable[[str, str], None]) -> None:
    assert free_bytes() == total_bytes() > 0
    system("/proc/meminfo", "MemTotal:  9 kB\nMemFree: 4 kB\nMemAvailable:    7 kB\n")
    assert free_bytes() == 7 * 1024


def test_free_is_no_more_than_the_control_group_allows(system: Callable[[str, str], None]) -> None:
    system("/sys/fs/cgroup/memory.max", "1000000\n")
    system("/sys/fs/cgroup/memory.current", "400000\n")
    system("/sys/fs/cgroup/memory.stat", "anon 300000\n")
    assert free_bytes() == 600_000
    system("/proc/meminfo", "MemAvailable:  100 kB\n")
    assert free_bytes() == 102_400
    system("/sys/fs/cgroup/memory.current", "1000001\n")
    assert free_bytes() == 0
    system("/sys/fs/cgroup/memory.stat", "anon 300000\ninactive_file 50000\n")
    assert free_bytes() == 49_999, "pages of files that nobody uses can be had"
    system("/sys/fs/cgroup/memory.max", "max\n")
    assert free_bytes() == 102_400


def limit_group(system: Callable[[str, str], None], group: str, limit: str, used: int) -> None:
    system(f"/sys/fs/cgroup{group}/memory.max", limit)
    system(f"/sys/fs/cgroup{group}/memory.current", str(used))
    system(f"/sys/fs/cgroup{group}/memory.stat", "anon 300000\n")


def test_every_group_that_the_process_is_in_counts(system: Callable[[str, str], None]) -> None:
    system("/proc/self/cgroup", "0::/user.slice/job.scope\n")
    limit_group(system, "/user.slice/job.scope", "max", 10_000)
    limit_group(system, "/user.slice", "500000", 100_000)
    assert free_bytes() == 400_000
    limit_group(system, "/user.slice/job.scope", "200000", 50_000)
    assert free_bytes() == 150_000
    limit_group(system, "/other.slice", "1", 1)
    assert free_bytes() == 150_000
    limit_group(system, "", "120000", 0)
    assert free_bytes() == 120_000, "a container's own group is the root"


def test_groups_of_the_first_version_count(system: Callable[[str, str], None]) -> None:
    system("/proc/self/cgroup", "4:cpu,cpuacct:/docker/a\n3:memory:/docker/a\n0::/docker/a\n")
    folder = "/sys/fs/cgroup/memory/docker/a"
    system(f"{folder}/memory.limit_in_bytes", "900000\n")
    system(f"{folder}/memory.usage_in_bytes", "300000\n")
    system(f"{folder}/memory.stat", "inactive_file 1\ntotal_inactive_file 200000\n")
    assert free_bytes() == 800_000


@pytest.mark.parametrize("text", ["", "nonsense", "0:", "0::/a:b/../c\n"])
def test_a_list_of_groups_that_means_nothing(system: Callable[[str, str], None], text: str) -> None:
    system("/proc/self/cgroup", text)
    assert free_bytes() == total_bytes()


@pytest.mark.parametrize(("limit", "used"), [("RLIMIT_AS", "VmSize"), ("RLIMIT_DATA", "VmData")])
def test_free_is_no_more_than_the_limits_of_the_process(
    system: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, limit: str, used: str
) -> None:
    system("/proc/self/status", "Name:\tx\nVmSize:\t 70 kB\nVmData:\t 70 kB\n")
    allowed = {getattr(resource, limit): (100 * 1024, resource.RLIM_INFINITY)}
    monkeypatch.setattr(resource, "getrlimit", lambda number: allowed.get(number, (resource.RLIM_INFINITY,) * 2))
    assert free_bytes() == 30 * 1024
    system("/proc/self/status", f"{used}:\t 170 kB\nVmSize:\t 170 kB\nVmData:\t 170 kB\n")
    assert free_bytes() == 0


LIMITED = """
import resource, sys
from batchchol.errors import OutOfMemory
from batchchol.batches.host_memory import aligned_empty, free_bytes
resource.setrlimit(getattr(resource, sys.argv[1]), (4 << 30, 4 << 30))
free = free_bytes()
assert aligned_empty((free - (16 << 20),), "uint8", "what fits").nbytes
try:
    aligned_empty((free + (16 << 20),), "uint8", "a batch")
except OutOfMemory as error:
    # What else the process does may take or free some.
    print(abs(error.free - free_bytes()) < 64 << 20, error)
"""


@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_what_does_not_fit_into_a_limit_is_refused(run_python: Run, limit: str) -> None:
    done = run_python("-c", LIMITED, limit)
    assert done.stdout.startswith("True a batch needs"), done.stderr


def test_free_on_this_machine() -> None:
    assert 0 < free_bytes() <= total_bytes()
