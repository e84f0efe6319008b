"""What a study says, and how it is held against measurements."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from batchchol.report import pivots
from batchchol.tune.search import features

# A verdict, the numbers, and those in a few words; or why there are none.
Judged = tuple[str, str, str] | str


@dataclass(frozen=True)
class Finding:
    """A statement of a study, and what is said about it here.

    Attributes
    ----------
    topic, study : str
        What it is about; the statement.
    verdict : {"agrees", "partly", "differs", "not measured", "shown"}
        "shown" where the study has no statement that could hold or not.
    here : str
        The numbers.
    short : str
        Them in a few words, for a figure; empty where nothing was measured.
    """

    topic: str
    study: str
    verdict: str
    here: str
    short: str = ""

    @property
    def label(self) -> str:
        """The figure or table that its topic names, such as "Figure 15"; else empty."""
        named = re.search(r"\((figure|table) (\w+)\)", self.topic)
        return f"{named[1].capitalize()} {named[2]}" if named else ""


@dataclass(frozen=True)
class Statement:
    """What a study says, and how it is held against measurements.

    Attributes
    ----------
    topic, study : str
        As in `Finding`.
    about : {"speedups", "rows", "one", "others", "forest"}
        What it is held against: speedups over peers, the points of a case, those of one accuracy class, those of all
        families, or the forest.
    judge : callable
        Returns the verdict, the numbers and those in a few words; or why there are none.
    """

    topic: str
    study: str
    about: str
    judge: Callable[[Any], Judged]

    def against(self, evidence: Any) -> Finding:
        """What the evidence says of the statement."""
        judged = self.judge(evidence)
        if isinstance(judged, str):
            judged = "not measured", f"{judged[0].upper()}{judged[1:].removesuffix('.')}.", ""
        return Finding(self.topic, self.study, *judged)


def gain_of(rows: Any, column: str, value: str, other: str) -> Any:
    """By how much the best with a value is above the best with another, of points that have been measured with both.

    Without that a value would gain by having been tried with more of the other parameters.
    """
    return pivots.ratio(pivots.by(pivots.paired(rows, column, features.COLUMNS), column), value, other) - 1
