"""What a machine was like while each commit was measured: clocks, temperature, power, and what held it back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchchol.asv_plugin.history.cases import Commit, Machine

_SHOWN = (("gpu_clock_mhz", "MHz"), ("memory_clock_mhz", "MHz"), ("temperature_c", "°C"), ("power_w", "W"))


@dataclass(frozen=True)
class Conditions:
    """Of a commit: the ranges of what was read, in the order of `HEADINGS`, and the device."""

    commit: Commit
    cells: tuple[str, ...]
    throttle: str
    device: str


HEADINGS = ("GPU clock", "memory clock", "temperature", "power")


def conditions(machine: Machine) -> list[Conditions]:
    """The conditions of every commit of a machine of which something was recorded, the newest first."""
    return [each for commit in reversed(machine.commits) if (each := _conditions(machine, commit))]


def _conditions(machine: Machine, commit: Commit) -> Conditions | None:
    abouts = list(_abouts(machine, commit))
    if not abouts:
        return None
    read = [state for about in abouts for state in about.get("conditions", {}).values() if state]
    cells = tuple(_range([state.get(name) for state in read], unit) for name, unit in _SHOWN)
    held = sorted({reason for state in read for reason in str(state.get("throttle", "")).split() if reason})
    return Conditions(commit, cells, ", ".join(held), "; ".join(_devices(abouts)))


def _abouts(machine: Machine, commit: Commit) -> Iterator[Mapping[str, Any]]:
    for case in machine.cases:
        number = case.at(commit)
        yield from (run.about for run in number.runs if run.about) if number else ()


def _devices(abouts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The devices that were used, each once."""
    said = (about.get("device", {}) for about in abouts)
    texts = (
        ", ".join(str(device[name]) for name in ("gpu", "driver", "toolkit") if device.get(name))
        or str(device.get("cpu", ""))
        for device in said
    )
    return list(dict.fromkeys(filter(None, texts)))


def _range(values: Sequence[Any], unit: str) -> str:
    known = [float(value) for value in values if value is not None]
    if not known:
        return ""
    low, high = f"{min(known):.0f}", f"{max(known):.0f}"
    return f"{low} {unit}" if low == high else f"{low}–{high} {unit}"
