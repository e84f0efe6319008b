"""The points that a run measures, as regular expressions for asv: `python -m benchmarks.harness.selection`.

asv starts a process for every point that its option --bench does not leave out, even if the point is then skipped.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from asv_runner.discovery import disc_benchmarks

from . import profiles


def expressions(wanted: Sequence[str] = ()) -> Iterator[str]:
    """One for each benchmark that has points in this run's profile, on its backends; it matches those alone.

    `wanted` are expressions like asv's, of which a point must match one, if there are any.
    """
    for benchmark in disc_benchmarks(str(Path(__file__).parents[1])):
        names = list(point_names(benchmark))
        chosen = [name for name in _measured(benchmark, names) if _matches(name, wanted)]
        if chosen:
            some = "|".join(map(re.escape, chosen))
            yield f"^{re.escape(benchmark.name)}\\(" if chosen == names else f"^(?:{some})$"


def point_names(benchmark: Any) -> Iterator[str]:
    """The text of each point that asv compares with an expression."""
    for values in itertools.product(*benchmark.params):
        yield f"{benchmark.name}({', '.join(values)})"


def _measured(benchmark: Any, names: Sequence[str]) -> Iterator[str]:
    question = benchmark.name.split(".")[-2]
    for name, values in zip(names, itertools.product(*benchmark._params), strict=True):
        named = dict(zip(benchmark.param_names, values, strict=True))
        if not profiles.left_out(profiles.profile(), question, named):
            yield name


def _matches(name: str, wanted: Sequence[str]) -> bool:
    return not wanted or any(re.search(expression, name) for expression in wanted)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the expressions, one a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", action="append", default=[], help="as asv's")
    for expression in expressions(parser.parse_args(arguments).bench):
        print(expression)
    return 0


if __name__ == "__main__":
    main()
