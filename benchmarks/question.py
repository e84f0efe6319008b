"""What every question shares: which of its points are measured, and why the others are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from asv_runner.benchmarks.mark import SkipNotImplemented

from . import grid, library


@contextmanager
def skipping() -> Iterator[None]:
    """Turn what cannot be built, or not on this machine, into a skip with the reason; the rest fails."""
    try:
        yield
    except (library.BackendUnavailable, library.OutOfMemory, library.SpecError) as error:
        raise SkipNotImplemented(str(error)) from error


class Question:
    """Base of the suite's classes; `params` and `param_names` come from the grid.

    asv derives a benchmark's version from its source and drops the results of other versions. `version` is
    set by hand instead, so that an edit keeps the suite's history: raise it when something else is measured.
    """

    param_names = grid.AXES
    version = "1"
    timeout = 300
    # `asv continuous` interleaves the rounds of its two commits, against drift of the machine's clock.
    rounds = 1 if grid.profile() == "quick" else 2

    def selected(self, *values: Any) -> dict[str, Any]:
        """The parameters by name.

        Raises
        ------
        SkipNotImplemented
            If the profile does not select this point, or the commit cannot be measured at all.
        """
        named = dict(zip(self.param_names, values, strict=True))
        if not grid.keeps(grid.profile(), type(self).__name__, named):
            raise SkipNotImplemented(f"not in profile {grid.profile()!r} ({grid.PROFILE_VARIABLE})")
        if library.MISSING:
            raise SkipNotImplemented(library.MISSING)
        return named
