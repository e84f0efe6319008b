"""Clocks, temperature, power and throttling of a GPU, as the driver's management library (NVML) reports them.

Asked through nvidia-ml-py, which comes with batchchol[gpu]; where that or a driver is missing, nothing is known. Two
starts of `nvidia-smi` would take longer than most measurements.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from types import MappingProxyType
from typing import Any

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
    if not device:
        return {}
    milliwatts = _ask(nvml, "nvmlDeviceGetPowerUsage", device)
    masks = (_ask(nvml, function, device) for function in _REASON_FUNCTIONS)
    state = {
        "gpu_clock_mhz": _ask(nvml, "nvmlDeviceGetClockInfo", device, nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": _ask(nvml, "nvmlDeviceGetClockInfo", device, nvml.NVML_CLOCK_MEM),
        "temperature_c": _ask(nvml, "nvmlDeviceGetTemperature", device, nvml.NVML_TEMPERATURE_GPU),
        "power_w": None if milliwatts is None else milliwatts / 1000,
        "throttle": next((throttle_reasons(mask) for mask in masks if mask is not None), None),
    }
    return {name: value for name, value in state.items() if value is not None}


def joules(gpu: str | None = None) -> float | None:
    """What a GPU has used since its driver was loaded, in steps of about 0.1 s; None if it does not count.

    `gpu` is as `read` takes it.
    """
    nvml = _nvml(os.getpid())
    device = nvml and _device(nvml, gpu or "0")
    millijoules = _ask(nvml, "nvmlDeviceGetTotalEnergyConsumption", device) if device else None
    return None if millijoules is None else millijoules / 1000


def visible() -> tuple[str, ...]:
    """The UUIDs of the GPUs that CUDA_VISIBLE_DEVICES leaves to this process; empty where NVML is missing.

    Initialises no CUDA. Numbers are those of NVML, in the order of the bus, which is CUDA's too where all GPUs of a
    machine are alike.
    """
    chosen, nvml = os.environ.get("CUDA_VISIBLE_DEVICES"), _nvml(os.getpid())
    count = (nvml and _ask(nvml, "nvmlDeviceGetCount")) or 0
    parts = map(str, range(count)) if chosen is None else map(str.strip, chosen.split(","))
    found: list[str] = []
    for part in parts:
        numbered = _INDEX.fullmatch(part) and int(part) < count
        known = numbered and _ask(nvml, "nvmlDeviceGetUUID", _device(nvml, part))
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
def _nvml(process: int) -> Any:
    """NVML's functions, initialised for this process and the rest of its life; None if they cannot be."""
    with suppress(ImportError):
        import pynvml

        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            return pynvml
    return None


def _device(nvml: Any, gpu: str) -> Any:
    """The handle of a GPU; None if there is no such GPU."""
    if _INDEX.fullmatch(gpu):
        return _ask(nvml, "nvmlDeviceGetHandleByIndex", int(gpu))
    return _ask(nvml, "nvmlDeviceGetHandleByPciBusId" if ":" in gpu else "nvmlDeviceGetHandleByUUID", gpu)


def _ask(nvml: Any, function: str, *arguments: Any) -> Any:
    """What a function of NVML answers; None if it fails, or the driver or nvidia-ml-py lacks it."""
    # A ValueError: text that cannot be encoded.
    with suppress(nvml.NVMLError, AttributeError, ValueError):
        return getattr(nvml, function)(*arguments)
    return None
