"""Joules that the CPU's packages have used, by the counters of RAPL, where the kernel lets them be read."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


class Rapl:
    """The sum of the packages' counters, which begin again where they are full."""

    def __init__(self, folder: Path = POWERCAP) -> None:
        # Not the parts of a package (intel-rapl:0:0), which it includes.
        self._packages = sorted(each for each in folder.glob("intel-rapl:*") if each.name.count(":") == 1)
        self._before: dict[Path, int] = {}
        self._turned = 0

    def joules(self) -> float | None:
        """Since some moment; None if there is no counter, or it may not be read."""
        total = 0
        for package in self._packages:
            now = _number(package / "energy_uj")
            if now is None:
                return None
            if now < self._before.get(package, 0):
                self._turned += _number(package / "max_energy_range_uj") or 0
            self._before[package] = now
            total += now
        return (total + self._turned) / 1e6 if self._packages else None


def _number(path: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None
