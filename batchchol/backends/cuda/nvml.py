"""Clocks, temperature, power and throttling of a GPU, as the driver's management library (NVML) reports them.

Called through ctypes: the library comes with every driver, whereas its Python package is one more thing to install,
and two starts of `nvidia-smi` would take longer than most measurements.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

LIBRARY = "libnvidia-ml.so.1"

REASONS: Mapping[int, str] = MappingProxyType(
    {
        0x001: "idle",
        0x002: "application_clocks",
        0x004: "power_cap",
        0x008: "hardware_slowdown",
        0x010: "sync_boost",
        0x020: "software_thermal",
        0x040: "hardware_thermal",
        0x080: "power_brake",
        0x100: "display_clock",
    }
)
"""NVML's bits: why the clocks are where they are."""

# What NVML calls the SM's clock, the memory's, and the sensor in the GPU.
_SM, _MEMORY, _GPU_SENSOR = 1, 2, 0
_UUID_BYTES = 96
_INDEX = re.compile(r"[0-9]{1,9}")
# Newer drivers speak of event reasons, older ones of throttle reasons: the bits are the same.
_REASON_FUNCTIONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")


def read(gpu: str | None = None) -> dict[str, str | int | float]:
    """The state of a GPU now; empty where NVML is missing or does not know that GPU.

    Parameters
    ----------
    gpu : str, optional
        Its PCI bus id ("0000:1B:00.0", as PyCUDA writes it), UUID ("GPU-...") or index in the order of the bus; by
        default the first that CUDA_VISIBLE_DEVICES names, else index 0.

    Returns
    -------
    dict
        `gpu_clock_mhz`, `memory_clock_mhz`, `temperature_c`, `power_w`, and `throttle`: the names of the `REASONS`
        that apply, joined by commas. What this GPU does not report is left out.
    """
    nvml = _nvml(os.getpid())
    device = nvml and _device(nvml, gpu or os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0")
    if not nvml or not device:
        return {}
    milliwatts = _ask(nvml, "nvmlDeviceGetPowerUsage", device)
    masks = (_ask(nvml, function, device, answer=ctypes.c_ulonglong) for function in _REASON_FUNCTIONS)
    state = {
        "gpu_clock_mhz": _ask(nvml, "nvmlDeviceGetClockInfo", device, _SM),
        "memory_clock_mhz": _ask(nvml, "nvmlDeviceGetClockInfo", device, _MEMORY),
        "temperature_c": _ask(nvml, "nvmlDeviceGetTemperature", device, _GPU_SENSOR),
        "power_w": None if milliwatts is None else milliwatts / 1000,
        "throttle": next((throttle_reasons(mask) for mask in masks if mask is not None), None),
    }
    return {name: value for name, value in state.items() if value is not None}


def visible() -> tuple[str, ...]:
    """The UUIDs of the GPUs that CUDA_VISIBLE_DEVICES leaves to this process; empty where NVML is missing.

    Initialises no CUDA. Numbers are those of NVML, in the order of the bus, which is CUDA's too where all GPUs of a
    machine are alike.
    """
    chosen, nvml = os.environ.get("CUDA_VISIBLE_DEVICES"), _nvml(os.getpid())
    count = (nvml and _ask(nvml, "nvmlDeviceGetCount_v2")) or 0
    parts = map(str, range(count)) if chosen is None else map(str.strip, chosen.split(","))
    found: list[str] = []
    for part in parts:
        known = _uuid(nvml, part) if nvml and _INDEX.fullmatch(part) and int(part) < count else None
        # UUIDs of GPUs, or of the parts of one, are what they are; nothing after what is no GPU counts.
        if not known and "-" not in part[1:]:
            break
        found.append(known or part)
    return tuple(dict.fromkeys(found))


def throttle_reasons(bits: int) -> str:
    """The names of the reasons in a bit mask, joined by commas; bits without a name in hexadecimal."""
    names = [name for bit, name in REASONS.items() if bits & bit]
    unnamed = bits & ~sum(REASONS)
    return ",".join(names + [hex(unnamed)] * bool(unnamed))


@cache
def _nvml(process: int) -> ctypes.CDLL | None:
    """The library, initialised for this process and the rest of its life; None if it cannot be."""
    try:
        nvml = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    return nvml if _call(nvml, "nvmlInit_v2") else None


def _device(nvml: ctypes.CDLL, gpu: str) -> ctypes.c_void_p | None:
    if _INDEX.fullmatch(gpu):
        handle = _ask(nvml, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(int(gpu)), answer=ctypes.c_void_p)
    else:
        by = "nvmlDeviceGetHandleByPciBusId_v2" if ":" in gpu else "nvmlDeviceGetHandleByUUID"
        handle = _ask(nvml, by, ctypes.c_char_p(os.fsencode(gpu)), answer=ctypes.c_void_p)
    # As a bare integer, ctypes would pass the lower half of it.
    return ctypes.c_void_p(handle) if handle else None


def _uuid(nvml: ctypes.CDLL, index: str) -> str | None:
    device, text = _device(nvml, index), ctypes.create_string_buffer(_UUID_BYTES)
    known = device and _call(nvml, "nvmlDeviceGetUUID", device, text, ctypes.c_uint(_UUID_BYTES))
    return text.value.decode() if known else None


def _ask(nvml: ctypes.CDLL, function: str, *arguments: Any, answer: Any = ctypes.c_uint) -> int | None:
    """What `function` writes through its last parameter; None if it fails or the driver lacks it."""
    result = answer()
    return result.value if _call(nvml, function, *arguments, ctypes.byref(result)) else None


def _call(nvml: ctypes.CDLL, function: str, *arguments: Any) -> bool:
    called = getattr(nvml, function, None)
    return called is not None and called(*arguments) == 0
