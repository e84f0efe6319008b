"""The history as a folder of pages that load nothing from anywhere: they open from the disk."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from batchchol.asv_plugin.history import charts
from batchchol.asv_plugin.history.cases import FLAKY, LATELY, Case, Commit, Machine, Number, machines
from batchchol.asv_plugin.history.change_points import SMALLEST
from batchchol.asv_plugin.history.conditions import HEADINGS, conditions
from batchchol.asv_plugin.history.heat_maps import heat_maps
from batchchol.asv_plugin.history.roofline import roofline
from batchchol.asv_plugin.history.store import Measurement
from batchchol.errors import BatchcholError
from batchchol.files import make_folder, replace_file

STATES = {
    "slower": "Slower lately",
    "faster": "Faster lately",
    "failed": "Failed",
    "undecided": "Undecided",
    "flaky": "Flaky",
}
"""What a reader wants to know first, in this order; the rest is steady."""

_SMALL, _LARGE = (120.0, 24.0), (640.0, 160.0)
_TEMPLATES = "templates/history"
_ASSETS = ("style.css", "keys.js")


@dataclass(frozen=True)
class Page:
    """A file of the folder: its name, the template that it is made from, and what that is given."""

    name: str
    template: str
    given: dict[str, Any]


def write(measurements: Iterable[Measurement], folder: Path) -> list[Machine]:
    """Write the pages of some measurements, and return the machines that are on them.

    Raises
    ------
    BatchcholError
        If there are none, ruptures is missing, or a file cannot be written.
    """
    found = machines(measurements)
    if not found:
        raise BatchcholError("no point of the suite was measured: run `python -m batchchol suite` first")
    environment = _environment(found)
    texts = {page.name: environment.get_template(page.template).render(page.given) for page in _pages(found)}
    make_folder(folder)
    for name in _ASSETS:
        texts[name] = (files("batchchol.asv_plugin") / _TEMPLATES / name).read_text(encoding="utf-8")
    for name, text in texts.items():
        replace_file(folder / name, text.encode())
    return found


def _environment(found: Sequence[Machine]) -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("batchchol.asv_plugin", _TEMPLATES)
    environment = Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.globals |= {
        "machines": found,
        "small": lambda case: charts.chart(case, *_SMALL),
        "large": lambda case: charts.chart(case, *_LARGE),
        "shown": charts.shown,
        "change_text": charts.change_text,
        "tone": charts.tone,
        "file_of": file_of,
        "commit_file": commit_file,
        "anchor": anchor,
        "isnan": math.isnan,
        "limits": {"lately": LATELY, "flaky": FLAKY, "smallest": SMALLEST},
    }
    return environment


def _pages(found: Sequence[Machine]) -> Iterator[Page]:
    yield Page(
        "index.html", "overview.html.jinja", {"title": "The suite over commits", "news": news, "states": STATES}
    )
    for machine in found:
        yield from _machine_pages(machine)
    for commit in _commits(found):
        given = {"title": f"Commit {commit.short}", "commit": commit, "parts": _measured_at(found, commit)}
        yield Page(commit_file(commit), "commit.html.jinja", given)


def _machine_pages(machine: Machine) -> Iterator[Page]:
    of_benchmark = machine.of_benchmark()
    maps = [each for name, cases in of_benchmark.items() for each in heat_maps(name, cases)]
    name, page = machine.name, partial(file_of, machine)
    given: dict[str, Any] = {"machine": machine}
    for benchmark, cases in of_benchmark.items():
        about = {"title": benchmark, "benchmark": benchmark, "cases": cases}
        yield Page(page(benchmark), "benchmark.html.jinja", given | about)
    yield Page(page("heat-maps"), "heat_maps.html.jinja", given | {"title": f"Heat maps, {name}", "maps": maps})
    plot = roofline(machine.cases)
    yield Page(page("roofline"), "roofline.html.jinja", given | {"title": f"Roofline, {name}", "plot": plot})
    read = {"title": f"Conditions, {name}", "headings": HEADINGS, "read": conditions(machine)}
    yield Page(page("conditions"), "conditions.html.jinja", given | read)


def news(machine: Machine, state: str) -> list[Case]:
    """The cases of a machine in a state, the largest change first."""
    found = [case for case in machine.cases if case.state == state]
    return sorted(found, key=lambda case: -abs(math.log(case.news.ratio)) if case.news else -case.noise)


def _commits(found: Sequence[Machine]) -> list[Commit]:
    return list(dict.fromkeys(commit for machine in found for commit in machine.commits))


def _measured_at(found: Sequence[Machine], commit: Commit) -> list[tuple[Machine, list[tuple[Case, Number, float]]]]:
    """By machine, the cases of a commit, their numbers, and the ratio to the commit that was measured before it."""
    parts = []
    for machine in found:
        lines = [(case, number, _ratio(case, number)) for case in machine.cases if (number := case.at(commit))]
        if lines:
            parts.append((machine, lines))
    return parts


def _ratio(case: Case, number: Number) -> float:
    """Over the number before it; NaN if there is none."""
    known = case.known
    index = next((place for place, each in enumerate(known) if each is number), 0)
    return number.median / known[index - 1].median if index else math.nan


def file_of(machine: Machine, page: str) -> str:
    """The file of one of a machine's pages."""
    return f"{_plain(machine.name)}--{_plain(page)}.html"


def commit_file(commit: Commit) -> str:
    """The file of a commit's page."""
    return f"commit-{commit.short}.html"


def anchor(case: Case) -> str:
    """Where a case is on its benchmark's page."""
    return _plain(case.label)


def _plain(text: str) -> str:
    """A text as part of a file's name or an anchor."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-")
