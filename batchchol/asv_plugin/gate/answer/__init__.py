"""The gate's answer as a table, Markdown, JUnit XML and JSON."""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from batchchol.asv_plugin.gate.answer.junit import junit
from batchchol.asv_plugin.gate.answer.record import from_json, to_json
from batchchol.asv_plugin.gate.answer.words import ORDER, TOLD, amount, change, in_order, notes, plain, sentence
from batchchol.asv_plugin.gate.outcome import Answer, Outcome, Verdict
from batchchol.compare.rows import markdown as markdown_table
from batchchol.files import make_folder, replace_file

__all__ = ["from_json", "junit", "markdown", "table", "to_json", "write"]

_HEADINGS = ("case", "base", "head", "change", "processes", "verdict")
_INDENT = "    "
_OPEN = 20
"""Rows of what changed that Markdown shows without a click."""
_ROWS = 200
"""Of one list in Markdown: GitHub refuses summaries above 1 MiB. The JSON file has all."""
_LONGEST = 300
"""Characters of a reason, for readers."""
_MARKUP = re.compile(r"([\\`*_{}\[\]<>|~&#@!])")


def table(answer: Answer, *, every: bool = False, width: int | None = None) -> str:
    """The answer for a terminal: the verdict, the cases that changed or could not be told, and what to make of it.

    Parameters
    ----------
    answer : Answer
    every : bool
        Show all cases: those that are the same, unchanged, new, gone and skipped, too.
    width : int, optional
        Columns to use: by default the terminal's, or as many as it takes where the output goes elsewhere.
    """
    width = shutil.get_terminal_size((0, 0)).columns if width is None else width
    shown = in_order(answer.outcomes, *(ORDER if every else TOLD))
    rows = ["", *_aligned(shown, width)] if shown else []
    return "".join(f"{line}\n" for line in (sentence(answer), *rows, "", *notes(answer)))


def _cells(outcome: Outcome) -> tuple[str, ...]:
    times = (amount(outcome, seconds) for seconds in (outcome.base_seconds, outcome.head_seconds))
    processes = f"{len(outcome.log_ratios) or ''}"
    return plain(outcome.key), *times, change(outcome), processes, outcome.verdict.value.upper()


def _aligned(outcomes: Sequence[Outcome], width: int) -> Iterator[str]:
    """A line a case, and its reason below; where that is too wide, the case has a line of its own."""
    rows = [_HEADINGS, *map(_cells, outcomes)]
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    stacked = 0 < width < first + sum(others) + 2 * len(others)
    for (case, *cells), why in zip(rows, ["", *(_brief(each.why) for each in outcomes)], strict=True):
        numbers = "  ".join([*map(str.rjust, cells[:-1], others), cells[-1]])
        if not stacked:
            yield f"{case.ljust(first)}  {numbers}"
        else:
            yield from (case, f"{_INDENT}{numbers}") if any(cells[:-1]) else (f"{case}  {cells[-1]}",)
        yield from textwrap.wrap(why, width or len(why) + 9, initial_indent=_INDENT, subsequent_indent=_INDENT)


def markdown(answer: Answer) -> str:
    """The answer for a page, such as the summary of a step on GitHub: long lists are folded."""
    told = in_order(answer.outcomes, *TOLD)
    parts = [f"### {_escaped(sentence(answer))}\n", _compared(answer)]
    parts += [_measured(told[:_OPEN]), *_folded(f"{len(told) - _OPEN:,} more", told[_OPEN:])]
    parts.append("".join(f"- {_escaped(note)}\n" for note in notes(answer)))
    rest = in_order(answer.outcomes, *ORDER[len(TOLD) :])
    for verdict, outcomes in groupby(rest, key=lambda outcome: outcome.verdict):
        listed = [*outcomes]
        parts += _folded(f"{len(listed):,} {verdict.value}", listed)
    return "\n".join(filter(None, parts))


def _compared(answer: Answer) -> str:
    head, base, profile = map(_escaped, (answer.head[:10], answer.base[:10], answer.profile))
    return f"{head} compared with {base}, profile {profile}\n"


def _folded(summary: str, outcomes: Sequence[Outcome]) -> list[str]:
    if not outcomes:
        return []
    shown = outcomes[:_ROWS]
    rows = _measured(shown) if shown[0].verdict in (*TOLD, Verdict.SAME) else _listed(shown)
    more = f"\n{len(outcomes) - _ROWS:,} more are in gate.json.\n" if len(outcomes) > _ROWS else ""
    return [f"<details><summary>{summary}</summary>\n\n{rows}{more}\n</details>\n"]


def _measured(outcomes: Sequence[Outcome]) -> str:
    rows = [[*map(_escaped, _cells(outcome)), _escaped(outcome.why)] for outcome in outcomes]
    return markdown_table((*_HEADINGS, "why"), rows, ("case", "verdict", "why")) if rows else ""


def _listed(outcomes: Sequence[Outcome]) -> str:
    return markdown_table(
        ("case", "why"), [[_escaped(each.key), _escaped(each.why)] for each in outcomes], ("case", "why")
    )


def _brief(text: str) -> str:
    text = plain(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _escaped(text: str) -> str:
    return _MARKUP.sub(r"\\\1", _brief(text))


def write(answer: Answer, folder: Path | str) -> tuple[Path, ...]:
    """Write gate.json, gate.md and gate.xml into a folder; GitHub's summary of the step gets the Markdown, too.

    Returns
    -------
    tuple of Path
        The files in the folder.

    Raises
    ------
    DataFileError
        If one cannot be written.
    OSError
        If GitHub's summary cannot.
    """
    make_folder(folder)
    texts = {"gate.json": to_json(answer), "gate.md": markdown(answer), "gate.xml": junit(answer)}
    for name, text in texts.items():
        replace_file(Path(folder, name), text.encode())
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(summary, "a", encoding="utf-8") as stream:
            stream.write(texts["gate.md"])
    return tuple(Path(folder, name) for name in texts)
