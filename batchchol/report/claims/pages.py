"""Claims in pages, between comments that readers do not see.

A number is `<!--=NAME-->4.24<!--/-->`, with a format specification after the name where it is not the usual one. A
table stands between `<!-- claims: TABLE -->` and `<!-- /claims -->`; the table `all` has every claim there is, and
`families` what the default table chooses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from batchchol.errors import BatchcholError
from batchchol.report.claims import families
from batchchol.report.claims.listed import Column, Group, Listed, Table
from batchchol.report.claims.looked_up import Lookup
from batchchol.report.claims.quantities import quantity
from batchchol.report.claims.rebased import listed_commits

_NUMBER = re.compile(r"(<!--=\s*(\S+?)(?:\s+(\S+?))?\s*-->).*?(<!--/-->)", re.DOTALL)
_TABLE = re.compile(r"(<!-- claims: (\S+) -->\n).*?(<!-- /claims -->)", re.DOTALL)
_EVERY, _FAMILIES = "all", "families"
Show = Callable[[str, str], str]
"""From a claim's name and its number to what stands on a page."""
# Markdown takes a line that begins with a comment for HTML: a paragraph would end there, and its marks be shown.
_FIRST = re.compile(r"^[ >]*(?:[-*+] +)?<!--=", re.MULTILINE)


def _alone(name: str, number: str) -> str:
    return number


def linked(name: str, number: str) -> str:
    """A number of the site, which leads to its group in the list of claims, and says its name."""
    return f'[{number}](claims.md#{name.partition("/")[0]} "{name}")'


def rendered(text: str, listed: Listed, show: Show = _alone) -> str:
    """A page as it has to be: what stands between its comments is what the data say, as `show` makes it.

    Raises
    ------
    BatchcholError
        If it names a claim or a table that is not listed, one of its comments has no end, or a line begins with one
        of a number.
    """
    for pattern, begin in ((_NUMBER, "<!--="), (_TABLE, "<!-- claims: ")):
        if text.count(begin) != len(pattern.findall(text)):
            raise BatchcholError(
                f"claims: a comment that begins with {begin!r} has no end: close it as the others are"
            )

    if found := _FIRST.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise BatchcholError(f"claims: line {line} begins with one, which Markdown takes for HTML: move a word to it")

    def number(found: re.Match[str]) -> str:
        begin, name, style, end = found.groups()
        return f"{begin}{show(name, listed.find(name).text(style or ''))}{end}"

    def table(found: re.Match[str]) -> str:
        begin, name, end = found.groups()
        return f"{begin}\n{_shown(name, listed, show)}\n{end}"

    return _TABLE.sub(table, _NUMBER.sub(number, text))


def unmarked(text: str) -> str:
    """A page with … for its claims: what is left must have no measured numbers."""
    return _TABLE.sub("…", _NUMBER.sub("…", text))


def _shown(name: str, listed: Listed, show: Show) -> str:
    if name == _EVERY:
        parts = [*(_everything(group) for group in listed.groups), *(_looked_up(lookup) for lookup in listed.lookups)]
        return "\n".join(parts)
    if name == _FAMILIES:
        return _markdown(families.HEADS, [True] * len(families.HEADS), families.lines())
    if name not in listed.tables:
        known = ", ".join([*listed.tables, _FAMILIES, _EVERY])
        raise BatchcholError(f"claims: got the table {name!r}, expected one of {known}")
    return _filled(listed.tables[name], listed, show)


def _filled(table: Table, listed: Listed, show: Show) -> str:
    def cell(column: Column, line: Mapping[str, Any]) -> str:
        if line["n"] in column.empty:
            return ""
        names = [claim.format(**line) for claim in column.claims]
        texts = [show(name, listed.find(name).text(column.style)) for name in names]
        return ", ".join(texts) if texts else column.text.format(**line)

    lines = ([cell(column, line) for column in table.columns] for line in table.lines)
    return _markdown([column.head for column in table.columns], [column.left for column in table.columns], lines)


def _everything(group: Group) -> str:
    """A group as a part of a page: what its rows are, a table of its cases, and a list of what is of all of them."""
    claims = list(group.claims())
    commits = listed_commits((claim.commits for claim in claims), group.root)
    whole = [
        f"- `{claim.name}`: {claim.text()} ({quantity(claim.quantity).words})\n"
        for claim in claims
        if not claim.point
    ]
    parts = [
        f"## {group.name}\n\n{group.about} `{group.file}`, commit {commits}.\n",
        _cases(group) if group.quantities else "",
        "".join(whole),
    ]
    return "\n".join(part for part in parts if part)


def _looked_up(lookup: Lookup) -> str:
    claims = list(lookup.claims())
    commits = listed_commits((claim.commits for claim in claims), lookup.root)
    lines = ([f"`{claim.name}`", claim.text()] for claim in claims)
    about = f"## {lookup.name}\n\n{lookup.about} `{lookup.file}`, commit {commits}.\n"
    return f"{about}\n{_markdown(['claim', lookup.value.replace('_', ' ')], [True, False], lines)}"


def _cases(group: Group) -> str:
    texts = {(claim.point, claim.quantity): claim.text() for claim in group.claims()}
    heads = ["case", *(f"{quantity(name).words}, `{name}`" for name in group.quantities)]
    lines = (
        [f"`{group.name}/n{n}/b{batch}/…`", *(texts[(n, batch), name] for name in group.quantities)]
        for n, batch in group.points
    )
    return _markdown(heads, [True] + [False] * len(group.quantities), lines)


def _markdown(heads: Sequence[str], left: Sequence[bool], lines: Iterable[Sequence[str]]) -> str:
    rules = ["---" if each else "---:" for each in left]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, rules, *lines))
