"""The state of a GPU, read from the driver's management library: here a stand-in of it, compiled for the test."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batchchol.backends.cuda.measuring import nvml

pynvml = pytest.importorskip("pynvml", reason="the extra 'gpu' or 'test' is not installed: there is no nvidia-ml-py")

# Handles are addresses above 4 GiB, as the real ones: half of one must not pass for the whole.
STAND_IN = """
#include <string.h>
typedef char *device;
static device const gpus[2] = {(device)0x7000000001000, (device)0x7000000002000};
int nvmlInitWithFlags(unsigned flags) { return flags ? 2 : STATUS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *found) {
    if (index > 1) return 2;
    *found = gpus[index];
    return 0;
}
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetUUID(device gpu, char *uuid, unsigned size) {
    strncpy(uuid, gpu == gpus[0] ? "GPU-0" : "GPU-1", size);
    return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, device *found) {
    *found = gpus[1];
    return strcmp(uuid, "GPU-1") ? 6 : 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, device *found) {
    *found = gpus[1];
    return strcmp(bus, "0000:1B:00.0") ? 6 : 0;
}
static int which(device gpu) { return gpu == gpus[0] ? 0 : gpu == gpus[1] ? 1 : 99; }
int nvmlDeviceGetClockInfo(device gpu, int type, unsigned *mhz) { *mhz = 1000 * (which(gpu) + 1) + type; return 0; }
int nvmlDeviceGetTemperature(device gpu, int sensor, unsigned *celsius) { *celsius = 40 + which(gpu); return sensor; }
int nvmlDeviceGetPowerUsage(device gpu, unsigned *milliwatts) { *milliwatts = 123400; return which(gpu) ? 3 : 0; }
int REASONS(device gpu, unsigned long long *bits) { *bits = 0x44; return gpu == 0; }
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Put a stand-in in the driver's place; `reasons` is the name under which it exports the clocks' reasons."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def load(library: Callable[[str], ctypes.CDLL]) -> None:
        monkeypatch.setattr(pynvml, "CDLL", library)
        monkeypatch.setattr(pynvml, "nvmlLib", None)
        pynvml._nvmlGetFunctionPointer_cache.clear()
        nvml._nvml.cache_clear()

    def install(status: int = 0, reasons: str = "nvmlDeviceGetCurrentClocksEventReasons") -> None:
        source, library = tmp_path / "nvml.c", tmp_path / f"libnvml{status}{len(reasons)}.so"
        source.write_text(STAND_IN)
        defined = (f"-DSTATUS={status}", f"-DREASONS={reasons}")
        subprocess.run([compiler, "-shared", "-fPIC", *defined, "-o", library, source], check=True)
        load(lambda name: ctypes.CDLL(str(library)))

    yield install
    pynvml._nvmlGetFunctionPointer_cache.clear()
    nvml._nvml.cache_clear()


def test_every_quantity_is_read_in_its_unit(driver: Callable[..., None]) -> None:
    driver()
    assert nvml.read() == {
        "gpu_clock_mhz": 1001,
        "memory_clock_mhz": 1002,
        "temperature_c": 40,
        "power_w": 123.4,
        "throttle": "power_cap,hardware_thermal",
    }


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        (None, ("GPU-0", "GPU-1")),
        ("1", ("GPU-1",)),
        ("1, 0", ("GPU-1", "GPU-0")),
        ("1,2,0", ("GPU-1",)),
        ("0,-1,1", ("GPU-0",)),
        ("-1", ()),
        ("", ()),
        ("GPU-89, MIG-4,0", ("GPU-89", "MIG-4", "GPU-0")),
        ("0,１", ("GPU-0",)),
        ("0," + "1" * 5000, ("GPU-0",)),
    ],
)
def test_the_gpus_that_are_left_to_a_process_are_known_by_name(
    driver: Callable[..., None], monkeypatch: pytest.MonkeyPatch, chosen: str | None, found: tuple[str, ...]
) -> None:
    driver()
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert nvml.visible() == found


def test_without_a_driver_no_gpu_is_known(driver: Callable[..., None]) -> None:
    driver(status=9)
    assert nvml.visible() == ()


@pytest.mark.parametrize("gpu", ["1", "GPU-1", "0000:1B:00.0"])
def test_the_gpu_that_is_named_is_the_one_read_and_what_it_does_not_report_is_left_out(
    driver: Callable[..., None], gpu: str
) -> None:
    driver()
    state = nvml.read(gpu)
    assert state["temperature_c"] == 41
    assert "power_w" not in state


def test_the_default_is_the_first_visible_gpu(driver: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    driver()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-0")
    assert nvml.read()["temperature_c"] == 41


def test_older_drivers_name_the_reasons_otherwise(driver: Callable[..., None]) -> None:
    driver(reasons="nvmlDeviceGetCurrentClocksThrottleReasons")
    assert nvml.read()["throttle"] == "power_cap,hardware_thermal"
    driver(reasons="nvmlOfAnotherAge")
    assert "throttle" not in nvml.read()


@pytest.mark.parametrize("gpu", ["7", "GPU-7", "0000:7B:00.0"])
def test_an_unknown_gpu_has_no_state(driver: Callable[..., None], gpu: str) -> None:
    driver()
    assert nvml.read(gpu) == {}


@pytest.mark.parametrize("missing", ["libsurely-nowhere.so.1", "pynvml", None])
def test_no_driver_no_package_or_a_driver_that_refuses_is_no_error(
    driver: Callable[..., None], monkeypatch: pytest.MonkeyPatch, missing: str | None
) -> None:
    driver(status=0 if missing else 9)
    if missing == "pynvml":
        monkeypatch.setitem(sys.modules, missing, None)
    elif missing:
        monkeypatch.setattr(pynvml, "CDLL", lambda name: ctypes.CDLL(missing))
    assert nvml.read() == {}
    assert nvml.visible() == ()


@pytest.mark.parametrize(
    ("bits", "names"), [(0, ""), (0x1, "idle"), (0x104, "power_cap,display_clock"), (0x1001, "idle,0x1000")]
)
def test_reasons_have_names(bits: int, names: str) -> None:
    assert nvml.throttle_reasons(bits) == names


def test_a_forked_process_asks_the_driver_anew(driver: Callable[..., None]) -> None:
    driver()
    before = nvml.read()
    assert nvml._nvml(os.getpid()) is nvml._nvml(os.getpid())
    assert nvml._nvml(os.getpid() + 1) is not None
    assert nvml._nvml.cache_info().currsize == 2
    assert nvml.read() == before


@pytest.mark.gpu
def test_this_machines_gpu_has_a_clock_and_a_temperature() -> None:
    state = nvml.read()
    assert 0 < state["gpu_clock_mhz"] < 10_000
    assert 0 < state["temperature_c"] < 120
    assert isinstance(state["throttle"], str)
