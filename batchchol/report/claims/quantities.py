"""What a claim may be about: functions of a comparison's rows, so that another machine's rows have them too."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from batchchol.compare.rows import Row
from batchchol.errors import BatchcholError
from batchchol.operations.roofline import compulsory_bytes
from batchchol.report.claims.timed import TimedRow
from batchchol.tune.choosing.winners import grouped
from kernelgen import Layout

AnyRow = Row | TimedRow
Value = float | str

# Three significant digits, but no exponent: in place of a format specification.
THREE_DIGITS = "3"


@dataclass(frozen=True)
class Side:
    """The rows that a claim is of, those of the peers that these are compared with, and those of all contenders."""

    own: Sequence[AnyRow]
    peers: Sequence[AnyRow]
    every: Sequence[AnyRow] = ()

    @property
    def best(self) -> AnyRow:
        """The fastest of its rows."""
        if not self.own:
            raise BatchcholError("claim: no row is of its contender: name another one")
        return min(self.own, key=lambda row: row.seconds)

    @property
    def best_peer(self) -> AnyRow:
        """The fastest of the peers' rows."""
        if not self.peers:
            raise BatchcholError(f"peers: no row of one at n = {self.best.n}, batch {self.best.batch:,}: name others")
        return min(self.peers, key=lambda row: row.seconds)

    @property
    def speedup(self) -> float:
        """The fastest peer's time over that of the best."""
        return self.best_peer.seconds / self.best.seconds

    def cases(self) -> Iterator[Side]:
        """The side at each order and batch."""
        peers = grouped(self.peers, lambda row: row.case)
        for case, own in grouped(self.own, lambda row: row.case).items():
            yield Side(own, peers.get(case, []))

    def narrowed(self, quantity: str) -> Side:
        """The side for a quantity: of "gflops:torch" what torch reaches, of "speedup:torch" beside torch alone."""
        kind, _, contender = quantity.partition(":")
        if not contender:
            return self
        named = [row for row in self.every if row.contender == contender]
        return replace(self, peers=named) if kind == "speedup" else replace(self, own=named)


@dataclass(frozen=True)
class Quantity:
    """How rows say it, how it is written, and what it is, with its unit.

    `better` is "more" or "less" where another machine may find worse; "" of what only says how it was measured.
    """

    of: Callable[[Side], Value]
    style: str
    words: str
    better: Literal["more", "less", ""] = ""


def _commonest(column: str) -> Callable[[Side], Value]:
    def value(side: Side) -> Value:
        values = [getattr(row, column) for row in side.own]
        found: Value = max(sorted(set(values)), key=values.count)
        return found

    return value


def _column(name: str) -> Callable[[Side], Value]:
    def value(side: Side) -> Value:
        if not hasattr(side.best, name):
            raise BatchcholError(f"{name}: the rows of the claim have no such column: claim something else of them")
        found: Value = getattr(side.best, name)
        return found

    return value


def _schedule(side: Side) -> Value:
    found = re.search(r"_(right|left|top)_nb(\d+)_(full|tiles)_", side.best.spec)
    if found is None:
        raise BatchcholError(f"schedule: {side.best.spec!r} has none: claim it of kernels of the thread family")
    looking, nb, unroll = found.groups()
    return f"nb={nb}, {looking}, {unroll}"


def _tiles(side: Side) -> Value:
    found = re.search(r"_(right|left|top)_nb(\d+)_", side.best.spec)
    if found is None:
        raise BatchcholError(f"tiles: {side.best.spec!r} has no order of evaluation: claim them of another family")
    return f"{found[2]}, {found[1]}"


def _family(side: Side) -> Value:
    # "shared" is also the name of a preference of caches, further behind in the name of a kernel.
    found = re.search(r"_(?:col|row)_(block|shared|strip|warp)_", side.best.spec)
    return found[1] if found else "thread"


def _microjoules(side: Side) -> Value:
    if not getattr(side.best, "joules", math.nan) > 0:
        raise BatchcholError("joules: the rows of the claim have none: measure them by compare --joules")
    return side.best.joules / side.best.batch * 1e6


def _uncertainty(side: Side) -> Value:
    return max(row.joules_uncertainty / row.joules for row in side.every if getattr(row, "joules", math.nan) > 0)


def _above_launch(side: Side) -> Value:
    own, peer = (min(float(row.seconds - row.floor_seconds) for row in rows) for rows in (side.own, side.peers))
    return peer / own


def _worst(side: Side) -> Value:
    return max(each.best.ratio for each in side.cases())


def _copy_rate(side: Side) -> Value:
    """GB/s: rows of a GPU have it; a CPU's roofline is of the copy rate where memory decides, and lower elsewhere."""
    if side.best.on_gpu:
        return side.best.copy_bytes_per_second / 1e9
    return max(_compulsory_bytes(row) / row.roofline_seconds for row in side.own) / 1e9


def _compulsory_bytes(row: AnyRow) -> float:
    # A triangle in and out: the same for chunks of any size.
    return compulsory_bytes(row.n, Layout.chunked(32), row.dtype) * row.batch


QUANTITIES: Mapping[str, Quantity] = {
    "gflops": Quantity(lambda side: side.best.gflops, ",.0f", "GFLOP/s", "more"),
    "roofline": Quantity(lambda side: side.best.roofline_fraction, ".0%", "share of the roofline", "more"),
    "us": Quantity(lambda side: side.best.seconds * 1e6, THREE_DIGITS, "µs", "less"),
    "copy_share": Quantity(_column("copy"), ".0%", "share of a copy's rate"),
    "share": Quantity(_column("share"), ".1%", "share"),
    "more": Quantity(_column("more"), "+.1%", "more than without"),
    "ns": Quantity(lambda side: side.best.ns_per_matrix, ",.1f", "ns per matrix", "less"),
    "joules": Quantity(_microjoules, THREE_DIGITS, "µJ a matrix"),
    "watts": Quantity(_column("watts"), ",.0f", "W"),
    "uncertainty": Quantity(_uncertainty, ".0%", "of the joules at most"),
    "idle": Quantity(_column("idle_watts"), ",.0f", "W of the idle device"),
    "ratio": Quantity(lambda side: side.best.ratio, ".2f", "residual ratio", "less"),
    "schedule": Quantity(_schedule, "", "schedule"),
    "tiles": Quantity(_tiles, "", "nb, looking"),
    "family": Quantity(_family, "", "family"),
    "speedup": Quantity(lambda side: side.speedup, ".1f", "× best peer", "more"),
    "above": Quantity(_above_launch, ".1f", "× best peer, the launch subtracted from both", "more"),
    "most": Quantity(lambda side: max(each.speedup for each in side.cases()), ".1f", "at most × best peer", "more"),
    "least": Quantity(lambda side: min(each.speedup for each in side.cases()), ".1f", "at least × best peer", "more"),
    "worst": Quantity(_worst, ".2f", "largest residual ratio", "less"),
    "copy": Quantity(_copy_rate, ",.1f", "GB/s of a copy"),
    "peak": Quantity(lambda side: max(row.roofline_gflops for row in side.own), ",.0f", "GFLOP/s at most"),
    "floor": Quantity(lambda side: side.best.floor_seconds * 1e6, ".2f", "µs of an empty call"),
    "clock": Quantity(_commonest("gpu_clock_mhz"), ",.0f", "MHz"),
    "driver": Quantity(_commonest("driver"), "", "driver"),
    "samples": Quantity(_commonest("samples"), "", "samples"),
    "date": Quantity(_commonest("date"), "", "date"),
}
"""By the names that `docs/claims.toml` has; a contender may follow after a colon."""


def quantity(name: str) -> Quantity:
    """The quantity of a name, with or without a contender.

    Raises
    ------
    BatchcholError
        If there is none.
    """
    kind, _, contender = name.partition(":")
    if kind not in QUANTITIES:
        raise BatchcholError(f"quantity: got {name!r}, expected one of {', '.join(QUANTITIES)}")
    found = QUANTITIES[kind]
    if not contender:
        return found
    return replace(found, words=f"× {contender}" if kind == "speedup" else f"{found.words} of {contender}")


def written(value: Value, style: str) -> str:
    """A value by a format specification, or `THREE_DIGITS`."""
    if style != THREE_DIGITS or isinstance(value, str):
        return format(value, style)
    digits = 2 - int(f"{value:.2e}".partition("e")[2])
    return format(value, f",.{max(0, digits)}f")
