"""What a sweep has learned for the user's table: the best of each case, order and batch, if better than before."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from batchchol.defaults import lookup, user
from batchchol.defaults.entries import Placed, Tuned
from batchchol.defaults.lookup import default_choice
from batchchol.errors import BatchcholError
from batchchol.measure import dataset
from batchchol.measure.process import Measurer
from batchchol.measure.row import Row, rows_of
from batchchol.progress import Progress, ProgressDisplay, Show
from batchchol.tune.choosing.contest import Contest, Site, placements
from batchchol.tune.choosing.winners import MARGIN, case_of, cell_of, grouped
from batchchol.tune.compile import build

# Where other schedules seem faster: how many of them are measured again, and in how many rounds with the current one.
_CHALLENGERS, _ROUNDS = 2, 3


def learn(
    rows: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
    measurer: Measurer | None,
    *,
    jobs: int | None = None,
    show: Show = lambda _: None,
) -> tuple[Site, list[Tuned], list[Placed], KeyboardInterrupt | None]:
    """The entries and placements that the rows of a data set support, and where they were measured.

    Only correct rows of the specs' own code count. Where something else was faster than the current choice, both are
    measured again, in turn; the current one even if it was not among the rows. Without a measurer such a case is
    decided by its rows alone, or not at all if they lack the current choice.

    Parameters
    ----------
    rows : sequence of mapping
        As `dataset.read_rows` has them.
    facts : mapping
        What the measurer, or a cluster, says of its devices; see `Bench.facts`.

    Returns
    -------
    tuple
        The site; entries and placements for the user's table; and what ended the measuring early, to be raised again
        once the entries are kept.
    """
    known = list(filter(usable, rows))
    if not known:
        raise ValueError("rows: got none to learn from")
    site = Site.of(facts, known[-1], known[-1]["threads"])
    contests = _contests(known, site)
    settled = [(contest, _settled(contest, found, site, measurer is None)) for contest, found in contests]
    entries = [entry for _, entry in settled if entry]
    interrupt = None
    if measurer is not None:
        left = [contest for contest, entry in settled if entry is None]
        held, interrupt = _held(left, measurer, site, jobs, show)
        entries += held
    floor = max((row["floor_seconds"] or 0.0 for row in known), default=0.0)
    return site, entries, placements(entries, site, floor), interrupt


def usable(row: Mapping[str, Any]) -> bool:
    """Whether a row teaches something: correct, of the spec's own code, and of a kind that tables choose from."""
    own = row["status"] == "correct" and not row["any_block"] and not row["in_place"]
    return own and row["uplo"] == "lower" and (row["layout"] == "canonical" or row["order"] == "col")


def _contests(values: Sequence[Mapping[str, Any]], site: Site) -> list[tuple[Contest, list[Row]]]:
    """A contest for each case, order and batch, and the rows of those that compete in it."""
    rows = [
        row for row in rows_of(values) if (row.point.protocol, row.point.threads) == (site.protocol, site.threads)
    ]
    cells = grouped((row for row in rows if row.samples), lambda row: (case_of(row.point), cell_of(row)))
    return [_contest(found, site) for _, found in sorted(cells.items(), key=lambda item: str(item[0]))]


def _contest(rows: list[Row], site: Site) -> tuple[Contest, list[Row]]:
    point = rows[0].point
    request = site.request(point.spec.problem, point.batch).on(point.layout)
    current = default_choice(request)
    ranked = sorted(rows, key=lambda row: row.median_seconds)
    best = [row for row in ranked if row.spec != current.spec][:_CHALLENGERS]
    own = [row for row in ranked if row.spec == current.spec][:1]
    return Contest(request, current, tuple(row.spec for row in best), len(rows), len(rows)), own + best


def _settled(contest: Contest, rows: list[Row], site: Site, rows_alone: bool) -> Tuned | None:
    """What is decided without another measurement: that the current choice stays, or what the rows say."""
    own = [row for row in rows if row.spec == contest.incumbent.spec]
    others = [row for row in rows if row.spec != contest.incumbent.spec]
    if not own:
        return None
    behind = others and own[0].median_seconds > others[0].median_seconds * (1 + MARGIN)
    return None if behind and not rows_alone else contest.decided(rows, site)


def _held(
    contests: Sequence[Contest], measurer: Measurer, site: Site, jobs: int | None, show: Show
) -> tuple[list[Tuned], KeyboardInterrupt | None]:
    """The contests, one after another, all kernels compiled ahead: the entries made before an interrupt, and that."""
    begin = time.monotonic()
    entries: list[Tuned] = []
    try:
        points = dict.fromkeys(point for contest in contests for point in contest.points(site))
        build(list(points), site.arch, jobs=jobs, show=show)
        for done, contest in enumerate(contests, start=1):
            if entry := contest.held(measurer, site, _ROUNDS):
                entries.append(entry)
            show(Progress.since(begin, done, len(contests), done - len(entries), "contests"))
    except KeyboardInterrupt as interrupt:
        measurer.close()
        return entries, interrupt
    return entries, None


def keep(
    arguments: argparse.Namespace,
    folder: Path,
    facts: Mapping[str, Any],
    measurer: Measurer | None,
    warn: Callable[[str], None],
) -> None:
    """Update the user's table from a data set, unless told to leave it alone; print what has changed.

    If this fails there is a warning: the measurements are in the data set.
    """
    if arguments.no_table or not user.enabled():
        return
    rows = dataset.read_rows(folder, warn)
    if not any(map(usable, rows)):
        return
    try:
        with ProgressDisplay(sys.stderr, "choosing") as display:
            site, entries, placed, interrupt = learn(rows, facts, measurer, jobs=arguments.jobs, show=display)
        path = lookup.learn(site.device, site.target, site.arch, entries, placed)
    except BatchcholError as error:
        warn(f"the user's table is as it was: {error}")
        return
    new = sum(entry.schedule != entry.incumbent for entry in entries)
    moved = sum(each.layout != each.incumbent for each in placed)
    print(f"{path}: {new} of {len(entries)} cases have another kernel now, {moved} of {len(placed)} another layout")
    if interrupt:
        raise interrupt
