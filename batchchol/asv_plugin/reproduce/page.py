"""The claims and what became of them here, as lines and as one page that loads nothing from anywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from batchchol.asv_plugin.reproduce.verdicts import Holds, Judged
from batchchol.compare.rows import markdown
from batchchol.files import make_folder, replace_file
from batchchol.report.claims.listed import Group
from batchchol.report.claims.quantities import quantity

_HEADINGS = ("claim", "verdict", "published", "here", "here / published", "99% interval", "rounds")
_LEFT = ("claim", "verdict")
_OF_SEVERAL = {Holds.YES: "hold", Holds.NO: "do not hold"}
SHAPES = (
    "Where the published numbers are of another kind of machine, ratios to peers are judged by which side is faster, "
    "and the other numbers are shown beside each other."
)


@dataclass(frozen=True)
class Part:
    """The claims of a group on a page."""

    group: Group
    judged: Sequence[Judged]


def counted(judged: Sequence[Judged]) -> str:
    """The counts in words, such as "12 hold, 1 does not hold"."""
    counts = Counter(each.holds for each in judged)
    words = {each: _OF_SEVERAL.get(each, each.value) if counts[each] > 1 else each.value for each in Holds}
    return ", ".join(f"{counts[each]} {words[each]}" for each in Holds if counts[each])


def table(judged: Sequence[Judged]) -> str:
    """The claims that were measured, line by line, then why others were not, and how many have become what."""
    measured = [each for each in judged if each.rounds]
    lines = [[each.claim.name, *cells(each)] for each in measured]
    text = markdown(_HEADINGS, lines, _LEFT) + "\n" if measured else ""
    if any(each.shape for each in measured):
        text += f"{SHAPES}\n\n"
    for (group, holds, why), number in _reasons(judged).items():
        text += f"{group}: {number} {holds}: {why}\n"
    return f"{text}{counted(judged)}\n"


def cells(each: Judged) -> list[str]:
    """What is said of a claim, as texts: see the headings of `table`."""
    ratio = "" if each.ratio is None else f"{each.ratio:.3g}"
    known = each.ratio is not None and 0 < each.low <= each.high < float("inf")
    interval = f"{each.low:.3g} to {each.high:.3g}" if known else ""
    verdict = each.holds.value + " (shape)" * each.shape
    return [verdict, each.claim.text(), each.here_text, ratio, interval, str(each.rounds or "")]


def write(judged: Sequence[Judged], about: Mapping[str, str], path: Path) -> None:
    """Write the page; `about` says where and of what the claims were measured.

    Raises
    ------
    DataFileError
        If it cannot be written.
    """
    from jinja2 import Environment, PackageLoader

    groups = {each.claim.group.name: each.claim.group for each in judged}
    parts = [
        Part(group, [each for each in judged if each.claim.group.name == name]) for name, group in groups.items()
    ]
    environment = Environment(
        loader=PackageLoader("batchchol.asv_plugin"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    text = environment.get_template("reproduced.html.jinja").render(
        parts=parts,
        about=about,
        counted=counted(judged),
        shapes=SHAPES if any(each.shape for each in judged) else "",
        headings=_HEADINGS,
        cells=cells,
        words=lambda each: quantity(each.claim.quantity).words,
        tone=lambda each: {Holds.YES: "good", Holds.NO: "bad", Holds.FAILED: "bad"}.get(each.holds, ""),
    )
    make_folder(path.parent)
    replace_file(path, text.encode())


def _reasons(judged: Sequence[Judged]) -> Counter[tuple[str, str, str]]:
    """Why claims are not measured, failed or undecided: how many of each group, for each reason."""
    return Counter(
        (each.claim.group.name, each.holds.value, each.why) for each in judged if each.why and not each.rounds
    )
