"""The points that a run measures, as regular expressions for asv: `python -m benchmarks.harness.selection`.

asv starts a process for every point that its option --bench does not leave out, even if the point is then skipped.
With `--known` points are left out whose kernel has the text that it had when it was measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from asv_runner.benchmarks.mark import SkipNotImplemented
from asv_runner.discovery import disc_benchmarks

from . import grid, library, profiles
from .cases import backend_of, planned

Texts = Mapping[str, Mapping[str, str]]
# The parameters without which a point has no kernel.
_OF_KERNELS = frozenset(("n", "math", "backend"))


def expressions(wanted: Sequence[str] = (), known: Texts | None = None) -> Iterator[str]:
    """One for each benchmark that has points in this run's profile, on its backends; it matches those alone.

    `wanted` are expressions like asv's, of which a point must match one, if there are any. `known` has hashes of the
    kernel texts that need no measurement, by benchmark and parameters (JSON with sorted names).
    """
    for benchmark in disc_benchmarks(str(Path(__file__).parents[1])):
        names = list(point_names(benchmark))
        texts = (known or {}).get(benchmark.name, {})
        chosen = [name for name in _measured(benchmark, names, texts) if _matches(name, wanted)]
        if chosen:
            some = "|".join(map(re.escape, chosen))
            yield f"^{re.escape(benchmark.name)}\\(" if chosen == names else f"^(?:{some})$"


def point_names(benchmark: Any) -> Iterator[str]:
    """The text of each point that asv compares with an expression."""
    for values in itertools.product(*benchmark.params):
        yield f"{benchmark.name}({', '.join(values)})"


def _measured(benchmark: Any, names: Sequence[str], texts: Mapping[str, str]) -> Iterator[str]:
    question = benchmark.name.split(".")[-2]
    for name, values in zip(names, itertools.product(*benchmark._params), strict=True):
        named = dict(zip(benchmark.param_names, values, strict=True))
        text = texts.get(json.dumps(named, sort_keys=True))
        if not profiles.left_out(profiles.profile(), question, named) and not (
            text and text == _text(benchmark, named)
        ):
            yield name


def _text(benchmark: Any, named: Mapping[str, Any]) -> str:
    """The hash of the kernel's text at a point; empty if it has none, or none on this machine."""
    question = benchmark.func.__self__
    if set(named) >= _OF_KERNELS:
        with suppress(SkipNotImplemented):
            point = grid.point_of(dict(named))
            spec = getattr(question, "planned", planned)(point, backend_of(point)).spec
            return sha256(library.generate_source(spec).text.encode()).hexdigest()
    return ""


def _matches(name: str, wanted: Sequence[str]) -> bool:
    return not wanted or any(re.search(expression, name) for expression in wanted)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the expressions, one a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", action="append", default=[], help="as asv's")
    parser.add_argument("--known", type=Path, help="a JSON file of kernel texts that need no measurement")
    chosen = parser.parse_args(arguments)
    known = json.loads(chosen.known.read_text(encoding="utf-8")) if chosen.known else None
    for expression in expressions(chosen.bench, known):
        print(expression)
    return 0


if __name__ == "__main__":
    main()
