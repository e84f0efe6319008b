"""python -m batchchol.report.claims: renders the claims into the pages and draws plots, or checks or lists them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from batchchol.errors import BatchcholError
from batchchol.files import replace_file
from batchchol.report.claims.listed import Listed, load
from batchchol.report.claims.pages import rendered
from batchchol.report.claims.plots import drawn

_COMMAND = "python -m batchchol.report.claims"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns
    -------
    int
        0, 1 if a page was to be checked and is not up to date, or 2 if something is wrong with the list or a page.
    """
    parser = argparse.ArgumentParser(prog=_COMMAND, description=__doc__, allow_abbrev=False)
    parser.add_argument("--root", type=Path, default=Path(), help="the clone (default: the current folder)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="write nothing; the exit status is 1 if a page is stale")
    what.add_argument("--list", action="store_true", help="print each claim, its value, its file and its commits")
    arguments = parser.parse_args(argv)
    try:
        listed = load(arguments.root)
        return _print(listed) if arguments.list else _render(listed, write=not arguments.check)
    except BatchcholError as error:
        print(f"{_COMMAND}: {error}", file=sys.stderr)
        return 2


def _print(listed: Listed) -> int:
    for name, claim in listed.every.items():
        print(f"{name}\t{claim.text()}\t{claim.group.file}\t{claim.commits}")
    return 0


def _render(listed: Listed, *, write: bool) -> int:
    stale = 0
    for page in listed.pages:
        before = page.read_text(encoding="utf-8")
        after = rendered(before, listed)
        if after != before:
            stale += 1
            print(f"{page}: {'rendered' if write else 'is not what the data say'}")
            if write:
                replace_file(page, after.encode())
    if write:
        for plot in listed.plots:
            drawn(plot)
    return int(bool(stale) and not write)


if __name__ == "__main__":
    sys.exit(main())
