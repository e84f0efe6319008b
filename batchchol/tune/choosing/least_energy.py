"""The schedule that uses the fewest joules, of the fastest of a case: what is slow spends more idle power too."""

from __future__ import annotations

from dataclasses import replace

from batchchol.defaults.entries import Tuned
from batchchol.measure.energy import SECONDS, Energy
from batchchol.measure.process import Measurer
from batchchol.measure.row import Row
from batchchol.tune.choosing.contest import Contest, Site
from batchchol.tune.choosing.winners import FINAL_SAMPLES
from kernelgen import KernelSpec

MOST_FINALISTS = 20
"""Kernels whose energy is measured, of all layouts of a case together: each takes seconds."""


def held(contest: Contest, measurer: Measurer, site: Site, most: int, seconds: float = SECONDS) -> Tuned | None:
    """Measure the energy of the current schedule and of at most `most - 1` challengers, and decide.

    Another wins only if it uses fewer joules by more than the uncertainty of both. None if none of them could be
    measured.
    """
    finalists = replace(contest, challengers=contest.challengers[: most - 1]).points(site)
    rows = [row for row in (measurer.measure(point, FINAL_SAMPLES) for point in finalists) if row.correct]
    spent = {row.spec: (row, energy) for row in rows if (energy := measurer.energy(row.point, seconds))}
    return _decided(contest, spent, site) if spent else None


def _decided(contest: Contest, spent: dict[KernelSpec, tuple[Row, Energy]], site: Site) -> Tuned:
    own = contest.incumbent.spec
    best = min(spent, key=lambda spec: spent[spec][1].joules)
    margin = 0.0
    if own in spent and best != own:
        current, others = spent[own][1], spent[best][1]
        margin = (current.uncertainty + others.uncertainty) / others.joules
        best = best if current.joules > others.joules * (1 + margin) else own
    about: dict[str, str | int] = {
        "objective": "energy",
        "nanojoules": _nanojoules(contest, spent[best][1]),
        "finalists": len(spent),
    }
    if own in spent:
        about["incumbent_nanojoules"] = _nanojoules(contest, spent[own][1])
    return contest.entry(best, {spec: [row] for spec, (row, _) in spent.items()}, site, margin, about)


def _nanojoules(contest: Contest, energy: Energy) -> int:
    """Nanojoules of a matrix."""
    return round(energy.joules / contest.request.size * 1e9)
