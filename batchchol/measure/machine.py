"""The entry of this machine in asv's machine file, under a name that survives reboots and new containers."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchchol import backends
from batchchol.errors import BackendUnavailable, DataFileError
from batchchol.files import read_file, replace_file

FORMAT_VERSION = 1
"""The version of the machine file that asv 0.6 reads and writes."""

GIB = 2**30
FILLER_WORDS = re.compile(r"\((r|tm)\)|\bcpu\b|\bprocessor\b|@.*$", re.IGNORECASE)


def find_devices() -> tuple[dict[str, str | int], list[str]]:
    """What all backends that can be used here report, as one device, and why the others cannot be used.

    One machine has one name, whichever backend is being measured.

    Raises
    ------
    BackendUnavailable
        If none can be used.
    """
    device: dict[str, str | int] = {}
    missing = []
    for found in reversed(backends.survey()):
        try:
            device |= backends.get_backend(found.name).device()
        except BackendUnavailable as error:
            missing.append(str(error))
    if not device:
        raise BackendUnavailable("; ".join(missing))
    return device, missing


def describe(device: Mapping[str, str | int], name: str | None = None) -> dict[str, str]:
    """The entry for the `device` that a backend reports, called `name` or else `stable_name(device)`.

    It has what asv stores about a machine (the first six fields, all text), and what decides the speed of a kernel.
    The clocks are the GPU's highest; those of a measurement are stored with its samples.
    """
    return {
        "machine": name or stable_name(device),
        "os": _operating_system(),
        "arch": platform.machine(),
        "cpu": str(device["cpu"]),
        "num_cpu": str(device["cores"]),
        "ram": f"{round(int(device['memory_bytes']) / GIB)} GiB",
        "simd": str(device["simd"]),
        **{name: str(device.get(name, "")) for name in ("gpu", "driver", "toolkit")},
        "gpu_clock": _megahertz(device.get("gpu_clock_mhz")),
        "memory_clock": _megahertz(device.get("memory_clock_mhz")),
    }


def stable_name(device: Mapping[str, str | int]) -> str:
    """A name made of the hardware alone, since host names change: CPU model, cores, SIMD set and GPU.

    Machines of the same make share it, and so their results: pass a name where that is not wanted.
    """
    model = FILLER_WORDS.sub(" ", str(device["cpu"]))
    parts = [model, f"{device['cores']} cores", str(device["simd"]), str(device.get("gpu", ""))]
    return re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")


def machine_file() -> Path:
    """The file that asv reads: .asv-machine.json in the home folder."""
    return Path(os.path.expanduser("~/.asv-machine.json"))


def save(machine: Mapping[str, str], path: Path) -> bool:
    """Put `machine` into the file at `path`, keeping every other entry; False if it was there already.

    Raises
    ------
    DataFileError
        If the file exists and is not a machine file of the format that asv 0.6 reads, or cannot be written.
    """
    entries = _read(path)
    if entries.get(machine["machine"]) == machine:
        return False
    content = {**entries, machine["machine"]: machine, "version": FORMAT_VERSION}
    # As asv writes it, sorted and indented by four.
    replace_file(path, (json.dumps(content, indent=4, sort_keys=True) + "\n").encode())
    return True


def _megahertz(clock: str | int | None) -> str:
    return "" if clock is None else f"{clock} MHz"


def _operating_system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return f"{platform.system()} {platform.release()}"


def _read(path: Path) -> dict[str, Any]:
    try:
        entries = json.loads(read_file(path))
    except FileNotFoundError:
        return {}
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise DataFileError(path, place, f"{error.msg}: repair or remove the file") from error
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or f"{error}: repair or remove the file"
        raise DataFileError(path, "reading", reason) from error
    if not isinstance(entries, dict) or entries.get("version") != FORMAT_VERSION:
        raise DataFileError(
            path,
            "version",
            f"expected an asv machine file of version {FORMAT_VERSION}: run `asv update`, or remove it",
        )
    return entries
