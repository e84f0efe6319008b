"""What a comparison on a GPU says: the table, how the numbers came about, and the plot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from batchchol.compare import references
from batchchol.compare.comparison import Outcome
from batchchol.compare.peers import PEERS
from batchchol.compare.references import Reference
from batchchol.compare.rows import Row, markdown
from batchchol.report.gflops_plot import Panel, Point, draw_panels

_REFERENCE_HEADINGS = ("n", "batch", "library", "GFLOP/s", "version", "date")


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """GFLOP/s over n of the first protocol, a panel a batch, in two formats."""
    first = outcome.rows[0]
    rows = _drawn(outcome.rows)
    sizes = list(dict.fromkeys(row.size for row in rows))
    panels = [_panel(size, [row for row in rows if row.size == size]) for size in sizes]
    title = f"{first.subject} on one {first.gpu}: {first.dtype}, {first.protocol}, cold data, medians"
    waiting = sorted({row.contender for row in rows if row.protocol != first.protocol})
    parts = [f"{', '.join(waiting)}: single calls, its stream takes no part in queued ones."] if waiting else []
    parts += ["Dotted, hollow: dated reference figures, not of this run."] if _references(rows) else []
    parts += [f"Absent: {name} ({reason})." for name, reason in outcome.absent.items() if " at n = " not in name]
    provenance = f"{first.toolkit}, driver {first.driver}, commit {first.commit or 'unknown'}, {first.date}."
    stem = folder / f"compare-cuda{first.stem}-{first.dtype}"
    return draw_panels(panels, stem, title=title, caption=" ".join([*parts, provenance]))


def footer(outcome: Outcome) -> str:
    """How the numbers were measured, dated figures of libraries that were not, and the absent contenders."""
    rows = outcome.rows
    lines = [""]
    for protocol in dict.fromkeys(row.protocol for row in rows):
        floors = sorted({f"{row.floor_seconds * 1e6:.2f} us" for row in rows if row.protocol == protocol})
        lines.append(f"floor, {protocol}: an empty call takes {', '.join(floors)}")
    lines += [f"copy rate: {each / 1e12:.2f} TB/s" for each in sorted({row.copy_bytes_per_second for row in rows})]
    for timing in dict.fromkeys(row.timing for row in rows):
        names = dict.fromkeys(row.contender for row in rows if row.timing == timing)
        lines.append(f"{timing}: {', '.join(names)}")
    lines += sorted({f"{row.contender}: {row.version}" for row in rows})
    if rows:
        lines.append(
            "times are medians of samples × calls in each; spread is the interquartile range over the median"
        )
        origins = (f"{row.gpu}, {row.toolkit}, driver {row.driver}, commit {row.commit or 'unknown'}, {row.date}"
                   for row in rows)  # fmt: skip
        lines += sorted(set(origins))
    lines += [f"absent: {name}: {reason}" for name, reason in _merged(outcome.absent).items()]
    return "\n".join(lines) + "\n" + _reference_table(_references(rows))


def _merged(absent: dict[str, str]) -> dict[str, str]:
    """Contenders that are absent for the same reason at several points, on one line."""
    places: dict[tuple[str, str], list[str]] = {}
    for name, reason in absent.items():
        who, _, where = name.partition(" at ")
        places.setdefault((who, reason), []).append(where)
    return {f"{who} at {'; '.join(where)}" if all(where) else who: reason for (who, reason), where in places.items()}


def _drawn(rows: Iterable[Row]) -> list[Row]:
    """The rows of the first protocol of each contender."""
    first: dict[str, str] = {}
    return [row for row in rows if first.setdefault(row.contender, row.protocol) == row.protocol]


def _panel(size: str, rows: Sequence[Row]) -> Panel:
    peers = PEERS["cuda"]
    kinds = {row.contender: "peer" if row.contender in peers else "own" for row in rows}
    points = [Point(row.contender, row.n, row.gflops, row.roofline_gflops, kinds[row.contender]) for row in rows]
    points += [Point(each.label, each.n, each.gflops, 0.0, "reference") for each in _references(rows)]
    title = f"batch {int(size):,}" if size.isdecimal() else f"{size[:-3]} {size[-3:]} of matrices"
    return Panel(title, tuple(points))


def _references(rows: Sequence[Row]) -> list[Reference]:
    """Dated figures of libraries that were not measured in this run; there are some of factorizations alone."""
    measured = {row.contender for row in rows}
    points = dict.fromkeys((row.gpu, row.dtype, row.n, row.batch) for row in rows if not row.solves)
    return [each for gpu, dtype, n, batch in points for each in references.lines(gpu, dtype, measured, [n], batch)]


def _reference_table(dated: Sequence[Reference]) -> str:
    if not dated:
        return ""
    lines = [
        (str(each.n), f"{each.batch:,}", each.library, f"{each.gflops:,.0f}", each.version, each.date)
        for each in dated
    ]
    return "\nReference figures, measured earlier on the same GPU (queued), not in this run:\n\n" + markdown(
        _REFERENCE_HEADINGS, lines
    )
